//! Tests of `metrics.rs`: the text is what Prometheus reads, is exact, and does not grow.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

use super::super::sample::{NOW, Sample, acquire, conn, member, shown};
use super::*;
use crate::base::{Millis, Nanos, Token};
use crate::engine::types::{
    Attach, Effect, Effects, Input, Mode, RangeAsk, RangeRequest, Reply, Request, Secret, Share,
    Span,
};
use crate::engine::{ClientLimit, Rules, SHARES_MAX};

const LOCK: Mode = Mode::Slot { limit: 1 };

/// A name of milliseconds is LockServer's, and its clients' dashboards know it. All else that promtool
/// could complain of is avoided.
const KNOWN_COMPLAINT: &str =
    "lock_op_latency_ms metric names should not contain abbreviated units\n";

fn process() -> Process {
    Process {
        start_time_s: Some(1_794_000_000.25),
        cpu_s: Some(1.5),
        resident_bytes: Some(9_000_000),
        virtual_bytes: Some(70_000_000),
        open_fds: Some(12),
        max_fds: Some(1024),
    }
}

fn render(engine: &Engine, http: &HttpFigures, pace: &Pace) -> String {
    let mut out = Vec::new();
    metrics(&mut out, engine, http, pace, &shown(NOW), &process());
    String::from_utf8(out).unwrap()
}

fn render_engine(engine: &Engine) -> BTreeMap<String, f64> {
    let text = render(engine, &HttpFigures::default(), &Pace::default());
    read(&text)
}

/// The samples, by name and labels. Checks the rules of the format on the way.
fn read(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut families = BTreeSet::new();
    let (mut family, mut kind) = ("", "");
    assert!(text.ends_with('\n'));
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(help.ends_with('.'), "{help}");
            assert!(families.insert(name), "{name} stands twice");
            let declared = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
            (family, kind) = declared.split_once(' ').unwrap();
            assert_eq!(family, name);
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let suffix = name.strip_prefix(family).unwrap();
        match kind {
            "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
            _ => assert_eq!(suffix, "", "{line}"),
        }
        let value: f64 = value.parse().unwrap();
        let is_new = samples.insert(series.to_owned(), value).is_none();
        assert!(is_new, "{series} stands twice");
    }
    samples
}

#[test]
fn every_name_of_lockserver_is_there() {
    let mut http = HttpFigures::default();
    http.note_lease(LeaseOp::Acquire, Outcome::Success);
    http.note_lease(LeaseOp::Acquire, Outcome::Fail);
    http.note_lease(LeaseOp::Acquire, Outcome::Fail);
    http.note_lease(LeaseOp::Renew, Outcome::Busy);
    http.note_lease(LeaseOp::Release, Outcome::Success);
    http.note_latency(LeaseOp::Acquire, 250_000);
    http.note_latency(LeaseOp::Acquire, 3_000_000);
    let it = Sample::new(Rules::default());
    let samples = read(&render(&it.engine, &http, &Pace::default()));
    for (series, want) in [
        ("lock_acquire_total{result=\"success\"}", 1.0),
        ("lock_acquire_total{result=\"fail\"}", 2.0),
        ("lock_acquire_total{result=\"busy\"}", 0.0),
        ("lock_renew_total{result=\"busy\"}", 1.0),
        ("lock_release_total{result=\"success\"}", 1.0),
        ("lock_db_busy_total{op=\"acquire\"}", 0.0),
        ("lock_db_busy_total{op=\"renew\"}", 1.0),
        ("lock_op_latency_ms_bucket{op=\"acquire\",le=\"1\"}", 1.0),
        ("lock_op_latency_ms_bucket{op=\"acquire\",le=\"2\"}", 1.0),
        ("lock_op_latency_ms_bucket{op=\"acquire\",le=\"4\"}", 2.0),
        ("lock_op_latency_ms_bucket{op=\"acquire\",le=\"2048\"}", 2.0),
        ("lock_op_latency_ms_bucket{op=\"acquire\",le=\"+Inf\"}", 2.0),
        ("lock_op_latency_ms_sum{op=\"acquire\"}", 3.25),
        ("lock_op_latency_ms_count{op=\"acquire\"}", 2.0),
        ("lock_op_latency_ms_count{op=\"release\"}", 0.0),
        ("locks_held", 0.0),
        ("lock_expired_total", 0.0),
    ] {
        assert_eq!(samples.get(series), Some(&want), "{series}");
    }
    let bounds = |op: &str| {
        let start = format!("lock_op_latency_ms_bucket{{op=\"{op}\"");
        samples.keys().filter(|it| it.starts_with(&start)).count()
    };
    assert_eq!(["acquire", "renew", "release"].map(bounds), [13, 13, 13]);
}

