//! A bad day of the network and of etcd: one direction that is cut, a quota that is reached, a log that is gone before
//! somebody has read it, a slow disk.

use std::time::Duration;

use crate::etcd::Etcds;
use crate::members::{Members, Proxy};
use crate::{now, with_etcd};

/// A proxy before the first three etcd, one for each member.
fn proxies(etcds: &Etcds) -> (Vec<Proxy>, Vec<String>) {
    let proxies: Vec<Proxy> = etcds
        .addresses()
        .iter()
        .map(|&it| Proxy::start(it))
        .collect();
    let urls = proxies.iter().map(Proxy::url).collect();
    (proxies, urls)
}

fn with_quota(bytes: usize, test: impl FnOnce(&Etcds)) {
    match Etcds::start_with(&["--quota-backend-bytes", &bytes.to_string()]) {
        Some(etcds) => test(&etcds),
        None => eprintln!("skipped: ETCD_FOLDER names no folder with etcd; see docs/cluster.md"),
    }
}

/// What it asks does not leave: nothing of it counts, also when it arrives at last.
#[test]
fn a_leader_whose_questions_do_not_arrive_is_followed_by_another() {
    with_etcd(|etcds| {
        let (proxies, urls) = proxies(etcds);
        let members = Members::start_each("mute", &urls);
        let leader = members.leader();
        let mut client = members.daemon(leader).connect();
        let grant = client.lock("job", "0 600");
        assert_eq!(client.ask("incr hits 5"), "ok 5");
        let began = now();
        proxies[leader].mute(true);
        client.put("incr hits 100");
        let next = members.next_leader(leader);
        println!("mute     {:6.3} s", began.elapsed().as_secs_f64());
        let mut after = members.daemon(next).connect();
        assert_eq!(after.ask("get hits _"), "ok 5");
        assert_eq!(after.ask("l job 0 1"), "timeout");
        let other = after.lock("other", "0 600");
        assert!(other.token_fence() > grant.token_fence());
        // Now the entry arrives, and is refused; its client has heard nothing and hears no more.
        proxies[leader].mute(false);
        assert_eq!(client.rest().0, b"");
        members.await_standby(leader);
        assert_eq!(after.ask("incr hits 1"), "ok 6");
    });
}

/// What it asks arrives, and it hears nothing: what it has asked may have been done, but it does not keep its place by
/// asking on and on.
#[test]
fn a_leader_that_hears_nothing_is_followed_by_another() {
    with_etcd(|etcds| {
        let (proxies, urls) = proxies(etcds);
        let members = Members::start_each("deaf", &urls);
        let leader = members.leader();
        let mut client = members.daemon(leader).connect();
        let grant = client.lock("job", "0 600");
        assert_eq!(client.ask("incr hits 5"), "ok 5");
        let began = now();
        proxies[leader].deafen(true);
        client.put("incr hits 100");
        let next = members.next_leader(leader);
        println!("deaf     {:6.3} s", began.elapsed().as_secs_f64());
        let mut after = members.daemon(next).connect();
        let hits = after.ask("get hits _");
        assert!(["ok 5", "ok 105"].contains(&hits.as_str()), "{hits}");
        assert_eq!(after.ask("l job 0 1"), "timeout");
        let other = after.lock("other", "0 600");
        assert!(other.token_fence() > grant.token_fence());
        proxies[leader].deafen(false);
        assert_eq!(client.rest().0, b"", "after it was fenced");
        members.await_standby(leader);
        assert_eq!(after.ask("get hits _"), hits);
    });
}

/// A round trip of 260 ms and the default lease. The leader stays, also when it loses all connections to etcd.
#[test]
fn leader_stays_although_etcd_is_130_ms_away() {
    with_etcd(|etcds| {
        let one_way = Duration::from_millis(130);
        let proxies: Vec<Proxy> = etcds
            .addresses()
            .iter()
            .map(|&it| Proxy::start_far(it, one_way))
            .collect();
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let urls = [(); 2].map(|()| urls.join(","));
        let members = Members::start_with("far", &urls, &["--cluster-ttl", "5s"]);
        let leader = members.leader();
        let mut client = members.daemon(leader).connect();
        for hits in 1..=30 {
            if hits % 10 == 0 {
                proxies.iter().for_each(Proxy::hang_up);
            }
            assert_eq!(client.ask("incr hits 1"), format!("ok {hits}"));
        }
        assert!(!members.daemon(leader).logged("leads no longer"));
    });
}

/// At 70 % of --etcd-quota: what grows is refused, everything else goes on.
#[test]
fn near_the_quota_only_what_takes_room_is_refused() {
    with_etcd(|etcds| {
        let urls = [etcds.urls()];
        let members = Members::start_with("tight", &urls, &["--etcd-quota", "16m"]);
        let leader = members.daemon(members.leader());
        let mut client = leader.connect();
        let [held, freed] = ["held", "freed"].map(|it| client.lock(it, "0 600"));
        assert_eq!(client.ask("incr hits 5"), "ok 5");
        etcds.fill(13 << 20);
        leader.wait_for_log("of --etcd-quota");
        for grows in ["incr hits 1", "l new 0", "kset k v", "rpush list v"] {
            // The thread that looks has said so; the one that serves is told in a moment.
            while client.ask("incr hits 0") != "error_storage" {}
            assert_eq!(client.ask(grows), "error_storage", "{grows}");
        }
        assert_eq!(client.ask("get hits _"), "ok 5");
        assert!(
            client
                .ask(&format!("n held {}", held.token))
                .starts_with("ok")
        );
        client.release("freed", &freed);
        etcds.empty();
        leader.wait_for_log("there is room in etcd again");
        while client.ask("incr hits 0") == "error_storage" {}
        assert_eq!(client.ask("incr hits 1"), "ok 6");
        client.lock("freed", "0 600");
    });
}

