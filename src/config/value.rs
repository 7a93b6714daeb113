//! How a setting's text is understood: numbers, spans, addresses, switches, tokens.
//!
//! Digits mean digits: no sign, no blank, no fraction, no underscore, nothing that wraps around.
//! Nothing here falls back to a default, and no error quotes a token.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use super::named_file::read_named_file;
use crate::access::{Access, FILE_BYTES_MAX, TOKEN_BYTES_MAX};
use crate::base::Millis;
use crate::engine::ClientLimit;
use crate::engine::SHARES_MAX;
use crate::engine::types::ADAPTER_CHARS_MAX;
use crate::engine::types::Share;
use crate::store::Durability;

/// Longest socket path that fits Linux's `sockaddr_un` together with its closing zero.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Longest name that the domain name system knows.
const HOST_NAME_BYTES_MAX: usize = 253;

/// The tokens of which clients must send one. Its `Debug` shows nothing of them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Access);

impl Secret {
    /// The first of them, to be compared in constant time and never printed.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.first_token()
    }

    /// All of them, and what each gives.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A whole number: digits only.
pub(super) fn whole(text: &str) -> Option<u64> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None; // `"+5".parse()` would accept the sign
    }
    text.parse().ok()
}

/// The number of a user. The last one there is means nobody.
pub(super) fn uid(text: &str) -> Option<u32> {
    let uid = u32::try_from(whole(text)?).ok()?;
    (uid != u32::MAX).then_some(uid)
}

/// A port, 0 for any.
pub(super) fn port(text: &str) -> Option<u16> {
    whole(text)?.try_into().ok()
}

/// Where HTTP is served over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpPort {
    /// Nowhere.
    Off,
    /// Here, because nobody said otherwise; nowhere, if somebody else listens here already.
    IfFree(u16),
    /// Here, because somebody asked for it; 0 lets the system choose a free one.
    Asked(u16),
}

impl HttpPort {
    /// The same where nobody has asked for it.
    pub(super) fn if_free(self) -> Self {
        match self {
            Self::Off => Self::Off,
            Self::IfFree(port) | Self::Asked(port) => Self::IfFree(port),
        }
    }
}

/// A port, 0 for any, or `off`.
pub(super) fn http_port(text: &str) -> Option<HttpPort> {
    if text == "off" {
        return Some(HttpPort::Off);
    }
    port(text).map(HttpPort::Asked)
}

/// Host names, separated by commas. They are only compared with what clients send, never looked up.
pub(super) fn host_names(text: &str) -> Option<Vec<String>> {
    let is_name = |name: &&str| {
        let is_part = |part: &str| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !part.is_empty() && !part.starts_with('-') && part.bytes().all(is_letter)
        };
        name.len() <= HOST_NAME_BYTES_MAX && name.split('.').all(is_part)
    };
    let names = text.split(',');
    let names = names.map(|name| is_name(&name).then(|| name.to_owned()));
    names.collect()
}

/// Longest name of a share, and longest prefix.
const SHARE_BYTES_MAX: usize = 256;

/// `NAME=PREFIX`, or several with commas between them.
pub(super) fn shares(text: &str) -> Option<Vec<Share>> {
    let is_part = |part: &str| (1..=SHARE_BYTES_MAX).contains(&part.len());
    let mut shares: Vec<Share> = Vec::new();
    for share in text.split(',') {
        let (name, prefix) = share.split_once('=')?;
        let is_good = is_part(name)
            && is_label(name)
            && is_part(prefix)
            && !prefix.contains(char::is_control);
        let is_there = |it: &Share| *it.prefix == *prefix.as_bytes();
        if !is_good || shares.iter().any(is_there) || shares.len() == SHARES_MAX {
            return None;
        }
        shares.push(Share {
            name: name.into(),
            prefix: prefix.as_bytes().into(),
        });
    }
    Some(shares)
}

/// Most limits of adapters.
const CLIENT_LIMITS_MAX: usize = 64;

