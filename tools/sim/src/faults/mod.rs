//! What goes wrong: on the way (`network`), with clients that do not read (`readers`), with the
//! server itself (`server`), with its process (`process`) and with its disk (`disk`). What a broken server
//! would say or do is in `http` and `ranges`.
//!
//! The plan says how often; when it happens is drawn here. Never decides what clients ask for.

pub(super) mod disk;
pub(super) mod http;
pub(super) mod network;
pub(super) mod process;
pub(super) mod ranges;
pub(super) mod readers;
pub(super) mod server;
