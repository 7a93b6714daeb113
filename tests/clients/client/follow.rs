//! Members of a cluster, of which one leads: it is found, it is followed, and what was held is held when another one leads.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use latchd::client::{Client, Enqueued, Error, ErrorKind, Guard, Sharing, Standing};
use latchd::wire::verbs::Verb;
use tempfile::TempDir;

use super::front::{Front, Role};
use super::proxy::{GREETING, peer_that_decides};
use super::{ms, s};
use crate::vocabulary::{Daemon, PATIENCE};

/// Two members and the server that decides, which is started anew when another one takes over.
pub(crate) struct Pair {
    folder: TempDir,
    server: Option<Daemon>,
    pub(crate) first: Front,
    pub(crate) second: Front,
}

fn start_in(folder: &Path) -> Daemon {
    let folder = folder.to_str().unwrap();
    Daemon::start(&["--data-dir", folder, "--default-lease-ttl", "60"])
}

impl Pair {
    /// The first one leads.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = start_in(folder.path());
        let first = Front::start(Role::Leads(server.address()));
        let second = Front::start(Role::Follows(Some(first.address.to_string())));
        Self {
            folder,
            server: Some(server),
            first,
            second,
        }
    }

    pub(crate) fn list(&self) -> String {
        format!("{}+{}", self.first.address, self.second.address)
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.list()).unwrap()
    }

    pub(crate) fn server(&self) -> &Daemon {
        self.server.as_ref().unwrap()
    }

    /// Nobody leads: the first is gone or stopped, the second knows of nobody.
    pub(crate) fn lose_leader(&mut self, first: Role) {
        // It must not hear of the end of a connection before its own: it would let go of what hung on that.
        if first == Role::Stopped {
            self.first.becomes(Role::Stopped);
        }
        self.server = None; // killed
        self.first.becomes(first);
        self.second.becomes(Role::Follows(None));
    }

    /// The second one has taken over, and nothing has become of the first.
    pub(crate) fn lead_second(&mut self) -> SocketAddr {
        let server = start_in(self.folder.path());
        let address = server.address();
        self.server = Some(server);
        self.second.becomes(Role::Leads(address));
        address
    }

    /// The second one has taken over, and the first one follows it, if it is there.
    pub(crate) fn take_over(&mut self) -> SocketAddr {
        let address = self.lead_second();
        if self.first.role() != Role::Stopped {
            self.first.follows(&self.second);
        }
        address
    }
}

#[track_caller]
pub(crate) fn wait_until_it_is(guard: &Guard, standing: Standing) {
    let start = Instant::now();
    while guard.standing() != standing {
        let now = guard.standing();
        assert!(start.elapsed() < PATIENCE, "{now:?}, not {standing:?}");
        let _ = guard.lost().wait(ms(1));
    }
}

#[test]
fn whoever_leads_is_found_wherever_one_begins() {
    let pair = Pair::start();
    let (first, second) = (pair.first.address, pair.second.address);
    for list in [
        format!("{first}+{second}"),
        format!("{second}+{first}"),
        second.to_string(), // and goes where it is told
    ] {
        let client = Client::connect(&list).unwrap();
        assert_eq!(client.servers(), [&*list]);
        let guard = client.lock("job").try_acquire().unwrap();
        assert!(guard.is_held());
        guard.release().unwrap();
        client.ping().unwrap();
        assert_eq!(
            client.counter("c").add(1).unwrap(),
            client.counter("c").get().unwrap()
        );
        assert_eq!(client.stats().unwrap()[0].server, list);
    }
    let client = Client::cluster([second.to_string(), first.to_string()]);
    client.connect().unwrap().ping().unwrap();
}

#[test]
fn one_of_several_that_is_down_is_no_matter() {
    let pair = Pair::start();
    let list = format!("127.0.0.1:1+{}", pair.second.address);
    drop(
        Client::connect(&list)
            .unwrap()
            .lock("job")
            .acquire()
            .unwrap(),
    );
    // All of them are.
    let error = Client::connect("127.0.0.1:1+127.0.0.1:2").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down);
    let text = error.to_string();
    assert!(
        text.contains("no member of the cluster leads: tried 127.0.0.1:1 ("),
        "{text}"
    );
    assert!(text.contains("), 127.0.0.1:2 ("), "{text}");
}

