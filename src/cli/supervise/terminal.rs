//! The terminal and whose turn it is: the command gets the foreground and gives it back.
//!
//! A terminal talks to one process group at a time: that one may read, and is told of Ctrl-C and Ctrl-Z. The command
//! has a group of its own, so that all of it can be ended; so it has to get the terminal from us.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};

use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal of this process.
pub(crate) struct Terminal {
    tty: File,
    /// The group we are in, with the rest of a pipeline or a script.
    ours: Pid,
    /// Settings such as echo, as they were at the start.
    settings: Option<Termios>,
}

impl Terminal {
    /// `None` if there is none: cron, a service, a container.
    pub(crate) fn open() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty");
        let tty = tty.ok()?;
        let settings = tcgetattr(&tty).ok();
        Some(Self {
            tty,
            ours: getpgrp(),
            settings,
        })
    }

    /// Whether a command should have the terminal from the beginning: it is ours to give, and the command is
    /// not part of a pipeline whose other end (`| less`) may want it.
    pub(crate) fn is_for_the_command(&self) -> bool {
        self.is_ours() && io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Whether we are in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == self.ours)
    }

    /// Whether this group is in the foreground.
    pub(crate) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|it| it == group)
    }

    /// Puts a group in the foreground. The signal that this would cause has to be blocked.
    pub(crate) fn give(&self, group: Pid) -> bool {
        tcsetpgrp(&self.tty, group).is_ok()
    }

    /// Puts us in the foreground again, if the command has it. (It may have gone to somebody else:
    /// a shell takes it without asking.)
    pub(crate) fn take_back(&self, from: Pid) -> bool {
        self.is_of(from) && self.give(self.ours)
    }

    /// Echo and the like as they were, after a command that had no chance to do that itself.
    pub(crate) fn reset(&self) {
        if let Some(settings) = &self.settings {
            let _ = tcsetattr(&self.tty, OptionalActions::Drain, settings);
        }
    }
}
