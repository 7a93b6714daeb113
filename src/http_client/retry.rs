//! An acquire that asks again: after how long, how often, and with which right to believe an answer.
//!
//! All attempts of one acquire carry the same id, so whatever was granted to the first is granted to
//! the last. That makes it safe to ask again when an answer was lost, and needs care with the time: a
//! grant counts from before the *first* request it may be the answer to.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use super::call::{Ask, Caller, WAIT_MAX};
use super::cancel::Cancel;
use super::clock::Moment;
use super::error::{Error, Reason};
use super::lease::{Lease, Renewal, promised_until};

/// By how much each pause is longer than the one before if the server recommends none.
const GROWTH: f64 = 1.5;
/// A request that was begun in time may take so long although the time is over then.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// How an acquire asks again.
///
/// ```
/// use std::time::Duration;
/// use latchd::http_client::RetryOptions;
///
/// let options = RetryOptions::new(Duration::from_secs(10))   // the lease
///     .wait(Duration::from_secs(20))                         // in the server's queue, each time
///     .max_total_wait(Duration::from_secs(60))
///     .jitter_frac(0.0);                                     // as good as any: none
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct RetryOptions {
    ttl: Duration,
    wait: Duration,
    max_retries: u32,
    min_retry: Duration,
    max_retry: Duration,
    jitter_frac: f64,
    max_total_wait: Option<Duration>,
    request_id: Option<String>,
    cancel: Option<Cancel>,
}

impl RetryOptions {
    /// A lease of this length, from 1 ms up to 10 minutes; everything else as usual.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            wait: Duration::ZERO,
            max_retries: 50,
            min_retry: Duration::from_millis(25),
            max_retry: Duration::from_secs(1),
            jitter_frac: 0.2,
            max_total_wait: None,
            request_id: None,
            cancel: None,
        }
    }

    /// How long each attempt waits in the server's queue, up to a minute; it does not unless set. Then the
    /// lock is granted in the order in which it was asked for, and at once when it is free.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait.min(WAIT_MAX);
        self
    }

    /// How many attempts there are after the first; 50 unless set.
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// The shortest pause between two attempts, before jitter; 25 ms unless set.
    pub fn min_retry(mut self, pause: Duration) -> Self {
        self.min_retry = pause;
        self
    }

    /// The longest pause between two attempts, before jitter; a second unless set.
    pub fn max_retry(mut self, pause: Duration) -> Self {
        self.max_retry = pause;
        self
    }

    /// By which part a pause is made longer or shorter, by chance, so that many who were refused together
    /// do not come back together; from 0, which is none, to 1. It is 0.2 unless set.
    pub fn jitter_frac(mut self, part: f64) -> Self {
        self.jitter_frac = if part.is_nan() {
            0.0
        } else {
            part.clamp(0.0, 1.0)
        };
        self
    }

    /// How long all of it may take; as long as the attempts do, unless set. The last attempt begins before
    /// this is over, and is given a second at most beyond it.
    pub fn max_total_wait(mut self, span: Duration) -> Self {
        self.max_total_wait = Some(span);
        self
    }

    /// The id that all attempts carry, instead of a new one: 1 to 128 visible ASCII characters. With the id
    /// and the owner of an earlier acquire, what that one was granted is granted again.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// Lets this end it.
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// The pause after an attempt, counted from 0. Chance is from -1 to 1.
    fn pause(&self, hint: Option<Duration>, attempt: u32, chance: f64) -> Duration {
        let longest = self.max_retry.max(self.min_retry);
        let growing = || {
            let exponent = attempt.min(64) as i32; // far beyond any longest pause
            let grown = self.min_retry.as_secs_f64() * GROWTH.powi(exponent);
            Duration::try_from_secs_f64(grown).unwrap_or(longest)
        };
        let pause = hint.unwrap_or_else(growing).clamp(self.min_retry, longest);
        let jittered = pause.as_secs_f64() * (1.0 + self.jitter_frac * chance);
        Duration::try_from_secs_f64(jittered).unwrap_or(pause)
    }
}

