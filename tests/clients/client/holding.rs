//! To hold, to wait, to let go.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use latchd::client::{Client, ErrorKind, Lost, LostSignal, Standing};

use super::proxy::{GREETING, Tally, peer_that_decides};
use super::{builder, client, ms, s};
use crate::vocabulary::{Daemon, PATIENCE};

/// A client whose clock is slewed does not believe in a lease that the server has ended.
#[test]
fn a_tenth_of_a_lease_is_not_counted_on_unless_set() {
    let daemon = Daemon::start(&[]);
    for (percent, least, most) in [(None, 300, 540), (Some(50), 200, 300), (Some(0), 540, 600)] {
        let client = match percent {
            Some(percent) => builder(&daemon).keep(true).clock_drift(percent),
            None => builder(&daemon).keep(true),
        };
        let client = client.connect().unwrap();
        let guard = client.lock("job").lease(s(600)).acquire().unwrap();
        let token = guard.token().unwrap();
        let renewed = client.renew("job", token, Some(s(600))).unwrap();
        for left in [guard.promised(), guard.remaining(), renewed] {
            assert!(left > s(least) && left <= s(most), "{percent:?}: {left:?}");
        }
        assert_eq!(client.counts_on(s(600)), s(most));
        guard.release().unwrap();
    }
}

/// The shorter a lease is for its cluster, the more often it is renewed: there is always time to
/// find another leader.
#[test]
fn short_leases_of_a_cluster_are_renewed_more_often() {
    let renewals = Tally::default();
    let tally = renewals.clone();
    let (address, _) = peer_that_decides(move |_, verb, client| {
        let answer: &[u8] = match verb {
            "hello" => b"ok latchd/0.1.0 epoch=1 fence=1 cluster_ttl=5000\n",
            "l" => b"ok 00000000000000010000000000000001 8 1\n",
            _ => {
                tally.add();
                b"ok 8 1\n"
            }
        };
        client.write_all(answer).is_ok()
    });
    let client = Client::connect(&format!("{address}+127.0.0.1:1")).unwrap();
    let guard = client.lock("job").lease(s(8)).acquire().unwrap();
    // Of 7.2 s 0.7 are left when another leader is found: one half between two renewals, one half
    // to spare.
    assert_eq!(guard.failover_spare(), Some(ms(350)));
    let least = guard.least_lease(ms(300)).unwrap();
    assert!(least > ms(7_888) && least < ms(7_889), "{least:?}");
    // At a third of the lease there would be three of them within its time.
    assert!(renewals.reaches(10));
    // A server alone has no other leader.
    let alone = Client::connect(&address.to_string()).unwrap();
    let guard = alone.lock("job").lease(s(8)).acquire().unwrap();
    assert_eq!(
        (guard.failover_spare(), guard.least_lease(s(1))),
        (None, None)
    );
}

#[test]
fn a_lock_is_held_until_it_is_let_go() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let guard = client.lock("job").lease(s(30)).acquire().unwrap();
    assert!(guard.is_held());
    assert_eq!(guard.standing(), Standing::Held);
    assert_eq!(guard.key(), b"job");
    assert_eq!(guard.lease(), s(30));
    assert!(guard.promised() > s(20) && guard.promised() < s(30));
    assert!(guard.remaining() <= guard.promised());
    let token = guard.token().unwrap();
    assert_eq!(token.fence.0, guard.fence());

    let who = client.who("job").unwrap();
    assert_eq!(who.kind.as_deref(), Some("lock"));
    assert_eq!(who.holders[0].fence, guard.fence());
    assert_eq!(who.holders[0].name.as_deref(), Some(client.name()));

    assert_eq!(
        client.lock("job").try_acquire().unwrap_err().kind(),
        ErrorKind::Busy
    );
    guard.release().unwrap();
    let next = client.lock("job").try_acquire().unwrap();
    assert!(next.fence() > token.fence.0);
    let error = client.release("job", token).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[test]
fn a_dropped_guard_has_let_go_when_the_drop_is_over() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    for _ in 0..100 {
        drop(client.lock("job").try_acquire().unwrap());
    }
}