#[test]
fn what_is_held_and_waited_for_is_exact() {
    let mut it = Sample::new(Rules::default());
    it.ask(1, acquire(b"job", LOCK, Millis::ZERO));
    it.ask(1, acquire(b"gpu", Mode::Slot { limit: 2 }, Millis::ZERO));
    it.ask(1, acquire(b"book", Mode::Read, Millis::ZERO));
    it.ask(2, acquire(b"book", Mode::Read, Millis::ZERO));
    it.ask(2, acquire(b"job", LOCK, Millis::ZERO)); // in vain
    it.ask(2, acquire(b"job", LOCK, Millis::from_secs(10)));
    it.ask(3, acquire(b"book", Mode::Write, Millis::from_secs(1)));
    let before = render_engine(&it.engine);
    for (series, want) in [
        ("locks_held", 4.0),
        ("locks_active{type=\"lock\"}", 1.0),
        ("locks_active{type=\"semaphore\"}", 1.0),
        ("locks_active{type=\"read\"}", 2.0),
        ("locks_active{type=\"write\"}", 0.0),
        ("locks_blocked{type=\"lock\"}", 1.0),
        ("locks_blocked{type=\"write\"}", 1.0),
        ("locks_acquire_total{type=\"lock\",status=\"granted\"}", 1.0),
        ("locks_acquire_total{type=\"lock\",status=\"denied\"}", 1.0),
        ("latchd_keys{kind=\"lock\",state=\"in_use\"}", 1.0),
        ("latchd_keys{kind=\"rwlock\",state=\"in_use\"}", 1.0),
        ("latchd_list_and_barrier_waiters", 0.0),
    ] {
        assert_eq!(before.get(series), Some(&want), "{series}");
    }
    // Two seconds later the first lets go of everything, and the third has waited too long.
    it.now = Nanos(NOW.0 + 2_000_000_000);
    it.apply(Input::Time(u64::MAX));
    it.apply(Input::Disconnected(conn(1)));
    it.apply(Input::Time(u64::MAX));
    it.engine.check();
    let after = render_engine(&it.engine);
    for (series, want) in [
        ("locks_held", 2.0),
        ("locks_active{type=\"lock\"}", 1.0),
        ("locks_active{type=\"read\"}", 1.0),
        ("locks_blocked{type=\"lock\"}", 0.0),
        ("locks_blocked{type=\"write\"}", 0.0),
        ("locks_acquire_total{type=\"lock\",status=\"granted\"}", 2.0),
        ("locks_acquire_total{type=\"write\",status=\"denied\"}", 1.0),
        ("locks_release_total{reason=\"disconnect\"}", 3.0),
        ("locks_blocking_duration_seconds_count{type=\"lock\"}", 1.0),
        ("locks_hold_duration_seconds_count{type=\"lock\"}", 1.0),
        ("locks_hold_duration_seconds_count{type=\"read\"}", 1.0),
        (
            "locks_hold_duration_seconds_bucket{type=\"lock\",le=\"1.073741824\"}",
            0.0,
        ),
        (
            "locks_hold_duration_seconds_bucket{type=\"lock\",le=\"4.294967296\"}",
            1.0,
        ),
    ] {
        assert_eq!(after.get(series), Some(&want), "{series}");
    }
    let sum = after["locks_hold_duration_seconds_sum{type=\"lock\"}"];
    assert!((sum - 2.0).abs() < 0.000_01, "{sum}");
}

fn granted(effects: &Effects) -> Option<Token> {
    effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Reply::Granted { token, .. }) => Some(*token),
        _ => None,
    })
}

#[test]
fn ends_are_counted_by_their_reason() {
    let mut it = Sample::new(Rules::default());
    let mut tokens = Vec::new();
    for key in [&b"a"[..], b"b", b"c"] {
        tokens.extend(granted(&it.ask(1, acquire(key, LOCK, Millis::ZERO))));
    }
    let [a, b, _] = tokens[..] else {
        panic!("three grants: {tokens:?}");
    };
    let token = Some(a);
    it.ask(1, Request::Release { key: b"a", token });
    it.apply(Input::Break(conn(2), b"b", b.fence));
    it.now = Nanos(NOW.0 + 601_000_000_000);
    it.apply(Input::Time(u64::MAX));
    let samples = render_engine(&it.engine);
    for (reason, want) in [
        ("explicit", 1.0),
        ("break", 1.0),
        ("timeout", 1.0),
        ("disconnect", 0.0),
    ] {
        let series = format!("locks_release_total{{reason=\"{reason}\"}}");
        assert_eq!(samples[&series], want, "{reason}");
    }
    assert_eq!(samples["lock_expired_total"], 1.0);
    assert_eq!(samples["locks_held"], 0.0);
}

#[test]
fn lateness_of_expiries_is_counted_and_releases_are_not() {
    let mut it = Sample::new(Rules::default());
    it.ask(1, acquire(b"punctual", LOCK, Millis::ZERO));
    it.ask(1, acquire(b"late", LOCK, Millis::ZERO));
    it.ask(2, acquire(b"released", LOCK, Millis::ZERO));
    it.apply(Input::Disconnected(conn(2)));
    let lease_ns = 600_000_000_000;
    it.now = Nanos(NOW.0 + lease_ns);
    it.ask(1, Request::Position { key: b"punctual" }); // finds the lease over
    it.now = Nanos(NOW.0 + lease_ns + 5_000_000);
    it.apply(Input::Time(u64::MAX));
    let samples = render_engine(&it.engine);
    for (series, want) in [
        ("latchd_expiry_lateness_seconds_count", 2.0),
        (
            "latchd_expiry_lateness_seconds_bucket{le=\"0.000001024\"}",
            1.0,
        ),
        (
            "latchd_expiry_lateness_seconds_bucket{le=\"0.004194304\"}",
            1.0,
        ),
        (
            "latchd_expiry_lateness_seconds_bucket{le=\"0.008388608\"}",
            2.0,
        ),
    ] {
        assert_eq!(samples.get(series), Some(&want), "{series}");
    }
    let sum = samples["latchd_expiry_lateness_seconds_sum"];
    assert!((sum - 0.005).abs() < 0.000_01, "{sum}");
}

