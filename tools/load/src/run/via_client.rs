//! A run by the client that programs use: a thread for each connection, all of them on one client, with
//! its pool, its guards and its one thread of renewals between them and the server.
//!
//! What must hold is the ledger's. A grant counts from when the client returned it until just before it
//! is told to let go, so whatever clashes is certainly wrong. The order of a queue cannot be proven here,
//! because only the client knows when it wrote what. Besides, every guard has to be held when it comes and
//! when it goes.

use std::io;
use std::ops::Range;
use std::sync::{Barrier, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use latchd::client::{Client, Error, Guard, Lock, Signal, Subscription};

use crate::clock::Clock;
use crate::machine::CpuTime;
use crate::run::codec::{Key, SECRET};
use crate::run::event_loop::Hooks;
use crate::run::keys::{KeyChooser, key_names};
use crate::run::ledger::{Hold, Ledger, Written};
use crate::run::outcome::Outcome;
use crate::run::spec::{Keys, Spec, Workload};
use crate::servers::target::{Address, Target};

/// How long locks are taken for: short, so that renewals are a part of the work.
const LEASE: Duration = Duration::from_secs(1);

/// How long anything may be waited for.
const WAIT: Duration = Duration::from_secs(60);

/// How long the last signals may take at the end.
const LAST_SIGNALS: Duration = Duration::from_secs(10);

/// What all threads share.
struct Work<'a> {
    spec: &'a Spec,
    clock: &'a Clock,
    client: Client,
    names: Vec<Key>,
    ledger: Mutex<Ledger>,
    /// When measuring begins and when it ends; known when all threads are there.
    measured_ns: OnceLock<Range<u64>>,
}

/// Runs `spec` against `target`, with the client.
pub(crate) fn run(
    spec: &Spec,
    target: &Target,
    clock: &Clock,
    hooks: Hooks<'_>,
) -> io::Result<Outcome> {
    let server = match (&target.members, &target.address) {
        (Some(members), _) => members.clone(),
        (None, Address::Tcp(address)) => address.to_string(),
        (None, Address::Unix(path)) => format!("unix:{}", path.display()),
    };
    let mut client = Client::builder(&server);
    if target.guarded {
        client = client.auth_token(SECRET);
    }
    let client = client.connect().map_err(io::Error::other)?;
    let names = key_names(spec);
    let work = Work {
        spec,
        clock,
        client,
        ledger: Mutex::new(Ledger::new(names.len(), target.in_turns, false)),
        names,
        measured_ns: OnceLock::new(),
    };
    let cpu = || target.pid.and_then(CpuTime::of);
    let before = cpu();
    if let Some(begin) = hooks.begin {
        begin();
    }
    (hooks.progress)(0, None);
    let ready = Barrier::new(spec.connections);
    let mut found = thread::scope(|scope| {
        let begin = |index| {
            let (work, ready) = (&work, &ready);
            let thread = thread::Builder::new().name(format!("load-{index}"));
            thread.spawn_scoped(scope, move || work.run(index, ready))
        };
        let threads: Vec<_> = (0..spec.connections)
            .map(begin)
            .collect::<io::Result<_>>()?;
        let mut all = Outcome::new();
        for thread in threads {
            let found = thread
                .join()
                .map_err(|_| io::Error::other("a client has panicked"))?;
            add(&mut all, &found);
        }
        Ok::<_, io::Error>(all)
    })?;
    // That of this program is not known: the system counts each of its threads for itself.
    found.server = cpu().zip(before).map(|(after, before)| after.since(before));
    found.elapsed_ns = spec.measure_ns;
    let mut ledger = work
        .ledger
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    ledger.close();
    let unheard = ledger.unheard();
    if unheard > 0 {
        ledger
            .wrong
            .add(format!("{unheard} signals were never heard"));
    }
    found.wrong.merge(&ledger.wrong);
    Ok(found)
}

/// What one thread has found belongs to what all have.
fn add(all: &mut Outcome, found: &Outcome) {
    all.answers += found.answers;
    all.takes += found.takes;
    // Same bounds, so nothing can be out of range.
    let _ = all.take.add(&found.take);
    let _ = all.give.add(&found.give);
    all.wrong.merge(&found.wrong);
    all.broken |= found.broken;
}

