//! The few pieces of JSON that `stats` and `who` are made of.
//!
//! Appends to a buffer and never fails: whatever bytes a client chose as a key, what comes out is
//! one valid JSON value on one line. Never reads JSON.

use crate::escape::{is_unsafe, json_escape};

/// Appends a quoted string. Bytes that are not UTF-8 become U+FFFD, unsafe characters are escaped.
pub fn push_str_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    for chunk in bytes.utf8_chunks() {
        // In runs, because nearly all bytes are plain, and an answer may be a megabyte of them.
        let mut rest = chunk.valid();
        while let Some(plain) = rest.bytes().position(is_special) {
            out.extend_from_slice(&rest.as_bytes()[..plain]);
            let mut chars = rest[plain..].chars();
            if let Some(c) = chars.next() {
                push_special(out, c);
            }
            rest = chars.as_str();
        }
        out.extend_from_slice(rest.as_bytes());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out.push(b'"');
}

/// Whether the character that begins with this byte may have to be escaped.
fn is_special(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | 0..0x20 | 0x7f..)
}

fn push_special(out: &mut Vec<u8>, c: char) {
    match c {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\r' => out.extend_from_slice(b"\\r"),
        '\t' => out.extend_from_slice(b"\\t"),
        c if is_unsafe(c) => out.extend(json_escape(c)),
        c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// Appends a whole number.
pub fn push_number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends a span in seconds: cut to milliseconds, without trailing zeros, such as `25.4` or `0`.
pub fn push_seconds(out: &mut Vec<u8>, nanos: u64) {
    let ms = nanos / 1_000_000;
    push_number(out, ms / 1_000);
    let digits = [ms / 100 % 10, ms / 10 % 10, ms % 10].map(|digit| b'0' + digit as u8);
    let Some(last) = digits.iter().rposition(|&digit| digit != b'0') else {
        return;
    };
    out.push(b'.');
    out.extend_from_slice(&digits[..=last]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escaped(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        push_str_escaped(&mut out, bytes);
        String::from_utf8(out).unwrap()
    }

    fn seconds(nanos: u64) -> String {
        let mut out = Vec::new();
        push_seconds(&mut out, nanos);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn strings_are_quoted_and_escaped() {
        for (bytes, want) in [
            (&b""[..], r#""""#),
            (b"my-job", r#""my-job""#),
            (b"a\"b\\c", r#""a\"b\\c""#),
            (b"\n\r\t", r#""\n\r\t""#),
            (b"\0\x1f\x7f", r#""\u0000\u001f\u007f""#),
            (
                "\u{9b}\u{61c}\u{202e}".as_bytes(),
                r#""\u009b\u061c\u202e""#,
            ),
            ("clé 🔒".as_bytes(), r#""clé 🔒""#),
            (b"a\xffb", "\"a\u{fffd}b\""),
            (b"\xf0\x9f\x94", "\"\u{fffd}\""),
        ] {
            assert_eq!(escaped(bytes), want, "{bytes:?}");
        }
    }

    #[test]
    fn seconds_have_as_many_decimals_as_they_need() {
        for (nanos, want) in [
            (0, "0"),
            (999_999, "0"),
            (1_000_000, "0.001"),
            (10_000_000, "0.01"),
            (25_400_000_000, "25.4"),
            (25_000_000_000, "25"),
            (100_000_000_000, "100"),
            (1_050_999_999, "1.05"),
            (u64::MAX, "18446744073.709"),
        ] {
            assert_eq!(seconds(nanos), want, "{nanos}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_make_a_string_that_json_readers_read(bytes: Vec<u8>) {
            let text = escaped(&bytes);
            prop_assert!(!text.contains('\n'));
            let read: String = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read, String::from_utf8_lossy(&bytes).into_owned());
        }

        #[test]
        fn any_span_is_a_number_that_json_readers_read(nanos: u64) {
            let read: f64 = serde_json::from_str(&seconds(nanos)).unwrap();
            prop_assert!((read - nanos as f64 / 1e9).abs() < 0.001_1);
        }
    }
}