#[test]
fn members_that_send_to_each_other_are_not_asked_for_ever() {
    let first = Front::start(Role::Follows(None));
    let second = Front::start(Role::Follows(Some(first.address.to_string())));
    first.follows(&second);
    let list = format!("{}+{}", first.address, second.address);
    let client = Client::builder(&list)
        .connect_timeout(ms(400))
        .build()
        .unwrap();
    let start = Instant::now();
    for error in [
        client.lock("job").try_acquire().unwrap_err(),
        client.counter("c").add(1).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Down, "{error}");
        assert!(error.to_string().contains("sends to"), "{error}");
    }
    assert!(start.elapsed() >= ms(800), "it waits for a leader");
    // And waits between two rounds: at most so many fit into that time.
    assert!(first.accepted() < 40, "{}", first.accepted());
}

#[test]
fn a_time_without_a_leader_is_waited_out() {
    let mut pair = Pair::start();
    pair.lose_leader(Role::Gone);
    let list = pair.list();
    let waiting = thread::spawn(move || {
        let client = Client::builder(&list).connect_timeout(PATIENCE).build();
        let client = client.unwrap();
        client.lock("job").wait(PATIENCE).acquire().map(drop)
    });
    let before = pair.second.accepted();
    pair.second.wait_for_connections(before + 3);
    pair.take_over();
    waiting.join().unwrap().unwrap();
}

/// A secret goes nowhere where it is protected less: from this machine into the open.
#[test]
fn a_secret_is_not_shown_to_whoever_a_server_names() {
    let standby = Front::start(Role::Follows(Some("192.0.2.1:6388".to_owned())));
    let client = Client::builder(&standby.address.to_string()).connect_timeout(ms(300));
    let error = client.auth_token("s3cret").connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
    assert!(error.to_string().contains("in the open"), "{error}");
    // On this machine it may.
    let daemon = Daemon::start(&["--auth-token=s3cret"]);
    standby.becomes(Role::Follows(Some(daemon.address().to_string())));
    let client = Client::builder(&standby.address.to_string()).auth_token("s3cret");
    client.connect().unwrap().ping().unwrap();
    assert!(standby.heard().contains(&"auth _ s3cret".to_owned()));
}

/// The heart of it: what is held stays held, bound to a connection or not, and never by two.
#[test]
fn a_guard_is_held_when_another_member_leads() {
    for keep in [false, true] {
        let mut pair = Pair::start();
        let client = Client::builder(&pair.list()).keep(keep).connect().unwrap();
        let guard = client.lock("job").lease(s(30)).acquire().unwrap();
        let semaphore = client.semaphore("slots", 3).lease(s(30)).acquire().unwrap();
        let lead = client.elect("lead").lease(s(30)).acquire().unwrap();
        pair.lose_leader(Role::Gone);
        wait_until_it_is(&guard, Standing::Doubtful);
        assert!(!guard.is_held(), "nobody may rely on it meanwhile");
        pair.take_over();
        for guard in [&guard, &semaphore, &lead] {
            wait_until_it_is(guard, Standing::Held);
        }
        let other = Client::connect(&pair.second.address.to_string()).unwrap();
        let error = other.lock("job").try_acquire().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let fence = guard.fence();
        guard.release().unwrap();
        semaphore.release().unwrap();
        lead.release().unwrap();
        assert!(other.lock("job").try_acquire().unwrap().fence() > fence);
    }
}

#[test]
fn a_guard_that_nobody_can_renew_ends_with_its_promise() {
    let mut pair = Pair::start();
    let guard = pair.client().lock("job").lease(s(2)).acquire().unwrap();
    pair.lose_leader(Role::Gone);
    assert!(guard.lost().wait(PATIENCE));
    assert!(!guard.is_held());
    pair.take_over();
    assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
}