#[test]
fn very_long_and_very_short_times_are_times() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let guard = client.lock("job").lease(Duration::MAX).wait(Duration::MAX);
    let guard = guard.acquire().unwrap();
    assert!(guard.is_held() && guard.promised() > s(1_000_000_000));
    assert!(!guard.lost().wait(Duration::ZERO));
    guard.release().unwrap();
    let error = client
        .lock("job")
        .lease(Duration::ZERO)
        .acquire()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    for _ in 0..20 {
        // However short it is: either it is held, or it is lost.
        match client.lock("job").lease(Duration::from_nanos(1)).acquire() {
            Ok(guard) => assert!(guard.lost().wait(s(10)) || guard.is_held()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
        }
    }
}

#[test]
fn the_next_in_the_queue_gets_it_and_a_wait_ends() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let guard = client.lock("job").acquire().unwrap();
    let error = client.lock("job").wait(ms(50)).acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.lock("job").acquire().unwrap().fence());
        daemon.connect().wait_for_waiters("job", 1);
        let fence = guard.fence();
        guard.release().unwrap();
        assert!(waiter.join().unwrap() > fence);
    });
}

#[test]
fn semaphores_readers_writers_and_leaders() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let pool = client.semaphore("pool", 2);
    let (one, two) = (pool.try_acquire().unwrap(), pool.try_acquire().unwrap());
    assert_eq!(pool.try_acquire().unwrap_err().kind(), ErrorKind::Busy);
    drop(one);
    drop((pool.try_acquire().unwrap(), two));
    let error = client.semaphore("pool", 3).try_acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");

    let readers = [
        client.read("doc").acquire().unwrap(),
        client.read("doc").acquire().unwrap(),
    ];
    assert_eq!(
        client.write("doc").try_acquire().unwrap_err().kind(),
        ErrorKind::Busy
    );
    drop(readers);
    let writer = client.write("doc").acquire().unwrap();
    assert_eq!(
        client.read("doc").try_acquire().unwrap_err().kind(),
        ErrorKind::Busy
    );
    drop(writer);

    let leader = client.elect("lead").acquire().unwrap();
    assert_eq!(client.who("lead").unwrap().holders[0].hold, "lead");
    leader.release().unwrap();
}

#[test]
fn leases_are_renewed_while_guards_live() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let guards: Vec<_> = (0..20)
        .map(|index| {
            client
                .lock(format!("job{index}"))
                .lease(s(2))
                .acquire()
                .unwrap()
        })
        .collect();
    // Two leases long nothing is lost.
    for guard in &guards {
        assert!(!guard.lost().wait(s(4) / 20));
        assert!(guard.is_held());
    }
    for guard in guards {
        guard.release().unwrap();
    }
}

#[test]
fn a_lease_that_began_during_a_long_wait_is_counted_from_a_renewal() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let mut other = daemon.connect();
    other.lock("job", "0 1"); // and nobody renews it
    let guard = client.lock("job").lease(s(2)).wait(s(5)).acquire().unwrap();
    assert!(guard.is_held());
    assert!(!guard.lost().wait(ms(2_500)));
    guard.release().unwrap();
}

