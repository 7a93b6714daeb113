//! Every route of the HTTP door, one row each: method, path, operation, what it takes, who may ask.
//!
//! The decoder, the documentation and the OpenAPI document are fed from this table; nobody else knows
//! a path. Never checks a name and never reads a body.

use std::fmt::Write as _;

use super::arena::Arena;
use super::fields::Field;
use super::problem::{self, Problem};
use super::target;
use crate::wire::need::Need;

/// Longest body of a route.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// Longest body of a route that carries values: two of them, or one that is mostly escapes.
pub const VALUES_BODY_BYTES_MAX: usize = 192 * 1024;

/// A method of HTTP that some route knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Look.
    Get,
    /// Look, but tell only the head of the answer.
    Head,
    /// Do.
    Post,
    /// Set.
    Put,
    /// Take away.
    Delete,
    /// Any other.
    Other,
}

impl Method {
    pub(super) fn parse(word: &str) -> Self {
        match word {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "DELETE" => Self::Delete,
            _ => Self::Other,
        }
    }

    /// As it is written.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Other => "",
        }
    }
}

/// A set of methods, as `Allow` lists them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Methods(u8);

impl Methods {
    const fn with(self, method: Method) -> Self {
        Self(self.0 | 1 << method as u8)
    }

    /// Those in the set.
    pub fn iter(self) -> impl Iterator<Item = Method> {
        let all = [
            Method::Get,
            Method::Head,
            Method::Post,
            Method::Put,
            Method::Delete,
        ];
        all.into_iter()
            .filter(move |&method| self.0 & 1 << method as u8 != 0)
    }
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever has the token, if there is one.
    Token,
    /// Anybody, if the operator says so; else as [`Access::Token`].
    Metrics,
    /// Anybody.
    Open,
}

/// What the body of a request has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// Whatever comes is ignored.
    Nothing,
    /// An object with these fields, or nothing at all.
    Perhaps(&'static [Field]),
    /// An object with these fields.
    Object(&'static [Field]),
}

/// What a name in a path may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// What the line protocol can say, too: 1 to 256 bytes without blanks and control characters.
    Plain,
    /// What LockServer takes: 1 to 1024 bytes without control characters.
    Lock,
}

/// One route.
#[derive(Debug)]
pub struct Row {
    /// Which one.
    pub route: Route,
    /// Its method.
    pub method: Method,
    /// Its path; a word in braces stands for one segment.
    pub template: &'static str,
    /// Its name in the OpenAPI document.
    pub operation: &'static str,
    /// What it does.
    pub help: &'static str,
    /// Whether it changes something; then its body must be called JSON.
    pub changes: bool,
    /// Who may ask.
    pub access: Access,
    /// What the token of a request must give.
    pub need: Need,
    /// Longest body.
    pub body_bytes_max: usize,
    /// Whether `HEAD` is answered, too.
    pub answers_head: bool,
    /// Whether the answer is a stream of events.
    pub streams: bool,
    /// Whether all methods mean the same.
    pub any_method: bool,
    pub(super) takes: Takes,
    pub(super) query: &'static [&'static str],
    pub(super) naming: Naming,
    /// How many segments the path has, and the second of them.
    depth: usize,
    family: &'static [u8],
}

const fn row(
    route: Route,
    method: Method,
    template: &'static str,
    operation: &'static str,
    help: &'static str,
) -> Row {
    let (depth, family) = shape(template.as_bytes());
    Row {
        route,
        method,
        template,
        operation,
        help,
        changes: !matches!(method, Method::Get),
        access: Access::Token,
        need: match method {
            Method::Get => Look,
            _ => Need::Write,
        },
        body_bytes_max: BODY_BYTES_MAX,
        answers_head: matches!(method, Method::Get),
        streams: false,
        any_method: false,
        takes: Takes::Nothing,
        query: &[],
        naming: Naming::Plain,
        depth,
        family,
    }
}

/// How many segments a path has, and the second of them.
const fn shape(path: &'static [u8]) -> (usize, &'static [u8]) {
    let (mut depth, mut at, mut start, mut end) = (0, 0, 0, 0);
    while at < path.len() {
        if path[at] == b'/' {
            depth += 1;
            if depth == 2 {
                (start, end) = (at + 1, path.len());
            } else if depth == 3 {
                end = at;
            }
        }
        at += 1;
    }
    (depth, path.split_at(end).0.split_at(start).1)
}

impl Row {
    /// The path is LockServer's, and so are names, errors and what may be asked.
    const fn lease(mut self) -> Self {
        self.answers_head = false;
        self.naming = Naming::Lock;
        self
    }

