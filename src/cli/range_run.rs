//! `latch range lock … -- COMMAND`: bytes that are locked while a command runs.
//!
//! They belong to a client of their own, with an id and a secret that nobody else knows, which the server keeps for `--ttl`
//! after its last connection. So a connection that breaks costs nothing if another one can be made in time, and by our own
//! clock we know until when the server cannot have let the bytes go: counted from before the last question that it has
//! answered. The command is ended before that. Whatever ends us, the warden lets go of the bytes once nobody of the
//! command is left.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ArgMatches;
use rustix::event::{EventfdFlags, eventfd};

use super::args::{self, Patience};
use super::connect::{Servers, fail, own_name};
use super::exit::{Exit, Fail};
use super::output::{escaped, quoted};
use super::ranges::resource_of;
use super::remote::WardenMeanwhile;
use super::supervise::signals::Signals;
use super::supervise::task::{self, Unfinished};
use super::supervise::warden::Warden;
use super::supervise::{Ended, Job, Lock, Standing, supervise};
use super::sys::spawn;
use super::waiting::{self, Seen, WaitingLine, Watcher};
use crate::client::{Client, Error, RangeHeld, Ranges, Reason, Sharing};
use crate::uptime::{self, uptime};
use crate::wire::client::read_request;
use crate::wire::verbs::Verb;

/// How long the client is kept without a connection, if nobody says.
const TTL: Duration = Duration::from_secs(30);
const KILL_AFTER: Duration = Duration::from_secs(10);
/// The shortest time that a command has to end in a cluster, without `--kill-after` and with a
/// `--ttl` that outlasts a leader.
const KILL_AFTER_MIN: Duration = Duration::from_millis(300);
/// How long a server may take to answer whether we still have them.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to hear that they are let go.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);
const RELEASE_LOST_WITHIN: Duration = Duration::from_millis(500);
/// How long after a connection that could not be made the next one is tried.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How long after a refusal in the grace period the same is asked again, at most.
const GRACE_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Bytes, and the client that asks for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    id: Vec<u8>,
    secret: String,
    ttl: Duration,
    resource: Vec<u8>,
    owner: Vec<u8>,
    mode: Sharing,
    start: u64,
    len: u64,
}

impl Claim {
    fn of(matches: &ArgMatches) -> Result<Self, Fail> {
        let owner = args::bytes_of(matches, "owner").unwrap_or_default();
        let ttl = matches.get_one::<Duration>("ttl").copied();
        let ttl = ttl.unwrap_or(TTL);
        if ttl.is_zero() {
            return Err(Fail::usage("--ttl 0 would be over at once: say 30s"));
        }
        let number = |name| matches.get_one::<u64>(name).copied().unwrap_or(0);
        let resource = resource_of(matches)?;
        let id = format!("latch/{}/{}", own_name(), random()?);
        Ok(Self {
            id: id.into_bytes(),
            secret: random()?,
            ttl,
            resource: resource.to_vec(),
            owner: owner.to_vec(),
            mode: match args::is_shared(matches) {
                true => Sharing::Shared,
                false => Sharing::Exclusive,
            },
            start: number("START"),
            len: number("LEN"),
        })
    }

    /// The same by an id that begins as the resource does, for a token that is good for such names only.
    fn named_like_its_resource(&self) -> Self {
        // As it is attached and detached: the client takes text.
        let resource = String::from_utf8_lossy(&self.resource);
        let id = format!("{resource}.{}.{}", own_name(), &self.secret[..16]);
        Self {
            id: id.into_bytes(),
            ..self.clone()
        }
    }

