//! One engine behind [`Subject`]: a [`What`] becomes an input of it, and its effects become text.
//!
//! `main.rs` compiles this file twice, with the engine that ships and with the frozen one as
//! `subject`. When the door of the engine that ships is rebuilt, that engine gets a file of its
//! own, which renders the same text.

use std::fmt::{Debug, Write};
use std::rc::Rc;

use super::subject::base::{ConnId, Fence, Millis, Nanos, Token};
use super::subject::engine::types::{
    self, Attach, By, ByteRange, Effect, Effects, Input, ListForm, Notes, OfClient, RangeAsk,
    RangeRequest, Record, Reply, Request, Secret, Share, Sharing,
};
use super::subject::engine::view::View;
use super::subject::engine::{
    ClientLimit, EndReason, Engine, GracePolicy, Held, HeldType, Limit, Origin, RangeEnd,
    RangeShown, Rules, SearchLimits, Someone, Status,
};
use super::subject::histogram::Histogram;
use crate::lockstep::step::{
    self, Heard, Ms, Name, News, Ns, Popped, Restart, Said, Subject, What,
};

pub struct Driver {
    rules: step::Rules,
    engine: Engine,
    /// Everything recorded so far, also in earlier lives.
    records: Vec<Record>,
    epoch: u64,
}

/// The time of day when the engine's clock was zero.
const ZERO_NS: u64 = 1_800_000_000_000_000_000;

impl Driver {
    pub fn new(rules: &step::Rules) -> Self {
        let epoch = 1;
        Self {
            rules: rules.clone(),
            engine: engine(rules, epoch),
            records: Vec::new(),
            epoch,
        }
    }

    /// A new engine knows the records that are not lost, and serves.
    fn restart(&mut self, now: Nanos, how: Restart, out: &mut Effects) {
        let kept = self.records.len() - how.lost as usize;
        self.records.truncate(kept);
        self.epoch += 1;
        let known = match how.failover_above {
            Some(_) => 1,
            None => self.epoch,
        };
        self.engine = engine(&self.rules, known);
        for record in &self.records {
            self.engine.apply(now, Input::Restore(record), out);
        }
        if let Some(above) = how.failover_above {
            self.engine.set_epoch(self.epoch);
            self.engine.raise_fences(Fence(above));
        }
        let may_have_lost = how.may_have_lost;
        self.engine.apply(now, Input::Serve { may_have_lost }, out);
    }
}

fn engine(rules: &step::Rules, epoch: u64) -> Engine {
    let search_limits = rules.search.map(|(at_once_work, tries_max)| SearchLimits {
        at_once_work,
        tries_max,
    });
    let limits = rules.clients_max.iter();
    let limits = limits.map(|&(adapter, clients)| ClientLimit {
        adapter: adapter.into(),
        clients,
    });
    let seed = rules.seed;
    let origin = Origin {
        fence: rules.fence,
        seed: [seed, !seed],
        salt_key: [seed, epoch, 5, 6],
    };
    let rules = Rules {
        locks_max: rules.locks_max,
        holds_max: rules.holds_max,
        waiters_per_key_max: rules.waiters_per_key_max,
        keys_max: rules.keys_max,
        list_length_max: rules.list_length_max,
        subscriptions_max: rules.subscriptions_max,
        lease_default: Millis(rules.lease_default),
        auto_release: rules.auto_release,
        clients_per_adapter_max: rules.clients_per_adapter_max,
        clients_max: limits.collect(),
        ranges_per_resource_max: rules.ranges_per_resource_max,
        ranges_per_client_max: rules.ranges_per_client_max,
        ranges_max: rules.ranges_max,
        range_wait_max: Millis(rules.range_wait_max),
        grace_period: Millis(rules.grace_period),
        grace_policy: match rules.grace_is_strict {
            true => GracePolicy::Strict,
            false => GracePolicy::Held,
        },
        gc_interval: Millis(rules.gc_interval),
        gc_idle_max: Millis(rules.gc_idle_max),
        deadlock_detection: rules.deadlock_detection,
        search_limits: search_limits.unwrap_or_default(),
        notes: match rules.notes {
            0 => Notes::Off,
            1 => Notes::Expiries,
            _ => Notes::All,
        },
        durable: rules.durable,
        epoch,
        zero_ns: ZERO_NS,
    };
    Engine::new(rules, origin)
}

