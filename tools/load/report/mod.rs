//! Shows what was found: as text for people, JSON for programs, tables and a picture.
//!
//! Never measures anything. `text` and `json` show one run, `figures` the targets, `tables` and
//! `svg` servers side by side; `format` writes numbers.

pub(crate) mod figures;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod svg;
pub(crate) mod tables;
pub(crate) mod text;