/// Something about bytes of `f`, asked on this connection.
fn about_bytes(it: &mut Sample, number: u32, ask: RangeAsk) {
    let request = RangeRequest {
        resource: b"f",
        owner: b"bob",
        ask,
    };
    it.apply(Input::Range(conn(number), None, request));
}

fn lock(mode: Sharing, start: u64, len: u64, wait_s: u64) -> RangeAsk {
    RangeAsk::Lock {
        mode,
        span: Span { start, len },
        wait: Millis::from_secs(wait_s),
    }
}

#[test]
fn a_request_that_would_wait_for_itself_is_counted_by_what_it_wanted_and_not_as_denied() {
    let mut it = Sample::new(Rules {
        deadlock_detection: true,
        ..Rules::default()
    });
    it.ask(1, acquire(b"job", LOCK, Millis::ZERO));
    it.ask(2, acquire(b"book", Mode::Read, Millis::ZERO));
    it.ask(1, acquire(b"book", Mode::Write, Millis::from_secs(9))); // waits
    it.ask(2, acquire(b"job", LOCK, Millis::from_secs(9))); // would wait for itself
    let samples = render_engine(&it.engine);
    for (series, want) in [
        (
            "locks_acquire_total{type=\"lock\",status=\"deadlock\"}",
            1.0,
        ),
        ("locks_acquire_total{type=\"lock\",status=\"denied\"}", 0.0),
        (
            "locks_acquire_total{type=\"write\",status=\"deadlock\"}",
            0.0,
        ),
        ("locks_deadlock_detected_total", 1.0),
    ] {
        assert_eq!(samples.get(series), Some(&want), "{series}");
    }
}

#[test]
fn range_locks_are_counted_beside_the_others_and_named_nowhere() {
    use Sharing::{Exclusive, Shared};
    let mut it = Sample::new(Rules::default());
    about_bytes(&mut it, 1, lock(Exclusive, 0, 10, 0));
    about_bytes(&mut it, 1, lock(Shared, 20, 10, 0));
    about_bytes(&mut it, 2, lock(Shared, 20, 10, 0));
    about_bytes(&mut it, 2, lock(Exclusive, 30, 10, 0));
    about_bytes(&mut it, 2, lock(Shared, 0, 1, 0)); // in vain
    about_bytes(&mut it, 1, lock(Exclusive, 30, 1, 9)); // waits
    about_bytes(&mut it, 2, lock(Exclusive, 0, 1, 9)); // would wait for itself
    about_bytes(&mut it, 3, lock(Shared, 0, 1, 9)); // waits
    it.engine.check();
    let text = render(&it.engine, &HttpFigures::default(), &Pace::default());
    assert!(!text.contains("bob"));
    let samples = read(&text);
    for (series, want) in [
        ("locks_active{type=\"shared\"}", 2.0),
        ("locks_active{type=\"exclusive\"}", 2.0),
        ("locks_blocked{type=\"shared\"}", 1.0),
        ("locks_blocked{type=\"exclusive\"}", 1.0),
        (
            "locks_acquire_total{type=\"shared\",status=\"granted\"}",
            2.0,
        ),
        (
            "locks_acquire_total{type=\"shared\",status=\"denied\"}",
            1.0,
        ),
        (
            "locks_acquire_total{type=\"exclusive\",status=\"granted\"}",
            2.0,
        ),
        (
            "locks_acquire_total{type=\"exclusive\",status=\"deadlock\"}",
            1.0,
        ),
        ("locks_deadlock_detected_total", 1.0),
        ("latchd_range_resources", 1.0),
        ("latchd_list_and_barrier_waiters", 0.0),
        ("locks_held", 0.0),
        ("locks_grace_period_active", 0.0),
        ("locks_grace_period_remaining_seconds", 0.0),
    ] {
        assert_eq!(samples.get(series), Some(&want), "{series}");
    }
    it.now = Nanos(NOW.0 + 1_000_000_000);
    let span = Span { start: 30, len: 5 };
    about_bytes(&mut it, 2, RangeAsk::Unlock { span });
    it.apply(Input::Disconnected(conn(1)));
    it.apply(Input::Time(u64::MAX));
    it.apply(Input::BreakRanges(conn(4), b"f", None));
    it.engine.check();
    let samples = render_engine(&it.engine);
    for (series, want) in [
        ("locks_release_total{reason=\"explicit\"}", 1.0),
        // Two that it had, and the one that it had waited for.
        ("locks_release_total{reason=\"disconnect\"}", 3.0),
        ("locks_release_total{reason=\"grace_expired\"}", 0.0),
        ("locks_release_total{reason=\"break\"}", 3.0),
        (
            "locks_blocking_duration_seconds_count{type=\"exclusive\"}",
            1.0,
        ),
        (
            "locks_blocking_duration_seconds_count{type=\"shared\"}",
            1.0,
        ),
        // One of them was cut before it ended, and counts once.
        ("locks_hold_duration_seconds_count{type=\"exclusive\"}", 3.0),
        ("locks_hold_duration_seconds_count{type=\"shared\"}", 3.0),
        (
            "locks_hold_duration_seconds_bucket{type=\"exclusive\",le=\"0.268435456\"}",
            1.0,
        ),
        ("locks_active{type=\"shared\"}", 0.0),
        ("locks_active{type=\"exclusive\"}", 0.0),
        ("locks_blocked{type=\"shared\"}", 0.0),
        ("latchd_range_resources", 0.0),
    ] {
        assert_eq!(samples.get(series), Some(&want), "{series}");
    }
}