impl Subject for Driver {
    fn apply(&mut self, now: Ns, what: &What) -> Heard {
        let now = Nanos(now);
        let mut out = Effects::new();
        if let What::Restart(how) = what {
            self.restart(now, *how, &mut out);
        } else {
            with_input(what, |input| self.engine.apply(now, input, &mut out));
        }
        let made = self.records.len();
        self.records.extend(self.engine.take_records());
        Heard {
            effects: out.iter().map(said).collect(),
            records: self.records[made..].iter().map(recorded).collect(),
            work: [self.engine.take_work(), self.engine.take_departing_work()],
        }
    }

    fn next_deadline(&self) -> Option<Ns> {
        self.engine.next_deadline().map(|it| it.0)
    }

    fn figures(&self) -> String {
        let (tally, counts) = (self.engine.tally(), self.engine.counts());
        let begun = self.engine.has_begun();
        let (memory, records) = (self.engine.memory(), self.engine.record_count());
        format!("{tally:?} {counts:?} begun {begun} memory {memory} records {records}")
    }

    fn look(&mut self, now: Ns, conns: &[step::Conn]) -> String {
        let mut shown = Shown(String::new());
        let view = self.engine.view(Nanos(now));
        shown.keys(view);
        shown.entries(view);
        shown.clients(view);
        shown.ranges(view);
        shown.figures(&self.engine, view);
        for &it in conns {
            shown.conn(&self.engine, view, conn(it));
        }
        shown.0
    }

    fn image(&self) -> Vec<String> {
        let mut image = match self.rules.durable {
            true => self.engine.image().iter().map(recorded).collect(),
            false => Vec::new(),
        };
        image.sort_unstable();
        image
    }

    fn check(&self) {
        self.engine.check();
    }

    fn record_count(&self) -> u64 {
        self.engine.record_count()
    }

    fn is_held(&self, now: Ns, key: Name, fence: u64) -> bool {
        let view = self.engine.view(Nanos(now));
        view.lease_left_ns(key.as_bytes(), Fence(fence)).is_some()
    }

    fn proves(&self, owner: Name, key: Name, shown: step::Token) -> bool {
        let renewal = Request::Renew {
            key: key.as_bytes(),
            token: Some(token(shown)),
            lease: None,
        };
        self.engine.proves(owner, &renewal)
    }

    fn may_speak_for(&mut self, of: step::OfClient) -> bool {
        self.engine.may_speak_for(of_client(of))
    }

    fn has_ranges(&self, now: Ns, resource: Name, client: &str, owner: Name) -> bool {
        let ranges = self.engine.view(Nanos(now)).ranges(resource.as_bytes());
        let is_it = |it: RangeShown<'_>| {
            let is_client = match it.client {
                Someone::Named(id) => id == client,
                Someone::Connection(serial) => client == format!("#{serial}"),
                Someone::Nobody => false,
            };
            is_client && it.owner == owner.as_bytes()
        };
        ranges.is_some_and(|it| it.held().any(is_it))
    }
}

// ---- in ----

fn conn(it: step::Conn) -> ConnId {
    ConnId {
        slot: it.slot,
        serial: it.serial,
    }
}

fn token(it: step::Token) -> Token {
    Token {
        fence: Fence(it.fence),
        salt: it.salt,
    }
}

fn of_client(it: step::OfClient) -> OfClient<'static> {
    OfClient {
        id: it.id,
        secret: Secret(it.secret.as_bytes()),
    }
}

fn attach(it: step::Attach) -> Attach<'static> {
    Attach {
        id: it.client.id,
        adapter: it.adapter,
        ttl: Millis(it.ttl),
        secret: Secret(it.client.secret.as_bytes()),
    }
}

