//! Children that live on, signals, and programs that know nothing of us.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use latchd::ephemeral::{Cleanup, EphemeralLock, Error, Holder, Kind};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{
    Contender, Place, Program, file_at, has, is_locked, until, until_held_by, until_waiters,
};

/// A pipe with a name. Whoever reads from it lives until `Fifo` is dropped.
struct Fifo {
    path: PathBuf,
    _end: File,
}

impl Fifo {
    fn new(dir: &Path) -> Self {
        let path = dir.join("fifo");
        assert!(
            Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        let end = OpenOptions::new().read(true).write(true).open(&path);
        Self {
            path,
            _end: end.unwrap(),
        }
    }
}

/// The child has a copy of the descriptor, as after a fork, or an exec without `O_CLOEXEC`.
#[test]
fn a_child_that_has_the_descriptor_keeps_the_lock_of_a_killed_parent() {
    let place = Place::new();
    let fifo = Fifo::new(place.dir.path());
    let mut parent = Program::Ours.start(&place.path);
    let file = parent.acquire("exclusive", "try");
    let order = format!("child with {}", fifo.path.display());
    assert_eq!(parent.ask(&order), "born");
    parent.kill();
    let lock = EphemeralLock::exclusive(&place.path);
    assert!(matches!(lock.try_acquire(), Err(Error::Busy { .. })));
    assert_eq!(place.file(), Some(file));
    drop(fifo); // the child ends
    let guard = lock.acquire().unwrap();
    assert_eq!(guard.release().unwrap(), Cleanup::Removed);
}

/// But if the holder lets go itself, no child keeps it.
pub(crate) fn let_go_beside_a_child(program: &Program) -> Result<(), String> {
    for (kind, left) in [("exclusive", None), ("kept", Some(()))] {
        let place = Place::new();
        let fifo = Fifo::new(place.dir.path());
        let mut parent = program.start(&place.path);
        parent.acquire(kind, "try");
        let order = format!("child with {}", fifo.path.display());
        assert_eq!(parent.ask(&order), "born");
        parent.ask("release");
        assert_eq!(place.file().map(drop), left);
        let guard = EphemeralLock::exclusive(&place.path).try_acquire();
        let guard = guard.map_err(|error| format!("violation: {error}"))?;
        assert_eq!(guard.release().unwrap(), Cleanup::Removed);
    }
    Ok(())
}

#[test]
fn a_child_that_has_the_descriptor_does_not_keep_what_the_parent_lets_go() {
    let_go_beside_a_child(&Program::Ours).unwrap();
}

#[test]
fn a_child_that_was_started_the_usual_way_does_not_keep_the_lock() {
    let place = Place::new();
    let fifo = Fifo::new(place.dir.path());
    let mut parent = Program::Ours.start(&place.path);
    parent.acquire("exclusive", "try");
    let order = format!("child without {}", fifo.path.display());
    assert_eq!(parent.ask(&order), "born");
    parent.kill();
    let lock = EphemeralLock::exclusive(&place.path);
    assert_eq!(
        lock.try_acquire().unwrap().release().unwrap(),
        Cleanup::Removed
    );
}

#[test]
fn a_guard_that_is_leaked_keeps_the_lock_until_the_process_ends() {
    let place = Place::new();
    let mut holder = Program::Ours.start(&place.path);
    holder.acquire("exclusive", "try");
    assert_eq!(holder.ask("leak"), "leaked");
    let lock = EphemeralLock::exclusive(&place.path);
    assert!(matches!(lock.try_acquire(), Err(Error::Busy { .. })));
    holder.kill();
    assert!(place.file().is_some());
    assert_eq!(
        lock.try_acquire().unwrap().release().unwrap(),
        Cleanup::Removed
    );
}

/// A contender for whom calls of the system end as strace is told; `None` if that cannot be had.
fn injected(inject: &str, place: &Place) -> Option<Contender> {
    let inject = format!("inject={inject}");
    let options = ["-f", "-qq", "-o", "/dev/null", "-e", &inject];
    let command = || Program::Ours.command(&[&["strace"], &options[..]].concat());
    let try_out = [&options[..], &["true"]].concat();
    has("strace", &try_out).then(|| Contender::start(command(), &place.path))
}

/// How often the thread that a test runs on has waited so far, and its number.
fn waits_of(pid: u32) -> (u64, Pid) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let is_it = |task: &PathBuf| {
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        name.starts_with("contends_if") // the system keeps the beginning of a name
    };
    let mut found = tasks.map(|task| task.unwrap().path()).filter(is_it);
    let task = found.next().expect("the thread that contends");
    let status = fs::read_to_string(task.join("status")).unwrap();
    let mut lines = status.lines();
    let waits = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let tid = task.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let waits = waits.unwrap().trim().parse().unwrap();
    (waits, Pid::from_raw(tid).unwrap())
}

/// A thousand signals, each of which ends the system's wait: the next one is sent when it waits again.
#[test]
fn real_signals_do_not_end_a_wait() {
    let place = Place::new();
    let holder = EphemeralLock::exclusive(&place.path).try_acquire().unwrap();
    let mut waiter = Program::Ours.start(&place.path);
    let pid = waiter.pid();
    waiter.tell("acquire exclusive block");
    until_waiters(&place.path, 1);
    for _ in 0..1_000 {
        let (before, thread) = waits_of(pid);
        kill_process(thread, Signal::USR1).unwrap();
        until(|| waits_of(pid).0 > before);
    }
    let us = Holder {
        pid: Some(std::process::id()),
        kind: Kind::Exclusive,
    };
    until_held_by(&place.path, &[us]); // and nobody else has it
    assert!(is_locked(&place.path));
    drop(holder);
    let (file, _) = waiter.held();
    assert_eq!(Some(file), place.file());
    assert_eq!(waiter.ask("release"), "Removed");
}

