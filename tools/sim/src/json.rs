//! Reads the documents that answer `stats` and `who`, to compare them with what the checks know.
//!
//! As strict as those who read them with a library: whatever is not JSON is `None`. Numbers are
//! those of JavaScript, so a fence that did not fit would be noticed. Never writes.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

/// One JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Self>),
    Object(BTreeMap<String, Self>),
}

impl Json {
    /// The value that this text is, if it is one and nothing follows it.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut reader = Reader(text.chars().peekable());
        let value = reader.value()?;
        reader.0.next().is_none().then_some(value)
    }

    fn get(&self, name: &str) -> Result<&Self, String> {
        let Self::Object(fields) = self else {
            return Err(format!("{self:?} has no field {name:?}"));
        };
        fields.get(name).ok_or_else(|| format!("no {name:?}"))
    }

    /// The field of this name, which is an object.
    pub(crate) fn object(&self, name: &str) -> Result<&Self, String> {
        self.get(name)
    }

    /// The field of this name, which is a whole number.
    pub(crate) fn number(&self, name: &str) -> Result<u64, String> {
        match self.get(name)? {
            Self::Number(number) if *number >= 0.0 && number.fract() == 0.0 => Ok(*number as u64),
            other => Err(format!("{name:?} is {other:?}")),
        }
    }

    /// The field of this name, which is a span in seconds, in milliseconds.
    pub(crate) fn span_ms(&self, name: &str) -> Result<u64, String> {
        match self.get(name)? {
            Self::Number(seconds) if *seconds >= 0.0 => Ok((seconds * 1_000.0).round() as u64),
            other => Err(format!("{name:?} is {other:?}")),
        }
    }

    /// The field of this name, which is text.
    pub(crate) fn text(&self, name: &str) -> Result<&str, String> {
        match self.get(name)? {
            Self::Text(text) => Ok(text),
            other => Err(format!("{name:?} is {other:?}")),
        }
    }

    /// The field of this name, which is yes or no.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, String> {
        match self.get(name)? {
            Self::Bool(yes) => Ok(*yes),
            other => Err(format!("{name:?} is {other:?}")),
        }
    }

    /// The field of this name, which is a list.
    pub(crate) fn list(&self, name: &str) -> Result<&[Self], String> {
        match self.get(name)? {
            Self::List(list) => Ok(list),
            other => Err(format!("{name:?} is {other:?}")),
        }
    }
}

struct Reader<'t>(Peekable<Chars<'t>>);

impl Reader<'_> {
    fn value(&mut self) -> Option<Json> {
        match self.0.peek()? {
            'n' => self.word("null", Json::Null),
            't' => self.word("true", Json::Bool(true)),
            'f' => self.word("false", Json::Bool(false)),
            '"' => self.text().map(Json::Text),
            '[' => {
                let mut list = Vec::new();
                self.each(']', |reader| {
                    list.push(reader.value()?);
                    Some(())
                })?;
                Some(Json::List(list))
            }
            '{' => {
                let mut fields = BTreeMap::new();
                self.each('}', |reader| {
                    let name = reader.text()?;
                    reader.0.next_if_eq(&':')?;
                    let value = reader.value()?;
                    fields.insert(name, value).is_none().then_some(())
                })?;
                Some(Json::Object(fields))
            }
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str, value: Json) -> Option<Json> {
        for letter in word.chars() {
            self.0.next_if_eq(&letter)?;
        }
        Some(value)
    }

    /// What stands between an opening bracket and this closing one, with commas in between.
    fn each(&mut self, end: char, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.0.next()?;
        if self.0.next_if_eq(&end).is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            match self.0.next()? {
                ',' => {}
                it if it == end => return Some(()),
                _ => return None,
            }
        }
    }

    fn text(&mut self) -> Option<String> {
        self.0.next_if_eq(&'"')?;
        let mut text = String::new();
        loop {
            match self.0.next()? {
                '"' => return Some(text),
                '\\' => text.push(self.escaped()?),
                '\0'..' ' => return None,
                letter => text.push(letter),
            }
        }
    }

    fn escaped(&mut self) -> Option<char> {
        match self.0.next()? {
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'u' => {
                let digits: String = (0..4).map_while(|_| self.0.next()).collect();
                char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
            }
            letter @ ('"' | '\\' | '/') => Some(letter),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Json> {
        let mut digits = String::new();
        while let Some(digit) = self
            .0
            .next_if(|it| it.is_ascii_digit() || "+-.eE".contains(*it))
        {
            digits.push(digit);
        }
        digits.parse().ok().map(Json::Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read_and_what_is_none_is_not() {
        let text =
            r#"{"a":[1,25.4,-3],"b":{"key":"k\u0000\"\\ü"},"c":null,"d":true,"e":[],"f":{}}"#;
        let json = Json::read(text).expect("a document");
        assert_eq!(json.list("a").map(<[Json]>::len), Ok(3));
        assert_eq!(
            json.object("b").and_then(|it| it.text("key")),
            Ok("k\0\"\\ü")
        );
        assert!(json.text("c").is_err() && json.number("none").is_err());
        for wrong in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,\"a\":2}",
            "\"\n\"",
            "1 2",
            "nul",
            "{a:1}",
        ] {
            assert_eq!(Json::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn seconds_are_milliseconds_here() {
        let json = Json::read(r#"{"left":0.029,"fence":9007199254740991}"#).expect("a document");
        assert_eq!(json.span_ms("left"), Ok(29));
        assert_eq!(json.number("fence"), Ok((1 << 53) - 1));
    }
}
