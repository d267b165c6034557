//! The attributes of an IA, and the numbers of the InfiniBand extensions.

use dat::*;
use privileged_api::{Features, Limits};

use super::world::*;
use crate::fixture::PAGE;
use crate::{Failure, Outcome, Test, check, check_eq, refused, some, test};

/// The value of a named attribute.
fn named(ia: &Ia, name: &str) -> core::result::Result<Option<&'static str>, Failure> {
    let (_, _, provider) = ia.ia_query(IaAttrMask::NONE, ProviderAttrMask::ALL)?;
    let attributes = some(provider, "the provider's attributes")?.provider_specific_attr;
    Ok(attributes.iter().find(|attribute| attribute.name == name).map(|attribute| attribute.value))
}

/// The attributes of the extensions, by the masks.
fn extensions(ia: &Ia) -> core::result::Result<(u32, u32), Failure> {
    let mask = IaAttrMask::EXTENSION | IaAttrMask::EXTENSION_VERSION;
    let attr = some(ia.ia_query(mask, ProviderAttrMask::NONE)?.1, "the IA's attributes")?;
    Ok((attr.extension_supported as u32, attr.extension_version))
}

/// Makes each call of the extensions on a pair that is not connected. Returns the type of error of
/// each: atomics, Writes with immediate data, datagrams.
fn refusals(w: &World<'_>, ia: &Ia) -> core::result::Result<[ErrorType; 4], Failure> {
    let end = w.end(ia, &attributes())?;
    let region = w.region(&end, PAGE, MemPriv::ALL)?;
    let (eight, remote) = (region.segment(0, 8), region.remote(0, 8));
    let kind = |result: Result<()>| match result {
        Ok(()) => Err(Failure::new("accepted")),
        Err(error) => Ok(error.kind()),
    };
    Ok([
        kind(ia.ib_post_fetch_and_add(end.ep, 1, &eight, 1, &remote, PLAIN))?,
        kind(ia.ib_post_cmp_and_swap(end.ep, 1, 2, &eight, 1, &remote, PLAIN))?,
        kind(ia.ib_post_rdma_write_with_immed(end.ep, &[eight], 1, &remote, 1, PLAIN))?,
        kind(ia.ib_post_send_ud(end.ep, &[eight], &IbAddrHandle::NONE, 1, PLAIN))?,
    ])
}

/// Runs `test` with an IA on an interface with these features, and closes the IA.
fn with_features(w: &World<'_>, features: Features, test: impl FnOnce(&Ia) -> Outcome) -> Outcome {
    let ia = w.limited(Limits { features, ..Limits::NONE })?;
    let outcome = test(&ia);
    outcome.and(w.close(&ia))
}