/// The same with calls that the system ends before they have begun, also where nobody waits.
#[test]
fn signals_do_not_end_a_wait() {
    let place = Place::new();
    let start = || injected("flock:error=EINTR:when=1..1000", &place);
    let holder = EphemeralLock::exclusive(&place.path).try_acquire().unwrap();
    let Some(mut waiter) = start() else { return };
    waiter.tell("acquire exclusive block");
    until_waiters(&place.path, 1);
    drop(holder);
    let (file, _) = waiter.held();
    assert_eq!(Some(file), place.file());
    assert_eq!(waiter.ask("release"), "Removed");
    // Nor are they taken for a refusal, or for a lock.
    let mut other = start().unwrap();
    other.acquire("shared", "try");
    assert!(is_locked(&place.path));
    assert_eq!(other.ask("release"), "Removed");
}

#[test]
fn a_system_that_refuses_locks_is_never_taken_for_one_that_gives_them() {
    for errno in ["ENOLCK", "EOPNOTSUPP", "ENOSYS"] {
        let place = Place::new();
        let Some(mut contender) = injected(&format!("flock:error={errno}"), &place) else {
            return;
        };
        for order in [
            "acquire exclusive try",
            "acquire shared block",
            "acquire shared 99",
        ] {
            let answer = contender.ask(order);
            assert!(answer.starts_with("Unsupported "), "{errno}: {answer}");
        }
    }
}

/// The name cannot be taken away: the lock is free all the same, and somebody hears of it.
#[test]
fn a_file_that_cannot_be_removed_is_let_go() {
    let place = Place::new();
    let Some(mut contender) = injected("unlink,unlinkat:error=EPERM", &place) else {
        return;
    };
    for kind in ["exclusive", "shared"] {
        contender.acquire(kind, "try");
        let said = contender.ask("release");
        assert!(said.contains("not permitted"), "{said}");
        assert!(place.file().is_some() && !is_locked(&place.path));
    }
}

/// flock(1), which holds the lock until its input ends.
struct Flock {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Flock {
    fn start(path: &Path) -> Self {
        let mut child = Command::new("flock")
            .arg("-x")
            .arg(path)
            .args(["sh", "-c", "echo held; read answer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, output }
    }

    fn until_held(&mut self) {
        assert_eq!(self.output.next().unwrap().unwrap(), "held");
    }

    fn release(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

/// A waiting flock(1) has opened the file before and does not look at the path again.
#[test]
fn a_waiting_flock_excludes_only_locks_that_keep_the_file() {
    if !has("flock", &["--version"]) {
        return;
    }
    let place = Place::new();
    let lock = EphemeralLock::exclusive(&place.path);
    for (keeps, cleanup) in [(true, Cleanup::Kept), (false, Cleanup::Removed)] {
        let lock = lock.clone().keep_file(keeps);
        let guard = lock.try_acquire().unwrap();
        let mut flock = Flock::start(&place.path);
        until_waiters(&place.path, 1);
        assert_eq!(guard.release().unwrap(), cleanup);
        flock.until_held();
        match lock.try_acquire() {
            Err(Error::Busy { .. }) => assert!(keeps),
            // The documented limit: flock(1) holds a file without a name.
            both => assert!(both.is_ok() && !keeps, "{both:?}"),
        }
        flock.release();
        assert_eq!(lock.try_acquire().unwrap().release().unwrap(), cleanup);
        assert_eq!(place.file().is_some(), keeps);
    }
}

#[test]
fn flock_the_program_and_we_exclude_each_other() {
    if !has("flock", &["--version"]) {
        return;
    }
    let place = Place::new();
    let lock = EphemeralLock::exclusive(&place.path);
    let mut theirs = Flock::start(&place.path);
    theirs.until_held();
    assert!(matches!(lock.try_acquire(), Err(Error::Busy { .. })));
    theirs.release();
    let guard = lock.acquire().unwrap();
    let mut flock = Command::new("flock");
    flock.args(["-n", "-x"]).arg(&place.path).arg("true");
    assert_eq!(flock.status().unwrap().code(), Some(1));
    let us = Holder {
        pid: Some(std::process::id()),
        kind: Kind::Exclusive,
    };
    until_held_by(&place.path, &[us]);
    assert_eq!(guard.release().unwrap(), Cleanup::Removed);
    assert_eq!(file_at(&place.path), None);
}

/// Locks and lets go while another thread starts processes, each of which has a copy of every descriptor
/// for a moment. Says how often a lock that is free was said to be busy.
pub(crate) fn beside_spawns(times: u32, lock: &EphemeralLock) -> u32 {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        });
        let busy = (0..times).filter(|_| match lock.try_acquire() {
            Ok(guard) => {
                guard.release().unwrap();
                false
            }
            Err(Error::Busy { .. }) => true,
            Err(error) => panic!("{error}"),
        });
        let busy = busy.count() as u32;
        is_over.store(true, Ordering::Relaxed);
        busy
    })
}

#[test]
fn what_is_let_go_is_free_at_once_also_while_other_threads_start_processes() {
    let place = Place::new();
    let lock = EphemeralLock::exclusive(&place.path);
    assert_eq!(beside_spawns(20_000, &lock), 0);
    assert_eq!(place.file(), None);
    // Here each lock is on the same file, so a copy of the last one would be in the way.
    assert_eq!(beside_spawns(20_000, &lock.keep_file(true)), 0);
    assert!(place.file().is_some());
}
