//! A second process that outlives us if we are killed, and does what we can do no longer.
//!
//! `kill -9` leaves nobody time to clean up. The system kills the command together with us (`trampoline`),
//! but not what the command has started. So there is a warden: it is told what there is to end, and reads from a
//! pipe whose other end is ours alone. EOF without a goodbye says that we are gone: the warden kills the command's
//! process group and releases the lock once no process of the group lives. It also has the time at which the lease
//! is over, and kills the group then unless it is told of another, also if we are stopped or stuck.
//!
//! Processes of another user (sudo, su) cannot be killed. While one lives the warden renews the lock, however
//! long that takes, and says so.
//!
//! It is in a process group of its own, where neither Ctrl-C nor `kill -9 %1` reaches it. Of our descriptors it has
//! standard error, for what it has to say, and that of a file lock, which so stays locked until the group is gone.

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
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Signal;
use rustix::time::Timespec;

use super::group::{Group, Members};
use super::trampoline::ourselves;
use crate::cli::exit::{Exit, Fail};
use crate::cli::output::quoted;
use crate::cli::sys::spawn;
use crate::uptime::uptime;

/// The word that has `latch` be this, and not a command for people.
pub(crate) const WORD: &str = "__warden";
/// How often a group is looked at that tells nothing of its end.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// `poll` does not count the time that the machine sleeps, so no wait for a deadline is longer than this. A group
/// that has to end is killed again as often: processes may have joined it.
const WAIT_MAX: Duration = Duration::from_secs(1);
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
        let failed = |error: io::Error| Fail::system("start a process", error);
        if let Some(fd) = &holds {
            fcntl_setfd(fd, FdFlags::empty()).map_err(|error| failed(error.into()))?;
        }
        let mut start = ourselves();
        start.arg(WORD).args(options);
        start
            .stdin(Stdio::from(self.read))
            .stdout(Stdio::from(self.reports));
        // Not where our caller may want to unmount.
        start.current_dir("/").process_group(0);
        start.spawn().map(drop).map_err(failed)
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
    pub(crate) fn guard(&self, group: Group) {
        self.tell(group_line(group).as_bytes());
    }

    /// For how long each renewal holds the locks. Without this they are not renewed.
    pub(crate) fn lease(&self, lease: Duration) {
        self.tell(format!("lease {}\n", lease.as_millis()).as_bytes());
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
        let until = uptime().saturating_add(left);
        self.tell(format!("until {}\n", until.as_nanos()).as_bytes());
    }

    /// From now on we are stopped until we say that we are not: the lock is the warden's to renew.
    pub(crate) fn suspend(&self) {
        self.tell(b"suspend\n");
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
        let deadline = uptime().saturating_add(HEARD_WITHIN);
        loop {
            match (&self.pipe).write(line) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It has much to read. It may be a new one, which is not there yet.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_sub(uptime());
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
            let group = Group::of(rustix::process::getpid());
            let _ = pipe.write(group_line(group).as_bytes());
            true
        }
        // Where it is forbidden to open it the parent tells, a moment later.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn group_line(group: Group) -> String {
    format!("group {}\n", group.words())
}

/// What the warden knows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    group: Option<Group>,
    /// By the clock that all processes have in common.
    until: Option<Duration>,
    holds: Vec<Hold>,
    /// For how long each renewal holds the locks.
    lease: Option<Duration>,
    /// We are stopped.
    is_suspended: bool,
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
    let reports = io::stdout().as_fd().try_clone_to_owned();
    let (Ok(input), Ok(reports)) = (input, reports) else {
        return Exit::SOFTWARE;
    };
    watch(fs::File::from(input), &reports, locks)
}

