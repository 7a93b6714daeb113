//! Two shards with two members each: every key has one home, one shard lives on while the other has no leader, and
//! their number is changed while locks are held.

use std::process::Command;
use std::time::Duration;

use latchd::shard::shard_of;
use rustix::process::Signal;

use crate::members::{LOOKS, says};
use crate::vocabulary::{Client, Daemon, Grant, latchd};
use crate::with_etcd;

/// Members of one cluster, with the shard of each.
struct Cluster {
    name: &'static str,
    urls: String,
    shards: u32,
    daemons: Vec<(u32, Daemon)>,
}

fn command(name: &str, urls: &str) -> Command {
    let mut command = latchd();
    command.args(["--cluster", name, "--etcd", urls]);
    command
}

fn start(name: &str, urls: &str, shard: &str) -> Daemon {
    let mut command = command(name, urls);
    command
        .args(["--port", "0", "--http-port", "0", "--shard", shard])
        .args(["--cluster-ttl", "3s"]);
    Daemon::serve(command)
}

/// A name in this shard, and another one for every number.
fn name_in(shard: u32, of: u32, number: usize) -> String {
    let names = (0..).map(|it| format!("job{it}"));
    let mut names = names.filter(|it| shard_of(it.as_bytes(), of) == shard);
    names.nth(number).unwrap()
}

impl Cluster {
    /// Two members for each shard.
    fn start(name: &'static str, urls: &str, shards: u32) -> Self {
        let daemons = (0..2 * shards).map(|it| {
            let shard = it % shards;
            (shard, start(name, urls, &format!("{shard}/{shards}")))
        });
        Self {
            name,
            urls: urls.to_owned(),
            shards,
            daemons: daemons.collect(),
        }
    }

