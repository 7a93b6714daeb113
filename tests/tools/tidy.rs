//! The walls between the layers, and a few habits, checked over the source as text.
//!
//! Each wall is a row with its reason. A row that no longer fits is changed here, in the same
//! commit as the code, so that the reader of the diff sees a wall move.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read the source has to fail"
)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::source::rust_files;

/// One layer: what it may name of this crate, and what of the world it may not.
struct Wall {
    /// A path below `src`, or below `tools`. Of several rows for one file there the longest counts.
    layer: &'static str,
    /// Modules of this crate it may name; `engine::types` allows just that.
    may_name: &'static [&'static str],
    may_not_name: &'static [&'static str],
    reason: &'static str,
}

const IO: &[&str] = &[
    "mio",
    "socket2",
    "rustix",
    "std::net",
    "std::os",
    "std::fs",
    "std::io",
    "std::time",
    "std::thread",
    "std::env",
    "Instant",
    "SystemTime",
];

/// What a client does without.
const PURE: &[&str] = &[
    "mio",
    "slab",
    "log",
    "socket2",
    "rustix",
    "std::net",
    "std::os",
    "std::fs",
    "std::io",
    "std::time",
    "std::thread",
    "std::env",
    "Instant",
    "SystemTime",
];

/// What a simulation does without, so that a seed decides everything.
const OUTSIDE: &[&str] = &[
    "mio",
    "socket2",
    "rustix",
    "std::net",
    "std::fs",
    "std::time",
    "std::thread",
    "std::env",
    "HashMap",
    "HashSet",
    "Instant",
    "SystemTime",
];

