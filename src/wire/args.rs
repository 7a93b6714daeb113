//! The argument line: fields, numbers, durations, names.
//!
//! Each function reads one thing and says which rule it broke. Never knows a verb and never sees a
//! CR or LF: `line` has taken those away.

use crate::base::Millis;
use crate::wire::command::Malformed;

/// ASCII white space as dflockd splits on it: also VT and FF, which `trim_ascii` knows only
/// in part.
const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c)
}

/// Without the blanks at both ends.
pub(super) fn trim(mut text: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = text
        && is_blank(*first)
    {
        text = rest;
    }
    while let [rest @ .., last] = text
        && is_blank(*last)
    {
        text = rest;
    }
    text
}

/// The words of a line: maximal runs without blanks.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|&byte| !is_blank(byte))?;
        let rest = &self.0[start..];
        let end = rest
            .iter()
            .position(|&byte| is_blank(byte))
            .unwrap_or(rest.len());
        let (field, rest) = rest.split_at(end);
        self.0 = rest;
        Some(field)
    }
}

/// One field and perhaps a second, no more.
pub(super) fn one_or_two(arg: &[u8]) -> Result<(&[u8], Option<&[u8]>), Malformed> {
    let mut fields = Fields(arg);
    match (fields.next(), fields.next(), fields.next()) {
        (Some(first), second, None) => Ok((first, second)),
        _ => Err(Malformed::ArgumentShape),
    }
}

/// Two fields, no more and no less.
pub(super) fn two(arg: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    match one_or_two(arg)? {
        (first, Some(second)) => Ok((first, second)),
        _ => Err(Malformed::ArgumentShape),
    }
}

/// Two fields, and perhaps a third.
type TwoOrThree<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>);

pub(super) fn two_or_three(arg: &[u8]) -> Result<TwoOrThree<'_>, Malformed> {
    let mut fields = Fields(arg);
    match (fields.next(), fields.next(), fields.next(), fields.next()) {
        (Some(first), Some(second), third, None) => Ok((first, second, third)),
        _ => Err(Malformed::ArgumentShape),
    }
}

/// The whole line as one field, blanks inside and all: `1 2` is one bad number, not two good ones.
pub(super) fn only(arg: &[u8]) -> Result<&[u8], Malformed> {
    match trim(arg) {
        b"" => Err(Malformed::ArgumentShape),
        field => Ok(field),
    }
}

/// A signed 64-bit number: an optional sign, then digits only, leading zeros welcome.
pub(super) fn integer(field: &[u8]) -> Result<i64, Malformed> {
    let (negative, digits) = match field {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return Err(Malformed::BadNumber);
    }
    // Counted downwards, because the smallest i64 has no positive twin.
    let mut below = 0_i64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Malformed::BadNumber);
        }
        below = below
            .checked_mul(10)
            .and_then(|below| below.checked_sub(i64::from(digit)))
            .ok_or(Malformed::BadNumber)?;
    }
    if negative {
        Ok(below)
    } else {
        below.checked_neg().ok_or(Malformed::BadNumber)
    }
}

/// An unsigned 64-bit number: digits only, leading zeros welcome. A sign is none, so that nobody takes
/// `-1` for a place in a file.
pub(super) fn unsigned(field: &[u8]) -> Result<u64, Malformed> {
    if field.is_empty() {
        return Err(Malformed::BadNumber);
    }
    field.iter().try_fold(0_u64, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        let value = value.checked_mul(10).filter(|_| digit <= 9);
        let value = value.and_then(|value| value.checked_add(digit.into()));
        value.ok_or(Malformed::BadNumber)
    })
}

/// A signed span in milliseconds: `10` and `10s` are seconds, `250ms` is not.
fn span_ms(field: &[u8]) -> Result<i64, Malformed> {
    const SPAN_MS_MAX: i64 = Millis::MAX.0 as i64;
    let (number, unit_ms) = match field {
        [number @ .., b'm', b's'] => (number, 1),
        [number @ .., b's'] => (number, 1_000),
        number => (number, 1_000),
    };
    let value = integer(number)?;
    if value > SPAN_MS_MAX / unit_ms {
        return Err(Malformed::BadNumber);
    }
    // Only the sign of a negative span matters, so its size may saturate.
    Ok(value.saturating_mul(unit_ms))
}

/// How long to wait: zero or more.
pub(super) fn wait(field: &[u8]) -> Result<Millis, Malformed> {
    match u64::try_from(span_ms(field)?) {
        Ok(ms) => Ok(Millis(ms)),
        Err(_) => Err(Malformed::NegativeTimeout),
    }
}

/// How long a grant lasts: more than zero. Below zero is a bad number, as dflockd has it.
pub(super) fn lease(field: &[u8]) -> Result<Millis, Malformed> {
    match u64::try_from(span_ms(field)?) {
        Ok(0) => Err(Malformed::LeaseNotPositive),
        Ok(ms) => Ok(Millis(ms)),
        Err(_) => Err(Malformed::BadNumber),
    }
}

/// How long a value lives: zero is for ever. Below zero is a bad number, as with [`lease`].
pub(super) fn ttl(field: &[u8]) -> Result<Millis, Malformed> {
    match u64::try_from(span_ms(field)?) {
        Ok(ms) => Ok(Millis(ms)),
        Err(_) => Err(Malformed::BadNumber),
    }
}

