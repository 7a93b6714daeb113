//! The process group of a command: whether a process of it lives, and which of them no signal of ours reaches.
//!
//! The group itself decides. `kill(-group, 0)` fails with ESRCH only when the group is gone; EPERM says
//! that its processes run as another user (sudo, su, any setuid program). Zombies keep a group in
//! existence and run nothing, so `/proc` is asked which processes live.
//!
//! Never waits, and never decides what becomes of the lock.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, geteuid, kill_process_group, pidfd_open, test_kill_process,
    test_kill_process_group,
};

use crate::cli::output::escaped;

/// A group, by its leader's process id and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    leader: Pid,
    /// In ticks since the machine was started; 0 if it could not be read.
    started: u64,
}

/// What is left of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    /// No process of the group lives. Zombies may be left.
    Gone,
    /// This process lives, and perhaps others.
    Living(Pid),
    /// The group exists, and `/proc` does not show all processes, so it counts as living.
    Hidden,
}

impl Members {
    /// Readable when the process that was found has ended; `None` if that has to be looked at again and again.
    pub(crate) fn end(self) -> Option<OwnedFd> {
        match self {
            Self::Living(process) => pidfd_open(process, PidfdFlags::empty()).ok(),
            Self::Gone | Self::Hidden => None,
        }
    }
}

impl Group {
    /// The group that this process leads, or is about to lead.
    pub(crate) fn of(leader: Pid) -> Self {
        let started = start_time(leader).unwrap_or(0);
        Self { leader, started }
    }

    pub(crate) fn leader(self) -> Pid {
        self.leader
    }

    /// Both fields as words, for another process.
    pub(crate) fn words(self) -> String {
        format!("{} {}", self.leader.as_raw_pid(), self.started)
    }

    pub(crate) fn parse(leader: &str, started: &str) -> Option<Self> {
        let leader = leader.parse().ok().filter(|it| *it > 0);
        Some(Self {
            leader: leader.and_then(Pid::from_raw)?,
            started: started.parse().ok()?,
        })
    }

    /// Signals every process of the group that runs as this user.
    pub(crate) fn send(self, signal: Signal) {
        if self.is_same() {
            let _ = kill_process_group(self.leader, signal); // it may be gone
        }
    }

    /// Which processes live. Costs one system call if the group is gone, and a walk through `/proc` otherwise.
    pub(crate) fn members(self) -> Members {
        let is_gone = || test_kill_process_group(self.leader) == Err(Errno::SRCH);
        if !self.is_same() || is_gone() {
            return Members::Gone;
        }
        // A process that forks and ends during the walk may hide its child from it. Hardly twice.
        match self.find(|_| true) {
            Members::Gone => self.find(|_| true),
            found => found,
        }
    }

    /// A living process that no signal of ours reaches, for people to read.
    pub(crate) fn out_of_reach(self) -> Option<String> {
        let is_refused = |process| test_kill_process(process) == Err(Errno::PERM);
        match self.find(is_refused) {
            Members::Living(process) => {
                let number = process.as_raw_pid();
                let name = fs::read(format!("/proc/{number}/comm")).unwrap_or_default();
                Some(format!("process {number} ({})", escaped(name.trim_ascii())))
            }
            Members::Hidden if test_kill_process_group(self.leader) == Err(Errno::PERM) => {
                Some(format!("process group {}", self.leader.as_raw_pid()))
            }
            Members::Gone | Members::Hidden => None,
        }
    }

    /// Whether the number still belongs to this group. While a group exists its number is not reused; so if no
    /// process has it, the number belongs to this group or to none.
    fn is_same(self) -> bool {
        self.started == 0 || start_time(self.leader).is_none_or(|it| it == self.started)
    }

