//! Memory that ends: each call that needs memory is made on a machine that has no memory after
//! 0, 1, 2, … requests. It succeeds, or returns an error for want of resources and changes nothing.
//! What frees or ends something needs no memory.

extern crate ferrovia_privileged_api as privileged_api;

#[path = "../support/mod.rs"]
mod support;

mod connections;
mod objects;
mod opening;
mod via;

use host::CountedHeap;
use privileged_api::*;
use support::*;

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

/// More requests than any call makes.
const REQUESTS: u64 = 400;

type Result<T> = std::result::Result<T, Error>;

/// What exists on an agent and an IA.
fn present(world: &World, ia: &Ia) -> (ObjectCounts, kernel_agent::Counts) {
    (ia.object_counts(), world.agents[0].counts())
}

/// Makes a call with less and less memory missing, until it succeeds. `state` must not change
/// before that.
fn until_it_succeeds<T, S: PartialEq + std::fmt::Debug>(
    what: &str,
    state: impl Fn() -> S,
    call: impl Fn() -> Result<T>,
) -> T {
    let before = state();
    for requests in 0..REQUESTS {
        match CountedHeap::ending_after(requests, &call) {
            Ok(made) => {
                println!("{what}: {requests} requests");
                return made;
            }
            Err(error) => {
                let resources =
                    matches!(error, Error::Resources | Error::ResourceQueueSize | Error::ResourceLmrLength);
                assert!(resources, "{what}, {requests} requests: {error:?}");
                assert_eq!(state(), before, "{what}, {requests} requests");
            }
        }
    }
    panic!("{what} never succeeds");
}

/// [`until_it_succeeds`] for a call that makes something; undoes it, without any memory.
fn each_request<T>(
    world: &World,
    ia: &Ia,
    what: &str,
    call: impl Fn() -> Result<T>,
    undo: impl Fn(T) -> Result<()>,
) {
    let before = present(world, ia);
    let made = until_it_succeeds(what, || present(world, ia), call);
    let undone = CountedHeap::ending_after(0, || undo(made));
    assert_eq!(undone, Ok(()), "{what} is undone without memory");
    assert_eq!(present(world, ia), before, "{what}: after it was undone");
}
