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
    // A Receive may be unsignalled if its endpoint's Receives may, and has no other flag.
    test("dat_posts::flags_of_receives", &[], |f| {
        world(f, |w| {
            let (unsignalled, suppress) = (CompletionFlags::UNSIGNALLED, CompletionFlags::SUPPRESS);
            let wrong = Err(Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg5));
            for config in [PLAIN, unsignalled, CompletionFlags::SOLICITED_WAIT] {
                let attr = EpAttr { recv_completion_flags: config, ..attributes() };
                let end = w.end(&w.b, &attr)?;
                let post = |flags| w.b.ep_post_recv(end.ep, &[], 1, flags);
                let allowed = if config == unsignalled { Ok(()) } else { wrong };
                check_eq!((post(PLAIN), post(unsignalled)), (Ok(()), allowed), "{config:?}");
                for flags in [suppress, CompletionFlags::SOLICITED_WAIT, unsignalled | suppress] {
                    check_eq!(post(flags), wrong, "{flags:?} of {config:?}");
                }
            }
            Ok(())
        })
    }),
    // An unsignalled Receive does not notify, and one of an endpoint with solicited Receives only
    // if the sender asks for that.
    test("dat_posts::receives_that_do_not_notify", &[], |f| {
        world(f, |w| {
            let (unsignalled, solicited) = (CompletionFlags::UNSIGNALLED, CompletionFlags::SOLICITED_WAIT);
            for (config, quiet, loud) in [(unsignalled, unsignalled, PLAIN), (solicited, PLAIN, solicited)] {
                let attr = EpAttr { recv_completion_flags: config, ..attributes() };
                let (far, own) = w.pair_of(&attributes(), &attr)?;
                w.b.ep_post_recv(own.ep, &[], 1, quiet)?;
                w.b.ep_post_recv(own.ep, &[], 2, PLAIN)?;
                far.send(&[], 3)?;
                far.done(3, DtoStatus::Success)?;
                let none = WaitError { error: ErrorType::TimeoutExpired.into(), nmore: 1 };
                refused(w.b.evd_wait(own.recv, SHORT, 1), none)?;
                w.a.ep_post_send(far.ep, &[], 4, loud)?;
                far.done(4, DtoStatus::Success)?;
                let (event, left) = w.b.evd_wait(own.recv, LONG, 1)?;
                check_eq!((event.dto().map(|done| done.user_cookie), left), (Some(1), 1), "{config:?}");
            }
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
