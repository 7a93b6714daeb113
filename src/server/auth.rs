//! Who is let in, and with what: a connection shows its token once, a request over HTTP each time.
//!
//! `access` compares and says what a token gives. Here it is remembered for as long as a connection needs it,
//! also when the tokens are others by then: whoever was let in keeps what it was let in with. Never says, by
//! its timing, how much of a guess was right, nor whether it was the command or the token that was wrong.

use std::rc::Rc;

use super::conn::{Conn, Phase, Transport};
use super::identity::Identity;
use super::{Host, Server};
use crate::access::{Access, Pass, UID_NAME};
use crate::base::{ConnId, Nanos};
use crate::engine::types::{Input, User};
use crate::store::Store;
use crate::wire::Answer;
use crate::wire::command::{Asked, Command};
use crate::wire::http::Asked as HttpAsked;
use crate::wire::need::{Need, Subject};

/// Most input that is kept for a connection without a token: enough for a usual HTTP head.
const STRANGER_BYTES: usize = 8 * 1024;

/// Room for the rest of the line or of the head around the longest token.
const AUTH_BYTES: usize = 4 * 1024;

/// The number of a pass that does not give everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PassNumber(u32);

/// What everybody is let in with.
#[derive(Default)]
pub(super) struct Passes {
    access: Access,
    /// What some were let in with and may not do everything; by number, with places that are free.
    limited: Vec<Option<Pass>>,
    /// The names of those who are let in, each once.
    users: Vec<User>,
    /// See [`Passes::stranger_bytes_max`].
    stranger_bytes_max: usize,
}

/// What somebody is let in with.
struct LetIn {
    phase: Phase,
    user: Option<User>,
}

impl Passes {
    pub(super) fn new(access: Access) -> Self {
        let mut passes = Self::default();
        passes.set(access, |_| false);
        passes
    }

    /// From now on these are let in. What `is_in_use` is kept for those who have it.
    fn set(&mut self, access: Access, is_in_use: impl Fn(PassNumber) -> bool) {
        for (place, number) in self.limited.iter_mut().zip(0..) {
            if !is_in_use(PassNumber(number)) {
                *place = None;
            }
        }
        self.users.retain(|user| Rc::strong_count(user) > 1);
        self.stranger_bytes_max = (access.token_bytes_max() + AUTH_BYTES).max(STRANGER_BYTES);
        self.access = access;
    }

    /// Most bytes of an unfinished request that are kept for a connection without a token.
    pub(super) fn stranger_bytes_max(&self) -> usize {
        self.stranger_bytes_max
    }

    pub(super) fn asks_for_token(&self) -> bool {
        self.access.asks_for_token()
    }

    /// Whoever shows this, if anything, is let in with that. Every frame costs as many comparisons as there
    /// are tokens, also one that is malformed or is not `auth` at all.
    fn let_in(&mut self, shown: Option<&[u8]>) -> Option<LetIn> {
        let pass = self.access.find(shown)?;
        let phase = match pass.is_admin() {
            true => Phase::Open,
            false => Phase::Limited(number_of(&mut self.limited, pass)),
        };
        let user = pass.name().map(|name| user_of(&mut self.users, name));
        Some(LetIn { phase, user })
    }

    fn may(&self, number: PassNumber, need: Need, subject: Subject<'_>) -> bool {
        let pass = self.limited.get(number.0 as usize);
        let pass = pass.and_then(Option::as_ref);
        pass.is_some_and(|pass| pass.may(need, subject))
    }
}

/// The number of this pass; of another one if that gives the same.
fn number_of(limited: &mut Vec<Option<Pass>>, pass: &Pass) -> PassNumber {
    let known = limited.iter().position(|it| it.as_ref() == Some(pass));
    let place = known.unwrap_or_else(|| {
        let free = limited.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            limited.push(None);
            limited.len() - 1
        });
        limited[place] = Some(pass.clone());
        place
    });
    PassNumber(place as u32)
}

fn user_of(users: &mut Vec<User>, name: &str) -> User {
    if let Some(user) = users.iter().find(|user| user.as_str() == name) {
        return Rc::clone(user);
    }
    let user = User::new(name.to_owned());
    users.push(Rc::clone(&user));
    user
}

/// The user of a peer that need not show a token. The system is asked only if there is such a user.
fn admin_uid(access: &Access, transport: &impl Transport) -> Option<u32> {
    match access.has_admin_uid().then(|| transport.host()) {
        Some(Host::User(uid)) if access.is_admin(uid) => Some(uid),
        _ => None,
    }
}

/// No token has such a name.
fn name_of_uid(uid: u32) -> String {
    format!("{UID_NAME}{uid}")
}

/// Why a request over HTTP is not served.
pub(super) enum NotLetIn {
    /// It has not shown a token, or a wrong one.
    WrongToken,
    /// The one that it has shown does not give that.
    Forbidden,
}

impl<T: Transport, S: Store> Server<T, S> {
    /// From now on these tokens are asked for. Whoever is connected stays, with what it was let in with, and
    /// keeps what it holds; a request over HTTP shows its token each time, so it has to show one of these.
    pub fn set_access(&mut self, access: Access) {
        let Self { passes, conns, .. } = self;
        let mut in_use = vec![false; passes.limited.len()];
        for (_, conn) in conns.iter() {
            if let Phase::Limited(PassNumber(number)) = conn.phase {
                in_use[number as usize] = true;
            }
        }
        passes.set(access, |PassNumber(number)| in_use[number as usize]);
    }

