//! A second process that outlives us if we are killed, and does what we can do no longer.
//!
//! `kill -9` leaves nobody time to clean up. The system kills the command together with us (`trampoline`),
//! but not what the command has started. So there is a warden: it is told what there is to end, and reads from a
//! pipe whose other end is ours alone. When that is closed without a goodbye, it kills the command's process
//! group and, once nobody of it is left, lets go of the lock. It also has the time at which the lease
//! is over, and kills the group then if nobody tells it of another, also if we are stopped or stuck. Of us it needs nothing but silence.
//!
//! It is in a process group of its own, where neither Ctrl-C nor `kill -9 %1` reaches it, and has none of our
//! descriptors, but for the one of a file lock, which so stays locked until the group is gone.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::trampoline::ourselves;
use crate::cli::exit::{Exit, Fail};
use crate::cli::task;

/// The word that has `latch` be this, and not a command for people.
pub(crate) const WORD: &str = "__warden";
/// How long the warden waits for a killed group to be gone before it leaves the lock to its lease. A process
/// that waits for a disk is not gone before the disk answers.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// How often it looks. There is nobody to tell it: the group's parent is gone.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long after a renewal that failed another one is tried.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How long a warden may take to make room for what it is told, before it counts as stuck.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// Our end: what the warden is told. Any thread may tell it something, also before it is there.
pub(crate) struct Warden {
    pipe: fs::File,
    /// Where it says that it has killed.
    reports: OwnedFd,
}

/// A warden that is still to be started.
pub(crate) struct Start {
    read: OwnedFd,
    reports: OwnedFd,
}

/// What it says before it kills because nobody has told it of another end of the lease.
const KILLS: &[u8] = b"K";

impl Start {
    /// It gets these options of ours, and with them what they name, and holds on to this descriptor.
    pub(crate) fn start(self, options: &[OsString], holds: Option<OwnedFd>) -> Result<(), Fail> {
        let mut start = ourselves();
        start.arg(WORD).args(options);
        start
            .stdin(Stdio::from(self.read))
            .stderr(Stdio::from(self.reports));
        start.stdout(holds.map_or_else(Stdio::null, Stdio::from));
        // Not where our caller may want to unmount.
        start.current_dir("/").process_group(0);
        let started = start.spawn().map(drop);
        started.map_err(|error| Fail::system("start a process", error))
    }
}

impl Warden {
    /// One that can be told everything, and hears it once it is started.
    pub(crate) fn new() -> Result<(Self, Start), Fail> {
        let pipe = || {
            let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
            let pipe = rustix::pipe::pipe_with(flags);
            pipe.map_err(|error| Fail::system("start a process", error))
        };
        let ((read, write), (reports, theirs)) = (pipe()?, pipe()?);
        let warden = Self {
            pipe: write.into(),
            reports,
        };
        let start = Start {
            read,
            reports: theirs,
        };
        Ok((warden, start))
    }

    /// Starts one that knows nothing yet.
    pub(crate) fn start(options: &[OsString], holds: Option<OwnedFd>) -> Result<Self, Fail> {
        let (warden, start) = Self::new()?;
        start.start(options, holds)?;
        Ok(warden)
    }