/// etcd itself is full: nothing can be written, so nobody can take over either, until somebody makes room.
#[test]
fn a_full_etcd_loses_nothing_and_goes_on_when_it_is_cured() {
    with_quota(6 << 20, |etcds| {
        let urls = [etcds.urls(), etcds.urls()];
        let mut members = Members::start_with("full", &urls, &["--etcd-quota", "1g"]);
        let leader = members.leader();
        let standby = members.others(leader).next().unwrap();
        let mut client = members.daemon(leader).connect();
        let [held, freed] = ["held", "freed"].map(|it| client.lock(it, "0 600"));
        assert_eq!(client.ask("incr hits 5"), "ok 5");
        assert_eq!(client.ask("incr quiet 7"), "ok 7");
        etcds.fill_up();
        // Whoever is first finds out, and waits; everybody else is told.
        let mut first = members.daemon(leader).connect();
        first.put("incr hits 1");
        members
            .daemon(leader)
            .wait_for_log("etcd has no space for the log");
        while client.ask("kset k v") != "error_storage" {}
        assert_eq!(client.ask("l new 0"), "error_storage");
        let renewed = client.ask(&format!("n held {} 600", held.token));
        assert!(renewed.starts_with("ok 600"), "{renewed}");
        assert_eq!(client.ask("get quiet _"), "ok 7");
        // It is free when that is written down.
        client.put(&format!("r freed {}", freed.token));
        etcds.cure();
        client.expect("ok");
        first.expect("ok 6");
        while client.ask("incr hits 1") == "error_storage" {}
        // Full again, and the leader goes.
        etcds.fill_up();
        members.kill(leader);
        members.daemon(standby).wait_for_log("etcd has no space");
        etcds.cure();
        assert_eq!(members.next_leader(leader), standby);
        let mut client = members.daemon(standby).connect();
        assert_eq!(client.ask("get hits _"), "ok 7");
        assert_eq!(client.ask("l held 0 1"), "timeout");
        let again = client.lock("freed", "0 600");
        assert!(again.token_fence() > held.token_fence());
    });
}

/// etcd has forgotten what a standby had not heard of, so that its watch cannot be begun anew where it was.
#[test]
fn a_standby_that_has_missed_what_is_forgotten_catches_up_and_takes_over() {
    with_etcd(|etcds| {
        let (proxies, urls) = proxies(etcds);
        let mut members = Members::start_each("forgotten", &urls[..2]);
        let leader = members.leader();
        let standby = members.others(leader).next().unwrap();
        members.await_standby(standby);
        members.daemon(standby).freeze();
        let mut client = members.daemon(leader).connect();
        let grant = client.lock("job", "0 600");
        assert_eq!(client.ask("incr hits 5"), "ok 5");
        // The first snapshot comes soon after somebody has begun to lead, and stands for all this.
        members.daemon(leader).wait_for_log("a snapshot of");
        etcds.compact();
        assert_eq!(client.ask("incr hits 1"), "ok 6");
        members.daemon(standby).thaw();
        members.await_all_of(leader, standby);
        // The same while it cannot be reached, and with a watch that has to be begun anew behind what is forgotten.
        members.await_standby(standby);
        proxies[standby].cut(true);
        proxies[standby].hang_up();
        for hits in 7..20 {
            assert_eq!(client.ask("incr hits 1"), format!("ok {hits}"));
        }
        etcds.compact();
        proxies[standby].cut(false);
        members.kill(leader);
        assert_eq!(members.next_leader(leader), standby);
        let mut after = members.daemon(standby).connect();
        assert_eq!(after.ask("get hits _"), "ok 19");
        assert_eq!(after.ask("l job 0 1"), "timeout");
        let renewed = after.ask(&format!("n job {} 600", grant.token));
        assert!(renewed.starts_with("ok 600"), "{renewed}");
        assert!(after.lock("other", "0 600").token_fence() > grant.token_fence());
    });
}

/// Two of three disks are enough.
#[test]
fn a_slow_disk_of_one_etcd_is_not_noticed() {
    with_etcd(|etcds| {
        let slow = (etcds.leader() + 1) % 3;
        let urls: Vec<String> = (0..3)
            .map(|it| format!("http://{}", etcds.addresses()[it]))
            .filter(|it| !it.ends_with(&etcds.addresses()[slow].to_string()))
            .collect();
        let urls = urls.join(",");
        let members = Members::start("slow", &urls);
        let leader = members.leader();
        let mut client = members.daemon(leader).connect();
        let epoch = |welcome: String| {
            let word = welcome.split(' ').find(|it| it.starts_with("epoch="));
            word.unwrap().to_owned()
        };
        let began = epoch(client.ask("hello"));
        let Some(slow) = etcds.slow_down(slow, Duration::from_secs(2)) else {
            return eprintln!("skipped: strace is not here, or may not look at etcd");
        };
        for hits in 1..=100 {
            assert_eq!(client.ask("incr hits 1"), format!("ok {hits}"));
        }
        drop(slow);
        assert_eq!(epoch(client.ask("hello")), began);
        assert_eq!(members.leader(), leader);
    });
}
