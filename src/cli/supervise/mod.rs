//! Runs a command and looks after it: flock(1)'s contract, with a lease.
//!
//! - **Its end is ours**: its exit code, or the signal that ended it.
//! - **Signals** that we get it gets. What ends or hangs up goes to its whole process group, as from a terminal;
//!   what only a program itself can understand (`SIGUSR1`) goes to the command alone.
//! - **The terminal** is the command's while it runs; Ctrl-Z stops both of us, and `fg` continues both.
//! - **No process stays behind**: processes left in the command's process group when the command ends are ended, and
//!   if we are killed, all of the group is (`trampoline`, `warden`). The lock is held while a process of it lives.
//! - **The lease**: the group is told to end before it is over, and is killed when it is.
//! - **Another user's processes** (sudo, su) get no signal of ours. They are waited for, and we say so.
//!
//! Knows nothing of locks but how long one is had. One thread waits for everything at once; standard input, output and
//! error are not touched.

mod group;
pub(crate) mod signals;
pub(crate) mod task;
pub(crate) mod terminal;
pub(crate) mod trampoline;
pub(crate) mod warden;

use std::ffi::OsString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, WaitOptions, WaitStatus, kill_process, set_child_subreaper, wait, waitpid,
};

use self::group::{Group, Members};
use self::signals::{Signals, rustix_signal};
use self::terminal::Terminal;
use self::warden::{LOOK_EVERY, Warden, poll_until, timespec};
use super::exit::{Exit, Fail};
use crate::uptime::uptime;

/// How long after a lock could not be had back that is tried again, unless a signal comes first.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How often a group that has to end is killed again.
const KILL_EVERY: Duration = Duration::from_secs(1);

/// A command that is to be run.
pub(crate) struct Job<'a> {
    pub(crate) command: &'a [OsString],
    /// What it has in its environment besides what we have; `None` is what it has not.
    pub(crate) env: &'a [(&'static str, Option<OsString>)],
    /// A descriptor that it inherits besides the first three.
    pub(crate) inherits: Option<OwnedFd>,
    /// How long it has between being told to end and being killed.
    pub(crate) kill_after: Duration,
    /// The length of the lease, if there is one.
    pub(crate) lease: Option<Duration>,
    pub(crate) warden: Arc<Warden>,
}

/// How it is with the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is held, at least for so long from now; `None` is until it is let go.
    Held(Option<Duration>),
    /// It is not.
    Lost,
}

/// The lock that a command runs under.
pub(crate) trait Lock {
    /// How it is now, by the clock of this machine.
    fn standing(&mut self) -> Standing;
    /// Readable when something has happened to it, if anything can.
    fn news(&self) -> Option<BorrowedFd<'_>>;
    /// We are about to be stopped: from now on somebody else looks after it.
    fn suspend(&mut self);
    /// We are continued: looks after it again, and says how it is; `None` if nobody can say that now, so that it has to
    /// be tried again. The command is stopped meanwhile.
    fn resume(&mut self) -> Option<Standing>;
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself.
    Exited(u8),
    /// By a signal.
    Killed {
        /// Which one.
        signal: i32,
        /// It was in the foreground, so that it may have come from the keyboard.
        foreground: bool,
    },
    /// The lock was lost, and so the command was ended.
    Lost,
    /// The lock was lost, and the command could not be ended, as it ran as another user. It has ended by itself.
    Outlived,
}

impl Ended {
    pub(crate) fn is_lost(self) -> bool {
        matches!(self, Self::Lost | Self::Outlived)
    }

    /// What became of the command when the lock was lost, behind why it was.
    pub(crate) fn fate(self) -> &'static str {
        match self {
            Self::Outlived => ". The command ran as another user and could not be ended",
            _ => ". The command was ended",
        }
    }

    /// The exit code, after all is done. A command that was ended from the keyboard ends us and whoever runs us the
    /// same way: a script does not go on after Ctrl-C because we have had the keyboard.
    pub(crate) fn exit(self, signals: &mut Signals) -> Exit {
        match self {
            Self::Exited(code) => Exit(code),
            Self::Lost | Self::Outlived => Exit::LOST,
            Self::Killed { signal, foreground } => {
                let keyboard = [Signal::SIGINT, Signal::SIGQUIT].into_iter();
                let mut same = keyboard.filter(|it| *it as i32 == signal);
                if let Some(signal) = same.next().filter(|_| foreground) {
                    forbid_core_file();
                    signals.suffer(signal);
                }
                Exit::signal(signal)
            }
        }
    }
}

