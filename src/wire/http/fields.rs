//! The body of a request: one flat JSON object becomes fields.
//!
//! Takes and refuses what Go's decoder does when it is told to refuse unknown fields, because
//! LockServer's clients grew up with it: keys match in any case, of two that are the same the last
//! one counts, `null` says nothing, and whatever stands behind the object is ignored. No field is a
//! list or an object, so there is nothing to descend into. Strings that need no decoding are borrowed.

use std::str;

use super::arena::Arena;
use super::problem::{self, Problem};
use crate::wire::args;

/// A field of some body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Adapter,
    Client,
    Count,
    Delta,
    ExtendByMs,
    FencingToken,
    Group,
    IfAbsent,
    IfValue,
    LeaseId,
    Len,
    Limit,
    ListEnd,
    Mode,
    /// `value`, where it is a number.
    Number,
    OwnerId,
    Pattern,
    Payload,
    /// `owner`: for whom a client locks bytes.
    RangeOwner,
    Secret,
    Start,
    TtlMs,
    /// `value`, where it is text.
    Value,
    WaitMs,
}

/// What a field has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Whole,
    /// A whole number of 64 bits without a sign, or the same as a string: not every sender can write
    /// large numbers exactly.
    Natural,
    Bool,
}

impl Field {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Adapter => "adapter",
            Self::Client => "client",
            Self::Count => "count",
            Self::Delta => "delta",
            Self::ExtendByMs => "extend_by_ms",
            Self::FencingToken => "fencing_token",
            Self::Group => "group",
            Self::IfAbsent => "if_absent",
            Self::IfValue => "if_value",
            Self::LeaseId => "lease_id",
            Self::Len => "len",
            Self::Limit => "limit",
            Self::ListEnd => "end",
            Self::Mode => "mode",
            Self::Number | Self::Value => "value",
            Self::OwnerId => "owner_id",
            Self::Pattern => "pattern",
            Self::Payload => "payload",
            Self::RangeOwner => "owner",
            Self::Secret => "secret",
            Self::Start => "start",
            Self::TtlMs => "ttl_ms",
            Self::WaitMs => "wait_ms",
        }
    }

    const fn kind(self) -> Kind {
        match self {
            Self::Adapter
            | Self::Client
            | Self::Group
            | Self::IfValue
            | Self::LeaseId
            | Self::ListEnd
            | Self::Mode
            | Self::OwnerId
            | Self::Pattern
            | Self::Payload
            | Self::RangeOwner
            | Self::Secret
            | Self::Value => Kind::Text,
            Self::Count
            | Self::Delta
            | Self::ExtendByMs
            | Self::FencingToken
            | Self::Limit
            | Self::Number
            | Self::TtlMs
            | Self::WaitMs => Kind::Whole,
            Self::Len | Self::Start => Kind::Natural,
            Self::IfAbsent => Kind::Bool,
        }
    }
}

/// A string of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Text<'a> {
    pub(super) text: &'a str,
    /// Something in it was no character, and is U+FFFD now.
    pub(super) is_replaced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot<'a> {
    Text(Text<'a>),
    Whole(i64),
    Natural(u64),
    Bool(bool),
}

/// Most fields that some route knows.
const FIELDS_MAX: usize = 7;

/// The fields of one body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    known: &'static [Field],
    /// What was given, in the order of those that are known.
    slots: [Option<Slot<'a>>; FIELDS_MAX],
}

impl<'a> Fields<'a> {
    /// None at all: an object that is empty.
    pub(super) const NONE: Self = Self {
        known: &[],
        slots: [None; FIELDS_MAX],
    };

    fn get(&self, field: Field) -> Option<Slot<'a>> {
        let index = self.known.iter().position(|it| *it == field)?;
        self.slots[index]
    }

    /// A string, if it was given.
    pub(super) fn text(&self, field: Field) -> Option<Text<'a>> {
        match self.get(field)? {
            Slot::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A whole number, if it was given.
    pub(super) fn whole(&self, field: Field) -> Option<i64> {
        match self.get(field)? {
            Slot::Whole(number) => Some(number),
            _ => None,
        }
    }

    /// A whole number without a sign, if it was given.
    pub(super) fn natural(&self, field: Field) -> Option<u64> {
        match self.get(field)? {
            Slot::Natural(number) => Some(number),
            _ => None,
        }
    }

    /// Whether it was given and is true.
    pub(super) fn is_true(&self, field: Field) -> bool {
        self.get(field) == Some(Slot::Bool(true))
    }
}

/// How much of the arena the strings of a body take at most. Only what is no character grows: each
/// such byte becomes three.
pub(super) fn decoded_bytes_max(body: &[u8]) -> usize {
    if body.is_ascii() && memchr::memchr(b'\\', body).is_none() {
        return 0;
    }
    match str::from_utf8(body) {
        Ok(_) => body.len(),
        Err(_) => 3 * body.len(),
    }
}