const WALLS: &[Wall] = &[
    Wall {
        layer: "base.rs",
        may_name: &[],
        may_not_name: IO,
        reason: "words only",
    },
    Wall {
        layer: "closed.rs",
        may_name: &[],
        may_not_name: &["std::io", "std::env", "std::fs", "std::thread", "std::time"],
        reason: "it runs before Rust's runtime, and uses nothing but system calls",
    },
    Wall {
        layer: "drift.rs",
        may_name: &[],
        may_not_name: &["Instant", "SystemTime", "rustix", "std::io", "std::env"],
        reason: "how much of a promise counts is a function of its length",
    },
    Wall {
        layer: "escape.rs",
        may_name: &[],
        may_not_name: IO,
        reason: "which characters are shown is a function of the character",
    },
    Wall {
        layer: "fence_start.rs",
        may_name: &["base"],
        may_not_name: IO,
        reason: "where fences start is a function of the time",
    },
    Wall {
        layer: "maker.rs",
        may_name: &[],
        may_not_name: IO,
        reason: "both clients tell a forked child by it",
    },
    Wall {
        layer: "uptime.rs",
        may_name: &[],
        may_not_name: &["SystemTime", "std::io", "std::env"],
        reason: "the one clock of both clients counts the time asleep, where the system can",
    },
    Wall {
        layer: "memory.rs",
        may_name: &[],
        may_not_name: IO,
        reason: "a sum, not a measurement",
    },
    Wall {
        layer: "key.rs",
        may_name: &["memory"],
        may_not_name: IO,
        reason: "a name is bytes",
    },
    Wall {
        layer: "sha256.rs",
        may_name: &[],
        may_not_name: IO,
        reason: "a hash of bytes",
    },
    Wall {
        layer: "shard.rs",
        may_name: &[],
        may_not_name: IO,
        reason: "where a key belongs is a function of its bytes",
    },
    Wall {
        layer: "keymap.rs",
        may_name: &[],
        may_not_name: IO,
        reason: "no random order can leak",
    },
    Wall {
        layer: "histogram.rs",
        may_name: &["base"],
        may_not_name: IO,
        reason: "numbers only",
    },
    Wall {
        layer: "timers",
        may_name: &["base", "memory"],
        may_not_name: IO,
        reason: "deadlines without a clock",
    },
    Wall {
        layer: "segments",
        may_name: &["memory"],
        may_not_name: IO,
        reason: "ranges of bytes without a file",
    },
    Wall {
        layer: "engine",
        may_name: &[
            "base",
            "histogram",
            "key",
            "keymap",
            "memory",
            "segments",
            "sha256",
            "timers",
        ],
        may_not_name: &[
            "mio",
            "std::net",
            "std::fs",
            "std::time",
            "std::io",
            "std::thread",
            "std::env",
            "log",
            "HashMap",
            "HashSet",
            "getrandom",
            "uuid",
            "Mutex",
            "Atomic",
        ],
        reason: "it cannot fail, cannot block and has no random order",
    },
    Wall {
        layer: "wire",
        may_name: &["base", "escape", "key", "memory", "engine::types", "shard"],
        may_not_name: PURE,
        reason: "a codec can be fuzzed with a byte slice, and a client needs no daemon to use it",
    },
    Wall {
        layer: "access",
        may_name: &["sha256", "wire::need"],
        may_not_name: PURE,
        reason: "what a token gives can be tried with a few words, and nothing logs one",
    },
    Wall {
        layer: "dashboard",
        may_name: &[],
        may_not_name: IO,
        reason: "files for a browser; what serves them is elsewhere",
    },
    Wall {
        layer: "client",
        may_name: &[
            "base",
            "drift",
            "engine::types",
            "escape",
            "key",
            "maker",
            "shard",
            "uptime",
            "wire",
        ],
        may_not_name: &[
            "mio",
            "slab",
            "log",
            "socket2",
            "clap",
            "std::fs",
            "std::time::Instant",
            "SystemTime",
            "thread::spawn",
        ],
        reason: "a program that wants a lock gets none of the daemon with it",
    },
    Wall {
        layer: "ephemeral",
        may_name: &[],
        may_not_name: &[
            "mio",
            "slab",
            "socket2",
            "std::net",
            "std::env",
            "std::thread::spawn",
            "SystemTime",
        ],
        reason: "a program without a daemon uses it, and gets nothing else with it",
    },
    Wall {
        layer: "http_client",
        may_name: &["drift", "maker", "uptime"],
        may_not_name: &[
            "mio",
            "slab",
            "log",
            "socket2",
            "std::net",
            "std::os",
            "std::fs",
            "std::env",
            "Instant",
            "SystemTime",
            "thread::spawn",
        ],
        reason: "a program without a daemon uses it",
    },
    Wall {
        layer: "cli",
        may_name: &[
            "base",
            "client",
            "closed",
            "ephemeral",
            "escape",
            "uptime",
            "wire::client",
            "wire::command",
            "wire::verbs",
        ],
        may_not_name: &[
            "mio",
            "slab",
            "socket2",
            "std::net",
            "Instant",
            "SystemTime",
            "unwrap",
        ],
        reason: "it is a client, and prints",
    },
    Wall {
        layer: "bin",
        may_name: &[],
        may_not_name: IO,
        reason: "no logic",
    },
    Wall {
        layer: "etcd",
        may_name: &["base"],
        may_not_name: &[
            "mio",
            "slab",
            "log",
            "std::env",
            "SystemTime",
            "thread::sleep",
        ],
        reason: "it knows nothing of what the keys mean, and blocks only whoever asks",
    },
    Wall {
        layer: "cluster",
        may_name: &["base", "engine", "etcd", "server", "shard", "store"],
        may_not_name: &[
            "mio",
            "slab",
            "socket2",
            "std::net",
            "std::env",
            "Instant",
            "SystemTime",
            "thread::sleep",
        ],
        reason: "who leads is decided by etcd and by a clock that is passed in",
    },
    Wall {
        layer: "cluster/role.rs",
        may_name: &["base"],
        may_not_name: PURE,
        reason: "who may speak is a function of time and answers, and can be simulated",
    },
    Wall {
        layer: "store",
        may_name: &[
            "base",
            "cluster::role",
            "engine::types",
            "ephemeral",
            "escape",
            "etcd",
            "fence_start",
            "histogram",
            "key",
            "segments",
            "shard",
            "wire::json",
        ],
        may_not_name: &[
            "mio",
            "slab",
            "log",
            "socket2",
            "std::net",
            "std::env",
            "SystemTime",
            "thread::sleep",
        ],
        reason: "a store never decides, and whoever opens one gives it the time of day",
    },
    Wall {
        layer: "server",
        may_name: &[
            "access",
            "base",
            "dashboard",
            "engine",
            "escape",
            "histogram",
            "memory",
            "sha256",
            "shard",
            "store",
            "timers",
            "wire",
        ],
        may_not_name: &[
            "mio",
            "socket2",
            "rustix",
            "std::net",
            "std::os",
            "std::fs",
            "std::time",
            "std::thread",
            "std::env",
            "Instant",
            "SystemTime",
            "Mutex",
            "Atomic",
        ],
        reason: "so the simulator runs the shipped code",
    },
    Wall {
        layer: "tls",
        may_name: &["server"],
        may_not_name: &[
            "mio",
            "socket2",
            "rustix",
            "std::net",
            "std::os",
            "std::fs",
            "std::time",
            "std::thread",
            "std::env",
            "Instant",
            "SystemTime",
            "complete_io",
        ],
        reason: "it encrypts pipes as it does sockets, and never waits",
    },
    Wall {
        layer: "net",
        may_name: &["base", "ephemeral", "server", "store", "tls"],
        may_not_name: &["std::env"],
        reason: "it never looks inside a request",
    },
    Wall {
        layer: "tools/judge/engine",
        may_name: &["base", "key"],
        may_not_name: IO,
        reason: "it is a part of the engine where it is compiled",
    },
    Wall {
        layer: "tools/sim/src",
        may_name: &[
            "access",
            "base",
            "engine",
            "fence_start",
            "key",
            "server",
            "store",
            "tls",
            "wire",
        ],
        may_not_name: OUTSIDE,
        reason: "the same seed must give the same trace",
    },
    Wall {
        layer: "tools/sim/src/etcd.rs",
        may_name: &["base", "etcd"],
        may_not_name: OUTSIDE,
        reason: "time, losses and order are up to the test",
    },
    Wall {
        layer: "tools/sim/src/etcd_tests.rs",
        may_name: &["base", "etcd"],
        may_not_name: OUTSIDE,
        reason: "as the model",
    },
    Wall {
        layer: "tools/sim/src/fault_disk.rs",
        may_name: &["store"],
        may_not_name: &["std::fs", "std::time", "std::thread", "HashMap", "HashSet"],
        reason: "a disk in memory, which fails when a seed says so",
    },
    Wall {
        layer: "tools/sim/src/main.rs",
        may_name: &["config::Exit"],
        may_not_name: &["std::net", "std::fs", "std::time", "std::thread"],
        reason: "it prints what the simulator tells",
    },
    Wall {
        layer: "tools/sim/src/pipe",
        may_name: &["base", "engine", "server", "store", "tls", "wire::client"],
        may_not_name: &[
            "mio",
            "socket2",
            "rustix",
            "std::net",
            "std::os",
            "std::fs",
            "std::time",
            "std::thread",
            "std::env",
            "Instant",
            "SystemTime",
            "Mutex",
            "Atomic",
        ],
        reason: "a connection in memory, which moves only when a test says so",
    },
    Wall {
        layer: "config",
        may_name: &[
            "access",
            "base",
            "engine::ClientLimit",
            "engine::GracePolicy",
            "engine::SHARES_MAX",
            "engine::types::ADAPTER_CHARS_MAX",
            "engine::types::Share",
            "shard",
            "store",
            "wire::answer",
        ],
        may_not_name: &[
            "mio",
            "socket2",
            "std::env",
            "std::process",
            "std::time",
            "std::thread",
        ],
        reason: "arguments and environment are passed in, and it never exits",
    },
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn all_rust_files() -> Vec<PathBuf> {
    let dirs = ["src", "tests", "benches", "tools", "examples"].map(|dir| root().join(dir));
    dirs.iter().flat_map(|dir| rust_files(dir)).collect()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// Lines of code with their numbers: no comments, no text in quotes.
fn code_lines(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap();
    let code = |line: &str| {
        let line = line.split("//").next().unwrap_or_default();
        line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
    };
    let lines = text.lines().enumerate();
    lines.map(|(index, line)| (index + 1, code(line))).collect()
}

/// Whether `word` stands in `line` on its own, not as a part of a longer name; a wildcard at its
/// end is implied for types (`Atomic` is also `AtomicU64`).
fn names(line: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(is_name);
        let after = line[at + word.len()..].chars().next().is_some_and(is_name);
        !before && (!after || word == "Atomic")
    })
}

