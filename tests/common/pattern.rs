//! What was said against what was written.
//!
//! Words are compared one by one. `$A` is a token, `$A.fence` the fence inside it, `$n` any word:
//! the first time it is seen it gets its value, afterwards it must have it. `abc...` is a
//! beginning. A word that begins with `{` is JSON, where `...` stands for further members. Text in
//! single quotes is compared as it is, in double quotes as the bytes it stands for when it is sent.

use std::collections::BTreeMap;

use latchd::base::Token;
use serde_json::Value;

use super::transcript;

/// What the names of a conversation stand for.
#[derive(Clone, Default)]
pub(crate) struct Names(BTreeMap<String, String>);

impl Names {
    /// The text with every name replaced by its value; the unknown name otherwise.
    pub(crate) fn fill(&self, text: &str) -> Result<String, String> {
        let mut parts = text.split('$');
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let len = part
                .find(|c: char| !c.is_ascii_alphanumeric())
                .unwrap_or(part.len());
            let (name, rest) = part.split_at(len);
            let value = self.0.get(name).ok_or_else(|| format!("${name}"))?;
            match rest.strip_prefix(".fence") {
                Some(rest) => out += &(fence(value).ok_or(name)?.to_string() + rest),
                None => out += &(value.clone() + rest),
            }
        }
        Ok(out)
    }

    /// Whether this pattern says this line; names are learnt only if it does.
    pub(crate) fn says(&mut self, pattern: &str, line: &str) -> bool {
        let mut names = self.clone();
        let says = names.matches(pattern, line);
        if says {
            *self = names;
        }
        says
    }

    fn matches(&mut self, pattern: &str, line: &str) -> bool {
        if let Some(exact) = pattern
            .strip_prefix('\'')
            .and_then(|it| it.strip_suffix('\''))
        {
            return self.fill(exact).is_ok_and(|exact| exact == line);
        }
        if let Some(quoted) = pattern
            .strip_prefix('"')
            .and_then(|it| it.strip_suffix('"'))
        {
            let bytes = transcript::unquote(quoted)
                .unwrap_or_else(|| panic!("not a quoted string: {pattern}"));
            return String::from_utf8_lossy(&bytes) == line;
        }
        if pattern.starts_with('{') {
            let Ok(said) = serde_json::from_str(line) else {
                return false;
            };
            let pattern = serde_json::from_str(&as_json(pattern)).unwrap_or_else(|why| {
                panic!("not a JSON pattern: {pattern}: {why}");
            });
            return self.matches_json(&pattern, &said);
        }
        match (pattern.split_once(' '), line.split_once(' ')) {
            (Some((want, wants)), Some((word, words))) => {
                self.matches_word(want, word) && self.matches(wants, words)
            }
            (None, None) => self.matches_word(pattern, line),
            _ => false,
        }
    }

    fn matches_word(&mut self, want: &str, word: &str) -> bool {
        if let Some(start) = want.strip_suffix("...") {
            return word.starts_with(start);
        }
        let Some(name) = want.strip_prefix('$') else {
            return want == word;
        };
        if let Some(name) = name.strip_suffix(".fence") {
            let token = self.0.get(name);
            return token
                .and_then(|it| fence(it))
                .is_some_and(|it| it.to_string() == word);
        }
        if name.starts_with(|c: char| c.is_ascii_uppercase()) && fence(word).is_none() {
            return false;
        }
        self.0
            .entry(name.to_owned())
            .or_insert_with(|| word.to_owned())
            == word
    }

    fn matches_json(&mut self, want: &Value, said: &Value) -> bool {
        match (want, said) {
            (Value::String(name), said) if name.starts_with('$') => {
                let word = said
                    .as_str()
                    .map_or_else(|| said.to_string(), str::to_owned);
                self.matches_word(name, &word)
            }
            (Value::Object(want), Value::Object(said)) => {
                let open = want.contains_key("...");
                let known = want.iter().filter(|(name, _)| *name != "...");
                let mut asked = 0;
                let all = known.into_iter().all(|(name, want)| {
                    asked += 1;
                    said.get(name)
                        .is_some_and(|said| self.matches_json(want, said))
                });
                all && (open || asked == said.len())
            }
            (Value::Array(want), Value::Array(said)) => {
                let mut both = want.iter().zip(said);
                want.len() == said.len() && both.all(|(want, said)| self.matches_json(want, said))
            }
            (Value::Number(want), Value::Number(said)) => want.as_f64() == said.as_f64(),
            (want, said) => want == said,
        }
    }

    /// The line as a transcript would have it: tokens by name, new ones named after their reader.
    pub(crate) fn write(&mut self, who: &str, line: &str) -> String {
        let mut latest = None;
        let words = line.split(' ').enumerate().map(|(place, word)| {
            if let Some(fence) = fence(word) {
                let known = self.0.iter().find(|(_, value)| *value == word);
                let name = match known {
                    Some((name, _)) => name.clone(),
                    None => {
                        let name = self.unused(&who.to_ascii_uppercase());
                        self.0.insert(name.clone(), word.to_owned());
                        name
                    }
                };
                latest = Some((name.clone(), fence.to_string()));
                return format!("${name}");
            }
            match &latest {
                Some((name, fence)) if place == 3 && fence == word => format!("${name}.fence"),
                _ => word.to_owned(),
            }
        });
        words.collect::<Vec<_>>().join(" ")
    }

    fn unused(&self, name: &str) -> String {
        let numbered = (2..).map(|number| format!("{name}{number}"));
        std::iter::once(name.to_owned())
            .chain(numbered)
            .find(|name| !self.0.contains_key(name))
            .expect("numbers do not end")
    }
}

/// The fence in a token; `None` if this is not one.
pub(crate) fn fence(word: &str) -> Option<u64> {
    let token = Token::parse(word.as_bytes())?;
    (token.hex() == word.as_bytes()).then_some(token.fence.0)
}

/// `...` and `$name` are no JSON; as members and strings they are.
fn as_json(pattern: &str) -> String {
    let mut out = String::new();
    let mut rest = pattern;
    while let Some(at) = rest.find(['$', '.']) {
        let (before, from) = rest.split_at(at);
        out += before;
        if let Some(after) = from.strip_prefix("...") {
            out += "\"...\":0";
            rest = after;
        } else if let Some(name) = from.strip_prefix('$') {
            let len = name
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '.')
                .unwrap_or(name.len());
            let (name, after) = name.split_at(len);
            out += &format!("\"${name}\"");
            rest = after;
        } else {
            out.push('.');
            rest = &from[1..];
        }
    }
    out + rest
}
