//! One request and its answer: what is sent, how long it may take, and how much of an answer is read.
//!
//! Never asks twice what may have been done. What a server has not done because it does not lead is asked of another one:
//! of the next in the list, or of the one that it names, if that may be (`members.rs`). Takes no proxy from the
//! environment: a lock that is had through somebody else's cache is none.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use ureq::Agent;
use ureq::config::ConfigBuilder;
#[cfg(feature = "tls")]
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;

use super::clock::Moment;
use super::error::{Error, NotAcquired, Reason};
use super::json::{Object, push_quoted};
use super::lease::{Lease, Release, Renewal, promised_until};
use super::members::Members;
use crate::drift::Drift;
use crate::maker::Maker;

/// Most bytes of an answer that are read; the rest is left unread, and the connection is closed.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;
/// Most bytes of a body that an error keeps.
const SHOWN_BYTES_MAX: usize = 4 * 1024;
/// For a head; a client may have many connections.
const BUFFER_BYTES: usize = 16 * 1024;
/// The longest lease there is.
const LEASE_MS_MAX: u128 = 600_000;
/// The longest wait there is.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(60);
/// The longest that one request may take. (More than a clock can count would be a panic.)
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long one of several servers may take to accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// With less time than this nobody else is asked: a request that is cut short leaves a doubt.
const ATTEMPT_MIN: Duration = Duration::from_millis(100);
/// How often in a round a redirection is followed.
const HOPS_MAX: usize = 8;
/// The pause after all servers were asked and none leads, and the longest.
const BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// So many rounds have the shortest pause: a leader that goes politely is followed by another one within that time.
const ROUNDS_SHORT: u32 = 4;
/// The longest name of a lock, or of an owner, in bytes.
const NAME_BYTES_MAX: usize = 1_024;

/// A server or several, and the connections to them.
#[derive(Clone)]
pub(super) struct Caller {
    agent: Agent,
    members: Arc<Members>,
    /// Its connections were broken for good.
    ended: Arc<Ended>,
    /// The whole value of the header.
    authorization: Option<String>,
    /// How long a request may take, apart from what it waits at the server.
    pub(super) timeout: Duration,
    pub(super) drift: Drift,
    maker: Maker,
}

/// An acquire, as it is sent.
pub(super) struct Ask<'a> {
    pub(super) lock: &'a str,
    pub(super) owner: &'a str,
    pub(super) ttl: Duration,
    pub(super) wait: Duration,
    pub(super) request_id: Option<&'a str>,
}

struct Answer {
    path: String,
    status: u16,
    /// Where it sends us.
    location: Option<String>,
    body: Vec<u8>,
}

/// Ends a pause, and all that come later.
#[derive(Default)]
struct Ended {
    is_so: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    fn set(&self) {
        *self.is_so.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn pause(&self, span: Duration) {
        let is_so = self.is_so.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(is_so, span, |it| !*it));
    }
}

impl Caller {
    pub(super) fn new(
        bases: &[String],
        token: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Ok(Self {
            agent: settings().build().new_agent(),
            members: Arc::new(Members::new(bases)?),
            ended: Arc::default(),
            authorization: token.map(authorization).transpose()?,
            timeout,
            drift: Drift::default(),
            maker: Maker::this(),
        })
    }

