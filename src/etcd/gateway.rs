//! One connection to one of several members of an etcd, over its JSON gateway.
//!
//! Blocking, with a deadline for every call; so it belongs on a thread of its own, never on the
//! reactor's. After any failure the connection is dropped, and the next call goes to the next member.
//! Connecting has a limit of its own for each member, so that a far etcd is reached by callers that wait
//! briefly for an answer, and a silent member delays a call and does not use it up.
//! A member whose version is too old is treated as one that cannot be reached.
//!
//! Never repeats a call, because whether that is safe is for the caller to know; with one exception. A call
//! that etcd has refused because of its token was surely not done, so it is made once more with a
//! new one. A call whose answer was lost is never made again here, whatever the token.

use std::io;
use std::time::{Duration, Instant};

use super::endpoints::Endpoints;
use super::http::{Connection, Request, Response};
use super::login::Token;
use super::near::Near;
use super::parse::Value;
use super::stream::now;
use super::version::{VERSION_MIN, Version};
use super::{Answer, Ask, Etcd, Trouble, json};

/// How often etcd's figures are read at most.
const FIGURES_EVERY: Duration = Duration::from_secs(5);

/// A way to an etcd.
pub struct Gateway {
    endpoints: Endpoints,
    /// Which of them is used, or tried next.
    pub(super) current: usize,
    pub(super) open: Option<Connection>,
    /// What is known of etcd's leader, if calls go to it.
    pub(super) near: Option<Near>,
    /// How large the database is, as the figures said then, if etcd does not let us ask for it.
    size: Option<(Instant, Answer)>,
}

impl Gateway {
    /// Nothing is opened before the first call. `first` chooses with which member it begins, so that
    /// several of these can begin with different ones.
    #[must_use]
    pub fn new(endpoints: &Endpoints, first: usize) -> Self {
        Self {
            endpoints: endpoints.clone(),
            current: first % endpoints.count().max(1),
            open: None,
            near: None,
            size: None,
        }
    }

    /// The member that is used now, or tried next.
    #[must_use]
    pub fn member(&self) -> &str {
        self.endpoints.member(self.current)
    }

    /// A connection of its own to a member, for a caller that waits so long for an answer. Each member is
    /// tried once.
    pub(super) fn connect(&mut self, within: Duration) -> Result<Connection, Trouble> {
        self.endpoints.refusal()?;
        let members = self.endpoints.count();
        let each = match members {
            1 => self.patience(within), // there is no other to go to
            _ => self.endpoints.connect_within(),
        };
        let mut last = Trouble::Unreachable("there is no member".to_owned());
        for _ in 0..members {
            match self.connect_to(self.current, now() + each) {
                Ok(connection) => return Ok(connection),
                Err(trouble) => last = trouble,
            }
            self.rotate();
        }
        Err(last)
    }

    /// How long to wait for what comes before a call, where the call itself may take so long.
    fn patience(&self, within: Duration) -> Duration {
        within.max(self.endpoints.connect_within())
    }

    /// The token to show with a call that may take so long, if there is a user.
    pub(super) fn token(
        &self,
        connection: &mut Connection,
        within: Duration,
    ) -> Result<Option<Token>, Trouble> {
        let deadline = now() + self.patience(within);
        self.endpoints.token(connection, deadline)
    }

    /// A connection to this member, if it is one that we use.
    pub(super) fn connect_to(
        &self,
        index: usize,
        deadline: Instant,
    ) -> Result<Connection, Trouble> {
        let connected = self.find(index, deadline);
        if connected.is_err() {
            self.endpoints.doubt_addresses(index);
        }
        connected
    }

    fn find(&self, index: usize, deadline: Instant) -> Result<Connection, Trouble> {
        let member = self.endpoints.member(index);
        let unreachable = |why: String| Trouble::Unreachable(format!("{member}: {why}"));
        let io = |error: io::Error| unreachable(error.to_string());
        let addresses = self.endpoints.addresses(index, deadline).map_err(io)?;
        let mut last = unreachable("the name has no address".to_owned());
        for address in addresses {
            match self.endpoints.open(member, address, deadline) {
                Ok(mut connection) => {
                    let asked = now();
                    let version = ask_version(&mut connection, deadline).map_err(io)?;
                    connection.round_trip = now().saturating_duration_since(asked);
                    match version.as_deref().map(|text| (text, Version::parse(text))) {
                        Some((_, Some(version))) if version.is_good() => return Ok(connection),
                        Some((text, _)) => {
                            return Err(unreachable(format!(
                                "etcd {text} is not used; latchd wants {VERSION_MIN} or newer"
                            )));
                        }
                        None => return Err(unreachable("this is not an etcd".to_owned())),
                    }
                }
                Err(error) => last = io(error),
            }
        }
        Err(last)
    }

    pub(super) fn rotate(&mut self) {
        self.open = None;
        if let Some(near) = &mut self.near {
            near.forget();
        }
        self.current = (self.current + 1) % self.endpoints.count().max(1);
    }

