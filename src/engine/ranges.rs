//! Byte ranges.

pub(super) mod ask;
pub(super) mod view;
