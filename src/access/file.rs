//! The lines of a file of tokens: `token [name] [read, write or admin] [prefix…]`.
//!
//! A file with one line and without one of the three words in its place holds one token, blanks and all, as
//! it did before there were several. What is wrong is said with the number of its line and never with its
//! text, because a part of a token may stand anywhere.

use std::collections::BTreeSet;
use std::fmt;

use super::secret::Secret;
use super::{Access, Asker, Pass, Role, TOKEN_BYTES_MAX, UID_NAME};

/// Most tokens of one file: each is compared with everything that is shown.
pub const TOKENS_MAX: usize = 256;

/// Longest file.
pub const FILE_BYTES_MAX: usize = 2 * TOKEN_BYTES_MAX;

/// Longest name, as in `hello`.
const NAME_BYTES_MAX: usize = 64;

/// Most prefixes of one token, and the longest: that of a key.
const PREFIXES_MAX: usize = 64;
const PREFIX_BYTES_MAX: usize = 256;

/// What is wrong with a file of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Counted from 1; 0 if it is the file as a whole.
    number: usize,
    why: &'static str,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => f.write_str(self.why),
            number => write!(f, "line {number}: {}", self.why),
        }
    }
}

impl Access {
    /// Reads the lines of a file.
    ///
    /// # Errors
    /// The first line that cannot be used, and why.
    pub fn read(text: &str) -> Result<Self, BadLine> {
        let bad = |number, why| BadLine { number, why };
        if text.len() >= FILE_BYTES_MAX {
            return Err(bad(0, "it is longer than 131071 bytes"));
        }
        let lines = (1..).zip(text.lines());
        let is_entry = |line: &str| !matches!(line.trim_start().chars().next(), None | Some('#'));
        let lines: Vec<_> = lines.filter(|(_, line)| is_entry(line)).collect();
        let (first, more) = match &lines[..] {
            [] if text.trim().is_empty() => {
                return Err(bad(0, "it is empty; it must hold a token"));
            }
            [] => return Err(bad(0, "it holds comments and no token")),
            [first, more @ ..] => (*first, more),
        };
        if more.is_empty() && role_at(&words(first.1)).is_none() {
            let token = first.1.trim_end();
            check_token(token).map_err(|why| bad(first.0, why))?;
            return Ok(Self::of_one(token.as_bytes()));
        }
        if lines.len() > TOKENS_MAX {
            let (number, _) = lines[TOKENS_MAX];
            return Err(bad(number, "there may be 256 tokens, and this is one more"));
        }
        let (mut known, mut tokens) = (BTreeSet::new(), Vec::new());
        for (number, line) in lines {
            let (token, pass) = entry(line).map_err(|why| bad(number, why))?;
            if !known.insert(token) {
                return Err(bad(number, "this token stands on an earlier line, too"));
            }
            tokens.push((Secret::new(token.as_bytes()), pass));
        }
        let admin_uid = None;
        Ok(Self { tokens, admin_uid })
    }
}

/// The words of a line.
fn words(line: &str) -> Vec<&str> {
    line.split_ascii_whitespace().collect()
}

/// Where among the words of a line the role stands: second, or third behind a name.
fn role_at(words: &[&str]) -> Option<(usize, Role)> {
    let places = words.iter().enumerate().skip(1).take(2);
    { places }.find_map(|(at, word)| Some((at, role(word)?)))
}

fn role(word: &str) -> Option<Role> {
    match word {
        "read" => Some(Role::Read),
        "write" => Some(Role::Write),
        "admin" => Some(Role::Admin),
        _ => None,
    }
}

fn entry(line: &str) -> Result<(&str, Pass), &'static str> {
    if line.starts_with([' ', '\t']) {
        return Err("it begins with a blank");
    }
    let words = words(line);
    let (at, role) = match role_at(&words) {
        Some(found) => found,
        // Without a role, a token gives everything; behind a name only a role can stand.
        None if words.len() <= 2 => (words.len(), Role::Admin),
        None => return Err("its third word is not read, write or admin"),
    };
    let token = words[0];
    check_token(token)?;
    let name = (at == 2).then(|| words[1]);
    if let Some(name) = name
        && !(name.len() <= NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        return Err("its name is not 1 to 64 printable characters of ASCII");
    }
    if name.is_some_and(|name| name.starts_with(UID_NAME)) {
        return Err("its name begins with uid:, as those of users of this machine do");
    }
    let prefixes = words.get(at + 1..).unwrap_or_default();
    if role == Role::Admin && !prefixes.is_empty() {
        return Err("an admin may do everything: leave its prefixes out, or write read or write");
    }
    if prefixes.len() > PREFIXES_MAX || prefixes.iter().any(|it| it.len() > PREFIX_BYTES_MAX) {
        return Err("it has more than 64 prefixes, or one that is longer than 256 bytes");
    }
    let pass = Pass {
        asker: name.map_or_else(|| Asker::unnamed(token), Asker::named),
        name: name.map(Into::into),
        role,
        prefixes: prefixes.iter().map(|it| it.as_bytes().into()).collect(),
    };
    Ok((token, pass))
}

