//! The members of a JSON object, each with the comma before it.
//!
//! Titles are ours and need no escapes; values are anybody's and get them.

use crate::wire::json::{push_number, push_str_escaped};

/// `,"title":`.
pub(super) fn title(out: &mut Vec<u8>, title: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(title.as_bytes());
    out.extend_from_slice(b"\":");
}

/// A number.
pub(super) fn field(out: &mut Vec<u8>, called: &str, value: u64) {
    title(out, called);
    push_number(out, value);
}

/// A number that may be negative.
pub(super) fn signed(out: &mut Vec<u8>, called: &str, value: i64) {
    title(out, called);
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// A truth.
pub(super) fn flag(out: &mut Vec<u8>, called: &str, value: bool) {
    title(out, called);
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

/// A string.
pub(super) fn text(out: &mut Vec<u8>, called: &str, value: &str) {
    title(out, called);
    push_str_escaped(out, value.as_bytes());
}

/// A string, or null.
pub(super) fn text_or_null(out: &mut Vec<u8>, called: &str, value: Option<&str>) {
    match value {
        Some(value) => text(out, called, value),
        None => {
            title(out, called);
            out.extend_from_slice(b"null");
        }
    }
}
