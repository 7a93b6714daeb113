//! How long a certificate is good for: the two times in it, found without a library for the rest.
//!
//! A certificate is nested boxes (DER): a kind, a length, and that many bytes. The times stand behind
//! five others, which are stepped over. Bytes come from a file of the operator, but are trusted no
//! more than a peer's: whatever they are, the answer is a validity or none.

/// From when to when a certificate is good, in seconds since 1970, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub from_s: i64,
    /// The last one.
    pub until_s: i64,
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

impl Validity {
    /// That of a certificate; `None` if it is not one.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let (outer, _) = boxed(certificate, SEQUENCE)?;
        let (mut rest, _) = boxed(outer, SEQUENCE)?;
        if let Some((_, behind)) = boxed(rest, VERSION) {
            rest = behind;
        }
        // Its serial number, how it was signed, by whom.
        for kind in [INTEGER, SEQUENCE, SEQUENCE] {
            (_, rest) = boxed(rest, kind)?;
        }
        let (times, _) = boxed(rest, SEQUENCE)?;
        let (from_s, rest) = time(times)?;
        let (until_s, _) = time(rest)?;
        Some(Self { from_s, until_s })
    }
}

/// What is in the box of this kind at the front, and what stands behind it.
fn boxed(bytes: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    if first != kind {
        return None;
    }
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // The length itself is longer: so many bytes of it follow.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            let length = digits.iter().fold(0, |sum, &it| sum << 8 | usize::from(it));
            (length, rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// The time at the front, in seconds since 1970, and what stands behind it: `YYMMDDhhmmssZ`, or with
/// four digits of the year.
fn time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (text, rest, year, digits) = if let Some((text, rest)) = boxed(bytes, UTC_TIME) {
        let short = i64::from(number(text.get(..2)?)?);
        let year = if short < 50 {
            2000 + short
        } else {
            1900 + short
        };
        (text, rest, year, text.get(2..)?)
    } else {
        let (text, rest) = boxed(bytes, GENERALIZED_TIME)?;
        (
            text,
            rest,
            i64::from(number(text.get(..4)?)?),
            text.get(4..)?,
        )
    };
    if text.last() != Some(&b'Z') || digits.len() != 11 {
        return None;
    }
    let two = |index: usize| number(digits.get(2 * index..2 * index + 2)?).map(i64::from);
    let (month, day) = (two(0)?, two(1)?);
    let (hour, minute, second) = (two(2)?, two(3)?, two(4)?);
    let is_time = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    is_time.then_some((seconds, rest))
}

fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |sum, &byte| {
        byte.is_ascii_digit()
            .then(|| sum * 10 + u32::from(byte - b'0'))
    })
}

/// Of a day of the calendar. The year begins in March here, so that the odd day is its last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + leap_days + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(kind: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len();
        let mut bytes = vec![kind];
        match length {
            0..=0x7f => bytes.push(length as u8),
            _ => bytes.extend([0x82, (length >> 8) as u8, length as u8]),
        }
        bytes.extend(content);
        bytes
    }

    fn certificate(has_version: bool, from: &[u8], until: &[u8]) -> Vec<u8> {
        let version = if has_version {
            der(VERSION, &der(INTEGER, &[2]))
        } else {
            Vec::new()
        };
        let issuer = der(SEQUENCE, &[b'x'; 300]);
        let times = der(SEQUENCE, &[from, until].concat());
        let parts = [
            version,
            der(INTEGER, &[1, 2, 3]),
            der(SEQUENCE, &[]),
            issuer,
            times,
            der(SEQUENCE, b"the subject, and so on"),
        ];
        der(SEQUENCE, &der(SEQUENCE, &parts.concat()))
    }

    #[test]
    fn the_times_are_found_in_either_spelling() {
        let utc = |text: &str| der(UTC_TIME, text.as_bytes());
        let long = |text: &str| der(GENERALIZED_TIME, text.as_bytes());
        for (from, until, from_s, until_s) in [
            (utc("700101000000Z"), utc("991231235959Z"), 0, 946_684_799),
            (
                utc("000229120000Z"),
                utc("491231235959Z"),
                951_825_600,
                2_524_607_999,
            ),
            (
                utc("261117161552Z"),
                long("20500101000000Z"),
                1_794_932_152,
                2_524_608_000,
            ),
            (
                long("19500101000000Z"),
                long("99991231235959Z"),
                -631_152_000,
                253_402_300_799,
            ),
        ] {
            for has_version in [true, false] {
                let found = Validity::of(&certificate(has_version, &from, &until));
                assert_eq!(found, Some(Validity { from_s, until_s }));
            }
        }
    }

    #[test]
    fn what_is_no_time_is_no_validity() {
        let good = der(UTC_TIME, b"261117161552Z");
        for bad in [
            &b"261117161552"[..],
            b"261317161552Z",
            b"261100161552Z",
            b"261132161552Z",
            b"261117241552Z",
            b"261117166052Z",
            b"261117161560Z",
            b"2611171615+1Z",
            b"2611171615Z",
            b"",
        ] {
            let bad = der(UTC_TIME, bad);
            assert_eq!(Validity::of(&certificate(true, &bad, &good)), None);
            assert_eq!(Validity::of(&certificate(true, &good, &bad)), None);
        }
    }

    #[test]
    fn a_certificate_cut_or_changed_anywhere_is_no_reason_to_stop() {
        let time = der(UTC_TIME, b"261117161552Z");
        let whole = certificate(true, &time, &time);
        for end in 0..whole.len() {
            assert_eq!(Validity::of(&whole[..end]), None, "cut at {end}");
        }
        for at in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0x85, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                let _ = Validity::of(&changed);
            }
        }
    }
}