/// Reads the object that a body begins with; only these fields may be in it.
pub(super) fn read<'a>(
    body: &'a [u8],
    known: &'static [Field],
    arena: &mut Arena<'a>,
) -> Result<Fields<'a>, Problem<'a>> {
    let mut reader = Reader { body, at: 0, arena };
    let mut fields = Fields {
        known,
        ..Fields::NONE
    };
    reader.skip_blanks();
    match reader.peek() {
        None => return Err(problem::NO_BODY),
        Some(b'n') => return reader.word(b"null").map(|()| fields),
        Some(b'{') => reader.at += 1,
        Some(_) => return Err(reader.wrong(problem::NOT_AN_OBJECT)),
    }
    if reader.next_is(b'}') {
        return Ok(fields);
    }
    loop {
        reader.skip_blanks();
        let key = reader.string()?;
        let index = known
            .iter()
            .position(|field| is_same_key(field.name(), key.text))
            .ok_or_else(|| problem::UNKNOWN_FIELD.about(key.text.as_bytes()))?;
        if !reader.next_is(b':') {
            return Err(reader.wrong(problem::BAD_JSON));
        }
        reader.skip_blanks();
        if let Some(slot) = reader.value(known[index])? {
            fields.slots[index] = Some(slot);
        }
        if reader.next_is(b'}') {
            return Ok(fields);
        }
        if !reader.next_is(b',') {
            return Err(reader.wrong(problem::BAD_JSON));
        }
    }
}

/// As Go compares them: in any case, and two characters beyond ASCII count as the letters that they
/// are the other case of.
fn is_same_key(name: &str, key: &str) -> bool {
    if key.is_ascii() {
        return name.eq_ignore_ascii_case(key);
    }
    let fold = |letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    };
    key.chars().map(fold).eq(name.chars())
}

struct Reader<'r, 'a> {
    body: &'a [u8],
    at: usize,
    arena: &'r mut Arena<'a>,
}

impl<'a> Reader<'_, 'a> {
    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
    }

    /// Whether this byte is next, behind blanks; then it is taken.
    fn next_is(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// What is wrong here: the end, or what stands here.
    fn wrong(&self, problem: Problem<'static>) -> Problem<'a> {
        match self.body.get(self.at..) {
            None | Some([]) => problem::CUT_SHORT,
            Some(rest) => problem.about(rest),
        }
    }

    /// Takes exactly this word.
    fn word(&mut self, word: &[u8]) -> Result<(), Problem<'a>> {
        for &byte in word {
            if self.peek() != Some(byte) {
                return Err(self.wrong(problem::BAD_JSON));
            }
            self.at += 1;
        }
        Ok(())
    }

    /// A value of a field; none if it is null, which says nothing, not even that there is nothing.
    fn value(&mut self, field: Field) -> Result<Option<Slot<'a>>, Problem<'a>> {
        let slot = match (self.peek(), field.kind()) {
            (Some(b'n'), _) => return self.word(b"null").map(|()| None),
            (Some(b'"'), Kind::Text) => Slot::Text(self.string()?),
            (Some(b'-' | b'0'..=b'9'), Kind::Whole) => Slot::Whole(self.whole(field)?),
            (Some(b'"' | b'-' | b'0'..=b'9'), Kind::Natural) => Slot::Natural(self.natural(field)?),
            (Some(b't'), Kind::Bool) => self.word(b"true").map(|()| Slot::Bool(true))?,
            (Some(b'f'), Kind::Bool) => self.word(b"false").map(|()| Slot::Bool(false))?,
            (None, _) => return Err(problem::CUT_SHORT),
            (Some(_), kind) => {
                let problem = match kind {
                    Kind::Text => problem::NOT_TEXT,
                    Kind::Whole => problem::NOT_WHOLE,
                    Kind::Natural => problem::NOT_NATURAL,
                    Kind::Bool => problem::NOT_BOOL,
                };
                return Err(problem.about(field.name().as_bytes()));
            }
        };
        Ok(Some(slot))
    }

    /// Digits only, in quotes or not. As a number it is written as JSON has it, without leading zeros.
    fn natural(&mut self, field: Field) -> Result<u64, Problem<'a>> {
        let bad = problem::NOT_NATURAL.about(field.name().as_bytes());
        if self.peek() == Some(b'"') {
            let text = self.string()?.text;
            return args::unsigned(text.as_bytes()).map_err(|_| bad);
        }
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        match (&self.body[start..self.at], self.peek()) {
            ([b'0', _, ..], _) | (_, Some(b'.' | b'e' | b'E')) => Err(bad),
            (digits, _) => args::unsigned(digits).map_err(|_| bad),
        }
    }

    /// Digits only, perhaps with a minus: a fraction or an exponent makes it another kind of number,
    /// even if its value is whole.
    fn whole(&mut self, field: Field) -> Result<i64, Problem<'a>> {
        let bad = problem::NOT_WHOLE.about(field.name().as_bytes());
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        let digits = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        match (&self.body[digits..self.at], self.peek()) {
            ([], _) => Err(self.wrong(problem::BAD_JSON)),
            ([b'0', _, ..], _) | (_, Some(b'.' | b'e' | b'E')) => Err(bad),
            _ => args::integer(&self.body[start..self.at]).map_err(|_| bad),
        }
    }

    /// A string, from quote to quote.
    fn string(&mut self) -> Result<Text<'a>, Problem<'a>> {
        if self.peek() != Some(b'"') {
            return Err(self.wrong(problem::BAD_JSON));
        }
        self.at += 1;
        let start = self.at;
        let mut has_escape = false;
        loop {
            self.skip_plain()?;
            match self.peek() {
                None => return Err(problem::CUT_SHORT),
                Some(b'"') => break,
                Some(_) => {
                    has_escape = true;
                    self.arena.looks += 1;
                    self.at += self.escape_bytes()?;
                }
            }
        }
        let raw = &self.body[start..self.at];
        self.at += 1;
        match str::from_utf8(raw) {
            Ok(text) if !has_escape => Ok(Text {
                text,
                is_replaced: false,
            }),
            _ => Ok(self.decoded(raw)),
        }
    }

    /// Skips what stands before the next quote or backslash.
    fn skip_plain(&mut self) -> Result<(), Problem<'a>> {
        let rest = &self.body[self.at..];
        if let Some(b'"' | b'\\') = rest.first() {
            return Ok(());
        }
        let length = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
        // In one go over all of them, which is several at a time.
        let is_control = |byte: &u8| *byte < 0x20;
        if rest[..length]
            .iter()
            .fold(false, |any, it| any | is_control(it))
        {
            self.at += rest.iter().position(is_control).unwrap_or_default();
            return Err(self.wrong(problem::BAD_JSON));
        }
        self.at += length;
        Ok(())
    }

    /// The length of the escape that begins here, if it is one.
    fn escape_bytes(&self) -> Result<usize, Problem<'a>> {
        let rest = &self.body[self.at..];
        match rest {
            [
                _,
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't',
                ..,
            ] => Ok(2),
            [_, b'u', ..] => match rest[2..]
                .iter()
                .take(4)
                .position(|it| !it.is_ascii_hexdigit())
            {
                Some(_) => Err(self.wrong(problem::BAD_JSON)),
                None if rest.len() < 6 => Err(problem::CUT_SHORT),
                None => Ok(6),
            },
            [_] => Err(problem::CUT_SHORT),
            _ => Err(self.wrong(problem::BAD_JSON)),
        }
    }

    /// Resolves the escapes of a string, all of which are well-formed, and replaces what is no
    /// character.
    fn decoded(&mut self, raw: &'a [u8]) -> Text<'a> {
        let mut replaced = 0;
        let piece = self.arena.piece(|room| {
            let mut length = 0;
            for_each_piece(raw, |piece| {
                let room = &mut room[length..];
                length += match piece {
                    Piece::Plain(text) => {
                        room[..text.len()].copy_from_slice(text.as_bytes());
                        text.len()
                    }
                    Piece::Letter(letter) => letter.encode_utf8(room).len(),
                    Piece::NoCharacter => {
                        replaced += 1;
                        char::REPLACEMENT_CHARACTER.encode_utf8(room).len()
                    }
                };
            });
            Some(length)
        });
        self.arena.looks += replaced;
        // It is made of characters, so it is UTF-8.
        let text = piece.and_then(|it| str::from_utf8(it).ok());
        Text {
            text: text.unwrap_or_default(),
            is_replaced: replaced > 0,
        }
    }
}

