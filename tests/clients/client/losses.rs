//! How something that is held can be lost, and how not: servers that hang and restart, connections that
//! break, answers that do not arrive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use latchd::client::{Client, Error, ErrorKind, Guard, Lost, Reason, Standing};

use super::proxy::Proxy;
use super::{builder, client, ms, s};
use crate::vocabulary::{Daemon, PATIENCE};

/// A client that reaches the daemon through a proxy.
fn through(proxy: &Proxy) -> Client {
    Client::connect(&proxy.address.to_string()).unwrap()
}

/// Waits until the guard stands so.
#[track_caller]
fn wait_until_it_is(guard: &Guard, standing: Standing) {
    let start = Instant::now();
    while guard.standing() != standing {
        assert!(
            start.elapsed() < PATIENCE,
            "{:?}, not {standing:?}",
            guard.standing()
        );
        let _ = guard.lost().wait(ms(1));
    }
}

#[test]
fn a_server_that_hangs_is_held_against_the_own_clock() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let guard = client.lock("job").lease(ms(300)).acquire().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    daemon.freeze();
    assert!(guard.lost().wait(PATIENCE));
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Lost::Expired));
    assert!(!guard.is_held());
    assert_eq!(guard.token(), None);
    daemon.thaw();
    // The server has read the renewal after all; but nobody counts on it, and it is told so.
    let next = client.lock("job").lease(ms(300)).acquire().unwrap();
    assert!(next.is_held());
    assert!(!guard.is_held(), "lost is lost");
}

/// The core of it all, over and over: as soon as anybody else was granted, nobody believes to hold.
#[test]
fn is_held_is_never_true_while_somebody_else_holds() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let (ours, others) = (through(&proxy), client(&daemon));
    let mut samples = 0;
    for round in 0..8 {
        let guard = ours.lock("job").lease(ms(150)).acquire().unwrap();
        let granted = AtomicU64::new(0);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Also if something else goes wrong, so that it is told.
            let over = Over(&is_over);
            let sampler = scope.spawn(|| {
                let mut samples = 0_u64;
                while !is_over.load(Ordering::SeqCst) {
                    let seen = granted.load(Ordering::SeqCst);
                    let is_held = guard.is_held();
                    assert!(!is_held || seen <= guard.fence(), "both hold it");
                    samples += u64::from(is_held);
                }
                samples
            });
            // Sometimes at once, sometimes after some renewals; sometimes requests, sometimes answers.
            let _ = guard.lost().wait(ms(40 * round));
            match round % 2 {
                0 => proxy.stall_requests(true),
                _ => proxy.stall_answers(true),
            }
            let other = others.lock("job").wait(PATIENCE).acquire().unwrap();
            granted.store(other.fence(), Ordering::SeqCst);
            assert!(guard.lost().wait(PATIENCE));
            drop(over);
            samples += sampler.join().unwrap();
            other.release().unwrap();
        });
        proxy.stall_requests(false);
        proxy.stall_answers(false);
        assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
    }
    assert!(samples > 0, "never held at all");
}

/// Says so when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_broken_connection_is_a_lost_lock() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = through(&proxy);
    let guard = client.lock("job").lease(s(600)).acquire().unwrap();
    proxy.cut();
    assert!(guard.lost().wait(PATIENCE));
    assert_eq!(guard.lost().why(), Some(Lost::Disconnected));
    assert!(!guard.is_held());
    let next = client.lock("job").acquire().unwrap();
    assert!(next.fence() > guard.fence());
}

/// Something in between has cut the side of the server, which lets go, and nobody here is told. So the
/// server is asked, and what it does not answer is not believed for long, however long the lease is.
#[test]
fn a_break_that_only_the_server_sees_is_a_doubt() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let ours = Client::builder(&proxy.address.to_string());
    let ours = ours.check_every(ms(200)).answer_timeout(s(3));
    let ours = ours.connect().unwrap();
    let guard = ours.lock("job").lease(s(600)).acquire().unwrap();
    let start = Instant::now();
    // For longer than that it is held, because the server answers.
    while start.elapsed() < s(4) {
        assert!(!guard.lost().wait(ms(200)));
        assert!(guard.is_held());
        assert!(guard.remaining() <= ms(3_200), "{:?}", guard.remaining());
    }
    proxy.cut_servers();
    let next = client(&daemon).lock("job").acquire().unwrap();
    assert!(next.fence() > guard.fence());
    wait_until_it_is(&guard, Standing::Doubtful);
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(guard.token().is_some(), "nobody knows");
    let start = Instant::now();
    drop(guard);
    assert!(start.elapsed() < PATIENCE);
    assert!(next.is_held());
}

