//! What happens elsewhere: signals, changes of keys, changes of leaders, as they come.
//!
//! A subscription has connections of its own. When one of them breaks its owner is told, because what happened
//! meanwhile is lost: whoever asks on has looked at how things are, and is subscribed again.

use std::fmt;
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::clock;
use super::conn::{Conn, Fault, Heard};
use super::error::Error;
use super::look::{Lookout, led_elsewhere};
use super::stream::wait_for_any;
use super::{Client, Hops, Inner, Told};
use crate::base::Nanos;
use crate::engine::types::{Change, Event, Request};
use crate::wire::client::{Line, News, push_request};
use crate::wire::command::Command;
use crate::wire::verbs::Verb;

/// Somebody signalled.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::client::{Client, Signal};
///
/// let client = Client::connect("localhost")?;
/// let mut signals = client.listen("events.>")?;
/// for signal in signals.within(Duration::from_secs(1)) {
///     let Signal { channel, payload } = signal?;
///     println!("{} on {}", payload.escape_ascii(), channel.escape_ascii());
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Where.
    pub channel: Vec<u8>,
    /// What.
    pub payload: Vec<u8>,
}

/// Something happened to a key.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::client::{Client, KeyEvent};
/// use latchd::engine::types::Event;
///
/// let client = Client::connect("localhost")?;
/// let mut events = client.watch("jobs.*")?;
/// if let Some(KeyEvent { event: Event::Release, key }) = events.next_within(Duration::from_secs(1))? {
///     println!("{} is free", key.escape_ascii());
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEvent {
    /// What happened.
    pub event: Event,
    /// To which key.
    pub key: Vec<u8>,
}

/// The leader of a key has changed.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::client::{Client, LeaderChange};
///
/// let client = Client::connect("localhost")?;
/// let mut changes = client.observe("leader")?;
/// while let Some(LeaderChange { change, .. }) = changes.next_within(Duration::from_secs(60))? {
///     println!("{change:?}");
/// }
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderChange {
    /// How.
    pub change: Change,
    /// Of which key.
    pub key: Vec<u8>,
}

/// What can be subscribed to: made from news, if that is of this kind.
trait FromNews: Sized {
    fn from_news(news: News<'_>) -> Option<Self>;
}

impl FromNews for Signal {
    fn from_news(news: News<'_>) -> Option<Self> {
        match news {
            News::Signal { channel, payload } => Some(Self {
                channel: channel.to_vec(),
                payload: payload.to_vec(),
            }),
            _ => None,
        }
    }
}

impl FromNews for KeyEvent {
    fn from_news(news: News<'_>) -> Option<Self> {
        match news {
            News::Watch { event, key } => Some(Self {
                event,
                key: key.to_vec(),
            }),
            _ => None,
        }
    }
}

impl FromNews for LeaderChange {
    fn from_news(news: News<'_>) -> Option<Self> {
        match news {
            News::Leader { change, key } => Some(Self {
                change,
                key: key.to_vec(),
            }),
            _ => None,
        }
    }
}

/// Something that is listened to: [`Signal`]s, [`KeyEvent`]s or [`LeaderChange`]s, in the order in which
/// each server told them.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::client::{Client, Signal, Subscription};
///
/// let client = Client::connect("localhost")?;
/// let mut signals: Subscription<Signal> = client.listen("news")?;
/// let first = signals.next_within(Duration::from_secs(1))?;
/// # Ok::<(), latchd::client::Error>(())
/// ```
pub struct Subscription<T> {
    inner: Arc<Inner>,
    /// How it is asked for.
    frame: Vec<u8>,
    verb: Verb,
    /// The name that it is about, if it is one and no pattern.
    key: Option<Vec<u8>>,
    /// One for each server that may have something to tell.
    sources: Vec<Source>,
    /// Which of them is heard first, so that a loud one does not drown the others.
    turn: usize,
    of: PhantomData<fn() -> T>,
}

/// A connection to one server, or none since the last one broke.
struct Source {
    shard: usize,
    conn: Option<Conn>,
    lookout: Lookout,
}

impl Source {
    fn new(shard: usize, conn: Conn) -> Self {
        Self {
            shard,
            conn: Some(conn),
            lookout: Lookout::new(),
        }
    }

