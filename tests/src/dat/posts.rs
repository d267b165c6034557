//! Bad arguments of posts, and posts in wrong states: refused with DAT's error, and nothing is
//! posted.

use dat::*;

use super::events::state;
use super::every_call::{CALLS, Objects, Role};
use super::world::*;
use crate::fixture::PAGE;
use crate::{Test, check_eq, refused, test};

/// A post, by its segments and its flags.
type Post<'a> = (&'static str, &'a dyn Fn(&[LmrTriplet], CompletionFlags) -> Result<()>);

/// Flags that no work request has.
fn undefined() -> impl Iterator<Item = CompletionFlags> {
    let bits = CompletionFlags::from_bits_retain;
    (0..32).map(move |bit| bits(1 << bit)).filter(|flag| CompletionFlags::from_bits(flag.bits()).is_none())
}

pub(crate) const TESTS: &[Test] = &[
    // Requests need a connection; Receives do not.
    test("dat_posts::in_wrong_states", &[], |f| {
        world(f, |w| {
            let objects = Objects::new(w)?;
            let requests = [
                "rmr_bind",
                "ep_post_send",
                "ep_post_rdma_write",
                "ep_post_rdma_read",
                "ib_post_rdma_write_with_immed",
                "ib_post_cmp_and_swap",
                "ib_post_fetch_and_add",
                "extension_op",
            ];
            let before = objects.state()?;
            let idle = objects.handles.get(Role::Idle);
            for call in CALLS.iter().filter(|call| requests.contains(&call.name)) {
                let error = (call.make)(&objects, &objects.handles.with(Role::Ep, idle));
                check_eq!(error, Some(state(Subtype::InvalidStateEpUnconnected)), "{}", call.name);
            }
            // A connected endpoint can neither connect, nor accept a request, nor be reserved
            // again.
            let connected = objects.handles.get(Role::Ep);
            for name in ["ep_connect", "cr_accept", "rsp_create"] {
                for call in CALLS.iter().filter(|call| call.name == name) {
                    let error = (call.make)(&objects, &objects.handles.with(Role::Idle, connected));
                    check_eq!(error, Some(state(Subtype::InvalidStateEpConnected)), "{name}");
                }
            }
            check_eq!(objects.state()?, before);
            Ok(())
        })
    }),
    // Undefined flags, and more segments than the endpoint's limit.
    test("dat_posts::flags_and_segments", &[], |f| {
        world(f, |w| {
            let (a, b, own, far) = w.open_pair()?;
            let (ia, ep, to) = (&w.a, a.ep, far.remote(0, 64));
            let posts: [Post<'_>; 5] = [
                ("ep_post_send", &|segments, flags| ia.ep_post_send(ep, segments, 1, flags)),
                ("ep_post_recv", &|segments, flags| ia.ep_post_recv(ep, segments, 1, flags)),
                ("ep_post_rdma_write", &|segments, flags| ia.ep_post_rdma_write(ep, segments, 1, &to, flags)),
                ("ep_post_rdma_read", &|segments, flags| ia.ep_post_rdma_read(ep, segments, 1, &to, flags)),
                ("ib_post_rdma_write_with_immed", &|segments, flags| {
                    ia.ib_post_rdma_write_with_immed(ep, segments, 1, &to, 7, flags)
                }),
            ];
            let before = (ia.ep_get_status(ep)?, ia.ep_recv_query(ep)?);
            let many = [own.segment(0, 8); 5];
            for (name, post) in posts {
                for flag in undefined() {
                    for flags in [flag, flag | CompletionFlags::SUPPRESS] {
                        let error = post(&many[..1], flags).map_err(Error::kind);
                        check_eq!(error, Err(ErrorType::InvalidParameter), "{name} {flags:?}");
                    }
                }
                let error = post(&many, PLAIN).map_err(Error::kind);
                check_eq!(error, Err(ErrorType::InvalidParameter), "{name}: five segments");
            }
            check_eq!((ia.ep_get_status(ep)?, ia.ep_recv_query(ep)?), before);
            nothing(ia, a.request)?;
            far.untouched()?;
            // Four are taken.
            for (name, post) in posts {
                if name == "ib_post_rdma_write_with_immed" || name == "ep_post_send" {
                    b.receive(&[far.segment(PAGE / 2, 64)], 2)?;
                }
                post(&many[..4], PLAIN)?;
            }
            for _ in 0..4 {
                completion(ia, a.request)?;
            }
            refused(ia.ep_post_send(ep, &many, 1, PLAIN).map_err(Error::kind), ErrorType::InvalidParameter)
        })
    }),
];
