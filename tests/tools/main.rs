//! The project itself: the load generator (`load`, `load_leases`), what the documents promise
//! (`docs`, `http_docs`, `log_lines`, `openapi`), and what the source keeps to (`features`,
//! `must_not_happen`, `secrets`, `tidy`).

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test whose world does not work has to fail; it is no interface"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "threads play clients, and the clock measures lower bounds"
)]

mod docs;
mod features;
mod http_docs;
mod load;
mod load_leases;
mod log_lines;
mod must_not_happen;
#[path = "../common/named_tests.rs"]
mod named_tests;
mod openapi;
mod secrets;
#[path = "../common/source.rs"]
mod source;
mod tidy;
#[path = "../common/tool.rs"]
mod tool;