    /// Where a child of ours can tell the warden of itself: see [`tell_of_ourselves`].
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.pipe.as_raw_fd())
    }

    /// What there is to end.
    pub(crate) fn guard(&self, group: Pid) {
        self.tell(group_line(group).as_bytes());
    }

    /// A lock that is to be let go then.
    pub(crate) fn release(&self, key: &[u8], token: &str) {
        let line = [b"hold ", token.as_bytes(), b" ", key, b"\n"].concat();
        self.tell(&line);
    }

    /// What it was told to let go is not ours any more.
    pub(crate) fn forget(&self) {
        self.tell(b"forget\n");
    }

    /// For how long from now the group may go on if nothing else is said.
    pub(crate) fn until(&self, left: Duration) {
        let until = monotonic().saturating_add(left);
        self.tell(format!("until {}\n", until.as_nanos()).as_bytes());
    }

    /// From now on we are stopped until we say that we are not: the lock is the warden's to renew, so often.
    pub(crate) fn suspend(&self, lease: Duration) {
        self.tell(format!("suspend {}\n", lease.as_millis()).as_bytes());
    }

    /// We are back.
    pub(crate) fn resume(&self) {
        self.tell(b"resume\n");
    }

    /// Everything has ended as it should. (It goes by itself; nobody waits for it.)
    pub(crate) fn dismiss(&self) {
        self.tell(b"done\n");
    }

    /// Whether it has killed the group, because the lease was over.
    pub(crate) fn has_killed(&self) -> bool {
        let mut byte = [0; 1];
        rustix::io::read(&self.reports, &mut byte) == Ok(1) && byte == KILLS
    }

    /// A warden that is gone or stuck is none: then there is nothing to be said. A line is short enough for the
    /// system to take all of it or nothing.
    fn tell(&self, line: &[u8]) {
        let deadline = monotonic().saturating_add(HEARD_WITHIN);
        loop {
            match (&self.pipe).write(line) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It has much to read. It may be a new one, which is not there yet.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_sub(monotonic());
                    if left.is_zero() {
                        return;
                    }
                    let mut events = [PollFd::new(&self.pipe, PollFlags::OUT)];
                    let _ = poll(&mut events, Some(&timespec(left)));
                }
                _ => return,
            }
        }
    }
}

/// For a process that is about to become a command, and leads its group: the warden is to know of it before it does
/// anything, also if its parent is stopped or killed in this very moment. Returns whether it may go on.
///
/// A parent that is being killed has closed its files a moment before we are told of its death. The warden may have
/// let the lock go by then, so whoever does not find the pipe any more must not begin.
pub(super) fn tell_of_ourselves(path: &OsStr) -> bool {
    match fs::OpenOptions::new().write(true).open(path) {
        Ok(mut pipe) => {
            let _ = pipe.write(group_line(rustix::process::getpid()).as_bytes());
            true
        }
        // Where it is forbidden to open it the parent tells, a moment later.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn group_line(group: Pid) -> String {
    let start = start_time(group).unwrap_or(0);
    format!("group {} {start}\n", group.as_raw_pid())
}

/// What the warden knows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    group: Option<(Pid, u64)>,
    /// By the clock that all processes have in common.
    until: Option<Duration>,
    holds: Vec<Hold>,
    /// We are to renew, and have it for so long each time.
    suspended: Option<Duration>,
    done: bool,
}

/// A lock, to be let go by its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) key: Vec<u8>,
    pub(crate) token: String,
}

/// What the warden does with locks, which this file knows nothing about.
pub(crate) trait Locks {
    /// Lets them go.
    fn release(&mut self, holds: &[Hold]);
    /// Renews all of them, and says for how long from now they are had at least; `None` if not all could be renewed.
    fn renew(&mut self, holds: &[Hold], lease: Duration) -> Option<Duration>;
}

/// The warden's whole life.
pub(crate) fn run(locks: impl Locks + Clone + Send + 'static) -> Exit {
    // It ends when we do, and not because somebody ends everything else.
    let _ = SigSet::all().thread_block();
    // Not buffered: what was read has to be known before the next wait.
    let input = io::stdin().as_fd().try_clone_to_owned();
    let reports = io::stderr().as_fd().try_clone_to_owned();
    let (Ok(input), Ok(reports)) = (input, reports) else {
        return Exit::SOFTWARE;
    };
    watch(fs::File::from(input), &reports, locks)
}

