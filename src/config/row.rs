//! What a row of the table of options consists of.
//!
//! The rows themselves are in `table.rs`. Never reads an argument, a variable or a file itself.

use super::Config;

/// One option.
pub(super) struct Row {
    /// The long name, without dashes.
    pub(super) flag: &'static str,
    /// What `--help` calls the value.
    pub(super) value: &'static str,
    /// How the command line takes the value.
    pub(super) takes: Takes,
    /// The variables that set it: latchd's own name first, then those of dflockd's versions.
    pub(super) env: &'static [&'static str],
    /// The default as one would write it; empty if there is none.
    pub(super) default: &'static str,
    /// Its heading in `--help`. The rows of one group follow each other.
    pub(super) group: &'static str,
    /// What a value must be, as the end of "`x` is not …".
    pub(super) rule: &'static str,
    /// What it does, in a sentence or two.
    pub(super) help: &'static str,
    /// Understands a value and puts it in its place.
    pub(super) set: fn(&mut Config, &str) -> Result<(), Wrong>,
}

impl Row {
    /// Whether this is the token or its file; a variable of such a row must not be set to nothing.
    pub(super) fn is_token(&self) -> bool {
        self.flag.starts_with("auth-token")
    }
}

/// How the command line takes an option's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// `--x` or `--x=no`.
    Switch {
        /// The name of the option that turns it off without a value, if it is on by default.
        negation: Option<&'static str>,
    },
    /// The next word, whatever it is, so that `-5` is reported as a bad number and not as an
    /// unknown option.
    Number,
    /// The next word, unless it begins with a dash: `--x --y` is an error, `--x=-word` is not.
    Word,
    /// Such a word, and all of them count if there are several: they are joined with commas.
    Words,
}

impl Takes {
    pub(super) fn negation(self) -> Option<&'static str> {
        match self {
            Self::Switch { negation } => negation,
            Self::Number | Self::Word | Self::Words => None,
        }
    }
}

/// Why a value was refused.
pub(super) enum Wrong {
    /// It is not what the row's rule asks for.
    Value,
    /// Something the rule cannot say. Never quotes a token.
    Because(String),
    /// It names a file that cannot be used. Never quotes a token.
    File(String),
}
