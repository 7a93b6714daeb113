//! Names and patterns of names, in tokens between dots.
//!
//! `*` stands for exactly one token, `>` for one or more at the end. Either must be a whole token:
//! `fo*`, `a.>.b` and `x>` are no patterns. Empty tokens are tokens like any other.

/// One step of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// This token.
    Token(&'a [u8]),
    /// Any one token.
    Any,
    /// One token or more, to the end.
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

/// Whether wildcards stand only where they may.
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