pub(crate) const TESTS: &[Test] = &[
    // The provider names the completion flags, kinds of memory and privileges that it has.
    test("dat_attributes::the_provider_says_what_it_has", &[], |f| {
        world(f, |w| {
            let (_, _, provider) = w.a.ia_query(IaAttrMask::NONE, ProviderAttrMask::ALL)?;
            let provider = some(provider, "the provider's attributes")?;
            for flag in [
                CompletionFlags::SUPPRESS,
                CompletionFlags::SOLICITED_WAIT,
                CompletionFlags::UNSIGNALLED,
                CompletionFlags::BARRIER_FENCE,
                CompletionFlags::EVD_THRESHOLD,
            ] {
                check!(provider.completion_flags_supported.contains(flag), "{flag:?}");
            }
            check_eq!(provider.completion_flags_supported.bits().count_ones(), 5);
            check_eq!(provider.lmr_mem_types_supported, MemType::Lmr as u32);
            check_eq!((provider.dapl_version_major, provider.dapl_version_minor), (2, 0));
            check_eq!(provider.dat_qos_supported, Qos::BEST_EFFORT);
            check_eq!((provider.is_thread_safe, provider.supports_multipath), (true, false));
            Ok(())
        })
    }),
    // For each extension, the masks and the names agree with what its call does, on an interface
    // that offers all extensions, some, or none.
    test(
        "dat_attributes::masks_names_and_calls_agree",
        &[
            "dat-ib-1.1 B01 B02 O01",
            "dat-ib-2 A02 A03 B01 F01-F05",
            "dat_ib_post_send_ud DAT_MODEL_NOT_SUPPORTED",
        ],
        |f| {
            world(f, |w| {
                use ErrorType::{InvalidHandle, InvalidState, ModelNotSupported as Model};
                let (all, no_atomics) = (Features::all(), Features::all().difference(Features::ATOMICS));
                let no_datagrams = all.difference(Features::UD);
                let none = no_atomics.difference(Features::UD);
                for (features, atomics, datagrams) in [
                    (all, true, true),
                    (no_atomics, false, true),
                    (no_datagrams, true, false),
                    (none, false, false),
                ] {
                    let any = atomics || datagrams;
                    with_features(w, features, |ia| {
                        // DAT_IA_FIELD_IA_EXTENSION: DAT_EXTENSION_IB is 1. The version is 2.0.9.
                        check_eq!(extensions(ia)?, if any { (1, 209) } else { (0, 0) });
                        check_eq!(named(ia, "DAT_EXTENSION_INTERFACE")?.is_some(), any);
                        check_eq!(named(ia, "DAT_EXTENSION_VERSION")?, any.then_some("2.0.9"));
                        // The document's names, and those of the headers.
                        for (name, offered) in [
                            ("DAT_IB_IMMED_DATA_OP", any),
                            ("DAT_IB_IMMED_DATA", any),
                            ("DAT_IB_FETCH_AND_ADD_OP", atomics),
                            ("DAT_IB_FETCH_AND_ADD", atomics),
                            ("DAT_IB_CMP_AND_SWAP_OP", atomics),
                            ("DAT_IB_CMP_AND_SWAP", atomics),
                        ] {
                            check_eq!(named(ia, name)?, offered.then_some("TRUE"), "{name}");
                        }
                        check_eq!(named(ia, "DAT_IB_UD")?.is_some(), datagrams);
                        // The endpoint is not connected, so a call that is offered returns an error
                        // about its state.
                        let atomic = if atomics { InvalidState } else { Model };
                        let write = if any { InvalidState } else { Model };
                        let datagram = if datagrams { InvalidHandle } else { Model };
                        check_eq!(refusals(w, ia)?, [atomic, atomic, write, datagram]);
                        let op = ia.extension_op(
                            Handle::NULL,
                            IbOp(77),
                            &IbArguments::UdSend {
                                local_iov: &[],
                                ah: &IbAddrHandle::NONE,
                                cookie: 1,
                                completion_flags: PLAIN,
                            },
                        );
                        refused(op, if any { ErrorType::NotImplemented } else { Model }.into())?;
                        let created = ia.ep_create(
                            PzHandle::NULL,
                            EvdHandle::NULL,
                            EvdHandle::NULL,
                            EvdHandle::NULL,
                            Some(&super::world::datagrams()),
                        );
                        check_eq!(
                            created.map(drop).map_err(Error::kind).err(),
                            (!datagrams).then_some(Model)
                        );
                        Ok(())
                    })?;
                }
                Ok(())
            })
        },
    ),
    // The numbers of the extensions are those of the public headers.
    test(
        "dat_attributes::numbers_of_the_extensions",
        &[
            "DAT_IB_EVENT_NUMBER A01 F01",
            "DAT_IB_RETURN F01",
            "DAT_IB_HANDLE_TYPE F01",
            "DAT_IB_EXTENSION_EVENT_DATA L01",
            "dat-ib-2 A01",
        ],
        |_| {
            check_eq!((EventNumber::IB_DTO.0, EventNumber::IB_RANGE_BASE.0), (0x40000, 0x40000));
            check_eq!(EventNumber::IB_UD_CONNECTION_REQUEST.0, 0x40001);
            check_eq!(EventNumber::IB_UD_CONNECTION_ESTABLISHED.0, 0x40002);
            check!(EventNumber::IB_UD_CONNECTION_ERROR.is_ib() && !EventNumber::SOFTWARE.is_ib());
            check_eq!(ErrorType::IbErr as u32, 0x1000_0000);
            check_eq!(Error::new(ErrorType::IbErr, Subtype::None).as_raw(), 0x9000_0000);
            check_eq!(strerror(0x9000_0000), Ok(("DAT_IB_ERR", "DAT_NO_SUBTYPE")));
            check_eq!(HandleType::IbExt as u32, 12);
            check!(size_of::<IbExtensionEventData>() <= 64, "{}", size_of::<IbExtensionEventData>());
            let dtos = [
                Dto::IB_RDMA_WRITE_IMMED,
                Dto::IB_RECV_IMMED,
                Dto::IB_FETCH_ADD,
                Dto::IB_CMP_SWAP,
                Dto::IB_RECV_MSG_IMMED,
                Dto::IB_SEND_UD,
                Dto::IB_RECV_UD,
                Dto::IB_RECV_UD_IMMED,
            ];
            check_eq!(dtos.map(|dto| dto.0), [8, 9, 10, 11, 12, 13, 14, 15]);
            // The return codes that the extensions' pages list have DAT's numbers.
            let error = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEp);
            check_eq!(error.as_raw(), 0x8005_000c);
            check_eq!(Error::from(ErrorType::ModelNotSupported).as_raw(), 0x8009_0000);
            check_eq!(Error::from(ErrorType::LengthError).as_raw(), 0x8008_0000);
            Ok(())
        },
    ),
    // The event number of all extended operations is the same; the operation in the event says
    // which one has completed. An ordinary event has no extension data.
    test(
        "dat_attributes::operations_say_what_completed",
        &[
            "DAT_IB_EVENT_NUMBER B01",
            "DAT_IB_EXTENSION_EVENT_DATA B01",
            "DAT_IB_OP F04",
            "dat_ib_post_send_ud A03",
        ],
        |f| {
            world(f, |w| {
                let (a, b, own, far) = w.open_pair()?;
                let (eight, remote) = (own.segment(0, 8), far.remote(0, 8));
                b.receive(&[], 1)?;
                w.a.ib_post_rdma_write_with_immed(a.ep, &[eight], 1, &remote, 5, PLAIN)?;
                w.a.ib_post_cmp_and_swap(a.ep, 0, 1, &eight, 2, &remote, PLAIN)?;
                w.a.ib_post_fetch_and_add(a.ep, 1, &eight, 3, &remote, PLAIN)?;
                w.a.ep_post_rdma_write(a.ep, &[eight], 4, &remote, PLAIN)?;
                for (cookie, operation) in
                    (1..).zip([Dto::IB_RDMA_WRITE_IMMED, Dto::IB_CMP_SWAP, Dto::IB_FETCH_ADD])
                {
                    let (done, number, extension) = a.done(cookie, DtoStatus::Success)?;
                    check_eq!((number.0, done.operation), (0x40000, operation));
                    check_eq!(extension.map(|extension| extension.status as u32), Some(0));
                }
                let (done, number, extension) = a.done(4, DtoStatus::Success)?;
                check_eq!((number.0, done.operation, extension), (1, Dto::RDMA_WRITE, None));
                // DAT_IB_UD_SEND_OP is 3, and takes the address that the resolution brought.
                let ((from, to), (at, _)) = w.resolved()?;
                let room = w.region(&at, PAGE, MemPriv::ALL)?;
                at.receive(&[room.segment(0, 64)], 9)?;
                let arguments =
                    IbArguments::UdSend { local_iov: &[], ah: &to, cookie: 8, completion_flags: PLAIN };
                check_eq!(IbOp::UD_SEND.0, 3);
                w.a.extension_op(from.ep.into(), IbOp::UD_SEND, &arguments)?;
                let (done, number, _) = from.done(8, DtoStatus::Success)?;
                check_eq!((number.0, done.operation), (0x40000, Dto::IB_SEND_UD));
                Ok(())
            })
        },
    ),
    // An endpoint with a shared receive queue gets exactly the attributes of the call; attributes
    // that the call leaves out get their defaults. Attributes beyond the adapter's limits are
    // refused.
    test(
        "dat_attributes::an_endpoint_gets_what_it_asks_for",
        &["dat_ep_create_with_srq B16-B26 DAT_INVALID_PARAMETER"],
        |f| {
            world(f, |w| {
                let pz = w.b.pz_create()?;
                let srq =
                    w.b.srq_create(pz, &SrqAttr { max_recv_dtos: 8, max_recv_iov: 1, low_watermark: 0 })?;
                let few = EpAttr { max_request_dtos: 5, ..EpAttr::default() };
                let end = w.end_with_srq(&w.b, pz, srq, &few)?;
                check_eq!(w.b.ep_query(end.ep, EpParamMask::ALL)?.ep_attr, few);
                let asked = EpAttr {
                    service_type: ServiceType::RC,
                    max_message_size: 3000,
                    max_rdma_size: 70_000,
                    qos: Qos::BEST_EFFORT,
                    recv_completion_flags: CompletionFlags::EVD_THRESHOLD,
                    request_completion_flags: CompletionFlags::UNSIGNALLED,
                    max_recv_dtos: 17,
                    max_request_dtos: 19,
                    max_recv_iov: usize::MAX,
                    max_request_iov: 3,
                    max_rdma_read_in: 2,
                    max_rdma_read_out: 3,
                    srq_soft_hw: WATERMARK_INFINITE,
                    max_rdma_read_iov: 2,
                    max_rdma_write_iov: 1,
                };
                let end = w.end_with_srq(&w.b, pz, srq, &asked)?;
                let got = w.b.ep_query(end.ep, EpParamMask::ALL)?;
                check_eq!((got.ep_attr, got.srq_handle, got.pz_handle), (asked, srq, pz));
                // The queue's Receives have as many segments as the queue allows, whatever the
                // endpoint's attribute says.
                for (max_recv_iov, queue_iov) in [(0, 2), (1, 2), (usize::MAX, 2), (usize::MAX, 1)] {
                    let attr = SrqAttr { max_recv_dtos: 2, max_recv_iov: queue_iov, low_watermark: 0 };
                    let srq = w.b.srq_create(pz, &attr)?;
                    let passive = w.end_with_srq(&w.b, pz, srq, &EpAttr { max_recv_iov, ..few })?;
                    let active = w.end(&w.a, &EpAttr::default())?;
                    w.connect(&active, &passive)?;
                    let (from, to) = (w.region(&active, 64, OPEN)?, w.region_in(&w.b, pz, 64, OPEN)?);
                    let segments = [to.segment(0, 8), to.segment(32, 8), to.segment(48, 8)];
                    let too_many = w.b.srq_post_recv(srq, &segments[..queue_iov + 1], 7);
                    refused(too_many.map_err(Error::kind), ErrorType::InvalidParameter)?;
                    w.b.srq_post_recv(srq, &segments[..queue_iov], 8)?;
                    from.fill(3);
                    active.send(&[from.segment(0, 8 * queue_iov)], 9)?;
                    active.done(9, DtoStatus::Success)?;
                    passive.received(8, DtoStatus::Success)?;
                    let got = [to.bytes(0, 8), to.bytes(32, 8)].concat();
                    check_eq!(got[..8 * queue_iov], from.bytes(0, 8 * queue_iov));
                }
                let (_, limits, _) = w.b.ia_query(IaAttrMask::ALL, ProviderAttrMask::NONE)?;
                let limits = some(limits, "the IA's attributes")?;
                // Each number may be as great as the adapter allows.
                let most = EpAttr { max_recv_dtos: limits.max_dto_per_ep, ..few };
                let end = w.end_with_srq(&w.b, pz, srq, &most)?;
                check_eq!(w.b.ep_query(end.ep, EpParamMask::ALL)?.ep_attr, most);
                let (base, over) = (EpAttr::default(), limits.max_iov_segments_per_dto + 1);
                for wrong in [
                    EpAttr { max_message_size: limits.max_message_size + 1, ..base },
                    EpAttr { max_rdma_size: limits.max_rdma_size + 1, ..base },
                    EpAttr { max_request_dtos: limits.max_dto_per_ep + 1, ..base },
                    EpAttr { max_request_dtos: usize::MAX, ..base },
                    EpAttr { max_recv_dtos: limits.max_dto_per_ep + 1, ..base },
                    EpAttr { max_recv_dtos: usize::MAX, ..base },
                    EpAttr { max_request_iov: over, ..base },
                    EpAttr { max_rdma_read_iov: over, ..base },
                    EpAttr { max_rdma_write_iov: over, ..base },
                    EpAttr { max_rdma_read_in: limits.max_rdma_read_per_ep_in + 1, ..base },
                    EpAttr { max_rdma_read_out: limits.max_rdma_read_per_ep_out + 1, ..base },
                    EpAttr { srq_soft_hw: 1, ..base },
                    EpAttr { service_type: ServiceType::IB_UD, ..base },
                    EpAttr { service_type: ServiceType(9), ..base },
                    EpAttr { recv_completion_flags: CompletionFlags::SUPPRESS, ..base },
                    EpAttr { recv_completion_flags: CompletionFlags::UNSIGNALLED, ..base },
                    EpAttr { request_completion_flags: CompletionFlags::SOLICITED_WAIT, ..base },
                ] {
                    let (recv, request) = (evd(&w.b, EvdFlags::DTO)?, evd(&w.b, EvdFlags::DTO)?);
                    let none = EvdHandle::NULL;
                    let created = w.b.ep_create_with_srq(pz, recv, request, none, srq, &wrong);
                    let bad = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg7);
                    refused(created, bad)?;
                    w.b.evd_free(recv)?;
                    w.b.evd_free(request)?;
                }
                Ok(())
            })
        },
    ),
    // The error names each bad handle, and the call leaves nothing behind. The same holds on an
    // adapter without shared receive queues, and on one that has no more endpoints.
    test(
        "dat_attributes::an_endpoint_needs_good_handles",
        &[
            "dat_ep_create_with_srq DAT_INSUFFICIENT_RESOURCES DAT_INVALID_HANDLE",
            "dat_ep_create_with_srq DAT_MODEL_NOT_SUPPORTED",
        ],
        |f| {
            world(f, |w| {
                let pz = w.b.pz_create()?;
                let srq =
                    w.b.srq_create(pz, &SrqAttr { max_recv_dtos: 8, max_recv_iov: 1, low_watermark: 0 })?;
                let (dto, connect) = (evd(&w.b, EvdFlags::DTO)?, evd(&w.b, EvdFlags::CONNECTION)?);
                let foreign = evd(&w.a, EvdFlags::DTO | EvdFlags::CONNECTION)?;
                let attr = EpAttr { max_recv_dtos: 1, max_request_dtos: 1, ..EpAttr::default() };
                let create = |pz, recv, request, connect, srq| {
                    w.b.ep_create_with_srq(pz, recv, request, connect, srq, &attr).map(drop)
                };
                let bad = |subtype| Error::new(ErrorType::InvalidHandle, subtype);
                let other = PzHandle::from_raw(w.a.pz_create()?.as_raw());
                refused(create(other, dto, dto, connect, srq), bad(Subtype::InvalidHandlePz))?;
                for wrong in [foreign, connect, EvdHandle::from_raw(pz.as_raw())] {
                    let (recv, request) = (Subtype::InvalidHandleEvdRecv, Subtype::InvalidHandleEvdRequest);
                    refused(create(pz, wrong, dto, connect, srq), bad(recv))?;
                    refused(create(pz, dto, wrong, connect, srq), bad(request))?;
                }
                for wrong in [foreign, dto] {
                    refused(create(pz, dto, dto, wrong, srq), bad(Subtype::InvalidHandleEvdConn))?;
                }
                for wrong in [SrqHandle::NULL, SrqHandle::from_raw(pz.as_raw())] {
                    refused(create(pz, dto, dto, connect, wrong), bad(Subtype::InvalidHandleSrq))?;
                }
                with_features(w, Features::all().difference(Features::SRQ), |ia| {
                    let (none, pz) = (EvdHandle::NULL, ia.pz_create()?);
                    let created = ia.ep_create_with_srq(pz, none, none, none, srq, &attr);
                    refused(created, ErrorType::ModelNotSupported.into())
                })?;
                let last = loop {
                    if let Err(error) = create(pz, dto, dto, connect, srq) {
                        break error;
                    }
                };
                check_eq!(last.kind(), ErrorType::InsufficientResources);
                Ok(())
            })
        },
    ),
];
