//! What `/metrics` says of a cluster, if the server is a member of one.

use super::metrics::{Bounds, Text};
use crate::store::ClusterShown;

/// Which bounds are shown of how long commits take and how old entries are when they are replayed: from a
/// tenth of a millisecond to a quarter of a minute.
const MEDIUM: Bounds = Bounds {
    start: 7,
    step: 1,
    end: 25,
};

pub(super) fn cluster(text: &mut Text<'_>, it: &ClusterShown) {
    text.gauge(
        "latchd_cluster_role",
        "1 for the role that this member of a cluster has.",
    );
    for role in ["standby", "candidate", "leader", "paused", "fenced"] {
        text.sample(&[("role", role)], u64::from(role == it.role));
    }
    for (name, help, number) in [
        (
            "latchd_cluster_shard",
            "Which part of the keys this member has, counted from 0.",
            it.shard.index(),
        ),
        (
            "latchd_cluster_shards",
            "How many parts there are.",
            it.shard.count(),
        ),
    ] {
        text.gauge(name, help);
        text.sample(&[], u64::from(number));
    }
    text.gauge(
        "latchd_cluster_epoch",
        "How often a member has begun to lead.",
    );
    text.sample(&[], it.epoch);
    text.gauge(
        "latchd_cluster_log_entry",
        "The last entry of the log that this member has.",
    );
    text.sample(&[], it.seq);
    log(text, it);
    lag(text, it);
    etcd(text, it);
}

/// What a leader writes.
fn log(text: &mut Text<'_>, it: &ClusterShown) {
    text.family(
        "latchd_cluster_commit_duration_seconds",
        "histogram",
        "How long it took to put an entry into the log, from the first question to the certain answer.",
    );
    text.histogram(&[], &it.commits, MEDIUM);
    text.counter(
        "latchd_cluster_commit_bytes_total",
        "Bytes of records in these entries.",
    );
    text.sample(&[], it.entry_bytes);
    text.counter(
        "latchd_cluster_doubts_total",
        "How often etcd did not answer, so that it had to be looked what had become of an entry.",
    );
    text.sample(&[], it.doubts);
    text.counter(
        "latchd_cluster_snapshots_total",
        "Snapshots that were published.",
    );
    text.sample(&[], it.snapshots);
}

/// How far a standby is behind.
fn lag(text: &mut Text<'_>, it: &ClusterShown) {
    text.gauge(
        "latchd_cluster_lag_entries",
        "How many entries this standby had not heard of when it last asked.",
    );
    text.sample(&[], it.lag_entries);
    text.family(
        "latchd_cluster_lag_seconds",
        "histogram",
        "How old entries were when this standby had replayed them, since etcd told of them or showed them.",
    );
    text.histogram(&[], &it.lags, MEDIUM);
    text.gauge(
        "latchd_cluster_behind_seconds",
        "Since when this standby knows of an entry that it has not replayed; 0 if there is none.",
    );
    text.fraction(&[], u128::from(it.behind_ns), 9);
}

fn etcd(text: &mut Text<'_>, it: &ClusterShown) {
    for (name, help, bytes) in [
        (
            "latchd_etcd_bytes",
            "The size of etcd's database file, of the member asked last; 0 until one has answered.",
            it.etcd_bytes,
        ),
        (
            "latchd_etcd_in_use_bytes",
            "How much of it is in use.",
            it.etcd_bytes_in_use,
        ),
        (
            "latchd_etcd_quota_bytes",
            "How large it may become: --etcd-quota.",
            it.etcd_quota_bytes,
        ),
    ] {
        text.gauge(name, help);
        text.sample(&[], bytes);
    }
}
