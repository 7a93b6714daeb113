//! One run: connections that send requests, and what comes of it.
//!
//! Reading order: `spec` says what a run does, `event_loop` runs it, `cycles` is what each
//! connection does, `ledger` is what must hold, `outcome` what was found. Below them `keys` names
//! the keys, `codec` and `http` spell requests and read answers, `conn` moves bytes, `alarm` wakes.
//! `client` is for everything that is not a run: one connection that asks and waits. `via_client` is a run
//! by the client that programs use, with the same ledger.

pub(crate) mod alarm;
pub(crate) mod client;
pub(crate) mod codec;
pub(crate) mod conn;
pub(crate) mod cycles;
pub(crate) mod event_loop;
pub(crate) mod http;
pub(crate) mod keys;
pub(crate) mod ledger;
pub(crate) mod outcome;
pub(crate) mod spec;
pub(crate) mod via_client;