/// Ours would tell nothing, and overwrite the command's.
fn forbid_core_file() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, limit);
}

/// Runs it to its end. `lock` is asked again and again whether the command may go on.
pub(crate) fn supervise(
    job: Job<'_>,
    signals: &mut Signals,
    lock: &mut dyn Lock,
) -> Result<Ended, Fail> {
    // Children that lose their parent become ours, so that we know when the last one of the group is gone.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
    let terminal = Terminal::open();
    let foreground = terminal.as_ref().is_some_and(Terminal::is_for_the_command);
    let warden = job.warden;
    // Before there is anything that must not outlive the lease.
    if let Some(lease) = job.lease {
        warden.lease(lease);
    }
    if let Standing::Held(Some(left)) = lock.standing() {
        warden.until(left);
    }
    let child = trampoline::start(job.command, job.env, job.inherits, foreground, &warden)?;
    let group = Group::of(Pid::from_child(&child));
    let mut running = Running {
        group,
        command: group.leader(),
        terminal,
        kill_after: job.kill_after,
        lease: job.lease,
        warden,
        warden_until: Duration::ZERO,
        phase: Phase::Running,
        lost: false,
        is_out_of_reach: false,
        end: None,
    };
    running.warden.guard(group);
    let ended = running.watch(signals, lock);
    if let Some(terminal) = &running.terminal {
        terminal.take_back(running.command);
        if running.lost {
            terminal.reset(); // whatever it had made of it, it had no chance to undo it
        }
    }
    // The warden may have renewed a lock that was lost here. At EOF it releases that by its token.
    if ended != Ended::Outlived {
        running.warden.dismiss();
    }
    Ok(ended)
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has not begun.
    Running,
    /// The group was told, and is killed at this time.
    Told { kill_at: Duration },
    /// The group was killed.
    Killed,
}

struct Running {
    group: Group,
    /// The leader of the group.
    command: Pid,
    terminal: Option<Terminal>,
    kill_after: Duration,
    lease: Option<Duration>,
    warden: Arc<Warden>,
    /// What the warden was told last.
    warden_until: Duration,
    phase: Phase,
    /// The end began because of the lock.
    lost: bool,
    /// A process of the group runs as another user; that was said.
    is_out_of_reach: bool,
    /// How the command ended. Others of its group may be left.
    end: Option<Ended>,
}

impl Running {
    fn watch(&mut self, signals: &mut Signals, lock: &mut dyn Lock) -> Ended {
        loop {
            let standing = lock.standing();
            let wake = self.look(standing, uptime());
            self.collect(signals, lock);
            let left = match self.end {
                Some(_) => self.group.members(),
                None => Members::Living(self.command),
            };
            if let (Some(ended), Members::Gone) = (self.end, left) {
                return match (self.lost, self.is_out_of_reach) {
                    (true, false) => Ended::Lost,
                    (true, true) => Ended::Outlived,
                    (false, _) => ended,
                };
            }
            if self.end.is_some() && self.phase == Phase::Running {
                self.tell_to_end(uptime().saturating_add(self.kill_after));
                continue;
            }
            // A process whose parent is another one ends without a signal to us.
            let end = self.end.and_then(|_| left.end());
            let must_look = self.end.is_some() && end.is_none();
            let look_at = must_look.then(|| uptime().saturating_add(LOOK_EVERY));
            let wake = [wake, look_at].into_iter().flatten().min();
            let mut events = vec![PollFd::new(&*signals, PollFlags::IN)];
            let news = lock.news();
            events.extend(news.as_ref().map(|it| PollFd::new(it, PollFlags::IN)));
            events.extend(end.as_ref().map(|it| PollFd::new(it, PollFlags::IN)));
            poll_until(&mut events, wake);
            while let Some(signal) = signals.next() {
                self.heard(signal);
            }
        }
    }

