//! What a program has in its hands while it holds something.

use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use super::clock;
use super::conn::Conn;
use super::error::{Error, Lost, shown};
use super::hold::{Hold, LostSignal, Standing};
use super::renewal::release_command;
use super::{Hops, Inner, Told};
use crate::base::{Nanos, Token};
use crate::wire::client::push_request;

/// How long letting go may take when a guard is dropped: a server that hangs must not hang the
/// program for long.
pub(super) const DROP_TIME: Duration = Duration::from_secs(2);

/// Something that is held. It is renewed until it is let go, by [`release`](Self::release) or by being
/// dropped.
///
/// ```no_run
/// # use latchd::client::Client;
/// # let client = Client::connect("localhost")?;
/// let guard = client.lock("job").acquire()?;
/// guard.on_lost(|why| eprintln!("stop: {why}"));
/// while guard.is_held() {
///     // … a piece of work, with guard.fence() beside every write …
/// #   break;
/// }
/// guard.release()?;
/// # Ok::<(), latchd::client::Error>(())
/// ```
#[must_use = "what is held is let go when the guard is dropped"]
pub struct Guard {
    inner: Arc<Inner>,
    hold: Arc<Hold>,
    lost: LostSignal,
    /// What the renewal thread calls it.
    number: u64,
    is_over: bool,
}

impl Guard {
    pub(super) fn new(inner: Arc<Inner>, hold: Arc<Hold>, number: u64) -> Self {
        let lost = LostSignal {
            hold: Arc::clone(&hold),
        };
        Self {
            inner,
            hold,
            lost,
            number,
            is_over: false,
        }
    }

