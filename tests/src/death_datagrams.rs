//! Death of the device for those who use datagrams and hand on requests: each of their calls on a disabled IA is refused and changes nothing.

use alloc::vec::Vec;

use nic_abi::admin::Injection;
use privileged_api::*;

use crate::fixture::{OPEN, SIGNALLED, path, sevd};
use crate::thread::eventually;
use crate::ud::{address, datagrams, peer};
use crate::{Failure, Test, check, check_eq, test};

pub(crate) const TESTS: &[Test] = &[test(
    "death_datagrams::every_call_is_refused",
    &[
        "it_ep_ud_create.IT_ERR_IA_CATASTROPHE",
        "it_address_handle_create.IT_ERR_IA_CATASTROPHE",
        "it_address_handle_query.IT_ERR_IA_CATASTROPHE",
        "it_address_handle_modify.IT_ERR_IA_CATASTROPHE",
        "it_address_handle_free.IT_ERR_IA_CATASTROPHE",
        "it_post_sendto.IT_ERR_IA_CATASTROPHE",
        "it_post_recvfrom.IT_ERR_IA_CATASTROPHE",
        "it_ud_service_request_handle_create.IT_ERR_IA_CATASTROPHE",
        "it_ud_service_request_handle_query.IT_ERR_IA_CATASTROPHE",
        "it_ud_service_request_handle_free.IT_ERR_IA_CATASTROPHE",
        "it_ud_service_request.IT_ERR_IA_CATASTROPHE",
        "it_ud_service_reply.IT_ERR_IA_CATASTROPHE",
        "it_convert_net_addr.IT_ERR_IA_CATASTROPHE",
        "it_convert_net_addr.V02",
        "it_handoff.IT_ERR_IA_CATASTROPHE",
        "it_ia_info_t.S02",
        "it_ia_info_t.S03",
    ],
    |f| {
        let ia = &f.a;
        let own = peer(ia, &datagrams())?;
        let region = f.region(ia, own.pz, 256, OPEN)?;
        let addr = address(ia, own.pz, &f.b)?;
        let listener = f.listen(ia)?;
        let conn = sevd(ia, EventType::CM_MSG_EVENT_STREAM, 4, 1)?;
        let way = path(ia, &listener.address)?;
        let qual = listener.conn_qual;
        // A request to itself, so that there is one to answer.
        let asked = ia.ud_service_request_handle_create(&qual, conn, &way, &[])?;
        ia.ud_service_request(asked)?;
        let (event, _) = ia.evd_wait(listener.evd, crate::fixture::WAIT)?;
        let Event::UdServiceRequest(request) = event else {
            return Err(Failure::new(alloc::format!("not a UD service request: {event:?}")));
        };
        let before = ia.object_counts();
        match f.setup.a.agent.inject(0, Injection::Fail, 1, 0) {
            // The device may be gone before its answer has been taken.
            Ok(()) | Err(kernel_agent::Error::DeviceDead(_)) => {}
            Err(error) => return Err(Failure::new(alloc::format!("injection: {error:?}"))),
        }
        let disabled = eventually(f.platform(), || ia.ia_query() == Err(Error::IaCatastrophe));
        check!(disabled, "the IA lives on");
        let to = DgRemoteEpAddr::IbUd { addr, ep_info: own.info };
        let segment = [region.whole()];
        let params = AddrParam { path: way, ..AddrParam::default() };
        let status = UdSvcStatus::Rejected;
        let calls: Vec<(&str, Option<Error>)> = Vec::from([
            ("it_ep_ud_create", ia.ep_ud_create(own.pz, own.request, own.recv, &datagrams(), 1).err()),
            (
                "it_address_handle_create",
                ia.address_handle_create(own.pz, &way, AhFlags::PATH_COMPLETE).err(),
            ),
            ("it_address_handle_query", ia.address_handle_query(addr, AddrParamMask::ALL).err()),
            ("it_address_handle_modify", ia.address_handle_modify(addr, AddrParamMask::PATH, &params).err()),
            ("it_address_handle_free", ia.address_handle_free(addr).err()),
            ("it_post_sendto", ia.post_sendto(own.ep, &segment, 1, SIGNALLED, &to).err()),
            ("it_post_recvfrom", ia.post_recvfrom(own.ep, &segment, 1, SIGNALLED).err()),
            (
                "it_ud_service_request_handle_create",
                ia.ud_service_request_handle_create(&qual, conn, &way, &[]).err(),
            ),
            (
                "it_ud_service_request_handle_query",
                ia.ud_service_request_handle_query(asked, UdSvcReqParamMask::ALL).err(),
            ),
            ("it_ud_service_request_handle_free", ia.ud_service_request_handle_free(asked).err()),
            ("it_ud_service_request", ia.ud_service_request(asked).err()),
            ("it_ud_service_reply", ia.ud_service_reply(request.ud_svc_req_id, status, own.info, &[]).err()),
            ("it_convert_net_addr", ia.convert_net_addr(&listener.address, NetAddrType::Ipv6).err()),
            ("it_handoff", ia.handoff(&qual, 1, CnEstId(1)).err()),
            ("it_socket_convert", ia.socket_convert(0, own.ep, ScFlags::empty(), &[]).err()),
        ]);
        for (call, error) in calls {
            check_eq!(error, Some(Error::IaCatastrophe), "{call} of a disabled IA");
        }
        check_eq!(ia.object_counts(), before, "objects of a disabled IA");
        ia.ia_free()?;
        check!(ia.object_counts().is_empty());
        Ok(())
    },
)
.kills()];
