//! When bytes leave: first those that somebody waited for, and none that the clock does not cover.

#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails has to fail the test"
)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::rc::Rc;

use latch_sim::pipe::{ORIGIN, Pipes};
use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::{Engine, Rules};
use latchd::server::{Event, Readiness, Server, Settings, Transport};

/// Who was written to, and what, in this order.
type Written = Rc<RefCell<Vec<(&'static str, String)>>>;

/// A connection that remembers the order of writes, over all connections.
struct Recorded {
    name: &'static str,
    sent: VecDeque<u8>,
    written: Written,
}

impl Transport for Recorded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.sent.len());
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        into[..count].fill_with(|| self.sent.pop_front().unwrap());
        Ok(count)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        self.written.borrow_mut().push((self.name, text));
        Ok(bytes.len())
    }

    fn shutdown_write(&mut self) {}

    fn peer(&self) -> String {
        self.name.to_owned()
    }
}

struct World {
    server: Server<Recorded>,
    written: Written,
}

impl World {
    fn new() -> Self {
        let engine = Engine::new(Rules::default(), ORIGIN);
        Self {
            server: Server::new(Settings::default(), engine),
            written: Written::default(),
        }
    }

    fn connect(&mut self, name: &'static str) -> ConnId {
        let recorded = Recorded {
            name,
            sent: VecDeque::new(),
            written: Rc::clone(&self.written),
        };
        self.server.accept(Nanos(1), recorded).unwrap()
    }

    /// One turn in which a connection has sent this: who was written to, in order, and what.
    fn turn(&mut self, conn: ConnId, sent: &str) -> Vec<(&'static str, String)> {
        let transport = self.server.transport_mut(conn).unwrap();
        transport.sent.extend(sent.as_bytes());
        let readiness = Readiness {
            readable: true,
            ..Readiness::default()
        };
        let event = Event { conn, readiness };
        self.server.turn(&|| Nanos(1), [event].into_iter(), 0);
        self.written.take()
    }
}

fn token(grant: &str) -> &str {
    grant.split(' ').nth(1).unwrap().trim_end()
}

#[test]
fn the_grant_of_who_waited_leaves_before_the_answer_of_who_let_go() {
    let mut world = World::new();
    let (holder, waiter) = (world.connect("holder"), world.connect("waiter"));
    let grant = world.turn(holder, "l\nk\n0\n").remove(0).1;
    assert_eq!(world.turn(waiter, "l\nk\n60\n"), []);
    let release = format!("r\nk\n{}\n", token(&grant));
    let written = world.turn(holder, &release);
    let order: Vec<&str> = written.iter().map(|(name, _)| *name).collect();
    assert_eq!(order, ["waiter", "holder"], "{written:?}");
}

#[test]
fn also_if_who_waited_was_told_something_else_before() {
    let mut world = World::new();
    let (holder, waiter) = (world.connect("holder"), world.connect("waiter"));
    let grant = world.turn(holder, "l\nk\n0\n").remove(0).1;
    world.turn(waiter, "listen\nnews\n\n");
    assert_eq!(world.turn(waiter, "l\nk\n60\n"), []);
    let requests = format!("signal\nnews\nx\nr\nk\n{}\n", token(&grant));
    let written = world.turn(holder, &requests);
    assert_eq!(written.len(), 2, "one write for each: {written:?}");
    assert_eq!(written[0].0, "waiter", "{written:?}");
    assert!(written[0].1.starts_with("sig news x\nok "), "{written:?}");
}

#[test]
fn grants_that_the_clock_does_not_cover_wait_for_it() {
    let settings = Settings {
        fences_per_us: 8,
        ..Settings::default()
    };
    let mut pipes = Pipes::with(Rules::default(), settings);
    let client = pipes.connect();
    // At 1 ns there is no fence yet for a grant; at a millisecond there are 8,000.
    assert_eq!(pipes.ask(client, "l k 0"), "");
    assert_eq!(pipes.server.engine().tally().grants, 1);
    let covered = Nanos(125); // eight in a microsecond
    assert_eq!(pipes.server.next_deadline(), Some(covered));
    // Nothing else happens: time alone lets it go.
    pipes.pass(Millis(1));
    pipes.rest();
    assert!(pipes.read(client).starts_with("ok "));
    pipes.say(client, &vec!["sl s 0 10000"; 7_999]);
    assert_eq!(pipes.read(client).lines().count(), 7_999);
    assert_eq!(
        pipes.ask(client, "sl s 0 10000"),
        "",
        "one more than it covers"
    );
    pipes.pass(Millis(1));
    pipes.settle();
    assert!(pipes.read(client).starts_with("ok "));
}
