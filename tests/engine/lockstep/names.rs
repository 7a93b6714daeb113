//! The names of keys, owners and clients in a case: few, so that sessions meet on them.

use std::sync::LazyLock;

use crate::lockstep::step::{Name, OfClient};
use crate::lockstep::table::Verb;

/// Clients that connections attach to, then those that are registered.
pub const CLIENTS: [OfClient; 4] = [
    OfClient {
        id: "gw/1",
        secret: "first secret",
    },
    OfClient {
        id: "alone",
        secret: "second secret",
    },
    OfClient {
        id: "web/1",
        secret: "third secret",
    },
    OfClient {
        id: "gw/a client with a long name",
        secret: "fourth secret",
    },
];

pub const WRONG_SECRET: Name = "wrong";

pub const OWNERS: [Name; 3] = ["deploy", "backup", "an owner with a name that is long"];

/// Ids of requests; the first is none.
pub const REQUEST_IDS: [Name; 4] = ["", "", "one", "another request id that is long"];

pub const USERS: [Name; 2] = ["ann", "bob"];

pub const HELLO: [Name; 2] = ["worker", "a worker with a name that is long"];

const LOCKS: [Name; 4] = [
    "lock.a",
    "lock.b",
    "lock.c",
    "lock.with a name that is long",
];
const SEMAPHORES: [Name; 3] = ["sem.a", "sem.b", "sem.c"];
const READ_WRITE: [Name; 3] = ["rw.a", "rw.b", "rw.c"];
const LEADERS: [Name; 3] = ["lead.a", "lead.b", "lead.c"];
pub const COUNTERS: [Name; 3] = ["count.a", "count.b", "lock.a"];
pub const VALUES: [Name; 3] = ["value.a", "value.b", "a value with a name that is long"];
pub const LISTS: [Name; 3] = ["list.a", "list.b", "list.c"];
pub const BARRIERS: [Name; 2] = ["meet.a", "meet.b"];
pub const CHANNELS: [Name; 4] = ["news", "news.local", "news.local.late", "sport"];
pub const PATTERNS: [Name; 7] = ["news", "news.*", "news.>", "*.local", ">", "bad*", "a.>.b"];
pub const KEY_PATTERNS: [Name; 6] = ["lock.a", "lock.*", "*", ">", "sem.>", "list.a"];
pub const GROUPS: [Name; 3] = ["", "", "team"];
pub const RESOURCES: [Name; 3] = ["disk", "file.a", "file.with a name that is long"];
pub const RANGE_OWNERS: [Name; 3] = ["", "pid1", "pid2"];
pub const STORED: [Name; 4] = [
    "1",
    "2",
    "three",
    "a value with more than a few bytes in it",
];

/// A semaphore for crowds, and its slots.
pub const CROWD: (Name, u32) = ("sem.crowd", 200);

/// Very many names, for crowds.
pub static MANY: LazyLock<Vec<Name>> = LazyLock::new(|| {
    let names = (0..300).map(|it| &*Box::leak(format!("many.{it:03}").into_boxed_str()));
    names.collect()
});

/// Shares of all names, as an operator may set them.
pub const SHARES: [&[[Name; 2]]; 4] = [
    &[],
    &[["locks", "lock."]],
    &[["locks", "lock."], ["locks", "sem."], ["files", "file."]],
    &[["one", "lock.a"], ["rest", "lock"], ["many", "many."]],
];

/// Keys that a verb usually names, so that what is of another kind stays the exception.
pub fn keys(verb: Verb) -> &'static [Name] {
    match verb {
        Verb::Semaphore | Verb::EnqueueSemaphore => &SEMAPHORES,
        Verb::Read | Verb::Write | Verb::EnqueueRead | Verb::EnqueueWrite => &READ_WRITE,
        Verb::Elect | Verb::Resign | Verb::Observe | Verb::Unobserve => &LEADERS,
        _ => &LOCKS,
    }
}
