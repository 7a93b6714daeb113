//! The lines of a file of tokens: `token [name] [read, write or admin] [prefix…]`.
//!
//! A file with one line and without one of the three words in its place holds one token, blanks and all, as
//! it did before there were several. What is wrong is said with the number of its line and never with its
//! text, because a part of a token may stand anywhere.

use std::collections::BTreeSet;
use std::fmt;

use super::{Access, Pass, Role, TOKEN_BYTES_MAX, UID_NAME};

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
        let is_entry = |line: &str| !line.trim().is_empty() && !line.starts_with('#');
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
            tokens.push((token.as_bytes().into(), pass));
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