    /// All of it but the resource in one word, for the warden.
    fn word(&self) -> String {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|it| format!("{it:02x}")).collect() };
        let mode = self.mode.word();
        let (ttl, secret, start, len) = (self.ttl.as_millis(), &self.secret, self.start, self.len);
        let (id, owner) = (hex(&self.id), hex(&self.owner));
        format!("range;{ttl};{secret};{mode};{start};{len};{id};{owner}")
    }

    pub(crate) fn parse(word: &str, resource: &[u8]) -> Option<Self> {
        let bytes = |hex: &str| -> Option<Vec<u8>> {
            let digits = hex.as_bytes().chunks(2);
            let byte = |two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok();
            digits.map(byte).collect()
        };
        let fields: Vec<&str> = word.split(';').collect();
        let &["range", ttl, secret, mode, start, len, id, owner] = fields.as_slice() else {
            return None;
        };
        Some(Self {
            id: bytes(id)?,
            secret: secret.to_owned(),
            ttl: Duration::from_millis(ttl.parse().ok()?),
            resource: resource.to_vec(),
            owner: bytes(owner)?,
            mode: [Sharing::Shared, Sharing::Exclusive]
                .into_iter()
                .find(|it| it.word() == mode)?,
            start: start.parse().ok()?,
            len: len.parse().ok()?,
        })
    }

    pub(crate) fn client(&self, servers: &Servers) -> Result<Client, Fail> {
        let id = String::from_utf8_lossy(&self.id);
        let builder = servers.builder().attach(id, self.ttl, self.secret.clone());
        // A server that hangs must leave time for another attempt before the command is told to
        // end, which may be when two fifths of the time are over; a sixth of it passes between two
        // questions.
        let builder = builder.answer_timeout(ANSWER_WITHIN.min(self.ttl / 8));
        builder.build().map_err(fail)
    }

    fn ranges(&self, client: &Client) -> Result<Ranges, Error> {
        Ok(client.ranges(&self.resource)?.owner(self.owner.clone()))
    }

    /// How long the bytes are certainly held, counted from the question that was answered.
    fn promise(&self, client: &Client) -> Duration {
        client.counts_on(self.ttl)
    }

    /// How long after an answer the server is asked again.
    fn beat(&self) -> Duration {
        self.ttl / 6
    }

    /// Asks whether they are ours. After a restart they are had back.
    fn is_held(&self, client: &Client, ranges: &mut Ranges) -> Result<bool, Error> {
        let (mode, start, len) = (self.mode, self.start, self.len);
        if ranges.holds(mode, start, len)? {
            return Ok(true);
        }
        match ranges.reclaim(mode, start, len) {
            Ok(()) => {
                let _ = client.reclaim_done(); // or others wait for us until the time for that is over
                Ok(true)
            }
            Err(Error::Refused(it)) if is_not_ours(it.word()) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The same on a connection for this alone: for how long they are had from before that.
    pub(crate) fn renew(&self, client: &Client) -> Result<Option<Duration>, Error> {
        let mut ranges = self.ranges(client)?;
        let is_held = self.is_held(client, &mut ranges)?;
        Ok(is_held.then(|| self.promise(client)))
    }

    /// Lets go of the bytes, and of the client.
    pub(crate) fn release(&self, client: &Client) -> Result<(), Error> {
        self.ranges(client)?.unlock(self.start, self.len)?;
        let mut session = client.session(&self.resource)?;
        let detach = read_request(Verb::Detach, &self.id, self.secret.as_bytes())?;
        let _ = session.ask(&detach); // otherwise its time ends it
        Ok(())
    }

    /// `bytes 0 to 99 of 'db.sqlite'`.
    fn shown(&self) -> String {
        let (start, resource) = (self.start, quoted(&self.resource));
        match self.len {
            0 => format!("bytes {start} and up of {resource}"),
            len => {
                let last = start.saturating_add(len - 1);
                format!("bytes {start} to {last} of {resource}")
            }
        }
    }
}

/// The words of a server that knows of no such bytes of ours.
fn is_not_ours(word: &str) -> bool {
    matches!(word, "error_reclaim" | "error_no_grace")
}

/// 32 hexadecimal digits that nobody can guess.
fn random() -> Result<String, Fail> {
    use std::io::Read;
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut it| it.read_exact(&mut bytes));
    read.map_err(|error| Fail::system("read /dev/urandom", error))?;
    Ok(bytes.iter().map(|it| format!("{it:02x}")).collect())
}

