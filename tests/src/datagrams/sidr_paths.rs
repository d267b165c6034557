//! The members of a path that a UD service request uses (page it_ud_service_request_handle_create;
//! appendix A).

use privileged_api::*;

use crate::fixture::{Fixture, WAIT, path, sevd};
use crate::transport::Need;
use crate::{Failure, Outcome, Test, check_eq, refused, test};

/// Sends a request along the path, and checks that the request and its reply arrive.
fn answered(f: &Fixture, way: &Path) -> Outcome {
    let (listener, evd) = (f.listen(&f.b)?, sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 4, 1)?);
    let asking = f.a.ud_service_request_handle_create(&listener.conn_qual, evd, way, &[])?;
    f.a.ud_service_request(asking)?;
    let (event, _) = f.b.evd_wait(listener.evd, WAIT)?;
    let Event::UdServiceRequest(asked) = event else {
        return Err(Failure::new(alloc::format!("not a request: {event:?}")));
    };
    f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::Rejected, RemoteEpInfo::default(), &[])?;
    let (event, _) = f.a.evd_wait(evd, WAIT)?;
    let Event::UdServiceReply(reply) = event else {
        return Err(Failure::new(alloc::format!("not a reply: {event:?}")));
    };
    check_eq!((reply.ud_svc, reply.status), (asking, UdSvcStatus::Rejected));
    f.a.ud_service_request_handle_free(asking)?;
    listener.free()
}

// Members that concern this node are checked, the others do not change where the request goes.
pub(crate) const TESTS: &[Test] = &[test(
    "sidr::members_of_the_path_that_count",
    &[
        "it_ud_service_request_handle_create F01",
        "A.it_ud_service_request_handle_create B01 IT_ERR_INVALID_SOURCE_PATH",
    ],
    |f| {
        Need::Datagrams.of(&f.a)?;
        let listener = f.listen(&f.b)?;
        let evd = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 4, 1)?;
        let way = path(&f.a, &listener.address)?;
        let with = |change: &dyn Fn(&mut IbNetEndpoint)| {
            let mut way = way;
            way.ib_mut().into_iter().for_each(change);
            way
        };
        let create = |way: &Path| f.a.ud_service_request_handle_create(&listener.conn_qual, evd, way, &[]);
        // The members that concern this node are checked.
        refused(create(&Path { spigot_id: way.spigot_id + 1, ..way }), Error::InvalidSpigot)?;
        for wrong in [
            with(&|ib| ib.partition_key = 0x1234),
            with(&|ib| ib.local_port_lid = 1),
            with(&|ib| ib.local_port_gid = [9; 16]),
        ] {
            refused(create(&wrong), Error::InvalidSourcePath)?;
        }
        check_eq!(f.a.object_counts().ud_svc_req, 0);
        // The other members have no effect.
        for other in [
            with(&|ib| ib.flow_label = 0xabcde),
            with(&|ib| ib.hop_limit = 3),
            with(&|ib| ib.traffic_class = 0x5a),
            with(&|ib| (ib.packet_rate, ib.packet_lifetime) = (9, 3)),
            with(&|ib| (ib.path_mtu, ib.subnet_local) = (1, true)),
            with(&|ib| (ib.sl, ib.remote_port_lid) = (7, 7)),
        ] {
            answered(f, &other)?;
        }
        Ok(())
    },
)];
