//! What outlives the process, as far as the engine is concerned: which records it makes, what waits
//! for them, and what a restart brings back.
//!
//! `transcripts` holds the conversations in `tests/engine/records/transcripts`, which show all of it. Random
//! histories are in `tests/engine/model`, with a standby that knows only the records. No disk is involved: a
//! record is a value.

mod table;
mod transcripts;