    /// Refuses a call in a forked child, before it waits for a mutex or uses a connection.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        self.maker.check().map_err(Error::misuse)
    }

    pub(super) fn bases(&self) -> &[String] {
        self.members.bases()
    }

    /// The same server over connections of its own, which can be broken without any harm to others.
    pub(super) fn apart(&self) -> Self {
        Self {
            agent: self.agent.config().new_agent(),
            ended: Arc::default(),
            ..self.clone()
        }
    }

    /// Believes in these certificates of authorities, and no others.
    #[cfg(feature = "tls")]
    pub(super) fn trusting(self, pem: &[u8]) -> Result<Self, Error> {
        let mut roots = Vec::new();
        for item in parse_pem(pem) {
            match item {
                Ok(PemItem::Certificate(certificate)) => roots.push(certificate),
                Ok(_) => {}
                Err(error) => {
                    let why = format!("these certificates cannot be read: {error}");
                    return Err(Error::misuse(why));
                }
            }
        }
        if roots.is_empty() {
            return Err(Error::misuse("there is no certificate in this PEM text"));
        }
        let roots = RootCerts::new_with_certs(&roots);
        let tls = TlsConfig::builder().root_certs(roots).build();
        let agent = settings().tls_config(tls).build().new_agent();
        Ok(Self { agent, ..self })
    }

    /// Breaks all connections, also those that are in use, for this one and all its clones.
    pub(super) fn hang_up(&self) {
        self.ended.set();
        self.agent.clone().shutdown();
    }

    /// Asks for a lock, once. The lease counts from before the request was sent.
    pub(super) fn acquire(&self, ask: &Ask<'_>, timeout: Duration) -> Result<Lease, Error> {
        let ttl_ms = milliseconds("a lease", ask.ttl)?;
        checked_owner(ask.owner)?;
        let mut body = String::from("{\"owner_id\":");
        push_quoted(&mut body, ask.owner);
        body.push_str(&format!(",\"ttl_ms\":{ttl_ms}"));
        let wait_ms = ask.wait.min(WAIT_MAX).as_millis();
        if wait_ms > 0 {
            body.push_str(&format!(",\"wait_ms\":{wait_ms}"));
        }
        body.push('}');
        let sent = Moment::now();
        let answer = self.post(ask.lock, "acquire", ask.request_id, &body, timeout)?;
        match answer.status {
            200 => lease(ask, &answer, promised_until(sent, ask.ttl, self.drift)),
            409 => {
                Err(refused(ask, &answer).map_or_else(|| answer.unexpected(), Error::NotAcquired))
            }
            _ => Err(answer.unexpected()),
        }
    }

    /// Makes a lease longer, and this value with it.
    pub(super) fn renew(
        &self,
        lease: &mut Lease,
        extend_by: Duration,
        timeout: Duration,
    ) -> Result<Renewal, Error> {
        let extend_by_ms = milliseconds("an extension", extend_by)?;
        let body = format!("{{{},\"extend_by_ms\":{extend_by_ms}}}", fields(lease));
        let sent = Moment::now();
        let answer = self.post(&lease.lock_name, "renew", None, &body, timeout)?;
        let object = match answer.status {
            200 => answer.object()?,
            // A refusal is as much an answer as any other.
            409 => Object::read(&answer.body).unwrap_or_default(),
            _ => return Err(answer.unexpected()),
        };
        match object.bool("renewed") {
            Some(false) if object.text("reason") == Some("BUSY_RETRY") => Ok(Renewal::Busy),
            Some(false) => Ok(Renewal::NotOwnerOrExpired),
            _ if answer.status != 200 => Err(answer.unexpected()),
            Some(true) => {
                let expiry_ms = object.number("lease_expiry_ms");
                let expiry_ms = expiry_ms.ok_or_else(|| answer.bad("does not say until when"))?;
                lease.extend(promised_until(sent, extend_by, self.drift), expiry_ms);
                Ok(Renewal::Renewed)
            }
            None => Err(answer.bad("does not say whether it is renewed")),
        }
    }

    pub(super) fn release(&self, lease: &Lease, timeout: Duration) -> Result<Release, Error> {
        let body = format!("{{{}}}", fields(lease));
        let answer = self.post(&lease.lock_name, "release", None, &body, timeout)?;
        let object = match answer.status {
            200 => answer.object()?,
            _ => return Err(answer.unexpected()),
        };
        match object.bool("released") {
            Some(true) => Ok(Release::Released),
            Some(false) if object.text("reason") == Some("BUSY_RETRY") => Ok(Release::Busy),
            Some(false) => Ok(Release::NotOwner),
            None => Err(answer.bad("does not say whether it is released")),
        }
    }

    /// Asks whoever leads. What may have been done is never asked again here.
    fn post(
        &self,
        lock: &str,
        action: &str,
        request_id: Option<&str>,
        body: &str,
        timeout: Duration,
    ) -> Result<Answer, Error> {
        self.check_process()?;
        let path = format!("/v1/locks/{}/{action}", encoded(lock)?);
        let end = Moment::now().after(timeout.min(TIMEOUT_MAX));
        let mut rounds = 0;
        loop {
            let left = || Moment::now().until(end);
            let mut round = Round::default();
            let asked = self.ask_all(&mut round, &left, |base, left| {
                self.send(base, &path, request_id, body, left)
            });
            if let Some(result) = asked {
                return result;
            }
            rounds += 1;
            let pause =
                BACKOFF.saturating_mul(1 << u32::saturating_sub(rounds, ROUNDS_SHORT).min(10));
            let pause = pause.min(BACKOFF_MAX).mul_f64(0.5 + fastrand::f64() / 2.0);
            if !round.is_somebody_there || left() <= pause.saturating_add(ATTEMPT_MIN) {
                return Err(round.failed(path));
            }
            self.ended.pause(pause);
        }
    }

    /// Asks one server after the other, until one has decided; nothing if none has, and asking again may help.
    fn ask_all(
        &self,
        round: &mut Round,
        left: &dyn Fn() -> Duration,
        send: impl Fn(&str, Duration) -> Result<Answer, Error>,
    ) -> Option<Result<Answer, Error>> {
        let is_alone = self.members.is_alone();
        let mut queue: VecDeque<_> = self.members.candidates().into();
        let mut asked: Vec<String> = Vec::new();
        // Who has said 503, and leads if others name it: then that is its answer.
        let mut unavailable: Vec<(String, Answer)> = Vec::new();
        let mut named: Vec<String> = Vec::new();
        while let Some(base) = queue.pop_front() {
            if asked.contains(&base) || !asked.is_empty() && left() < ATTEMPT_MIN {
                continue;
            }
            asked.push(base.clone());
            let is_only = is_alone && self.members.bases()[0] == base;
            let answer = match send(&base, left()) {
                Ok(answer) => answer,
                Err(error) => {
                    self.members.forget(&base);
                    if error.leaves_doubt() || is_only && asked.len() == 1 {
                        return Some(Err(error));
                    }
                    round.tried.push(format!("{base} ({})", error.cause()));
                    continue;
                }
            };
            let has_token = self.authorization.is_some();
            let location = answer.location.as_deref();
            let next = location.and_then(|location| {
                self.members
                    .follow(&base, location, &answer.path, has_token)
            });
            match (answer.status, next) {
                (307, Some(next)) => {
                    round.is_somebody_there = true;
                    round.tried.push(format!("{base} (sends to {next})"));
                    if let Some(at) = unavailable.iter().position(|(by, _)| *by == next) {
                        self.members.set_leader(&next);
                        return Some(Ok(unavailable.swap_remove(at).1));
                    }
                    if named.len() < HOPS_MAX {
                        queue.push_front(next.clone());
                        named.push(next);
                    }
                }
                (307, None) if location.is_some() && !is_alone => {
                    let why = "sends where the token would be protected less";
                    round.tried.push(format!("{base} ({why})"));
                }
                (503, _) if let Some(why) = answer.why_it_does_not_lead(is_only) => {
                    round.is_somebody_there = true;
                    round.tried.push(format!("{base} ({why})"));
                }
                (503, _) if !queue.is_empty() && !named.contains(&base) => {
                    round.tried.push(format!("{base} (503)"));
                    unavailable.push((base.clone(), answer));
                }
                _ => {
                    if answer.status != 503 || named.contains(&base) {
                        self.members.set_leader(&base);
                    }
                    return Some(Ok(answer));
                }
            }
            self.members.forget(&base);
        }
        // If nobody else has said anything, that is all there is to tell.
        let answer = unavailable.into_iter().next().map(|(_, answer)| Ok(answer));
        answer.filter(|_| !round.is_somebody_there)
    }

    /// One request to one server.
    fn send(
        &self,
        base: &str,
        path: &str,
        request_id: Option<&str>,
        body: &str,
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let mut request = self
            .agent
            .post(format!("{base}{path}"))
            .content_type("application/json");
        for (name, value) in [
            ("Authorization", self.authorization.as_deref()),
            ("X-Request-ID", request_id),
        ] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let connect_timeout = (!self.members.is_alone()).then_some(CONNECT_TIME);
        let request = request
            .config()
            .timeout_global(Some(timeout))
            .timeout_connect(connect_timeout)
            .build();
        let path = path.to_owned();
        let answered = request.send(body).and_then(|mut response| {
            let mut body = Vec::new();
            let location = response.headers().get("Location");
            let location = location.and_then(|it| it.to_str().ok()).map(str::to_owned);
            let mut reader = response.body_mut().as_reader().take(ANSWER_BYTES_MAX);
            reader.read_to_end(&mut body)?;
            Ok((response.status().as_u16(), location, body))
        });
        match answered {
            Ok((status, location, body)) => Ok(Answer {
                path,
                status,
                location,
                body,
            }),
            Err(error) => Err(Error::NoAnswer {
                path,
                may_have_arrived: may_have_arrived(&error),
                source: as_io(error),
            }),
        }
    }
}