    /// What the lock means for the command. Says when to look again, whatever happens.
    fn look(&mut self, standing: Standing, now: Duration) -> Option<Duration> {
        let end_of_lease = match standing {
            Standing::Held(None) => None,
            Standing::Held(Some(left)) => Some(now.saturating_add(left)),
            Standing::Lost => Some(now),
        };
        let mut wake = None;
        if let Some(over) = end_of_lease {
            // As long as the command may need to end, so that it has ended when the lease is over.
            let notice = self.kill_after.min(self.lease.unwrap_or_default() / 2);
            let tell_at = over.saturating_sub(notice);
            if self.phase == Phase::Running && standing == Standing::Lost {
                self.lost = true;
                self.tell_to_end(now.saturating_add(self.kill_after));
            } else if self.phase == Phase::Running && tell_at <= now {
                self.lost = true;
                self.tell_to_end(over.saturating_sub(notice / 8));
            }
            if standing != Standing::Lost {
                self.inform_warden(over, now);
                // The lock is renewed meanwhile, by others of us, and the warden wants to know.
                let beat = self.lease.unwrap_or_default() / 6;
                wake = Some(tell_at.max(now).min(now.saturating_add(beat)));
            }
        }
        if let (Phase::Told { kill_at }, Some(over)) = (self.phase, end_of_lease)
            && standing != Standing::Lost
        {
            self.phase = Phase::Told {
                kill_at: kill_at.min(over.max(now)), // in no case later than the lease
            };
        }
        match self.phase {
            Phase::Told { kill_at } if kill_at > now => {
                Some(wake.map_or(kill_at, |wake| wake.min(kill_at)))
            }
            Phase::Told { .. } | Phase::Killed => {
                // Again and again: processes may join the group for as long as one of it lives.
                self.send_all(Signal::SIGKILL);
                self.phase = Phase::Killed;
                let again = now.saturating_add(KILL_EVERY);
                Some(wake.map_or(again, |wake| wake.min(again)))
            }
            Phase::Running => wake,
        }
    }

    fn inform_warden(&mut self, over: Duration, now: Duration) {
        // What was said in a moment that is the same but for how long it took to say it needs no repeating.
        if over.abs_diff(self.warden_until) > Duration::from_millis(1) {
            self.warden_until = over;
            self.warden.until(over.saturating_sub(now));
        }
    }

    /// Everybody in the group, also those that are stopped.
    fn tell_to_end(&mut self, kill_at: Duration) {
        self.send_all(Signal::SIGTERM);
        self.send_all(Signal::SIGCONT);
        self.phase = Phase::Told { kill_at };
    }

    fn send_all(&mut self, signal: Signal) {
        if let Some(signal) = rustix_signal(signal) {
            self.group.send(signal);
        }
        if self.is_out_of_reach || matches!(signal, Signal::SIGCONT | Signal::SIGTSTP) {
            return;
        }
        if let Some(process) = self.group.out_of_reach() {
            let fate = match self.lease {
                Some(_) if self.lost => {
                    "the lock is lost, and another client may hold it before that process ends"
                }
                Some(_) => "the lock is renewed until it ends, while the server answers",
                None => "the file stays locked until it ends",
            };
            warden::say(&format!(
                "{process} of the command gets no signal of latch, as it runs as another user; {fate}"
            ));
            self.is_out_of_reach = true;
        }
    }

    /// A signal that we got.
    fn heard(&mut self, signal: Signal) {
        match signal {
            // What is to be known of children is asked for in `collect`; a terminal tells its group of its size.
            Signal::SIGCHLD | Signal::SIGWINCH => {}
            Signal::SIGHUP
            | Signal::SIGINT
            | Signal::SIGQUIT
            | Signal::SIGTERM
            | Signal::SIGTSTP
            | Signal::SIGCONT => self.send_all(signal),
            signal => {
                if let (None, Some(signal)) = (self.end, rustix_signal(signal)) {
                    let _ = kill_process(self.command, signal);
                }
            }
        }
    }

