//! Numbers that the specification fixes (pages it_event_t, it_status_t, it_ia_info_t,
//! it_conn_qual_t, it_path_t).
//!
//! Only rows that ask for a value and nothing else are claimed here. Where a row also says when the
//! value is reported, the test that provokes it claims the row.

use privileged_api::*;

use crate::{Test, check, check_eq, test};

/// All codes in the order of the header. The position of a code is its value; `IT_SUCCESS` is 0.
const CODES: [Error; 106] = [
    Error::Abort,
    Error::Access,
    Error::Address,
    Error::AevdNotAllowed,
    Error::AsyncAffEvdExists,
    Error::AsyncUnaffEvdExists,
    Error::CallbackExists,
    Error::CannotReset,
    Error::ConnQualBusy,
    Error::EpBusy,
    Error::EpTimewait,
    Error::EvdBusy,
    Error::EvdWait,
    Error::EvdQueueFull,
    Error::Fault,
    Error::HardHiWatermark,
    Error::IaCatastrophe,
    Error::Interrupt,
    Error::InvalidAddrMode,
    Error::InvalidAddress,
    Error::InvalidAevd,
    Error::InvalidAh,
    Error::InvalidAtimeout,
    Error::InvalidAtomicOp,
    Error::InvalidCmRetry,
    Error::InvalidCnEstFlags,
    Error::InvalidCnEstId,
    Error::InvalidConnEvd,
    Error::InvalidConnQual,
    Error::InvalidConversion,
    Error::InvalidDtoFlags,
    Error::InvalidEp,
    Error::InvalidEpAttr,
    Error::InvalidEpKey,
    Error::InvalidEpState,
    Error::InvalidEpType,
    Error::InvalidEvd,
    Error::InvalidEvdState,
    Error::InvalidEvdType,
    Error::InvalidFlags,
    Error::InvalidHandle,
    Error::InvalidIa,
    Error::InvalidIobl,
    Error::InvalidLength,
    Error::InvalidListen,
    Error::InvalidLmr,
    Error::InvalidLtimeout,
    Error::InvalidMajorVersion,
    Error::InvalidMask,
    Error::InvalidMinorVersion,
    Error::InvalidName,
    Error::InvalidNetaddr,
    Error::InvalidNumSegments,
    Error::InvalidPdataLength,
    Error::InvalidPrivs,
    Error::InvalidPz,
    Error::InvalidQueueSize,
    Error::InvalidRecvDto,
    Error::InvalidRecvEvd,
    Error::InvalidRecvEvdState,
    Error::InvalidReqEvd,
    Error::InvalidReqEvdState,
    Error::InvalidRetry,
    Error::InvalidRmr,
    Error::InvalidRnrRetry,
    Error::InvalidRmrType,
    Error::InvalidRtimeout,
    Error::InvalidSoftEvd,
    Error::InvalidSourcePath,
    Error::InvalidSpigot,
    Error::InvalidSrq,
    Error::InvalidSrqSize,
    Error::InvalidThreshold,
    Error::InvalidUdStatus,
    Error::InvalidUdSvc,
    Error::InvalidUdSvcReqId,
    Error::InvalidWatermark,
    Error::LmrBusy,
    Error::MismatchFd,
    Error::NoContext,
    Error::NoPermission,
    Error::OpNotSupported,
    Error::PayloadSize,
    Error::PdataNotSupported,
    Error::PrivOpsUnavailable,
    Error::PzBusy,
    Error::QueueEmpty,
    Error::Range,
    Error::Resources,
    Error::ResourceIrd,
    Error::ResourceLmrLength,
    Error::ResourceOrd,
    Error::ResourceQueueSize,
    Error::ResourceRecvDto,
    Error::ResourceReqDto,
    Error::ResourceRrseg,
    Error::ResourceRseg,
    Error::ResourceRwseg,
    Error::ResourceSseg,
    Error::SoftHiWatermark,
    Error::SrqBusy,
    Error::SrqLowWatermark,
    Error::SrqNotSupported,
    Error::TimeoutExpired,
    Error::TooManyPosts,
    Error::WaiterLimit,
];

