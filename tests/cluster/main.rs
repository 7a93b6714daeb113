//! Real processes on loopback: three etcd and three latchd, which are killed, stopped, told to go, and cut off.
//!
//! Needs an etcd that is new enough, in the folder that the variable ETCD_FOLDER names; without it every test here
//! says that it is skipped. `ETCD_FOLDER=$(tools/cluster/get-etcd) cargo test --test cluster` downloads one. How long
//! each failover took is printed, and not judged: the machine may be busy.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that goes wrong has to fail; it has threads and times of its own"
)]

#[cfg(feature = "tls")]
#[path = "../daemon/tls/certificates.rs"]
#[allow(
    dead_code,
    reason = "the words of other tests, of which these need some"
)]
mod certificates;
#[cfg(all(feature = "cli", feature = "client", feature = "http"))]
mod clients;
mod etcd;
mod faults;
mod figures;
mod kinds;
mod members;
mod resigning;
mod restoring;
#[cfg(feature = "tls")]
mod secure;
mod shards;
mod tried;
#[path = "../daemon/vocabulary/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the words of other tests, of which these need some"
)]
mod vocabulary;

use std::time::Instant;

use etcd::Etcds;
use members::{Members, Proxy};

/// Runs a test on an etcd of its own, if there is one.
fn with_etcd(test: impl FnOnce(&Etcds)) {
    match Etcds::start() {
        Some(etcds) => test(&etcds),
        None => eprintln!("skipped: ETCD_FOLDER names no folder with etcd; see docs/cluster.md"),
    }
}

fn now() -> Instant {
    Instant::now()
}

#[test]
fn one_leads_and_the_others_say_where() {
    with_etcd(|etcds| {
        let members = Members::start("where", &etcds.urls());
        let leader = members.leader();
        let address = members.daemon(leader).address().to_string();
        for standby in members.others(leader) {
            members.await_redirect(standby, &address);
            let mut client = members.daemon(standby).connect();
            client.put("ping _ _");
            client.expect("ok");
            client.put("l job 0");
            client.expect(&format!("error_not_leader {address}"));
            client.put("ping _ _");
            client.expect("ok");
            let mut http = members.daemon(standby).http();
            assert_eq!(http.get("/readyz").status, 503);
            assert_eq!(http.get("/livez").status, 200);
            let sent_away = http.get("/v1/locks/job?x=1");
            assert_eq!(sent_away.status, 307);
            let to = format!(
                "Location: http://{}/v1/locks/job?x=1\r\n",
                members.daemon(leader).http_address()
            );
            assert!(sent_away.head.contains(&to), "{}", sent_away.head);
            assert!(sent_away.body.contains("NOT_LEADER"), "{}", sent_away.body);
            let figures = http.get("/metrics").body;
            assert!(
                figures.contains("latchd_cluster_role{role=\"standby\"} 1"),
                "{figures}"
            );
        }
        let mut http = members.daemon(leader).http();
        assert_eq!(http.get("/readyz").status, 200);
        let figures = http.get("/metrics").body;
        assert!(
            figures.contains("latchd_cluster_role{role=\"leader\"} 1"),
            "{figures}"
        );
        let mut client = members.daemon(leader).connect();
        let welcome = client.ask("hello");
        assert!(welcome.contains(" epoch=1 "), "{welcome}");
        // All of them have found nothing in etcd, or what another one had just begun to write.
        for index in 0..3 {
            assert!(!members.daemon(index).logged(" ERROR "));
        }
    });
}

#[test]
fn what_was_held_is_held_after_every_way_to_lose_a_leader() {
    with_etcd(|etcds| {
        let proxies: Vec<Proxy> = etcds
            .addresses()
            .iter()
            .map(|it| Proxy::start(*it))
            .collect();
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let mut members = Members::start_each("ways", &urls);
        let mut leader = members.leader();
        let mut client = members.daemon(leader).connect();
        let grant = client.lock("job", "0 600");
        assert_eq!(client.ask("incr hits 5"), "ok 5");
        let mut highest = grant.token_fence();
        // A renewal binds the grant to its connection, which must not end.
        let mut kept = vec![client];
        for (round, way) in ["resign", "kill", "freeze", "cut", "resign"]
            .into_iter()
            .enumerate()
        {
            let mut witness = members.daemon(leader).connect();
            witness.put("n job nonsense");
            let _ = witness.line();
            let began = now();
            match way {
                "resign" => {
                    members.daemon_mut(leader).stop();
                }
                "kill" => members.kill(leader),
                "freeze" => {
                    members.daemon(leader).freeze();
                    // Asked while it could not know, it must not answer when it goes on.
                    witness.put("get hits _");
                }
                _ => {
                    proxies[leader].cut(true);
                    witness.put("incr hits 100");
                }
            }
            let next = members.next_leader(leader);
            println!("{way:8} {:6.3} s", began.elapsed().as_secs_f64());
            let mut client = members.daemon(next).connect();
            assert_eq!(
                client.ask("get hits _"),
                format!("ok {}", 5 + round),
                "after {way}"
            );
            assert_eq!(client.ask("incr hits 1"), format!("ok {}", 6 + round));
            assert_eq!(client.ask("l job 0 1"), "timeout", "after {way}");
            let renew = format!("n job {} 600", grant.token);
            assert!(client.ask(&renew).starts_with("ok 600"), "after {way}");
            let other = client.lock(&format!("other{round}"), "0 600");
            assert!(other.token_fence() > highest, "after {way}");
            highest = other.token_fence();
            match way {
                "freeze" => {
                    members.daemon(leader).thaw();
                    assert_eq!(witness.rest().0, b"", "after it was fenced");
                    members.await_standby(leader);
                    let old = members.daemon(leader);
                    assert!(!old.logged("although its lease lives"));
                }
                "cut" => {
                    proxies[leader].cut(false);
                    assert_eq!(witness.rest().0, b"", "after it was fenced");
                    members.await_standby(leader);
                }
                _ => members.restart(leader, &urls[leader]),
            }
            kept.push(client);
            leader = next;
        }
    });
}

#[test]
fn a_leader_that_is_cut_off_says_nothing_and_goes_on_when_it_is_back_in_time() {
    with_etcd(|etcds| {
        let proxy = Proxy::start(etcds.addresses()[0]);
        let members = Members::start_each("alone", &[proxy.url()]);
        let leader = members.leader();
        let mut client = members.daemon(leader).connect();
        assert_eq!(client.ask("incr hits 1"), "ok 1");
        proxy.cut(true);
        // What is in no log yet waits.
        client.put("incr hits 1");
        assert_eq!(client.line_within(std::time::Duration::from_secs(1)), None);
        proxy.cut(false);
        client.expect("ok 2");
    });
}
