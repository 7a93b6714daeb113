//! A client for leases over HTTP: acquire, renew, release, a heartbeat, and the fencing token.
//!
//! For programs that reach a lock server by HTTP, latchd's or another that speaks LockServer's API. It
//! blocks, and it needs nothing of the daemon (feature `http` alone).
//!
//! ```no_run
//! use std::time::Duration;
//! use latchd::http_client::{HeartbeatOptions, LeaseClient, RetryOptions};
//!
//! let client = LeaseClient::new("http://127.0.0.1:6389")?;
//! let options = RetryOptions::new(Duration::from_secs(2)).wait(Duration::from_secs(30));
//! let lease = client.acquire_with_retry("nightly", "worker-7", &options)?;
//! let heartbeat = client.start_heartbeat(lease, HeartbeatOptions::new())?;
//! // … what only one at a time may do, with heartbeat.fencing_token(), while heartbeat.is_held() …
//! heartbeat.release()?;
//! # Ok::<(), latchd::http_client::Error>(())
//! ```
//!
//! # What can be relied on
//!
//! - [`Lease::is_held`] and [`Heartbeat::is_held`] are never true when the server may have let go because
//!   the time was over. They go by the clock of this machine, from before the request was sent.
//! - An acquire whose answer is lost is asked again with the same id, and is the same grant.
//! - An answer is read up to a megabyte, a request takes no longer than its timeout, and what is not JSON is
//!   an error that shows it.
//!
//! - Members of a cluster that do not lead are passed by: with [several addresses](LeaseClient::cluster), and by going where
//!   a server says that the leader is, if a token is protected there as well as here.
//!
//! `docs/http-client.md` has the rules. Never asks again for a renewal or a release that may have been done, never reads the
//! environment, and never panics about what a server says.

mod call;
mod cancel;
mod clock;
mod error;
mod heartbeat;
mod json;
mod lease;
mod members;
mod retry;

use std::fmt;
use std::time::Duration;

use self::call::{Ask, Caller};
pub use self::cancel::Cancel;
pub use self::error::{Error, NotAcquired, Reason};
pub use self::heartbeat::{Heartbeat, HeartbeatOptions, State, Watch};
pub use self::lease::{Lease, Release, Renewal};
pub use self::retry::RetryOptions;
use crate::drift::Drift;

/// How long a request may take unless somebody says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client of one server, or of the members of one cluster. Its clones share its connections, and all threads may use one.
///
/// ```
/// use latchd::http_client::LeaseClient;
///
/// let client = LeaseClient::new("http://127.0.0.1:6389/")?;
/// let another = client.clone();
/// std::thread::spawn(move || drop(another));
/// # Ok::<(), latchd::http_client::Error>(())
/// ```
#[derive(Clone)]
pub struct LeaseClient {
    caller: Caller,
}

impl LeaseClient {
    /// A client of the server at this address, such as `http://127.0.0.1:6389`. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Misuse`] if it is no such address.
    pub fn new(base_url: &str) -> Result<Self, Error> {
        Self::builder(base_url).build()
    }

    /// The same, with what is to be said besides.
    pub fn builder(base_url: &str) -> LeaseClientBuilder {
        Self::cluster([base_url])
    }

    /// The same for the members of one cluster: whoever leads is found among them.
    ///
    /// ```
    /// use latchd::http_client::LeaseClient;
    ///
    /// let members = ["http://10.0.0.11:6389", "http://10.0.0.12:6389", "http://10.0.0.13:6389"];
    /// let client = LeaseClient::cluster(members).bearer_token("s3cret").build()?;
    /// # Ok::<(), latchd::http_client::Error>(())
    /// ```
    pub fn cluster(base_urls: impl IntoIterator<Item = impl Into<String>>) -> LeaseClientBuilder {
        LeaseClientBuilder {
            base_urls: base_urls.into_iter().map(Into::into).collect(),
            token: None,
            timeout: TIMEOUT,
            clock_drift: None,
            #[cfg(feature = "tls")]
            root_certificates: None,
        }
    }

    /// Asks for a lock once, without waiting for it.
    ///
    /// # Errors
    /// [`Error::NotAcquired`] if somebody else has it; the others if nobody knows.
    pub fn acquire_once(&self, lock: &str, owner: &str, ttl: Duration) -> Result<Lease, Error> {
        let ask = Ask {
            lock,
            owner,
            ttl,
            wait: Duration::ZERO,
            request_id: None,
        };
        self.caller.acquire(&ask, self.caller.timeout)
    }

