//! The target of a request: path and query, percent-decoded once, and the names in them.
//!
//! Says what a name may be, never what it means; which paths there are, `routes.rs` knows. What needs
//! no decoding is borrowed.

use memchr::{memchr, memchr2};

use super::arena::Arena;
use super::problem::{self, Problem};
use super::routes::Naming;
use crate::base::Fence;
use crate::wire::verbs::LINE_BYTES_MAX;

/// Longest name of a lock, as LockServer's clients may choose it.
pub const LOCK_NAME_BYTES_MAX: usize = 1024;

/// Longest cursor of a page.
pub(super) const CURSOR_BYTES_MAX: usize = 4 * LOCK_NAME_BYTES_MAX;

/// A target in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    /// Begins with a slash; as it was sent.
    pub(super) path: &'a [u8],
    /// Behind the question mark; as it was sent.
    pub(super) query: &'a [u8],
    /// The host and port of a target that names them. Counts for more than `Host`.
    pub(super) authority: Option<&'a [u8]>,
}

impl<'a> Target<'a> {
    /// Reads `/path?query`, or the same behind `http://host`.
    pub(super) fn parse(target: &'a [u8]) -> Result<Self, Problem<'static>> {
        let (authority, rest) = match target.first() {
            Some(b'/') => (None, target),
            _ => split_authority(target).ok_or(problem::BAD_TARGET)?,
        };
        // A fragment is never sent, and what would be made of it depends on whom one asks.
        if memchr(b'#', rest).is_some() {
            return Err(problem::BAD_TARGET);
        }
        let (path, query) = match memchr(b'?', rest) {
            Some(at) => (&rest[..at], &rest[at + 1..]),
            None => (rest, &b""[..]),
        };
        Ok(Self {
            path: if path.is_empty() { b"/" } else { path },
            query,
            authority,
        })
    }

    /// How much of the arena its decoding takes at most: the path is decoded as a whole and by
    /// segments.
    pub(super) fn decoded_bytes_max(&self) -> usize {
        let path = memchr(b'%', self.path).map_or(0, |_| 2 * self.path.len());
        let query = memchr2(b'%', b'+', self.query).map_or(0, |_| self.query.len());
        path + query
    }
}

/// `http://host:port/path` as (`host:port`, `/path`).
fn split_authority(target: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let scheme = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|it| target.len() > it.len() && target[..it.len()].eq_ignore_ascii_case(it))?;
    let rest = &target[scheme.len()..];
    let end = rest
        .iter()
        .position(|byte| b"/?#".contains(byte))
        .unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    (!authority.is_empty()).then_some((Some(authority), rest))
}

/// Without percent signs; nothing if one is not followed by two hex digits.
pub(super) fn decode<'a>(text: &'a [u8], arena: &mut Arena<'a>) -> Option<&'a [u8]> {
    if memchr(b'%', text).is_none() {
        return Some(text);
    }
    arena.piece(|room| decode_into(text, room, false))
}

/// The same for a query, where a plus is a blank.
fn decode_query<'a>(text: &'a [u8], arena: &mut Arena<'a>) -> Option<&'a [u8]> {
    if memchr2(b'%', b'+', text).is_none() {
        return Some(text);
    }
    arena.piece(|room| decode_into(text, room, true))
}

fn decode_into(text: &[u8], room: &mut [u8], plus_is_blank: bool) -> Option<usize> {
    let mut bytes = text.iter();
    let mut length = 0;
    while let Some(&byte) = bytes.next() {
        room[length] = match byte {
            b'%' => hex(*bytes.next()?)? << 4 | hex(*bytes.next()?)?,
            b'+' if plus_is_blank => b' ',
            _ => byte,
        };
        length += 1;
    }
    Some(length)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// The parameters of a query, decoded, each at most once and all of them known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query<'a> {
    known: &'static [&'static str],
    values: [Option<&'a [u8]>; PARAMETERS_MAX],
}

