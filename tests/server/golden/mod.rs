//! Output of latchd that people and programs read, byte for byte: documents of the HTTP door and of
//! the line protocol, figures for Prometheus, help texts, man pages.
//!
//! A folder has exactly the files that are made for it now. After an intended change,
//! `UPDATE_GOLDEN=1 cargo test --test server golden::` rewrites them; review the diff. Documents
//! are made by a server over pipes, whose clock stands still unless a scene moves it. Journals of
//! every format have golden files of their own (`tests/store/journal/golden.rs`).

mod documents;
mod folder;
mod help;