/// What came of asking everybody once.
#[derive(Default)]
struct Round {
    /// Whom we asked, and why that was nothing.
    tried: Vec<String>,
    /// Somebody is there and does not lead.
    is_somebody_there: bool,
}

impl Round {
    fn failed(self, path: String) -> Error {
        let tried = self.tried.join(", ");
        let why = format!("no member of the cluster leads: tried {tried}");
        Error::NoAnswer {
            path,
            may_have_arrived: false,
            source: io::Error::new(io::ErrorKind::NotConnected, why),
        }
    }
}

fn settings() -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .user_agent(concat!("latchd/", env!("CARGO_PKG_VERSION")))
        .accept("application/json")
        .input_buffer_size(BUFFER_BYTES)
        .output_buffer_size(BUFFER_BYTES)
}

impl Answer {
    /// What a member says that does not lead, or not for long, so that another one will soon; nothing if it is
    /// something else, such as a limit of the one that leads. Nobody takes over from the only one there is.
    fn why_it_does_not_lead(&self, is_only: bool) -> Option<&'static str> {
        let object = Object::read(&self.body)?;
        match object.text("reason")? {
            "NO_LEADER" => Some("knows of nobody who leads"),
            "DRAINING" if !is_only => Some("is shutting down"),
            _ => None,
        }
    }

    fn object(&self) -> Result<Object, Error> {
        Object::read(&self.body).ok_or_else(|| self.bad("is no JSON object"))
    }

    fn bad(&self, why: &'static str) -> Error {
        Error::BadAnswer {
            path: self.path.clone(),
            status: self.status,
            why,
        }
    }

    fn unexpected(self) -> Error {
        let shown = &self.body[..self.body.len().min(SHOWN_BYTES_MAX)];
        Error::UnexpectedStatus {
            method: "POST",
            path: self.path,
            status: self.status,
            body: String::from_utf8_lossy(shown).into_owned(),
        }
    }
}

