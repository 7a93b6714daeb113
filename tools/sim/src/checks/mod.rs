//! What must hold, from the clients' side and from the server's.
//!
//! `after_turn` says in which order everything is checked after a turn, `at_end` what may be left
//! at the end: nothing. `promptness` judges how long turns take and how late leases end, `limits`
//! what is refused for want of room. `answers` compares every line that a client reads with its
//! request, `losses` what it is told to have lost, and `alone` judges refusals where nobody else asked; `http` does so with answers over HTTP, and `pages` with what anybody may look at there.
//! `grants`, `asks`, `entries`, `values`, `barriers`, `pushes` and `key_events` keep what clients know, and
//! look for contradictions in it; `crowd` counts what a crowd reads. `lock_table` and `entries` compare what the server shows of
//! itself, and `reports` and `circles` what it tells clients about that in `stats`, `who` and `waits`. `lives` looks from
//! one life of the server to the next, and `restored` at what a data directory brings back.
//! `seen_ranges`, `range_table`, `range_model`, `known_ranges`, `range_window`, `range_edges` and `range_answers` do the same for byte ranges and for
//! clients that attach.
//!
//! Nothing here touches the server. Clients read their answers here, though, and a client that has
//! read one may act on it.

pub(super) mod after_turn;
mod alone;
pub(super) mod answers;
pub(super) mod asks;
pub(super) mod at_end;
pub(super) mod barriers;
mod circles;
pub(super) mod crowd;
pub(super) mod entries;
pub(super) mod grants;
pub(super) mod http;
pub(super) mod key_events;
pub(super) mod known_ranges;
pub(super) mod limits;
pub(super) mod lives;
pub(super) mod lock_table;
mod losses;
pub(super) mod pages;
pub(super) mod promptness;
pub(super) mod pushes;
mod range_answers;
mod range_edges;
mod range_model;
pub(super) mod range_table;
mod range_window;
pub(super) mod reports;
pub(super) mod restored;
pub(super) mod seen_ranges;
pub(super) mod values;
