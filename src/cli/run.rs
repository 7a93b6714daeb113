//! `latch run`: runs a command while a lock is held, on any number of machines.
//!
//! The lock is taken so that it outlives connections (`keep=1`): a connection that breaks costs nothing as long
//! as another one can be made before the lease is over. So the lease alone decides, by our own clock, and the
//! command is ended before it is over. If we are killed, the warden lets go of the lock as soon as nobody
//! of the command is left.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{ArgMatches, Command};
use rustix::event::{EventfdFlags, eventfd};

use super::args::{self, Patience};
use super::connect::{Servers, fail, fail_of_lock, token_text};
use super::exit::{Exit, Fail};
use super::locks::{How, how_to_hold};
use super::output::quoted;
use super::remote::WardenMeanwhile;
use super::supervise::signals::Signals;
use super::supervise::task::{self, Unfinished};
use super::supervise::warden::Warden;
use super::supervise::{Ended, Job, Lock, Standing, supervise};
use super::sys::spawn;
use super::table::Entry;
use super::waiting::{Place, Seen, WaitingLine, Watcher};
use super::{Context, waiting};
use crate::base::Token;
use crate::client::{Client, Error, Guard};
use crate::uptime::uptime;

const EXAMPLES: &str = "\
The command has LATCH_KEY, LATCH_TOKEN and LATCH_FENCE in its environment; with
several keys each is a list, in the order of the keys as they were given.

The lock is renewed at a third of its lease or earlier. If that fails, the command
gets SIGTERM and SIGKILL before the lease is over, and the exit code is 79.

Examples:
  latch run nightly -- ./backup.sh            one at a time, on all machines
  latch run -n report -- ./report.sh          not if it runs already
  latch run -w 10m deploy -c 'make && make install'
  latch run --semaphore 3 build -- make       three at a time
  latch run -s data -- ./read.sh              together with others that say -s,
  latch run -x data -- ./write.sh             and alone: a read-write lock
  latch run --elect leader -- ./serve.sh      observers are told who leads
  latch run db cache -- ./migrate.sh          both, or none";

/// How long a command has to end, if nobody says: a quarter of the lease, but no longer than this.
const KILL_AFTER_MAX: Duration = Duration::from_secs(10);

/// The shortest time that a command has to end in a cluster, without `--kill-after` and with a
/// lease that outlasts a leader.
const KILL_AFTER_MIN: Duration = Duration::from_millis(300);

/// How long a server may take to hear that a lock is let go, and how long if it may be another one by then.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);
const RELEASE_ELSEWHERE_WITHIN: Duration = Duration::from_secs(10);
/// The same if it was most likely lost for want of an answer.
const RELEASE_LOST_WITHIN: Duration = Duration::from_millis(500);

pub(crate) fn entries() -> Vec<Entry> {
    let keys = args::key()
        .num_args(1..)
        .help("The name of the lock; several are taken together");
    let [shared, exclusive] = args::shared_or_exclusive();
    let command = Command::new("run")
        .about("Run a command while holding a lock")
        .override_usage(
            "latch run [OPTIONS] KEY… -- COMMAND…\n       latch run [OPTIONS] KEY… -c STRING",
        )
        .args(args::patience())
        .arg(shared.help("A read-write lock, together with others that read"))
        .arg(exclusive.help("A read-write lock, alone. Without -s and -x it is a plain lock"))
        .args(how_to_hold())
        .arg(args::lease(
            "How long it is held without a renewal [default: the server's, 33s]",
        ))
        .arg(args::conflict_exit_code())
        .arg(args::shell_command())
        .arg(args::kill_after())
        .arg(keys)
        .arg(args::command_behind_dashes())
        .after_help(EXAMPLES);
    vec![Entry::new(command, run)]
}

/// What is asked for.
#[derive(Clone)]
struct Wanted {
    /// In the order they were given.
    keys: Vec<Vec<u8>>,
    how: How,
    lease: Option<Duration>,
    patience: Patience,
}

impl Wanted {
    fn of(matches: &ArgMatches) -> Result<Self, Fail> {
        let keys = matches.get_many::<OsString>("KEY").unwrap_or_default();
        let keys: Vec<Vec<u8>> = keys.map(|key| key.clone().into_vec()).collect();
        keys.iter().try_for_each(|key| args::check_key(key))?;
        let mut sorted = keys.clone();
        sorted.sort();
        if let Some(twice) = sorted.windows(2).find(|two| two[0] == two[1]) {
            let key = quoted(&twice[0]);
            return Err(Fail::usage(format!(
                "{key} is named twice, and would wait for itself"
            )));
        }
        Ok(Self {
            keys,
            how: How::of(matches),
            lease: args::lease_of(matches)?,
            patience: args::patience_of(matches),
        })
    }
}

