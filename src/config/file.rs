//! The configuration file: TOML, with the names of the flags as keys.
//!
//! Which keys there are and what their values mean stands in the table: here a value becomes the
//! text that the flag would have been given. Every refusal names file, line and key; none quotes a
//! value, because it may be a token.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::command::suggested;
use super::named_file::read_named_file;
use super::row::{Row, Takes};
use super::table::{CONFIG, ROWS};
use super::{ConfigError, value};

/// Longest configuration file; a longer one is refused. All options with their descriptions take a
/// tenth of it.
const FILE_BYTES_MAX: usize = 256 * 1024;

/// One key of the file.
pub(super) struct Entry {
    pub(super) row: &'static Row,
    /// File, line and key, for errors: `/etc/latchd/latchd.toml:3: port`.
    pub(super) written_as: String,
    /// What the flag would have been given.
    pub(super) text: String,
}

/// Reads the file at this path, which an option or variable has named, in the order of its lines.
pub(super) fn read(named_by: &str, path: &str) -> Result<Vec<Entry>, ConfigError> {
    let unusable = |why: String| ConfigError::unusable(format!("{named_by}: {why}"));
    if value::path(path).is_none() {
        return Err(ConfigError::usage(format!(
            "{named_by}: {path:?} is not the path of a configuration file"
        )));
    }
    let bytes = read_named_file(Path::new(path), FILE_BYTES_MAX)
        .map_err(|error| unusable(format!("cannot read {path:?}: {error}")))?;
    if bytes.len() > FILE_BYTES_MAX {
        let kib = FILE_BYTES_MAX / 1024;
        return Err(unusable(format!("{path:?} is longer than {kib} KiB")));
    }
    let path = path.escape_debug().to_string();
    let text = str::from_utf8(&bytes).map_err(|error| {
        let line = line_at(&bytes, error.valid_up_to());
        ConfigError::unusable(format!("{path}:{line}: this is not valid UTF-8"))
    })?;
    entries(&path, text)
}

fn entries(path: &str, text: &str) -> Result<Vec<Entry>, ConfigError> {
    let at = |offset: usize| format!("{path}:{}", line_at(text.as_bytes(), offset));
    let table = DeTable::parse(text).map_err(|error| {
        let place = error
            .span()
            .map_or_else(|| path.to_owned(), |span| at(span.start));
        let why = error.message().replace('\n', " ");
        ConfigError::unusable(format!("{place}: {why}"))
    })?;
    let mut keys: Vec<_> = table.get_ref().iter().collect();
    keys.sort_by_key(|(key, _)| key.span().start);
    let mut entries = Vec::new();
    for (key, value) in keys {
        let (place, value) = (at(key.span().start), value.get_ref());
        let row = row_of(key.get_ref(), value)
            .map_err(|why| ConfigError::unusable(format!("{place}: {why}")))?;
        let written_as = format!("{place}: {}", row.flag);
        let text = text_of(row, value).map_err(|kind| {
            let must = must_be(row);
            ConfigError::unusable(format!("{written_as}: {kind} cannot stand here: {must}"))
        })?;
        if let Some(text) = text {
            let entry = Entry {
                row,
                written_as,
                text,
            };
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// The row that a key stands for, or why it stands for none.
fn row_of(key: &str, value: &DeValue<'_>) -> Result<&'static Row, String> {
    let named = |name: &str| ROWS.iter().find(|row| row.flag == name);
    if key == CONFIG {
        return Err(format!("{key}: a configuration file cannot name another"));
    }
    if let Some(row) = named(key) {
        return Ok(row);
    }
    if let Some(row) = ROWS.iter().find(|row| row.takes.negation() == Some(key)) {
        return Err(format!(
            "unknown key {key:?}; write {} = false instead",
            row.flag
        ));
    }
    if let DeValue::Table(section) = value {
        let inner = section.iter().next();
        let meant = inner.and_then(|(inner, _)| suggested(&format!("{key}-{}", inner.get_ref())));
        let example = meant.map_or("http-port", |row| row.flag);
        return Err(format!(
            "{key:?} is a section, and there are none: keys are the names of flags, \
             such as {example}"
        ));
    }
    Err(match suggested(key) {
        Some(row) => format!("unknown key {key:?}; did you mean {}?", row.flag),
        None => format!("unknown key {key:?}; keys are the names of flags, see latchd --help"),
    })
}

/// What the flag would have been given for this value, if anything; or what kind of value it is, if
/// it is none that this row takes.
fn text_of(row: &Row, value: &DeValue<'_>) -> Result<Option<String>, &'static str> {
    match (row.takes, value) {
        (Takes::Switch { .. }, DeValue::Boolean(on)) => Ok(Some(on.to_string())),
        (Takes::Switch { .. }, _) => Err(kind(value)),
        (Takes::Words, DeValue::Array(words)) => {
            let words = words.iter().map(|word| word_of(row, word.get_ref()));
            let words: Vec<String> = words.collect::<Result<_, _>>()?;
            Ok((!words.is_empty()).then(|| words.join(",")))
        }
        (Takes::Number | Takes::Word | Takes::Words, _) => word_of(row, value).map(Some),
    }
}

fn word_of(row: &Row, value: &DeValue<'_>) -> Result<String, &'static str> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        // As it would be written behind the flag. Permissions are octal there; nothing else is.
        DeValue::Integer(number)
            if row.takes != Takes::Word
                && (number.radix() == 10 || (number.radix() == 8 && row.value == "MODE")) =>
        {
            Ok(number.as_str().to_owned())
        }
        _ => Err(kind(value)),
    }
}

/// What a value has to be, for whoever wrote another kind.
fn must_be(row: &Row) -> String {
    let form = match row.takes {
        Takes::Switch { .. } => "write true or false".to_owned(),
        Takes::Number => format!("write {} in decimal, or in quotes", row.rule),
        Takes::Word => format!("write {} in quotes", row.rule),
        Takes::Words => format!("write {} in quotes, or several in brackets", row.rule),
    };
    format!("{form} (see --{})", row.flag)
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a number like this",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

/// Lines are counted from 1, as editors do.
fn line_at(text: &[u8], offset: usize) -> usize {
    let before = &text[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}