/// `ADAPTER=COUNT`, or several with commas between them.
pub(super) fn client_limits(text: &str) -> Option<Vec<ClientLimit>> {
    let mut limits: Vec<ClientLimit> = Vec::new();
    for limit in text.split(',') {
        let (adapter, clients) = limit.split_once('=')?;
        let is_good = (1..=ADAPTER_CHARS_MAX).contains(&adapter.len()) && is_label(adapter);
        let is_there = limits.iter().any(|it| *it.adapter == *adapter);
        if !is_good || is_there || limits.len() == CLIENT_LIMITS_MAX {
            return None;
        }
        limits.push(ClientLimit {
            adapter: adapter.into(),
            clients: u32::try_from(whole(clients)?).ok()?,
        });
    }
    Some(limits)
}

/// Whether figures can have this in a label as it is.
fn is_label(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.bytes().all(is_letter)
}

/// How many there may be at most; 0 is no limit.
pub(super) fn limit(text: &str) -> Option<Option<u32>> {
    let count = u32::try_from(whole(text)?).ok()?;
    Some((count > 0).then_some(count))
}

/// How much memory clients can make the daemon use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxMemory {
    /// As much as there is.
    Unlimited,
    /// This many bytes.
    Bytes(NonZeroU64),
    /// Half of the machine's memory, or of what its control group allows if that is less.
    Half,
}

/// A number of bytes, also in units of 1024 (`64k`, `512m`, `2g`), 0 for no bound, or `half`.
pub(super) fn memory(text: &str) -> Option<MaxMemory> {
    if text == "half" {
        return Some(MaxMemory::Half);
    }
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        b'g' | b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let bytes = whole(digits)?.checked_mul(unit)?;
    Some(NonZeroU64::new(bytes).map_or(MaxMemory::Unlimited, MaxMemory::Bytes))
}

/// The number of a core.
pub(super) fn core(text: &str) -> Option<usize> {
    whole(text)?.try_into().ok()
}

/// A span of time: `33` and `33s` are seconds, `100ms` is milliseconds.
pub(super) fn span(text: &str) -> Option<Millis> {
    let millis = match text.strip_suffix("ms") {
        Some(digits) => whole(digits)?,
        None => whole(text.strip_suffix('s').unwrap_or(text))?.checked_mul(1_000)?,
    };
    (millis <= Millis::MAX.0).then_some(Millis(millis))
}

/// A span of time that is not zero.
pub(super) fn span_above_zero(text: &str) -> Option<Millis> {
    span(text).filter(|&span| span > Millis::ZERO)
}

/// A span of time; zero means "no end".
pub(super) fn span_or_none(text: &str) -> Option<Option<Millis>> {
    let span = span(text)?;
    Some((span > Millis::ZERO).then_some(span))
}

/// Yes or no, in the spellings people use.
pub(super) fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "yes" | "true" | "on" => Some(true),
        "0" | "no" | "false" | "off" => Some(false),
        _ => None,
    }
}

/// One of a few words.
pub(super) fn choice<T: Copy>(text: &str, words: &[(&str, T)]) -> Option<T> {
    let (_, meaning) = words.iter().find(|(word, _)| *word == text)?;
    Some(*meaning)
}

