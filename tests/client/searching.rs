//! What is asked while a server is looked for, what comes of requests whose server cannot be found, and what is told of
//! an answer that was lost.

use std::thread;

use latchd::client::Client;

use super::follow::Pair;
use super::front::Role;
use super::s;

/// The time in which nobody leads is none that the server takes for its answer.
#[test]
fn a_server_that_is_found_late_has_its_time_to_answer() {
    let mut pair = Pair::start();
    pair.lose_leader(Role::Gone);
    let client = Client::builder(&pair.list())
        .answer_timeout(s(1))
        .connect_timeout(s(60));
    let client = client.build().unwrap();
    let asking = thread::spawn(move || client.counter("c").add(1));
    // So many rounds take longer than an answer may.
    let before = pair.second.accepted();
    pair.second.wait_for_connections(before + 7);
    pair.take_over();
    assert_eq!(asking.join().unwrap().unwrap(), 1);
}
