//! What must hold, from the clients' side and from the server's.
//!
//! `after_turn` says what is checked when, `at_end` what may be left at last: nothing. `answers`
//! compares every line a client reads with its request. What clients know is kept in `grants`,
//! `entries`, `values`, `barriers`, `pushes` and `key_events`; what the server shows of itself is
//! compared in `lock_table`. Never changes what happens.

pub(super) mod after_turn;
pub(super) mod answers;
pub(super) mod at_end;
pub(super) mod barriers;
pub(super) mod entries;
pub(super) mod grants;
pub(super) mod key_events;
pub(super) mod lock_table;
pub(super) mod pushes;
pub(super) mod values;
