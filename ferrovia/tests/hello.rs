//! The example of docs/embed.md does what it says.

#[path = "../examples/hello.rs"]
mod hello;

#[test]
fn the_message_arrives() {
    hello::main().expect("a message");
}