/// Most parameters that some route knows.
const PARAMETERS_MAX: usize = 5;

impl<'a> Query<'a> {
    pub(super) fn parse(
        query: &'a [u8],
        known: &'static [&'static str],
        arena: &mut Arena<'a>,
    ) -> Result<Self, Problem<'a>> {
        let mut values = [None; PARAMETERS_MAX];
        for pair in query
            .split(|&byte| byte == b'&')
            .filter(|it| !it.is_empty())
        {
            let (name, value) = match memchr(b'=', pair) {
                Some(at) => (&pair[..at], &pair[at + 1..]),
                None => (pair, &b""[..]),
            };
            let name = decode_query(name, arena).ok_or(problem::BAD_ESCAPE)?;
            let value = decode_query(value, arena).ok_or(problem::BAD_ESCAPE)?;
            let index = known
                .iter()
                .position(|it| it.as_bytes() == name)
                .ok_or_else(|| problem::UNKNOWN_PARAMETER.about(name))?;
            if values[index].replace(value).is_some() {
                return Err(problem::REPEATED_PARAMETER.about(name));
            }
        }
        Ok(Self { known, values })
    }

    /// The value of a parameter, if it was given.
    pub(super) fn get(&self, name: &str) -> Option<&'a [u8]> {
        let index = self.known.iter().position(|it| *it == name)?;
        self.values[index]
    }
}

/// Whether a name in a path may be one.
pub(super) fn check_name(name: &[u8], naming: Naming) -> Result<(), Problem<'_>> {
    let (bytes_max, too_long) = match naming {
        Naming::Plain => (LINE_BYTES_MAX, problem::NAME_TOO_LONG),
        Naming::Lock => (LOCK_NAME_BYTES_MAX, problem::LOCK_NAME_TOO_LONG),
    };
    if name.is_empty() {
        return Err(problem::NAME_REQUIRED);
    }
    if name.len() > bytes_max {
        return Err(too_long);
    }
    if name.iter().any(u8::is_ascii_control) {
        return Err(problem::NAME_CONTROL.about(name));
    }
    if naming == Naming::Plain && memchr(b' ', name).is_some() {
        return Err(problem::NAME_BLANK.about(name));
    }
    Ok(())
}

/// The fence in a path: digits only, above 0.
pub(super) fn fence(text: &[u8]) -> Option<Fence> {
    digits(text)
        .filter(|fence| (1..Fence::LIMIT).contains(fence))
        .map(Fence)
}