fn shares(named: &[(&str, &str)]) -> Vec<Share> {
    let share = |(name, prefix): &(&str, &str)| Share {
        name: (*name).into(),
        prefix: prefix.as_bytes().into(),
    };
    named.iter().map(share).collect()
}

/// Gives everything its share, a slice at a time.
fn set_shares(it: &mut Sample, named: &[(&str, &str)]) {
    it.apply(Input::Shares(&shares(named)));
    for _ in 0..1_000 {
        it.apply(Input::Time(1_000));
        it.engine.check();
        if it.engine.next_deadline() != Some(Nanos(0)) {
            return;
        }
    }
    panic!("the walk does not end");
}

/// The samples of all families that shares have a part in, but those of histograms other than `_count`.
fn of_shares(it: &Sample) -> BTreeMap<String, f64> {
    let mut samples = render_engine(&it.engine);
    samples.retain(|series, value| {
        let families = [
            "locks_acquire",
            "locks_release",
            "locks_active",
            "locks_blocking",
        ];
        let is_bucket = series.contains("_bucket") || series.contains("_sum");
        *value != 0.0 && !is_bucket && families.iter().any(|family| series.starts_with(family))
    });
    samples
}

fn assert_samples(it: &Sample, want: &[(&str, f64)]) {
    let want = want
        .iter()
        .map(|(series, value)| ((*series).to_owned(), *value));
    assert_eq!(of_shares(it), want.collect());
}

#[test]
fn figures_of_shares_are_told_apart_by_the_longest_prefix() {
    use Sharing::Exclusive;
    let mut it = Sample::new(Rules {
        deadlock_detection: true,
        ..Rules::default()
    });
    set_shares(
        &mut it,
        &[("media", "/m/"), ("video", "/m/video/"), ("idle", "x")],
    );
    let wait = Millis::from_secs(10);
    it.ask(1, acquire(b"/m/a", LOCK, Millis::ZERO));
    it.ask(2, acquire(b"/m/a", LOCK, Millis::ZERO)); // in vain
    it.ask(1, acquire(b"/m/video/a", LOCK, Millis::ZERO));
    it.ask(2, acquire(b"/m/video/a", LOCK, wait)); // waits until the first leaves
    it.ask(3, acquire(b"/m/video/b", Mode::Read, Millis::ZERO));
    it.ask(4, acquire(b"job", LOCK, Millis::ZERO));
    it.ask(3, acquire(b"job", LOCK, wait)); // waits
    it.ask(4, acquire(b"/m/video/b", Mode::Write, wait)); // would wait for itself
    let request = |resource, ask| RangeRequest {
        resource,
        owner: b"",
        ask,
    };
    it.apply(Input::Range(
        conn(5),
        None,
        request(b"/m/f", lock(Exclusive, 0, 9, 0)),
    ));
    it.apply(Input::Range(
        conn(5),
        None,
        request(b"/m/f", lock(Exclusive, 20, 9, 0)),
    ));
    it.apply(Input::Range(
        conn(6),
        None,
        request(b"/m/f", lock(Exclusive, 0, 1, 0)),
    )); // in vain
    it.apply(Input::Range(
        conn(7),
        None,
        request(b"g", lock(Exclusive, 0, 1, 0)),
    ));
    it.apply(Input::Range(
        conn(9),
        None,
        request(b"/m/f", lock(Exclusive, 0, 1, 10)),
    )); // waits until an operator ends what the fifth holds
    it.engine.check();
    assert_samples(
        &it,
        &[
            (
                "locks_acquire_total{share=\"\",type=\"exclusive\",status=\"granted\"}",
                1.0,
            ),
            (
                "locks_acquire_total{share=\"\",type=\"lock\",status=\"granted\"}",
                1.0,
            ),
            (
                "locks_acquire_total{share=\"media\",type=\"exclusive\",status=\"denied\"}",
                1.0,
            ),
            (
                "locks_acquire_total{share=\"media\",type=\"exclusive\",status=\"granted\"}",
                2.0,
            ),
            (
                "locks_acquire_total{share=\"media\",type=\"lock\",status=\"denied\"}",
                1.0,
            ),
            (
                "locks_acquire_total{share=\"media\",type=\"lock\",status=\"granted\"}",
                1.0,
            ),
            (
                "locks_acquire_total{share=\"video\",type=\"lock\",status=\"granted\"}",
                1.0,
            ),
            (
                "locks_acquire_total{share=\"video\",type=\"read\",status=\"granted\"}",
                1.0,
            ),
            (
                "locks_acquire_total{share=\"video\",type=\"write\",status=\"deadlock\"}",
                1.0,
            ),
            ("locks_active{share=\"\",type=\"exclusive\"}", 1.0),
            ("locks_active{share=\"\",type=\"lock\"}", 1.0),
            ("locks_active{share=\"media\",type=\"exclusive\"}", 2.0),
            ("locks_active{share=\"media\",type=\"lock\"}", 1.0),
            ("locks_active{share=\"video\",type=\"lock\"}", 1.0),
            ("locks_active{share=\"video\",type=\"read\"}", 1.0),
        ],
    );
    // The first leaves, the leases of the others end, and an operator ends the bytes. What waited for these is
    // released, and so is a lock.
    it.now = Nanos(NOW.0 + 1_000_000_000);
    it.apply(Input::Disconnected(conn(1)));
    it.apply(Input::BreakRanges(conn(8), b"/m/f", None));
    let span = Span { start: 0, len: 1 };
    let unlock = RangeAsk::Unlock { span };
    it.apply(Input::Range(conn(9), None, request(b"/m/f", unlock)));
    let token = granted(&it.ask(8, acquire(b"/m/video/c", LOCK, Millis::ZERO)));
    let key = b"/m/video/c";
    it.ask(8, Request::Release { key, token });
    it.engine.check();
    it.now = Nanos(NOW.0 + 700_000_000_000);
    it.apply(Input::Time(u64::MAX));
    it.apply(Input::Disconnected(conn(7)));
    it.apply(Input::Time(u64::MAX));
    it.engine.check();
    let mut samples = of_shares(&it);
    samples.retain(|series, _| !series.starts_with("locks_acquire"));
    let want = [
        (
            "locks_blocking_duration_seconds_count{share=\"media\",type=\"exclusive\"}",
            1.0,
        ),
        (
            "locks_blocking_duration_seconds_count{share=\"video\",type=\"lock\"}",
            1.0,
        ),
        ("locks_release_total{share=\"\",reason=\"disconnect\"}", 1.0),
        ("locks_release_total{share=\"\",reason=\"timeout\"}", 1.0),
        ("locks_release_total{share=\"media\",reason=\"break\"}", 2.0),
        (
            "locks_release_total{share=\"media\",reason=\"disconnect\"}",
            1.0,
        ),
        (
            "locks_release_total{share=\"media\",reason=\"explicit\"}",
            1.0,
        ),
        (
            "locks_release_total{share=\"video\",reason=\"disconnect\"}",
            1.0,
        ),
        (
            "locks_release_total{share=\"video\",reason=\"explicit\"}",
            1.0,
        ),
        (
            "locks_release_total{share=\"video\",reason=\"timeout\"}",
            2.0,
        ),
    ];
    let want = want.map(|(series, value)| (series.to_owned(), value));
    assert_eq!(samples, want.into());
    let text = render(&it.engine, &HttpFigures::default(), &Pace::default());
    assert!(!text.contains("/m/"), "a key is in no label");
    assert!(text.contains("locks_release_total{share=\"idle\",reason=\"explicit\"} 0\n"));
}