/// Some inputs borrow what exists only here.
fn with_input(what: &What, apply: impl FnOnce(Input<'_>)) {
    let input = match what {
        What::Request(id, it) => Input::Request(conn(*id), request(*it)),
        What::RequestBy(id, [owner, id_of_request], it) => {
            let by = By {
                owner,
                request: id_of_request.as_bytes(),
            };
            Input::RequestBy(conn(*id), by, request(*it))
        }
        What::Break(id, key, fence) => Input::Break(conn(*id), key.as_bytes(), Fence(*fence)),
        What::BreakAll(id, key, fence) => {
            Input::BreakAll(conn(*id), key.as_bytes(), fence.map(Fence))
        }
        What::Attach(id, it) => Input::Attach(conn(*id), attach(*it)),
        What::Register(id, it) => Input::Register(conn(*id), attach(*it)),
        What::Detach(id, it) => {
            let OfClient { id: client, secret } = of_client(*it);
            Input::Detach(conn(*id), client, secret)
        }
        What::Range(id, of, it) => Input::Range(conn(*id), of.map(of_client), range(*it)),
        What::ReclaimDone(id, client, secret) => {
            let secret = secret.map(|it| Secret(it.as_bytes()));
            Input::ReclaimDone(conn(*id), client, secret)
        }
        What::Grace(id, ends) => Input::Grace {
            conn: conn(*id),
            ends: *ends,
        },
        What::BreakRanges(id, resource, bytes) => {
            let bytes = bytes.and_then(|it| ByteRange::new(it.start, it.len));
            Input::BreakRanges(conn(*id), resource.as_bytes(), bytes)
        }
        What::BreakRangesOf(id, client) => Input::BreakRangesOf(conn(*id), client.as_bytes()),
        What::Hello(id, name) => Input::Hello(conn(*id), *name),
        What::DetectDeadlocks(id, detects) => Input::DetectDeadlocks(conn(*id), *detects),
        What::LetIn(id, user) => Input::LetIn(conn(*id), user.map(|user| Rc::new(user.to_owned()))),
        What::Keep(id, keeps) => Input::Keep(conn(*id), *keeps),
        What::HungUp(id, hung_up) => Input::HungUp(conn(*id), *hung_up),
        What::Stalled(id, stalled) => Input::Stalled(conn(*id), *stalled),
        What::OwnerStalled(owner, stalled) => Input::OwnerStalled(owner, *stalled),
        What::ClientStalled(client, stalled) => Input::ClientStalled(client, *stalled),
        What::Shares(shares) => {
            let shares = shares.iter().map(|[name, prefix]| Share {
                name: (*name).into(),
                prefix: prefix.as_bytes().into(),
            });
            return apply(Input::Shares(&shares.collect::<Vec<_>>()));
        }
        What::Overrun(id, overrun) => Input::Overrun(conn(*id), *overrun),
        What::Disconnected(id) => Input::Disconnected(conn(*id)),
        What::CutOff(id) => Input::CutOff(conn(*id)),
        What::Unsent(it) => Input::Unsent(types::Popped {
            key: it.key.as_bytes().into(),
            end: end(it.end),
            value: it.value.as_bytes().into(),
        }),
        What::Time(work) => Input::Time(*work),
        What::MemoryFull(full) => Input::MemoryFull(*full),
        What::StorageFull(full) => Input::StorageFull(*full),
        What::Durable(number) => Input::Durable(*number),
        What::Drain => Input::Drain,
        What::Restart(_) => unreachable!("a restart is not an input"),
    };
    apply(input);
}

fn mode(it: step::Mode) -> types::Mode {
    match it {
        step::Mode::Slot(limit) => types::Mode::Slot { limit },
        step::Mode::Read => types::Mode::Read,
        step::Mode::Write => types::Mode::Write,
        step::Mode::Lead => types::Mode::Lead,
    }
}

fn end(it: step::End) -> types::End {
    match it {
        step::End::Left => types::End::Left,
        step::End::Right => types::End::Right,
    }
}

const LIST_FORM: ListForm = ListForm {
    push: |out, value| out.extend_from_slice(value),
    bytes_max: 24,
};

fn request(it: step::Request) -> Request<'static> {
    use step::Request as R;
    let lease = |lease: Option<Ms>| lease.map(Millis);
    match it {
        R::Acquire {
            key,
            mode: how,
            wait,
            lease: ms,
        } => Request::Acquire {
            key: key.as_bytes(),
            mode: mode(how),
            wait: Millis(wait),
            lease: lease(ms),
        },
        R::Enqueue {
            key,
            mode: how,
            lease: ms,
        } => Request::Enqueue {
            key: key.as_bytes(),
            mode: mode(how),
            lease: lease(ms),
        },
        R::Wait { key, wait } => Request::Wait {
            key: key.as_bytes(),
            wait: Millis(wait),
        },
        R::Release { key, token: shown } => Request::Release {
            key: key.as_bytes(),
            token: shown.map(token),
        },
        R::Renew {
            key,
            token: shown,
            lease: ms,
        } => Request::Renew {
            key: key.as_bytes(),
            token: shown.map(token),
            lease: lease(ms),
        },
        R::Reclaim {
            key,
            token: shown,
            lease: ms,
        } => Request::Reclaim {
            key: key.as_bytes(),
            token: shown.map(token),
            lease: lease(ms),
        },
        R::Position { key } => Request::Position {
            key: key.as_bytes(),
        },
        R::Resign { key, token: shown } => Request::Resign {
            key: key.as_bytes(),
            token: shown.map(token),
        },
        R::Observe { key } => Request::Observe {
            key: key.as_bytes(),
        },
        R::Unobserve { key } => Request::Unobserve {
            key: key.as_bytes(),
        },
        R::Add { key, delta, down } => Request::Add {
            key: key.as_bytes(),
            delta,
            down,
        },
        R::Count { key } => Request::Count {
            key: key.as_bytes(),
        },
        R::SetCount { key, value } => Request::SetCount {
            key: key.as_bytes(),
            value,
        },
        R::Put { key, value, ttl } => Request::Put {
            key: key.as_bytes(),
            value: value.as_bytes(),
            ttl: Millis(ttl),
        },
        R::Fetch { key } => Request::Fetch {
            key: key.as_bytes(),
        },
        R::Delete { key } => Request::Delete {
            key: key.as_bytes(),
        },
        R::Swap { key, old, new, ttl } => Request::Swap {
            key: key.as_bytes(),
            old: old.as_bytes(),
            new: new.as_bytes(),
            ttl: Millis(ttl),
        },
        R::Push {
            key,
            value,
            end: at,
        } => Request::Push {
            key: key.as_bytes(),
            value: value.as_bytes(),
            end: end(at),
        },
        R::Pop { key, end: at } => Request::Pop {
            key: key.as_bytes(),
            end: end(at),
        },
        R::AwaitPop { key, end: at, wait } => Request::AwaitPop {
            key: key.as_bytes(),
            end: end(at),
            wait: Millis(wait),
        },
        R::Length { key } => Request::Length {
            key: key.as_bytes(),
        },
        R::ListRange { key, start, stop } => Request::Range {
            key: key.as_bytes(),
            start,
            stop,
            form: LIST_FORM,
        },
        R::Meet { key, count, wait } => Request::Meet {
            key: key.as_bytes(),
            count,
            wait: Millis(wait),
        },
        R::Listen { pattern, group } => Request::Listen {
            pattern: pattern.as_bytes(),
            group: group.as_bytes(),
        },
        R::Unlisten { pattern, group } => Request::Unlisten {
            pattern: pattern.as_bytes(),
            group: group.as_bytes(),
        },
        R::Signal { channel, payload } => Request::Signal {
            channel: channel.as_bytes(),
            payload: payload.as_bytes(),
        },
        R::Watch { pattern } => Request::Watch {
            pattern: pattern.as_bytes(),
        },
        R::Unwatch { pattern } => Request::Unwatch {
            pattern: pattern.as_bytes(),
        },
    }
}