pub(crate) fn lock_while(matches: &ArgMatches, command: &[OsString]) -> Result<Exit, Fail> {
    let (claim, servers) = (Claim::of(matches)?, &Servers::of(matches)?);
    let patience = args::patience_of(matches);
    let mut signals = Signals::watch()?;
    let warden = WardenMeanwhile::start(servers)?;
    let had = match acquire(servers, &claim, patience, &warden, &mut signals) {
        Ok(had) => had,
        Err(unfinished) => {
            // If it was granted in this very moment the warden lets it go.
            let _ = warden.started();
            return match unfinished {
                Unfinished::Signal(signal) => Ok(signals.die(signal)),
                Unfinished::Failed(fail) if fail.exit == Exit::CONFLICT => {
                    Err(Fail::new(args::conflict_exit(matches), fail.message))
                }
                Unfinished::Failed(fail) => Err(fail),
            };
        }
    };
    let (claim, warden) = (had.claim.clone(), warden.started()?);
    let kill_after = kill_after(&had, args::kill_after_of(matches));
    let mut held = Held::watch(had)?;
    let job = Job {
        command,
        env: &servers.env(),
        inherits: None,
        kill_after,
        lease: Some(claim.ttl),
        warden,
    };
    let ended = supervise(job, &mut signals, &mut held)?;
    if ended.is_lost() {
        let why = match locked(&held.state).is_lost {
            true => "were lost",
            false => "could not be kept without an answer of the server",
        };
        eprintln!("latch: {} {why}{}", claim.shown(), ended.fate());
    }
    held.release(ended);
    Ok(ended.exit(&mut signals))
}

/// How long the command has to end, as said or by default. In a cluster the default is no more than
/// what is left of the time when another member has taken over, so that a failover ends no command;
/// a `--ttl` that is too short for that is warned of.
fn kill_after(had: &Had, said: Option<Duration>) -> Duration {
    let usual = said.unwrap_or(KILL_AFTER);
    let Some(failover) = had.ranges.failover_time() else {
        return usual;
    };
    let (ttl, promise) = (had.claim.ttl, had.claim.promise(&had.client));
    // The leader may fail just before it is asked again.
    let usable = promise.saturating_sub(had.claim.beat());
    match outlasting(ttl, usable, failover, said) {
        Ok(kill_after) => kill_after,
        Err(least) => {
            let short = super::duration::short(ttl.as_secs_f64());
            eprintln!(
                "latch: a --ttl of {short} is too short for this cluster: the command is ended if the leader fails. Say --ttl {least:.1}s or more"
            );
            usual
        }
    }
}

/// How long the command has to end if a failover is not to end it. An error is the `--ttl` that is
/// enough for that, in seconds. `usable` is how much of `ttl` a failover may take, and the end.
fn outlasting(
    ttl: Duration,
    usable: Duration,
    failover: Duration,
    said: Option<Duration>,
) -> Result<Duration, f64> {
    let needed = said.unwrap_or(KILL_AFTER_MIN);
    let spare = usable.saturating_sub(failover);
    if spare < needed.min(ttl / 2) {
        let part = usable.as_secs_f64().max(0.001) / ttl.as_secs_f64();
        let least = failover.saturating_add(needed).as_secs_f64() / part;
        return Err((least * 10.0).ceil() / 10.0);
    }
    Ok(said.unwrap_or_else(|| KILL_AFTER.min(spare)))
}

// ---- getting them ----

/// Bytes that are locked, and the connection on which they were.
struct Had {
    claim: Claim,
    client: Client,
    ranges: Ranges,
    /// Before the last question that was answered.
    asked_at: Duration,
}

fn acquire(
    servers: &Servers,
    claim: &Claim,
    patience: Patience,
    warden: &WardenMeanwhile,
    signals: &mut Signals,
) -> Result<Had, Unfinished> {
    let work = {
        let (servers, claim, warden) = (servers.clone(), claim.clone(), warden.warden());
        move || wait_for(&servers, claim, patience, &warden)
    };
    let mut line = WaitingLine::new();
    let mut watcher = watcher(servers, claim);
    let result = task::wait(signals, work, |last| line.tick(last, || watcher.text()))?;
    result.map_err(Unfinished::Failed)
}