    pub(super) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// One call over a connection, with the token that we have. Whatever fails here before it is sent was
    /// not sent.
    pub(super) fn call_once(
        &self,
        connection: &mut Connection,
        (path, body): (&str, &str),
        within: Duration,
    ) -> Result<(Option<Token>, Response), Trouble> {
        let token = self.token(connection, within)?;
        let deadline = now() + within;
        let request = Request::post(path, body).with(token.as_ref());
        let sent = connection.send(&request, deadline);
        let received = sent.and_then(|()| connection.receive(deadline));
        let response =
            received.map_err(|error| Trouble::Unanswered(format!("{}: {error}", self.member())))?;
        connection.forget_read();
        Ok((token, response))
    }
}

impl Etcd for Gateway {
    fn call(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble> {
        if *ask == Ask::Status && self.size.is_some() {
            return self.size_by_figures(within);
        }
        match self.call_within(ask, within) {
            // Only root may ask for it; but the figures that everybody may read have it, too.
            Err(Trouble::Forbidden(_)) if *ask == Ask::Status => self.size_by_figures(within),
            answer => answer,
        }
    }
}

impl Gateway {
    fn call_within(&mut self, ask: &Ask, within: Duration) -> Result<Answer, Trouble> {
        let (path, body) = json::request(ask);
        self.go_near();
        let mut may_ask_again = true;
        loop {
            let mut connection = match self.open.take() {
                Some(open) => open,
                None => self.connect(within)?,
            };
            let (token, response) = match self.call_once(&mut connection, (path, &body), within) {
                Ok(done) => done,
                Err(trouble) => {
                    self.rotate();
                    return Err(trouble);
                }
            };
            let said = json::answer(ask, response.status, &response.body);
            let (term, answer) = match said {
                Ok((term, answer)) => (term, Ok(answer)),
                Err(trouble) => (0, Err(trouble)),
            };
            let is_sound = match &answer {
                Ok(_) | Err(Trouble::NoSpace(_) | Trouble::Compacted | Trouble::NoLease) => true,
                Err(trouble) => trouble.is_refusal(),
            };
            if !is_sound {
                self.rotate();
            } else if response.is_reusable_on(&connection) {
                self.open = Some(connection);
            }
            if let (Some(near), true) = (&mut self.near, term != 0) {
                near.note(term);
            }
            let is_old = match &answer {
                Err(trouble) => self.endpoints.note(trouble, token.as_ref()),
                Ok(_) => false,
            };
            if !is_old || !may_ask_again {
                return answer;
            }
            may_ask_again = false;
        }
    }

    /// How large the database is, by what etcd tells those who watch it. They are long, so they are read
    /// now and then only.
    fn size_by_figures(&mut self, within: Duration) -> Result<Answer, Trouble> {
        let known = match &self.size {
            Some((at, size)) if now().saturating_duration_since(*at) < FIGURES_EVERY => Some(size),
            _ => None,
        };
        let known = known.cloned();
        if let Some(size) = &known
            && !self.endpoints.lacks_token()
        {
            return Ok(size.clone());
        }
        let mut connection = match self.open.take() {
            Some(open) => open,
            None => self.connect(within)?,
        };
        // The figures need none. But those who renew a lease have less time to draw one than we have.
        if let Err(trouble) = self.token(&mut connection, within) {
            self.rotate();
            return Err(trouble);
        }
        if let Some(size) = known {
            self.open = Some(connection);
            return Ok(size);
        }
        let deadline = now() + within;
        let sent = connection.send(&Request::get("/metrics"), deadline);
        let response = match sent.and_then(|()| connection.receive(deadline)) {
            Ok(response) => response,
            Err(error) => {
                let why = format!("{}: {error}", self.member());
                self.rotate();
                return Err(Trouble::Unanswered(why));
            }
        };
        connection.forget_read();
        if response.is_reusable_on(&connection) {
            self.open = Some(connection);
        }
        let size = size_in_figures(&response.body).ok_or_else(|| {
            let why = "only root may ask how large it is, and its figures do not say it";
            Trouble::Forbidden(why.to_owned())
        })?;
        self.size = Some((now(), size.clone()));
        Ok(size)
    }
}

/// What the figures of a member say of its size.
fn size_in_figures(body: &[u8]) -> Option<Answer> {
    Some(Answer::Status {
        bytes: figure(body, "etcd_mvcc_db_total_size_in_bytes")?,
        bytes_in_use: figure(body, "etcd_mvcc_db_total_size_in_use_in_bytes")?,
    })
}

/// One of the figures of a member.
pub(super) fn figure(body: &[u8], name: &str) -> Option<u64> {
    let text = str::from_utf8(body).ok()?;
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    let value: f64 = value.trim().parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(value as u64)
}

/// What a member says that it is; `None` if it does not sound like an etcd.
fn ask_version(connection: &mut Connection, deadline: Instant) -> io::Result<Option<String>> {
    connection.send(&Request::get("/version"), deadline)?;
    let response = connection.receive(deadline)?;
    connection.forget_read();
    let said = Value::parse(&response.body).ok();
    let version = said.as_ref().and_then(|it| it.at("etcdserver").text());
    Ok(version.map(str::to_owned))
}

#[cfg(test)]
#[path = "gateway_tests.rs"]
mod tests;