fn lease(ask: &Ask<'_>, answer: &Answer, held_until: Moment) -> Result<Lease, Error> {
    let object = answer.object()?;
    if object.bool("acquired") != Some(true) {
        return Err(answer.bad("does not say that it is acquired"));
    }
    let is_asked = |name, asked| object.text(name).is_none_or(|told| told == asked);
    if !is_asked("lock_name", ask.lock) || !is_asked("owner_id", ask.owner) {
        return Err(answer.bad("is the answer to another request"));
    }
    let told = || {
        Some(Lease {
            lock_name: ask.lock.to_owned(),
            owner_id: ask.owner.to_owned(),
            lease_id: object.text("lease_id")?.to_owned(),
            fencing_token: object.number("fencing_token").filter(|it| *it > 0)?,
            lease_expiry_ms: object.number("lease_expiry_ms")?,
            held_until,
        })
    };
    told().ok_or_else(|| answer.bad("lacks something of a lease"))
}

/// What is said of a lock that is not granted; nothing if it is refused for another reason.
fn refused(ask: &Ask<'_>, answer: &Answer) -> Option<NotAcquired> {
    let object = Object::read(&answer.body).filter(|it| it.bool("acquired") == Some(false))?;
    let hint_ms = object.number("recommended_retry_ms");
    Some(NotAcquired {
        lock_name: ask.lock.to_owned(),
        reason: Reason::read(object.text("reason").unwrap_or_default()),
        recommended_retry: hint_ms.filter(|it| *it > 0).map(Duration::from_millis),
        current_owner_id: object.text("current_owner_id").map(str::to_owned),
        current_expiry_ms: object.number("current_expiry_ms"),
    })
}

/// What names a lease in a request.
fn fields(lease: &Lease) -> String {
    let mut text = String::from("\"owner_id\":");
    push_quoted(&mut text, &lease.owner_id);
    text.push_str(",\"lease_id\":");
    push_quoted(&mut text, &lease.lease_id);
    text.push_str(&format!(",\"fencing_token\":{}", lease.fencing_token));
    text
}

/// Whole milliseconds, rounded down, and no more than these is counted on here (`promised_until`).
fn milliseconds(what: &str, span: Duration) -> Result<u64, Error> {
    match span.as_millis() {
        ms @ 1..=LEASE_MS_MAX => Ok(ms as u64),
        _ => Err(Error::misuse(format!(
            "{what} of {span:?} cannot be: say from 1 ms up to 10 minutes"
        ))),
    }
}

fn checked_owner(owner: &str) -> Result<(), Error> {
    match owner.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        0 => Err(Error::misuse("an owner needs a name")),
        length => Err(Error::misuse(format!(
            "the name of the owner has {length} bytes: say at most {NAME_BYTES_MAX}"
        ))),
    }
}

