//! Patterns with wildcards: how they are read. A name is matched against all patterns at once, by
//! the tree in `subscriptions.rs` (`Subscriptions::matching`).
//!
//! Names and patterns are tokens between dots. `*` stands for exactly one token, `>` for one or
//! more tokens at the end. Empty tokens are tokens like any other.
//!
//! | pattern    | matches                        | does not match               |
//! |------------|--------------------------------|------------------------------|
//! | `job.done` | `job.done`                     | `job`, `job.done.eu`         |
//! | `job.*`    | `job.done`, `job.`             | `job`, `job.done.eu`         |
//! | `*.done`   | `job.done`, `.done`            | `done`, `a.job.done`         |
//! | `job.>`    | `job.done`, `job.done.eu`      | `job`, `jobs.done`           |
//! | `*`        | `job`                          | `job.done`                   |
//! | `>`        | every name                     |                              |
//!
//! A wildcard must be a whole token, and `>` the last one: `fo*`, `x>` and `a.>.b` are refused.
//! Leaders are observed by name, so in the key of an `observe` a star is only a star (`signal.rs`).

/// One token of a pattern, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Exactly this token.
    Token(&'a [u8]),
    /// `*`: any one token.
    Any,
    /// `>`: one token or more, to the end.
    Rest,
}

/// The tokens of a name.
pub(super) fn tokens(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.split(|&byte| byte == b'.')
}

/// The steps of a pattern.
pub(super) fn steps(pattern: &[u8]) -> impl Iterator<Item = Step<'_>> {
    tokens(pattern).map(|token| match token {
        b"*" => Step::Any,
        b">" => Step::Rest,
        token => Step::Token(token),
    })
}

/// Whether wildcards are only where they may be.
pub(super) fn is_valid(pattern: &[u8]) -> bool {
    let mut steps = steps(pattern).peekable();
    while let Some(step) = steps.next() {
        match step {
            Step::Token(token) if token.iter().any(|byte| b"*>".contains(byte)) => return false,
            Step::Rest if steps.peek().is_some() => return false,
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_whole_tokens_and_the_rest_is_last() {
        for good in [
            "a", "a.b", "*", ">", "a.*", "*.*.c", "a.>", "*.>", "", ".", "..", "a..b",
        ] {
            assert!(is_valid(good.as_bytes()), "{good}");
        }
        for bad in [
            "fo*", "*o", "a.>.b", "x>", ">x", "a.b>", ">.>", "a.**", "a.>.", ">.a",
        ] {
            assert!(!is_valid(bad.as_bytes()), "{bad}");
        }
    }
}