fn run(_: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let command = args::command(matches, "latch run nightly -- ./backup.sh")?;
    let wanted = Wanted::of(matches)?;
    let servers = Servers::of(matches)?;
    let mut signals = Signals::watch()?;
    let warden = WardenMeanwhile::start(&servers)?;
    let (client, guards) = match acquire(&servers, &wanted, &warden, &mut signals) {
        Ok(held) => held,
        Err(Unfinished::Signal(signal)) => {
            // What was had by then the warden lets go.
            let _ = warden.started();
            return Ok(signals.die(signal));
        }
        Err(Unfinished::Failed(fail)) => {
            warden.dismiss();
            return Err(match fail.exit {
                Exit::CONFLICT => Fail::new(args::conflict_exit(matches), fail.message),
                _ => fail,
            });
        }
    };
    let lease = guards.iter().map(Guard::lease).min().unwrap_or_default();
    let kill_after = kill_after(&guards, lease, args::kill_after_of(matches));
    let mut locks = Locks::new(client, wanted, guards)?;
    locks.have_members = servers.have_members();
    let env = locks.env(&servers);
    let warden = warden.started()?;
    let job = Job {
        command: &command,
        env: &env,
        inherits: None,
        kill_after,
        lease: Some(lease),
        warden,
    };
    let ended = supervise(job, &mut signals, &mut locks)?;
    if ended.is_lost() {
        eprintln!("latch: {}{}", locks.how_it_was_lost(), ended.fate());
    }
    locks.release(ended);
    Ok(ended.exit(&mut signals))
}

/// How long the command has to end, as said or by the lease. In a cluster it is no more than what
/// is left of the lease when another member has taken over, so that a change of the leader ends no
/// command; a lease that is too short for that is warned of.
fn kill_after(guards: &[Guard], lease: Duration, said: Option<Duration>) -> Duration {
    let usual = said.unwrap_or_else(|| (lease / 4).min(KILL_AFTER_MAX));
    let spare = guards.iter().filter_map(Guard::failover_spare).min();
    let least = |guard: &Guard| guard.least_lease(said.unwrap_or(KILL_AFTER_MIN));
    let least = guards.iter().filter_map(least).max();
    let (Some(spare), Some(least)) = (spare, least) else {
        return usual;
    };
    if lease < least {
        let short = super::duration::short(lease.as_secs_f64());
        let tenths = least.as_millis().div_ceil(100);
        let (least, part) = (tenths / 10, tenths % 10);
        eprintln!(
            "latch: a lease of {short} is too short for this cluster: the command is ended if the leader fails. Say --lease {least}.{part}s or more"
        );
        return usual;
    }
    match said {
        Some(said) => said,
        None => usual.min(spare),
    }
}

// ---- getting it ----

/// Takes all keys in their order, so that no two of us can each have what the other wants; or none.
fn acquire(
    servers: &Servers,
    wanted: &Wanted,
    warden: &WardenMeanwhile,
    signals: &mut Signals,
) -> Result<(Client, Vec<Guard>), Unfinished> {
    let place = Arc::new(Mutex::new(Place::default()));
    let work = {
        let (servers, wanted) = (servers.clone(), wanted.clone());
        let (place, warden) = (Arc::clone(&place), warden.warden());
        move || acquire_all(&servers, &wanted, &warden, &place)
    };
    let mut line = WaitingLine::new();
    let mut watcher = watcher(servers, place);
    let result = task::wait(signals, work, |last| line.tick(last, || watcher.text()))?;
    result.map_err(Unfinished::Failed)
}

/// Says who has it, and where we are in the queue.
fn watcher(servers: &Servers, place: Arc<Mutex<Place>>) -> Watcher {
    let key = |place: &Mutex<Place>| place.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (theirs, list) = (Arc::clone(&place), servers.list().to_owned());
    let (servers, mut client) = (servers.clone(), None);
    let look = move || {
        let client = match &client {
            Some(client) => client,
            None => client.insert(servers.looking_client().ok()?),
        };
        let place = key(&theirs);
        if place.key.is_empty() {
            return None;
        }
        match client.who(&place.key) {
            Ok(who) => Some(Seen::Text(waiting::told(&place, &who))),
            Err(Error::Down { server, .. }) => Some(Seen::Silent(server)),
            Err(_) => None,
        }
    };
    let plain = move || match key(&place).key.as_slice() {
        b"" => format!("waiting for {list}"),
        key => format!("waiting for {}", quoted(key)),
    };
    Watcher::new(plain, look)
}