impl Work<'_> {
    /// What one thread does until the time is over, or until something goes wrong.
    fn run(&self, index: usize, ready: &Barrier) -> Outcome {
        let mut found = Outcome::new();
        let mut keys = KeyChooser::new(self.spec);
        keys.reseed(index);
        let mut signals = match self.spec.workload {
            Workload::Signal => Some(self.client.listen(self.names[index])),
            _ => None,
        };
        ready.wait();
        let mut number = 0;
        while self.clock.now_ns() < self.measured_ns().end {
            number += 1;
            let key = keys.key().unwrap_or(index as u32);
            let result = match (self.spec.workload, &mut signals) {
                (Workload::Counter, _) => self.count(key, &mut found),
                (Workload::Value, _) => self.store(key, index, number, &mut found),
                (Workload::Signal, Some(Ok(heard))) => self.tell(index, heard, &mut found),
                (Workload::Signal, other) => match other.take() {
                    Some(Err(error)) => Err(error),
                    _ => return found,
                },
                (workload, _) => {
                    let writes = workload == Workload::ReadWrite && keys.one_in(10);
                    self.hold(key, writes, &mut found)
                }
            };
            if let Err(error) = result {
                found.wrong.add(format!("client {index}: {error}"));
                found.broken = true;
                break;
            }
            if self.spec.think_ns > 0 && self.clock.rest(self.spec.think_ns).is_err() {
                break;
            }
        }
        if let Some(Ok(heard)) = &mut signals {
            self.hear_out(index, heard);
        }
        found
    }

    /// Takes something, holds it, lets it go.
    fn hold(&self, key: u32, writes: bool, found: &mut Outcome) -> Result<(), Error> {
        let name = self.names[key as usize];
        let (lock, hold) = match self.spec.workload {
            Workload::Semaphore => {
                let slots = self.spec.slots;
                (self.client.semaphore(name, slots), Hold::Among(slots))
            }
            Workload::ReadWrite if writes => (self.client.write(name), Hold::Alone),
            Workload::ReadWrite => (self.client.read(name), Hold::Reading),
            _ => (self.client.lock(name), Hold::Alone),
        };
        let lock: Lock = lock.lease(LEASE).wait(WAIT);
        let guard = self.timed(found, true, || lock.acquire())?;
        let fence = guard.fence();
        self.ledger(|it| it.granted(key, hold, fence, Written::default()));
        self.check(&guard, key);
        if self.spec.hold_ns > 0 {
            let _ = guard.lost().wait(Duration::from_nanos(self.spec.hold_ns));
            self.check(&guard, key);
        }
        self.ledger(|it| {
            it.letting_go(key, hold);
            it.sent();
        });
        self.timed(found, false, || guard.release())
    }

    fn check(&self, guard: &Guard, key: u32) {
        if !guard.is_held() {
            let (fence, standing) = (guard.fence(), guard.standing());
            self.ledger(|it| {
                it.wrong.add(format!(
                    "key {key}, fence {fence}: {standing:?} instead of held"
                ));
            });
        }
    }

    fn count(&self, key: u32, found: &mut Outcome) -> Result<(), Error> {
        let counter = self.client.counter(self.names[key as usize]);
        let value = self.timed(found, true, || counter.add(1))?;
        self.ledger(|it| it.counted(key, u64::try_from(value).unwrap_or(0)));
        Ok(())
    }

    /// Stores a value and reads it: on a key of one's own it has to be the same.
    fn store(&self, key: u32, index: usize, number: u64, found: &mut Outcome) -> Result<(), Error> {
        let value = self.client.value(self.names[key as usize]);
        let text = format!("value {number} of {index}");
        self.timed(found, true, || value.set(&text))?;
        let stored = self.timed(found, false, || value.get())?;
        let is_right = match self.spec.keys {
            Keys::Own => stored.as_deref() == Some(text.as_bytes()),
            _ => stored.is_some_and(|it| it.starts_with(b"value ")),
        };
        if !is_right {
            self.ledger(|it| {
                it.wrong
                    .add(format!("key {key}: not the value that was stored"))
            });
        }
        Ok(())
    }

    /// Tells the next one something, and hears what was told to us.
    fn tell(
        &self,
        index: usize,
        heard: &mut Subscription<Signal>,
        found: &mut Outcome,
    ) -> Result<(), Error> {
        let next = (index + 1) % self.spec.connections;
        let mut number = 0;
        self.ledger(|it| number = it.telling(next));
        let channel = self.names[next];
        let told = self.timed(found, true, || {
            self.client.signal(channel, number.to_string())
        })?;
        if told != 1 {
            self.ledger(|it| {
                it.wrong
                    .add(format!("{told} heard a signal that one listens to"))
            });
        }
        while let Some(signal) = heard.next_within(Duration::ZERO)? {
            self.heard(index, &signal);
        }
        Ok(())
    }

    fn heard(&self, index: usize, signal: &Signal) {
        let number = str::from_utf8(&signal.payload).ok();
        let number = number.and_then(|it| it.parse().ok());
        self.ledger(|it| it.heard(index, number));
    }

    /// Until all signals are heard, also those that others still tell.
    fn hear_out(&self, index: usize, heard: &mut Subscription<Signal>) {
        let until_ns = self.clock.now_ns() + LAST_SIGNALS.as_nanos() as u64;
        let mut unheard = 1;
        while unheard > 0 && self.clock.now_ns() < until_ns {
            match heard.next_within(Duration::from_millis(20)) {
                Ok(Some(signal)) => self.heard(index, &signal),
                Ok(None) => self.ledger(|it| unheard = it.unheard()),
                Err(error) => {
                    return self.ledger(|it| it.wrong.add(format!("client {index}: {error}")));
                }
            }
        }
    }

    /// Does one request, and counts it if it is answered while it is measured.
    fn timed<T>(
        &self,
        found: &mut Outcome,
        is_first: bool,
        request: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let before = self.clock.now_ns();
        let result = request()?;
        let now = self.clock.now_ns();
        if self.measured_ns().contains(&now) {
            found.answers += 1;
            found.takes += u64::from(is_first);
            match is_first {
                true => found.record_take(false, now - before),
                false => found.give.saturating_record(now - before),
            }
        }
        Ok(result)
    }

    fn measured_ns(&self) -> &Range<u64> {
        self.measured_ns.get_or_init(|| {
            let begin = self.clock.now_ns() + self.spec.warmup_ns;
            begin..begin + self.spec.measure_ns
        })
    }

    fn ledger(&self, act: impl FnOnce(&mut Ledger)) {
        act(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
