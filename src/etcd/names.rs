//! The addresses of etcd's members by their names, without ever waiting for the system longer than a deadline.
//!
//! The system looks a name up for as long as it likes: while a DNS server is silent that is many seconds. So a thread does
//! it, one at a time for each name, and what it has found is used from then on at once, also while it
//! is looked up anew. Only whoever comes before anything is known waits, until its deadline. An address
//! that is written as one is not looked up at all.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::stream::now;

/// What is known for longer than this is looked up again when it is used.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// A name whose addresses do not answer is not looked up more often than this.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);

/// Looks up `host:port`, for as long as it takes.
pub(super) type LookUp = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// Where one member is.
pub(super) struct Name {
    /// `host:port`.
    member: String,
    look_up: LookUp,
    known: Mutex<Known>,
    /// A look-up has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Known {
    addresses: Vec<SocketAddr>,
    /// Why the last look-up has found nothing, if it has not.
    why: Option<String>,
    /// When the last one ended.
    at: Option<Instant>,
    is_looking: bool,
    /// None of the addresses answered.
    is_doubtful: bool,
}

impl Name {
    /// `member` is `host:port`.
    pub(super) fn new(member: &str) -> Arc<Self> {
        Self::with(member, |member| Ok(member.to_socket_addrs()?.collect()))
    }

    /// The same, with another way to look it up.
    pub(super) fn with(member: &str, look_up: LookUp) -> Arc<Self> {
        let literal: Option<SocketAddr> = member.parse().ok();
        Arc::new(Self {
            member: member.to_owned(),
            look_up,
            known: Mutex::new(Known {
                addresses: literal.into_iter().collect(),
                ..Known::default()
            }),
            ended: Condvar::new(),
        })
    }

    pub(super) fn member(&self) -> &str {
        &self.member
    }

    /// Its addresses, as far as they are known; if they are not, what has come of looking them up by the deadline.
    pub(super) fn addresses(self: &Arc<Self>, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
        let mut known = self.known();
        let is_literal = known.at.is_none() && !known.addresses.is_empty();
        if is_literal {
            return Ok(known.addresses.clone());
        }
        if known.is_to_be_looked_up() {
            known.is_looking = true;
            drop(known);
            self.begin()?;
            known = self.known();
        }
        while known.addresses.is_empty() && known.is_looking {
            let left = deadline.saturating_duration_since(now());
            if left.is_zero() {
                let why = "its name is still being looked up";
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            }
            let waited = self.ended.wait_timeout(known, left);
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match &known.why {
            Some(why) if known.addresses.is_empty() => Err(io::Error::other(why.clone())),
            _ => Ok(known.addresses.clone()),
        }
    }

    /// None of them is who we look for, or answers: perhaps it has moved.
    pub(super) fn doubt(&self) {
        self.known().is_doubtful = true;
    }

    /// For tests: it was looked up long ago.
    #[cfg(test)]
    pub(super) fn grow_old(&self) {
        let mut known = self.known();
        known.at = known.at.and_then(|at| at.checked_sub(GOOD_FOR));
    }

    fn begin(self: &Arc<Self>) -> io::Result<()> {
        let it = Arc::clone(self);
        let look_up = move || {
            let found = (it.look_up)(&it.member);
            it.end(found);
        };
        let thread = thread::Builder::new().name("latchd-names".to_owned());
        let begun = thread.spawn(look_up).map(|_| ());
        if begun.is_err() {
            self.known().is_looking = false;
            self.ended.notify_all();
        }
        begun
    }

    /// What was known stays if there is nothing better.
    fn end(&self, found: io::Result<Vec<SocketAddr>>) {
        let mut known = self.known();
        (known.is_looking, known.at) = (false, Some(now()));
        match found {
            Ok(addresses) if !addresses.is_empty() => {
                (known.addresses, known.why, known.is_doubtful) = (addresses, None, false);
            }
            Ok(_) => known.why = Some("the name has no address".to_owned()),
            Err(error) => known.why = Some(error.to_string()),
        }
        drop(known);
        self.ended.notify_all();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Nothing is done under the lock that could panic halfway.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn is_to_be_looked_up(&self) -> bool {
        let age = self.at.map(|at| now().saturating_duration_since(at));
        let is_old = age.is_none_or(|age| match self.is_doubtful || self.addresses.is_empty() {
            true => age >= LOOK_UP_EVERY,
            false => age >= GOOD_FOR,
        });
        is_old && !self.is_looking
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SOON: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(20);

    fn here(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn never() -> io::Result<Vec<SocketAddr>> {
        loop {
            thread::park();
        }
    }

    #[test]
    fn an_address_is_not_looked_up() {
        for literal in ["127.0.0.1:2379", "[::1]:2379"] {
            let name = Name::with(literal, |_| never());
            let found = name.addresses(now() + LONG).unwrap();
            assert_eq!(found, [literal.parse().unwrap()]);
            name.doubt();
            assert_eq!(name.addresses(now() + LONG).unwrap(), found);
        }
    }

    #[test]
    fn what_is_known_is_used_although_the_next_look_up_never_ends() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let name = Name::with("etcd-a:2379", |member| {
            assert_eq!(member, "etcd-a:2379");
            match ASKED.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(vec![here(1), here(2)]),
                _ => never(),
            }
        });
        let found = name.addresses(now() + LONG).unwrap();
        assert_eq!(found, [here(1), here(2)]);
        for _ in 0..3 {
            assert_eq!(name.addresses(now() + LONG).unwrap(), found);
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 1, "it is known");
        name.grow_old();
        for _ in 0..3 {
            let began = now();
            assert_eq!(name.addresses(began + LONG).unwrap(), found);
            assert!(now().saturating_duration_since(began) < LONG / 2);
            name.doubt();
            name.grow_old();
        }
        while ASKED.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 2, "one at a time");
    }

    #[test]
    fn who_comes_first_waits_until_its_deadline_and_no_longer() {
        let name = Name::with("etcd-b:2379", |_| never());
        let began = now();
        let why = name.addresses(began + SOON).unwrap_err();
        assert_eq!(why.kind(), ErrorKind::TimedOut);
        let waited = now().saturating_duration_since(began);
        assert!(waited >= SOON && waited < LONG, "{waited:?}");
        // And is told what the system says, if it says anything.
        let name = Name::with("nowhere:2379", |_| Err(io::Error::other("no such host")));
        let why = name.addresses(now() + LONG).unwrap_err();
        assert_eq!(why.to_string(), "no such host");
        let name = Name::with("nowhere:2379", |_| Ok(Vec::new()));
        let why = name.addresses(now() + LONG).unwrap_err();
        assert_eq!(why.to_string(), "the name has no address");
    }

    #[test]
    fn one_that_has_moved_is_found_again() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let name = Name::with("etcd-c:2379", |_| {
            let asked = ASKED.fetch_add(1, Ordering::SeqCst);
            Ok(vec![here(1 + asked as u16)])
        });
        assert_eq!(name.addresses(now() + LONG).unwrap(), [here(1)]);
        name.doubt();
        assert_eq!(
            name.addresses(now() + LONG).unwrap(),
            [here(1)],
            "just looked up"
        );
        name.grow_old();
        while name.addresses(now() + LONG).unwrap() != [here(2)] {
            thread::yield_now();
        }
    }
}
