//! Shows that random scripts reach every cell: each verb with each kind of session, and each ending
//! of a grant with each kind of session that can end so. An empty cell is a combination that no
//! test covers.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use latchd::engine::types::{Input, Request};

use super::bugs::Cases;
use super::world::World;

/// What was reached: what happened, and for which kind of session.
pub type Reached = Rc<RefCell<BTreeSet<(&'static str, &'static str)>>>;

const LINE: [&str; 4] = [CONN, KEEPER, CLIENT, CLIENTS];
const CONN: &str = "connection";
const KEEPER: &str = "keeper";
const CLIENT: &str = "client";
const CLIENTS: &str = "client with several connections";
const HTTP: &str = "HTTP owner";
const NOBODY: &str = "nobody";

/// Verbs of the line protocol.
const VERBS: [&str; 28] = [
    "acquire",
    "enqueue",
    "wait",
    "release",
    "renew",
    "reclaim",
    "position",
    "resign",
    "observe",
    "unobserve",
    "add",
    "count",
    "set",
    "put",
    "fetch",
    "delete",
    "swap",
    "push",
    "pop",
    "await",
    "length",
    "part",
    "meet",
    "listen",
    "unlisten",
    "signal",
    "watch",
    "unwatch",
];

/// What is asked in the name of an HTTP owner.
const OF_HTTP: [&str; 4] = ["acquire", "release", "renew", "resign"];

/// How grants end, by kind of session. A grant of a keeper, or of a client with several
/// connections, does not end with a connection.
const ENDINGS: &[(&str, &[&str])] = &[
    ("released", &[CONN, KEEPER, CLIENT, CLIENTS, HTTP]),
    ("resigned", &[CONN, KEEPER, CLIENT, HTTP]),
    ("time", &[CONN, KEEPER, CLIENT, CLIENTS, HTTP, NOBODY]),
    ("found over by a request", &[CONN, KEEPER, CLIENT, HTTP]),
    ("break", &[CONN, KEEPER, CLIENT, CLIENTS, HTTP]),
    ("disconnect", &[CONN, CLIENT]),
    ("detach", &[CLIENT, CLIENTS]),
    ("restart", &[CONN, KEEPER, CLIENT, CLIENTS, HTTP]),
];

/// What an input is called here.
pub fn verb_of(input: &Input<'_>) -> &'static str {
    let request = match input {
        Input::Request(_, request) | Input::RequestBy(_, _, request) => request,
        Input::Time(_) => return "time",
        Input::Disconnected(_) => return "disconnect",
        Input::Detach(..) => return "detach",
        Input::Break(..) | Input::BreakAll(..) => return "break",
        _ => return "another input",
    };
    match request {
        Request::Acquire { .. } => "acquire",
        Request::Enqueue { .. } => "enqueue",
        Request::Wait { .. } => "wait",
        Request::Release { .. } => "release",
        Request::Renew { .. } => "renew",
        Request::Reclaim { .. } => "reclaim",
        Request::Position { .. } => "position",
        Request::Resign { .. } => "resign",
        Request::Observe { .. } => "observe",
        Request::Unobserve { .. } => "unobserve",
        Request::Add { .. } => "add",
        Request::Count { .. } => "count",
        Request::SetCount { .. } => "set",
        Request::Put { .. } => "put",
        Request::Fetch { .. } => "fetch",
        Request::Delete { .. } => "delete",
        Request::Swap { .. } => "swap",
        Request::Push { .. } => "push",
        Request::Pop { .. } => "pop",
        Request::AwaitPop { .. } => "await",
        Request::Length { .. } => "length",
        Request::Range { .. } => "part",
        Request::Meet { .. } => "meet",
        Request::Listen { .. } => "listen",
        Request::Unlisten { .. } => "unlisten",
        Request::Signal { .. } => "signal",
        Request::Watch { .. } => "watch",
        Request::Unwatch { .. } => "unwatch",
    }
}

/// How a grant ended that an input has ended.
pub fn ending_of(verb: &'static str) -> &'static str {
    match verb {
        "release" => "released",
        "resign" => "resigned",
        "time" | "break" | "disconnect" | "detach" => verb,
        _ => "found over by a request",
    }
}

#[test]
fn scripts_reach_every_cell() {
    let reached = Reached::default();
    let mut cases = Cases::new();
    let mut empty = vec![("everything", CONN)];
    for _ in 0..3_000 {
        if empty.is_empty() {
            return;
        }
        let (rules, script) = cases.next();
        let mut world = World::new(rules);
        world.note_cells(Rc::clone(&reached));
        let verdict = script.0.iter().try_for_each(|op| world.run(op));
        verdict.and_then(|()| world.end()).unwrap();
        let reached = reached.borrow();
        empty = all_cells().filter(|it| !reached.contains(it)).collect();
    }
    panic!("empty cells: {empty:#?}");
}

fn all_cells() -> impl Iterator<Item = (&'static str, &'static str)> {
    let verbs = VERBS.iter().flat_map(|verb| LINE.map(|kind| (*verb, kind)));
    let of_http = OF_HTTP.map(|verb| (verb, HTTP));
    let endings = ENDINGS
        .iter()
        .flat_map(|(ending, kinds)| kinds.iter().map(move |kind| (*ending, *kind)));
    verbs.chain(of_http).chain(endings)
}