fn acquire_all(
    servers: &Servers,
    wanted: &Wanted,
    warden: &Warden,
    place: &Mutex<Place>,
) -> Result<(Client, Vec<Guard>), Fail> {
    let client = connect(servers)?;
    let end = match wanted.patience {
        Patience::None => Some(Duration::ZERO),
        Patience::For(wait) => Some(uptime().saturating_add(wait)),
        Patience::Forever => None,
    };
    loop {
        let guards = acquire_each(&client, wanted, warden, place, end)?;
        let Some(lost) = guards.iter().find(|guard| guard.lost().is_set()) else {
            return Ok((client, guards));
        };
        // Nothing has run yet, so there is nothing to be ended: they are asked for again while the wait lasts.
        if end.is_some_and(|end| uptime() >= end) {
            let key = quoted(lost.key());
            let message = format!("{key} was lost again while the others were waited for");
            return Err(Fail::new(Exit::CONFLICT, message));
        }
        drop(guards);
        warden.forget();
    }
}

/// Each of them once, until then; none if there is no end to the wait.
fn acquire_each(
    client: &Client,
    wanted: &Wanted,
    warden: &Warden,
    place: &Mutex<Place>,
    end: Option<Duration>,
) -> Result<Vec<Guard>, Fail> {
    let mut sorted = wanted.keys.clone();
    sorted.sort();
    let mut guards = Vec::new();
    for key in sorted {
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Place {
            key: key.clone(),
            name: client.name().to_owned(),
        };
        let wait = end.map_or(Duration::MAX, |end| end.saturating_sub(uptime()));
        let mut lock = wanted.how.lock(client, &key).wait(wait);
        if let Some(lease) = wanted.lease {
            lock = lock.lease(lease);
        }
        match lock.acquire() {
            Ok(guard) => {
                // At once: whatever ends us while we wait for the others must not leave this one behind.
                if let Some(token) = guard.token() {
                    warden.release(&key, &token_text(token));
                }
                guards.push(guard);
            }
            Err(error) => return Err(not_had(error, client, &key, wanted.patience)),
        }
    }
    Ok(guards)
}

/// Connects, and does without locks that outlive a connection where the server has none.
fn connect(servers: &Servers) -> Result<Client, Fail> {
    match servers.builder().keep(true).connect() {
        Err(Error::Refused(refusal)) if refusal.word() == "error" => {
            servers.builder().connect().map_err(fail)
        }
        result => result.map_err(fail),
    }
}

fn not_had(error: Error, client: &Client, key: &[u8], patience: Patience) -> Fail {
    match (&error, patience) {
        // Whoever asks to be told by the exit code alone is told so.
        (Error::Busy { .. }, Patience::None) => Fail::new(Exit::CONFLICT, ""),
        (Error::Busy { .. }, _) => {
            let name = quoted(key);
            let who = client.who(key).ok();
            let who = who.and_then(|who| waiting::holders(&who));
            let who = who.unwrap_or_else(|| "held by somebody else".to_owned());
            Fail::new(Exit::CONFLICT, format!("{name} is {who}: the wait is over"))
        }
        _ => fail_of_lock(error),
    }
}

// ---- having it ----

/// What is held while the command runs.
struct Locks {
    client: Client,
    wanted: Wanted,
    /// In the order of the keys as they were given, while we renew them ourselves.
    guards: Vec<Guard>,
    /// The same, also while we do not.
    tokens: Vec<(Vec<u8>, Token)>,
    /// Rung when one is lost.
    bell: Arc<OwnedFd>,
    /// One is gone for good.
    lost: bool,
    /// Another server may lead when they are let go.
    have_members: bool,
}

