//! Crashes under load: the daemon is killed over and over while clients change everything there is,
//! and each time it comes back everything they were told is there.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use fastrand::Rng;
use rustix::process::Signal;

use crate::durability::checker::{
    Contender, End, Fences, Observer, Player, Round, check_contended,
};
use crate::durability::directory::{Directory, epoch, holder, kill};
use crate::vocabulary::{Daemon, PATIENCE};

/// Where the daemon runs, and what happens to it.
pub(crate) trait Machine {
    fn start(&mut self) -> Daemon;
    /// Ends the daemon, in its way.
    fn bring_down(&mut self, daemon: Daemon);
    /// Which way that is.
    fn end(&self) -> End {
        End::Crash
    }
}

/// Its process is killed; what it has written is not lost.
struct Killed {
    directory: Directory,
    options: &'static [&'static str],
}

impl Machine for Killed {
    fn start(&mut self) -> Daemon {
        self.directory.start(self.options)
    }

    fn bring_down(&mut self, daemon: Daemon) {
        kill(daemon);
    }
}

/// It is told to stop, twice, so that it waits for nobody: that is no crash, and nothing is lost either.
struct Stopped {
    directory: Directory,
}

impl Machine for Stopped {
    fn start(&mut self) -> Daemon {
        let daemon = self.directory.start(&[]);
        assert!(!daemon.logged("WARN"), "{:#?}", daemon.log());
        daemon
    }

    fn bring_down(&mut self, mut daemon: Daemon) {
        daemon.signal(Signal::TERM);
        daemon.wait_for_log("shutting down");
        daemon.signal(Signal::TERM);
        let (code, log) = daemon.wait_for_exit();
        assert_eq!(code, 0, "{log:#?}");
    }

    fn end(&self) -> End {
        End::Stop
    }
}

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}: {text}")),
        Err(_) => default,
    }
}

/// As often as `CRASH_ROUNDS` says, or so often.
pub(crate) fn rounds(default: u64) -> u64 {
    setting("CRASH_ROUNDS", default)
}

const PLAYERS: usize = 3;
const CONTENDERS: usize = 2;

/// Most acknowledgements before a crash.
const HEARD_MAX: usize = 120;

/// Crashes so often, and checks each time.
pub(crate) fn crash_often(machine: &mut impl Machine, rounds: u64) {
    let seed = setting("CRASH_SEED", 1);
    eprintln!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let fences = Fences::default();
    let end = machine.end();
    let mut player = |number| Player::new(number, rng.u64(..), end);
    let mut players: Vec<Player> = (0..PLAYERS).map(&mut player).collect();
    let growing: Vec<String> = players.iter().map(Player::growing_counter).collect();
    let mut observer = Observer::default();
    let mut contenders: Vec<Contender> = Vec::new();
    // The last start only checks.
    for round in 0..=rounds {
        let daemon = machine.start();
        // Keeps what it has back until the crash.
        let mut client = daemon.connect();
        assert_eq!(epoch(&mut client), round + 1);
        let highest = fences.highest();
        let next = client.lock(&format!("new-{round}"), "0").token_fence();
        assert!(next > highest, "{next} is not above {highest}");
        for player in &mut players {
            player.check(&mut client, &fences);
        }
        check_contended(&hot_key(round), &contenders, &mut client, &fences);
        observer.check(&mut client);
        if round == rounds {
            break;
        }

        contenders.clear();
        contenders.resize_with(CONTENDERS, Contender::default);
        let hot = hot_key(round + 1);
        let (heard, hearing) = mpsc::channel();
        let shared = Round {
            address: daemon.address(),
            fences: &fences,
        };
        thread::scope(|scope| {
            for player in &mut players {
                let heard = heard.clone();
                scope.spawn(move || player.play(shared, &heard));
            }
            for contender in &mut contenders {
                let (heard, hot) = (heard.clone(), &hot);
                scope.spawn(move || contender.contend(hot, shared, &heard));
            }
            scope.spawn(|| observer.watch(&growing, shared));
            drop(heard);
            for _ in 0..rng.usize(0..HEARD_MAX) {
                match hearing.recv_timeout(PATIENCE) {
                    Ok(()) => {}
                    // They tell themselves why.
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => panic!("nobody is answered"),
                }
            }
            machine.bring_down(daemon);
        });
    }
}

