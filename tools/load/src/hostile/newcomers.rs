//! Newcomers with the token: clients that connect anew, show it, acquire a lock and release it, one
//! after the other. Each must get in, also during an attack of strangers.

use std::io;

use crate::clock::Clock;
use crate::hostile::beside::{MS, Waiting, unless_spoilt};
use crate::report::figures::Unit::{Count, Nanos};
use crate::report::figures::Wanted::{AtMost, Never, Nothing};
use crate::report::figures::{Figures, WITHOUT};
use crate::run::client::Client;
use crate::run::codec::{Key, Request};
use crate::run::keys::key_name;
use crate::servers::target::Target;

/// How many come, and in which time: a server that lets none in is not waited for 300 times.
const NEWCOMERS: usize = 300;
const COME_NS: u64 = 15_000_000_000;

/// Longest p99 of newcomers: connect, show the token, acquire a lock, release it.
const NEWCOMER_MS_MAX: f64 = 25.0;

/// Clients with the token that come by one door, one after the other.
pub(super) struct Newcomers {
    door: &'static str,
    /// How long each took to connect, show the token, acquire a lock and release it; and how much
    /// of that this program waited for its core.
    took: Vec<(f64, Option<f64>)>,
    failed: u64,
    /// Why the first of them failed.
    why: Option<io::Error>,
}

impl Newcomers {
    pub(super) fn come(clock: &Clock, door: &'static str, target: &Target) -> Self {
        let mut come = Self {
            door,
            took: Vec::with_capacity(NEWCOMERS),
            failed: 0,
            why: None,
        };
        let run = fastrand::u16(..);
        let until_ns = clock.now_ns() + COME_NS;
        for index in 0..NEWCOMERS {
            let (waiting, began_ns) = (Waiting::begin(), Clock::machine_ns());
            match acquire_and_release(target, &key_name("come", run, index)) {
                Ok(()) => {
                    let ns = Clock::machine_ns().saturating_sub(began_ns);
                    come.took.push((ns as f64, waiting.end()));
                }
                Err(error) => {
                    come.failed += 1;
                    come.why.get_or_insert(error);
                }
            }
            if clock.now_ns() > until_ns {
                break;
            }
        }
        come.took.sort_by(|a, b| a.0.total_cmp(&b.0));
        come
    }

    fn p99(&self) -> Option<(f64, Option<f64>)> {
        self.took.get(self.took.len() * 99 / 100).copied()
    }

    /// Puts them beside those that came without the attack.
    pub(super) fn put(self, without: Self, figures: &mut Figures) {
        let door = self.door;
        for come in [&self, &without] {
            if let Some(why) = &come.why {
                let of = come.took.len() as u64 + come.failed;
                let what = format!(
                    "{} of {of} newcomers{door} did not get in: {why}",
                    come.failed
                );
                figures.wrong.add(what);
            }
        }
        let name = format!("newcomers{door} that did not get in");
        figures.put(&name, Count, Some(self.failed as f64), Never);
        let tried = self.took.len() as u64 + self.failed;
        figures.put(
            &format!("newcomers{door}"),
            Count,
            Some(tried as f64),
            Nothing,
        );
        let name = format!("newcomers{door}, p99");
        let most = NEWCOMER_MS_MAX * MS;
        let p99 = self.p99();
        let p99 = p99.and_then(|(ns, waited_ns)| unless_spoilt(ns, waited_ns, most));
        figures.put(&name, Nanos, p99, AtMost(most));
        let without = without.p99().map(|it| it.0);
        figures.put(&format!("{WITHOUT}{name}"), Nanos, without, Nothing);
    }
}

/// What a newcomer wants.
fn acquire_and_release(target: &Target, key: &Key) -> io::Result<()> {
    let mut newcomer = Client::connect(target)?; // which shows the token
    let token = newcomer.lock(key)?;
    newcomer.must(Request::Unlock(&token), key)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn newcomers_that_do_not_get_in_are_wrong_answers() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = format!("latchd://{}", gone.local_addr().unwrap());
        let target = Target::parse(&target).unwrap();
        drop(gone);
        let come = || Newcomers::come(&Clock::start(), " over HTTP", &target);
        let mut figures = Figures::default();
        come().put(come(), &mut figures);
        assert_eq!(figures.wrong.count, 2, "with the attack and without");
        let said = &figures.wrong.first[0];
        let says = "300 of 300 newcomers over HTTP did not get in: cannot reach 127.0.0.1:";
        assert!(said.starts_with(says), "{said}");
        assert_eq!(
            figures.verdict(),
            "0 of 1 targets met, 1 not measured; wrong answers: 2"
        );
    }
}