    /// The tokens that are asked for now.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.passes.access
    }

    /// The phase and the user of a connection that has just come.
    pub(super) fn meet(&mut self, transport: &T) -> (Phase, Option<User>) {
        let Passes { access, users, .. } = &mut self.passes;
        if !access.asks_for_token() {
            return (Phase::Open, None);
        }
        match admin_uid(access, transport) {
            Some(uid) => (Phase::Open, Some(user_of(users, &name_of_uid(uid)))),
            None => (Phase::Unauthenticated, None),
        }
    }

    /// Whether a request may be served on a connection that has not shown a token, or one that does not give
    /// everything; if not, it is answered.
    #[cold]
    #[inline(never)]
    pub(super) fn lets_pass(&mut self, now: Nanos, id: ConnId, asked: &Asked<'_>) -> bool {
        match self.conns[id.slot as usize].phase {
            Phase::Open | Phase::Leaving { .. } => true,
            // The tokens may have been others when it came.
            Phase::Unauthenticated if !self.passes.asks_for_token() => {
                self.let_in(id, Phase::Open);
                true
            }
            Phase::Unauthenticated => {
                self.authenticate(now, id, asked);
                false
            }
            Phase::Limited(number) => {
                let (need, subject) = (asked.need(), asked.subject());
                let may = self.passes.may(number, need, subject);
                if !may {
                    let verb = asked.verb.map_or("", |verb| verb.row().letters);
                    self.audit_forbidden(now, id, verb, subject);
                    self.say(id, Answer::ErrorForbidden);
                    self.charge_request(id, 0);
                }
                may
            }
        }
    }

    /// The first frame of a connection, while a token is required. A right one opens at once,
    /// whoever guesses meanwhile.
    fn authenticate(&mut self, now: Nanos, id: ConnId, asked: &Asked<'_>) {
        let shown = match asked.command {
            Ok(Command::Auth { secret }) => Some(secret),
            _ => None,
        };
        match self.passes.let_in(shown) {
            Some(LetIn { phase, user }) => {
                self.let_in(id, phase);
                self.note_user(now, id, user);
                self.say(id, Answer::Ok);
            }
            None => self.turn_away(now, id),
        }
    }

    /// The connection has authenticated, or need not.
    fn let_in(&mut self, id: ConnId, phase: Phase) {
        self.conns[id.slot as usize].phase = phase;
        self.note_known(id);
    }

    /// An `auth` on a connection that was let in: an error, unless nobody has asked for one because of who it
    /// is. Then it has from now on what its token gives.
    pub(super) fn authenticate_again(&mut self, now: Nanos, id: ConnId, asked: &Asked<'_>) {
        let transport = &self.conns[id.slot as usize].transport;
        let by_uid = admin_uid(&self.passes.access, transport).map(name_of_uid);
        let known = self.engine.user_of(id).map(|user| user.as_str());
        if by_uid.is_none() || by_uid.as_deref() != known {
            return self.say(id, Answer::Error);
        }
        self.authenticate(now, id, asked);
    }

    /// Whether a request over HTTP is served, by its token.
    pub(super) fn lets_in(
        &mut self,
        now: Nanos,
        id: ConnId,
        asked: &HttpAsked<'_>,
    ) -> Result<(), NotLetIn> {
        let Self {
            passes: Passes { access, users, .. },
            conns,
            http,
            ..
        } = self;
        let Conn {
            transport, codec, ..
        } = &mut conns[id.slot as usize];
        let request_id = asked.repeatable_id();
        if !access.asks_for_token() {
            let peer = match codec.as_http().filter(|_| request_id.is_some()) {
                Some(codec) => *codec.peer.get_or_insert_with(|| transport.identity()),
                None => Identity::default(),
            };
            http.set_request_key(request_id, &peer);
            self.let_in_http(id);
            return Ok(());
        }
        let (may, user) = match access.find(asked.bearer) {
            Some(pass) => {
                http.set_request_key(request_id, pass.asker());
                let user = pass.name().map(|name| user_of(users, name));
                let may = pass.is_admin() || pass.may(asked.need(), asked.subject());
                (may, user)
            }
            None => {
                let uid = admin_uid(access, transport).filter(|_| asked.bearer.is_none());
                let uid = uid.ok_or(NotLetIn::WrongToken)?;
                http.set_request_key(request_id, &transport.identity());
                (true, Some(user_of(users, &name_of_uid(uid))))
            }
        };
        self.let_in_http(id);
        self.note_user(now, id, user);
        match may {
            true => Ok(()),
            false => Err(NotLetIn::Forbidden),
        }
    }

    /// Whether the head of a request shows a token. If so, its body may follow.
    pub(super) fn lets_in_by_head(&mut self, id: ConnId, bearer: Option<&[u8]>) -> bool {
        let access = &self.passes.access;
        let is_let_in = !access.asks_for_token() || access.find(bearer).is_some();
        if is_let_in {
            self.let_in_http(id);
        }
        is_let_in
    }

    /// An HTTP connection is no stranger after its first right token; a wrong one ends it.
    fn let_in_http(&mut self, id: ConnId) {
        if self.conns[id.slot as usize].phase == Phase::Unauthenticated {
            self.let_in(id, Phase::Open);
        }
    }

    /// The connection was let in as somebody, or over HTTP somebody else asks on it now.
    fn note_user(&mut self, now: Nanos, id: ConnId, user: Option<User>) {
        if user.is_none() && self.passes.users.is_empty() {
            return; // no token has a name
        }
        if self.engine.user_of(id) != user.as_ref() {
            if let Some(user) = &user {
                log::debug!("connection {} was let in as {user}", id.serial);
            }
            let input = Input::LetIn(id, user);
            self.engine.apply(now, input, &mut self.effects);
        }
    }
}
