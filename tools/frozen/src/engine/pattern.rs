//! Patterns with wildcards: how they are read, and what they match. All patterns that match a name
//! are found at once by their shapes (`shapes.rs`).
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

/// Whether a valid pattern matches a name.
pub(super) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut at = 0;
    for &byte in pattern {
        match byte {
            b'*' => at += name[at..].iter().take_while(|&&it| it != b'.').count(),
            b'>' => return true, // what follows the last dot is a token, also if it is empty
            _ if name.get(at) == Some(&byte) => at += 1,
            _ => return false,
        }
    }
    at == name.len()
}