/// A number of digits and nothing else; nothing if it is none or does not fit.
pub(super) fn digits(text: &[u8]) -> Option<u64> {
    let mut value = None;
    for &byte in text {
        let digit = u64::from(byte.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        value = Some(value.unwrap_or(0_u64).checked_mul(10)?.checked_add(digit)?);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Option<Vec<u8>> {
        let mut scratch = Vec::new();
        let mut arena = Arena::new(&mut scratch, text.len());
        decode(text.as_bytes(), &mut arena).map(<[u8]>::to_vec)
    }

    #[test]
    fn a_percent_sign_is_decoded_once() {
        for (text, want) in [
            ("job", Some(&b"job"[..])),
            ("a%2Fb%2fc", Some(b"a/b/c")),
            ("%2525", Some(b"%25")),
            ("%00%ff", Some(b"\0\xff")),
            ("a+b", Some(b"a+b")),
            ("%", None),
            ("%4", None),
            ("%4g", None),
            ("%+4", None),
        ] {
            assert_eq!(decoded(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn a_target_is_a_path_and_a_query() {
        let parts = |text: &'static str| {
            let it = Target::parse(text.as_bytes()).ok()?;
            let shown = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            Some((
                shown(it.path),
                shown(it.query),
                it.authority.map(shown).unwrap_or_default(),
            ))
        };
        for (text, want) in [
            ("/", Some(("/", "", ""))),
            ("/a?b=c?d", Some(("/a", "b=c?d", ""))),
            ("http://x:1/a?b", Some(("/a", "b", "x:1"))),
            ("HTTPS://x", Some(("/", "", "x"))),
            ("http://x?b", Some(("/", "b", "x"))),
            ("http:///a", None),
            ("/a#b", None),
            ("*", None),
            ("x:80", None),
            ("ftp://x/", None),
            ("", None),
        ] {
            let want = want.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
            assert_eq!(parts(text), want, "{text}");
        }
    }

    #[test]
    fn a_query_has_known_parameters_once() {
        let get = |query: &'static str| {
            let mut scratch = Vec::new();
            let mut arena = Arena::new(&mut scratch, query.len());
            match Query::parse(query.as_bytes(), &["limit", "after"], &mut arena) {
                Ok(it) => Ok(["limit", "after"]
                    .map(|name| it.get(name).map(|it| it.escape_ascii().to_string()))),
                Err(problem) => Err(problem.text),
            }
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(get(""), Ok([None, None]));
        assert_eq!(get("&&limit=5&"), Ok([some("5"), None]));
        assert_eq!(get("after=a%26b+c%2B"), Ok([None, some("a&b c+")]));
        assert_eq!(get("lim%69t&after=x=y"), Ok([some(""), some("x=y")]));
        assert_eq!(get("LIMIT=1"), Err(problem::UNKNOWN_PARAMETER.text));
        assert_eq!(
            get("limit=1&limit=1"),
            Err(problem::REPEATED_PARAMETER.text)
        );
        assert_eq!(get("limit=%f"), Err(problem::BAD_ESCAPE.text));
    }

    #[test]
    fn no_route_knows_more_parameters_than_there_is_room_for() {
        for row in &super::super::routes::TABLE {
            assert!(row.query.len() <= PARAMETERS_MAX, "{}", row.operation);
        }
    }

    #[test]
    fn names_are_checked_by_their_kind() {
        let long = vec![b'x'; LOCK_NAME_BYTES_MAX + 1];
        for (name, plain, lock) in [
            (&b"job"[..], None, None),
            ("clé 🔒".as_bytes(), Some(problem::NAME_BLANK), None),
            (b"\xff", None, None),
            (
                b"",
                Some(problem::NAME_REQUIRED),
                Some(problem::NAME_REQUIRED),
            ),
            (
                b"a\0",
                Some(problem::NAME_CONTROL),
                Some(problem::NAME_CONTROL),
            ),
            (
                b"a\t",
                Some(problem::NAME_CONTROL),
                Some(problem::NAME_CONTROL),
            ),
            (
                b"\x7f",
                Some(problem::NAME_CONTROL),
                Some(problem::NAME_CONTROL),
            ),
            (&long[..256], None, None),
            (&long[..257], Some(problem::NAME_TOO_LONG), None),
            (&long[..1024], Some(problem::NAME_TOO_LONG), None),
            (
                &long,
                Some(problem::NAME_TOO_LONG),
                Some(problem::LOCK_NAME_TOO_LONG),
            ),
        ] {
            for (naming, want) in [(Naming::Plain, plain), (Naming::Lock, lock)] {
                let found = check_name(name, naming).err();
                assert_eq!(found.map(|it| it.text), want.map(|it| it.text), "{name:?}");
            }
        }
    }

    #[test]
    fn a_number_is_digits_only() {
        assert_eq!(digits(b"0042"), Some(42));
        assert_eq!(digits(b"18446744073709551615"), Some(u64::MAX));
        for bad in ["", "+5", "-1", "1e3", " 1", "0x1", "18446744073709551616"] {
            assert_eq!(digits(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(fence(b"7"), Some(Fence(7)));
        assert_eq!(fence(b"0"), None);
        assert_eq!(fence(b"9007199254740992"), None);
    }
}
