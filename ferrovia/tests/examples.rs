//! The examples do what they say.

#[path = "../examples/async_echo.rs"]
mod async_echo;
#[path = "../examples/datagrams.rs"]
mod datagrams;
#[path = "../examples/hello.rs"]
mod hello;
#[path = "../examples/it_api.rs"]
mod it_api;
#[path = "../examples/shared_receives.rs"]
mod shared_receives;
#[path = "../examples/struct_write.rs"]
mod struct_write;
#[path = "../examples/text_first.rs"]
mod text_first;

#[test]
fn a_message_arrives() {
    hello::main().expect("a message");
}

#[test]
fn a_message_arrives_by_it_api() {
    it_api::main().expect("a message");
}

#[test]
fn a_struct_is_stored() {
    struct_write::main().expect("a struct");
}

#[test]
fn all_clients_are_served() {
    shared_receives::main().expect("messages");
}

#[test]
fn datagrams_are_answered() {
    datagrams::main().expect("answers");
}

#[test]
fn the_echo_comes_back() {
    async_echo::main().expect("an echo");
}

#[test]
fn text_comes_first_and_rdma_behind_it() {
    text_first::main().expect("an echo");
}
