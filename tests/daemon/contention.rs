//! Many want one lock: the order of the queue, one holder at a time, and leases on the real clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use latchd::base::Millis;

use crate::vocabulary::{Client, Daemon};

#[test]
fn a_lease_ends_by_itself_and_not_before_its_time() {
    let daemon = Daemon::start(&[]);
    let (mut a, mut b) = (daemon.connect(), daemon.connect());
    let start = Instant::now();
    let first = a.lock("k", "0 50ms");
    assert_eq!(first.lease, Millis(50));
    let second = b.lock("k", "10");
    assert!(start.elapsed() >= Duration::from_millis(50));
    assert!(second.token_fence() > first.token_fence());
    assert_eq!(a.ask(&format!("r k {}", first.token)), "error");
    b.release("k", &second);
}

#[test]
fn a_wait_ends_by_itself_and_not_before_its_time() {
    let daemon = Daemon::start(&[]);
    let (mut holder, mut waiter) = (daemon.connect(), daemon.connect());
    holder.lock("k", "0");
    let start = Instant::now();
    assert_eq!(waiter.ask("l k 50ms"), "timeout");
    assert!(start.elapsed() >= Duration::from_millis(50));
    assert_eq!(holder.stats()["locks"][0]["waiters"], 0);
}

#[test]
fn two_hundred_waiters_get_their_turn_in_the_order_they_came() {
    let daemon = Daemon::start(&[]);
    let (mut holder, mut observer) = (daemon.connect(), daemon.connect());
    let mut grant = holder.lock("k", "0");
    let mut waiters: Vec<Client> = (0..200).map(|_| daemon.connect()).collect();
    for (already, waiter) in waiters.iter_mut().enumerate() {
        waiter.put("l k 60");
        observer.wait_for_waiters("k", already + 1);
    }
    for waiter in &mut waiters {
        holder.release("k", &grant);
        let next = waiter.grant();
        assert_eq!(
            next.token_fence(),
            grant.token_fence() + 1,
            "somebody came in between"
        );
        grant = next;
        std::mem::swap(&mut holder, waiter);
    }
}

#[test]
fn two_hundred_clients_at_once_never_hold_together() {
    const CLIENTS: u64 = 200;
    const ROUNDS: u64 = 10;
    let daemon = Daemon::start(&[]);
    // The fence of whoever holds the lock, 0 for nobody, and the last one seen.
    let (holder, last) = (AtomicU64::new(0), AtomicU64::new(0));
    let contend = |mut client: Client| {
        for _ in 0..ROUNDS {
            let grant = client.lock("k", "60");
            let fence = grant.token_fence();
            let before = holder.swap(fence, Ordering::SeqCst);
            assert_eq!(before, 0, "{before} and {fence} hold together");
            assert!(last.swap(fence, Ordering::SeqCst) < fence, "fences go back");
            holder.store(0, Ordering::SeqCst);
            client.release("k", &grant);
        }
    };
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| contend(daemon.connect()));
        }
    });
    let totals = &daemon.connect().stats()["totals"];
    assert_eq!(totals["grants"], CLIENTS * ROUNDS);
    assert_eq!(totals["releases"], CLIENTS * ROUNDS);
    assert_eq!(totals["locks"], 0);
}
