//! Whether a guard is believed when its server was started anew or another member leads: the first renewal in a new life
//! binds the grant to the connection that brought it, so it matters which renewals were sent, and not only which
//! were answered.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use latchd::client::{Client, Lost, Standing};

use super::follow::{Pair, wait_until_it_is};
use super::front::Role;
use super::proxy::{GRANT, RENEWAL, Tally, greeting, peer_that_decides};
use super::s;
use crate::vocabulary::PATIENCE;

/// The renewal was sent, and its answer lost with its connection. The server may have bound the grant to that one, and let it go
/// with it: nobody may rely on what it says on another.
#[test]
fn a_renewal_whose_answer_was_lost_may_have_bound_the_grant() {
    let lives = AtomicUsize::new(0);
    let (address, _) = peer_that_decides(move |_, verb, stream| match verb {
        "hello" => {
            let epoch = match lives.fetch_add(1, Ordering::SeqCst) {
                0 => 1,
                _ => 2,
            };
            stream.write_all(&greeting(epoch)).is_ok()
        }
        "l" => stream.write_all(GRANT).is_err(), // and it hangs up
        "n" if lives.load(Ordering::SeqCst) == 2 => false,
        "n" => stream.write_all(RENEWAL).is_ok(),
        "who" => stream.write_all(b"ok {}\n").is_ok(),
        _ => stream.write_all(b"ok\n").is_ok(),
    });
    let client = Client::connect(&address.to_string()).unwrap();
    let guard = client.lock("job").try_acquire().unwrap();
    assert!(guard.lost().wait(PATIENCE), "{:?}", guard.standing());
    assert_eq!(guard.lost().why(), Some(Lost::Disconnected));
}

/// Grants and breaks off; the next time it says that the other one leads, and then it does again, in its next life.
fn leader_that_is_away_once(other: SocketAddr) -> SocketAddr {
    let lives = AtomicUsize::new(0);
    let (address, _) = peer_that_decides(move |_, verb, stream| {
        let answer = match verb {
            "hello" => match lives.fetch_add(1, Ordering::SeqCst) {
                0 => greeting(5),
                1 => format!("error_not_leader {other}\n").into_bytes(),
                _ => greeting(6),
            },
            "l" => return stream.write_all(GRANT).is_err(),
            "n" => RENEWAL.to_vec(),
            "who" => b"ok {}\n".to_vec(),
            _ => b"ok\n".to_vec(),
        };
        stream.write_all(&answer).is_ok()
    });
    address
}

/// A server that has not done what it was asked for has bound nothing: whoever has the grant may still renew it.
#[test]
fn a_renewal_that_was_sent_elsewhere_has_bound_nothing() {
    let first = std::sync::Arc::new(std::sync::OnceLock::new());
    let to = std::sync::Arc::clone(&first);
    let (other, _) = peer_that_decides(move |_, verb, stream| {
        let answer = match verb {
            "hello" => greeting(9),
            _ => format!("error_not_leader {}\n", to.get().unwrap()).into_bytes(),
        };
        stream.write_all(&answer).is_ok()
    });
    let address = leader_that_is_away_once(other);
    first.set(address).unwrap();
    let client = Client::connect(&format!("{address}+{other}")).unwrap();
    let guard = client.lock("job").try_acquire().unwrap();
    wait_until_it_is(&guard, Standing::Doubtful);
    wait_until_it_is(&guard, Standing::Held);
}

/// The leader of another part of the keys greets with a higher number, and breaks off before it can say that it has other keys.
#[test]
fn a_server_that_greets_and_breaks_off_has_bound_nothing() {
    let (other, _) = peer_that_decides(move |_, verb, stream| match verb {
        "hello" => stream.write_all(&greeting(9)).is_ok(),
        _ => false,
    });
    let address = leader_that_is_away_once(other);
    let client = Client::connect(&format!("{address}+{other}")).unwrap();
    let guard = client.lock("job").try_acquire().unwrap();
    wait_until_it_is(&guard, Standing::Doubtful);
    wait_until_it_is(&guard, Standing::Held);
}

/// Epochs grow. Whoever tells a lower one has led before, and its word is worth nothing.
#[test]
fn a_life_that_was_before_is_not_believed() {
    let lives = AtomicUsize::new(0);
    let (address, _) = peer_that_decides(move |_, verb, stream| match verb {
        "hello" => {
            let epoch = match lives.fetch_add(1, Ordering::SeqCst) {
                0 => 5,
                _ => 4,
            };
            stream.write_all(&greeting(epoch)).is_ok()
        }
        "l" => stream.write_all(GRANT).is_err(),
        "n" => stream.write_all(RENEWAL).is_ok(),
        _ => stream.write_all(b"ok\n").is_ok(),
    });
    let client = Client::connect(&address.to_string()).unwrap();
    let guard = client.lock("job").try_acquire().unwrap();
    assert!(guard.lost().wait(PATIENCE), "{:?}", guard.standing());
    assert_eq!(guard.lost().why(), Some(Lost::Disconnected));
}

/// A new leader that takes its time with the first renewal is not left for itself.
#[test]
fn a_new_leader_that_is_slow_is_not_cut_off() {
    let (looks, renewals) = (Tally::default(), Tally::default());
    let (seen, asked) = (looks.clone(), renewals.clone());
    let (second, _) = peer_that_decides(move |_, verb, stream| {
        let answer = match verb {
            "hello" => greeting(2),
            "who" => {
                seen.add();
                b"ok {}\n".to_vec()
            }
            "n" => {
                asked.add();
                // It was asked whether it has the key, and then it was looked for twice whether somebody else leads, and so found
                // that nobody does.
                assert!(seen.reaches(3), "nobody looks");
                RENEWAL.to_vec()
            }
            _ => b"ok\n".to_vec(),
        };
        stream.write_all(&answer).is_ok()
    });
    let is_over = AtomicUsize::new(0);
    let (first, _) = peer_that_decides(move |_, verb, stream| match verb {
        "l" => {
            is_over.store(1, Ordering::SeqCst);
            stream.write_all(GRANT).is_err()
        }
        _ if is_over.load(Ordering::SeqCst) == 1 => {
            let answer = format!("error_not_leader {second}\n");
            stream.write_all(answer.as_bytes()).is_ok()
        }
        _ => stream.write_all(&greeting(1)).is_ok(),
    });
    let client = Client::connect(&format!("{first}+{second}")).unwrap();
    let guard = client.lock("job").try_acquire().unwrap();
    wait_until_it_is(&guard, Standing::Doubtful);
    wait_until_it_is(&guard, Standing::Held);
    assert_eq!(renewals.count(), 1, "on one connection");
}

/// One address is in the list, and it has told of the leader, which is gone. Whoever the list names is asked again.
#[test]
fn a_leader_that_was_told_of_and_is_gone_is_not_asked_for_ever() {
    let mut pair = Pair::start();
    let client = Client::connect(&pair.second.address.to_string()).unwrap();
    let guard = client.lock("job").lease(s(30)).acquire().unwrap();
    pair.lose_leader(Role::Gone);
    wait_until_it_is(&guard, Standing::Doubtful);
    pair.lead_second();
    wait_until_it_is(&guard, Standing::Held);
    guard.release().unwrap();
}