/// Reads what we say, until that ends.
fn watch(
    mut input: fs::File,
    reports: &OwnedFd,
    mut locks: impl Locks + Clone + Send + 'static,
) -> Exit {
    let (mut known, mut unread) = (Known::default(), Vec::new());
    let mut renewals = None;
    loop {
        if known.suspended.is_some() && renewals.is_none() {
            renewals = Renewals::new(&locks).ok();
        }
        let renew_at = renewals.as_mut().and_then(|it| it.look(&mut known));
        if known.until.is_some_and(|until| until <= monotonic()) {
            // First: whoever sees them dead is to see why.
            let _ = rustix::io::write(reports, KILLS);
            known.kill();
            known.until = None;
        }
        let wake = [known.until, renew_at].into_iter().flatten().min();
        let timeout = wake.map(|at| timespec(at.saturating_sub(monotonic())));
        let mut events = vec![PollFd::new(&input, PollFlags::IN)];
        let bell = renewals.as_ref().map(|it| &*it.bell);
        events.extend(bell.map(|it| PollFd::new(it, PollFlags::IN)));
        let _ = poll(&mut events, timeout.as_ref());
        let mut bytes = [0; 4096];
        match input.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => {
                unread.extend_from_slice(&bytes[..count]);
                known.read(&mut unread);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if known.done {
            return Exit::OK;
        }
    }
    known.kill();
    if known.wait_until_gone() {
        locks.release(&known.holds);
    }
    Exit::OK
}

/// Renews on a thread of its own: a server may take its time to answer, and meanwhile there is a lease that ends.
struct Renewals {
    orders: Sender<(Vec<Hold>, Duration)>,
    /// When one was begun, and for how long from then on the locks are had.
    results: Receiver<(Duration, Option<Duration>)>,
    /// Rung when there is a result.
    bell: Arc<OwnedFd>,
    is_under_way: bool,
    /// When the next one is due, if one was made since we are suspended.
    next: Option<Duration>,
}

impl Renewals {
    fn new(locks: &(impl Locks + Clone + Send + 'static)) -> Result<Self, Fail> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|error| Fail::system("wait", error))?);
        let (orders, ordered) = channel::<(Vec<Hold>, Duration)>();
        let (sender, results) = channel();
        let (mut locks, rung) = (locks.clone(), Arc::clone(&bell));
        let work = move || {
            for (holds, lease) in ordered {
                let began = monotonic();
                if sender.send((began, locks.renew(&holds, lease))).is_err() {
                    return;
                }
                task::ring(&rung);
            }
        };
        task::spawn(work)?;
        Ok(Self {
            orders,
            results,
            bell,
            is_under_way: false,
            next: None,
        })
    }

    /// Takes what there is, and begins one if it is time. Says when it is time for the next.
    fn look(&mut self, known: &mut Known) -> Option<Duration> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        while let Ok((began, left)) = self.results.try_recv() {
            self.is_under_way = false;
            let lease = known.suspended.unwrap_or_default();
            self.next = Some(match left {
                Some(_) => monotonic().saturating_add(lease / 3),
                None => monotonic().saturating_add((lease / 3).min(TRY_AGAIN_AFTER)),
            });
            if known.suspended.is_some() {
                // What was promised before is not taken back by what was asked earlier still.
                let until = left.map(|left| began.saturating_add(left));
                known.until = known.until.max(until);
            }
        }
        let Some(lease) = known.suspended else {
            self.next = None;
            return None;
        };
        if !self.is_under_way && self.next.is_none_or(|at| at <= monotonic()) {
            self.is_under_way = self.orders.send((known.holds.clone(), lease)).is_ok();
            self.next = None;
        }
        self.next
    }
}

impl Known {
    /// Takes whole lines from the front.
    fn read(&mut self, unread: &mut Vec<u8>) {
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            self.learn(&line[..end]);
        }
    }

    fn learn(&mut self, line: &[u8]) {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let word = words.next().unwrap_or_default();
        let (first, second) = (words.next().unwrap_or_default(), words.next());
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<u64>().ok();
        match word {
            b"group" => {
                let pid = number(first).and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
                self.group = pid.zip(second.and_then(number));
            }
            b"until" => self.until = number(first).map(Duration::from_nanos),
            b"hold" => self.holds.push(Hold {
                key: second.unwrap_or_default().to_vec(),
                token: String::from_utf8_lossy(first).into_owned(),
            }),
            b"forget" => self.holds.clear(),
            b"suspend" => self.suspended = number(first).map(Duration::from_millis),
            b"resume" => self.suspended = None,
            b"done" => self.done = true,
            _ => {}
        }
    }

    /// Kills the group, if it is still the one we were told of.
    fn kill(&self) {
        if let Some((group, start)) = self.group
            && is_same(group, start)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Waits for the group to be gone; not for ever.
    fn wait_until_gone(&self) -> bool {
        let Some((group, start)) = self.group else {
            return true;
        };
        let deadline = monotonic().saturating_add(GONE_WITHIN);
        while is_same(group, start) && has_living(group) {
            if monotonic() >= deadline {
                return false;
            }
            let _ = poll(&mut [], Some(&timespec(LOOK_EVERY)));
        }
        true
    }
}

/// Whether the group of this number is the one whose first process was started then. While anybody is in a
/// group its number is not used again; so if the first process is gone, it is the same or there is none.
fn is_same(group: Pid, start: u64) -> bool {
    start_time(group).is_none_or(|it| it == start)
}

/// Whether anybody in the group is more than a name that nobody has asked about (in a container, perhaps nobody ever
/// does).
fn has_living(group: Pid) -> bool {
    if test_kill_process_group(group).is_err() {
        return false;
    }
    let Ok(processes) = fs::read_dir("/proc") else {
        return true;
    };
    let number = group.as_raw_pid().to_string();
    processes.flatten().any(|process| {
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        let mut fields = fields.split(' ');
        let is_living = fields.next().is_some_and(|it| !matches!(it, "Z" | "X"));
        is_living && fields.nth(1) == Some(&number)
    })
}

/// When a process was started, in ticks since the machine was.
fn start_time(process: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).ok()?;
    // Its name may hold blanks and parentheses; the time is the 20th field after it.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(19)?.parse().ok()
}

