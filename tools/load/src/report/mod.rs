//! Shows what was found: as text for people, JSON for programs, tables and a picture.
//!
//! Never measures anything. `text` and `json` show one run, `figures` the targets, `tables`
//! servers side by side, `chart` and `svg` the picture of such a table; `format` writes numbers.

pub(crate) mod chart;
pub(crate) mod figures;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod svg;
pub(crate) mod tables;
pub(crate) mod text;