    const fn of_any_lock(mut self) -> Self {
        self.naming = Naming::Lock;
        self
    }

    const fn takes(mut self, fields: &'static [Field]) -> Self {
        self.takes = Takes::Object(fields);
        self
    }

    const fn may_take(mut self, fields: &'static [Field]) -> Self {
        self.takes = Takes::Perhaps(fields);
        self
    }

    const fn asks(mut self, query: &'static [&'static str]) -> Self {
        self.query = query;
        self
    }

    const fn carries_values(mut self) -> Self {
        self.body_bytes_max = VALUES_BODY_BYTES_MAX;
        self
    }

    const fn streams(mut self) -> Self {
        self.streams = true;
        self.answers_head = false;
        self
    }

    const fn open(mut self) -> Self {
        self.access = Access::Open;
        self.needs(Nothing)
    }

    const fn open_by_flag(mut self) -> Self {
        self.access = Access::Metrics;
        self.needs(Overview)
    }

    const fn needs(mut self, need: Need) -> Self {
        self.need = need;
        self
    }

    const fn any_method(mut self) -> Self {
        self.any_method = true;
        self
    }

    /// The names of its query parameters.
    #[must_use]
    pub fn query_names(&self) -> &'static [&'static str] {
        self.query
    }

    /// The names of the fields that its body may have.
    pub fn field_names(&self) -> impl Iterator<Item = &'static str> {
        let fields = match self.takes {
            Takes::Nothing => &[],
            Takes::Perhaps(fields) | Takes::Object(fields) => fields,
        };
        fields.iter().map(|it| it.name())
    }

    /// Whether it cannot be asked without a body.
    #[must_use]
    pub fn needs_body(&self) -> bool {
        matches!(self.takes, Takes::Object(_))
    }

    /// Whether these segments are a path of this row.
    fn fits(&self, segments: &[&[u8]]) -> bool {
        self.depth == segments.len()
            && segments
                .get(1)
                .is_none_or(|it| self.family == *it || self.family[0] == b'{')
            && self
                .parts()
                .zip(segments)
                .all(|(part, it)| part == *it || is_place(part))
    }

    fn parts(&self) -> impl Iterator<Item = &'static [u8]> {
        self.template.as_bytes().split(|&byte| byte == b'/').skip(1)
    }
}

fn is_place(part: &[u8]) -> bool {
    part.first() == Some(&b'{')
}

/// Writes down the routes once: the enum and the rows come from the same columns.
macro_rules! routes {
    ($($route:ident $method:ident $template:literal $operation:literal
       [$($flag:ident$(($($arg:expr),*))?)*] $help:literal)*) => {
        /// A route.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Route {
            $(
                #[doc = $help]
                $route,
            )*
        }

        /// All routes, in the order of the enum.
        pub static TABLE: [Row; [$(Route::$route),*].len()] = [$(
            row(Route::$route, Method::$method, $template, $operation, $help)
                $(.$flag($($($arg),*)?))*
        ),*];
    };
}

use Field::{
    Adapter, Client, Count, Delta, ExtendByMs, FencingToken, Group, IfAbsent, IfValue, LeaseId,
    Len, Limit, ListEnd, Mode, Number, OwnerId, Pattern, Payload, RangeOwner, Secret, Start, TtlMs,
    Value, WaitMs,
};

const ACQUIRE: &[Field] = &[OwnerId, TtlMs, WaitMs];
const RENEW: &[Field] = &[OwnerId, LeaseId, FencingToken, ExtendByMs];
const RELEASE: &[Field] = &[OwnerId, LeaseId, FencingToken];
const SLOT: &[Field] = &[OwnerId, TtlMs, Limit, WaitMs];
const READ_WRITE: &[Field] = &[OwnerId, TtlMs, Mode, WaitMs];
const PUT_VALUE: &[Field] = &[Value, TtlMs, IfValue, IfAbsent];
const LOCK_RANGE: &[Field] = &[Client, Secret, RangeOwner, Mode, Start, Len, WaitMs];
const UNLOCK_RANGE: &[Field] = &[Client, Secret, RangeOwner, Start, Len];
const ABOUT_RANGE: &[Field] = &[Client, Secret, RangeOwner, Mode, Start, Len];

use Need::{Admin, Look, Nothing, Overview};

