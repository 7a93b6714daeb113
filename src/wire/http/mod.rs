//! HTTP/1.1: bytes become what is asked, and answers become bytes.
//!
//! [`Reader`] finds the request that the input begins with (`head.rs`, `body.rs`), `routes.rs` and
//! `target.rs` where it leads, `fields.rs` what its body says, and `ask.rs` what all that means. The
//! answer is spelled by `answer.rs`, a page of many entries by `pages.rs`, a stream by `events.rs`.
//! In between, [`Memo`] remembers what the answer has to know.
//!
//! Strict where two readers could disagree about where a request ends, and lenient only where
//! LockServer's clients need it. Never holds a byte itself, and never reads further than
//! [`REQUEST_BYTES_MAX`].

pub mod answer;
pub mod ask;
pub mod context;
pub mod events;
pub mod guard;
pub mod pages;
pub mod problem;
pub mod routes;

mod arena;
mod base64;
mod body;
mod codec;
mod fields;
mod head;
mod need;
mod object;
mod range_ask;
mod range_replies;
mod reader;
mod replies;
mod target;

pub use self::ask::{Ask, By, Page};
pub use self::body::CHUNK_OVERHEAD_BYTES_MAX;
pub use self::codec::{HttpCodec, Speech};
pub use self::context::{Context, Memo};
pub use self::head::{HEAD_BYTES_MAX, HEADERS_MAX};
pub use self::problem::Problem;
pub use self::reader::{Asked, Decoded, Part, REQUEST_BYTES_MAX, Reader, SCRATCH_BYTES_MAX};
pub use self::routes::{Access, Route};
pub use self::target::LOCK_NAME_BYTES_MAX;
