//! What outlives the process, as far as the engine is concerned: which records it makes, what waits
//! for them, and what a restart brings back.
//!
//! `transcripts` holds the conversations in `tests/engine/records/transcripts`, which show all of
//! it; `twin` feeds the records of random histories to a second engine and compares the two after
//! every step. No disk is involved: a record is a value.

#![allow(clippy::unwrap_used, missing_docs)]

mod table;
mod transcripts;
mod twin;
