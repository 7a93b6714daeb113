//! The one escaper: which characters are never shown as they are, and how they are spelled.
//!
//! The log, the tables and messages of `latch`, and all JSON use it. It never reads escapes.

use std::fmt::Write as _;

/// Whether a terminal obeys this character, or does not show it, so that a text looks like another.
///
/// These are control characters, the line and paragraph separator, the marks of annotations, and
/// Unicode's `Default_Ignorable_Code_Point`: directions, joiners, fillers, variations and tags.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    // Nearly every character is one of these.
    if matches!(c, ' '..='~') {
        return false;
    }
    c.is_control()
        || matches!(c,
            '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
        )
}

/// A text for people: unsafe characters as `\n`, `\u{1b}` and so on, all others as they are.
#[must_use]
pub fn text(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match is_unsafe(c) {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    safe
}

/// Bytes for people; no two look the same. A backslash is doubled, and a byte that is not UTF-8 is
/// `\xff`.
#[must_use]
pub fn bytes(bytes: &[u8]) -> String {
    let mut safe = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        safe.push_str(&text(&chunk.valid().replace('\\', "\\\\")));
        for byte in chunk.invalid() {
            let _ = write!(safe, "\\x{byte:02x}"); // a String never fails
        }
    }
    safe
}

/// A JSON text that means the same: unsafe characters of its strings are escaped.
///
/// The JSON has no unsafe character outside of strings, so it stands on one line.
#[must_use]
pub fn json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        match is_unsafe(c) {
            true => safe.extend(json_escape(c).map(char::from)),
            false => safe.push(c),
        }
    }
    safe
}

/// A character in the inside of a JSON string, in ASCII: `\u001b`, or two of these beyond U+FFFF.
pub fn json_escape(c: char) -> impl Iterator<Item = u8> {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut units = [0; 2];
    let count = c.encode_utf16(&mut units).len();
    units.into_iter().take(count).flat_map(|unit| {
        let digit = |shift: u32| HEX[usize::from(unit >> shift & 15)];
        [b'\\', b'u', digit(12), digit(8), digit(4), digit(0)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_that_deceives_is_unsafe_and_letters_are_not() {
        let ranges = [
            '\0'..='\u{1f}',
            '\u{7f}'..='\u{9f}',
            '\u{61c}'..='\u{61c}',
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2060}'..='\u{206f}',
            '\u{feff}'..='\u{feff}',
            '\u{fff9}'..='\u{fffb}',
            '\u{e0001}'..='\u{e007f}',
        ];
        for c in ranges.into_iter().flatten() {
            assert!(is_unsafe(c), "{}", c.escape_unicode());
        }
        for c in (' '..='~').chain("äß→“”🔒中文עבריתا\u{fffd}".chars()) {
            assert!(!is_unsafe(c), "{c}");
        }
    }

    #[test]
    fn text_shows_unsafe_characters_by_their_number() {
        assert_eq!(text("a\\b größer → “x”"), "a\\b größer → “x”");
        assert_eq!(
            text("a\x1b[2J\n\u{61c}\u{e0041}"),
            "a\\u{1b}[2J\\n\\u{61c}\\u{e0041}"
        );
    }

    #[test]
    fn no_two_names_look_the_same() {
        assert_eq!(bytes(b"job-7.x"), "job-7.x");
        assert_eq!(bytes("größer".as_bytes()), "größer");
        assert_eq!(bytes(b"a\x1b[2Jb\n\t\r\x07"), "a\\u{1b}[2Jb\\n\\t\\r\\u{7}");
        assert_eq!(bytes(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(bytes("\u{9b}31m".as_bytes()), "\\u{9b}31m");
        assert_eq!(bytes("\u{202e}cod.exe".as_bytes()), "\\u{202e}cod.exe");
        assert_eq!(bytes(b"\\x1b"), "\\\\x1b");
        let all: Vec<u8> = (0..=255).collect();
        assert!(!bytes(&all).contains(is_unsafe));
    }

    #[test]
    fn json_reads_back_as_it_was() {
        let every: String = ('\0'..=char::MAX).collect();
        let plain = serde_json::to_string(&[&every]).unwrap();
        let safe = json(&plain);
        assert!(!safe.contains(is_unsafe));
        let read: Vec<String> = serde_json::from_str(&safe).unwrap();
        assert_eq!(read, [every]);
        assert_eq!(
            json("{\"k\u{9b}\":\"\u{e0041}\"}"),
            "{\"k\\u009b\":\"\\udb40\\udc41\"}"
        );
    }
}
