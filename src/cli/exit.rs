//! How `latch` ends: one exit code for each kind of news, and errors that say what, where and what to do.
//!
//! Never prints and never exits; `cli::main` does both.

use std::fmt;

/// What a shell sees in `$?`. A command that was run has codes of its own, which are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const OK: Self = Self(0);
    /// Somebody else has it, the wait was over, or nothing was there.
    pub(crate) const CONFLICT: Self = Self(1);
    /// The command line is wrong.
    pub(crate) const USAGE: Self = Self(64);
    /// A file cannot be opened.
    pub(crate) const CANNOT_OPEN: Self = Self(66);
    /// There is no server, or none that answers.
    pub(crate) const UNREACHABLE: Self = Self(69);
    /// Something went wrong here: no more processes, no more memory, a server that talks nonsense.
    pub(crate) const SOFTWARE: Self = Self(70);
    /// The output cannot be written.
    pub(crate) const CANNOT_WRITE: Self = Self(74);
    /// The server does not want to: a limit is reached, or the key is of another kind.
    pub(crate) const REFUSED: Self = Self(75);
    /// The server wants a token, or another one.
    pub(crate) const AUTH: Self = Self(77);
    /// The lock was lost while the command ran, and the command was ended.
    pub(crate) const LOST: Self = Self(79);
    /// The command is there and cannot be run.
    pub(crate) const NOT_EXECUTABLE: Self = Self(126);
    /// There is no such command.
    pub(crate) const NO_COMMAND: Self = Self(127);

    /// Ended by a signal, as shells tell it.
    pub(crate) fn signal(number: i32) -> Self {
        Self(u8::try_from(128_i32.saturating_add(number)).unwrap_or(u8::MAX))
    }
}

/// Why a command did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fail {
    pub(crate) exit: Exit,
    /// What happened, where, and what to do about it: one line. Empty if the exit code says it all.
    pub(crate) message: String,
}

impl Fail {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { exit, message }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::USAGE, message)
    }

    /// Something of the system's that is nobody's fault: no more processes, no more memory.
    pub(crate) fn system(doing: &str, error: impl fmt::Display) -> Self {
        Self::new(Exit::SOFTWARE, format!("cannot {doing}: {error}"))
    }

    /// What was printed could not be.
    pub(crate) fn output(error: &std::io::Error) -> Self {
        match error.kind() {
            // Whoever read it has seen enough (`latch ls | head`).
            std::io::ErrorKind::BrokenPipe => Self::new(Exit::OK, ""),
            _ => Self::new(
                Exit::CANNOT_WRITE,
                format!("cannot write to standard output: {error}"),
            ),
        }
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_told_as_shells_do() {
        assert_eq!(Exit::signal(2), Exit(130));
        assert_eq!(Exit::signal(9), Exit(137));
        assert_eq!(Exit::signal(i32::MAX), Exit(255));
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_error() {
        let fail = Fail::output(&std::io::ErrorKind::BrokenPipe.into());
        assert_eq!((fail.exit, fail.message.as_str()), (Exit::OK, ""));
        let fail = Fail::output(&std::io::ErrorKind::StorageFull.into());
        assert_eq!(fail.exit, Exit::CANNOT_WRITE);
    }
}