// The flags: `lease` is LockServer's; `of_any_lock` takes the names of those; `takes` and `may_take`
// a body with these fields; `asks` these query parameters; the others are explained at their fields
// of `Row`.
routes! {
    AcquireLock Post "/v1/locks/{name}/acquire" "acquireLock"
        [lease takes(ACQUIRE)] "take a lock"
    RenewLock Post "/v1/locks/{name}/renew" "renewLock"
        [lease takes(RENEW)] "make its lease longer"
    ReleaseLock Post "/v1/locks/{name}/release" "releaseLock"
        [lease takes(RELEASE)] "let it go"
    GetLock Get "/v1/locks/{name}" "getLock"
        [lease] "who holds it, and until when"
    ListLocks Get "/v1/locks" "listLocks"
        [needs(Overview) asks(&["limit", "after", "contains", "state"])] "all that are held or waited for, in pages"
    BreakHold Delete "/v1/locks/{name}/holders/{fence}" "breakHold"
        [needs(Admin) of_any_lock] "take a lock away from its holder"
    Who Get "/v1/who/{name}" "who"
        [of_any_lock] "who holds it, and who waits for it, in order"

    AcquireSlot Post "/v1/semaphores/{name}/acquire" "acquireSlot"
        [takes(SLOT)] "take a slot of a semaphore"
    RenewSlot Post "/v1/semaphores/{name}/renew" "renewSlot"
        [takes(RENEW)] "make its lease longer"
    ReleaseSlot Post "/v1/semaphores/{name}/release" "releaseSlot"
        [takes(RELEASE)] "let it go"
    GetSemaphore Get "/v1/semaphores/{name}" "getSemaphore"
        [] "who has its slots"

    AcquireReadWrite Post "/v1/rwlocks/{name}/acquire" "acquireReadWrite"
        [takes(READ_WRITE)] "take a read-write lock, with others or alone"
    RenewReadWrite Post "/v1/rwlocks/{name}/renew" "renewReadWrite"
        [takes(RENEW)] "make its lease longer"
    ReleaseReadWrite Post "/v1/rwlocks/{name}/release" "releaseReadWrite"
        [takes(RELEASE)] "let it go"
    GetReadWrite Get "/v1/rwlocks/{name}" "getReadWrite"
        [] "who reads or writes"

    Elect Post "/v1/elections/{name}/elect" "elect"
        [takes(ACQUIRE)] "become the leader"
    RenewLead Post "/v1/elections/{name}/renew" "renewLead"
        [takes(RENEW)] "stay the leader"
    Resign Post "/v1/elections/{name}/resign" "resign"
        [takes(RELEASE)] "be the leader no longer"
    GetElection Get "/v1/elections/{name}" "getElection"
        [] "who leads"
    ObserveElection Get "/v1/elections/{name}/events" "observeElection"
        [streams] "be told when the leader changes"

    RegisterClient Put "/v1/clients/{id}" "registerClient"
        [takes(&[Secret, TtlMs, Adapter])] "make a client known, or keep it known"
    DetachClient Delete "/v1/clients/{id}" "detachClient"
        [takes(&[Secret])] "forget it, and let go of all it has"
    EndReclaim Post "/v1/clients/{id}/reclaim-done" "endReclaim"
        [takes(&[Secret])] "let go of what it has not had back after a restart"
    ListClients Get "/v1/clients" "listClients"
        [needs(Overview) asks(&["limit", "after"])] "all clients, in pages"

    LockRange Post "/v1/ranges/{resource}/lock" "lockRange"
        [takes(LOCK_RANGE)] "lock bytes of a resource, with others or alone"
    UnlockRange Post "/v1/ranges/{resource}/unlock" "unlockRange"
        [takes(UNLOCK_RANGE)] "let them go"
    TestRange Post "/v1/ranges/{resource}/test" "testRange"
        [needs(Look) takes(ABOUT_RANGE)] "what is in the way of such a lock"
    CancelRange Post "/v1/ranges/{resource}/cancel" "cancelRange"
        [takes(ABOUT_RANGE)] "wait for it no longer"
    ReclaimRange Post "/v1/ranges/{resource}/reclaim" "reclaimRange"
        [takes(ABOUT_RANGE)] "have back what was held before a restart"
    GetRanges Get "/v1/ranges/{resource}" "getRanges"
        [] "who holds bytes of it, and who waits for some, in order"
    ListRanges Get "/v1/ranges" "listRanges"
        [needs(Overview) asks(&["limit", "after", "contains", "client", "owner"])]
        "all resources with range locks, in pages, or the range locks of a client or an owner"
    BreakRanges Delete "/v1/ranges/{resource}/locks" "breakRanges"
        [needs(Admin) asks(&["start", "len"])] "end all range locks that overlap these bytes, or all there are"
    BreakRangesOf Delete "/v1/ranges" "breakRangesOf"
        [needs(Admin) asks(&["client"])] "end all range locks of a client"
    GetGrace Get "/v1/grace" "getGrace"
        [needs(Nothing)] "whether bytes are kept for those who held them before a restart"
    EndGrace Delete "/v1/grace" "endGrace"
        [needs(Admin)] "keep them no longer"
    ListWaits Get "/v1/waits" "listWaits"
        [needs(Overview)] "who waits for whom"

    GetCounter Get "/v1/counters/{name}" "getCounter"
        [] "what a counter has counted"
    SetCounter Put "/v1/counters/{name}" "setCounter"
        [takes(&[Number])] "set it"
    AddToCounter Post "/v1/counters/{name}/add" "addToCounter"
        [takes(&[Delta])] "count up or down"

    GetValue Get "/v1/kv/{name}" "getValue"
        [] "read a value"
    PutValue Put "/v1/kv/{name}" "putValue"
        [takes(PUT_VALUE) carries_values] "store one, perhaps only if it is new or was not changed"
    DeleteValue Delete "/v1/kv/{name}" "deleteValue"
        [] "delete it"

    PushToList Post "/v1/lists/{name}/push" "pushToList"
        [takes(&[Value, ListEnd]) carries_values] "put a value into a list"
    PopFromList Post "/v1/lists/{name}/pop" "popFromList"
        [may_take(&[ListEnd, WaitMs])] "take one out"
    GetList Get "/v1/lists/{name}" "getList"
        [asks(&["start", "stop"])] "read a part of it"

    WaitAtBarrier Post "/v1/barriers/{name}/wait" "waitAtBarrier"
        [takes(&[Count, WaitMs])] "wait until so many have come"

    SendSignal Post "/v1/signals/{channel}" "sendSignal"
        [takes(&[Payload]) carries_values] "tell all who listen"
    ListenToSignals Get "/v1/signals" "listenToSignals"
        [streams asks(&["pattern"])] "listen"
    ListenInGroup Post "/v1/signals" "listenInGroup"
        [streams takes(&[Pattern, Group])] "listen in a group: each signal goes to one of it"
    Watch Get "/v1/watch" "watch"
        [streams asks(&["pattern"])] "be told what happens to keys"

    GetStats Get "/v1/stats" "getStats"
        [needs(Overview)] "how much there is of everything"
    StreamStats Get "/v1/stats/stream" "streamStats"
        [needs(Overview) streams] "the same, every second"
    ListConnections Get "/v1/connections" "listConnections"
        [needs(Overview) asks(&["limit", "after"])] "who is connected, in pages"

    Livez Get "/livez" "livez"
        [open] "whether the daemon runs"
    Readyz Get "/readyz" "readyz"
        [open] "whether it takes new work"
    Healthz Get "/healthz" "healthz"
        [open any_method] "the same as `/livez`, with any method"
    Health Get "/health" "health"
        [open] "the same as `/livez`"
    Ready Get "/ready" "ready"
        [open] "the same as `/readyz`"
    Metrics Get "/metrics" "metrics"
        [open_by_flag] "figures for Prometheus"
    OpenApi Get "/v1/openapi.json" "openApi"
        [open] "this table for programs: OpenAPI 3.1"
    Dashboard Get "/" "dashboard"
        [open] "the dashboard"
    Asset Get "/assets/{file}" "asset"
        [open] "what the dashboard is made of"
}

