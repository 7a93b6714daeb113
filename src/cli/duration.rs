//! Times as people write them: `30`, `1.5`, `250ms`, `10s`, `5m`, `2h`, `1d`.
//!
//! A number alone is seconds. What is finer than a millisecond is rounded up, so that no wait becomes
//! shorter than it was asked for and nothing small becomes nothing.

use std::time::Duration;

/// The longest time the protocol can say.
const SECONDS_MAX: u64 = 9_223_372_036;

/// Reads a time, or says what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let unit_ms: u128 = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong(text)),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) {
        return Err(wrong(text));
    }
    if fraction.contains('.') {
        return Err(wrong(text));
    }
    let too_long = || format!("{text:?} is longer than {SECONDS_MAX} seconds");
    let whole: u128 = whole.parse().map_err(|_| too_long())?;
    let mut ms = whole.checked_mul(unit_ms).ok_or_else(too_long)?;
    // Nine digits are enough for a nanosecond of a day; more only say whether to round up.
    let kept = &fraction[..fraction.len().min(12)];
    if !kept.is_empty() {
        let scale = 10_u128.pow(kept.len() as u32);
        let parts: u128 = kept.parse().map_err(|_| wrong(text))?;
        let rest = fraction[kept.len()..].bytes().any(|digit| digit != b'0');
        ms += (parts * unit_ms).div_ceil(scale) + u128::from(rest && parts == 0);
    }
    if ms > u128::from(SECONDS_MAX) * 1_000 {
        return Err(too_long());
    }
    Ok(Duration::from_millis(ms as u64))
}

fn wrong(text: &str) -> String {
    format!("{text:?} is no time: write 30, 1.5, 250ms, 10s, 5m, 2h or 1d")
}

/// How long something has been, in a few characters: `0.4s`, `12s`, `3m07s`, `2h15m`, `4d03h`.
pub(crate) fn short(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "-".to_owned();
    }
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match whole {
        0..10 => format!("{:.1}s", (seconds * 10.0).floor() / 10.0),
        10..60 => format!("{whole}s"),
        60..3_600 => format!("{minutes}m{:02}s", whole % 60),
        3_600..86_400 => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let cases = [
            ("30", 30_000),
            ("1.5", 1_500),
            ("0", 0),
            ("0.0", 0),
            ("250ms", 250),
            ("10s", 10_000),
            ("5m", 300_000),
            ("1.5m", 90_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("007", 7_000),
            ("0.0001", 1),
            ("0.00000000000000000001", 1),
            ("1.5ms", 2),
            ("0.1", 100),
            ("9223372036", 9_223_372_036_000),
        ];
        for (text, ms) in cases {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_examples() {
        for text in [
            "", "s", "ms", ".5", "5.", "1.2.3", "-1", "+5", "1e3", "5 s", "5S", "10x", "ms5", "∞",
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains("250ms"), "{text}: {why}");
        }
        for text in [
            "9223372037",
            "99999999999999999999999999999999999999999",
            "9999999999999d",
        ] {
            assert!(parse(text).unwrap_err().contains("longer"), "{text}");
        }
    }

    #[test]
    fn spans_are_short() {
        let cases = [
            (0.0, "0.0s"),
            (0.46, "0.4s"),
            (9.99, "9.9s"),
            (12.9, "12s"),
            (187.0, "3m07s"),
            (8_100.0, "2h15m"),
            (356_400.0, "4d03h"),
            (f64::NAN, "-"),
            (-1.0, "-"),
        ];
        for (seconds, text) in cases {
            assert_eq!(short(seconds), text);
        }
    }
}