pub(crate) const TESTS: &[Test] = &[
    // Every code has the header's number, and codes that the header dropped do not exist.
    test(
        "values::status_codes",
        &[
            "it_status_t F01 V01-V03",
            "it_ep_connect V06",
            // No call here can return these: they need a signal, an undefined value of an
            // enumeration, or a device without something that all InfiniBand devices have.
            "it_status_t F12 F19 F25 F73 F78 F85",
            "E B01",
        ],
        |_| {
            for (place, code) in CODES.into_iter().enumerate() {
                check_eq!(code as usize, place + 1, "{code:?}");
                check_eq!(code.as_raw() as usize, place + 1, "{code:?}");
                // These codes exist in IT-API 1.0 only.
                check!(!["IT_ERR_INVALID_SLID", "IT_ERR_INVALID_SGID"].contains(&code.name()));
            }
            // IT_SUCCESS is 0, so no error has this value.
            check!(CODES.iter().all(|code| code.as_raw() != 0));
            check_eq!(Error::InvalidSourcePath.name(), "IT_ERR_INVALID_SOURCE_PATH");
            // Codes that pages return but that the header lacks follow behind those of the header.
            let ours = [
                Error::InvalidIanaLrPort,
                Error::InvalidSd,
                Error::InvalidSdState,
                Error::ResourceIoblLength,
            ];
            for code in ours {
                check!(code as usize > CODES.len(), "{code:?}");
            }
            check_eq!(Error::EpTimewait as u32, 11);
            Ok(())
        },
    ),
    // IT_FALSE is 0 and IT_TRUE is 1.
    test("values::booleans", &["it_boolean_t F01 F02"], |_| {
        check_eq!((u32::from(false), u32::from(true)), (0, 1));
        check_eq!(size_of::<bool>(), 1);
        Ok(())
    }),
    // Each stream has its constant, and the mask extracts it from every event number of the stream.
    test(
        "values::event_streams",
        &["it_event_t F01 F03 F14 F17 F25 F45 F50 F52", "A.it_event_t B01"],
        |_| {
            let streams = [
                (EventType::DTO_EVENT_STREAM, 0x00000),
                (EventType::CM_REQ_EVENT_STREAM, 0x01000),
                (EventType::CM_MSG_EVENT_STREAM, 0x02000),
                (EventType::ASYNC_AFF_EVENT_STREAM, 0x04000),
                (EventType::ASYNC_UNAFF_EVENT_STREAM, 0x08000),
                (EventType::SOFTWARE_EVENT_STREAM, 0x10000),
                (EventType::AEVD_NOTIFICATION_EVENT_STREAM, 0x20000),
            ];
            check_eq!(EVENT_STREAM_MASK, 0xff000);
            for (stream, value) in streams {
                check_eq!(stream.as_raw(), value);
            }
            for (event, stream) in [
                (EventType::LMR_LINK_CMPL, EventType::DTO_EVENT_STREAM),
                (EventType::CM_REQ_UD_SERVICE_REQUEST, EventType::CM_REQ_EVENT_STREAM),
                (EventType::CM_MSG_UD_SERVICE_REPLY, EventType::CM_MSG_EVENT_STREAM),
                (EventType::ASYNC_AFF_SRQ_LOW_WATERMARK, EventType::ASYNC_AFF_EVENT_STREAM),
                (EventType::ASYNC_UNAFF_SEVD_ENQUEUE_FAILURE, EventType::ASYNC_UNAFF_EVENT_STREAM),
                (EventType::SOFTWARE, EventType::SOFTWARE_EVENT_STREAM),
                (EventType::AEVD_NOTIFICATION, EventType::AEVD_NOTIFICATION_EVENT_STREAM),
            ] {
                check_eq!(event.as_raw() & EVENT_STREAM_MASK, stream.as_raw());
                check_eq!(event.stream(), stream);
            }
            Ok(())
        },
    ),
    // Transport types, qualifier types and address lengths have the header's values. Qualifier
    // types are bits although appendix E denies it, since a spigot's mask combines them.
    test(
        "values::transports_and_qualifiers",
        &["it_ia_info_t F02-F05 V03", "it_conn_qual_t F03 F04 L01", "it_net_addr_t L01"],
        |_| {
            let transports = [TransportType::ViaIp, TransportType::ViaFc, TransportType::IwarpTcp];
            check_eq!(transports.map(|transport| transport as u32), [2, 3, 4]);
            check_eq!(TransportType::Vendor as u32, 1000);
            let types = [
                ConnQualTypes::IANA_PORT,
                ConnQualTypes::IB_SERVICEID,
                ConnQualTypes::VIA_DISCRIMINATOR,
                ConnQualTypes::IANA_LR_PORT,
            ];
            check_eq!(types.map(|kind| kind.bits()), [1, 2, 4, 8]);
            // The types are single bits, since masks are made of them.
            let both = ConnQualTypes::IANA_PORT | ConnQualTypes::IB_SERVICEID;
            check_eq!(both.bits(), 3);
            check!(types.map(|kind| both.contains(kind)) == [true, true, false, false]);
            check_eq!((MAX_VIA_DISC_LEN, MAX_VIA_ADDR_LEN), (64, 64));
            Ok(())
        },
    ),
    // Contexts and UD identifiers have 32 bits, lengths have 64.
    test("values::words_are_as_wide_as_they_must_be", &["it_lmr_create F07 F08", "G.1 F04"], |_| {
        check_eq!((size_of::<RmrContext>(), size_of::<RdmaAddr>(), size_of::<CnEstId>()), (4, 8, 8));
        let info = RemoteEpInfo { ud_ep_id: u32::MAX, ud_ep_key: u32::MAX };
        check_eq!(size_of_val(&info), 8);
        check_eq!(size_of_val(&LmrTriplet::default().length), 8);
        Ok(())
    }),
];
