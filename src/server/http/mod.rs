//! The HTTP door: what it shows of the server.
//!
//! `shown` gathers what the server knows of itself; `metrics` and `stats` are that as text for
//! Prometheus and as JSON; `pages` are the lists; `files` what is in the binary for browsers; and
//! `figures` what is counted for all of them.

mod figures;
mod files;
mod metrics;
mod pages;
#[cfg(test)]
mod sample;
mod shown;
mod stats;

pub(super) use self::figures::HttpFigures;