    /// A living process of the group that is wanted.
    fn find(self, is_wanted: impl Fn(Pid) -> bool) -> Members {
        let Ok(processes) = fs::read_dir("/proc") else {
            return Members::Hidden;
        };
        let processes = processes.flatten().filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Pid::from_raw(number)
        });
        let number = self.leader.as_raw_pid().to_string();
        let mut living = processes.filter(|process| {
            let stat = stat(*process).unwrap_or_default();
            field(&stat, 2) == Some(&number) && is_living(&stat) && is_wanted(*process)
        });
        match living.next() {
            Some(process) => Members::Living(process),
            None if hides_processes() => Members::Hidden,
            None => Members::Gone,
        }
    }
}

/// Whether a process runs, by its line of `stat`. A first thread that has ended makes its process look like a
/// zombie while other threads run on.
fn is_living(stat: &str) -> bool {
    let is_zombie = matches!(field(stat, 0), Some("Z" | "X"));
    let threads = field(stat, 17).and_then(|it| it.parse::<u64>().ok());
    !is_zombie || threads.is_some_and(|it| it > 1)
}

/// What the system tells of a process in one line.
fn stat(process: Pid) -> Option<String> {
    fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).ok()
}

/// A field behind the name, which may hold blanks and parentheses: 0 is the state.
fn field(stat: &str, number: usize) -> Option<&str> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(number)
}

/// When a process was started, in ticks since the machine was.
fn start_time(process: Pid) -> Option<u64> {
    field(&stat(process)?, 19)?.parse().ok()
}

/// Whether `/proc` may tell nothing of other users' processes (its mount option `hidepid`).
fn hides_processes() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let is_hiding = |line: &str| {
        let mut words = line.split(' ');
        words.nth(1) == Some("/proc") && line.contains("hidepid=")
    };
    !geteuid().is_root() && mounts.lines().any(is_hiding)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn start(script: &str) -> (std::process::Child, Group) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        let child = command.stdin(Stdio::piped()).spawn().expect("sh starts");
        let group = Group::of(Pid::from_child(&child));
        (child, group)
    }

    #[test]
    fn living_processes_are_told_from_zombies_and_from_a_group_that_is_gone() {
        let (mut child, group) = start("read line");
        let members = group.members();
        assert_eq!(members, Members::Living(group.leader()));
        assert_eq!(group.out_of_reach(), None, "it runs as this user");
        let end = members.end().expect("a descriptor of the process");
        drop(child.stdin.take());
        let ended = poll(&mut [PollFd::new(&end, PollFlags::IN)], None);
        assert_eq!(ended, Ok(1));
        assert_eq!(group.members(), Members::Gone, "a zombie is left");
        child.wait().expect("it is our child");
        assert_eq!(group.members(), Members::Gone);
    }

    /// The system does not reuse a number while its group exists.
    #[test]
    fn group_whose_number_is_reused_is_gone() {
        let (mut child, group) = start("read line");
        let leader = group.leader();
        assert_eq!(group.members(), Members::Living(leader));
        let started = group.started + 1;
        assert_eq!(Group { leader, started }.members(), Members::Gone);
        let started = 0; // it could not be read
        let unknown = Group { leader, started };
        assert_eq!(unknown.members(), Members::Living(leader));
        drop(child.stdin.take());
        child.wait().expect("it is our child");
    }

    #[test]
    fn process_lives_while_one_of_its_threads_does() {
        let stat = |state: &str, threads: u32| {
            format!("7 (a) Z b) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 99 0")
        };
        assert!(is_living(&stat("S", 1)));
        assert!(is_living(&stat("Z", 2)));
        assert!(!is_living(&stat("Z", 1)));
        assert!(!is_living(&stat("X", 0)));
        assert_eq!(field(&stat("S", 1), 19), Some("99"));
    }

    #[test]
    fn words_are_read_back() {
        let group = Group::of(rustix::process::getpid());
        let words = group.words();
        let (leader, started) = words.split_once(' ').expect("two words");
        assert_eq!(Group::parse(leader, started), Some(group));
        for (leader, started) in [("", ""), ("0", "1"), ("-1", "1"), ("x", "1"), ("1", "x")] {
            assert_eq!(Group::parse(leader, started), None, "{leader} {started}");
        }
    }
}
