//! What people and programs read of latchd, byte for byte: documents of the HTTP door and of the line
//! protocol, figures for Prometheus, help texts, man pages.
//!
//! The files of a folder are what is made for it now, no more and no fewer. After a change that is meant,
//! `UPDATE_GOLDEN=1 cargo test --test server golden::` writes them anew; review them as a diff. Documents are made by
//! a server over pipes, whose clock is still unless a scene moves it. Journals of every format have golden
//! files of their own (`tests/store/journal/golden.rs`).

mod documents;
mod folder;
mod help;