fn folder_of(layer: &str) -> PathBuf {
    let below = if layer.starts_with("tools/") {
        ""
    } else {
        "src"
    };
    root().join(below).join(layer)
}

/// The files that this row is about.
fn files_of(wall: &Wall) -> Vec<PathBuf> {
    let mut files = rust_files(&folder_of(wall.layer));
    if wall.layer.starts_with("tools/") {
        let is_longer = |other: &&Wall| other.layer.len() > wall.layer.len();
        let others = WALLS.iter().filter(is_longer).map(|it| folder_of(it.layer));
        let others: Vec<PathBuf> = others.collect();
        files.retain(|file| !others.iter().any(|other| file.starts_with(other)));
    }
    files
}

fn complaints_of(wall: &Wall) -> Vec<String> {
    let own = wall.layer.trim_end_matches(".rs");
    let mut complaints = Vec::new();
    // A tool is a crate of its own, which may name all of itself.
    let is_tool = wall.layer.starts_with("tools/") && !wall.layer.starts_with("tools/judge");
    let this_crate = if is_tool { "latchd::" } else { "crate::" };
    for file in files_of(wall) {
        for (number, line) in code_lines(&file) {
            let at = format!("{}:{number}", shown(&file));
            for word in wall.may_not_name.iter().filter(|word| names(&line, word)) {
                complaints.push(format!("{at}: {own} names {word}: {}", wall.reason));
            }
            for (position, _) in line.match_indices(this_crate) {
                let path = &line[position + this_crate.len()..];
                let mut allowed = wall.may_name.iter().chain([&own]);
                if !allowed.any(|module| path.starts_with(module)) {
                    complaints.push(format!("{at}: {own} may not name {this_crate}{path}"));
                }
            }
        }
    }
    complaints
}