fn sharing(exclusive: bool) -> Sharing {
    match exclusive {
        true => Sharing::Exclusive,
        false => Sharing::Shared,
    }
}

fn range(it: step::RangeRequest) -> RangeRequest<'static> {
    let span = |it: step::Span| types::Span {
        start: it.start,
        len: it.len,
    };
    let ask = match it.ask {
        step::Ask::Lock {
            exclusive,
            span: bytes,
            wait,
        } => RangeAsk::Lock {
            mode: sharing(exclusive),
            span: span(bytes),
            wait: Millis(wait),
        },
        step::Ask::Unlock { span: bytes } => RangeAsk::Unlock { span: span(bytes) },
        step::Ask::Test {
            exclusive,
            span: bytes,
        } => RangeAsk::Test {
            mode: sharing(exclusive),
            span: span(bytes),
        },
        step::Ask::Cancel {
            exclusive,
            span: bytes,
        } => RangeAsk::Cancel {
            mode: sharing(exclusive),
            span: span(bytes),
        },
        step::Ask::Reclaim {
            exclusive,
            span: bytes,
        } => RangeAsk::Reclaim {
            mode: sharing(exclusive),
            span: span(bytes),
        },
    };
    RangeRequest {
        resource: it.resource.as_bytes(),
        owner: it.owner.as_bytes(),
        ask,
    }
}

