//! A forked child has a copy of everything that its parent has. Nothing that it does with that
//! reaches the server.

use latchd::client::{Client, Command, Enqueued, Error, ErrorKind, Guard, Lost, Standing};

use super::{builder, client, ms, s};
use crate::forked::assert_in_child;
use crate::vocabulary::Daemon;

fn is_misuse<T>(result: Result<T, Error>) -> bool {
    match result {
        Err(error) => error.kind() == ErrorKind::Misuse && error.to_string().contains("forked"),
        Ok(_) => false,
    }
}

#[track_caller]
fn assert_not_free(daemon: &Daemon, guard: &Guard) {
    let busy = client(daemon).lock(guard.key()).try_acquire().unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
}

/// The guard is still the parent's: no other client gets it, and it is renewed.
#[track_caller]
fn assert_still_held(daemon: &Daemon, guard: &Guard) {
    assert_not_free(daemon, guard);
    assert!(
        !guard.lost().wait(guard.lease() * 2),
        "{:?}",
        guard.standing()
    );
    assert!(guard.is_held(), "{:?}", guard.standing());
    assert_eq!(client(daemon).who(guard.key()).unwrap().holders.len(), 1);
}

#[test]
fn forked_child_cannot_end_its_parents_lock() {
    let daemon = Daemon::start(&[]);
    for keep in [false, true] {
        let client = builder(&daemon).keep(keep).connect().unwrap();
        let mut guard = Some(client.lock("job").lease(ms(900)).acquire().unwrap());
        let ends: [fn(Guard) -> bool; 4] = [
            |guard| {
                drop(guard);
                true
            },
            |guard| is_misuse(guard.release()),
            |guard| is_misuse(guard.leave()),
            |guard| {
                std::mem::forget(guard);
                true
            },
        ];
        for end in ends {
            assert_in_child(|| guard.take().is_some_and(end));
            assert_not_free(&daemon, guard.as_ref().unwrap());
        }
        // Nor by dropping all that it has.
        let mut all = Some((guard, client));
        assert_in_child(|| {
            drop(all.take());
            true
        });
        let (guard, _client) = all.unwrap();
        let guard = guard.unwrap();
        assert_still_held(&daemon, &guard);
        guard.release().unwrap();
    }
}

#[test]
fn forked_child_holds_nothing_of_its_parents() {
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    let guard = client.lock("job").lease(s(30)).acquire().unwrap();
    let lost = guard.lost().clone();
    assert_in_child(|| {
        let why = Lost::OtherProcess;
        !guard.is_held()
            && guard.standing() == Standing::Lost(why)
            && guard.token().is_none()
            && guard.remaining().is_zero()
            && guard.promised().is_zero()
            && lost.why() == Some(why)
            && lost.wait(s(30))
            && guard.fence() > 0
            && guard.key() == b"job"
            && format!("{guard:?}").contains("OtherProcess")
    });
    assert!(guard.is_held());
    guard.release().unwrap();
}

#[test]
fn calls_of_a_forked_child_are_misuse() {
    let daemon = Daemon::start(&[]);
    let client = builder(&daemon).keep(true).connect().unwrap();
    let list = daemon.address().to_string();
    let guard = client.lock("other").lease(s(30)).acquire().unwrap();
    let token = guard.token().unwrap();
    let mut session = client.session("job").unwrap();
    let mut events = client.watch("job").unwrap();
    let mut ranges = client.ranges("file").unwrap();
    assert_in_child(|| {
        let asked = [
            is_misuse(client.lock("job").acquire()),
            is_misuse(client.lock("job").enqueue()),
            is_misuse(client.lock("other").adopt(token)),
            is_misuse(client.renew("other", token, None)),
            is_misuse(client.release("other", token)),
            is_misuse(client.ping()),
            is_misuse(client.who("job")),
            is_misuse(client.session("job")),
            is_misuse(session.ask(&Command::Ping)),
            is_misuse(session.news(s(1))),
            is_misuse(client.watch("job")),
            is_misuse(events.next_within(s(1))),
            is_misuse(ranges.unlock(0, 1)),
        ];
        // With a client of its own it can do what it likes.
        let own = Client::connect(&list).unwrap();
        let own_guard = own.lock("job").lease(s(30)).acquire().unwrap();
        asked.iter().all(|it| *it) && own_guard.is_held() && own_guard.release().is_ok()
    });
    session.ask(&Command::Ping).unwrap();
    ranges.unlock(0, 1).unwrap();
    assert!(guard.is_held());
    guard.release().unwrap();
}

#[test]
fn forked_child_does_not_give_up_its_parents_place() {
    let daemon = Daemon::start(&[]);
    let holder = client(&daemon);
    let guard = holder.lock("job").lease(s(30)).acquire().unwrap();
    let waiting = builder(&daemon).attach("fork/1", s(30), "secret");
    let waiting = waiting.connect().unwrap();
    let Enqueued::Queued(place) = waiting.lock("job").enqueue().unwrap() else {
        panic!("it is held");
    };
    let mut place = Some(place);
    assert_in_child(|| {
        let mut place = place.take().unwrap();
        is_misuse(place.position())
    });
    assert_in_child(|| is_misuse(place.take().unwrap().wait(s(1))));
    let mut place = place.unwrap();
    assert_eq!(place.position().unwrap(), Some(1));
    guard.release().unwrap();
    place.wait(s(10)).unwrap().release().unwrap();
}

/// Whatever the renewal thread does at the moment of the fork, the child waits for none of its
/// locks.
#[test]
fn forked_child_never_hangs() {
    const GUARDS: usize = 40;
    const FORKS: usize = 150;
    let daemon = Daemon::start(&[]);
    let client = client(&daemon);
    // Renewed all the time, so that the thread is always busy with one of them.
    let lock = client.semaphore("jobs", GUARDS as u32).lease(s(60));
    let guards = (0..GUARDS).map(|_| lock.acquire().unwrap());
    let mut guards: Vec<_> = guards.map(|it| (it.lost().clone(), it)).collect();
    let busy = client.semaphore("busy", GUARDS as u32).lease(ms(300));
    let busy: Vec<_> = (0..GUARDS).map(|_| busy.acquire().unwrap()).collect();
    for _ in 0..FORKS {
        assert_in_child(|| {
            let is_free = guards
                .iter()
                .all(|(lost, it)| !it.is_held() && lost.is_set());
            guards.clear();
            is_free && is_misuse(client.ping())
        });
    }
    assert!(guards.iter().all(|(_, it)| it.is_held()));
    drop(busy);
}