/// The name of a lock as a part of a path.
fn encoded(lock: &str) -> Result<String, Error> {
    if lock.is_empty() || lock.len() > NAME_BYTES_MAX || lock.contains('/') {
        let shown: String = lock.chars().take(40).collect();
        return Err(Error::misuse(format!(
            "{shown:?} cannot be the name of a lock here: say from 1 to {NAME_BYTES_MAX} bytes without a slash"
        )));
    }
    // Dots alone mean a place elsewhere to whatever is on the way.
    let keeps_dots = !matches!(lock, "." | "..");
    let mut text = String::with_capacity(lock.len());
    for byte in lock.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => text.push(byte.into()),
            b'.' if keeps_dots => text.push('.'),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(text)
}

/// The address without slashes at its end, if it is one.
pub(super) fn checked_base(base: &str) -> Result<String, Error> {
    let why = |why: &str| Error::misuse(format!("{base:?} is no address of a server: {why}"));
    let trimmed = base.trim_end_matches('/');
    let rest = match trimmed.split_once("://") {
        Some(("http", rest)) => rest,
        Some(("https", rest)) if cfg!(feature = "tls") => rest,
        Some(("https", _)) => return Err(why("https needs the feature tls of this library")),
        _ => return Err(why("say it like http://127.0.0.1:6389")),
    };
    if rest.contains(['?', '#', '@']) {
        return Err(why("say no more than host, port and path"));
    }
    let uri: Result<ureq::http::Uri, _> = trimmed.parse();
    let uri = uri.map_err(|error| why(&error.to_string()))?;
    match uri.host() {
        None | Some("") => Err(why("it has no host")),
        Some(_) => Ok(trimmed.to_owned()),
    }
}

fn authorization(token: &str) -> Result<String, Error> {
    match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(format!("Bearer {token}")),
        false => Err(Error::misuse(
            "a token over HTTP is visible ASCII characters without blanks",
        )),
    }
}

/// Whether the server may have seen the request. In doubt it may: to ask again does no harm, and to
/// believe that nothing was granted does.
fn may_have_arrived(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Io(error) if is_distrust(error) => false,
        ureq::Error::Io(error) => !matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotConnected
        ),
        ureq::Error::HostNotFound
        | ureq::Error::BadUri(_)
        | ureq::Error::Http(_)
        | ureq::Error::TlsRequired
        | ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => false,
        _ => true,
    }
}

/// Whether the server could not show who it is: nothing is sent to such a one.
#[cfg(feature = "tls")]
fn is_distrust(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|it| it.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

#[cfg(not(feature = "tls"))]
const fn is_distrust(_: &io::Error) -> bool {
    false
}

fn as_io(error: ureq::Error) -> io::Error {
    match error {
        ureq::Error::Timeout(_) => io::Error::new(io::ErrorKind::TimedOut, "it took too long"),
        ureq::Error::HostNotFound => io::Error::new(io::ErrorKind::NotFound, "no such host"),
        error => error.into_io(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_encoded_once_and_wholly() {
        for (name, path) in [
            ("job.1-a_b~", "job.1-a_b~"),
            ("a b%c?d#e", "a%20b%25c%3Fd%23e"),
            ("é\0\n", "%C3%A9%00%0A"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("...", "..."),
        ] {
            assert_eq!(encoded(name).unwrap(), path);
        }
        for name in ["", "a/b", &"x".repeat(1_025)] {
            assert!(matches!(encoded(name), Err(Error::Misuse { .. })));
        }
    }

    #[test]
    fn an_address_loses_its_slashes_and_nothing_else() {
        for (base, is) in [
            ("http://localhost:6389", "http://localhost:6389"),
            ("http://localhost:6389//", "http://localhost:6389"),
            ("http://[::1]:6389/locks/", "http://[::1]:6389/locks"),
        ] {
            assert_eq!(checked_base(base).unwrap(), is);
        }
        for base in [
            "",
            "localhost:6389",
            "http://",
            "unix:/run/latchd.sock",
            "ftp://x",
            "http://u:p@x",
            "http://x/?a=b",
            "http://x#y",
            "http://a b",
        ] {
            assert!(checked_base(base).is_err(), "{base}");
        }
        assert_eq!(checked_base("https://x").is_ok(), cfg!(feature = "tls"));
    }

    #[test]
    fn a_span_is_told_in_whole_milliseconds() {
        assert_eq!(milliseconds("", Duration::from_micros(1_999)).unwrap(), 1);
        assert_eq!(milliseconds("", Duration::from_secs(600)).unwrap(), 600_000);
        for span in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
            assert!(milliseconds("", span).is_err());
        }
    }

    #[test]
    fn a_token_that_would_break_a_header_is_refused() {
        assert!(authorization("s3cret").is_ok());
        for token in ["", "a b", "a\r\nHost: x", "é"] {
            assert!(authorization(token).is_err(), "{token:?}");
        }
    }
}