/// Where one acquire has got to.
struct Attempts<'a> {
    caller: Caller,
    options: &'a RetryOptions,
    cancel: Cancel,
    request_id: String,
    began: Moment,
    /// Before the first request whose answer was lost: a grant may be as old as this.
    in_doubt_since: Option<Moment>,
    /// The id is that of an earlier acquire, and a grant may be of any age.
    is_repeated: bool,
}

/// Acquires, and asks again as the options say.
pub(super) fn acquire(
    caller: &Caller,
    lock: &str,
    owner: &str,
    options: &RetryOptions,
) -> Result<Lease, Error> {
    if let Some(id) = &options.request_id
        && !(matches!(id.len(), 1..=128) && id.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        return Err(Error::misuse(
            "a request id has 1 to 128 visible ASCII characters, without blanks",
        ));
    }
    caller.check_process()?;
    if options.cancel.as_ref().is_some_and(Cancel::is_copy) {
        return Err(Error::misuse(
            "this process was forked from the one that made this Cancel: make a new one here",
        ));
    }
    // Connections of its own, if somebody may break them.
    let caller = match options.cancel {
        Some(_) => caller.apart(),
        None => caller.clone(),
    };
    let cancel = options.cancel.clone().unwrap_or_default();
    let _reached = cancel.reaches(&caller);
    let mut attempts = Attempts {
        caller,
        options,
        cancel,
        request_id: options.request_id.clone().unwrap_or_else(new_request_id),
        began: Moment::now(),
        in_doubt_since: None,
        is_repeated: options.request_id.is_some(),
    };
    attempts.run(lock, owner)
}

impl Attempts<'_> {
    fn run(&mut self, lock: &str, owner: &str) -> Result<Lease, Error> {
        let mut attempt = 0;
        loop {
            if self.cancel.is_cancelled() {
                return Err(self.cancelled());
            }
            let asked = Moment::now();
            let error = match self.ask(lock, owner) {
                Ok(lease) => return Ok(lease),
                Err(error) => error,
            };
            if error.leaves_doubt() {
                self.in_doubt_since.get_or_insert(asked);
            }
            if self.cancel.is_cancelled() {
                return Err(self.cancelled());
            }
            let hint = match &error {
                // To ask again would not change that.
                Error::NotAcquired(refused) if matches!(refused.reason, Reason::Other(_)) => {
                    return Err(error);
                }
                Error::NotAcquired(refused) => {
                    let has_waited = asked.elapsed() >= self.options.wait;
                    match refused.reason == Reason::Held && !self.options.wait.is_zero() {
                        true if has_waited => Some(Duration::ZERO),
                        _ => refused.recommended_retry,
                    }
                }
                // Until somebody says what became of the request that was lost.
                _ if self.in_doubt_since.is_some() => None,
                _ => return Err(error),
            };
            let left = self.left();
            if attempt >= self.options.max_retries || left.is_zero() {
                return Err(self.given_up(error));
            }
            let chance = fastrand::f64() * 2.0 - 1.0;
            let pause = match hint {
                // It has waited where it matters.
                Some(Duration::ZERO) => Duration::ZERO,
                hint => self.options.pause(hint, attempt, chance).min(left),
            };
            if self.cancel.pause(pause) {
                return Err(self.cancelled());
            }
            attempt += 1;
        }
    }

    /// One attempt. What it returns is held for a while yet.
    fn ask(&self, lock: &str, owner: &str) -> Result<Lease, Error> {
        let Self {
            options, caller, ..
        } = self;
        let wait = options.wait.min(self.left());
        let ask = Ask {
            lock,
            owner,
            ttl: options.ttl,
            wait,
            request_id: Some(&self.request_id),
        };
        let timeout = self.timeout().saturating_add(wait);
        let sent = Moment::now();
        let mut lease = caller.acquire(&ask, timeout)?;
        let dated = self.in_doubt_since.unwrap_or(sent);
        lease.held_until = promised_until(dated, options.ttl, caller.drift);
        if !self.is_repeated && dated.elapsed() <= options.ttl / 3 {
            return Ok(lease);
        }
        // It was granted some time ago, and nobody here knows when: during a wait, or to a request whose
        // answer was lost. A renewal says how long it lasts.
        if self.is_repeated {
            lease.held_until = sent;
        }
        match caller.renew(&mut lease, options.ttl, self.timeout()) {
            Ok(Renewal::Renewed) => Ok(lease),
            Ok(Renewal::NotOwnerOrExpired) => Err(Error::BadAnswer {
                path: format!("acquire of {lock:?}"),
                status: 200,
                why: "the lease was over before it could be renewed",
            }),
            Ok(Renewal::Busy) | Err(_) if lease.is_held() => Ok(lease),
            Ok(Renewal::Busy) => Err(Error::BadAnswer {
                path: format!("acquire of {lock:?}"),
                status: 200,
                why: "the lease could not be renewed in time",
            }),
            Err(error) => Err(error),
        }
    }

    fn timeout(&self) -> Duration {
        self.caller.timeout.min(self.left().max(LAST_REQUEST))
    }

    fn left(&self) -> Duration {
        match self.options.max_total_wait {
            Some(span) => span.saturating_sub(self.began.elapsed()),
            None => Duration::MAX,
        }
    }

    fn cancelled(&self) -> Error {
        let in_doubt = self.in_doubt_since.is_some();
        Error::Cancelled {
            request_id: in_doubt.then(|| self.request_id.clone()),
        }
    }

    fn given_up(&self, error: Error) -> Error {
        match (&error, self.in_doubt_since) {
            // Asked with the same id, the server says that it is not granted.
            (Error::NotAcquired(_), _) | (_, None) => error,
            (_, Some(_)) => Error::AnswerLost {
                request_id: self.request_id.clone(),
                source: Box::new(error),
            },
        }
    }
}

