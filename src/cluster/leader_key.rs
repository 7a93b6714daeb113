//! What stands under the leader's key: who it is, and where clients find it.

use crate::store::Redirect;

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderKey {
    /// Tells this try to lead from every other: drawn by the process, and the number of the lease.
    pub attempt: [u64; 2],
    /// Where it speaks the line protocol.
    pub line: String,
    /// Where it speaks HTTP, as a URL without a path; empty if it does not.
    pub http: String,
}

impl LeaderKey {
    /// Three lines: the try, where lines are spoken, where HTTP is.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self {
            attempt: [process, lease],
            line,
            http,
        } = self;
        format!("{process:016x}-{lease:016x}\n{line}\n{http}\n").into_bytes()
    }

    /// Reads what [`LeaderKey::encode`] wrote; `None` if another program wrote it.
    #[must_use]
    pub fn decode(value: &[u8]) -> Option<Self> {
        let text = str::from_utf8(value).ok()?.strip_suffix('\n')?;
        let mut lines = text.split('\n');
        let (process, lease) = lines.next()?.split_once('-')?;
        let number = |digits: &str| {
            let is_hex = digits.len() == 16 && digits.bytes().all(|it| it.is_ascii_hexdigit());
            is_hex
                .then(|| u64::from_str_radix(digits, 16).ok())
                .flatten()
        };
        let key = Self {
            attempt: [number(process)?, number(lease)?],
            line: lines.next()?.to_owned(),
            http: lines.next()?.to_owned(),
        };
        lines.next().is_none().then_some(key)
    }

    /// Where clients have to go.
    #[must_use]
    pub fn redirect(&self) -> Redirect {
        redirect(&self.line, &self.http)
    }
}

/// Where a member that follows sends clients: to whoever leads, if that is known. Where its own address is named that is of
/// an earlier life, whose lease is not over yet, and whoever were sent there would come back.
pub(super) fn leader_for(own: &Redirect, leader: Option<&LeaderKey>) -> Redirect {
    let leader = leader.map(LeaderKey::redirect);
    leader.filter(|it| it != own).unwrap_or_default()
}

/// Where clients have to go; what is empty is not known.
pub(super) fn redirect(line: &str, http: &str) -> Redirect {
    let known = |text: &str| Some(text.to_owned()).filter(|it| !it.is_empty());
    Redirect {
        line: known(line),
        http: known(http),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_nothing_else_is() {
        let key = LeaderKey {
            attempt: [0xfeed, u64::MAX],
            line: "10.0.0.1:6388".to_owned(),
            http: String::new(),
        };
        let value = key.encode();
        assert_eq!(LeaderKey::decode(&value), Some(key.clone()));
        assert_eq!(key.redirect().line.as_deref(), Some("10.0.0.1:6388"));
        assert_eq!(key.redirect().http, None);
        for other in [&b""[..], b"x", b"1-2\na\nb\n", b"\xff\n\n\n"] {
            assert_eq!(LeaderKey::decode(other), None);
        }
        assert_eq!(leader_for(&Redirect::default(), Some(&key)), key.redirect());
        assert_eq!(leader_for(&key.redirect(), Some(&key)), Redirect::default());
        assert_eq!(leader_for(&key.redirect(), None), Redirect::default());
        let more = [&value[..], b"x\n"].concat();
        assert_eq!(LeaderKey::decode(&more), None);
    }
}
