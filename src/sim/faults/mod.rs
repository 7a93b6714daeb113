//! What goes wrong: on the way (`network`), with clients that do not read (`readers`), and with the
//! server's own time and life (`server`).
//!
//! How much of it there is in one run is in its plan; when it strikes is drawn here. Never decides
//! what clients ask for.

pub(super) mod network;
pub(super) mod readers;
pub(super) mod server;
