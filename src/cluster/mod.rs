//! More than one machine: one member leads and serves, the others follow and can take over.
//!
//! etcd decides who leads and keeps the log; there is no consensus of our own. What makes it safe is in two
//! places: every change goes into the log by a transaction that etcd does only for the leader
//! (`store/etcd/append.rs`), and nothing is said to anybody unless this member surely leads at that
//! moment (`role.rs`).
//!
//! - `role.rs` who may speak, and until when: pure
//! - `member.rs` what all threads of a member share · `leader_key.rs` what stands under the leader's key
//! - `follow.rs` the thread that loads, watches and asks · `take_over.rs` how it comes to lead · `news.rs` what it tells
//!   the reactor's
//! - `lease.rs` the thread that renews
//! - `others.rs` the thread that knows who leads other shards · `reshard.rs` another number of shards
//! - `upkeep.rs` what a leader does besides: snapshots, and a look at etcd's size
//! - `replica.rs` the lock table of a standby, on the reactor's thread · `stage.rs` which server stands
//!   behind the listeners
//! - `seat.rs` the store of a member: a standby's keeps nothing and redirects, a leader's is etcd
//!
//! Without `--cluster` nothing of this runs.

mod follow;
mod leader_key;
mod lease;
mod member;
mod news;
mod others;
mod replica;
mod reshard;
pub mod role;
mod seat;
mod stage;
mod take_over;
#[cfg(test)]
mod testing;
mod upkeep;

pub use self::follow::Follower;
pub use self::leader_key::LeaderKey;
pub use self::member::{Member, Options};
pub use self::news::News;
pub use self::others::look_at_others;
pub use self::replica::{MakeEngine, Replica};
pub use self::reshard::{NotResharded, Reshard, Resharded};
pub use self::seat::Seat;
pub use self::stage::{Change, Scene, Stage};
