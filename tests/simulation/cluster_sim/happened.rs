//! What was counted in a run, so that it is seen whether it was worth it.

use crate::cluster_sim::clients::Told;
use crate::cluster_sim::etcd_side::Seen;

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Happened {
    pub(crate) told: Told,
    pub(crate) seen: Seen,
    pub(crate) tenures: u64,
    pub(crate) fenced: u64,
    pub(crate) pauses: u64,
    pub(crate) doubts: u64,
    pub(crate) kills: u64,
    pub(crate) failures: u64,
    pub(crate) resignations: u64,
    pub(crate) stops: u64,
    pub(crate) stops_in_turn: u64,
    pub(crate) cuts: u64,
    pub(crate) elections: u64,
    pub(crate) restores: u64,
    pub(crate) snapshots: u64,
    pub(crate) loads: u64,
    pub(crate) compared: u64,
    /// How long after a blow anybody was served again, in milliseconds.
    pub(crate) served_after_ms: u64,
}

impl Happened {
    pub(crate) fn add(&mut self, other: Self) {
        macro_rules! add {
            ($($($field:ident).+),+) => { $(self.$($field).+ += other.$($field).+;)+ };
        }
        add!(
            told.grants,
            told.renewals,
            told.timeouts,
            told.counts,
            told.redirects,
            told.no_room,
            told.late,
            told.others,
            seen.refused,
            seen.lost,
            seen.entries,
            seen.trims,
            seen.compactions,
            seen.full,
            seen.broken_watches,
            seen.stale_renewals,
            tenures,
            fenced,
            pauses,
            doubts,
            kills,
            failures,
            resignations,
            stops,
            stops_in_turn,
            cuts,
            elections,
            restores,
            snapshots,
            loads,
            compared,
            served_after_ms
        );
    }
}