    /// Asks for a lock again and again, or waits for it, as the options say. What it returns is held.
    ///
    /// A lock that is held, a server that is busy, and an answer that was lost are asked about again, with one
    /// id for all attempts. A server that cannot be reached and any other answer end it at once, unless the
    /// answer to an attempt before was lost.
    ///
    /// # Errors
    /// [`Error::NotAcquired`], as the last attempt had it; [`Error::AnswerLost`] if the lock may be held
    /// nevertheless; [`Error::Cancelled`]; the others as they come.
    pub fn acquire_with_retry(
        &self,
        lock: &str,
        owner: &str,
        options: &RetryOptions,
    ) -> Result<Lease, Error> {
        retry::acquire(&self.caller, lock, owner, options)
    }

    /// Makes a lease longer, once: so that it lasts for `extend_by` from now on, or for longer if it did already.
    ///
    /// # Errors
    /// None if the lease is over, which is [`Renewal::NotOwnerOrExpired`]; the lease goes on as it was.
    pub fn renew_once(&self, lease: &mut Lease, extend_by: Duration) -> Result<Renewal, Error> {
        self.caller.renew(lease, extend_by, self.caller.timeout)
    }

    /// Releases a lock, once.
    ///
    /// # Errors
    /// None if it is not held any more, which is [`Release::NotOwner`]. After [`Error::NoAnswer`] it may be
    /// released or not; to ask again does no harm.
    pub fn release_once(&self, lease: &Lease) -> Result<Release, Error> {
        self.caller.release(lease, self.caller.timeout)
    }

    /// Renews a lease from now on, in a thread of its own.
    ///
    /// # Errors
    /// [`Error::Misuse`] and [`Error::NoThread`].
    pub fn start_heartbeat(
        &self,
        lease: Lease,
        options: HeartbeatOptions,
    ) -> Result<Heartbeat, Error> {
        Heartbeat::start(&self.caller, lease, options)
    }
}

/// Shows no token.
impl fmt::Debug for LeaseClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseClient")
            .field(&self.caller.bases())
            .finish()
    }
}

/// What a client is made of.
///
/// ```
/// use std::time::Duration;
/// use latchd::http_client::LeaseClient;
///
/// let client = LeaseClient::builder("http://127.0.0.1:6389")
///     .bearer_token("s3cret")
///     .timeout(Duration::from_secs(3))
///     .build()?;
/// # Ok::<(), latchd::http_client::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing is made before it is built"]
pub struct LeaseClientBuilder {
    base_urls: Vec<String>,
    token: Option<String>,
    timeout: Duration,
    clock_drift: Option<u32>,
    #[cfg(feature = "tls")]
    root_certificates: Option<Vec<u8>>,
}

impl LeaseClientBuilder {
    /// The token to show, if the server wants one.
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long a request may take, from finding the server to the end of its answer; 10 seconds unless set, and a
    /// day at most. An acquire that waits in the server's queue has that time in addition.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// By how many percent the clocks of this machine and of the server may differ in speed, up to
    /// 50: so much of a lease is not counted on. 10 unless set, which is enough while a clock is
    /// slewed.
    pub fn clock_drift(mut self, percent: u32) -> Self {
        self.clock_drift = Some(percent);
        self
    }

    /// The authorities that the server's certificate may be of, as PEM text, and no others; for `https://`.
    /// Unless set, those that browsers believe in.
    #[cfg(feature = "tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// The client.
    ///
    /// # Errors
    /// [`Error::Misuse`] if address, token, timeout, drift or certificates make no sense.
    pub fn build(self) -> Result<LeaseClient, Error> {
        if self.timeout.is_zero() {
            return Err(Error::misuse("a request needs some time: say above 0"));
        }
        let mut caller = Caller::new(&self.base_urls, self.token.as_deref(), self.timeout)?;
        if let Some(percent) = self.clock_drift {
            caller.drift = Drift::of(percent).map_err(Error::misuse)?;
        }
        #[cfg(feature = "tls")]
        let caller = match &self.root_certificates {
            Some(pem) => caller.trusting(pem)?,
            None => caller,
        };
        Ok(LeaseClient { caller })
    }
}

/// Shows no token.
impl fmt::Debug for LeaseClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseClientBuilder")
            .field("base_urls", &self.base_urls)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
