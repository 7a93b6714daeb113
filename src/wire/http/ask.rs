//! What a request asks for: a route, a name, a query and fields become an [`Ask`].
//!
//! One match over all routes, one function for each shape of request. Checks what the bytes can tell,
//! in LockServer's order where the route is its own: the body, the owner, then times. Whether a key
//! exists or a pattern is one, the engine says.

use memchr::memchr2;

use super::fields::{Field, Fields, Text};
use super::problem::{self, Problem};
use super::replies::LIST_FORM;
use super::routes::Route;
use super::target::{self, CURSOR_BYTES_MAX, LOCK_NAME_BYTES_MAX, Query};
use crate::base::{Fence, Millis, Token};
use crate::engine::types::{
    Attach, End, Mode, OfClient, RangeCursor, RangeRequest, RangesOf, Request, Span,
};
use crate::wire::verbs::{LINE_BYTES_MAX, VALUE_BYTES_MAX};
use crate::wire::{args, command};

/// Longest lease, and longest renewal.
pub const LEASE_MS_MAX: u64 = 600_000;

/// Longest wait.
pub const WAIT_MS_MAX: u64 = 60_000;

/// Longest name of an owner.
pub const OWNER_BYTES_MAX: usize = 1024;

/// Most entries of a page, and how many there are if nobody says.
pub const PAGE_ENTRIES_MAX: usize = 1_000;
const PAGE_ENTRIES: usize = 100;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// Something for the lock table.
    Engine {
        /// What.
        request: Request<'a>,
        /// In whose name; nobody's if nothing is to be held.
        by: Option<By<'a>>,
    },
    /// A subscription. If the table grants it, the connection becomes a stream of events.
    Subscribe(Request<'a>),
    /// Who holds this lock or leads this election?
    Lease {
        /// The name asked about.
        key: &'a [u8],
    },
    /// Who holds this semaphore or read-write lock?
    Holders {
        /// The name asked about.
        key: &'a [u8],
    },
    /// Who holds this key, and who waits for it?
    Who {
        /// The name asked about.
        key: &'a [u8],
    },
    /// Take a key away from whoever holds it with this fence.
    Break {
        /// The locked name.
        key: &'a [u8],
        /// The fence of the grant.
        fence: Fence,
    },
    /// A page of all keys that are held or waited for.
    Locks {
        /// Which part.
        page: Page<'a>,
        /// Only names with this in them; all if it is empty.
        contains: &'a [u8],
        /// Those that are held.
        held: bool,
        /// Those that are waited for.
        waiting: bool,
    },
    /// A page of all connections.
    Connections(Page<'a>),
    /// A client is to be known, or for longer.
    Register(Attach<'a>),
    /// It is to be forgotten.
    Detach(OfClient<'a>),
    /// It has back what it wants of what it held before a restart.
    EndReclaim(OfClient<'a>),
    /// A page of all clients.
    Clients(Page<'a>),
    /// Something about byte ranges.
    Range {
        /// The client that asks, and what it shows.
        of: OfClient<'a>,
        /// What.
        request: RangeRequest<'a>,
    },
    /// Who holds bytes of this resource, and who waits for some?
    Ranges {
        /// Its name.
        resource: &'a [u8],
    },
    /// A page of all resources with range locks.
    Resources {
        /// Which part.
        page: Page<'a>,
        /// Only names with this in them; all if it is empty.
        contains: &'a [u8],
    },
    /// A page of the range locks of a client or an owner.
    RangesOf {
        /// Whose.
        of: RangesOf<'a>,
        /// Where the page begins.
        after: RangeCursor,
        /// How many at most.
        limit: usize,
        /// Only of resources with this in their names; of all if it is empty.
        contains: &'a [u8],
    },
    /// End all range locks of a client.
    BreakRangesOf {
        /// Its id, or `#` and the number of a connection.
        client: &'a [u8],
    },
    /// End all range locks that overlap some bytes.
    BreakRanges {
        /// The resource.
        resource: &'a [u8],
        /// Which bytes, which exist; all if there is none.
        span: Option<Span>,
    },
    /// How far is the time in which clients have back what they held before a restart?
    Grace {
        /// Whether it is to end now.
        ends: bool,
    },
    /// Who waits for whom?
    Waits,
    /// How much there is of everything.
    Stats,
    /// The same, every second.
    StatsStream,
    /// Does the daemon run?
    Live,
    /// Does it take new work?
    Ready,
    /// Figures for Prometheus.
    Metrics,
    /// The OpenAPI document.
    OpenApi,
    /// The dashboard.
    Dashboard,
    /// A file that the dashboard is made of.
    Asset {
        /// Its name.
        file: &'a [u8],
    },
}

impl Ask<'_> {
    /// Whether the answer takes a walk over keys, a queue, a list or connections, and may be as long
    /// as those are.
    #[must_use]
    pub const fn takes_a_walk(&self) -> bool {
        match self {
            Self::Engine { request, .. } => matches!(request, Request::Range { .. }),
            Self::Holders { .. }
            | Self::Who { .. }
            | Self::Locks { .. }
            | Self::Connections(_)
            | Self::Clients(_)
            | Self::Ranges { .. }
            | Self::Resources { .. }
            | Self::RangesOf { .. }
            | Self::Waits => true,
            _ => false,
        }
    }

    /// Whether it is to be told to all who listen.
    #[must_use]
    pub const fn is_signal(&self) -> bool {
        matches!(
            self,
            Self::Engine {
                request: Request::Signal { .. },
                ..
            }
        )
    }

    /// Whether the answer may be much longer than the request.
    #[must_use]
    pub const fn has_long_answer(&self) -> bool {
        let is_value =
            matches!(self, Self::Engine { request, .. } if command::is_told_a_value(request));
        let is_document = matches!(
            self,
            Self::OpenApi | Self::Dashboard | Self::Asset { .. } | Self::Metrics
        );
        is_value || is_document || self.takes_a_walk()
    }
}

/// In whose name something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By<'a> {
    /// `owner_id`, never empty.
    pub owner: &'a str,
    /// What the client calls this request, if it said: an acquire that comes again with the same
    /// owner and id is answered again.
    pub request_id: Option<&'a str>,
}

/// A part of something long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// How many entries at most.
    pub limit: usize,
    /// Where the page before this one has ended: what it called `next`.
    pub after: Option<&'a [u8]>,
}

/// Everything that a request has said.
pub(super) struct Said<'a> {
    pub(super) route: Route,
    /// What stands at the first place in the path.
    pub(super) name: &'a [u8],
    /// What stands at the second one.
    pub(super) second: &'a [u8],
    pub(super) query: Query<'a>,
    pub(super) fields: Fields<'a>,
    pub(super) request_id: &'a str,
}

/// The one match over routes.
pub(super) fn ask<'a>(said: &Said<'a>) -> Result<Ask<'a>, Problem<'a>> {
    let key = said.name;
    Ok(match said.route {
        Route::AcquireLock => said.acquire(Mode::Slot { limit: 1 })?,
        Route::AcquireSlot => said.acquire_slot()?,
        Route::AcquireReadWrite => said.acquire_read_write()?,
        Route::Elect => said.acquire(Mode::Lead)?,
        Route::RenewLock | Route::RenewSlot | Route::RenewReadWrite | Route::RenewLead => {
            said.renew()?
        }
        Route::ReleaseLock | Route::ReleaseSlot | Route::ReleaseReadWrite => {
            let (token, by) = said.hold()?;
            by.of(Request::Release { key, token })
        }
        Route::Resign => {
            let (token, by) = said.hold()?;
            by.of(Request::Resign { key, token })
        }
        Route::GetLock | Route::GetElection => Ask::Lease { key },
        Route::GetSemaphore | Route::GetReadWrite => Ask::Holders { key },
        Route::Who => Ask::Who { key },
        Route::BreakHold => {
            let fence = target::fence(said.second);
            let fence = fence.ok_or_else(|| problem::BAD_FENCE.about(said.second))?;
            Ask::Break { key, fence }
        }
        Route::ListLocks => said.locks()?,
        Route::ListConnections => Ask::Connections(said.page()?),
        Route::ObserveElection => Ask::Subscribe(Request::Observe { key }),
        Route::ListenToSignals => {
            let (pattern, group) = (said.pattern()?, &b""[..]);
            Ask::Subscribe(Request::Listen { pattern, group })
        }
        Route::ListenInGroup => {
            let word = |field, problem| word(said.text(field).as_bytes(), problem);
            let pattern = word(Field::Pattern, problem::PATTERN_FIELD)?;
            let group = word(Field::Group, problem::GROUP)?;
            Ask::Subscribe(Request::Listen { pattern, group })
        }
        Route::Watch => {
            let pattern = said.pattern()?;
            Ask::Subscribe(Request::Watch { pattern })
        }
        Route::RegisterClient => said.register()?,
        Route::DetachClient => Ask::Detach(said.client_in_path()?),
        Route::EndReclaim => Ask::EndReclaim(said.client_in_path()?),
        Route::ListClients => Ask::Clients(said.page()?),
        Route::LockRange => said.lock_range()?,
        Route::UnlockRange => said.unlock_range()?,
        Route::TestRange => said.test_range()?,
        Route::CancelRange => said.cancel_range()?,
        Route::ReclaimRange => said.reclaim_range()?,
        Route::GetRanges => Ask::Ranges { resource: key },
        Route::ListRanges => said.resources()?,
        Route::BreakRanges => said.break_ranges()?,
        Route::BreakRangesOf => said.break_ranges_of()?,
        Route::GetGrace => Ask::Grace { ends: false },
        Route::EndGrace => Ask::Grace { ends: true },
        Route::ListWaits => Ask::Waits,
        Route::GetCounter => table(Request::Count { key }),
        Route::SetCounter => {
            let value = said.fields.whole(Field::Number);
            let value = value.ok_or(problem::NUMBER_REQUIRED)?;
            table(Request::SetCount { key, value })
        }
        Route::AddToCounter => {
            let delta = said.fields.whole(Field::Delta);
            let delta = delta.ok_or(problem::DELTA_REQUIRED)?;
            let down = delta < 0;
            table(Request::Add { key, delta, down })
        }
        Route::GetValue => table(Request::Fetch { key }),
        Route::PutValue => said.put()?,
        Route::DeleteValue => table(Request::Delete { key }),
        Route::PushToList => {
            let value = said.fields.text(Field::Value);
            let value =
                checked_value(value, problem::VALUE_REQUIRED, b"\r\n", problem::VALUE_LINE)?;
            let end = said.end(End::Right)?;
            table(Request::Push { key, value, end })
        }
        Route::PopFromList => {
            let (wait, end) = (said.wait()?, said.end(End::Left)?);
            table(match wait {
                Millis::ZERO => Request::Pop { key, end },
                wait => Request::AwaitPop { key, end, wait },
            })
        }
        Route::GetList => said.range()?,
        Route::WaitAtBarrier => {
            let count = said.small(Field::Count, problem::COUNT_RANGE)?;
            let wait = said.wait()?;
            table(Request::Meet { key, count, wait })
        }
        Route::SendSignal => said.signal()?,
        Route::GetStats => Ask::Stats,
        Route::StreamStats => Ask::StatsStream,
        Route::Livez | Route::Healthz | Route::Health => Ask::Live,
        Route::Readyz | Route::Ready => Ask::Ready,
        Route::Metrics => Ask::Metrics,
        Route::OpenApi => Ask::OpenApi,
        Route::Dashboard => Ask::Dashboard,
        Route::Asset => Ask::Asset { file: key },
    })
}