/// A server that hangs for a while and then answers is believed again.
#[test]
fn a_server_that_answers_late_is_believed_again() {
    let daemon = Daemon::start(&[]);
    let ours = builder(&daemon).check_every(ms(100)).answer_timeout(s(1));
    let guard = ours.connect().unwrap().lock("job").lease(s(600));
    let guard = guard.acquire().unwrap();
    daemon.freeze();
    wait_until_it_is(&guard, Standing::Doubtful);
    daemon.thaw();
    wait_until_it_is(&guard, Standing::Held);
    guard.release().unwrap();
}

/// The server notices nothing of the break, and would keep the lock for its lease.
#[test]
fn what_can_not_be_kept_is_let_go() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = through(&proxy);
    let guard = client.lock("job").lease(ms(300)).acquire().unwrap();
    proxy.stall_present();
    assert!(guard.lost().wait(PATIENCE));
    assert_eq!(guard.lost().why(), Some(Lost::Expired));
    drop(client.lock("job").acquire().unwrap());
}

#[test]
fn an_attached_client_survives_breaks_and_black_holes() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = Client::builder(&proxy.address.to_string());
    let client = client.attach("gw/1", s(60), "s3cret").connect().unwrap();
    let guard = client.lock("job").lease(s(3)).acquire().unwrap();
    let fence = guard.fence();
    proxy.cut();
    let before = proxy.accepted();
    wait_until_it_is(&guard, Standing::Held);
    // A connection on which nothing moves any more is replaced in time. For two leases it is held.
    for _ in 0..2 {
        proxy.stall_present();
        assert!(!guard.lost().wait(s(3)), "{:?}", guard.lost().why());
    }
    assert!(proxy.accepted() > before);
    let who = super::client(&daemon).who("job").unwrap();
    assert_eq!(who.holders[0].fence, fence);
    guard.release().unwrap();
}

#[test]
fn a_restart_with_a_data_directory_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--data-dir", folder.path().to_str().unwrap()];
    let daemon = Daemon::start(&options);
    let proxy = Proxy::to(daemon.address());
    let client = through(&proxy);
    let guards: Vec<_> = (0..5)
        .map(|index| {
            client
                .lock(format!("job{index}"))
                .lease(s(20))
                .acquire()
                .unwrap()
        })
        .collect();
    drop(daemon); // killed
    for guard in &guards {
        wait_until_it_is(guard, Standing::Doubtful);
        assert!(!guard.is_held(), "nobody knows");
    }
    let daemon = Daemon::start(&options);
    proxy.lead_to(daemon.address());
    for guard in &guards {
        wait_until_it_is(guard, Standing::Held);
    }
    // It belongs to the new connection now, so it ends with that one.
    let who = client.who("job0").unwrap();
    assert_eq!(who.holders[0].fence, guards[0].fence());
    assert!(who.holders[0].connection.is_some() && !who.holders[0].restored);
    for guard in guards {
        guard.release().unwrap();
    }
    let again = client.lock("job1").try_acquire().unwrap();
    proxy.cut();
    assert!(again.lost().wait(PATIENCE));
}

#[test]
fn a_restart_without_one_is_not() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = through(&proxy);
    let guard = client.lock("job").lease(s(600)).acquire().unwrap();
    drop(daemon);
    let daemon = Daemon::start(&[]);
    proxy.lead_to(daemon.address());
    assert!(guard.lost().wait(PATIENCE));
    assert_eq!(guard.lost().why(), Some(Lost::Forgotten));
    drop(client.lock("job").try_acquire().unwrap());
}

#[test]
fn a_server_that_never_comes_back_is_given_up_in_time() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let guard = client.lock("job").lease(s(1)).acquire().unwrap();
    drop(daemon);
    wait_until_it_is(&guard, Standing::Doubtful);
    assert!(guard.lost().wait(PATIENCE));
    assert_eq!(guard.lost().why(), Some(Lost::Expired));
    let error = guard.release().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[test]
fn an_acquire_whose_answer_was_lost_is_asked_again_when_nobody_holds() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = through(&proxy);
    proxy.cut_after("l\njob");
    let guard = client.lock("job").try_acquire().unwrap();
    assert!(guard.is_held());
    let totals = daemon.connect().stats()["totals"].clone();
    assert_eq!(
        (&totals["grants"], &totals["disconnects"]),
        (&2.into(), &1.into())
    );
    guard.release().unwrap();

    proxy.cut_before("l\njob");
    client.lock("job").try_acquire().unwrap().release().unwrap();
    assert_eq!(daemon.connect().stats()["totals"]["grants"], 3);
}

#[test]
fn an_acquire_whose_answer_may_be_held_is_reported() {
    let daemon = Daemon::start(&["--no-auto-release-on-disconnect"]);
    let proxy = Proxy::to(daemon.address());
    let client = through(&proxy);
    proxy.cut_after("l\njob");
    let error = client.lock("job").lease(s(60)).acquire().unwrap_err();
    let held = super::client(&daemon).who("job").unwrap().holders[0].fence;
    match error {
        Error::Unknown {
            fence: Some(fence), ..
        } => assert_eq!(fence.0, held),
        error => panic!("{error:?}"),
    }
    // What somebody else holds is not ours.
    let other = super::client(&daemon);
    let guard = other.lock("other").lease(s(60)).acquire().unwrap();
    proxy.cut_after("l\nother");
    let error = client.lock("other").try_acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    guard.release().unwrap();
}