/// Reads what we say until that ends, and then ends the group.
fn watch(
    mut input: fs::File,
    reports: &OwnedFd,
    mut locks: impl Locks + Clone + Send + 'static,
) -> Exit {
    let (mut known, mut unread) = (Known::default(), Vec::new());
    let (mut ending, mut renewals) = (Ending::default(), None);
    loop {
        if known.until.is_some_and(|until| until <= uptime()) {
            // First: whoever sees them dead is to see why.
            let _ = rustix::io::write(reports, KILLS);
            known.until = None;
            ending.overdue_since = Some(uptime());
        }
        let members = ending.kill(&mut known);
        if ending.is_orphaned && members == Members::Gone {
            locks.release(&known.holds);
            return Exit::OK;
        }
        // A group that can be killed is gone in a moment, and needs no renewal.
        let is_stubborn = ending.is_orphaned || ending.has_said_overdue;
        let renews = known.is_suspended || members != Members::Gone && is_stubborn;
        if renews && known.lease.is_some() && renewals.is_none() {
            renewals = Renewals::new(&locks).ok();
        }
        let renew_at = renewals.as_mut().and_then(|it| it.look(&mut known, renews));
        let end = members.end();
        let look_at = match (members, &end) {
            (Members::Gone, _) => None,
            (_, Some(_)) => Some(WAIT_MAX),
            (_, None) => Some(LOOK_EVERY),
        };
        let look_at = look_at.map(|span| uptime().saturating_add(span));
        let wake = [known.until, renew_at, look_at].into_iter().flatten().min();
        let bell = renewals.as_ref().map(|it| &*it.bell);
        let others = [bell, end.as_ref()].into_iter().flatten();
        let mut events: Vec<_> = others.map(|it| PollFd::new(it, PollFlags::IN)).collect();
        if !ending.is_orphaned {
            events.push(PollFd::new(&input, PollFlags::IN));
        }
        poll_until(&mut events, wake);
        drop(events);
        let mut bytes = [0; 4096];
        match input.read(&mut bytes) {
            Ok(0) => ending.is_orphaned = true,
            Ok(count) => {
                unread.extend_from_slice(&bytes[..count]);
                if known.read(&mut unread) {
                    ending = Ending::default(); // the lock is held for longer
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => ending.is_orphaned = true,
        }
        if known.done {
            return Exit::OK;
        }
    }
}

/// Why the group has to end, and what was said about it.
#[derive(Debug, Default)]
struct Ending {
    /// We are gone.
    is_orphaned: bool,
    /// When the lease was over.
    overdue_since: Option<Duration>,
    has_said_orphaned: bool,
    has_said_overdue: bool,
}

impl Ending {
    /// Kills what has to end, and says which processes of it live on. `Gone` also while nothing has to end.
    fn kill(&mut self, known: &mut Known) -> Members {
        let Some(group) = known.group else {
            return Members::Gone;
        };
        if !self.is_orphaned && self.overdue_since.is_none() {
            return Members::Gone;
        }
        group.send(Signal::KILL);
        let members = group.members();
        match members {
            Members::Gone => known.group = None, // for good, and another group may have its number
            _ => self.say(known, group),
        }
        members
    }

    /// Says once why a process still runs: that it belongs to another user, or that it does not end.
    fn say(&mut self, known: &Known, group: Group) {
        let (orphaned, overdue) = (self.is_orphaned, self.overdue_since);
        let say_orphaned = orphaned && !self.has_said_orphaned;
        let say_overdue = overdue.is_some() && !self.has_said_overdue;
        if !say_orphaned && !say_overdue {
            return;
        }
        let refuses = group.out_of_reach();
        if say_overdue {
            let since = overdue.unwrap_or_default();
            let what = match &refuses {
                Some(process) => format!("{process} runs on as another user"),
                None if uptime() >= since.saturating_add(WAIT_MAX) => {
                    "a process of the command has not ended though it was killed".to_owned()
                }
                None => return, // a process takes a moment to end
            };
            let keys = known.keys();
            say(&format!(
                "the lease is over and {what}: {keys} may be held by another client now"
            ));
            self.has_said_overdue = true;
        }
        if let (true, Some(process)) = (say_orphaned, refuses) {
            let fate = match known.lease {
                Some(_) => format!("{} is renewed until it ends", known.keys()),
                None => "the file stays locked until it ends".to_owned(),
            };
            say(&format!(
                "latch was killed, and {process} of its command cannot be: it runs as another user; {fate}"
            ));
            self.has_said_orphaned = true;
        }
    }
}

/// One line on standard error, unless that would block: nothing that looks after a lease waits for a reader.
pub(super) fn say(text: &str) {
    let error = io::stderr();
    let mut events = [PollFd::new(&error, PollFlags::OUT)];
    let at_once = timespec(Duration::ZERO);
    if poll(&mut events, Some(&at_once)) == Ok(1) {
        let _ = error
            .lock()
            .write_all(format!("latch: {text}\n").as_bytes());
    }
}

/// Renews on a thread of its own: a server may take its time to answer, and meanwhile there is a lease that ends.
struct Renewals {
    orders: Sender<(Vec<Hold>, Duration)>,
    /// When one was begun, and for how long from then on the locks are had.
    results: Receiver<(Duration, Option<Duration>)>,
    /// Rung when there is a result.
    bell: Arc<OwnedFd>,
    is_under_way: bool,
    /// When the next one is due, if one was made since the locks are ours to renew.
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
                let began = uptime();
                if sender.send((began, locks.renew(&holds, lease))).is_err() {
                    return;
                }
                super::task::ring(&rung);
            }
        };
        spawn(work)?;
        Ok(Self {
            orders,
            results,
            bell,
            is_under_way: false,
            next: None,
        })
    }

    /// Takes the results, and begins a renewal if the locks are ours to renew and it is time. Says when it is time
    /// for the next.
    fn look(&mut self, known: &mut Known, renews: bool) -> Option<Duration> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        let lease = known.lease.unwrap_or_default();
        while let Ok((began, left)) = self.results.try_recv() {
            self.is_under_way = false;
            self.next = Some(match left {
                Some(_) => uptime().saturating_add(lease / 3),
                None => uptime().saturating_add((lease / 3).min(TRY_AGAIN_AFTER)),
            });
            if renews {
                // What was promised before is not taken back by what was asked earlier still.
                let until = left.map(|left| began.saturating_add(left));
                known.until = known.until.max(until);
            }
        }
        if !renews {
            self.next = None;
            return None;
        }
        if self.is_under_way {
            return None; // the bell rings
        }
        let next = self.next.unwrap_or_else(|| known.first_renewal());
        if next > uptime() {
            return Some(next);
        }
        self.is_under_way = self.orders.send((known.holds.clone(), lease)).is_ok();
        self.next = None;
        None
    }
}