/// `is_held` against fences, while leaders come and go: as soon as anybody else was granted it, we do not believe to hold it.
#[test]
fn nobody_believes_to_hold_what_another_leader_granted_to_somebody_else() {
    let mut pair = Pair::start();
    let ours = Client::builder(&pair.list()).connect_timeout(PATIENCE);
    let ours = ours.build().unwrap();
    // Others always reach whoever leads.
    let open = Front::start(Role::Leads(pair.server().address()));
    let others = Client::builder(&open.address.to_string()).connect_timeout(PATIENCE);
    let others = others.build().unwrap();
    let mut samples = 0_u64;
    for round in 0..4 {
        let guard = ours
            .lock("job")
            .lease(s(1))
            .wait(PATIENCE)
            .acquire()
            .unwrap();
        let (granted, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                let mut samples = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let seen = granted.load(Ordering::SeqCst);
                    let is_held = guard.is_held();
                    assert!(!is_held || seen <= guard.fence(), "both hold it");
                    samples += u64::from(is_held);
                }
                samples
            });
            let waiter = scope.spawn(|| {
                let other = others.lock("job").lease(s(10)).wait(PATIENCE).acquire();
                if let Ok(other) = &other {
                    granted.store(other.fence(), Ordering::SeqCst);
                }
                other
            });
            let direct = Client::connect(&pair.server().address().to_string()).unwrap();
            let start = Instant::now();
            while direct.who("job").unwrap().waiter_count == 0 {
                assert!(start.elapsed() < PATIENCE);
            }
            drop(direct);
            pair.lose_leader(Role::Gone);
            open.becomes(Role::Gone);
            let address = pair.take_over();
            open.becomes(Role::Leads(address));
            if round % 2 == 0 {
                let start = Instant::now();
                while guard.standing() == Standing::Doubtful && start.elapsed() < PATIENCE {
                    let _ = guard.lost().wait(ms(1));
                }
            }
            // From now on nothing of ours gets through, and the promise runs out.
            pair.first.becomes(Role::Stopped);
            pair.second.becomes(Role::Stopped);
            assert!(guard.lost().wait(PATIENCE));
            let other = waiter.join().unwrap();
            is_over.store(true, Ordering::SeqCst);
            samples += sampler.join().unwrap();
            let other = other.unwrap();
            assert!(other.fence() > guard.fence());
            other.release().unwrap();
        });
        let address = pair.server().address();
        pair.first.becomes(Role::Leads(address));
        pair.second.follows(&pair.first);
        assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
    }
    assert!(samples > 0, "never held at all");
}

/// A grant that outlives its connection is looked for as soon as an answer is late, as any other:
/// neither a third of its lease nor the answer timeout is waited for.
#[test]
fn kept_guard_leaves_a_stopped_leader_when_an_answer_is_late() {
    let mut pair = Pair::start();
    let client = Client::builder(&pair.list()).keep(true);
    let client = client.answer_timeout(s(3_600)).check_every(ms(100));
    let client = client.connect().unwrap();
    let guard = client.lock("job").lease(s(60)).acquire().unwrap();
    pair.lose_leader(Role::Stopped);
    pair.lead_second();
    let other = Client::connect(&pair.second.address.to_string()).unwrap();
    let start = Instant::now();
    while other.who("job").unwrap().holders[0].restored {
        assert!(start.elapsed() < PATIENCE, "{:?}", guard.standing());
    }
    wait_until_it_is(&guard, Standing::Held);
    guard.release().unwrap();
}

/// A wait that is no acquire ends when another member leads: it may be asked again there.
#[test]
fn wait_at_a_stopped_leader_ends_when_another_member_leads() {
    let mut pair = Pair::start();
    let client = pair.client();
    let _held = client.lock("job").lease(s(60)).acquire().unwrap();
    let Enqueued::Queued(place) = client.lock("job").enqueue().unwrap() else {
        panic!("the lock is held")
    };
    let mut ranges = client.ranges("f").unwrap();
    let meeting = pair.client();
    for client in [&client, &meeting] {
        client.ask_verb(Verb::Llen, b"list", b"").unwrap(); // its connection is used again
    }
    pair.lose_leader(Role::Stopped);
    pair.lead_second();
    let wait = PATIENCE.as_secs().to_string();
    let pop = client.ask_verb(Verb::Blpop, b"list", wait.as_bytes());
    let barrier = meeting.ask_verb(Verb::Bwait, b"b", format!("2 {wait}").as_bytes());
    for ended in [
        pop.map(drop),
        barrier.map(drop),
        ranges.lock(Sharing::Exclusive, 0, 1, PATIENCE),
        place.wait(PATIENCE).map(drop),
    ] {
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        assert!(error.to_string().contains("another member"), "{error}");
    }
}

