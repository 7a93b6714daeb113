//! `latch top`: the servers on one screen, live.
//!
//! One thread asks, once a second; the main thread draws, and hears keys and signals.

mod screen;
mod view;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use clap::{ArgMatches, Command};
use nix::sys::signal::Signal;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use self::screen::{Key, Screen};
use self::view::{Sample, View};
use super::connect::Servers;
use super::exit::{Exit, Fail};
use super::supervise::signals::Signals;
use super::supervise::task;
use super::supervise::warden::timespec;
use super::sys::spawn;
use super::table::Entry;
use super::{Context, show};
use crate::client::Client;
use crate::uptime::uptime;

const EVERY: Duration = Duration::from_secs(1);
/// Of so many keys it is asked for how long they have been waited for: as many as a screen shows.
const WAITS_ASKED: usize = 16;

pub(crate) fn entries() -> Vec<Entry> {
    let top = Command::new("top")
        .about("Watch the servers on a whole screen: rates, queues, holders")
        .after_help("q quits, / asks for a filter: a part of a key, or a pattern with * and ?.");
    vec![Entry::new(top, run)]
}

fn run(context: &Context, matches: &ArgMatches) -> Result<Exit, Fail> {
    let servers = Servers::of(matches)?;
    let client = servers.client()?;
    // Where there is no server there is nothing to be seen, and the usual words are better than a screen.
    client.ping().map_err(super::connect::fail)?;
    let mut signals = Signals::watch()?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let bell = bell.map_err(|error| Fail::system("wait", error))?;
    let samples = ask_again_and_again(&servers, &bell)?;
    let mut screen = Screen::open()?;
    let mut top = Top {
        servers: servers.list(),
        no_colours: context.no_colour,
        last: Sample::default(),
        before: None,
        filter: String::new(),
        is_typing: false,
    };
    let end = top.watch(&mut screen, &mut signals, &samples, &bell);
    drop(screen);
    match end? {
        Some(signal) => Ok(signals.die(signal)),
        None => Ok(Exit::OK),
    }
}

/// Samples, once a second, and a bell that tells of them.
fn ask_again_and_again(servers: &Servers, bell: &OwnedFd) -> Result<Receiver<Sample>, Fail> {
    let (sender, samples) = channel();
    let client = servers.client()?;
    let bell = bell.try_clone();
    let bell = bell.map_err(|error| Fail::system("wait", error))?;
    spawn(move || {
        loop {
            let documents = (0..client.servers().len()).map(|it| show::stats(&client, it));
            let mut sample = Sample {
                at: uptime(),
                ..Sample::default()
            };
            match documents.collect::<Result<Vec<_>, Fail>>() {
                Ok(documents) => {
                    sample.documents = documents;
                    sample.waits = longest_waits(&client, &sample);
                }
                Err(fail) => sample.trouble = Some(fail.message),
            }
            if sender.send(sample).is_err() {
                return;
            }
            task::ring(&bell);
            let _ = poll(&mut [], Some(&timespec(EVERY)));
        }
    })?;
    Ok(samples)
}

/// How long the first in the queue has waited, for the keys that most wait for.
fn longest_waits(client: &Client, sample: &Sample) -> BTreeMap<String, f64> {
    let keys = sample.most_wanted(WAITS_ASKED).into_iter();
    keys.filter_map(|key| {
        let who = client.who(&key).ok()?;
        let longest = who.waiters.iter().map(|waiter| waiter.since_s);
        Some((key, longest.fold(0.0, f64::max)))
    })
    .collect()
}

struct Top<'a> {
    servers: &'a str,
    no_colours: bool,
    last: Sample,
    before: Option<Sample>,
    filter: String,
    is_typing: bool,
}

impl Top<'_> {
    /// Until somebody has seen enough; the signal, if it was one.
    fn watch(
        &mut self,
        screen: &mut Screen,
        signals: &mut Signals,
        samples: &Receiver<Sample>,
        bell: &OwnedFd,
    ) -> Result<Option<Signal>, Fail> {
        let (mut is_entered, mut typed) = (false, false);
        loop {
            while let Some(signal) = signals.next() {
                match signal {
                    Signal::SIGWINCH | Signal::SIGCHLD => {}
                    Signal::SIGCONT => is_entered = false,
                    Signal::SIGTSTP => {
                        screen.leave();
                        signals.suffer(signal);
                        is_entered = false;
                    }
                    signal => return Ok(Some(signal)),
                }
            }
            if !screen.is_ours()? {
                // As the terminal does with a process in the background that wants to set it.
                is_entered = false;
                if !signals.suffer(Signal::SIGTTOU) {
                    let why = "latch top is in the background, and no shell can continue it";
                    return Err(Fail::new(Exit::CANNOT_OPEN, why));
                }
                continue;
            }
            if !is_entered {
                screen.enter()?;
                is_entered = true;
            }
            if typed {
                let Some(keys) = screen.keys() else {
                    return Ok(None);
                };
                if keys.into_iter().any(|key| self.typed(key)) {
                    return Ok(None);
                }
            }
            for sample in samples.try_iter() {
                self.before = Some(std::mem::replace(&mut self.last, sample))
                    .filter(|before| !before.documents.is_empty());
            }
            let view = View {
                servers: self.servers,
                last: &self.last,
                before: self.before.as_ref(),
                filter: &self.filter,
                is_typing: self.is_typing,
                no_colours: self.no_colours,
            };
            screen.draw(&view.lines(screen.size()))?;
            let mut events = [
                PollFd::new(&*signals, PollFlags::IN),
                PollFd::new(&*screen, PollFlags::IN),
                PollFd::new(bell, PollFlags::IN),
            ];
            let _ = poll(&mut events, None);
            typed = !events[1].revents().is_empty();
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
    }

    /// Whether that was enough.
    fn typed(&mut self, key: Key) -> bool {
        match (self.is_typing, key) {
            (true, Key::Char(c)) => self.filter.push(c),
            (true, Key::Backspace) => drop(self.filter.pop()),
            (true, Key::Enter) => self.is_typing = false,
            (_, Key::Escape) => {
                self.filter.clear();
                self.is_typing = false;
            }
            (false, Key::Char('q' | 'Q')) => return true,
            (false, Key::Char('/')) => {
                self.filter.clear();
                self.is_typing = true;
            }
            (false, _) => {}
        }
        false
    }
}