#[test]
fn a_change_of_shares_moves_what_is_held_and_keeps_what_was_counted() {
    let mut it = Sample::new(Rules::default());
    it.hold(1, 300); // key-0 to key-299
    about_bytes(&mut it, 2, lock(Sharing::Shared, 0, 9, 0)); // of "f"
    it.ask(2, acquire(b"idle", LOCK, Millis::ZERO));
    it.apply(Input::Disconnected(conn(3)));
    let active = |it: &Sample, share: &str| {
        let samples = of_shares(it);
        let series = format!("locks_active{{share=\"{share}\",type=\"lock\"}}");
        samples.get(&series).copied().unwrap_or_default()
    };
    set_shares(&mut it, &[("twos", "key-2"), ("f", "f")]);
    assert_eq!((active(&it, "twos"), active(&it, "")), (111.0, 190.0));
    assert_eq!(
        of_shares(&it)["locks_active{share=\"f\",type=\"shared\"}"],
        1.0
    );
    let granted = "locks_acquire_total{share=\"\",type=\"lock\",status=\"granted\"}";
    assert_eq!(of_shares(&it)[granted], 301.0, "as it was counted");
    it.ask(4, acquire(b"key-2x", LOCK, Millis::ZERO));
    // While the walk is under way, another change: it follows the first.
    it.apply(Input::Shares(&shares(&[("ones", "key-1")])));
    it.apply(Input::Time(1));
    it.ask(5, acquire(b"key-1x", LOCK, Millis::ZERO));
    it.apply(Input::Disconnected(conn(4)));
    it.engine.check();
    set_shares(&mut it, &[("ones", "key-1"), ("twos", "key-2")]);
    assert_eq!((active(&it, "ones"), active(&it, "twos")), (112.0, 111.0));
    let of_twos = "locks_acquire_total{share=\"twos\",type=\"lock\",status=\"granted\"}";
    assert_eq!(of_shares(&it).get(of_twos), None, "counted anew");
    assert_eq!(of_shares(&it)[granted], 301.0, "and not for no share");
    // Without shares it is as it ever was.
    set_shares(&mut it, &[]);
    let text = render(&it.engine, &HttpFigures::default(), &Pace::default());
    assert!(!text.contains("share="));
    let all = "locks_active{type=\"lock\"}";
    assert_eq!(of_shares(&it)[all], 302.0);
}

#[test]
fn promtool_has_nothing_to_complain_of_with_the_most_shares() {
    let mut it = Sample::new(Rules::default());
    let names: Vec<String> = (0..SHARES_MAX).map(|it| format!("share-{it}")).collect();
    let named: Vec<(&str, &str)> = names.iter().map(|it| (&**it, &**it)).collect();
    set_shares(&mut it, &named);
    for name in &names {
        it.ask(1, acquire(name.as_bytes(), LOCK, Millis::ZERO));
        it.ask(2, acquire(name.as_bytes(), LOCK, Millis::ZERO));
    }
    let text = render(&it.engine, &HttpFigures::default(), &Pace::default());
    assert_eq!(
        read(&text)["locks_active{share=\"share-63\",type=\"lock\"}"],
        1.0
    );
    assert!(text.len() < 300_000, "{} bytes", text.len());
    promtool(&text);
}