/// How many may hold at once, or must come: more than zero.
pub(super) fn limit(field: &[u8]) -> Result<u32, Malformed> {
    let value = integer(field)?;
    if value <= 0 {
        return Err(Malformed::LimitNotPositive);
    }
    u32::try_from(value).map_err(|_| Malformed::BadNumber)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers_are_read_as_the_reference_reads_them() {
        for (text, want) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("+10", Some(10)),
            ("007", Some(7)),
            ("-007", Some(-7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("18446744073709551616", None),
            ("", None),
            ("+", None),
            ("-", None),
            ("+-1", None),
            ("1_000", None),
            ("0x10", None),
            ("1e3", None),
            ("1.5", None),
            (" 1", None),
            ("1 ", None),
            ("١", None),
        ] {
            assert_eq!(integer(text.as_bytes()).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn unsigned_numbers_are_exact_and_have_no_sign() {
        for (text, want) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("9007199254740993", Some((1 << 53) + 1)),
            ("18446744073709551615", Some(u64::MAX)),
            ("00018446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("99999999999999999999", None),
            ("", None),
            ("+5", None),
            ("-1", None),
            ("-0", None),
            ("1_000", None),
            ("0x10", None),
            ("1.0", None),
            (" 1", None),
            ("1/", None),
            ("1:", None),
            ("١", None),
        ] {
            assert_eq!(unsigned(text.as_bytes()).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn spans_are_seconds_or_milliseconds_within_bounds() {
        for (text, want) in [
            ("10", Ok(10_000)),
            ("250ms", Ok(250)),
            ("+250ms", Ok(250)),
            ("0250ms", Ok(250)),
            ("0ms", Ok(0)),
            ("9223372036", Ok(Millis::MAX.0)),
            ("9223372036000ms", Ok(Millis::MAX.0)),
            ("9223372037", Err(Malformed::BadNumber)),
            ("9223372036001ms", Err(Malformed::BadNumber)),
            ("9223372036854775807", Err(Malformed::BadNumber)),
            ("-9223372036854775808", Err(Malformed::NegativeTimeout)),
            ("-1ms", Err(Malformed::NegativeTimeout)),
            ("ms", Err(Malformed::BadNumber)),
            ("10s", Ok(10_000)),
            ("+010s", Ok(10_000)),
            ("9223372036s", Ok(Millis::MAX.0)),
            ("9223372037s", Err(Malformed::BadNumber)),
            ("-1s", Err(Malformed::NegativeTimeout)),
            ("s", Err(Malformed::BadNumber)),
            ("10ss", Err(Malformed::BadNumber)),
            ("10sms", Err(Malformed::BadNumber)),
            ("10S", Err(Malformed::BadNumber)),
            ("10 s", Err(Malformed::BadNumber)),
            ("10m", Err(Malformed::BadNumber)),
            ("10MS", Err(Malformed::BadNumber)),
            ("10 ms", Err(Malformed::BadNumber)),
            ("10msms", Err(Malformed::BadNumber)),
        ] {
            assert_eq!(wait(text.as_bytes()), want.map(Millis), "{text:?}");
        }
    }

    #[test]
    fn a_value_may_live_for_ever_but_not_less_than_that() {
        for (text, want) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("5", Some(5_000)),
            ("5s", Some(5_000)),
            ("250ms", Some(250)),
            ("9223372036", Some(Millis::MAX.0)),
            ("9223372037", None),
            ("-1", None),
            ("-1s", None),
            ("", None),
            (" 5", None),
        ] {
            let want = want.map(Millis).ok_or(Malformed::BadNumber);
            assert_eq!(ttl(text.as_bytes()), want, "{text:?}");
        }
    }

    #[test]
    fn fields_are_counted() {
        assert_eq!(two(b" a\tb "), Ok((&b"a"[..], &b"b"[..])));
        assert_eq!(only(b" a b "), Ok(&b"a b"[..]));
        for line in ["", " ", "a", "a b c"] {
            assert_eq!(two(line.as_bytes()), Err(Malformed::ArgumentShape));
        }
        assert_eq!(only(b" \t"), Err(Malformed::ArgumentShape));
    }

    #[test]
    fn fields_are_split_on_every_ascii_blank() {
        let fields = |line: &'static str| Fields(line.as_bytes()).collect::<Vec<_>>();
        assert_eq!(fields("  10 \t 60\x0b7\x0c"), [&b"10"[..], b"60", b"7"]);
        assert!(fields(" \t ").is_empty());
        assert_eq!(trim(b" \x0b tok en\t"), b"tok en");
        assert_eq!(trim(b" \t\x0c"), b"");
    }

    proptest! {
        #[test]
        fn a_printed_number_is_read_back(value: i64) {
            let mut printed = itoa::Buffer::new();
            prop_assert_eq!(integer(printed.format(value).as_bytes()), Ok(value));
        }

        #[test]
        fn unsigned_numbers_agree_with_the_standard_library(text in "[0-9]{0,21}[ x]?") {
            prop_assert_eq!(unsigned(text.as_bytes()).ok(), text.parse().ok());
        }

        #[test]
        fn integers_agree_with_the_standard_library(text in "[+-]{0,2}[0-9]{0,20}[ x]?") {
            prop_assert_eq!(integer(text.as_bytes()).ok(), text.parse().ok());
        }
    }
}