/// Connections to a leader that was stopped stay open and are silent. What would end with them is renewed elsewhere.
#[test]
fn a_leader_that_was_stopped_is_left() {
    let mut pair = Pair::start();
    let client = Client::builder(&pair.list()).connect_timeout(PATIENCE);
    let client = client.build().unwrap();
    let guard = client.lock("job").lease(s(12)).acquire().unwrap();
    let (ours, theirs) = (client.clone(), pair.list());
    let waiting = thread::spawn(move || ours.lock("job").wait(PATIENCE).acquire());
    let other = Client::connect(&theirs).unwrap();
    let start = Instant::now();
    while other.who("job").unwrap().waiter_count == 0 {
        assert!(start.elapsed() < PATIENCE);
    }
    let mut events = client.watch("news").unwrap();
    let listening = thread::spawn(move || {
        let error = events.next_within(PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Down, "{error}");
        assert!(error.to_string().contains("another member"), "{error}");
        events.next_within(PATIENCE).unwrap().unwrap()
    });
    pair.lose_leader(Role::Stopped);
    pair.take_over();
    // It is renewed at the new leader long before its lease is over, and bound to that connection.
    let start = Instant::now();
    let who = |client: &Client| client.who("job").unwrap();
    while !who(&other)
        .holders
        .iter()
        .any(|it| it.fence == guard.fence() && !it.restored)
    {
        assert!(start.elapsed() < PATIENCE, "{:?}", guard.standing());
    }
    wait_until_it_is(&guard, Standing::Held);
    // The wait goes on there, too.
    while who(&other).waiter_count == 0 {
        assert!(start.elapsed() < PATIENCE);
    }
    let fence = guard.fence();
    guard.release().unwrap();
    assert!(waiting.join().unwrap().unwrap().fence() > fence);
    let start = Instant::now();
    while !listening.is_finished() {
        assert!(start.elapsed() < PATIENCE);
        other.counter("news").add(1).unwrap();
    }
    listening.join().unwrap();
}

