//! The two pieces of JSON that this client needs: a flat object in, a quoted string out.
//!
//! An answer is read as far as it is of use: the fields of one object, of which those that are
//! objects or arrays themselves are skipped. Whatever else comes is no object, and never an error of
//! its own: what is between this client and its server may answer with a page.

use std::iter::Peekable;
use std::str::CharIndices;

/// Deepest nesting that is skipped; what is deeper is no answer of any server of ours.
const DEPTH_MAX: u32 = 64;

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(String),
    /// As it was written: whether it fits depends on what it is for.
    Number(String),
    Bool(bool),
    /// `null`, an object or an array.
    Other,
}

/// The fields of an object; of two with the same name the last one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Object(Vec<(String, Value)>);

impl Object {
    /// The object that these bytes are; `None` if they are anything else.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut reader = Reader {
            text,
            rest: text.char_indices().peekable(),
        };
        let object = reader.object()?;
        reader.skip_blanks();
        reader.rest.next().is_none().then_some(object)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        let found = self.0.iter().rev().find(|(key, _)| key == name);
        found.map(|(_, value)| value)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.value(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Value::Number(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    pub(super) fn bool(&self, name: &str) -> Option<bool> {
        match self.value(name)? {
            Value::Bool(bool) => Some(*bool),
            _ => None,
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    rest: Peekable<CharIndices<'a>>,
}

impl Reader<'_> {
    fn object(&mut self) -> Option<Object> {
        let mut fields = Vec::new();
        self.expect('{')?;
        if self.is_next('}') {
            return Some(Object(fields));
        }
        loop {
            self.skip_blanks();
            let name = self.string()?;
            self.expect(':')?;
            let value = self.value(0)?;
            fields.push((name, value));
            if self.is_next('}') {
                return Some(Object(fields));
            }
            self.expect(',')?;
        }
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        self.skip_blanks();
        let &(start, first) = self.rest.peek()?;
        match first {
            '"' => self.string().map(Value::Text),
            '{' | '[' => self.skip_nested(depth + 1).map(|()| Value::Other),
            '-' | '0'..='9' => {
                let is_part = |c: char| matches!(c, '-' | '+' | '.' | 'e' | 'E' | '0'..='9');
                let number = self.run(start, is_part);
                is_number(number).then(|| Value::Number(number.to_owned()))
            }
            _ => match self.run(start, |c| c.is_ascii_lowercase()) {
                "true" => Some(Value::Bool(true)),
                "false" => Some(Value::Bool(false)),
                "null" => Some(Value::Other),
                _ => None,
            },
        }
    }

    /// An object or an array of which nobody wants to know anything.
    fn skip_nested(&mut self, depth: u32) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        let (_, open) = self.rest.next()?;
        let close = if open == '{' { '}' } else { ']' };
        if self.is_next(close) {
            return Some(());
        }
        loop {
            if open == '{' {
                self.skip_blanks();
                self.string()?;
                self.expect(':')?;
            }
            self.value(depth)?;
            if self.is_next(close) {
                return Some(());
            }
            self.expect(',')?;
        }
    }

    fn string(&mut self) -> Option<String> {
        self.rest.next_if(|&(_, c)| c == '"')?;
        let mut text = String::new();
        loop {
            match self.rest.next()?.1 {
                '"' => return Some(text),
                '\\' => text.push(self.escaped()?),
                c if c < ' ' => return None,
                c => text.push(c),
            }
        }
    }

    fn escaped(&mut self) -> Option<char> {
        Some(match self.rest.next()?.1 {
            c @ ('"' | '\\' | '/') => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let first = self.hex()?;
                if !(0xd800..0xdc00).contains(&first) {
                    return char::from_u32(first);
                }
                // Half of a character beyond the first 65,536: the other half has to follow.
                let follows = self.rest.next()?.1 == '\\' && self.rest.next()?.1 == 'u';
                let second = follows.then(|| self.hex())??;
                let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
                return char::from_u32(0x10000 + ((first - 0xd800) << 10) + low);
            }
            _ => return None,
        })
    }

    fn hex(&mut self) -> Option<u32> {
        let mut number = 0;
        for _ in 0..4 {
            number = number * 16 + self.rest.next()?.1.to_digit(16)?;
        }
        Some(number)
    }

    /// The text from `start`, where the next character is, as far as `is_part` goes.
    fn run(&mut self, start: usize, is_part: impl Fn(char) -> bool) -> &str {
        let mut end = start;
        while let Some((at, c)) = self.rest.next_if(|&(_, c)| is_part(c)) {
            end = at + c.len_utf8();
        }
        &self.text[start..end]
    }

    fn skip_blanks(&mut self) {
        while self
            .rest
            .next_if(|&(_, c)| matches!(c, ' ' | '\t' | '\n' | '\r'))
            .is_some()
        {}
    }

    /// Whether this comes next, after blanks; then it is read.
    fn is_next(&mut self, wanted: char) -> bool {
        self.skip_blanks();
        self.rest.next_if(|&(_, c)| c == wanted).is_some()
    }

    fn expect(&mut self, wanted: char) -> Option<()> {
        self.is_next(wanted).then_some(())
    }
}