    /// What has become of our children: the command, the warden, and those that the command has left.
    fn collect(&mut self, signals: &mut Signals, lock: &mut dyn Lock) {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        loop {
            match wait(options) {
                Ok(Some((pid, status))) if pid == self.command && self.end.is_none() => {
                    self.changed(status, signals, lock);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn changed(&mut self, status: WaitStatus, signals: &mut Signals, lock: &mut dyn Lock) {
        if let Some(code) = status.exit_status() {
            self.end = Some(Ended::Exited(code as u8));
        } else if let Some(signal) = status.terminating_signal() {
            let foreground = self.has_terminal();
            self.end = Some(Ended::Killed { signal, foreground });
        } else if let Some(Ok(signal)) = status.stopping_signal().map(Signal::try_from) {
            self.stopped(signal, signals, lock);
        }
    }

    fn has_terminal(&self) -> bool {
        self.terminal
            .as_ref()
            .is_some_and(|it| it.is_of(self.command))
    }

    /// The command was stopped: by the keyboard, by wanting a terminal that it does not have, or by somebody who knows
    /// what that is for.
    fn stopped(&mut self, signal: Signal, signals: &mut Signals, lock: &mut dyn Lock) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        match signal {
            Signal::SIGTTIN | Signal::SIGTTOU if terminal.is_ours() => {
                terminal.give(self.command);
                return self.send_all(Signal::SIGCONT);
            }
            Signal::SIGTTIN | Signal::SIGTTOU | Signal::SIGTSTP => {}
            _ => return,
        }
        if self.phase != Phase::Running {
            return self.send_all(Signal::SIGCONT); // it is to end, not to rest
        }
        terminal.take_back(self.command);
        lock.suspend();
        if self.lease.is_some() {
            self.warden.suspend();
        }
        let continued = signals.suffer(signal);
        let standing = self.have_back(signals, lock);
        self.warden.resume();
        self.warden_until = Duration::ZERO;
        if !matches!(standing, Some(Standing::Held(_))) {
            // It does not run on for a moment, not even to hear that it should end.
            self.lost = standing.is_some();
            self.send_all(Signal::SIGKILL);
            self.phase = Phase::Killed;
            return;
        }
        if let Some(terminal) = &self.terminal
            && terminal.is_ours()
        {
            terminal.give(self.command);
        } else if !continued && signal != Signal::SIGTSTP {
            return; // nobody can stop us, and it cannot have what it wants: it stays as it is
        }
        self.send_all(Signal::SIGCONT);
    }

    /// Looks after the lock again. While nobody can say how it is with it, the command stays stopped, and the lock
    /// is the warden's, which renews it if that can be done and otherwise kills the group when the lease is over. `None` if
    /// we are told to end before that is known: whoever may not run on cannot be asked to. The same if somebody else has
    /// ended the command.
    fn have_back(&mut self, signals: &mut Signals, lock: &mut dyn Lock) -> Option<Standing> {
        let mut began = uptime();
        loop {
            if let Some(standing) = lock.resume() {
                return Some(standing);
            }
            // Whatever the warden was promised before we were continued is over then. It may have been killed.
            let is_over = |lease| uptime().saturating_sub(began) >= lease;
            if self.has_been_killed() {
                // By the warden, or by somebody who has nothing to do with the lock.
                return self.warden.has_killed().then_some(Standing::Lost);
            }
            if self.lease.is_none_or(is_over) {
                return Some(Standing::Lost);
            }
            let pause = timespec(TRY_AGAIN_AFTER);
            let _ = poll(&mut [PollFd::new(&*signals, PollFlags::IN)], Some(&pause));
            while let Some(signal) = signals.next() {
                match signal {
                    Signal::SIGTSTP => {
                        lock.suspend(); // some of several may be ours again
                        signals.suffer(signal);
                        began = uptime();
                    }
                    Signal::SIGHUP | Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTERM => {
                        return None;
                    }
                    Signal::SIGCONT => {} // it is not for the command yet
                    signal => self.heard(signal),
                }
            }
        }
    }

    /// Whether the command, which is stopped, is gone, as it is when the warden has killed it.
    fn has_been_killed(&mut self) -> bool {
        if let Ok(Some((_, status))) = waitpid(Some(self.command), WaitOptions::NOHANG) {
            let signal = status.terminating_signal().unwrap_or_default();
            let foreground = false; // it is not the command's yet
            self.end = Some(Ended::Killed { signal, foreground });
        }
        self.end.is_some()
    }
}