impl Locks {
    fn new(client: Client, wanted: Wanted, mut guards: Vec<Guard>) -> Result<Self, Fail> {
        let place_of = |guard: &Guard| wanted.keys.iter().position(|key| key == guard.key());
        guards.sort_by_key(place_of);
        let tokens = guards
            .iter()
            .filter_map(|guard| Some((guard.key().to_vec(), guard.token()?)));
        let tokens: Vec<_> = tokens.collect();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|error| Fail::system("wait for the loss of a lock", error))?;
        let bell = Arc::new(bell);
        Ok(Self {
            client,
            lost: tokens.len() < guards.len(),
            wanted,
            guards: guards.into_iter().map(|it| ringing(it, &bell)).collect(),
            tokens,
            bell,
            have_members: false,
        })
    }

    /// What the command has in its environment.
    fn env(&self, servers: &Servers) -> Vec<(&'static str, Option<OsString>)> {
        let list = |text: &dyn Fn(&[u8], Token) -> Vec<u8>| {
            let words = self.tokens.iter().map(|(key, token)| text(key, *token));
            Some(OsString::from_vec(words.collect::<Vec<_>>().join(&b' ')))
        };
        let mut env = vec![
            ("LATCH_KEY", list(&|key, _| key.to_vec())),
            ("LATCH_TOKEN", list(&|_, token| token.hex().to_vec())),
            (
                "LATCH_FENCE",
                list(&|_, token| token.fence.0.to_string().into_bytes()),
            ),
        ];
        env.extend(servers.env());
        env
    }

    /// What whoever reads the output has to know.
    fn how_it_was_lost(&self) -> String {
        let lost = self
            .guards
            .iter()
            .find_map(|guard| Some((guard, guard.lost().why()?)));
        match lost {
            Some((guard, why)) => {
                let key = quoted(guard.key());
                format!("{key} was lost: {why}")
            }
            None if self.lost => {
                let keys = self.keys();
                format!("{keys} was lost while we were stopped")
            }
            None => {
                let (keys, servers) = (self.keys(), self.client.servers().join(","));
                format!("{keys} could not be renewed at {servers}")
            }
        }
    }

    fn keys(&self) -> String {
        let keys: Vec<_> = self.wanted.keys.iter().map(|key| quoted(key)).collect();
        keys.join(", ")
    }

    /// Lets go of everything, the last one first. A server that does not answer is not waited for when
    /// there is little left to let go of.
    fn release(self, ended: Ended) {
        let left = self.guards.iter().map(Guard::promised).max();
        let left = left.unwrap_or_default();
        let patience = match ended {
            Ended::Lost | Ended::Outlived => left.min(RELEASE_LOST_WITHIN),
            _ if self.have_members => left.min(RELEASE_ELSEWHERE_WITHIN),
            _ => left.min(RELEASE_WITHIN),
        };
        let (sender, done) = channel();
        let guards = self.guards;
        let release = move || {
            for guard in guards.into_iter().rev() {
                let key = quoted(guard.key());
                let _ = sender.send((key, guard.release()));
            }
        };
        if spawn(release).is_err() {
            return; // the lease ends it
        }
        let end = uptime().saturating_add(patience);
        loop {
            let why = match done.recv_timeout(end.saturating_sub(uptime())) {
                Ok((key, Err(error @ (Error::Down { .. } | Error::Unknown { .. })))) => {
                    format!("{key}: {error}")
                }
                Ok(_) => continue,
                Err(RecvTimeoutError::Timeout) => "no answer in time".to_owned(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if !ended.is_lost() {
                let left = super::duration::short(left.as_secs_f64());
                eprintln!("latch: cannot let go of the lock, which is free in {left}: {why}");
            }
            return;
        }
    }
}

impl Lock for Locks {
    fn standing(&mut self) -> Standing {
        let is_lost = |guard: &Guard| guard.lost().is_set();
        if self.lost || self.guards.iter().any(is_lost) {
            return Standing::Lost;
        }
        // What is in doubt is not lost: until its time is over the server may still have it for us.
        let left = self.guards.iter().map(Guard::promised).min();
        Standing::Held(Some(left.unwrap_or_default()))
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        // Once rung it stays so, and there is nothing more to hear.
        let is_lost = self.guards.iter().any(|guard| guard.lost().is_set());
        (!is_lost && !self.lost).then(|| self.bell.as_fd())
    }

    fn suspend(&mut self) {
        let guards = std::mem::take(&mut self.guards);
        for guard in guards {
            match guard.leave() {
                Ok(_) => {}
                // Without locks that outlive connections it ends with ours, as it would have anyway.
                Err(Error::Misuse(_)) => {}
                Err(_) => self.lost = true,
            }
        }
    }

    fn resume(&mut self) -> Option<Standing> {
        if self.lost {
            return Some(Standing::Lost);
        }
        // What could not be had in an attempt before this one is what is missing at the end.
        for (key, token) in &self.tokens[self.guards.len()..] {
            let mut lock = self.wanted.how.lock(&self.client, key);
            if let Some(lease) = self.wanted.lease {
                lock = lock.lease(lease);
            }
            match lock.adopt(*token) {
                Ok(guard) => self.guards.push(ringing(guard, &self.bell)),
                // Only a server that says so has let it go.
                Err(Error::Down { .. } | Error::Unknown { .. } | Error::Refused(_)) => return None,
                Err(_) => {
                    self.lost = true;
                    break;
                }
            }
        }
        Some(self.standing())
    }
}

/// Rings the bell when it is lost.
fn ringing(guard: Guard, bell: &Arc<OwnedFd>) -> Guard {
    let bell = Arc::clone(bell);
    guard.on_lost(move |_| task::ring(&bell));
    guard
}