/// Whether these characters, all of which occur in numbers, are one.
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, part) = match mantissa.split_once('.') {
        Some((whole, part)) => (whole, Some(part)),
        None => (mantissa, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && part.is_none_or(digits)
        && exponent.is_none_or(|it| digits(it.strip_prefix(['+', '-']).unwrap_or(it)))
}

/// Appends a quoted string.
pub(super) fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_fields_of_an_answer() {
        let text = r#" {"acquired":true,"lock_name":"a\"b\u00e9\ud83d\ude00","fencing_token":1793478284913727,
            "more":{"x":[1,{"y":null}],"z":{}},"nothing":null,"lease":-1.5e3,"empty":[]} "#;
        let object = Object::read(text.as_bytes()).unwrap();
        assert_eq!(object.bool("acquired"), Some(true));
        assert_eq!(object.text("lock_name"), Some("a\"bé😀"));
        assert_eq!(object.number("fencing_token"), Some(1_793_478_284_913_727));
        for name in ["more", "nothing", "lease", "absent", "acquired"] {
            assert_eq!((object.number(name), object.text(name)), (None, None));
        }
        let last = Object::read(b"{\"a\":1,\"a\":2}").unwrap();
        assert_eq!(last.number("a"), Some(2));
    }

    #[test]
    fn what_is_no_object_is_none() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        for text in [
            "",
            "null",
            "[]",
            "<html>",
            "{",
            "{\"a\"",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\":01}",
            "{\"a\":1.}",
            "{\"a\":+1}",
            "{\"a\":1e}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\ud800\"}",
            "{\"a\":\"\\udc00\"}",
            "{\"a\":\"\\ud800\\u0041\"}",
            "{\"a\":\"\n\"}",
            "{\"a\":tru}",
            "{} {}",
            "{\"a\":[}",
            "{\"a\":{\"b\"}}",
            &deep,
        ] {
            let shown: String = text.chars().take(40).collect();
            assert_eq!(Object::read(text.as_bytes()), None, "{shown}");
        }
        assert_eq!(Object::read(b"{\"a\":\"\xff\"}"), None);
    }

    proptest! {
        /// Whatever comes, another reader says the same about it.
        #[test]
        fn as_another_reader_has_it(text in "[ \\[\\]{}:,\"\\\\a-eu0-9.+-]{0,24}|\\{\"a\":[ \\[\\]{}:,\"\\\\a-eu0-9.+trflsn-]{0,16}\\}") {
            let ours = Object::read(text.as_bytes());
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            let theirs = theirs.ok().filter(serde_json::Value::is_object);
            // A number too large for a double is one nevertheless.
            if !text.contains(['e', 'E']) {
                prop_assert_eq!(ours.is_some(), theirs.is_some(), "{:?}", ours);
            }
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                prop_assert_eq!(ours.text("a"), theirs["a"].as_str());
                prop_assert_eq!(ours.number("a"), theirs["a"].as_u64());
                prop_assert_eq!(ours.bool("a"), theirs["a"].as_bool());
            }
        }

        #[test]
        fn what_is_quoted_is_read_again(text in any::<String>()) {
            let mut quoted = String::from("{\"a\":");
            push_quoted(&mut quoted, &text);
            quoted.push('}');
            let object = Object::read(quoted.as_bytes()).unwrap();
            prop_assert_eq!(object.text("a"), Some(text.as_str()));
        }
    }
}