#[test]
fn clients_are_counted_and_not_named() {
    let mut it = Sample::new(Rules::default());
    for (number, id) in [(1, "gw/1"), (2, "gw/2")] {
        let attach = Attach {
            adapter: None,
            id,
            ttl: Millis::from_secs(60),
            secret: Secret(b"s"),
        };
        it.apply(match number {
            1 => Input::Attach(conn(number), attach),
            _ => Input::Register(conn(number), attach),
        });
    }
    let text = render(&it.engine, &HttpFigures::default(), &Pace::default());
    assert!(!text.contains("gw/"));
    let samples = read(&text);
    assert_eq!(samples["latchd_clients{state=\"attached\"}"], 1.0);
    assert_eq!(samples["latchd_clients{state=\"away\"}"], 1.0);
}

#[test]
fn clients_are_counted_by_the_adapters_that_limits_name() {
    let limit = |adapter: &str| ClientLimit {
        adapter: adapter.into(),
        clients: 2,
    };
    let mut it = Sample::new(Rules {
        clients_max: vec![limit("nfs"), limit("smb")],
        ..Rules::default()
    });
    let mut http = HttpFigures::default();
    for (number, id, adapter) in [
        (1, "nfs/1", None),
        (2, "nfs/1", None),
        (3, "two", Some("nfs")),
        (4, "three", Some("nfs")), // one too many
        (5, "four", Some("secret-adapter")),
        (6, "five", None), // is of `line`
        (7, "six", Some("smb")),
    ] {
        http.note_accepted(Door::Line);
        let attach = Attach {
            id,
            adapter,
            ttl: Millis::from_secs(60),
            secret: Secret(b"s"),
        };
        it.apply(Input::Attach(conn(number), attach));
    }
    http.note_accepted(Door::Http);
    // One of nfs has no connection any more, the only one of smb comes back twice.
    let attach = Attach {
        id: "six",
        adapter: None,
        ttl: Millis::from_secs(60),
        secret: Secret(b"s"),
    };
    it.apply(Input::Disconnected(conn(3)));
    http.note_closed(Door::Line);
    for number in [7, 8] {
        it.apply(Input::Disconnected(conn(number)));
        it.apply(Input::Attach(conn(number + 1), attach));
    }
    it.engine.check();
    let text = render(&it.engine, &http, &Pace::default());
    assert!(!text.contains("secret-adapter"));
    let samples = read(&text);
    for (series, want) in [
        ("connections_active{adapter=\"line\"}", 2.0), // of "five", and one that was refused
        ("connections_active{adapter=\"http\"}", 1.0),
        ("connections_active{adapter=\"nfs\"}", 2.0),
        ("connections_active{adapter=\"smb\"}", 1.0),
        ("connections_active{adapter=\"other\"}", 1.0),
        ("latchd_clients{adapter=\"nfs\",state=\"attached\"}", 1.0),
        ("latchd_clients{adapter=\"nfs\",state=\"away\"}", 1.0),
        ("latchd_clients{adapter=\"smb\",state=\"attached\"}", 1.0),
        ("latchd_clients{adapter=\"smb\",state=\"away\"}", 0.0),
        ("latchd_clients{adapter=\"other\",state=\"attached\"}", 2.0),
        ("latchd_clients{adapter=\"other\",state=\"away\"}", 0.0),
        ("latchd_client_returns_total", 2.0),
        ("locks_limit_hits_total{limit_type=\"clients\"}", 1.0),
    ] {
        assert_eq!(samples.get(series), Some(&want), "{series}");
    }
    promtool(&text);
}

/// Each time it is a new client, because nothing of it is kept.
#[test]
fn a_client_that_is_kept_for_no_time_returns_if_it_attaches_within_a_minute() {
    let mut it = Sample::new(Rules::default());
    fn of(id: &str) -> Attach<'_> {
        Attach {
            adapter: None,
            id,
            ttl: Millis::ZERO,
            secret: Secret(b"s"),
        }
    }
    let mut conns = 0;
    let mut returns = |it: &mut Sample, id: &str| {
        conns += 1;
        it.apply(Input::Attach(conn(conns), of(id)));
        it.apply(Input::Disconnected(conn(conns)));
        it.apply(Input::Time(u64::MAX));
        it.engine.check();
        it.engine.view(it.now).client_returns()
    };
    assert_eq!([(); 3].map(|()| returns(&mut it, "flaps")), [0, 1, 2]);
    assert_eq!(returns(&mut it, "other"), 2);
    it.now = it.now.after(Millis(59_999));
    assert_eq!(returns(&mut it, "flaps"), 3);
    it.now = it.now.after(Millis(60_000));
    assert_eq!(returns(&mut it, "flaps"), 3, "too late");
    // The last 1,000 that left are remembered.
    (0..999).for_each(|number| _ = returns(&mut it, &format!("client-{number}")));
    assert_eq!(returns(&mut it, "flaps"), 4);
    (0..1_000).for_each(|number| _ = returns(&mut it, &format!("other-{number}")));
    assert_eq!(returns(&mut it, "flaps"), 4, "forgotten");
    // One that is detached has said that it leaves.
    it.apply(Input::Attach(conn(9_999), of("detached")));
    it.apply(Input::Detach(conn(9_999), "detached", Secret(b"s")));
    it.apply(Input::Time(u64::MAX));
    assert_eq!(returns(&mut it, "detached"), 4);
}