/// Says who is in the way.
fn watcher(servers: &Servers, claim: &Claim) -> Watcher {
    let (server, mut client) = (servers.clone(), None);
    let (theirs, plain) = (claim.clone(), claim.shown());
    let look = move || {
        let client = match &client {
            Some(client) => client,
            None => client.insert(server.looking_client().ok()?),
        };
        Some(match in_the_way(client, &theirs) {
            Ok(Some(held)) => Seen::Text(format!("{} are {}", theirs.shown(), by_whom(&held))),
            Ok(None) => Seen::Text(format!("waiting for {}, in the queue", theirs.shown())),
            Err(Error::Down { server, .. }) => Seen::Silent(server),
            Err(_) => return None,
        })
    };
    Watcher::new(move || format!("waiting for {plain}"), look)
}

fn in_the_way(client: &Client, claim: &Claim) -> Result<Option<RangeHeld>, Error> {
    let mut ranges = client.ranges(&claim.resource)?;
    ranges.test(claim.mode, claim.start, claim.len)
}

/// `held by latch/alice@db1:4711/…`.
fn by_whom(held: &RangeHeld) -> String {
    let owner = match held.owner.is_empty() {
        true => String::new(),
        false => format!(" for {}", quoted(&held.owner)),
    };
    format!("held by {}{owner}", escaped(held.client.as_bytes()))
}

/// Asks, and asks again while our patience lasts: a server lets nobody wait for longer than its `--max-range-wait`, may be
/// started anew, and forgets nothing of what the client has by then. To ask again for what one has changes nothing.
fn wait_for(
    servers: &Servers,
    claim: Claim,
    patience: Patience,
    warden: &Warden,
) -> Result<Had, Fail> {
    let end = match patience {
        Patience::None => Some(Duration::ZERO),
        Patience::For(wait) => Some(uptime().saturating_add(wait)),
        Patience::Forever => None,
    };
    let is_over = || end.is_some_and(|end| uptime() >= end);
    let (claim, client, mut ranges) = open(servers, claim, warden)?;
    loop {
        let wait = end.map_or(Duration::MAX, |end| end.saturating_sub(uptime()));
        let mut asked_at = uptime();
        let mut locked = ranges.lock(claim.mode, claim.start, claim.len, wait);
        if locked.is_ok() && uptime().saturating_sub(asked_at) > claim.ttl / 3 {
            // Nobody here knows how old that answer is.
            asked_at = uptime();
            locked = match claim.is_held(&client, &mut ranges) {
                Ok(true) => Ok(()),
                Ok(false) => continue, // nothing has run yet
                Err(error) => Err(error),
            };
        }
        match locked {
            Ok(()) => {
                return Ok(Had {
                    claim,
                    client,
                    ranges,
                    asked_at,
                });
            }
            Err(Error::Busy { .. }) if !is_over() => {}
            Err(Error::Busy { .. }) => return Err(not_had(&client, &claim, patience)),
            Err(error) if waiting::is_kept_for_others(&error) && is_over() => {
                return Err(not_had(&client, &claim, patience));
            }
            Err(error) if let Some(Reason::Grace(left)) = error.reason() => {
                // The server answers, so the connection stays.
                let left = left.unwrap_or(GRACE_PAUSE_MAX).max(TRY_AGAIN_AFTER);
                let patience = end.map_or(Duration::MAX, |end| end.saturating_sub(uptime()));
                pause(left.min(GRACE_PAUSE_MAX).min(patience));
            }
            Err(error) if waiting::is_passing(&error) && !is_over() => loop {
                pause(TRY_AGAIN_AFTER);
                match claim.ranges(&client) {
                    Ok(new) => {
                        ranges = new;
                        break;
                    }
                    Err(error) if waiting::is_passing(&error) && !is_over() => {}
                    Err(error) => return Err(fail(error)),
                }
            },
            Err(error) => return Err(fail(error)),
        }
    }
}