/// What is fought for in the round before this one: a key of its own, because it may be held by
/// somebody who never heard of it.
fn hot_key(round: u64) -> String {
    format!("hot-{round}")
}

#[test]
fn what_was_acknowledged_survives_a_kill_at_any_moment() {
    let mut machine = Killed {
        directory: Directory::new(),
        options: &[],
    };
    crash_often(&mut machine, rounds(100));
}

/// What was written is with the system, and a process that is killed does not take it along.
#[test]
fn with_async_durability_a_kill_loses_nothing_either() {
    let mut machine = Killed {
        directory: Directory::new(),
        options: &["--durability=async"],
    };
    crash_often(&mut machine, rounds(100) / 4);
}

#[test]
fn a_stop_in_the_middle_of_everything_loses_nothing_either() {
    let mut machine = Stopped {
        directory: Directory::new(),
    };
    crash_often(&mut machine, rounds(100) / 4);
}

/// Far more is written than is live, so segments are compacted all the time.
#[test]
fn compaction_under_load_keeps_everything_and_bounds_the_disk() {
    const VALUE_BYTES: usize = 60_000;
    const KEYS: usize = 20;
    /// Three segments of 16 MiB.
    const WRITES: usize = 850;
    let directory = Directory::new();
    let mut daemon = directory.start(&[]);
    let mut client = daemon.connect();
    let mut fences = Vec::new();
    let mut values = vec![String::new(); KEYS];
    for round in 0..3 {
        let grant = client.lock(&format!("k{round}"), "0 600");
        fences.push(grant.token_fence());
        let mut most_bytes = 0;
        for number in 0..WRITES {
            let value = format!("{round}-{number}-{}", "v".repeat(VALUE_BYTES));
            let key = number % KEYS;
            client.raw(format!("kset\nv{key}\n{value}\n"));
            values[key] = value;
            // Eight under way, so that one sync serves several.
            if number >= 8 {
                client.expect("ok");
            }
            if number % 50 == 0 {
                most_bytes = most_bytes.max(directory.disk_bytes());
                // The loop, the journal, and at times who compacts and who makes a segment ready.
                let threads: u32 = daemon.status("Threads").parse().unwrap();
                assert!(threads <= 4, "{threads} threads");
            }
        }
        for _ in 0..8 {
            client.expect("ok");
        }
        daemon.wait_for_log("compacted");
        let live = (KEYS * VALUE_BYTES) as u64;
        let segment = 16 << 20;
        // A segment that is written, one ready for later, one closed, one that goes as another comes.
        let most = 3 * live + 4 * segment;
        assert!(most_bytes <= most, "{most_bytes} bytes, and not {most}");
        kill(daemon);
        daemon = directory.start(&[]);
        client = daemon.connect();
        for (key, value) in values.iter().enumerate() {
            let answer = client.ask(&format!("kget v{key} _"));
            assert!(answer == format!("ok {value}"), "v{key}: {answer:.20}");
        }
        for (round, fence) in fences.iter().enumerate() {
            assert_eq!(holder(&mut client, &format!("k{round}")), Some(*fence));
        }
    }
}

/// The snapshot is being written, and everything that it stands for is still needed.
#[test]
fn a_kill_in_the_middle_of_a_compaction_loses_nothing() {
    const VALUE_BYTES: usize = 60_000;
    const KEYS: usize = 150;
    let directory = Directory::new();
    let mut values = vec![String::new(); KEYS];
    for round in 0..3 {
        let daemon = directory.start(&[]);
        let mut client = daemon.connect();
        for (key, value) in values.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
            let answer = client.ask(&format!("kget v{key} _"));
            assert!(answer == format!("ok {value}"), "v{key}: {answer:.20}");
        }
        let mut number = 0;
        while !directory.has_file(|name| name.ends_with(".snapshot.tmp")) {
            let value = format!("{round}-{number}-{}", "v".repeat(VALUE_BYTES));
            let key = number % KEYS;
            client.raw(format!("kset\nv{key}\n{value}\n"));
            client.expect("ok");
            values[key] = value;
            number += 1;
            assert!(number < 10_000, "nothing is compacted");
        }
        kill(daemon);
    }
}
