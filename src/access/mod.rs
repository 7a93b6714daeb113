//! Who may do what: the tokens that clients may show, and what each of them gives.
//!
//! `file.rs` reads them from the lines of a file, `secret.rs` compares one. [`Access::find`] compares what somebody shows with every
//! token there is and takes as long whichever it is; [`Pass::may`] says whether somebody who was let in with
//! one may ask for something. Never reads a file, never logs, and nothing here shows a token.

mod file;
mod secret;

use std::fmt;

pub use self::file::{BadLine, FILE_BYTES_MAX, TOKENS_MAX};
use self::secret::Secret;
use crate::sha256::sha256;
use crate::wire::need::{Need, Subject};

/// Longest token: what the argument line of `auth` can carry. A longer one is refused at start,
/// because no client could ever send it.
pub const TOKEN_BYTES_MAX: usize = 65_536;

/// How those are called who come over a unix socket and need no token, before their number. The name of no
/// token begins so.
pub const UID_NAME: &str = "uid:";

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Look.
    Read,
    /// Look, acquire, change.
    Write,
    /// Everything.
    Admin,
}

/// What a token gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    name: Option<Box<str>>,
    role: Role,
    /// Names must begin with one of these; any name if there is none.
    prefixes: Box<[Box<[u8]>]>,
    asker: Asker,
}

/// Identity of the clients with one token, which survives a reload and a restart. Tokens with the
/// same name have the same identity, so that a token can be replaced. One of several tokens without
/// a name is identified by its hash. A single token without a name always has the same identity.
#[derive(Clone, PartialEq, Eq)]
struct Asker(Box<[u8]>);

impl Asker {
    fn named(name: &str) -> Self {
        Self([b"n", name.as_bytes()].concat().into())
    }

    fn unnamed(token: &str) -> Self {
        Self([b"t", &sha256(&[token.as_bytes()])[..16]].concat().into())
    }

    fn only() -> Self {
        Self(b"1"[..].into())
    }
}

/// The hash of a token is never printed.
impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asker")
    }
}

impl Pass {
    /// Whoever has it may do everything.
    #[must_use]
    pub fn admin(name: Option<Box<str>>) -> Self {
        Self {
            asker: name.as_deref().map_or_else(Asker::only, Asker::named),
            name,
            role: Role::Admin,
            prefixes: Box::default(),
        }
    }

    /// What whoever has it is called.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Identity of the clients with this token, for repeated requests.
    #[must_use]
    pub fn asker(&self) -> &[u8] {
        &self.asker.0
    }

    /// Whether there is nothing that it does not give.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.role == Role::Admin
    }

    /// Whether it is enough for a request that needs this, about this.
    #[must_use]
    pub fn may(&self, need: Need, subject: Subject<'_>) -> bool {
        match (need, self.role) {
            (Need::Nothing, _) | (_, Role::Admin) => true,
            (Need::Look, Role::Read | Role::Write) | (Need::Write, Role::Write) => match subject {
                Subject::Nothing => true,
                Subject::Name(name) => self.covers(name),
                Subject::Names(one, other) => self.covers(one) && self.covers(other),
                // All that match begin with what stands before the first wildcard.
                Subject::Pattern(pattern) => {
                    let is_wild = |&byte: &u8| byte == b'*' || byte == b'>';
                    let literal = pattern.iter().position(is_wild).unwrap_or(pattern.len());
                    self.covers(&pattern[..literal])
                }
            },
            (Need::Overview, Role::Read | Role::Write) => self.prefixes.is_empty(),
            (Need::Write, Role::Read) | (Need::Admin, Role::Read | Role::Write) => false,
        }
    }

    fn covers(&self, name: &[u8]) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|it| name.starts_with(it))
    }
}

/// Everybody who is let in, and with what.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The tokens; without one nobody has to show any, and everybody may do everything.
    tokens: Vec<(Secret, Pass)>,
    /// Whoever comes over a unix socket as this user needs none.
    admin_uid: Option<u32>,
}

impl Access {
    /// One token, which gives everything.
    #[must_use]
    pub fn of_one(token: &[u8]) -> Self {
        Self {
            tokens: vec![(Secret::new(token), Pass::admin(None))],
            admin_uid: None,
        }
    }

    /// The same, and this user of the machine needs no token.
    #[must_use]
    pub fn with_admin_uid(mut self, uid: Option<u32>) -> Self {
        self.admin_uid = uid;
        self
    }

