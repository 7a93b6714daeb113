//! The secret: shown once per connection, compared in constant time.
//!
//! Never says, by its timing, how much of a guess was right, nor whether it was the command or the
//! secret that was wrong.

use constant_time_eq::constant_time_eq;

use crate::wire::command::{Command, Malformed};

/// Whether the first frame of a connection opens it. Every frame costs one comparison, also one
/// that is malformed or is not `auth` at all.
pub(super) fn opens(secret: &[u8], first: &Result<Command<'_>, Malformed>) -> bool {
    let shown = match first {
        Ok(Command::Auth { secret }) => Some(*secret),
        _ => None,
    };
    is_right(secret, shown)
}

/// Whether what was shown, if anything was, is the secret. Always costs one comparison.
pub(super) fn is_right(secret: &[u8], shown: Option<&[u8]>) -> bool {
    // Of equal length whatever was shown; `constant_time_eq` answers at once on unequal lengths.
    let guess = shown
        .filter(|shown| shown.len() == secret.len())
        .unwrap_or(secret);
    let equal = constant_time_eq(guess, secret);
    equal && shown.is_some_and(|shown| shown.len() == secret.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_opens() {
        let auth = |secret: &'static [u8]| Ok(Command::Auth { secret });
        assert!(opens(b"s3cret", &auth(b"s3cret")));
        for wrong in [&b""[..], b"s3cre", b"s3crets", b"S3CRET"] {
            assert!(!opens(b"s3cret", &auth(wrong)), "{}", wrong.escape_ascii());
        }
        assert!(!opens(b"s3cret", &Ok(Command::Ping)));
        assert!(!opens(b"s3cret", &Err(Malformed::UnknownCommand)));
    }
}