/// Whether a client could send this: one line of printable text.
pub(super) fn check_token(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        Err("the token is empty")
    } else if text.trim() != text {
        Err("the token begins or ends with a blank, which clients cannot send")
    } else if text.chars().any(char::is_control) {
        Err("the token contains a control byte, which clients cannot send")
    } else if text.len() > TOKEN_BYTES_MAX {
        Err("the token is longer than 65536 bytes, which clients cannot send")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::need::{Need, Subject};

    fn tokens(text: &str) -> Vec<(String, Pass)> {
        let access = Access::read(text).unwrap();
        let told = |(token, pass): &(Secret, Pass)| {
            let token = String::from_utf8(token.as_bytes().to_vec()).unwrap();
            (token, pass.clone())
        };
        access.tokens.iter().map(told).collect()
    }

    #[test]
    fn one_token_alone_on_one_line_gives_everything_blanks_and_all() {
        for (text, token) in [
            ("s3cret", "s3cret"),
            ("s3cret\n", "s3cret"),
            ("from a file \r\n\n", "from a file"),
            (
                "# of the house\n\ns3cret of the house\n",
                "s3cret of the house",
            ),
            ("two words", "two words"),
            ("and a role too late read", "and a role too late read"),
            ("read", "read"),
        ] {
            let told = tokens(text);
            let want = [(token.to_owned(), Pass::admin(None))];
            assert_eq!(told, want, "{text:?}");
        }
    }

    #[test]
    fn a_line_is_a_token_a_name_a_role_and_prefixes() {
        let text = "# tokens\n\
                    a1\n\
                    \n\
                    b1 bob\r\n\
                    \u{20} # indented\n\
                    c1 read\n\
                    d1\tdan  write\tx. y/\n\
                    e1 eve admin\n\
                    read read read\n";
        let told = tokens(text);
        let shown: Vec<(&str, Option<&str>, Role, usize)> = told
            .iter()
            .map(|(token, it)| (token.as_str(), it.name(), it.role, it.prefixes.len()))
            .collect();
        assert_eq!(
            shown,
            [
                ("a1", None, Role::Admin, 0),
                ("b1", Some("bob"), Role::Admin, 0),
                ("c1", None, Role::Read, 0),
                ("d1", Some("dan"), Role::Write, 2),
                ("e1", Some("eve"), Role::Admin, 0),
                // The second word is a role, so this one has no name, and a prefix.
                ("read", None, Role::Read, 1),
            ]
        );
        let dan = &told[3].1;
        assert!(dan.may(Need::Write, Subject::Name(b"y/1")));
        // One line is enough, if it has a role.
        assert_eq!(tokens("d1 dan write x. y/")[0], told[3]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_without_its_text() {
        let long_name = format!("a\ns3cret {} read\n", "n".repeat(65));
        let long_prefix = format!("a\ns3cret read {}\n", "p".repeat(257));
        let prefixes = format!("a\ns3cret read{}\n", " p".repeat(65));
        let many = (0..257).map(|n| format!("t{n}\n")).collect::<String>();
        let long = format!("a\n{} read\n", "x".repeat(65_537));
        for (text, says) in [
            ("", "it is empty; it must hold a token"),
            (" \n\n", "it is empty; it must hold a token"),
            ("# s3cret\n", "it holds comments and no token"),
            (
                " s3cret",
                "line 1: the token begins or ends with a blank, which clients cannot send",
            ),
            (
                "s3\0cret",
                "line 1: the token contains a control byte, which clients cannot send",
            ),
            ("a\n\n s3cret\n", "line 3: it begins with a blank"),
            (
                "a\ns3cret my read-only\n",
                "line 2: its third word is not read, write or admin",
            ),
            (
                "a\ns3cret x. write y.\n# \ns3cret of mine\n",
                "line 4: its third word is not read, write or admin",
            ),
            (
                "s3cret\n# a\ns3cret read\n",
                "line 3: this token stands on an earlier line, too",
            ),
            (
                "s3cret ann admin x.\n",
                "line 1: an admin may do everything: leave its prefixes out, or write read or write",
            ),
            (
                "a\ns3cret \u{e9}ve read\n",
                "line 2: its name is not 1 to 64 printable characters of ASCII",
            ),
            (
                "a\ns3cret uid:0\n",
                "line 2: its name begins with uid:, as those of users of this machine do",
            ),
            (
                "a\ns3\u{7f}cret read\n",
                "line 2: the token contains a control byte, which clients cannot send",
            ),
            (
                &long_name,
                "line 2: its name is not 1 to 64 printable characters of ASCII",
            ),
            (
                &long_prefix,
                "line 2: it has more than 64 prefixes, or one that is longer than 256 bytes",
            ),
            (
                &prefixes,
                "line 2: it has more than 64 prefixes, or one that is longer than 256 bytes",
            ),
            (
                &many,
                "line 257: there may be 256 tokens, and this is one more",
            ),
            (
                &long,
                "line 2: the token is longer than 65536 bytes, which clients cannot send",
            ),
            (
                &"y".repeat(FILE_BYTES_MAX),
                "it is longer than 131071 bytes",
            ),
        ] {
            let why = Access::read(text).unwrap_err().to_string();
            assert_eq!(why, says, "{text:.40?}");
        }
        assert_eq!(tokens(&many[..many.len() - 5]).len(), TOKENS_MAX);
    }
}