/// The clock that processes have in common, and that goes on while the machine sleeps; a
/// [`std::time::Instant`] cannot be told to another process, and stands still then.
#[expect(
    clippy::disallowed_methods,
    reason = "another process is told when the lease is over"
)]
pub(crate) fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// For `poll`: rounded up, so that nothing is looked at before its time.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn the_warden_understands_what_it_is_told() {
        let mut known = Known::default();
        let mut bytes = b"group 17 4711\nhold 00ff some key\nuntil 5\nsuspe".to_vec();
        known.read(&mut bytes);
        assert_eq!(bytes, b"suspe", "half a line waits for the rest");
        assert_eq!(known.group, Pid::from_raw(17).map(|pid| (pid, 4711)));
        assert_eq!(known.until, Some(Duration::from_nanos(5)));
        let (key, token) = (b"some key".to_vec(), "00ff".to_owned());
        assert_eq!(known.holds, [Hold { key, token }]);
        bytes.extend_from_slice(b"nd 1500\n");
        known.read(&mut bytes);
        assert_eq!(known.suspended, Some(Duration::from_millis(1500)));
        known.learn(b"resume");
        assert_eq!((known.suspended, known.done), (None, false));
        known.learn(b"done");
        assert!(known.done);
    }

    /// A server that does not answer, until the test is over.
    #[derive(Clone)]
    struct Silent {
        asked: Sender<()>,
        released: Sender<()>,
        over: Arc<Mutex<Receiver<()>>>,
    }

    impl Locks for Silent {
        fn release(&mut self, _: &[Hold]) {
            let _ = self.released.send(());
        }

        fn renew(&mut self, _: &[Hold], _: Duration) -> Option<Duration> {
            let _ = self.asked.send(());
            let _ = self.over.lock().map(|it| it.recv());
            None
        }
    }

    #[test]
    fn a_server_that_does_not_answer_keeps_nobody_from_looking_at_the_clock() {
        let mut command = std::process::Command::new("sleep");
        let child = command.arg("1000").process_group(0).spawn();
        let mut child = child.expect("sleep starts");
        let group = Pid::from_child(&child);
        let (warden, Start { read, reports }) = Warden::new().expect("pipes");
        warden.guard(group);
        warden.until(Duration::from_millis(100));
        warden.suspend(Duration::from_secs(3_600));
        let (asked, was_asked) = channel();
        let (released, was_released) = channel();
        let (still, over) = channel();
        let over = Arc::new(Mutex::new(over));
        let locks = Silent {
            asked,
            released,
            over,
        };
        task::spawn(move || _ = watch(read.into(), &reports, locks)).expect("a thread");
        let patience = Duration::from_secs(30);
        was_asked.recv_timeout(patience).expect("it renews");
        let process = rustix::process::pidfd_open(group, rustix::process::PidfdFlags::empty());
        let process = process.expect("it is not collected yet");
        let mut events = [PollFd::new(&process, PollFlags::IN)];
        let ended = poll(&mut events, Some(&timespec(patience)));
        let _ = child.kill(); // if nobody else has
        child.wait().expect("it is our child");
        assert_eq!(ended, Ok(1), "it has outlived its lease");
        assert!(warden.has_killed(), "and we know whose work that was");
        assert!(!warden.has_killed(), "once");
        // Nor from letting go when we are gone.
        drop(warden);
        was_released.recv_timeout(patience).expect("it lets go");
        drop(still);
    }

    /// More than a pipe holds, and nobody reads for a while.
    #[test]
    fn whatever_the_warden_is_told_it_hears() {
        let (warden, start) = Warden::new().expect("pipes");
        let keys = 2_000;
        task::spawn(move || {
            for number in 0..keys {
                let key = format!("{number:0256}");
                warden.release(key.as_bytes(), "00000000000000010000000000000001");
            }
        })
        .expect("a thread");
        let mut input = fs::File::from(start.read);
        let (mut known, mut unread, mut bytes) = (Known::default(), Vec::new(), [0; 4096]);
        loop {
            let patience = timespec(Duration::from_secs(30));
            let mut events = [PollFd::new(&input, PollFlags::IN)];
            assert_eq!(poll(&mut events, Some(&patience)), Ok(1), "it falls silent");
            match input.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => unread.extend_from_slice(&bytes[..count]),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            known.read(&mut unread);
        }
        assert_eq!(known.holds.len(), keys);
    }

    #[test]
    fn nonsense_ends_nobody() {
        let mut known = Known::default();
        for line in ["", "group", "group 0 1", "group -1 1", "group x", "kill 1"] {
            known.learn(line.as_bytes());
            assert_eq!(known, Known::default(), "{line}");
        }
    }

    #[test]
    fn who_is_in_a_group_and_alive_is_found() {
        assert!(has_living(rustix::process::getpgrp()), "we are");
        let nobody = Pid::from_raw(i32::MAX).expect("a number");
        assert!(!has_living(nobody));
    }

    #[test]
    fn whoever_cannot_find_the_pipe_any_more_does_not_begin() {
        assert!(!tell_of_ourselves(OsStr::new("/proc/0/fd/0")));
        assert!(tell_of_ourselves(OsStr::new("/dev/null")));
    }

    #[test]
    fn a_group_whose_number_is_used_by_another_process_is_not_ours() {
        let ours = rustix::process::getpid();
        let start = start_time(ours).expect("we were started");
        assert!(is_same(ours, start));
        assert!(!is_same(ours, start + 1));
        let nobody = Pid::from_raw(i32::MAX).expect("a number");
        assert!(
            is_same(nobody, 1),
            "nobody has the number, so the group kept it"
        );
    }
}
