//! Bad arguments of it_ep_connect: flags, qualifiers, paths, attributes of the transport (pages
//! it_ep_connect, it_conn_qual_t, it_path_t).

use privileged_api::*;

use crate::check::some;
use crate::connections::connect::{TWO_WAY, exchange_messages, sides};
use crate::fixture::{path, spigot};
use crate::transport::Need;
use crate::{Test, check, check_eq, refused, test};

pub(crate) const TESTS: &[Test] = &[
    // Undefined and contradictory flags are refused.
    test(
        "connect::bad_flags",
        &["it_ep_connect L01 V03 V04 IT_ERR_INVALID_CN_EST_FLAGS", "it_status_t F27"],
        |f| {
            let (active, _, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            for bits in [0, 3, 4, 7, 8, 9, 0x8000_0001, u32::MAX] {
                let flags = CnEstFlags::from_bits_retain(bits);
                let dial = f.a.ep_connect(active.ep, &route, None, &listener.conn_qual, flags, &[]);
                refused(dial, Error::InvalidCnEstFlags)?;
            }
            check_eq!(active.state()?, EpStateRc::Unconnected);
            check_eq!(Error::InvalidCnEstFlags as u32, 26);
            Ok(())
        },
    ),
    // Qualifiers of a type that the spigot does not support, and impossible ones, are refused.
    test(
        "connect::bad_qualifiers",
        &[
            "it_ep_connect IT_ERR_INVALID_CONN_QUAL",
            "it_ia_info_t F13",
            "it_conn_qual_t B02 F10",
            "it_status_t F30",
        ],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let (active, _, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            let discriminator = ViaDiscriminator { len: 2, discriminator: [0; MAX_VIA_DISC_LEN] };
            let types = spigot(&f.a)?.active_side_conn_qual;
            for (qual, kind) in [
                (ConnQual::ViaDiscriminator(discriminator), ConnQualTypes::VIA_DISCRIMINATOR),
                (ConnQual::IanaLrPort { local: 1, remote: 2 }, ConnQualTypes::IANA_LR_PORT),
            ] {
                check!(!types.contains(kind), "{kind:?} is not a type of InfiniBand");
                let dial = f.a.ep_connect(active.ep, &route, None, &qual, TWO_WAY, &[]);
                refused(dial, Error::InvalidConnQual)?;
            }
            check_eq!(active.state()?, EpStateRc::Unconnected);
            check_eq!(Error::InvalidConnQual as u32, 29);
            Ok(())
        },
    ),
    // A path from another spigot, another port or another partition is refused.
    test(
        "connect::bad_paths",
        &[
            "A.it_ep_connect IT_ERR_INVALID_SOURCE_PATH",
            "it_ep_connect V01 IT_ERR_INVALID_SOURCE_PATH IT_ERR_INVALID_SPIGOT",
            "it_path_t F06 F20 F22",
            "it_status_t F70 F71",
        ],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let (active, passive, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            let dial =
                |route: &Path| f.a.ep_connect(active.ep, route, None, &listener.conn_qual, TWO_WAY, &[]);
            for spigot_id in [route.spigot_id + 1, usize::MAX] {
                refused(dial(&Path { spigot_id, ..route }), Error::InvalidSpigot)?;
            }
            let mut wrong = route;
            some(wrong.ib_mut(), "the InfiniBand part")?.local_port_gid = [0xee; 16];
            refused(dial(&wrong), Error::InvalidSourcePath)?;
            // The port is not a member of these partitions.
            for key in [0, 1, 0x7ffe, 0x8001, 0xfffe] {
                let mut wrong = route;
                some(wrong.ib_mut(), "the InfiniBand part")?.partition_key = key;
                refused(dial(&wrong), Error::InvalidSourcePath)?;
            }
            let iwarp = IwarpNetEndpoint::Ipv4 { laddr: [127, 0, 0, 1], raddr: [127, 0, 0, 1] };
            let foreign = Path { remote: NetEndpoint::Iwarp(iwarp), ..route };
            refused(dial(&foreign), Error::InvalidSourcePath)?;
            check_eq!(active.state()?, EpStateRc::Unconnected);
            check_eq!((Error::InvalidSourcePath as u32, Error::InvalidSpigot as u32), (69, 70));
            // The unchanged path is still accepted.
            dial(&route)?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            Ok(())
        },
    ),
    // A transport attribute that does not fit its field is refused with its own error.
    test(
        "connect::attributes_of_the_transport",
        &[
            "it_ep_connect B07 F05-F10 V05 IT_ERR_INVALID_CM_RETRY IT_ERR_INVALID_ETIMEOUT",
            "it_ep_connect IT_ERR_INVALID_LTIMEOUT IT_ERR_INVALID_RETRY IT_ERR_INVALID_RNR_RETRY",
            "it_ep_connect IT_ERR_INVALID_RTIMEOUT",
            "it_status_t F24 F26 F48 F64 F66 F68",
        ],
        |f| {
            Need::InfiniBand.of(&f.a)?;
            let (active, passive, listener) = sides(f)?;
            let route = path(&f.a, &listener.address)?;
            let dial = |attributes: &ConnAttributes| {
                f.a.ep_connect(active.ep, &route, Some(attributes), &listener.conn_qual, TWO_WAY, &[])
            };
            let good = ConnAttributes::default();
            // Each value is one more than its field can hold.
            let wrong = [
                (ConnAttributes { remote_cm_timeout: 32, ..good }, Error::InvalidRtimeout, 67),
                (ConnAttributes { local_cm_timeout: 32, ..good }, Error::InvalidLtimeout, 47),
                (ConnAttributes { retry_count: 8, ..good }, Error::InvalidRetry, 63),
                (ConnAttributes { rnr_retry_count: 8, ..good }, Error::InvalidRnrRetry, 65),
                (ConnAttributes { max_cm_retries: 16, ..good }, Error::InvalidCmRetry, 25),
                (ConnAttributes { local_ack_timeout: 32, ..good }, Error::InvalidAtimeout, 23),
            ];
            for (attributes, error, code) in wrong {
                refused(dial(&attributes), error)?;
                check_eq!(error as u32, code);
            }
            // Nor is any greater value cut to the width of its field.
            for value in 33..=u8::MAX {
                for (attributes, error) in [
                    (ConnAttributes { remote_cm_timeout: value, ..good }, Error::InvalidRtimeout),
                    (ConnAttributes { local_cm_timeout: value, ..good }, Error::InvalidLtimeout),
                    (ConnAttributes { retry_count: value, ..good }, Error::InvalidRetry),
                    (ConnAttributes { rnr_retry_count: value, ..good }, Error::InvalidRnrRetry),
                    (ConnAttributes { max_cm_retries: value, ..good }, Error::InvalidCmRetry),
                    (ConnAttributes { local_ack_timeout: value, ..good }, Error::INVALID_ETIMEOUT),
                ] {
                    refused(dial(&attributes), error)?;
                }
            }
            check_eq!(active.state()?, EpStateRc::Unconnected);
            // The largest and the smallest useful values are accepted.
            dial(&ConnAttributes { retry_count: 0, rnr_retry_count: 7, max_cm_retries: 15, ..good })?;
            f.b.ep_accept(passive.ep, listener.request()?.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            passive.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
            // Without retries a lossy network may end it.
            if f.setup.lossy { Ok(()) } else { exchange_messages(&active, &passive) }
        },
    ),
];
