//! What this crate's objects are held by, under the model checker (`.ci/extra`).

use alloc::sync::Arc;
use loom::thread;
use platform::model::{Watched, check, finds};

use crate::Error;
use crate::sync::{Use, Used, Users};

struct Object {
    users: Users,
    life: Watched,
}

impl Used for Object {
    fn users(&self) -> &Users {
        &self.users
    }
}

fn users(uses_without_asking: bool) {
    let object = Arc::new(Object { users: Users::default(), life: Watched::new(0) });
    let user = thread::spawn({
        let object = object.clone();
        move || match Use::of(&object) {
            Ok(used) => drop(used.life.get()),
            Err(error) => {
                assert_eq!(error, Error::Gone);
                if uses_without_asking {
                    object.life.get();
                }
            }
        }
    });
    // What ends an object has it for itself from then on.
    match object.users.end() {
        Ok(()) => object.life.add(),
        Err(error) => assert_eq!(error, Error::Busy),
    }
    user.join().unwrap();
}

#[test]
fn an_object_that_was_ended_has_no_users() {
    check(|| users(false));
}

#[test]
fn mutant_that_uses_an_object_that_was_ended() {
    finds(|| users(true));
}
