//! What members show of their cluster, with a real etcd: the leader how long commits take, the others how far
//! they are behind, all of them who leads and how large etcd is.

use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::members::Members;
use crate::vocabulary::Daemon;
use crate::with_etcd;

const LOOKS: usize = 3_000;

fn cluster(member: &Daemon) -> Value {
    let stats = member.http().get("/v1/stats").body;
    let stats: Value = serde_json::from_str(&stats).unwrap();
    stats["cluster"].clone()
}

/// A sample of the figures.
fn sample(figures: &str, series: &str) -> f64 {
    let found = figures.lines().find_map(|line| line.strip_prefix(series));
    let value = found.unwrap_or_else(|| panic!("there is no {series}"));
    value.trim().parse().unwrap()
}

/// Waits until the figures of a member are like that.
fn await_figures(member: &Daemon, is_it: impl Fn(&str) -> bool) -> String {
    for _ in 0..LOOKS {
        let figures = member.http().get("/metrics").body;
        if is_it(&figures) {
            return figures;
        }
        thread::park_timeout(Duration::from_millis(10));
    }
    panic!(
        "it does not come to that: {}",
        member.http().get("/metrics").body
    );
}

/// Nothing but what is known of a daemon alone, too.
fn check(figures: &str) {
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return eprintln!("skipped: there is no promtool (Debian: prometheus)");
        }
        Err(error) => panic!("{error}"),
    };
    let mut input = child.stdin.take().unwrap();
    input.write_all(figures.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let complaints = said
        .lines()
        .filter(|it| !it.starts_with("lock_op_latency_ms "));
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn commits_and_lags_are_counted_and_everybody_knows_who_leads_and_how_large_etcd_is() {
    with_etcd(|etcds| {
        let members = Members::start("figures", &etcds.urls());
        let leader = members.leader();
        let address = members.daemon(leader).address().to_string();
        for standby in members.others(leader) {
            members.await_redirect(standby, &address);
        }
        let mut client = members.daemon(leader).connect();
        for count in 1..=20 {
            assert_eq!(client.ask("incr hits 1"), format!("ok {count}"));
        }
        let of_leader = await_figures(members.daemon(leader), |it| {
            sample(it, "latchd_etcd_bytes") > 0.0
        });
        let commits = sample(&of_leader, "latchd_cluster_commit_duration_seconds_count");
        assert!(commits >= 20.0, "{commits}");
        assert!(sample(&of_leader, "latchd_cluster_commit_duration_seconds_sum") > 0.0);
        let last = sample(&of_leader, "latchd_cluster_log_entry");
        check(&of_leader);
        for standby in members.others(leader) {
            let member = members.daemon(standby);
            let figures = await_figures(member, |it| {
                sample(it, "latchd_cluster_log_entry") >= last
                    && sample(it, "latchd_cluster_behind_seconds") == 0.0
                    && sample(it, "latchd_etcd_bytes") > 0.0
            });
            assert!(sample(&figures, "latchd_cluster_lag_seconds_count") > 0.0);
            assert_eq!(
                sample(&figures, "latchd_cluster_commit_duration_seconds_count"),
                0.0
            );
            check(&figures);
            let shown = cluster(member);
            assert_eq!(shown["role"], "standby");
            assert_eq!(shown["leader"], address);
            let http = members.daemon(leader).http_address();
            assert_eq!(shown["leader_http"], format!("http://{http}"));
            assert_eq!(shown["epoch"], 1);
        }
        let shown = cluster(members.daemon(leader));
        assert_eq!(shown["role"], "leader");
        assert_eq!(shown["leader"], address);
    });
}