    /// Waits until somebody leads this shard, who is not the one that did before.
    fn leader(&self, shard: u32, before: Option<usize>) -> usize {
        let names = (0..).map(|it| format!("nothing{it}"));
        let mut names = names.filter(|it| shard_of(it.as_bytes(), self.shards) == shard);
        let key = names.next().unwrap();
        for _ in 0..LOOKS {
            for (index, (of, daemon)) in self.daemons.iter().enumerate() {
                let may_be = *of == shard && before != Some(index);
                if may_be && says_of(daemon, &key).is_some_and(|it| it == "ok 0") {
                    return index;
                }
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        panic!("nobody leads shard {shard}");
    }

    /// Waits until a member sends clients with this key there.
    fn await_redirect(&self, index: usize, key: &str, to: usize) {
        let to = format!("error_not_leader {}", self.daemons[to].1.address());
        for _ in 0..LOOKS {
            if says_of(&self.daemons[index].1, key).is_some_and(|it| it == to) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        panic!("member {index} does not say {to} of {key}");
    }

    fn connect(&self, index: usize) -> Client {
        self.daemons[index].1.connect()
    }

    fn reshard(&self, to: u32) -> (i32, String) {
        let mut command = command(self.name, &self.urls);
        command.args(["--reshard", &format!("{}:{to}", self.shards)]);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        (output.status.code().unwrap(), text)
    }

    fn stop(&mut self) {
        for (_, daemon) in &mut self.daemons {
            daemon.stop();
        }
        self.daemons.clear();
    }
}

fn says_of(daemon: &Daemon, key: &str) -> Option<String> {
    says(daemon.address(), "get", key)
}

#[test]
fn keys_have_a_home_and_shards_live_and_die_alone() {
    with_etcd(|etcds| {
        let mut cluster = Cluster::start("halves", &etcds.urls(), 2);
        let leaders = [0, 1].map(|shard| cluster.leader(shard, None));
        let names = [0, 1].map(|shard| name_in(shard, 2, 1));
        // Every member, whatever its shard and role, sends everybody home.
        for index in 0..4 {
            for shard in [0, 1] {
                if leaders[shard] != index {
                    cluster.await_redirect(index, &names[shard], leaders[shard]);
                }
            }
        }
        let mut clients = leaders.map(|index| cluster.connect(index));
        let welcome = clients[1].ask("hello");
        assert!(welcome.contains(" shard=1/2"), "{welcome}");
        let elsewhere = format!(
            "error_not_leader {}",
            cluster.daemons[leaders[1]].1.address()
        );
        for verb in ["l", "bwait", "signal", "kset", "rangelist", "observe"] {
            let argument = match verb {
                "bwait" => "1 0",
                _ => "0",
            };
            let told = clients[0].ask(&format!("{verb} {} {argument}", names[1]));
            assert_eq!(told, elsewhere, "{verb}");
        }
        let mut http = cluster.daemons[leaders[0]].1.http();
        let sent_away = http.get(&format!("/v1/locks/{}?x=1", names[1]));
        assert_eq!(sent_away.status, 307);
        let to = format!(
            "Location: http://{}/v1/locks/{}?x=1\r\n",
            cluster.daemons[leaders[1]].1.http_address(),
            names[1]
        );
        assert!(sent_away.head.contains(&to), "{}", sent_away.head);
        // One shard has no leader for a while, and the other does not notice.
        let held = [0, 1].map(|it: usize| clients[it].lock(&names[it], "0 600"));
        cluster.daemons[leaders[1]].1.signal(Signal::KILL);
        let mut counted = 0;
        let next = {
            let mut next = None;
            while next.is_none() {
                counted += 1;
                let hits = format!("incr {} 1", name_in(0, 2, 2));
                assert_eq!(clients[0].ask(&hits), format!("ok {counted}"));
                let other = cluster.daemons.iter().enumerate();
                let mut other = other.filter(|(index, it)| it.0 == 1 && *index != leaders[1]);
                let (index, (_, daemon)) = other.next().unwrap();
                next = says_of(daemon, &names[1])
                    .filter(|it| it == "ok 0")
                    .map(|_| index);
            }
            next.unwrap()
        };
        let mut client = cluster.connect(next);
        let renew = |it: usize| format!("n {} {} 600", names[it], held[it].token);
        assert!(client.ask(&renew(1)).starts_with("ok 600"));
        assert!(clients[0].ask(&renew(0)).starts_with("ok 600"));
        cluster.await_redirect(leaders[0], &names[1], next);
        // A leader that is asked to lets another one lead, and lives on.
        cluster.daemons[leaders[0]].1.signal(Signal::USR1);
        let moved = cluster.leader(0, Some(leaders[0]));
        cluster.await_redirect(leaders[0], &names[0], moved);
        let mut client = cluster.connect(moved);
        assert!(client.ask(&renew(0)).starts_with("ok 600"));
        assert!(
            cluster.daemons[leaders[0]]
                .1
                .logged("told to let another member lead")
        );
        // And takes over when that one is gone, too.
        cluster.daemons[moved].1.stop();
        assert_eq!(cluster.leader(0, Some(moved)), leaders[0]);
        let stray = start_and_end("halves", &etcds.urls(), "0/3");
        assert_eq!(stray.0, 78, "{}", stray.1);
        assert!(stray.1.contains("has 2 shards"), "{}", stray.1);
        cluster.daemons.clear();
    });
}

/// How a member ends that does not go on.
fn start_and_end(name: &str, urls: &str, shard: &str) -> (i32, String) {
    let mut command = command(name, urls);
    command.args(["--port", "0", "--shard", shard]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), text)
}

#[test]
fn who_is_asked_to_let_others_lead_and_is_alone_leads_again() {
    with_etcd(|etcds| {
        let daemon = start("alone-in-it", &etcds.urls(), "0/1");
        let is_leading = || says_of(&daemon, "x").is_some_and(|it| it == "ok 0");
        let await_it = |wanted: bool| {
            for _ in 0..LOOKS {
                if is_leading() == wanted {
                    return;
                }
                std::thread::park_timeout(Duration::from_millis(10));
            }
            panic!("it leads, or not: {}", !wanted);
        };
        await_it(true);
        let mut client = daemon.connect();
        let grant = client.lock("job", "0 600");
        daemon.signal(Signal::USR1);
        assert_eq!(client.rest().0, b"", "its connections are closed");
        await_it(false);
        daemon.signal(Signal::USR1);
        daemon.wait_for_log("but this one does not lead");
        await_it(true);
        let mut client = daemon.connect();
        let renew = format!("n job {} 600", grant.token);
        assert!(client.ask(&renew).starts_with("ok 600"));
    });
}

#[test]
fn another_number_of_shards_keeps_what_is_held() {
    with_etcd(|etcds| {
        let mut cluster = Cluster::start("more", &etcds.urls(), 2);
        let names: Vec<String> = (0..12).map(|it| format!("job{it}")).collect();
        let mut held: Vec<(String, Grant)> = Vec::new();
        let mut clients = [0, 1].map(|shard| cluster.connect(cluster.leader(shard, None)));
        for name in &names {
            let client = &mut clients[shard_of(name.as_bytes(), 2) as usize];
            held.push((name.clone(), client.lock(name, "0 600")));
            assert_eq!(client.ask(&format!("incr {name} 7")), "ok 7");
            assert_eq!(client.ask(&format!("rpush {name} a")), "ok 1");
            assert_eq!(client.ask(&format!("lpush {name} b")), "ok 2");
            assert_eq!(client.ask(&format!("kset {name} value")), "ok");
        }
        for client in &mut clients {
            let attached = client.ask("attach gw/1 600 0123456789abcdef");
            assert!(attached.ends_with(" new"), "{attached}");
        }
        for name in &names {
            let client = &mut clients[shard_of(name.as_bytes(), 2) as usize];
            assert_eq!(client.ask(&format!("rangelock {name} ex 0 10 0")), "ok");
        }
        let highest = held.iter().map(|(_, it)| it.token_fence()).max().unwrap();
        let (code, text) = cluster.reshard(3);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("leads shard 0"), "{text}");
        cluster.stop();
        // One that was stopped when it was about to lead has left its lease behind.
        let (code, text) = (0..LOOKS)
            .map(|_| cluster.reshard(3))
            .find(|(_, text)| !text.contains("leads shard"))
            .unwrap();
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("has 3 shards now"), "{text}");
        let (code, text) = cluster.reshard(3);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("has 3 shards already"), "{text}");
        let stray = start_and_end("more", &etcds.urls(), "0/2");
        assert_eq!(stray.0, 78, "{}", stray.1);
        let cluster = Cluster::start("more", &etcds.urls(), 3);
        let mut clients = [0, 1, 2].map(|shard| cluster.connect(cluster.leader(shard, None)));
        for client in &mut clients {
            let attached = client.ask("attach gw/1 600 0123456789abcdef");
            assert!(attached.ends_with(" resumed"), "{attached}");
        }
        for (name, grant) in &held {
            let home = shard_of(name.as_bytes(), 3) as usize;
            let client = &mut clients[home];
            assert_eq!(client.ask(&format!("l {name} 0 1")), "timeout");
            let renew = format!("n {name} {} 600", grant.token);
            assert!(client.ask(&renew).starts_with("ok 600"), "{name}");
            assert_eq!(client.ask(&format!("get {name} _")), "ok 7");
            assert_eq!(
                client.ask(&format!("lrange {name} 0 -1")),
                "ok [\"b\",\"a\"]"
            );
            assert_eq!(client.ask(&format!("kget {name} _")), "ok value");
            let reclaim = format!("rangereclaim {name} ex 0 10");
            assert_eq!(client.ask(&reclaim), "ok", "{name}");
            let free = name_in(home as u32, 3, 90);
            let new = client.lock(&free, "0 600");
            assert!(new.token_fence() > highest, "{name}");
            client.release(&free, &new);
            let other = &mut clients[(home + 1) % 3];
            let told = other.ask(&renew);
            assert!(told.starts_with("error_not_leader"), "{told}");
        }
    });
}
