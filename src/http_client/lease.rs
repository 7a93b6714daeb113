//! A lease: what was granted, and until when it is certainly held, by the clock of this machine.

use std::fmt;
use std::time::Duration;

use super::clock::Moment;
use crate::drift::Drift;

/// A lock that was granted, for a while.
///
/// The lease is the owner's and not this value's: dropping it releases nothing.
///
/// ```no_run
/// use std::time::Duration;
/// use latchd::http_client::LeaseClient;
///
/// let client = LeaseClient::new("http://127.0.0.1:6389")?;
/// let lease = client.acquire_once("job", "me", Duration::from_secs(10))?;
/// // Whoever keeps the data refuses a token below the highest one it has seen.
/// println!("UPDATE jobs SET …, fence = {0} WHERE fence <= {0}", lease.fencing_token());
/// assert!(lease.is_held());
/// client.release_once(&lease)?;
/// # Ok::<(), latchd::http_client::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The lock.
    pub lock_name: String,
    /// Whose it is.
    pub owner_id: String,
    /// Which grant it is. A secret: whoever has it, and the owner's name, can release the lock.
    pub lease_id: String,
    /// A number that is higher than that of every grant before.
    pub fencing_token: u64,
    /// When it ends unless it is renewed, as the server's time of day, in milliseconds since 1970. For
    /// people: what counts here is [`left`](Self::left).
    pub lease_expiry_ms: u64,
    /// Until when the server certainly keeps it: counted from before the request was sent, see [`promised_until`].
    pub(super) held_until: Moment,
}

impl Lease {
    /// The number to pass on with everything that is changed under the lock.
    pub fn fencing_token(&self) -> u64 {
        self.fencing_token
    }

    /// How long it is certainly held from now on, by the clock of this machine.
    pub fn left(&self) -> Duration {
        Moment::now().until(self.held_until)
    }

    /// Whether the server certainly still keeps it: never true when it may have let go because the time
    /// is over. (An operator who breaks the lock, and a server that was restarted without its data, are
    /// noticed at the next renewal.)
    pub fn is_held(&self) -> bool {
        !self.left().is_zero()
    }

    /// It was renewed.
    pub(super) fn extend(&mut self, held_until: Moment, lease_expiry_ms: u64) {
        self.held_until = self.held_until.max(held_until);
        self.lease_expiry_ms = lease_expiry_ms;
    }
}

/// Until when a lease of this length is certainly kept that was asked for at this moment, if clocks
/// differ in speed by no more than this. Servers are told whole milliseconds.
pub(super) fn promised_until(sent: Moment, ttl: Duration, drift: Drift) -> Moment {
    let told = Duration::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    sent.after(drift.counted(told))
}

/// Shows only the beginning of the secret.
impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.lease_id.chars().take(8).collect();
        f.debug_struct("Lease")
            .field("lock_name", &self.lock_name)
            .field("owner_id", &self.owner_id)
            .field("lease_id", &format_args!("{shown}…"))
            .field("fencing_token", &self.fencing_token)
            .field("lease_expiry_ms", &self.lease_expiry_ms)
            .field("left", &self.left())
            .finish()
    }
}

/// What came of a renewal.
///
/// ```no_run
/// # use std::time::Duration;
/// # use latchd::http_client::{LeaseClient, Renewal};
/// # let client = LeaseClient::new("http://127.0.0.1:6389")?;
/// # let mut lease = client.acquire_once("job", "me", Duration::from_secs(10))?;
/// match client.renew_once(&mut lease, Duration::from_secs(10))? {
///     Renewal::Renewed => println!("{:?} more", lease.left()),
///     Renewal::NotOwnerOrExpired => println!("lost"),
///     Renewal::Busy => println!("not now; {:?} are left", lease.left()),
/// }
/// # Ok::<(), latchd::http_client::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lease that was not renewed ends"]
pub enum Renewal {
    /// The lease has got longer, or was as long already.
    Renewed,
    /// It is not held any more: its time is over, or it was released, or broken.
    NotOwnerOrExpired,
    /// The server could not; the lease goes on as it was.
    Busy,
}

/// What came of a release. Whatever it is, nothing may be done under the lock any more.
///
/// ```
/// use latchd::http_client::Release;
///
/// assert!(Release::Released.is_released());
/// assert!(!Release::NotOwner.is_released());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The lock is free, or somebody else's by now.
    Released,
    /// It was not held any more.
    NotOwner,
    /// The server could not: the lease ends when its time is over, or is released later.
    Busy,
}

impl Release {
    /// Whether this release has ended the lease.
    pub const fn is_released(self) -> bool {
        matches!(self, Self::Released)
    }

    /// The server's word for why not, if it has not.
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Released => None,
            Self::NotOwner => Some("NOT_OWNER"),
            Self::Busy => Some("BUSY_RETRY"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock of ours that is a little slow does not make anybody believe in what the server has ended.
    #[test]
    fn a_tenth_of_a_lease_is_not_counted_on() {
        let sent = Moment::now();
        for (ttl_us, counted_us) in [
            (1_000_000, 900_000),
            (600_000_000, 540_000_000),
            (1_999, 900),
        ] {
            let until = promised_until(sent, Duration::from_micros(ttl_us), Drift::default());
            assert_eq!(sent.until(until), Duration::from_micros(counted_us));
        }
    }
}
