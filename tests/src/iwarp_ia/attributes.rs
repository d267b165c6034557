//! What an IA over iWARP reports of itself (pages it_ia_info_t, it_ia_query, it_interface_list).

use privileged_api::*;

use super::open;
use crate::fixture::{path, spigot};
use crate::{Failure, Test, check, check_eq, refused, test};

/// The tests of this module.
pub(crate) const TESTS: &[Test] = &[
    // The attributes in which iWARP differs, and what the vendor says of the NIC.
    test(
        "iwarp_ia::attributes",
        &[
            "5.2.4 L02 L03",
            "it_ia_info_t F23 F24 F32",
            "it_rmr_create O02",
            "it_rmr_type_t B10",
            "it_post_atomic O02",
            "B.2 B01-B03 B05",
        ],
        |f| {
            let f = f.over_iwarp()?;
            let info = f.a.ia_query()?;
            check_eq!((info.transport_type, TransportType::IwarpTcp as u32), (TransportType::IwarpTcp, 4));
            let Vendor::Iwarp(vendor) = info.vendor else { return Err(Failure::new("another vendor")) };
            let guid = f.a.identity().node_guid.to_be_bytes();
            let vid = vendor.vid.unwrap_or([0; VendorIwarp::VID_SIZE]);
            check_eq!((&vid[..8], vid[8..].iter().all(|&byte| byte == 0)), (&guid[..], true));
            check_eq!(info.supported_service_types, ServiceTypes::RC);
            check!(!info.three_way_handshake_support && !info.atomic_support);
            check!(info.rmr_types_supported.contains(RmrTypes::NARROW));
            check!(info.extended_iwarp_qp_states && info.rdma_read_requires_remote_write);
            check!(info.rdma_read_local_extensions && info.private_data_support);
            let lengths = [
                info.connect_private_data_len,
                info.accept_private_data_len,
                info.reject_private_data_len,
                info.disconnect_private_data_len,
            ];
            check_eq!(lengths, [256, 256, 256, 0]);
            check_eq!((info.ud_req_private_data_len, info.ud_rep_private_data_len), (0, 0));
            check!(!info.supported_service_types.contains(ServiceTypes::UD));
            let (list, _) = f.setup.provider.interface_list(usize::MAX);
            check!(list.iter().all(|interface| interface.transport_type == TransportType::Ib));
            Ok(())
        },
    ),
    // A spigot has IP addresses only, and two types of qualifier, of which one is for who connects.
    test("iwarp_ia::names", &["5.2.4 L01", "it_path_t F15-F19 F24"], |f| {
        let f = f.over_iwarp()?;
        let (here, there) = (spigot(&f.a)?, spigot(&f.b)?);
        check_eq!(here.active_side_conn_qual, ConnQualTypes::IANA_PORT | ConnQualTypes::IANA_LR_PORT);
        check_eq!(here.passive_side_conn_qual, ConnQualTypes::IANA_PORT);
        let ip = |addr: &NetAddr| matches!(addr, NetAddr::Ipv4(_) | NetAddr::Ipv6(_));
        check!(!here.net_addr.is_empty() && here.net_addr.iter().all(ip));
        for (nth, addr) in here.net_addr.iter().enumerate() {
            check!(!here.net_addr[..nth].contains(addr), "{addr:?} twice");
        }
        for addr in &there.net_addr {
            let NetEndpoint::Iwarp(ends) = path(&f.a, addr)?.remote else {
                return Err(Failure::new("a path of another transport"));
            };
            let (local, remote) = match ends {
                IwarpNetEndpoint::Ipv4 { laddr, raddr } => (NetAddr::Ipv4(laddr), NetAddr::Ipv4(raddr)),
                IwarpNetEndpoint::Ipv6 { laddr, raddr } => (NetAddr::Ipv6(laddr), NetAddr::Ipv6(raddr)),
            };
            check_eq!(remote, *addr);
            check!(here.net_addr.contains(&local), "{local:?} is none of {:?}", here.net_addr);
        }
        let gid = NetAddr::IbGid([0x20; 16]);
        refused(f.a.get_pathinfo(here.spigot_id, &gid, 1), Error::InvalidNetaddr)?;
        let ipv4 = NetAddr::Ipv4([10, 1, 2, 3]);
        refused(f.a.convert_net_addr(&ipv4, NetAddrType::IbGid), Error::InvalidConversion)?;
        check!(f.a.convert_net_addr(&ipv4, NetAddrType::Ipv6).is_ok());
        Ok(())
    }),
    // What iWARP has not is refused, and changes nothing.
    test("iwarp_ia::what_it_lacks", &[], |f| {
        let f = f.over_iwarp()?;
        let pair = f.pair()?;
        let (ep, none) = (pair.a.ep, RmrContext::default());
        let flags = DtoFlags::COMPLETION;
        refused(f.a.post_send_immediate(ep, &[], 1, flags, 7), Error::OpNotSupported)?;
        let at = RdmaAddr::default();
        let write = f.a.post_rdma_write_immediate(ep, &[], 1, flags, at, none, 7);
        refused(write, Error::OpNotSupported)?;
        let three_way = CnEstFlags::THREE_WAY;
        let (end, listener) = (f.end(&f.a, &open())?, f.listen(&f.b)?);
        let way = path(&f.a, &listener.address)?;
        let dialled = f.a.ep_connect(end.ep, &way, None, &listener.conn_qual, three_way, &[]);
        refused(dialled, Error::InvalidCnEstFlags)?;
        check_eq!(end.state()?, EpStateRc::Unconnected);
        refused(f.a.ep_disconnect(ep, &[1]), Error::InvalidPdataLength)?;
        check_eq!(pair.a.state()?, EpStateRc::Connected);
        Ok(())
    }),
];