/// An id that nobody else has: the system's randomness, by way of the keys of a hash.
fn new_request_id() -> String {
    let number = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", number(), number())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_pause_is_the_hint_within_its_bounds_or_grows() {
        let options = RetryOptions::new(ms(1_000)).jitter_frac(0.0);
        for (hint, attempt, pause) in [
            (Some(ms(300)), 0, ms(300)),
            (Some(ms(1)), 7, ms(25)),
            (Some(ms(60_000)), 7, ms(1_000)),
            (None, 0, ms(25)),
            (None, 2, Duration::from_micros(56_250)),
            (None, 20, ms(1_000)),
            (None, u32::MAX, ms(1_000)),
        ] {
            assert_eq!(options.pause(hint, attempt, 0.7), pause);
        }
    }

    /// The original took a jitter of 0 for one that is not set, and used 0.2.
    #[test]
    fn defect_2_no_jitter_is_none() {
        let options = RetryOptions::new(ms(1_000)).jitter_frac(0.0);
        for chance in [-1.0, -0.3, 0.0, 1.0] {
            assert_eq!(options.pause(Some(ms(200)), 0, chance), ms(200));
        }
        let usual = RetryOptions::new(ms(1_000));
        assert_eq!(usual.pause(Some(ms(200)), 0, -1.0), ms(160));
        assert_eq!(usual.pause(Some(ms(200)), 0, 1.0), ms(240));
        for (part, is) in [(-1.0, 0.0), (7.0, 1.0), (f64::NAN, 0.0)] {
            assert_eq!(usual.clone().jitter_frac(part).jitter_frac, is);
        }
    }

    #[test]
    fn bounds_that_contradict_each_other_do_no_harm() {
        let options = RetryOptions::new(ms(1)).min_retry(ms(50)).max_retry(ms(10));
        assert_eq!(options.pause(None, 3, 0.0), ms(50));
        let endless = RetryOptions::new(ms(1)).max_retry(Duration::MAX);
        assert!(endless.pause(None, u32::MAX, 1.0) > Duration::from_secs(3_600));
        assert_eq!(
            endless.min_retry(Duration::MAX).pause(None, 1, 1.0),
            Duration::MAX
        );
    }

    #[test]
    fn no_two_ids_are_the_same() {
        let ids: BTreeSet<String> = (0..10_000).map(|_| new_request_id()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.len() == 32));
    }
}