/// A part of a string in its escaped form.
enum Piece<'a> {
    /// Characters that mean themselves.
    Plain(&'a str),
    /// What an escape means.
    Letter(char),
    /// A byte, or a half of a surrogate pair, that is no part of a character.
    NoCharacter,
}

/// Tells every piece of a string.
fn for_each_piece(raw: &[u8], mut tell: impl FnMut(Piece<'_>)) {
    for chunk in raw.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
            if at > 0 {
                tell(Piece::Plain(&rest[..at]));
            }
            let (letter, bytes) = escaped(&rest.as_bytes()[at..]);
            tell(letter.map_or(Piece::NoCharacter, Piece::Letter));
            rest = &rest[at + bytes..];
        }
        tell(Piece::Plain(rest));
        for _ in chunk.invalid() {
            tell(Piece::NoCharacter);
        }
    }
}

/// The character that an escape means, and how long the escape is.
fn escaped(escape: &[u8]) -> (Option<char>, usize) {
    let letter = match escape[1] {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return code_point(escape),
        other => char::from(other),
    };
    (Some(letter), 2)
}

fn code_point(escape: &[u8]) -> (Option<char>, usize) {
    let first = unit(escape);
    let second = escape
        .get(6..)
        .filter(|it| it.starts_with(b"\\u"))
        .map_or(0, unit);
    if (0xd800..0xdc00).contains(&first) && (0xdc00..0xe000).contains(&second) {
        let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return (char::from_u32(code), 12);
    }
    (char::from_u32(first), 6)
}

/// The number in `\u0041`.
fn unit(escape: &[u8]) -> u32 {
    let digits = escape[2..6].iter();
    digits.fold(0, |unit, &digit| {
        unit << 4 | char::from(digit).to_digit(16).unwrap_or(0)
    })
}

#[cfg(test)]
#[path = "fields_tests.rs"]
mod tests;
