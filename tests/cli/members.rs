//! Members of a cluster: the one that leads is found, and a command goes on when another one does.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::front::{Front, Role};
use crate::latch::{Run, latch, said, wait_until};
use crate::proxy::peer_that_decides;
use crate::vocabulary::Daemon;

fn latch_with(list: &str, words: &[&str]) -> Command {
    let mut command = latch(words);
    command.env("LATCH_SERVER", list);
    command
}

#[test]
fn whoever_leads_is_found_by_every_command() {
    let daemon = Daemon::start(&[]);
    let leader = Front::start(Role::Leads(daemon.address()));
    let standby = Front::start(Role::Follows(Some(leader.address.to_string())));
    let list = format!("{}+127.0.0.1:1+{}", standby.address, leader.address);
    let out = said(latch_with(&list, &["acquire", "--lease", "60s", "job"])).out;
    let token = out.split(' ').next().unwrap();
    for (code, words) in [
        (0, &["ping"][..]),
        (0, &["who", "job"]),
        (0, &["ls"]),
        (0, &["stats"]),
        (1, &["run", "-n", "job", "--", "true"]),
        (0, &["renew", "job", token]),
        (0, &["release", "job", token]),
        (0, &["run", "job", "-c", "exit 0"]),
        (7, &["run", "job", "-c", "exit 7"]),
        (0, &["incr", "hits"]),
        (0, &["set", "k", "v"]),
        (1, &["watch", "-w", "50ms", ">"]),
        (79, &["renew", "job", token]),
    ] {
        let said = said(latch_with(&list, words));
        assert_eq!(said.code, Some(code), "{words:?}: {said:?}");
    }
    // One address of a standby is enough.
    let only = standby.address.to_string();
    assert_eq!(
        said(latch_with(&only, &["run", "job", "--", "true"])).code,
        Some(0)
    );
}

#[test]
fn a_cluster_without_a_leader_is_told_with_all_who_were_asked() {
    let list = "127.0.0.1:1+127.0.0.1:2";
    let said_down = said(latch_with(list, &["who", "job"]));
    assert_eq!(said_down.code, Some(69), "{said_down:?}");
    let text = &said_down.err;
    for word in [
        "no member of the cluster leads: tried 127.0.0.1:1 (",
        "127.0.0.1:2 (",
        "LATCH_SERVER",
    ] {
        assert!(text.contains(word), "{text}");
    }
    let wrong = said(latch_with("a:1++b:1", &["who", "job"]));
    assert_eq!(wrong.code, Some(64), "{wrong:?}");
}

/// The child is not told anything, and the lock is held when the command has ended.
#[test]
fn a_command_outlasts_the_leader() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let daemon = Daemon::start(&["--data-dir", folder]);
    let first = Front::start(Role::Leads(daemon.address()));
    let second = Front::start(Role::Follows(Some(first.address.to_string())));
    let list = format!("{}+{}", first.address, second.address);
    let script = "trap 'echo told' TERM; echo begun; read line; echo $line";
    let mut command = latch_with(&list, &["run", "--lease", "20s", "job", "-c", script]);
    command.stdin(Stdio::piped());
    let mut run = Run::start(command);
    assert_eq!(run.line(), "begun");
    drop(daemon); // killed
    first.becomes(Role::Gone);
    second.becomes(Role::Follows(None));
    let daemon = Daemon::start(&["--data-dir", folder]);
    second.becomes(Role::Leads(daemon.address()));
    // Its lock is claimed at the new leader.
    let mut client = daemon.connect();
    let is_claimed = |who: &str| !who.contains("\"restored\":true") && who.contains("\"fence\"");
    wait_until("claimed", || is_claimed(&client.ask("who job _")));
    run.child
        .stdin
        .take()
        .unwrap()
        .write_all(b"ended\n")
        .unwrap();
    assert_eq!(run.line(), "ended", "and was not told to end");
    assert_eq!(run.code(), Some(0));
    assert!(client.lock("job", "0 1").token_fence() > 0, "it was let go");
}