impl Route {
    /// Its row of the table.
    #[must_use]
    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Whether the path is LockServer's, and so is the shape of its errors.
    #[must_use]
    pub const fn is_lease(self) -> bool {
        matches!(
            self,
            Self::AcquireLock | Self::RenewLock | Self::ReleaseLock | Self::GetLock
        )
    }
}

/// Every route as (method, template, operation id).
pub fn all() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    TABLE
        .iter()
        .map(|row| (row.method.word(), row.template, row.operation))
}

/// The table for `docs/http.md`.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from("| Request | Operation | Needs | Meaning |\n|---|---|---|---|\n");
    for row in &TABLE {
        let mut query = String::new();
        for name in row.query {
            let sign = if query.is_empty() { '?' } else { '&' };
            let _ = write!(query, "{sign}{name}=");
        }
        let (method, template) = (row.method.word(), row.template);
        let (operation, help) = (row.operation, row.help);
        let needs = match row.access {
            Access::Open => "no token",
            Access::Token | Access::Metrics => row.need.word(),
        };
        let _ = writeln!(
            out,
            "| `{method} {template}{query}` | `{operation}` | {needs} | {help} |"
        );
    }
    out
}

/// Where a request leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) route: Result<Route, Problem<'static>>,
    /// Whether the path is one of LockServer's.
    pub(super) is_lease: bool,
    /// What stands at the first place in braces.
    pub(super) name: &'a [u8],
    /// What stands at the second one.
    pub(super) second: &'a [u8],
}