    /// Whether a token has to be shown.
    #[must_use]
    pub fn asks_for_token(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// The first of the tokens; to be compared in constant time and never printed.
    #[must_use]
    pub fn first_token(&self) -> &[u8] {
        self.tokens
            .first()
            .map_or(&[], |(token, _)| token.as_bytes())
    }

    /// How long each token is, in characters.
    pub fn token_chars(&self) -> impl Iterator<Item = usize> {
        let tokens = self.tokens.iter();
        tokens.map(|(token, _)| String::from_utf8_lossy(token.as_bytes()).chars().count())
    }

    /// How long the longest of the tokens is.
    #[must_use]
    pub fn token_bytes_max(&self) -> usize {
        let bytes = self.tokens.iter().map(|(token, _)| token.as_bytes().len());
        bytes.max().unwrap_or(0)
    }

    /// What somebody is let in with who shows this, or nothing. Every token is compared, whatever is shown,
    /// so that the time it takes tells nothing about any of them.
    #[must_use]
    pub fn find(&self, shown: Option<&[u8]>) -> Option<&Pass> {
        let mut found = None;
        for (token, pass) in &self.tokens {
            if token.is(shown) {
                found = Some(pass);
            }
        }
        found
    }

    /// Whether this user of the machine is let in without a token, and may do everything.
    #[must_use]
    pub fn is_admin(&self, uid: u32) -> bool {
        self.admin_uid == Some(uid)
    }

    /// Whether some user of the machine is.
    #[must_use]
    pub fn has_admin_uid(&self) -> bool {
        self.admin_uid.is_some()
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passes: Vec<&Pass> = self.tokens.iter().map(|(_, pass)| pass).collect();
        f.debug_struct("Access")
            .field("passes", &passes)
            .field("admin_uid", &self.admin_uid)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(lines: &str) -> Access {
        Access::read(lines).unwrap()
    }

    #[test]
    fn only_a_whole_token_is_right() {
        let one = Access::of_one(b"s3cret");
        assert!(one.find(Some(b"s3cret")).is_some_and(Pass::is_admin));
        for wrong in [&b""[..], b"s3cre", b"s3crets", b"S3CRET"] {
            assert_eq!(one.find(Some(wrong)), None, "{}", wrong.escape_ascii());
        }
        assert_eq!(one.find(None), None);
        assert!(!Access::default().asks_for_token());
        assert_eq!(Access::default().find(Some(b"")), None);
    }

    #[test]
    fn each_token_gives_its_own() {
        let it = access("a1 ann\nb1 bob read\nb2 bob write x.\nc1 read x. y/\n");
        for (token, name, is_admin) in [
            ("a1", Some("ann"), true),
            ("b1", Some("bob"), false),
            ("b2", Some("bob"), false),
            ("c1", None, false),
        ] {
            let pass = it.find(Some(token.as_bytes())).unwrap();
            assert_eq!((pass.name(), pass.is_admin()), (name, is_admin), "{token}");
        }
        assert_eq!(it.find(Some(b"b3")), None);
    }

    #[test]
    fn a_role_and_its_prefixes_decide() {
        let it = access("a admin\nr read\nw write\nrx read x. y/\nwx write x. y/\n");
        let [a, r, w, rx, wx] = ["a", "r", "w", "rx", "wx"].map(|token| {
            let pass = it.find(Some(token.as_bytes()));
            pass.unwrap()
        });
        // need, name; who may: admin, read, write, read with prefixes, write with prefixes
        for (need, name, who_may) in [
            (Need::Nothing, "", [true; 5]),
            (Need::Look, "x.1", [true; 5]),
            (Need::Look, "y/1", [true; 5]),
            (Need::Look, "x", [true, true, true, false, false]),
            (Need::Look, "z", [true, true, true, false, false]),
            (Need::Write, "x.1", [true, false, true, false, true]),
            (Need::Write, "z", [true, false, true, false, false]),
            (Need::Overview, "x.1", [true, true, true, false, false]),
            (Need::Admin, "x.1", [true, false, false, false, false]),
        ] {
            let may = [a, r, w, rx, wx].map(|pass| pass.may(need, Subject::Name(name.as_bytes())));
            assert_eq!(may, who_may, "{need:?} {name}");
        }
    }

    #[test]
    fn a_pattern_lies_under_a_prefix_if_all_that_match_do() {
        let it = access("t read x. y.z\nother admin\n");
        let pass = it.find(Some(b"t")).unwrap();
        for (pattern, may) in [
            ("x.>", true),
            ("x.*", true),
            ("x.a.*.b", true),
            ("x.a", true),
            ("y.z.*", true),
            ("y.zz", true),
            ("x", false),
            ("y.*", false),
            ("*", false),
            (">", false),
            ("*.x.a", false),
            ("", false),
        ] {
            let subject = Subject::Pattern(pattern.as_bytes());
            assert_eq!(pass.may(Need::Look, subject), may, "{pattern}");
        }
    }

    #[test]
    fn no_token_is_shown() {
        let shown = format!("{:?}", access("s3cret ann\ns3crets read x.\n"));
        assert!(shown.contains("ann") && !shown.contains("s3c"), "{shown}");
        assert_eq!(shown.matches("asker: Asker").count(), 2, "{shown}");
    }

    #[test]
    fn a_token_asks_as_its_name_or_as_itself() {
        let asker = |lines: &str, token: &str| {
            let it = access(lines);
            it.find(Some(token.as_bytes())).unwrap().asker().to_owned()
        };
        let several = "a1 ann\na2 ann read\nb1 bob\nc1\nc2\n";
        assert_eq!(asker(several, "a1"), asker(several, "a2"));
        let all = ["a1", "b1", "c1", "c2"].map(|token| asker(several, token));
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), 4, "{all:?}");
        // After a reload.
        assert_eq!(asker("z1 zoe\na9 ann write\n", "a9"), asker(several, "a1"));
        assert_eq!(asker("z1 zoe\nc1 read\n", "c1"), asker(several, "c1"));
        // One token alone, and the next one after it.
        assert_eq!(asker("s3cret\n", "s3cret"), asker("s3cret2\n", "s3cret2"));
        assert!(!all.contains(&asker("c1\n", "c1")));
    }
}
