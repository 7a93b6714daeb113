//! What was found, for readers: text for people, JSON for programs, tables and a picture.
//!
//! Never measures anything. `text` and `json` are of a single run, `figures` is the table of targets,
//! `tables` are of servers side by side, `svg` the picture of these;
//! `format` writes numbers.

pub(crate) mod figures;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod svg;
pub(crate) mod tables;
pub(crate) mod text;