    /// When it is to be looked for whoever leads by now; never if that can be nobody else.
    fn looks_at(&self) -> Nanos {
        match &self.conn {
            Some(conn) if !conn.has_no_other() => self.lookout.next_at(),
            _ => Nanos::NEVER,
        }
    }
}

/// So many lines of other kinds are passed over before anybody looks at the clock.
pub(super) const PASSED_MAX: usize = 256;

/// What one look at the connections has brought.
enum Pass<T> {
    Found(T),
    /// Only what nobody asked for, and there may be more.
    Unfinished,
    Nothing,
}

/// What comes, until nothing has come for a while: made by [`Subscription::within`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use latchd::client::Client;
/// # let client = Client::connect("localhost")?;
/// let mut events = client.watch(">")?;
/// let busy = events.within(Duration::from_millis(500)).count();
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[derive(Debug)]
pub struct Within<'a, T> {
    of: &'a mut Subscription<T>,
    timeout: Duration,
    is_over: bool,
}

impl Client {
    /// Hears signals on channels that match: `*` is any one token between dots, `>` the rest.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if it is no pattern, or if there are too many.
    pub fn listen(&self, pattern: impl AsRef<[u8]>) -> Result<Subscription<Signal>, Error> {
        self.listen_in_group(pattern, "")
    }

    /// The same as a member of a group, of which one hears each signal. A group has no blanks around it.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn listen_in_group(
        &self,
        pattern: impl AsRef<[u8]>,
        group: impl AsRef<[u8]>,
    ) -> Result<Subscription<Signal>, Error> {
        let (pattern, group) = (pattern.as_ref(), group.as_ref());
        self.subscribe(
            pattern,
            &Request::Listen { pattern, group },
            has_wildcard(pattern),
        )
    }

    /// Hears what happens to keys that match.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn watch(&self, pattern: impl AsRef<[u8]>) -> Result<Subscription<KeyEvent>, Error> {
        let pattern = pattern.as_ref();
        self.subscribe(pattern, &Request::Watch { pattern }, has_wildcard(pattern))
    }

    /// Hears who takes the lead of this key, and first of all whether somebody has it.
    ///
    /// # Errors
    /// [`Refused`](Error::Refused) if there are too many.
    pub fn observe(&self, key: impl AsRef<[u8]>) -> Result<Subscription<LeaderChange>, Error> {
        let key = key.as_ref();
        self.subscribe(key, &Request::Observe { key }, false)
    }

    /// At the server that has the key, or at all of them.
    fn subscribe<T>(
        &self,
        key: &[u8],
        request: &Request<'_>,
        at_all: bool,
    ) -> Result<Subscription<T>, Error> {
        let shards = match at_all {
            true => 0..self.inner.options.clusters.len(),
            false => self.inner.shard(key)..self.inner.shard(key) + 1,
        };
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, &Command::Engine(*request))?;
        let mut subscription = Subscription {
            inner: Arc::clone(&self.inner),
            frame,
            verb,
            key: (!at_all).then(|| key.to_vec()),
            sources: Vec::new(),
            turn: 0,
            of: PhantomData,
        };
        for shard in shards {
            let conn = subscription.open(shard)?;
            subscription.sources.push(Source::new(shard, conn));
        }
        Ok(subscription)
    }
}

impl<T> Subscription<T> {
    /// Connects to whoever leads there, and subscribes.
    fn open(&self, shard: usize) -> Result<Conn, Error> {
        let Self { inner, frame, .. } = self;
        let key = self.key.as_deref();
        let mut conn = inner.open(shard, key)?;
        let mut hops = Hops::until(clock::after(inner.options.connect_timeout));
        loop {
            let deadline = clock::after(inner.options.answer_timeout);
            let reply = conn.ask(frame, self.verb, deadline);
            let reply = reply.map_err(|fault| conn.error(fault))?;
            if let (Some(told), Some(_)) = (reply.sends_elsewhere(), key) {
                inner.go_elsewhere(&mut conn, key, told, &mut hops)?;
                continue;
            }
            let reply = inner.refused(shard, frame, reply)?;
            return match reply.told() {
                Told::Done => Ok(conn),
                _ => Err(inner.garbage(shard, &reply)),
            };
        }
    }
}

