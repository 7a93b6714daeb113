//! Exit codes: how the end of the process tells a supervisor what happened.
//!
//! The numbers are those of BSD's `sysexits.h`. A restart can help after 1, 69, 74 and 75; after 64
//! and 78 somebody has to change something first.

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was told to stop, or printed what it was asked for.
    Success = 0,
    /// Anything that has no code of its own.
    Failure = 1,
    /// The command line or a variable is wrong in itself.
    Usage = 64,
    /// Somebody else listens on the port or on the unix socket.
    InUse = 69,
    /// The data directory cannot be read or written, or is damaged; or standard output cannot be written.
    Storage = 74,
    /// Another daemon uses the data directory.
    DataInUse = 75,
    /// The settings can be read, but not used here or not together.
    Config = 78,
}

impl Exit {
    /// All of them, in ascending order.
    pub const ALL: [Self; 7] = [
        Self::Success,
        Self::Failure,
        Self::Usage,
        Self::InUse,
        Self::Storage,
        Self::DataInUse,
        Self::Config,
    ];

    /// The number that the supervisor sees.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// What it means, for `--help`.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Success => "stopped as it was told to",
            Self::Failure => "failed for another reason, which the log names",
            Self::Usage => "wrong command line or variable: unknown option, bad value",
            Self::InUse => "the port or the unix socket is in use",
            Self::Storage => {
                "the data directory is damaged, cannot be used, or its disk has\n\
                 failed: the log says where, and whether --repair can help;\n\
                 or what was asked for could not be printed"
            }
            Self::DataInUse => "another daemon uses the data directory",
            Self::Config => {
                "settings that cannot be used: configuration file wrong, token or\n\
                 TLS file unreadable, empty or expired, two tokens, no such core,\n\
                 socket path or log file not usable"
            }
        }
    }
}
