//! Ordinary conversations, field by field, as the published clients hold them.

use serde_json::Value;

use crate::vocabulary::{Client, Daemon, Grant};

/// What every strict client does: exactly three fields on a grant, exactly two on a renewal.
#[track_caller]
fn strict_session(client: &mut Client) {
    let grant = client.ask("l job 10 60");
    let fields: Vec<&str> = grant.split(' ').collect();
    let ["ok", token, "60"] = fields[..] else {
        panic!("{grant}");
    };
    assert_eq!(client.ask(&format!("n job {token} 60")), "ok 60");
    assert_eq!(client.ask(&format!("n job {token}")), "ok 33");
    assert_eq!(client.ask(&format!("r job {token}")), "ok");
    assert_eq!(client.ask(&format!("r job {token}")), "error");
}

#[test]
fn a_strict_client_is_served_over_tcp() {
    strict_session(&mut Daemon::start(&[]).connect());
}

#[test]
fn a_strict_client_is_served_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let _daemon = Daemon::start_at(&path, &[]);
    strict_session(&mut Client::unix(&path));
}

#[test]
fn a_lock_is_one_over_both_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let daemon = Daemon::start_at(&path, &[]);
    let (mut tcp, mut unix) = (daemon.connect(), Client::unix(&path));
    let first = tcp.lock("k", "0");
    assert_eq!(unix.ask("l k 0"), "timeout");
    unix.put("l k 10");
    daemon.connect().wait_for_waiters("k", 1);
    tcp.release("k", &first);
    let second = unix.grant();
    assert!(second.token_fence() > first.token_fence());
}

/// What an operator looks for first: which process on which machine has the lock.
#[test]
fn who_and_stats_show_where_a_client_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.sock");
    let daemon = Daemon::start_at(&path, &[]);
    let (mut tcp, mut unix) = (daemon.connect(), Client::unix(&path));
    tcp.lock("k", "0");
    unix.put("l k 10");
    let mut asker = daemon.connect();
    asker.wait_for_waiters("k", 1);
    let who = asker.ask("who k");
    let who: Value = serde_json::from_str(who.strip_prefix("ok ").unwrap()).unwrap();
    let address = tcp.local_address();
    assert_eq!(who["holders"][0]["address"], address, "{who}");
    assert_eq!(who["waiters"][0]["address"], "unix", "{who}");
    let stats = asker.stats();
    let clients = stats["clients"].as_array().unwrap();
    let from = |address: &str| clients.iter().find(|it| it["address"] == address).unwrap();
    assert_eq!(from(&address)["held"], 1, "{stats}");
    assert_eq!(from("unix")["waiting"], 1, "{stats}");
}

#[test]
fn the_two_phases_answer_with_three_fields() {
    let daemon = Daemon::start(&[]);
    let (mut a, mut b) = (daemon.connect(), daemon.connect());
    let first = a.ask("e k");
    assert!(first.starts_with("acquired "), "{first}");
    let first = Grant::of(&first);
    assert_eq!(b.ask("e k 9"), "queued");
    a.release("k", &first);
    let second = b.ask("w k 10");
    assert!(
        second.starts_with("ok ") && second.ends_with(" 9"),
        "{second}"
    );
    assert_eq!(Grant::of(&second).fence, None);
}

#[test]
fn hello_asks_for_the_fence_on_this_connection_only() {
    let daemon = Daemon::start(&[]);
    let (mut modern, mut plain) = (daemon.connect(), daemon.connect());
    let hello = modern.ask("hello _ fence=1");
    let version = concat!("ok latchd/", env!("CARGO_PKG_VERSION"), " epoch=");
    assert!(hello.starts_with(version), "{hello}");
    assert!(hello.ends_with(" fence=1"), "{hello}");
    let grant = modern.lock("k", "0");
    assert_eq!(grant.fence, Some(grant.token_fence()));
    let renewed = modern.ask(&format!("n k {}", grant.token));
    assert_eq!(renewed, format!("ok 33 {}", grant.token_fence()));
    assert_eq!(plain.lock("other", "0").fence, None);
}

#[test]
fn wire_fence_always_adds_the_field_for_everyone() {
    let daemon = Daemon::start(&["--wire-fence=always"]);
    let mut client = daemon.connect();
    let grant = client.lock("k", "0");
    assert_eq!(grant.fence, Some(grant.token_fence()));
    let renewed = client.ask(&format!("n k {} 5", grant.token));
    assert_eq!(renewed, format!("ok 5 {}", grant.token_fence()));
}

#[test]
fn wire_fence_never_leaves_the_field_out_for_everyone() {
    let daemon = Daemon::start(&["--wire-fence=never"]);
    let mut client = daemon.connect();
    let hello = client.ask("hello _ fence=1");
    assert!(hello.ends_with(" fence=0"), "{hello}");
    assert_eq!(client.lock("k", "0").fence, None);
    assert_eq!(Grant::of(&client.ask("rl doc 0")).fence, None);
}

#[test]
fn fences_of_a_later_process_are_higher() {
    let first = Daemon::start(&[]).connect().lock("k", "0");
    let second = Daemon::start(&[]).connect().lock("k", "0");
    assert!(second.token_fence() > first.token_fence());
    assert!(second.token_fence() < 1 << 53, "JavaScript would round it");
}