/// Connects. The warden is told before anything is asked for.
fn open(servers: &Servers, claim: Claim, warden: &Warden) -> Result<(Claim, Client, Ranges), Fail> {
    let connect = |claim: &Claim| {
        warden.forget();
        warden.release(&claim.resource, &claim.word());
        let client = claim.client(servers)?;
        Ok((claim.ranges(&client), client))
    };
    match connect(&claim)? {
        (Ok(ranges), client) => Ok((claim, client, ranges)),
        (Err(Error::Refused(it)), _) if it.reason() == Reason::Forbidden => {
            let claim = claim.named_like_its_resource();
            let (ranges, client) = connect(&claim)?;
            Ok((claim, client, ranges.map_err(fail)?))
        }
        (Err(error), _) => Err(fail(error)),
    }
}

fn not_had(client: &Client, claim: &Claim, patience: Patience) -> Fail {
    let message = match patience {
        // Whoever asks to be told by the exit code alone is told so.
        Patience::None => String::new(),
        _ => {
            let held = in_the_way(client, claim).ok().flatten();
            let who = held.map_or_else(|| "held by somebody else".to_owned(), |it| by_whom(&it));
            format!("{} are {who}: the wait is over", claim.shown())
        }
    };
    Fail::new(Exit::CONFLICT, message)
}

/// There is no event that says when a server is back.
fn pause(span: Duration) {
    uptime::pause(span);
}

// ---- having them ----

/// Bytes that are locked. A thread asks for them, so that they are had from then on for a while.
struct Held {
    claim: Claim,
    client: Client,
    state: Arc<Mutex<State>>,
    /// Rung when they are lost.
    bell: Arc<OwnedFd>,
}

struct State {
    /// They are had until then, by the clock of this machine.
    until: Duration,
    /// The server has said that they are not.
    is_lost: bool,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Held {
    fn watch(had: Had) -> Result<Self, Fail> {
        let Had {
            claim,
            client,
            ranges,
            asked_at,
        } = had;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|error| Fail::system("wait for the loss of a lock", error))?;
        let state = State {
            until: asked_at.saturating_add(claim.promise(&client)),
            is_lost: false,
        };
        let held = Self {
            claim,
            client,
            state: Arc::new(Mutex::new(state)),
            bell: Arc::new(bell),
        };
        let (claim, client) = (held.claim.clone(), held.client.clone());
        let (state, bell) = (Arc::clone(&held.state), Arc::clone(&held.bell));
        spawn(move || {
            keep(&claim, &client, ranges, &state);
            locked(&state).is_lost = true;
            task::ring(&bell);
        })?;
        Ok(held)
    }

    /// Lets go of them. A server that does not answer is not waited for for long.
    fn release(self, ended: Ended) {
        let left = locked(&self.state).until.saturating_sub(uptime());
        let patience = match ended {
            Ended::Lost | Ended::Outlived => RELEASE_LOST_WITHIN,
            _ => left.min(RELEASE_WITHIN),
        };
        let Self { claim, client, .. } = self;
        let ttl = super::duration::short(claim.ttl.as_secs_f64());
        let (sender, done) = channel();
        let release = move || _ = sender.send(claim.release(&client));
        if spawn(release).is_err() {
            return; // its time ends it
        }
        let why = match done.recv_timeout(patience) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        if !ended.is_lost() {
            let why = escaped(why.as_bytes());
            eprintln!("latch: cannot let go of the bytes, which are free in {ttl}: {why}");
        }
    }
}

/// Asks again and again whether they are ours, and listens to whoever says that they are not. Returns when they are lost;
/// that our time is over without an answer is not for us to decide.
fn keep(claim: &Claim, client: &Client, ranges: Ranges, state: &Mutex<State>) {
    let beat = claim.beat();
    let mut ranges = Some(ranges);
    loop {
        let Some(theirs) = &mut ranges else {
            pause(TRY_AGAIN_AFTER.min(beat));
            let asked_at = uptime();
            if let Ok(mut new) = claim.ranges(client) {
                // Until they are had back, the server keeps them for no longer than it says.
                if let Some(left) = new.reclaim_within() {
                    let mut state = locked(state);
                    let until = asked_at.saturating_add(client.counts_on(left));
                    state.until = state.until.min(until);
                }
                match confirm(claim, client, &mut new, state, asked_at) {
                    Ok(true) => ranges = Some(new),
                    Ok(false) => return,
                    Err(_) => {}
                }
            }
            continue;
        };
        match theirs.lost(beat) {
            Ok(Some(_)) => return, // there is nothing else that this client could lose
            Ok(None) => {
                let asked_at = uptime();
                match confirm(claim, client, theirs, state, asked_at) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(_) => ranges = None,
                }
            }
            Err(_) => ranges = None,
        }
    }
}

