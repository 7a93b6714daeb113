//! Bytes as they come: in pieces, too many, or meant for somebody else.

use latchd::base::Millis;

use crate::vocabulary::{Daemon, frame};

#[test]
fn a_frame_may_come_one_byte_at_a_time() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    for byte in frame("l job 10 60").bytes() {
        client.raw([byte]);
    }
    assert_eq!(client.grant().lease, Millis::from_secs(60));
    // In one piece at most, whatever the kernel joins: somebody else is served between two bytes.
    let mut other = daemon.connect();
    for byte in frame("l other 0 7").bytes() {
        assert_eq!(other.ask("ping _ _"), "ok");
        client.raw([byte]);
    }
    assert_eq!(client.grant().lease, Millis::from_secs(7));
}

#[test]
fn a_key_of_256_bytes_is_served_also_with_a_carriage_return() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    let key = "k".repeat(256);
    client.lock(&key, "0");
    client.raw(format!("l\r\n{key}\r\n0\r\n"));
    client.expect("timeout"); // so it is the same key
}

#[test]
fn a_malformed_frame_is_an_error_and_the_next_one_is_served() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    for bad in [
        "l  10",
        "l k",
        "l k -1",
        "l k 1e3",
        "l k 18446744073709551616",
        "L k 1",
        "r k  ",
    ] {
        assert_eq!(client.ask(bad), "error", "{bad}");
    }
    client.raw(b"l\n\xff\x00\x1b\n0\n");
    client.grant(); // any byte may be in a key
    client.lock("k", "+5 007");
}

/// The rest of what was sent is read and thrown away: a reset would destroy the `error`.
#[test]
fn a_line_of_257_bytes_is_an_error_that_arrives_and_the_end() {
    let daemon = Daemon::start(&[]);
    for command in ["l\n", ""] {
        let mut client = daemon.connect();
        let too_long = "k".repeat(257);
        client.raw(frame("ping _ _") + command + &too_long + "\n0\n");
        client.raw(frame("ping _ _").repeat(20_000));
        client.expect("ok");
        client.expect("error");
        client.expect_end();
    }
}

#[test]
fn a_megabyte_without_a_line_end_is_cut_and_not_kept() {
    let daemon = Daemon::start(&[]);
    let mut other = daemon.connect();
    assert_eq!(other.ask("ping _ _"), "ok");
    let before_kib = daemon.resident_kib();
    let mut clients: Vec<_> = (0..16).map(|_| daemon.connect()).collect();
    for client in &mut clients {
        client.raw("x".repeat(1 << 20));
    }
    assert_eq!(other.ask("ping _ _"), "ok");
    for client in &mut clients {
        client.expect("error");
        client.expect_end();
    }
    let grown_kib = daemon.resident_kib().saturating_sub(before_kib);
    assert!(
        grown_kib < 8 * 1024,
        "grown by {grown_kib} KiB for 16 MiB of nothing"
    );
}

#[test]
fn a_long_argument_is_for_auth_only() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    let long = "x".repeat(65_536);
    assert_eq!(client.ask(&format!("auth _ {long}")), "error"); // nobody asked for a secret
    client.put(&format!("l k {long}"));
    client.expect("error");
    client.expect_end();
}

#[test]
fn other_protocols_are_closed_at_once_without_a_byte() {
    let daemon = Daemon::start(&[]);
    for knock in [
        &b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..],
        b"GET ",
        b"POST /l HTTP/1.1\r\nContent-Length: 6\r\n\r\nl\nk\n5\n",
        b"Host: localhost\r\n",
        b"BREW /pot HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ] {
        let mut client = daemon.connect();
        client.raw(knock);
        client.end();
    }
    let stats = daemon.connect().stats();
    assert_eq!(stats["totals"]["grants"], 0);
    assert_eq!(stats["connections"], 1);
}

/// A page in a browser can make it send this; the lines after the head must not be commands.
#[test]
fn another_protocol_after_a_good_frame_is_closed_all_the_same() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    assert_eq!(client.ask("ping _ _"), "ok");
    client.raw("GET / HTTP/1.1\r\nl\nk\n5\nl\nk\n5\n");
    client.end();
    assert_eq!(daemon.connect().stats()["totals"]["grants"], 0);
}

#[test]
fn ten_thousand_pipelined_commands_are_answered_in_order() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.raw((frame("ping _ _") + &frame("nonsense _ _")).repeat(5_000));
    client.half_close();
    let (answers, _) = client.rest();
    assert!(
        answers == b"ok\nerror\n".repeat(5_000),
        "{} bytes",
        answers.len()
    );
}