/// The holder reclaims its bytes at the new leader, and its command goes on. The waiter waits there.
#[test]
fn range_locks_and_waits_for_some_outlast_the_leader() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--data-dir", folder.path().to_str().unwrap()];
    let daemon = Daemon::start(&options);
    let first = Front::start(Role::Leads(daemon.address()));
    let second = Front::start(Role::Follows(Some(first.address.to_string())));
    let list = format!("{}+{}", first.address, second.address);
    let script = "trap 'echo told' TERM; echo begun; read line; echo $line";
    let range = ["range", "lock", "f", "0", "10", "--"];
    let holds = latch_with(&list, &[&range[..], &["sh", "-c", script]].concat());
    let waits = latch_with(&list, &[&range[..], &["echo", "its turn"]].concat());
    let start = |mut command: Command| {
        command.stdin(Stdio::piped());
        Run::start(command)
    };
    let mut holder = start(holds);
    assert_eq!(holder.line(), "begun");
    let mut waiter = start(waits);
    let listed = |daemon: &Daemon| -> serde_json::Value {
        let answer = daemon.connect().ask("rangelist f _");
        serde_json::from_str(answer.strip_prefix("ok ").unwrap()).unwrap()
    };
    wait_until("it waits", || listed(&daemon)["waiter_count"] == 1);
    drop(daemon); // killed
    first.becomes(Role::Gone);
    second.becomes(Role::Follows(None));
    let daemon = Daemon::start(&options);
    assert_eq!(listed(&daemon)["locks"][0]["pending"], true);
    second.becomes(Role::Leads(daemon.address()));
    wait_until("reclaimed, and waited for", || {
        let listed = listed(&daemon);
        listed["locks"][0]["pending"] == false && listed["waiter_count"] == 1
    });
    holder
        .child
        .stdin
        .take()
        .unwrap()
        .write_all(b"ended\n")
        .unwrap();
    assert_eq!(holder.line(), "ended", "and was not told to end");
    assert_eq!(holder.code(), Some(0));
    assert_eq!(waiter.line(), "its turn");
    assert_eq!(waiter.code(), Some(0));
}

/// A leader that fails is noticed and another one found within the time to live of the cluster and
/// some time to look.
#[test]
fn run_warns_of_a_lease_that_is_too_short_for_its_cluster() {
    for (lease, warning) in [
        (
            "7",
            "latch: a lease of 7.0s is too short for this cluster: the command is ended if the \
             leader fails. Say --lease 7.9s or more\n",
        ),
        ("8", ""),
    ] {
        let (address, _) = peer_that_decides(move |_, verb, client| {
            let answer = match verb {
                "hello" => "ok latchd/0.1.0 epoch=1 fence=1 cluster_ttl=5000\n".to_owned(),
                "l" => format!("ok 00000000000000010000000000000001 {lease} 1\n"),
                "n" => format!("ok {lease} 1\n"),
                _ => "ok\n".to_owned(),
            };
            client.write_all(answer.as_bytes()).is_ok()
        });
        let list = format!("{address}+127.0.0.1:1");
        let words = ["run", "--lease", lease, "job", "--", "true"];
        let said = said(latch_with(&list, &words));
        assert_eq!((said.code, said.err.as_str()), (Some(0), warning));
    }
}

/// Whoever listens is told that something may have been missed, and listens on.
#[test]
fn whoever_listens_goes_on_where_another_member_leads() {
    let daemons = [Daemon::start(&[]), Daemon::start(&[])];
    let first = Front::start(Role::Leads(daemons[0].address()));
    let second = Front::start(Role::Follows(Some(first.address.to_string())));
    let list = format!("{}+{}", first.address, second.address);
    let mut command = latch_with(&list, &["listen", "--count", "2", "chat"]);
    command.stderr(Stdio::piped());
    let mut listen = Run::start(command);
    let mut client = daemons[0].connect();
    wait_until("heard", || client.ask("signal chat one") == "ok 1");
    assert_eq!(listen.line(), "chat one");
    second.becomes(Role::Leads(daemons[1].address()));
    first.follows(&second);
    let mut client = daemons[1].connect();
    wait_until("heard again", || client.ask("signal chat two") == "ok 1");
    assert_eq!(listen.line(), "chat two");
    assert_eq!(listen.code(), Some(0));
    let mut text = String::new();
    let err = listen.child.stderr.as_mut().unwrap();
    err.read_to_string(&mut text).unwrap();
    assert!(text.contains("something may have been missed"), "{text}");
}