/// A wait that was under way goes on at the new leader, behind whoever holds it there.
#[test]
fn a_wait_goes_on_where_another_member_leads() {
    let mut pair = Pair::start();
    let (holder, waiter) = (pair.client(), pair.client());
    let guard = holder.lock("job").lease(s(30)).acquire().unwrap();
    let waiting = thread::spawn(move || waiter.lock("job").wait(PATIENCE).acquire());
    let start = Instant::now();
    while holder.who("job").unwrap().waiter_count == 0 {
        assert!(start.elapsed() < PATIENCE);
    }
    pair.lose_leader(Role::Gone);
    pair.take_over();
    wait_until_it_is(&guard, Standing::Held);
    while holder.who("job").unwrap().waiter_count == 0 {
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(guard.is_held());
    let fence = guard.fence();
    guard.release().unwrap();
    let next = waiting.join().unwrap().unwrap();
    assert!(next.fence() > fence);
}

/// The answer to an acquire was lost with the leader. It may be held, and nobody can use it: it is waited for while there
/// is time, and reported otherwise.
#[test]
fn an_acquire_whose_answer_was_lost_with_the_leader_is_never_had_twice() {
    for wait in [PATIENCE, s(2)] {
        let mut pair = Pair::start();
        let client = Client::builder(&pair.list()).keep(true).build().unwrap();
        // The request gets to the server, and its answer to nobody; nor does anybody get there again.
        let proxy = super::proxy::Proxy::to(pair.server().address());
        pair.first.becomes(Role::Leads(proxy.address));
        client.ping().unwrap();
        proxy.refuse(true);
        proxy.cut_after("l\njob\n");
        let lock = client.lock("job").lease(s(4)).wait(wait);
        let asking = thread::spawn(move || lock.acquire());
        let direct = Client::connect(&pair.server().address().to_string()).unwrap();
        let start = Instant::now();
        let lost = loop {
            if let Some(holder) = direct.who("job").unwrap().holders.first() {
                break holder.fence;
            }
            assert!(start.elapsed() < PATIENCE);
        };
        pair.lose_leader(Role::Gone);
        pair.take_over();
        match asking.join().unwrap() {
            // Its lease was over, and then it was granted anew.
            Ok(guard) => assert!(guard.fence() > lost && wait == PATIENCE),
            Err(Error::Unknown { fence, .. }) => {
                assert!(wait < PATIENCE);
                assert!(fence.is_none_or(|it| it.0 == lost), "{fence:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A leader has other keys than ours, and says who has it: that one is asked for this key, and the first for the others.
#[test]
fn a_key_that_another_leader_has_is_asked_for_there() {
    let daemon = Daemon::start(&[]);
    let address = daemon.address();
    let (other, accepted) = peer_that_decides(move |_, verb, stream| {
        use std::io::Write;
        let answer = match verb {
            "hello" => GREETING.to_vec(),
            "ping" => b"ok\n".to_vec(),
            _ => format!("error_not_leader {address}\n").into_bytes(),
        };
        stream.write_all(&answer).is_ok()
    });
    let client = Client::connect(&other.to_string()).unwrap();
    let guard = client.lock("job").lease(s(2)).acquire().unwrap();
    assert!(!guard.lost().wait(s(3)), "it is renewed where it is held");
    assert_eq!(super::client(&daemon).who("job").unwrap().holder_count, 1);
    guard.release().unwrap();
    assert_eq!(client.counter("c").add(2).unwrap(), 2);
    let before = accepted.load(Ordering::SeqCst);
    for round in 3..20 {
        assert_eq!(client.counter("c").add(1).unwrap(), round);
    }
    assert_eq!(
        accepted.load(Ordering::SeqCst),
        before,
        "nobody asks there again"
    );
    client.ping().unwrap();
    let mut signals = client.listen("chat").unwrap();
    assert_eq!(client.signal("chat", "hi").unwrap(), 1);
    assert_eq!(
        signals.next_within(PATIENCE).unwrap().unwrap().payload,
        b"hi"
    );
    let mut ranges = client.ranges("/a").unwrap();
    ranges.try_lock(Sharing::Exclusive, 0, 10).unwrap();
    let Enqueued::Held(guard) = client.lock("fresh").enqueue().unwrap() else {
        panic!("it is free");
    };
    assert!(guard.is_held());
}

#[test]
fn two_leaders_that_send_to_each_other_for_a_key_are_not_asked_for_ever() {
    use std::io::Write;
    use std::sync::{Arc, OnceLock};
    let there: Arc<OnceLock<SocketAddr>> = Arc::default();
    let to = Arc::clone(&there);
    let sends = |to: String| {
        move |verb: &str| match verb {
            "hello" => GREETING.to_vec(),
            _ => format!("error_not_leader {to}\n").into_bytes(),
        }
    };
    let (one, _) = peer_that_decides(move |_, verb, stream| {
        let to = to.get().map(ToString::to_string).unwrap_or_default();
        stream.write_all(&sends(to)(verb)).is_ok()
    });
    let (other, _) = peer_that_decides(move |_, verb, stream| {
        stream.write_all(&sends(one.to_string())(verb)).is_ok()
    });
    there.set(other).unwrap();
    let client = Client::builder(&one.to_string()).connect_timeout(ms(400));
    let client = client.connect().unwrap();
    for error in [
        client.counter("c").add(1).unwrap_err(),
        client.lock("job").try_acquire().unwrap_err(),
        client.who("job").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Down, "{error}");
    }
}

/// A server that cannot say where the leader is makes no sense, and nobody believes it.
#[test]
fn an_address_that_is_none_is_garbage() {
    for words in [
        &b"error_not_leader nowhere\n"[..],
        b"error_not_leader a b:1\n",
        b"error_not_leader :1\n",
        b"error_not_leader x:\n",
        b"error_not_leader x:123456\n",
    ] {
        let peer = super::proxy::peer_that_says(words);
        let error = Client::connect(&peer.to_string()).unwrap_err();
        let shown = words.escape_ascii();
        assert_eq!(error.kind(), ErrorKind::Garbage, "{shown}: {error}");
    }
}