/// An address to listen on. Names are not looked up: an answer from the network must not decide
/// where the daemon is reachable.
pub(super) fn host(text: &str) -> Option<IpAddr> {
    if text.eq_ignore_ascii_case("localhost") {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    match text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
    {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

/// A path that a file can have.
pub(super) fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty() && !text.contains('\0')).then(|| text.into())
}

/// When an answer may be sent.
pub(super) fn durability(text: &str) -> Option<Durability> {
    match text {
        "sync" => Some(Durability::Sync),
        "async" => Some(Durability::Async),
        _ => None,
    }
}

/// Permission bits in octal, three digits or four with a leading zero.
pub(super) fn mode(text: &str) -> Option<u32> {
    let digits = match text.len() {
        4 => text.strip_prefix('0')?,
        3 => text,
        _ => return None,
    };
    digits.bytes().try_fold(0, |mode, byte| {
        matches!(byte, b'0'..=b'7').then(|| mode * 8 + u32::from(byte - b'0'))
    })
}

/// A token as written on the command line or in the environment.
pub(super) fn token(text: &str) -> Result<Secret, String> {
    if text.is_empty() {
        return Err("the token is empty; to run without one, do not set it".to_owned());
    }
    if text.len() > TOKEN_BYTES_MAX {
        return Err(format!("the token is longer than {TOKEN_BYTES_MAX} bytes"));
    }
    if text.contains(char::is_control) {
        return Err("the token contains a line end or another control byte; \
                    a token is one line of printable text"
            .to_owned());
    }
    if text.trim() != text {
        return Err("the token begins or ends with a blank, so no client could send it".to_owned());
    }
    Ok(Secret(Access::of_one(text.as_bytes())))
}

/// Reads the tokens from a file. Blanks and line ends after a token do not count.
///
/// # Errors
/// The file cannot be read, or has a line that cannot be used: what and where, without its text.
pub fn token_file(path: &str) -> Result<Secret, String> {
    let bytes = read_named_file(Path::new(path), FILE_BYTES_MAX - 1)
        .map_err(|error| format!("cannot read {path:?}: {error}"))?;
    let text = str::from_utf8(&bytes).map_err(|_| format!("{path:?} is not valid UTF-8"))?;
    let access = Access::read(text).map_err(|why| format!("{path:?}: {why}"))?;
    Ok(Secret(access))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_digits_with_a_unit_or_half() {
        let bytes = |text| match memory(text) {
            Some(MaxMemory::Bytes(bytes)) => Some(bytes.get()),
            Some(MaxMemory::Unlimited) => Some(0),
            Some(MaxMemory::Half) | None => None,
        };
        for (text, size) in [
            ("0", 0),
            ("0g", 0),
            ("1", 1),
            ("64k", 64 << 10),
            ("512m", 512 << 20),
            ("2G", 2 << 30),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text), Some(size), "{text}");
        }
        assert_eq!(memory("half"), Some(MaxMemory::Half));
        for bad in [
            "",
            "g",
            "-1",
            "1.5g",
            "1 g",
            "1t",
            "1kb",
            "HALF",
            "99999999999g",
        ] {
            assert_eq!(memory(bad), None, "{bad}");
        }
    }

    #[test]
    fn spans_are_digits_with_a_unit() {
        for (text, millis) in [
            ("0", 0),
            ("33", 33_000),
            ("33s", 33_000),
            ("033", 33_000),
            ("0ms", 0),
            ("100ms", 100),
            ("9223372036", Millis::MAX.0),
            ("9223372036s", Millis::MAX.0),
            ("9223372036000ms", Millis::MAX.0),
        ] {
            assert_eq!(span(text), Some(Millis(millis)), "{text}");
        }
        for bad in [
            "",
            "s",
            "ms",
            "+1",
            "-1",
            "1_000",
            "1.5",
            "1.5s",
            " 1",
            "1 ",
            "1 s",
            "1m",
            "1h",
            "1S",
            "0x10",
            "1e3",
            "١",
            "1sms",
            "1mss",
            "9223372037",
            "9223372036001ms",
            "18446744073709551615",
            "18446744073709551616",
            "18446744073709551616ms",
            "99999999999999999999999999999999999999",
        ] {
            assert_eq!(span(bad), None, "{bad}");
        }
        assert_eq!(span_above_zero("0s"), None);
        assert_eq!(span_or_none("0ms"), Some(None));
    }

    #[test]
    fn numbers_fit_their_type() {
        assert_eq!(port("65535"), Some(65_535));
        assert_eq!(port("65536"), None);
        assert_eq!(limit("0"), Some(None));
        assert_eq!(limit("4294967295"), Some(Some(u32::MAX)));
        assert_eq!(limit("4294967296"), None);
        for bad in ["", "+1", "-1", "1 ", "1_0", "18446744073709551616"] {
            assert_eq!(whole(bad), None, "{bad}");
        }
    }

    #[test]
    fn host_names_are_names_between_commas() {
        for (text, names) in [
            ("locks", &["locks"][..]),
            ("locks.example.org", &["locks.example.org"]),
            ("a-1,B_2.c,10.0.0.1", &["a-1", "B_2.c", "10.0.0.1"]),
        ] {
            assert_eq!(host_names(text).unwrap(), names, "{text}");
        }
        let longest = ["x"; 127].join(".");
        assert!(host_names(&longest).is_some());
        assert!(host_names(&format!("{longest}x")).is_none());
        for bad in [
            "", ",", "a,", ",a", "a,,b", "a, b", " a", "a b", "a:80", "[::1]", "http://a", "a/b",
            "*", "*.a", "a.", ".a", "a..b", "-a", "a.-b", "größe", "a\0",
        ] {
            assert_eq!(host_names(bad), None, "{bad}");
        }
    }

    #[test]
    fn shares_are_names_with_prefixes() {
        let share = |name: &str, prefix: &str| Share {
            name: name.into(),
            prefix: prefix.as_bytes().into(),
        };
        for (text, want) in [
            ("video=/srv/v/", vec![share("video", "/srv/v/")]),
            (
                "a=x,a=y,b.2-_=x=y",
                vec![share("a", "x"), share("a", "y"), share("b.2-_", "x=y")],
            ),
            ("a=größe 2", vec![share("a", "größe 2")]),
        ] {
            assert_eq!(shares(text).unwrap(), want, "{text}");
        }
        let most: Vec<String> = (0..SHARES_MAX).map(|it| format!("s{it}=p{it}")).collect();
        let most = most.join(",");
        assert_eq!(shares(&most).unwrap().len(), SHARES_MAX);
        let long = "x".repeat(SHARE_BYTES_MAX + 1);
        for bad in [
            "",
            "a",
            "a=",
            "=x",
            "a b=x",
            "a=x,",
            "a=x, b=y",
            "a=x,b=x",
            "ä=x",
            "a\"=x",
            "a=x\n",
            &format!("{most},one=more"),
            &format!("{long}=x"),
            &format!("a={long}"),
        ] {
            assert_eq!(shares(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_port_for_http_is_a_number_or_off() {
        assert_eq!(http_port("off"), Some(HttpPort::Off));
        assert_eq!(http_port("0"), Some(HttpPort::Asked(0)));
        assert_eq!(http_port("65535"), Some(HttpPort::Asked(65_535)));
        for bad in ["", "Off", "none", "no", "65536", "-1", "+1"] {
            assert_eq!(http_port(bad), None, "{bad}");
        }
    }

    #[test]
    fn hosts_are_addresses_or_localhost() {
        for (text, printed) in [
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0", "0.0.0.0"),
            ("localhost", "127.0.0.1"),
            ("Localhost", "127.0.0.1"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("::", "::"),
            ("2001:db8::7", "2001:db8::7"),
        ] {
            assert_eq!(host(text).unwrap().to_string(), printed, "{text}");
        }
        for bad in [
            "",
            "[]",
            "[::1",
            "::1]",
            "[127.0.0.1]",
            "[[::1]]",
            "127.0.0.1:6388",
            "[::1]:6388",
            "127.1",
            "256.0.0.1",
            "example.org",
            " ::1",
            "*",
        ] {
            assert_eq!(host(bad), None, "{bad}");
        }
    }

    #[test]
    fn modes_are_three_octal_digits() {
        assert_eq!(mode("600"), Some(0o600));
        assert_eq!(mode("0660"), Some(0o660));
        assert_eq!(mode("777"), Some(0o777));
        for bad in [
            "", "6", "0", "1777", "00600", "0o600", "0x1ff", "680", "+60", "-600",
        ] {
            assert_eq!(mode(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_is_one_printable_line_and_never_shown() {
        assert_eq!(
            token("s3cret with blanks").unwrap().as_bytes(),
            b"s3cret with blanks"
        );
        assert_eq!(format!("{:?}", token("s3cret").unwrap()), "Secret(…)");
        assert!(token(&"x".repeat(TOKEN_BYTES_MAX)).is_ok());
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        for bad in [
            "",
            " ",
            "s3cret\n",
            "s3\ncret",
            "s3\0cret",
            "s3\u{85}cret",
            " s3cret",
            &long,
        ] {
            let why = token(bad).unwrap_err();
            assert!(!why.contains("s3") && !why.contains("xx"), "{why}");
        }
    }
}