#[test]
fn a_wait_goes_on_after_a_break() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let (ours, others) = (through(&proxy), client(&daemon));
    let guard = others.lock("job").acquire().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| ours.lock("job").wait(s(60)).acquire().unwrap());
        let mut look = daemon.connect();
        for _ in 0..3 {
            look.wait_for_waiters("job", 1);
            proxy.cut();
            look.wait_for_waiters("job", 0);
        }
        look.wait_for_waiters("job", 1);
        guard.release().unwrap();
        assert!(waiter.join().unwrap().is_held());
    });
}

#[test]
fn a_wait_goes_on_over_a_restart() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let (ours, others) = (through(&proxy), client(&daemon));
    let guard = others.lock("job").lease(s(600)).acquire().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| ours.lock("job").wait(s(60)).acquire().unwrap());
        daemon.connect().wait_for_waiters("job", 1);
        drop(daemon);
        let daemon = Daemon::start(&[]);
        proxy.lead_to(daemon.address());
        assert!(waiter.join().unwrap().is_held());
        drop(guard);
    });
}

#[test]
fn a_change_whose_answer_was_lost_is_not_made_again() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = through(&proxy);
    proxy.cut_after("incr\nc");
    let error = client.counter("c").add(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert_eq!(client.counter("c").get().unwrap(), 1);
    // Looking is repeated, and a connection that has ended while it was idle is not used.
    proxy.cut();
    assert_eq!(client.counter("c").get().unwrap(), 1);
    proxy.cut();
    assert_eq!(client.counter("c").add(1).unwrap(), 2);
    proxy.cut_before("get\nc");
    assert_eq!(client.counter("c").get().unwrap(), 2);
}

#[test]
fn who_cannot_connect_is_told_so() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let client = through(&proxy);
    proxy.refuse(true);
    proxy.cut();
    let error = client.lock("job").wait(s(60)).acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "at once: {error}");
    proxy.refuse(false);
    drop(client.lock("job").acquire().unwrap());
}

/// What was missed is lost, so whoever listens is told. Whoever listens on is subscribed again.
#[test]
fn a_subscription_that_broke_says_so_once_and_is_made_again() {
    let daemon = Daemon::start(&[]);
    let proxy = Proxy::to(daemon.address());
    let ours = through(&proxy);
    let mut signals = ours.listen("a").unwrap();
    proxy.cut();
    assert_eq!(client(&daemon).signal("a", "missed").unwrap(), 0);
    let error = signals.next_within(PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Down, "{error}");
    assert!(signals.next_within(ms(1)).unwrap().is_none());
    assert_eq!(client(&daemon).signal("a", "heard").unwrap(), 1);
    let heard = signals.next_within(PATIENCE).unwrap().unwrap();
    assert_eq!(heard.payload, b"heard");
    proxy.cut();
    proxy.refuse(true);
    for _ in 0..2 {
        let error = signals.next_within(PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Down, "{error}");
    }
    assert_eq!(
        signals.within(ms(1)).count(),
        1,
        "one error, and then nothing"
    );
}

#[test]
fn a_server_that_drains_serves_who_holds_and_refuses_who_comes() {
    let daemon = Daemon::start(&["--shutdown-timeout", "60"]);
    let client = client(&daemon);
    let guard = client.lock("job").lease(s(2)).acquire().unwrap();
    let other = client.lock("other").acquire().unwrap(); // its connection is there for later
    daemon.signal(rustix::process::Signal::TERM);
    daemon.wait_for_log("shutting down");
    let error = client.lock("third").try_acquire().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Draining), "{error}");
    assert!(!guard.lost().wait(ms(2_500)), "renewals go on");
    guard.release().unwrap();
    other.release().unwrap();
}

#[test]
fn who_would_wait_for_itself_is_told() {
    let daemon = Daemon::start(&[]);
    let attached = |id: &str| {
        let client = builder(&daemon).attach(id, s(60), "s").deadlock(true);
        client.connect().unwrap()
    };
    let (one, two) = (attached("one"), attached("two"));
    let (_a, b) = (
        one.lock("a").acquire().unwrap(),
        two.lock("b").acquire().unwrap(),
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| one.lock("b").wait(s(60)).acquire().unwrap());
        daemon.connect().wait_for_waiters("b", 1);
        let error = two.lock("a").wait(s(60)).acquire().unwrap_err();
        assert_eq!(error.reason(), Some(Reason::Deadlock), "{error}");
        b.release().unwrap();
        assert!(waiter.join().unwrap().is_held());
    });
}