fn confirm(
    claim: &Claim,
    client: &Client,
    ranges: &mut Ranges,
    state: &Mutex<State>,
    asked_at: Duration,
) -> Result<bool, Error> {
    let is_held = claim.is_held(client, ranges)?;
    if is_held {
        let mut state = locked(state);
        let until = asked_at.saturating_add(claim.promise(client));
        state.until = state.until.max(until);
    }
    Ok(is_held)
}

impl Lock for Held {
    fn standing(&mut self) -> Standing {
        let state = locked(&self.state);
        match state.is_lost {
            true => Standing::Lost,
            false => Standing::Held(Some(state.until.saturating_sub(uptime()))),
        }
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        let is_lost = locked(&self.state).is_lost;
        (!is_lost).then(|| self.bell.as_fd())
    }

    /// The warden asks while we cannot.
    fn suspend(&mut self) {}

    fn resume(&mut self) -> Option<Standing> {
        let asked_at = uptime();
        match self.claim.renew(&self.client) {
            Ok(Some(promise)) => {
                let mut state = locked(&self.state);
                state.until = state.until.max(asked_at.saturating_add(promise));
            }
            Ok(None) => locked(&self.state).is_lost = true,
            Err(_) => return None,
        }
        Some(self.standing())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_outlasts_a_failover_if_the_ttl_is_long_enough() {
        let failover = Duration::from_millis(6_500);
        let outlasting = |ttl, said| {
            let ttl = Duration::from_secs_f64(ttl);
            outlasting(ttl, ttl.mul_f64(0.9) - ttl / 6, failover, said)
        };
        let seconds = Duration::from_secs;
        assert_eq!(outlasting(30.0, None), Ok(KILL_AFTER));
        assert_eq!(outlasting(5.0, None), Err(9.3));
        assert_eq!(outlasting(9.2, None), Err(9.3));
        let least = outlasting(9.3, None);
        assert!(least.is_ok_and(|it| it >= KILL_AFTER_MIN), "{least:?}");
        let some = outlasting(15.0, None);
        assert_eq!(some.map(|it| it.as_millis()), Ok(4_500));
        assert_eq!(outlasting(15.0, Some(seconds(6))), Err(17.1));
        assert_eq!(outlasting(17.1, Some(seconds(6))), Ok(seconds(6)));
    }

    #[test]
    fn the_warden_is_told_all_of_it_in_one_word() {
        for (owner, mode) in [(&b""[..], Sharing::Shared), (b"\xff;x", Sharing::Exclusive)] {
            let claim = Claim {
                id: b"latch/x".to_vec(),
                secret: random().expect("chance"),
                ttl: TTL,
                resource: b"a;b".to_vec(),
                owner: owner.to_vec(),
                mode,
                start: 7,
                len: u64::MAX,
            };
            let word = claim.word();
            assert!(!word.contains(' '), "{word}");
            assert_eq!(Claim::parse(&word, b"a;b").as_ref(), Some(&claim));
            let other = claim.named_like_its_resource();
            assert!(other.id.starts_with(b"a;b."), "{other:?}");
            assert_eq!(Claim::parse(&other.word(), b"a;b"), Some(other));
        }
        for wrong in [
            "",
            "range",
            "00ff",
            "range;1;s;ex;0;1;6",
            "range;1;s;ex;0;1;zz;",
        ] {
            assert_eq!(Claim::parse(wrong, b"k"), None, "{wrong}");
        }
    }
}