/// What the line protocol could say, too.
fn word<'a>(text: &'a [u8], problem: Problem<'static>) -> Result<&'a [u8], Problem<'a>> {
    let fits = (1..=LINE_BYTES_MAX).contains(&text.len());
    let is_foreign = |byte: &u8| byte.is_ascii_control() || *byte == b' ';
    if !fits || text.iter().any(is_foreign) {
        return Err(problem.about(text));
    }
    Ok(text)
}

/// A request that holds nothing.
fn table(request: Request<'_>) -> Ask<'_> {
    Ask::Engine { request, by: None }
}

impl<'a> By<'a> {
    fn of(self, request: Request<'a>) -> Ask<'a> {
        Ask::Engine {
            request,
            by: Some(self),
        }
    }
}

impl<'a> Said<'a> {
    /// A string; empty if it was not given.
    pub(super) fn text(&self, field: Field) -> &'a str {
        self.fields.text(field).map_or("", |it| it.text)
    }

    fn by(&self) -> Result<By<'a>, Problem<'a>> {
        let owner = self.text(Field::OwnerId);
        if owner.is_empty() {
            return Err(problem::OWNER_REQUIRED);
        }
        if owner.len() > OWNER_BYTES_MAX {
            return Err(problem::OWNER_TOO_LONG);
        }
        let request_id = Some(self.request_id).filter(|it| !it.is_empty());
        Ok(By { owner, request_id })
    }

    /// How long something is held: more than nothing, and not for ever.
    fn lease(&self, field: Field, problem: Problem<'static>) -> Result<Millis, Problem<'a>> {
        let ms = self.fields.whole(field).unwrap_or(0);
        let ms = u64::try_from(ms).ok();
        let ms = ms.filter(|ms| (1..=LEASE_MS_MAX).contains(ms));
        ms.map(Millis).ok_or(problem)
    }

    pub(super) fn wait(&self) -> Result<Millis, Problem<'a>> {
        let ms = self.fields.whole(Field::WaitMs).unwrap_or(0);
        let ms = u64::try_from(ms).ok().filter(|&ms| ms <= WAIT_MS_MAX);
        ms.map(Millis).ok_or(problem::WAIT_RANGE)
    }

    /// A number above 0 that has to be there.
    fn small(&self, field: Field, problem: Problem<'static>) -> Result<u32, Problem<'a>> {
        let number = self.fields.whole(field).unwrap_or(0);
        let number = u32::try_from(number).ok().filter(|&it| it > 0);
        number.ok_or(problem)
    }

    fn acquire(&self, mode: Mode) -> Result<Ask<'a>, Problem<'a>> {
        let by = self.by()?;
        let lease = self.lease(Field::TtlMs, problem::TTL_RANGE)?;
        let wait = self.wait()?;
        Ok(by.of(Request::Acquire {
            key: self.name,
            mode,
            wait,
            lease: Some(lease),
        }))
    }

    fn acquire_slot(&self) -> Result<Ask<'a>, Problem<'a>> {
        self.by()?;
        let limit = self.small(Field::Limit, problem::LIMIT_RANGE)?;
        self.acquire(Mode::Slot { limit })
    }

    fn acquire_read_write(&self) -> Result<Ask<'a>, Problem<'a>> {
        self.by()?;
        match self.text(Field::Mode) {
            "read" => self.acquire(Mode::Read),
            "write" => self.acquire(Mode::Write),
            other => Err(problem::MODE.about(other.as_bytes())),
        }
    }

    /// What a holder shows. What cannot be its token is one that nobody was granted.
    fn hold(&self) -> Result<(Option<Token>, By<'a>), Problem<'a>> {
        let lease_id = self.text(Field::LeaseId);
        let fence = self.fields.whole(Field::FencingToken).unwrap_or(0);
        let by = self.by().map_err(|problem| match problem {
            problem::OWNER_REQUIRED => problem::HOLD_REQUIRED,
            other => other,
        })?;
        if lease_id.is_empty() || fence <= 0 {
            return Err(problem::HOLD_REQUIRED);
        }
        let token = Token::parse(lease_id.as_bytes());
        let token = token.filter(|token| u64::try_from(fence) == Ok(token.fence.0));
        Ok((token, by))
    }

    fn renew(&self) -> Result<Ask<'a>, Problem<'a>> {
        let (token, by) = self.hold()?;
        let lease = self.lease(Field::ExtendByMs, problem::EXTEND_RANGE)?;
        Ok(by.of(Request::Renew {
            key: self.name,
            token,
            lease: Some(lease),
        }))
    }

    pub(super) fn page(&self) -> Result<Page<'a>, Problem<'a>> {
        let limit = match self.query.get("limit") {
            None => PAGE_ENTRIES,
            Some(text) => target::digits(text)
                .and_then(|limit| usize::try_from(limit).ok())
                .filter(|limit| (1..=PAGE_ENTRIES_MAX).contains(limit))
                .ok_or_else(|| problem::PAGE_LIMIT.about(text))?,
        };
        let after = self.query.get("after").filter(|it| !it.is_empty());
        if after.is_some_and(|it| it.len() > CURSOR_BYTES_MAX) {
            return Err(problem::CURSOR);
        }
        Ok(Page { limit, after })
    }

    fn locks(&self) -> Result<Ask<'a>, Problem<'a>> {
        let page = self.page()?;
        let contains = self.query.get("contains");
        if contains.is_some_and(|it| !(1..=LOCK_NAME_BYTES_MAX).contains(&it.len())) {
            return Err(problem::CONTAINS);
        }
        let (mut held, mut waiting) = (false, false);
        match self.query.get("state") {
            None => (held, waiting) = (true, true),
            Some(states) => {
                for state in states.split(|&byte| byte == b',') {
                    match state {
                        b"held" => held = true,
                        b"waiting" => waiting = true,
                        _ => return Err(problem::STATE.about(states)),
                    }
                }
            }
        }
        Ok(Ask::Locks {
            page,
            contains: contains.unwrap_or_default(),
            held,
            waiting,
        })
    }

    fn pattern(&self) -> Result<&'a [u8], Problem<'a>> {
        let text = self.query.get("pattern").ok_or(problem::PATTERN)?;
        word(text, problem::PATTERN)
    }

    fn range(&self) -> Result<Ask<'a>, Problem<'a>> {
        let index = |name, otherwise| match self.query.get(name) {
            None => Ok(otherwise),
            Some(text) => args::integer(text).map_err(|_| problem::INDEX.about(text)),
        };
        Ok(table(Request::Range {
            key: self.name,
            start: index("start", 0)?,
            stop: index("stop", -1)?,
            form: LIST_FORM,
        }))
    }

    fn end(&self, otherwise: End) -> Result<End, Problem<'a>> {
        match self.fields.text(Field::ListEnd).map(|it| it.text) {
            None => Ok(otherwise),
            Some("left") => Ok(End::Left),
            Some("right") => Ok(End::Right),
            Some(other) => Err(problem::END.about(other.as_bytes())),
        }
    }

    fn put(&self) -> Result<Ask<'a>, Problem<'a>> {
        let value =
            |text| checked_value(text, problem::VALUE_REQUIRED, b"\t\r\n", problem::VALUE_TAB);
        let (key, fields) = (self.name, &self.fields);
        let new = value(fields.text(Field::Value))?;
        let ttl = fields.whole(Field::TtlMs).unwrap_or(0);
        let ttl = u64::try_from(ttl).ok().filter(|&ms| ms <= Millis::MAX.0);
        let ttl = ttl.map(Millis).ok_or(problem::VALUE_TTL_RANGE)?;
        let request = match (fields.text(Field::IfValue), fields.is_true(Field::IfAbsent)) {
            (Some(_), true) => return Err(problem::TWO_CONDITIONS),
            (Some(Text { text: "", .. }), _) => return Err(problem::EMPTY_CONDITION),
            (old @ Some(_), _) => {
                let old = value(old)?;
                Request::Swap { key, old, new, ttl }
            }
            (None, true) => Request::Swap {
                key,
                old: b"",
                new,
                ttl,
            },
            (None, false) => Request::Put {
                key,
                value: new,
                ttl,
            },
        };
        Ok(table(request))
    }

    fn signal(&self) -> Result<Ask<'a>, Problem<'a>> {
        let channel = self.name;
        if memchr2(b'*', b'>', channel).is_some() {
            return Err(problem::CHANNEL_WILDCARD.about(channel));
        }
        let payload = self.fields.text(Field::Payload);
        let required = problem::PAYLOAD_REQUIRED;
        let payload = checked_value(payload, required, b"\r\n", problem::VALUE_LINE)?;
        if args::trim(payload).is_empty() {
            return Err(required);
        }
        // As long as a line that tells it may be.
        if b"sig ".len() + channel.len() + b" ".len() + payload.len() > VALUE_BYTES_MAX {
            return Err(problem::VALUE_TOO_LONG);
        }
        Ok(table(Request::Signal { channel, payload }))
    }
}

/// A value that every client can read, whichever way it asks.
fn checked_value<'a>(
    text: Option<Text<'a>>,
    required: Problem<'static>,
    banned: &[u8],
    holds_banned: Problem<'static>,
) -> Result<&'a [u8], Problem<'a>> {
    let Text { text, is_replaced } = text.unwrap_or_default();
    if text.is_empty() {
        return Err(required);
    }
    if is_replaced {
        return Err(problem::VALUE_NOT_UTF8);
    }
    if text.len() > VALUE_BYTES_MAX {
        return Err(problem::VALUE_TOO_LONG);
    }
    if text.bytes().any(|byte| banned.contains(&byte)) {
        return Err(holds_banned);
    }
    Ok(text.as_bytes())
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