    /// The name of what is held.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.hold.key
    }

    /// The number of this grant: each grant of a server has a higher one than all before. Keep the
    /// highest one seen beside the data, and refuse a write that comes with a lower one.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.hold.token.fence.0
    }

    /// What to show for letting it go or renewing it elsewhere; none once it is lost.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        match self.hold.standing_here() {
            Standing::Held | Standing::Doubtful => Some(self.hold.token),
            Standing::Released | Standing::Lost(_) => None,
        }
    }

    /// How long it lasts from each renewal on; nothing in a forked child.
    #[must_use]
    pub fn lease(&self) -> Duration {
        match self.hold.is_copy() {
            true => Duration::ZERO,
            false => clock::duration(self.hold.lease()),
        }
    }

    /// How long it is certain to be held, if nothing more is heard of the server; nothing if it is not
    /// held. See [`is_held`](Self::is_held) for what that rests on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.hold.standing_here() {
            Standing::Held => clock::until(self.hold.sure_until()),
            _ => Duration::ZERO,
        }
    }

    /// How long the server's promise lasts, if no renewal comes, also while it is [in doubt](Standing::Doubtful):
    /// nobody else has it before that is over, unless an operator or the end of its connection has ended it.
    #[must_use]
    pub fn promised(&self) -> Duration {
        match self.hold.standing_here() {
            Standing::Held | Standing::Doubtful => clock::until(self.hold.until()),
            Standing::Released | Standing::Lost(_) => Duration::ZERO,
        }
    }

    /// In a cluster: how much of the promise is left at least when the leader fails and the next
    /// one has renewed it. Nothing if the lease is too short for that, and none for a server alone.
    #[must_use]
    pub fn failover_spare(&self) -> Option<Duration> {
        match self.hold.is_copy() {
            true => None,
            false => self.hold.failover_spare(),
        }
    }

    /// In a cluster: the shortest lease of which so much is left then; none for a server alone.
    #[must_use]
    pub fn least_lease(&self, spare: Duration) -> Option<Duration> {
        self.hold.least_lease(spare)
    }

    /// Whether it is held, as far as anybody here can know: the server's promise is not over, by our own
    /// clock from before we asked, and nothing was heard to the contrary.
    ///
    /// What a client [keeps](super::Builder::keep) rests on that clock alone, and so does what belongs to an
    /// [attached](super::Builder::attach) client, for at most its `ttl` after each request. Otherwise it rests
    /// on a connection, too: the server lets go when that ends. An end that reaches us is seen at once. One
    /// that only the server sees (something in between has cut its side) is not; so the server is asked on
    /// that connection every [`check_every`](super::Builder::check_every), and this is false when the last
    /// answered request is older than that and the [`answer_timeout`](super::Builder::answer_timeout)
    /// together: 22 s, if nothing else was set.
    ///
    /// An operator's `break` and a server that forgets in a restart are known when we hear of them.
    ///
    /// In a forked child it is false: the lock is the parent's.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.standing_here() == Standing::Held
    }

    /// How it stands. What is [in doubt](Standing::Doubtful) is not held, and not lost yet.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.hold.standing_here()
    }

    /// Tells when it is lost.
    #[must_use]
    pub fn lost(&self) -> &LostSignal {
        &self.lost
    }

    /// Calls this when it is lost: once, when [`is_held`](Self::is_held) is false and the token is
    /// gone; at once if it is lost already; never if it is let go. All callbacks of a client are
    /// called one after the other on a thread for them, and never hold up a renewal. One that takes
    /// longer than a second is not waited for: the next is called beside it, up to eight at a time.
    /// A forked child has no such thread, and calls none.
    pub fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        if !self.hold.is_copy() {
            self.hold.on_lost(Box::new(callback));
        }
    }

    /// Lets it go.
    ///
    /// # Errors
    /// [`Lost`](Error::Lost) if it was held no longer. If the server cannot be reached, or
    /// [refuses](Error::Refused), it is let go when its connection or its lease has ended.
    /// [`Misuse`](Error::Misuse) in a forked child.
    pub fn release(mut self) -> Result<(), Error> {
        let options = &self.inner.options;
        self.let_go(options.answer_timeout, options.connect_timeout)
    }

    /// Stops renewing it and leaves it held, until its lease is over or somebody lets it go with the
    /// token, which is returned.
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse) if the client neither [keeps](super::Builder::keep) what it
    /// acquires nor is [attached](super::Builder::attach): then it would end with its connection.
    /// Also in a forked child. [`Lost`](Error::Lost) if it was held no longer.
    pub fn leave(mut self) -> Result<Token, Error> {
        self.inner.check_process()?;
        if !self.inner.options.outlives() {
            let why = "this would end with its connection: see Builder::keep";
            return Err(Error::Misuse(why.to_owned()));
        }
        self.is_over = true;
        if let Some(conn) = self.inner.keeper.give_up(self.number) {
            self.inner.pool.put(conn);
        }
        match self.hold.release() {
            Standing::Lost(why) => Err(self.lost_by(why)),
            _ => Ok(self.hold.token),
        }
    }

    fn lost_by(&self, why: Lost) -> Error {
        let key = shown(&self.hold.key);
        Error::Lost { key, why }
    }

    /// Tells the server within this time; with what may be added, if that needs another connection.
    fn let_go(&mut self, patience: Duration, more: Duration) -> Result<(), Error> {
        self.inner.check_process()?;
        self.is_over = true;
        let conn = self.inner.keeper.give_up(self.number);
        if let Standing::Lost(why) = self.hold.release() {
            if let Some(mut conn) = conn {
                // By our clock it is over. If the server thinks otherwise, it need not wait for that.
                let _ = self.tell(&mut conn, clock::now());
            }
            return Err(self.lost_by(why));
        }
        let all = patience.saturating_add(more);
        let end = clock::after(all);
        if let Some(mut conn) = conn {
            // What ends with its connection needs no other one, if the only server there is does not answer.
            let is_last = !self.inner.options.outlives() && conn.has_no_other();
            let first = match is_last {
                true => patience,
                false => all / 2,
            };
            match self.tell(&mut conn, clock::after(first)) {
                Ok(None) => {
                    self.inner.pool.put(conn);
                    return Ok(());
                }
                Ok(Some(why)) => {
                    self.inner.pool.put(conn);
                    return Err(self.lost_by(why));
                }
                // It is still held. What ends with its connection ends now.
                Err(error @ Error::Refused(_)) => return Err(error),
                Err(error) if is_last && is_timeout(&error) => return Err(error),
                Err(_) => {}
            }
        }
        // The connection is gone. Whatever the server says on another one, it is not held afterwards.
        let key = Some(&*self.hold.key);
        let mut conn = self.inner.open_by(self.hold.shard, key, end)?;
        self.tell(&mut conn, end)?;
        self.inner.pool.put(conn);
        Ok(())
    }

    /// Tells the server, or whoever it says decides; how it was lost, if it was not held until then.
    fn tell(&self, conn: &mut Conn, deadline: Nanos) -> Result<Option<Lost>, Error> {
        let mut frame = Vec::new();
        let verb = push_request(&mut frame, &release_command(&self.hold))?;
        let mut hops = Hops::until(deadline);
        loop {
            let reply = conn.ask(&frame, verb, deadline);
            let reply = reply.map_err(|fault| conn.error(fault))?;
            let Some(told) = reply.sends_elsewhere() else {
                if let Some(why) = super::lost_by(reply.told()) {
                    return Ok(Some(why));
                }
                let reply = self.inner.refused(conn.shard, &frame, reply)?;
                return match reply.told() {
                    Told::Done => Ok(None),
                    _ => Err(self.inner.garbage(conn.shard, &reply)),
                };
            };
            let key = Some(&*self.hold.key);
            self.inner.go_elsewhere(conn, key, told, &mut hops)?;
        }
    }
}

fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::Down { why, .. } if why.kind() == ErrorKind::TimedOut)
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.hold.is_copy() {
            return self.inner.keeper.abandon(Some(self.number));
        }
        if !self.is_over {
            let patience = self.inner.options.answer_timeout.min(DROP_TIME);
            let _ = self.let_go(patience, Duration::ZERO); // whoever wants to know calls `release`
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", &shown(&self.hold.key))
            .field("fence", &self.fence())
            .field("standing", &self.standing())
            .finish_non_exhaustive()
    }
}