// ---- out ----

fn neutral(it: ConnId) -> step::Conn {
    step::Conn {
        slot: it.slot,
        serial: it.serial,
    }
}

/// What is not shown of a token or a secret is compared as well.
fn recorded(record: &Record) -> String {
    let hidden = match record {
        Record::Granted { token, .. } => format!(" {:x}", token.salt),
        Record::Client { secret, .. } => format!(" {:x?} {:x?}", secret.salt, secret.hash),
        _ => String::new(),
    };
    format!("{record:?}{hidden}")
}

fn said(effect: &Effect) -> Said {
    let (to, news) = match effect {
        Effect::Reply(id, reply) => (vec![neutral(*id)], news(reply)),
        Effect::NotYet(id) => (vec![neutral(*id)], News::NotYet),
        Effect::Overrun(id) => (vec![neutral(*id)], News::Overrun),
        Effect::Push(id, _) => (vec![neutral(*id)], News::Other),
        Effect::Broadcast(ids, _) => (ids.iter().copied().map(neutral).collect(), News::Other),
        Effect::Mark(_) | Effect::GraceOver(_) | Effect::Note(_) => (Vec::new(), News::Other),
    };
    let hidden = match &news {
        News::Granted(token, _) => format!(" {token:?}"),
        _ => String::new(),
    };
    Said {
        text: format!("{effect:?}{hidden}"),
        to,
        news,
    }
}