impl Known {
    /// Takes whole lines from the front. Says whether a new end of the lease was among them.
    fn read(&mut self, unread: &mut Vec<u8>) -> bool {
        let mut is_extended = false;
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            is_extended |= line.starts_with(b"until ");
            self.learn(&line[..end]);
        }
        is_extended
    }

    fn learn(&mut self, line: &[u8]) {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let word = words.next().unwrap_or_default();
        let (first, second) = (words.next().unwrap_or_default(), words.next());
        let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
        let number = |bytes| text(bytes).parse::<u64>().ok();
        match word {
            b"group" => self.group = Group::parse(text(first), text(second.unwrap_or_default())),
            b"until" => self.until = number(first).map(Duration::from_nanos),
            b"lease" => self.lease = number(first).map(Duration::from_millis),
            b"hold" => self.holds.push(Hold {
                key: second.unwrap_or_default().to_vec(),
                token: String::from_utf8_lossy(first).into_owned(),
            }),
            b"forget" => self.holds.clear(),
            b"suspend" => self.is_suspended = true,
            b"resume" => self.is_suspended = false,
            b"done" => self.done = true,
            _ => {}
        }
    }

    /// When the first renewal is due: at once if we are stopped. If we are gone, not before half of the lease is over,
    /// since a group that can be killed is gone by then.
    fn first_renewal(&self) -> Duration {
        match (self.is_suspended, self.until) {
            (false, Some(until)) => until.saturating_sub(self.lease.unwrap_or_default() / 2),
            _ => uptime(),
        }
    }

    /// The locks, for people to read.
    fn keys(&self) -> String {
        let keys: Vec<_> = self.holds.iter().map(|hold| quoted(&hold.key)).collect();
        keys.join(", ")
    }
}

/// For `poll`: rounded up, so that nothing is looked at before its time.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Waits for an event, but not beyond this time, and not for long: callers look at the clock again.
pub(super) fn poll_until(events: &mut [PollFd<'_>], at: Option<Duration>) {
    let left = at.map(|at| at.saturating_sub(uptime()).min(WAIT_MAX));
    let _ = poll(events, left.map(timespec).as_ref());
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rustix::process::Pid;

    use super::*;

    #[test]
    fn the_warden_understands_what_it_is_told() {
        let mut known = Known::default();
        let mut bytes = b"group 17 4711\nhold 00ff some key\nuntil 5\nlease 1500\nsuspe".to_vec();
        assert!(known.read(&mut bytes), "the lease ends at another time");
        assert_eq!(bytes, b"suspe", "half a line waits for the rest");
        assert_eq!(known.group, Group::parse("17", "4711"));
        assert_eq!(known.lease, Some(Duration::from_millis(1500)));
        assert_eq!(known.until, Some(Duration::from_nanos(5)));
        let (key, token) = (b"some key".to_vec(), "00ff".to_owned());
        assert_eq!(known.holds, [Hold { key, token }]);
        bytes.extend_from_slice(b"nd\n");
        assert!(!known.read(&mut bytes));
        assert!(known.is_suspended);
        known.learn(b"resume");
        assert_eq!((known.is_suspended, known.done), (false, false));
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
        warden.lease(Duration::from_secs(3_600));
        warden.guard(Group::of(group));
        warden.until(Duration::from_millis(100));
        warden.suspend();
        let (asked, was_asked) = channel();
        let (released, was_released) = channel();
        let (still, over) = channel();
        let over = Arc::new(Mutex::new(over));
        let locks = Silent {
            asked,
            released,
            over,
        };
        spawn(move || _ = watch(read.into(), &reports, locks)).expect("a thread");
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
        spawn(move || {
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
    fn whoever_cannot_find_the_pipe_any_more_does_not_begin() {
        assert!(!tell_of_ourselves(OsStr::new("/proc/0/fd/0")));
        assert!(tell_of_ourselves(OsStr::new("/dev/null")));
    }
}