#[test]
fn renewed_and_released_by_the_token_on_any_connection() {
    let daemon = Daemon::start(&[]);
    let (one, other) = (client(&daemon), client(&daemon));
    let guard = one.lock("job").lease(s(5)).acquire().unwrap();
    let token = guard.token().unwrap();
    let left = other.renew("job", token, Some(s(60))).unwrap();
    assert!(left > s(50), "{left:?}");
    other.release("job", token).unwrap();
    let error = other.renew("job", token, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    // Nobody is told of that; the guard finds out when it lets go.
    let error = guard.release().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[test]
fn what_is_broken_is_lost_at_once() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let guard = client.lock("job").lease(s(600)).acquire().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    assert_eq!(
        daemon
            .connect()
            .ask(&format!("break job {}", guard.fence())),
        "ok 1"
    );
    assert_eq!(told.recv_timeout(s(10)), Ok(Lost::Broken));
    assert!(guard.lost().wait(s(10)));
    assert!(!guard.is_held());
    assert_eq!(guard.token(), None);
    let (tell, told) = std::sync::mpsc::channel();
    guard.on_lost(move |why| tell.send(why).unwrap());
    assert_eq!(
        told.recv_timeout(s(10)),
        Ok(Lost::Broken),
        "told late, and at once"
    );
    let error = guard.release().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// Whoever wants to be told of a loss is told, whatever becomes of the others who do.
#[test]
fn a_callback_that_panics_takes_none_of_the_others_with_it() {
    let daemon = Daemon::start(&[]);
    let guard = client(&daemon).lock("job").lease(s(600)).acquire().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    guard.on_lost(|_| panic!("on purpose"));
    guard.on_lost(move |why| tell.send(why).unwrap());
    assert!(client(&daemon).break_grant("job", guard.fence()).unwrap());
    assert_eq!(told.recv_timeout(s(10)), Ok(Lost::Broken));
}

/// What a callback has captured may look at the guard when it is dropped: no lock is taken then.
#[test]
fn a_release_drops_callbacks_without_a_lock() {
    struct Looks(LostSignal);
    impl Drop for Looks {
        fn drop(&mut self) {
            assert!(!self.0.is_set());
        }
    }
    let daemon = Daemon::start(&[]);
    let guard = client(&daemon).lock("job").acquire().unwrap();
    let looks = Looks(guard.lost().clone());
    guard.on_lost(move |_| drop(looks));
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || tell.send(guard.release().is_ok()).unwrap());
    assert_eq!(told.recv_timeout(s(10)), Ok(true), "the release hangs");
}

#[test]
fn many_threads_on_one_client_take_turns() {
    const THREADS: u64 = 16;
    const TURNS: u64 = 50;
    let daemon = Daemon::start(&[]);
    let client = builder(&daemon).name("crowd").connect().unwrap();
    let last_fence = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..TURNS {
                    let guard = client.lock("job").wait(s(60)).acquire().unwrap();
                    assert!(guard.is_held());
                    let before = last_fence.swap(guard.fence(), Ordering::SeqCst);
                    assert!(before < guard.fence());
                    guard.release().unwrap();
                }
            });
        }
    });
    assert_eq!(
        daemon.connect().stats()["totals"]["releases"],
        THREADS * TURNS
    );
}

/// Nobody waits for ever to hear of a loss because somebody else does not come back from its callback.
#[test]
fn a_callback_that_hangs_keeps_no_other_from_being_called() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let guards = ["a", "b"].map(|key| client.lock(key).acquire().unwrap());
    let began = tell.clone();
    guards[0].on_lost(move |_| {
        began.send("a").unwrap();
        let _ = wait.recv();
    });
    guards[1].on_lost(move |_| tell.send("b").unwrap());
    let other = super::client(&daemon);
    for key in ["a", "b"] {
        assert_eq!(other.break_all(key).unwrap(), 1);
        assert_eq!(told.recv_timeout(PATIENCE), Ok(key));
    }
    drop(go);
}

/// Leases below two seconds are renewed as long ones are. On a machine that does something else meanwhile one of them may be
/// lost, but not all.
#[test]
fn a_lease_of_some_hundred_milliseconds_is_renewed_in_time() {
    let renewals = Tally::default();
    let asked = renewals.clone();
    let (address, _) = peer_that_decides(move |_, verb, stream| {
        let answer = match verb {
            "hello" => GREETING,
            "l" => b"ok 00000000000000010000000000000001 300ms 1\n",
            "n" => {
                asked.add();
                b"ok 300ms 1\n"
            }
            _ => b"ok\n",
        };
        stream.write_all(answer).is_ok()
    });
    let client = Client::connect(&address.to_string()).unwrap();
    for _ in 0..20 {
        let before = renewals.count();
        let guard = client.lock("job").lease(ms(300)).acquire().unwrap();
        while !guard.lost().wait(ms(10)) {
            if renewals.count() >= before + 5 {
                return;
            }
        }
    }
    panic!("no lease of 300 ms was renewed five times");
}