/// Whether other keys match it besides itself.
fn has_wildcard(pattern: &[u8]) -> bool {
    let mut tokens = pattern.split(|it| *it == b'.');
    tokens.any(|token| matches!(token, b"*" | b">"))
}

#[expect(private_bounds, reason = "what can be subscribed to is known here")]
impl<T: FromNews> Subscription<T> {
    /// The next one, if one comes within this time.
    ///
    /// # Errors
    /// [`Down`](Error::Down) if a connection has broken, or if another member of the cluster leads: what happened
    /// since is lost. Look at how things are; the next call subscribes again, where the leader is by then, before it
    /// waits.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<T>, Error> {
        self.inner.check_process()?;
        for index in 0..self.sources.len() {
            if self.sources[index].conn.is_none() {
                let shard = self.sources[index].shard;
                self.sources[index] = Source::new(shard, self.open(shard)?);
            }
        }
        let deadline = clock::after(timeout);
        loop {
            self.look_for_leaders()?;
            match self.heard()? {
                Pass::Found(found) => return Ok(Some(found)),
                // Whatever else comes, it must not take longer than this.
                Pass::Unfinished if clock::now() >= deadline => return Ok(None),
                Pass::Unfinished => continue,
                Pass::Nothing => {}
            }
            let conns: Vec<_> = self
                .sources
                .iter()
                .filter_map(|it| it.conn.as_ref())
                .collect();
            let look_at = self.sources.iter().map(Source::looks_at).min();
            match wait_for_any(&conns, deadline.min(look_at.unwrap_or(Nanos::NEVER))) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    if clock::now() >= deadline {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(self.broken(0, error.into())),
            }
        }
    }

    /// A member of a cluster that was stopped or cut off is silent for ever, as if nothing happened.
    fn look_for_leaders(&mut self) -> Result<(), Error> {
        let (options, key) = (&self.inner.options, self.key.as_deref());
        let is_gone = |source: &mut Source| match &source.conn {
            Some(conn) if !conn.has_no_other() => {
                source.lookout.is_led_elsewhere(options, conn, key)
            }
            _ => false,
        };
        match self.sources.iter_mut().position(is_gone) {
            Some(index) => Err(self.broken(index, led_elsewhere())),
            None => Ok(()),
        }
    }

    /// An iterator that ends when nothing has come for so long, or after an error.
    pub fn within(&mut self, timeout: Duration) -> Within<'_, T> {
        Within {
            of: self,
            timeout,
            is_over: false,
        }
    }

    /// What has come already.
    fn heard(&mut self) -> Result<Pass<T>, Error> {
        let count = self.sources.len();
        let mut is_finished = true;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let mut left = PASSED_MAX;
            loop {
                if left == 0 {
                    is_finished = false;
                    break;
                }
                left -= 1;
                let Some(conn) = &mut self.sources[index].conn else {
                    break;
                };
                let line = match conn.kept_news() {
                    Some(line) => line,
                    None => match conn.next() {
                        Ok(Some(Heard::News(line))) => line,
                        Ok(Some(Heard::Answer(_))) => continue,
                        Ok(None) => break,
                        Err(fault) => return Err(self.broken(index, fault)),
                    },
                };
                if let Some(Line::Push(news)) = Line::read(&line)
                    && let Some(found) = T::from_news(news)
                {
                    self.turn = index + 1;
                    self.sources[index].lookout.heard();
                    return Ok(Pass::Found(found));
                }
            }
        }
        Ok(match is_finished {
            true => Pass::Nothing,
            false => Pass::Unfinished,
        })
    }

    fn broken(&mut self, index: usize, fault: Fault) -> Error {
        let Source { shard, conn, .. } = &mut self.sources[index];
        match conn.take() {
            Some(conn) => conn.error(fault),
            None => self.inner.options.clusters[*shard].down(ErrorKind::NotConnected.into()),
        }
    }
}

impl<T: FromNews> Iterator for Within<'_, T> {
    type Item = Result<T, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let found = self.of.next_within(self.timeout).transpose();
        self.is_over = !matches!(found, Some(Ok(_)));
        found
    }
}

impl<T> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards: Vec<_> = self.sources.iter().map(|it| it.shard).collect();
        f.debug_struct("Subscription")
            .field("servers", &shards)
            .finish_non_exhaustive()
    }
}