#[test]
fn every_limit_that_refuses_is_counted() {
    let mut it = Sample::new(Rules {
        locks_max: 1,
        waiters_per_key_max: 1,
        keys_max: 1,
        list_length_max: 1,
        subscriptions_max: 1,
        ..Rules::default()
    });
    it.ask(1, acquire(b"job", LOCK, Millis::ZERO));
    it.ask(1, acquire(b"other", LOCK, Millis::ZERO)); // locks
    it.ask(2, acquire(b"job", LOCK, Millis::from_secs(1)));
    it.ask(3, acquire(b"job", LOCK, Millis::from_secs(1))); // waiters
    let push = || Request::Push {
        key: b"list",
        value: b"x",
        end: crate::engine::types::End::Right,
    };
    it.ask(1, push());
    it.ask(1, push()); // list_length
    let add = Request::Add {
        key: b"n",
        delta: 1,
        down: false,
    };
    it.ask(1, add); // keys
    it.ask(1, Request::Watch { pattern: b"a" });
    it.ask(1, Request::Watch { pattern: b"b" }); // subscriptions
    it.apply(Input::MemoryFull(true));
    it.ask_by(4, "somebody", acquire(b"more", LOCK, Millis::ZERO)); // memory
    let mut http = HttpFigures::default();
    http.note_refused(Door::Line);
    http.note_refused(Door::Http);
    let samples = read(&render(&it.engine, &http, &Pace::default()));
    for (limit, want) in [
        ("locks", 1.0),
        ("waiters", 1.0),
        ("keys", 1.0),
        ("list_length", 1.0),
        ("subscriptions", 1.0),
        ("memory", 1.0),
        ("storage", 0.0),
        ("connections", 2.0),
    ] {
        let series = format!("locks_limit_hits_total{{limit_type=\"{limit}\"}}");
        assert_eq!(samples[&series], want, "{limit}");
    }
}

#[test]
fn deadlocks_are_counted() {
    let mut it = Sample::new(Rules {
        deadlock_detection: true,
        ..Rules::default()
    });
    it.ask(1, acquire(b"job", LOCK, Millis::ZERO));
    it.ask(1, acquire(b"job", LOCK, Millis(1_000)));
    let samples = read(&render(
        &it.engine,
        &HttpFigures::default(),
        &Pace::default(),
    ));
    assert_eq!(samples["locks_deadlock_detected_total"], 1.0);
    assert_eq!(samples["latchd_deadlock_searches_given_up_total"], 0.0);
}

#[test]
fn doors_and_answers_are_counted_apart() {
    let mut http = HttpFigures::default();
    http.note_accepted(Door::Line);
    http.note_accepted(Door::Http);
    http.note_accepted(Door::Http);
    http.note_closed(Door::Http);
    http.note_request();
    http.note_answer(200);
    http.note_answer(409);
    let mut pace = Pace::default();
    pace.note_turn(Nanos(5), 100_000, 3);
    let it = Sample::new(Rules::default());
    let samples = read(&render(&it.engine, &http, &pace));
    for (series, want) in [
        ("connections_active{adapter=\"line\"}", 1.0),
        ("connections_active{adapter=\"http\"}", 1.0),
        (
            "connections_total{adapter=\"http\",event=\"accepted\"}",
            2.0,
        ),
        ("connections_total{adapter=\"http\",event=\"closed\"}", 1.0),
        ("latchd_http_requests_total", 1.0),
        ("latchd_http_answers_total{class=\"2xx\"}", 1.0),
        ("latchd_http_answers_total{class=\"4xx\"}", 1.0),
        ("latchd_turn_duration_seconds_count", 1.0),
        ("latchd_operation_duration_seconds_count", 3.0),
        (
            "latchd_turn_duration_seconds_bucket{le=\"0.000065536\"}",
            0.0,
        ),
        (
            "latchd_turn_duration_seconds_bucket{le=\"0.000131072\"}",
            1.0,
        ),
        ("latchd_uptime_seconds", 90.0),
        ("latchd_memory_limit_bytes", 1_073_741_824.0),
        ("latchd_records_durable_total", 7.0),
        ("latchd_slow_consumers_evicted_total", 1.0),
        ("latchd_wrong_secrets_total", 2.0),
        ("latchd_forbidden_total", 5.0),
        ("latchd_tls_handshakes_active", 5.0),
        ("latchd_tls_handshakes_total{result=\"done\"}", 6.0),
        ("latchd_tls_handshakes_total{result=\"late\"}", 8.0),
        ("latchd_log_lines_lost_total", 4.0),
        (
            concat!(
                "latchd_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"}"
            ),
            1.0,
        ),
        ("process_start_time_seconds", 1_794_000_000.25),
        ("process_cpu_seconds_total", 1.5),
        ("process_open_fds", 12.0),
    ] {
        assert_eq!(samples.get(series), Some(&want), "{series}");
    }
}