/// Most segments of a path that some route has.
const DEPTH_MAX: usize = 5;

/// Under this the rules are LockServer's: blank segments at both ends do not count, an encoded slash
/// is a slash, and what is not found is told in its words.
const LEASES: &[u8] = b"/v1/locks/";

/// Finds the route of a path, which may hold percent signs. Takes at most twice its length from the
/// arena, and nothing if it holds none.
pub(super) fn find<'a>(method: Method, path: &'a [u8], arena: &mut Arena<'a>) -> Found<'a> {
    let Some(decoded) = target::decode(path, arena) else {
        return not_found(problem::BAD_ESCAPE, false);
    };
    match decoded.strip_prefix(LEASES) {
        Some(rest) => find_lease(method, rest, path, arena),
        None => {
            find_other(method, path, arena).unwrap_or_else(|| not_found(problem::NOT_FOUND, false))
        }
    }
}

fn not_found<'a>(problem: Problem<'static>, is_lease: bool) -> Found<'a> {
    Found {
        route: Err(problem),
        is_lease,
        name: b"",
        second: b"",
    }
}

fn find_lease<'a>(
    method: Method,
    mut rest: &'a [u8],
    path: &'a [u8],
    arena: &mut Arena<'a>,
) -> Found<'a> {
    while let [b'/', inner @ ..] | [inner @ .., b'/'] = rest {
        rest = inner;
    }
    if rest.is_empty() {
        return not_found(problem::LOCK_NAME_REQUIRED, true);
    }
    let mut parts = rest.split(|&byte| byte == b'/');
    let (name, action, more) = (parts.next(), parts.next(), parts.next());
    let route = match (method, action, more) {
        (Method::Delete, ..) => match find_other(method, path, arena) {
            Some(found @ Found { route: Ok(_), .. }) => return found,
            _ if more.is_some() => Err(problem::INVALID_PATH),
            _ => Err(problem::method_not_allowed(lease_methods(action))),
        },
        (_, _, Some(_)) | (Method::Get, Some(_), _) => Err(problem::INVALID_PATH),
        (Method::Get, None, _) => Ok(Route::GetLock),
        (Method::Post, Some(b"acquire"), _) => Ok(Route::AcquireLock),
        (Method::Post, Some(b"renew"), _) => Ok(Route::RenewLock),
        (Method::Post, Some(b"release"), _) => Ok(Route::ReleaseLock),
        (Method::Post, ..) => Err(problem::UNKNOWN_ACTION),
        _ => Err(problem::method_not_allowed(lease_methods(action))),
    };
    Found {
        route,
        is_lease: true,
        name: name.unwrap_or_default(),
        second: b"",
    }
}

fn lease_methods(action: Option<&[u8]>) -> Methods {
    Methods::default().with(match action {
        Some(_) => Method::Post,
        None => Method::Get,
    })
}

/// Here an encoded slash is a part of a name. Nothing if no row has this path.
fn find_other<'a>(method: Method, path: &'a [u8], arena: &mut Arena<'a>) -> Option<Found<'a>> {
    let mut segments = [&b""[..]; DEPTH_MAX];
    let mut depth = 0;
    for raw in path.strip_prefix(b"/")?.split(|&byte| byte == b'/') {
        *segments.get_mut(depth)? = target::decode(raw, arena)?;
        depth += 1;
    }
    let segments = &segments[..depth];
    let mut allowed = Methods::default();
    for row in TABLE.iter().filter(|row| row.fits(segments)) {
        let is_head = method == Method::Head && row.answers_head;
        if row.method == method || is_head || row.any_method {
            let mut places = row.parts().zip(segments).filter(|(part, _)| is_place(part));
            let mut next = || places.next().map_or(&b""[..], |(_, it)| *it);
            return Some(Found {
                route: Ok(row.route),
                is_lease: false,
                name: next(),
                second: next(),
            });
        }
        allowed = allowed.with(row.method);
        if row.answers_head {
            allowed = allowed.with(Method::Head);
        }
    }
    if allowed == Methods::default() {
        return None;
    }
    Some(not_found(problem::method_not_allowed(allowed), false))
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