fn news(reply: &Reply) -> News {
    match reply {
        Reply::Granted { token, lease } | Reply::Acquired { token, lease } => {
            let shown = step::Token {
                fence: token.fence.0,
                salt: token.salt,
            };
            News::Granted(shown, lease.0)
        }
        Reply::Queued => News::Queued,
        Reply::Renewed { lease, .. } => News::Renewed(lease.0),
        Reply::Done => News::Done,
        Reply::Attached { .. } => News::Attached,
        Reply::TimedOut => News::TimedOut,
        Reply::Popped(it) => News::Popped(Popped {
            key: text(it.key.as_bytes()),
            end: match it.end {
                types::End::Left => step::End::Left,
                types::End::Right => step::End::Right,
            },
            value: text(&it.value),
        }),
        Reply::Refused(why) => News::Refused(format!("{why:?}")),
        Reply::Number(_)
        | Reply::RangeFree
        | Reply::RangeHeld(_)
        | Reply::Cancelled
        | Reply::AlreadyGranted
        | Reply::InGrace(_)
        | Reply::Grace(_)
        | Reply::Value(_)
        | Reply::Values(_)
        | Reply::Nothing
        | Reply::Conflict => News::Answer,
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What can be seen from outside, line by line.
struct Shown(String);

impl Shown {
    fn line(&mut self, what: &str, it: impl Debug) {
        let _ = writeln!(self.0, "{what} {it:?}");
    }

    fn histogram(&mut self, what: &str, it: &Histogram) {
        self.line(what, (it.count(), it.sum_ns()));
    }

    fn keys(&mut self, view: View<'_>) {
        self.line("census", (view.in_use_census(), view.idle_census()));
        for kind in 0..3 {
            for key in view.in_use(kind) {
                self.line("key", (text(key.key()), key.kind()));
                key.holders().for_each(|it| self.line("  holder", it));
                key.waiters().for_each(|it| self.line("  waiter", it));
            }
        }
        for (key, since) in view.idle() {
            self.line("idle", (text(key.key()), since));
        }
        self.line("holds", (view.holds(), view.unclaimed(), view.waiting()));
        view.edges(|it| {
            self.line("edge", it);
            true
        });
    }

    fn entries(&mut self, view: View<'_>) {
        view.counters().for_each(|it| self.line("counter", it));
        view.values_with_over()
            .for_each(|it| self.line("value", it));
        view.lists().for_each(|it| self.line("list", it));
        view.barriers().for_each(|it| self.line("barrier", it));
        view.listened().for_each(|it| self.line("listened", it));
        view.watched().for_each(|it| self.line("watched", it));
        self.line("totals", (view.totals(), view.subscriptions()));
    }

    fn clients(&mut self, view: View<'_>) {
        view.clients().for_each(|it| self.line("client", it));
        view.limited_adapters()
            .for_each(|it| self.line("adapter", it));
        self.line("clients", (view.client_count(), view.client_returns()));
    }

    fn ranges(&mut self, view: View<'_>) {
        for (_, it) in view.resources_from(0) {
            let Some(it) = it else { continue };
            self.line("resource", text(it.key()));
            it.held().for_each(|it| self.line("  held", it));
            for (place, waiting) in it.waiting().enumerate() {
                self.line("  waiting", waiting);
                it.waits_for(place, |who, owner| self.line("    for", (who, owner)));
            }
        }
        self.line("ranges", (view.range_counts(), view.grace()));
        let figures = view.range_figures();
        for why in RangeEnd::ALL {
            self.line(why.word(), figures.ends(why));
        }
        for mode in [Sharing::Shared, Sharing::Exclusive] {
            let (granted, denied) = (figures.grants(mode), figures.denials(mode));
            self.line(mode.word(), (granted, denied, figures.deadlocks(mode)));
            self.histogram("  waits", figures.waits(mode));
            self.histogram("  holds", figures.holds(mode));
        }
        self.line("reclaims", figures.reclaims());
    }

    fn figures(&mut self, engine: &Engine, view: View<'_>) {
        let figures = engine.figures();
        for held in Held::ALL {
            let it = figures.of(held);
            let now = (it.held(), it.waiting());
            self.line(held.word(), (now, it.grants, it.denied(), it.deadlocks));
            self.histogram("  waits", &it.waits);
            self.histogram("  holds", &it.holds);
        }
        for limit in Limit::ALL {
            self.line(limit.word(), figures.limit_hits(limit));
        }
        self.line("deadlocks", view.deadlocks());
        let (lateness, most) = view.expiry_lateness();
        self.histogram("lateness", lateness);
        self.line("lateness at most", most);
        for (name, share) in view.shares() {
            self.line("share", name);
            for why in EndReason::ALL {
                self.line(why.word(), share.ended(why));
            }
            for by in HeldType::all() {
                let acquired = Status::ALL.map(|status| share.acquired(by, status));
                self.line(by.word(), (acquired, share.active(by)));
                self.histogram("  waits", share.waits(by));
            }
        }
        let fences = (engine.fences_reserved(), engine.fence_ceiling());
        self.line("fences", fences);
        self.line("in doubt", engine.is_in_doubt());
    }

    fn conn(&mut self, engine: &Engine, view: View<'_>, id: ConnId) {
        self.line("connection", (id, view.conn(id)));
        let has = [
            engine.owns_something(id),
            engine.holds_something(id),
            engine.has_subscriptions(id),
            engine.has_unfinished(id),
            engine.would_lose_something(id),
        ];
        let asked = [engine.detects_deadlocks(id), engine.keeps(id)];
        self.line("  has", (has, asked, engine.user_of(id)));
    }
}