#[test]
fn histograms_add_up() {
    let mut it = Sample::new(Rules::default());
    for round in 0..40 {
        it.ask(1, acquire(b"job", LOCK, Millis::ZERO));
        it.now = Nanos(it.now.0 + (1 << round));
        it.apply(Input::Disconnected(conn(1)));
        it.apply(Input::Time(u64::MAX));
    }
    let text = render(&it.engine, &HttpFigures::default(), &Pace::default());
    let series = "locks_hold_duration_seconds_bucket{type=\"lock\",le=\"";
    let buckets: Vec<(f64, u64)> = text
        .lines()
        .filter_map(|line| line.strip_prefix(series)?.split_once("\"} "))
        .map(|(bound, count)| (bound.parse().unwrap(), count.parse().unwrap()))
        .collect();
    assert_eq!(buckets.len(), 17);
    assert!(buckets.is_sorted(), "{buckets:?}");
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, 40)));
    assert_eq!(
        read(&text)["locks_hold_duration_seconds_count{type=\"lock\"}"],
        40.0
    );
}

#[test]
fn a_hundred_times_as_many_keys_make_it_no_longer_and_none_is_named() {
    let [few, many] = [1_000, 100_000].map(|locks| {
        let mut it = Sample::new(Rules::default());
        it.apply(Input::Hello(conn(1), Some("worker-1")));
        it.hold(1, locks);
        let text = render(&it.engine, &HttpFigures::default(), &Pace::default());
        assert_eq!(read(&text)["locks_held"], locks as f64);
        assert!(!text.contains("key-0") && !text.contains("worker-1"));
        text
    });
    let shape = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let series = lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned());
        series.collect::<Vec<_>>()
    };
    assert_eq!(shape(&few), shape(&many));
    assert!(many.len() - few.len() < 100, "only digits are more");
    assert!(many.len() < 40_000, "{} bytes", many.len());
}

#[test]
fn what_the_system_does_not_say_is_left_out() {
    let it = Sample::new(Rules::default());
    let mut out = Vec::new();
    let (http, pace) = (HttpFigures::default(), Pace::default());
    metrics(
        &mut out,
        &it.engine,
        &http,
        &pace,
        &shown(NOW),
        &Process::default(),
    );
    let text = String::from_utf8(out).unwrap();
    read(&text);
    assert!(!text.contains("process_"));
}

#[test]
fn fractions_are_spelled_without_zeros_at_the_end() {
    for (value, digits, want) in [
        (0, 9, "0"),
        (1_024, 9, "0.000001024"),
        (1_500_000_000, 9, "1.5"),
        (2_000_000_000, 9, "2"),
        (100, 0, "100"),
        (1, 6, "0.000001"),
        (u128::from(u64::MAX) << 10, 9, "18889465931478.58085376"),
    ] {
        let mut out = b"x ".to_vec();
        push_fraction(&mut out, value, digits);
        assert_eq!(String::from_utf8(out).unwrap(), format!("x {want}"));
    }
}

/// The whole text of a member of a cluster.
fn render_member(role: &'static str) -> String {
    let it = Sample::new(Rules::default());
    let mut out = Vec::new();
    let shown = Shown {
        cluster: Some(member(role)),
        ..shown(NOW)
    };
    let (http, pace) = (HttpFigures::default(), Pace::default());
    metrics(&mut out, &it.engine, &http, &pace, &shown, &process());
    String::from_utf8(out).unwrap()
}

#[test]
fn a_member_of_a_cluster_shows_what_it_is_and_how_fast() {
    let samples = read(&render_member("standby"));
    for (series, want) in [
        ("latchd_cluster_role{role=\"standby\"}", 1.0),
        ("latchd_cluster_role{role=\"leader\"}", 0.0),
        ("latchd_cluster_shard", 1.0),
        ("latchd_cluster_shards", 2.0),
        ("latchd_cluster_epoch", 4.0),
        ("latchd_cluster_log_entry", 1_234.0),
        ("latchd_cluster_commit_duration_seconds_count", 3.0),
        (
            "latchd_cluster_commit_duration_seconds_bucket{le=\"0.000131072\"}",
            0.0,
        ),
        (
            "latchd_cluster_commit_duration_seconds_bucket{le=\"0.002097152\"}",
            2.0,
        ),
        (
            "latchd_cluster_commit_duration_seconds_bucket{le=\"0.016777216\"}",
            3.0,
        ),
        (
            "latchd_cluster_commit_duration_seconds_bucket{le=\"17.179869184\"}",
            3.0,
        ),
        (
            "latchd_cluster_commit_duration_seconds_bucket{le=\"+Inf\"}",
            3.0,
        ),
        ("latchd_cluster_lag_seconds_count", 90.0),
        ("latchd_cluster_behind_seconds", 0.0015),
        ("latchd_cluster_lag_entries", 2.0),
        ("latchd_etcd_bytes", 60_000_000.0),
        ("latchd_etcd_in_use_bytes", 25_000_000.0),
        ("latchd_etcd_quota_bytes", 2_147_483_648.0),
    ] {
        assert_eq!(samples.get(series), Some(&want), "{series}");
    }
    let sum = samples["latchd_cluster_commit_duration_seconds_sum"];
    assert!((sum - 0.013).abs() < 0.000_01, "{sum}");
    let alone = Sample::new(Rules::default());
    let alone = render(&alone.engine, &HttpFigures::default(), &Pace::default());
    assert!(!alone.contains("cluster") && !alone.contains("etcd"));
}

#[test]
fn promtool_has_nothing_to_complain_of() {
    promtool(&render_member("leader")); // has all families
}

fn promtool(text: &str) {
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
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert_eq!(String::from_utf8(said).unwrap(), KNOWN_COMPLAINT);
}
