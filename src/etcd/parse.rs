//! A parser for the JSON that etcd's gateway sends: values as a tree, nothing borrowed.
//!
//! By hand, because it is little, and because the library that has everything would bring its conversions to
//! everybody who uses this crate. Strict where it matters: what is cut or goes on is an error, and what
//! nests deeper than any answer does is, too. Numbers are kept as they were written.

/// Deeper nesting is not believed.
const DEPTH_MAX: u32 = 32;

const HALF_A_PAIR: &str = "an escape that is half a character";

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// As it was written.
    Number(String),
    String(String),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

static NULL: Value = Value::Null;

impl Value {
    /// Reads one value, and nothing behind it but blanks.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let text = str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.skip_blanks();
        match reader.at == text.len() {
            true => Ok(value),
            false => Err("more than one value"),
        }
    }

    /// A member of an object; null if there is none.
    pub(super) fn at(&self, name: &str) -> &Self {
        let members = match self {
            Self::Object(members) => &members[..],
            _ => &[],
        };
        let found = members.iter().find(|(it, _)| it == name);
        found.map_or(&NULL, |(_, value)| value)
    }

    /// Whether an object has this member.
    pub(super) fn has(&self, name: &str) -> bool {
        matches!(self, Self::Object(members) if members.iter().any(|(it, _)| it == name))
    }

    pub(super) fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    pub(super) fn is_true(&self) -> bool {
        *self == Self::Bool(true)
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The elements of an array; none if it is none.
    pub(super) fn elements(&self) -> &[Self] {
        match self {
            Self::Array(elements) => elements,
            _ => &[],
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: u32) -> Result<Value, &'static str> {
        if depth > DEPTH_MAX {
            return Err("too deep");
        }
        self.skip_blanks();
        match self.peek() {
            Some(b'{') => {
                let mut members = Vec::new();
                self.list(b'}', |reader| {
                    reader.skip_blanks();
                    let name = reader.string()?;
                    reader.skip_blanks();
                    reader.expect(b':')?;
                    members.push((name, reader.value(depth + 1)?));
                    Ok(())
                })?;
                Ok(Value::Object(members))
            }
            Some(b'[') => {
                let mut elements = Vec::new();
                self.list(b']', |reader| {
                    elements.push(reader.value(depth + 1)?);
                    Ok(())
                })?;
                Ok(Value::Array(elements))
            }
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number().map(Value::Number),
            _ => self.word(),
        }
    }

    /// What stands between an opening and this closing bracket, with commas between.
    fn list(
        &mut self,
        close: u8,
        mut element: impl FnMut(&mut Self) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        self.at += 1;
        self.skip_blanks();
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(());
        }
        loop {
            element(self)?;
            self.skip_blanks();
            if self.peek() == Some(close) {
                self.at += 1;
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn string(&mut self) -> Result<String, &'static str> {
        self.expect(b'"')?;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let ends_plain = |c| matches!(c, '"' | '\\' | '\0'..='\x1f');
            let plain = rest.find(ends_plain).ok_or("a string without an end")?;
            out.push_str(&rest[..plain]);
            self.at += plain + 1;
            match rest.as_bytes()[plain] {
                b'"' => return Ok(out),
                b'\\' => out.push(self.escape()?),
                _ => return Err("a control character in a string"),
            }
        }
    }

    fn escape(&mut self) -> Result<char, &'static str> {
        let kind = self.peek().ok_or("a string without an end")?;
        self.at += 1;
        Ok(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                let is_first_half = (0xd800..0xdc00).contains(&first);
                let code = if is_first_half && self.text[self.at..].starts_with("\\u") {
                    self.at += 2;
                    let second = self.hex()?;
                    let second = second.checked_sub(0xdc00).filter(|it| *it < 0x400);
                    let second = second.ok_or(HALF_A_PAIR)?;
                    0x1_0000 + ((first - 0xd800) << 10) + second
                } else {
                    first
                };
                char::from_u32(code).ok_or(HALF_A_PAIR)?
            }
            _ => return Err("an unknown escape"),
        })
    }

    fn hex(&mut self) -> Result<u32, &'static str> {
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|it| it.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let digits = digits.ok_or("an escape without its digits")?;
        self.at += 4;
        u32::from_str_radix(digits, 16).map_err(|_| "an escape without its digits")
    }

    /// A number as JSON has it: digits without leading zeros, perhaps a fraction, perhaps an exponent.
    fn number(&mut self) -> Result<String, &'static str> {
        let start = self.at;
        self.skip(b"-");
        if !self.skip(b"0") {
            self.digits()?;
        }
        if self.skip(b".") {
            self.digits()?;
        }
        if self.skip(b"eE") {
            self.skip(b"+-");
            self.digits()?;
        }
        Ok(self.text[start..self.at].to_owned())
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), &'static str> {
        let rest = self.text.as_bytes()[self.at..].iter();
        match rest.take_while(|byte| byte.is_ascii_digit()).count() {
            0 => Err("a number without its digits"),
            count => {
                self.at += count;
                Ok(())
            }
        }
    }

    /// Takes the next byte if it is one of these.
    fn skip(&mut self, bytes: &[u8]) -> bool {
        let is_one = self.peek().is_some_and(|byte| bytes.contains(&byte));
        self.at += usize::from(is_one);
        is_one
    }

    fn word(&mut self) -> Result<Value, &'static str> {
        let rest = &self.text[self.at..];
        for (word, value) in [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
        ] {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err("not a value")
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Result<(), &'static str> {
        if self.peek() != Some(byte) {
            return Err("something else than belongs there");
        }
        self.at += 1;
        Ok(())
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_another_parser_reads() {
        for text in [
            "null",
            " [ ] ",
            "{}",
            "[0,-0,10,0.5,-1e5,1E+5,1e-5]",
            r#"{"a":[1,-2.5e3,"x",true,false,null,{"b":{}}],"c":""}"#,
            r#""a\"b\\c\/\b\f\n\r\t\u00e4\ud83d\ude00 ä""#,
            "{\"header\":{\"revision\":\"5\"},\"kvs\":[{\"key\":\"aw==\"}]}\n",
        ] {
            let value = Value::parse(text.as_bytes()).unwrap();
            let other: serde_json::Value = serde_json::from_str(text).unwrap();
            assert!(is_same(&value, &other), "{text}: {value:?}");
        }
    }

    fn is_same(one: &Value, other: &serde_json::Value) -> bool {
        use serde_json::Value as Other;
        match (one, other) {
            (Value::Null, Other::Null) => true,
            (Value::Bool(one), Other::Bool(other)) => one == other,
            (Value::Number(one), Other::Number(other)) => one.parse::<f64>().ok() == other.as_f64(),
            (Value::String(one), Other::String(other)) => one == other,
            (Value::Array(one), Other::Array(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(a, b)| is_same(a, b))
            }
            (Value::Object(one), Other::Object(other)) => {
                one.len() == other.len()
                    && one.iter().all(|(name, it)| {
                        let there = other.get(name);
                        there.is_some_and(|there| is_same(it, there))
                    })
            }
            _ => false,
        }
    }

    #[test]
    fn what_is_cut_or_is_none_is_refused() {
        let text = r#"{"a":["b\u00e4",{"c":true}],"d":"e"}"#;
        for end in 0..text.len() {
            assert!(
                Value::parse(&text.as_bytes()[..end]).is_err(),
                "{}",
                &text[..end]
            );
        }
        let deep = "[".repeat(100_000);
        for text in [
            "{} {}",
            "nul",
            "{a:1}",
            "[1,]",
            "{\"a\":1,}",
            "[1 2]",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\ud800\\ue000\"",
            "\"\\udc00\"",
            "\"a\nb\"",
            "'a'",
            "-",
            "01",
            "-01",
            "1.",
            "1.5.2",
            "1-2",
            "1e",
            "1e+",
            "+1",
            &deep,
        ] {
            assert!(
                Value::parse(text.as_bytes()).is_err(),
                "{}",
                &text[..text.len().min(20)]
            );
        }
        assert!(Value::parse(b"\"\xff\"").is_err());
    }

    #[test]
    fn what_is_not_there_is_null() {
        let value = Value::parse(br#"{"a":{"b":true}}"#).unwrap();
        assert!(value.at("a").at("b").is_true());
        assert_eq!(*value.at("x").at("y"), Value::Null);
        assert!(value.has("a") && !value.has("b"));
        assert_eq!(value.elements(), []);
    }
}