#[test]
fn every_layer_keeps_to_its_side_of_the_wall() {
    let complaints: Vec<String> = WALLS.iter().flat_map(complaints_of).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn every_layer_has_a_wall() {
    // Those without one join everything, and name it.
    let open = ["daemon", "lib.rs", "main.rs"];
    for entry in fs::read_dir(root().join("src")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let walled = WALLS.iter().any(|wall| wall.layer == name);
        assert!(
            walled || open.contains(&name.as_str()),
            "src/{name} has no wall in tests/tools/tidy.rs"
        );
    }
}

#[test]
fn the_walls_would_notice() {
    assert!(names("use std::time::Duration;", "std::time"));
    assert!(names("let mut map = HashMap::new();", "HashMap"));
    assert!(names("static N: AtomicU64", "Atomic"));
    assert!(
        !names("let dynamio = 1; mio2()", "mio"),
        "part of a longer name"
    );
    let (may_name, may_not_name) = (&[][..], &["mio"][..]);
    let wall = Wall {
        layer: "net",
        may_name,
        may_not_name,
        reason: "to see it work",
    };
    let complaints = complaints_of(&wall);
    let complains = |text: &str| complaints.iter().any(|it| it.contains(text));
    assert!(complains("names mio"), "{complaints:?}");
    assert!(complains("may not name crate::server"), "{complaints:?}");
}

#[test]
fn every_file_introduces_itself() {
    let mut complaints = Vec::new();
    for file in all_rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        if !text.starts_with("//! ") {
            complaints.push(format!("{} does not say what it is", shown(&file)));
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn nothing_promises_to_be_done_later() {
    let promises = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
    ];
    for file in all_rust_files() {
        let text = fs::read_to_string(&file).unwrap();
        for word in promises {
            assert!(!text.contains(word), "{} says {word}", shown(&file));
        }
    }
}

/// Where the system has no event to wait for: a file lock with a timeout.
const MAY_SLEEP: &str = "src/ephemeral/patience.rs";

#[test]
fn nothing_sleeps() {
    for file in all_rust_files() {
        if shown(&file) == MAY_SLEEP {
            continue;
        }
        for (number, line) in code_lines(&file) {
            assert!(
                !line.contains("thread::sleep"),
                "{}:{number} sleeps",
                shown(&file)
            );
        }
    }
}
