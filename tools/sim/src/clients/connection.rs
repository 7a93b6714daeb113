//! One connection as its client sees it: what it asked, what of that has arrived, what came back.
//!
//! Keeps the books that the checks need: every byte sent belongs to a request, every request knows
//! when its last byte arrived, every line received is taken in order. Also knows every reason that
//! the server may have to end the connection. Never decides what to ask for and never checks an
//! answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::http_answers::{self, Expected, Heard};
use super::http_requests::HttpAsk;
use super::range_requests::RangeAsked;
use super::request::RequestKind;
use super::subscription::Subscription;
use crate::pipe::Peer;
use crate::plan::Plan;
use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::types::Mode;
use latchd::server::{Door, Settings};
use latchd::wire::verbs::Verb;

/// How long the head of a request over HTTP may take, and its body.
const HTTP_PART_MAX: Millis = Millis(5_000);

/// An instant, and how many turns were over by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) at: Nanos,
    pub(crate) turn: u64,
}

/// A request without an answer.
#[derive(Clone, Debug)]
pub(crate) struct OpenRequest {
    /// Unique in its run.
    pub(crate) number: u64,
    pub(crate) kind: RequestKind,
    /// The verb, if there is one, with which the answer is read.
    pub(crate) verb: Option<Verb>,
    /// Whether the answer to this verb carries the fence.
    pub(crate) with_fence: bool,
    /// What else there is to it over HTTP.
    pub(crate) http: Option<HttpAsk>,
    /// The highest fence that any client knew when this was sent.
    pub(crate) fence_before: u64,
    /// What comes of it outlives the connection.
    pub(crate) keeps: bool,
    /// When the last byte arrived.
    pub(crate) arrived: Option<Moment>,
    /// By when the server had certainly begun with it.
    pub(crate) begun: Option<Moment>,
    /// Where in the stream it ends.
    end: u64,
}

/// What the client knows of its ticket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) mode: Mode,
    pub(crate) lease: Millis,
    pub(crate) fence_before: u64,
    pub(crate) arrived: Nanos,
    /// The turn after which the request arrived, and the turn by which it was in the queue: the
    /// order of grants is compared with these.
    pub(crate) joined: (u64, u64),
    /// The fence, if the answer was `acquired` and not `queued`.
    pub(crate) held: Option<u64>,
    /// The client has sent a `w`.
    pub(crate) waited: bool,
}

/// A walk over all pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// Where the next page begins.
    pub(crate) next: u64,
    /// When the first page was asked for at the earliest.
    pub(crate) since: Nanos,
    /// How often each lock was on a page.
    pub(crate) shown: BTreeMap<String, u32>,
}

/// The client's sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Open,
    /// The end follows the last byte in flight.
    Ending,
    /// The end has arrived.
    Ended,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: usize,
    /// What it speaks.
    pub(crate) door: Door,
    pub(crate) peer: Peer,
    /// The id that the server gave it, once it is accepted.
    pub(crate) id: Option<ConnId>,
    pub(crate) open_requests: VecDeque<OpenRequest>,
    pub(crate) tickets: BTreeMap<usize, Ticket>,
    /// The pages that it has seen of a walk that goes on.
    pub(crate) walk: Option<Walk>,
    /// It has asked for events, and asks for nothing else as long as it gets them.
    pub(crate) asks_for_events: bool,
    /// It is told events.
    pub(crate) is_stream: bool,
    /// It has asked to be the last time, or to be told events; that has arrived.
    pub(crate) closes: bool,
    pub(crate) close_arrived: bool,
    /// What it subscribes to, and since which turn. Answers change this, in the order in which the
    /// server does.
    pub(crate) subscriptions: BTreeMap<Subscription, u64>,
    /// The keys it was elected for. Another client may make it resign, and then it is told.
    pub(crate) led: BTreeSet<Vec<u8>>,
    /// How often it asked to be told something.
    pub(crate) subscribes_sent: u32,
    /// The rest of a frame of which the beginning is sent.
    pub(crate) unsent: Vec<u8>,
    pub(crate) sending: Sending,
    pub(crate) reset: bool,
    /// When the server could see that the client is gone.
    pub(crate) hung_up_at: Option<Nanos>,
    /// The server has ended the connection, or at least its own sending side.
    pub(crate) ended: bool,
    /// The turn after which the client saw that.
    pub(crate) ended_by: u64,
    /// The turn after which it was answered last.
    pub(crate) answered_by: u64,
    /// The client has sent a `RequestKind::Fatal`; it has begun to arrive.
    pub(crate) fatal_sent: bool,
    pub(crate) fatal_arrived: bool,
    /// The turn after which it was accepted.
    pub(crate) accepted_by: u64,
    /// It came during a shutdown, and is answered: nobody waits for it.
    pub(crate) came_late: bool,
    /// There was no memory for it when it came: it is told so, and the end follows.
    pub(crate) is_newcomer: bool,
    /// A line came that answers nothing, and the end follows: the read timeout has struck, or this
    /// is a newcomer.
    pub(crate) end_told: bool,
    /// The client has sent the secret, if there is one; the server has accepted it.
    pub(crate) has_shown_secret: bool,
    pub(crate) is_open: bool,
    pub(crate) hello_fence: Option<bool>,
    /// The client has sent a verb that only fence-reading clients know.
    pub(crate) reads_fence: bool,
    /// The client has sent `hello`, so `lost` may be pushed to it.
    pub(crate) may_be_pushed_to: bool,
    /// The client has said last that what it is granted outlives the connection.
    pub(crate) keeps: bool,
    /// It has asked to be told of deadlocks.
    pub(crate) tells_deadlocks: bool,
    /// Since when the client does not read.
    pub(crate) stalled: Option<Nanos>,
    /// What the client reads may have been written as long ago as this.
    pub(crate) unread_since: Option<Nanos>,
    /// The same, because the server has had too much to send since then.
    pub(crate) unsent_since: Option<Nanos>,
    /// The read timeout may have struck while the client did not read, so it cannot know.
    pub(crate) was_overdue: bool,
    /// The server wants to hear of room to write.
    pub(crate) watches_write: bool,
    /// When the next segment may arrive at the earliest, because segments keep their order.
    pub(crate) next_arrival: Nanos,
    /// When the client connected: its time to authenticate may run from here.
    connected_at: Nanos,
    /// The server cannot have begun to wait for the current line before this.
    line_since: Nanos,
    sent_bytes: u64,
    arrived_bytes: u64,
    /// Where in the stream the last frame ends that has arrived whole.
    whole_bytes: u64,
    /// Where in the stream those lines end that have not arrived.
    line_ends: VecDeque<u64>,
    received: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(client: usize, door: Door, peer: Peer, now: Nanos) -> Self {
        Self {
            client,
            door,
            peer,
            id: None,
            open_requests: VecDeque::new(),
            tickets: BTreeMap::new(),
            walk: None,
            asks_for_events: false,
            is_stream: false,
            closes: false,
            close_arrived: false,
            subscriptions: BTreeMap::new(),
            led: BTreeSet::new(),
            subscribes_sent: 0,
            unsent: Vec::new(),
            sending: Sending::Open,
            reset: false,
            hung_up_at: None,
            ended: false,
            ended_by: 0,
            answered_by: 0,
            fatal_sent: false,
            fatal_arrived: false,
            accepted_by: 0,
            came_late: false,
            is_newcomer: false,
            end_told: false,
            has_shown_secret: false,
            is_open: false,
            hello_fence: None,
            reads_fence: false,
            may_be_pushed_to: false,
            keeps: false,
            tells_deadlocks: false,
            stalled: None,
            unread_since: None,
            unsent_since: None,
            was_overdue: false,
            watches_write: false,
            next_arrival: now,
            connected_at: now,
            line_since: now,
            sent_bytes: 0,
            arrived_bytes: 0,
            whole_bytes: 0,
            line_ends: VecDeque::new(),
            received: Vec::new(),
        }
    }

    /// Notes a request of `frame` bytes; the bytes themselves go through [`Connection::send`].
    pub(crate) fn note_request(
        &mut self,
        number: u64,
        kind: RequestKind,
        verb: Option<Verb>,
        fence: (bool, u64),
        frame: usize,
        http: Option<HttpAsk>,
    ) {
        let begins = self
            .open_requests
            .back()
            .map_or(self.sent_bytes, |it| it.end);
        self.open_requests.push_back(OpenRequest {
            number,
            kind,
            verb,
            with_fence: fence.0,
            http,
            fence_before: fence.1,
            keeps: self.keeps,
            arrived: None,
            begun: None,
            end: begins.max(self.sent_bytes) + frame as u64,
        });
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        for (index, &byte) in bytes.iter().enumerate() {
            if byte == b'\n' {
                self.line_ends.push_back(self.sent_bytes + index as u64 + 1);
            }
        }
        self.sent_bytes += bytes.len() as u64;
        self.peer.send(bytes);
    }

    /// Lets a segment arrive, and the end of the stream behind the last one. Returns the requests
    /// that are whole now.
    pub(crate) fn arrive(&mut self, now: Moment, count: usize) -> Vec<OpenRequest> {
        let was_between = self.arrived_bytes == self.whole_bytes;
        self.arrived_bytes += self.peer.arrive(count) as u64;
        if self.sending == Sending::Ending && self.peer.in_flight() == 0 {
            self.sending = Sending::Ended;
            self.hung_up_at = Some(now.at);
            self.peer.close();
        }
        while let Some(&end) = self.line_ends.front()
            && end <= self.arrived_bytes
        {
            self.line_ends.pop_front();
            if self.door == Door::Line {
                self.line_since = now.at;
            }
        }
        // Over HTTP the time runs from the first byte of a request.
        if self.door == Door::Http && was_between {
            self.line_since = now.at;
        }
        let mut whole = Vec::new();
        for request in &mut self.open_requests {
            if request.arrived.is_none() && request.end <= self.arrived_bytes {
                request.arrived = Some(now);
                self.whole_bytes = request.end;
                self.close_arrived |= request.http.as_ref().is_some_and(|it| it.closes);
                if self.door == Door::Http {
                    self.line_since = now.at;
                }
                whole.push(request.clone());
            }
            if matches!(request.kind, RequestKind::Fatal(_))
                && self.arrived_bytes > self.whole_bytes
            {
                self.fatal_arrived = true;
            }
        }
        self.fatal_arrived |= whole
            .iter()
            .any(|it| matches!(it.kind, RequestKind::Fatal(_)));
        whole
    }

    /// Reads the lines that came in since the last time; nothing while the client does not read.
    pub(crate) fn receive(&mut self) -> Vec<Vec<u8>> {
        if self.stalled.is_some() {
            return Vec::new();
        }
        self.received.extend(self.peer.receive());
        let Some(end) = self.received.iter().rposition(|&byte| byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.received.split_off(end + 1);
        let lines = std::mem::replace(&mut self.received, rest);
        let lines = lines.split(|&byte| byte == b'\n');
        let mut lines: Vec<_> = lines.map(<[u8]>::to_vec).collect();
        lines.pop(); // the empty rest behind the last LF
        lines
    }

    /// The next answer or event that came in over HTTP; none while the client does not read.
    pub(crate) fn hear(&mut self) -> Result<Option<Heard>, String> {
        if self.stalled.is_some() {
            return Ok(None);
        }
        self.received.extend(self.peer.receive());
        // A request that has not come in full is answered as if nobody knew what it is.
        let asks_for_head = |it: &OpenRequest| {
            let is_head = it.http.as_ref().is_some_and(|it| it.is_head);
            is_head && it.arrived.is_some()
        };
        let expected = if self.is_stream {
            Expected::Event
        } else if !self.is_newcomer && self.open_requests.front().is_some_and(asks_for_head) {
            Expected::Head
        } else {
            Expected::Answer
        };
        http_answers::take(&mut self.received, expected)
    }

    /// Whether it has asked to acquire for another client, and was not answered yet.
    pub(crate) fn awaits_client(&self) -> bool {
        let changes = |it: &OpenRequest| {
            matches!(
                it.kind,
                RequestKind::Range(RangeAsked::Attach { .. } | RangeAsked::Detach { .. })
            )
        };
        self.open_requests.iter().any(changes)
    }

    /// Whether the last line that came in has no end.
    pub(crate) fn has_torn_line(&self) -> bool {
        !self.received.is_empty()
    }

    /// An answer came, so the server waits for a new line from here on.
    pub(crate) fn answered(&mut self, began: Nanos, request: &OpenRequest) {
        if request.kind.wait() != Millis::ZERO {
            self.line_since = self.line_since.max(self.earliest(began, request));
        }
    }

    /// When the server gave the answer that the client reads after a turn that began then, at the
    /// earliest.
    pub(crate) fn earliest(&self, began: Nanos, request: &OpenRequest) -> Nanos {
        let arrived = request.arrived.map_or(began, |moment| moment.at);
        self.told_since().map_or(began, |since| since.max(arrived))
    }

    /// When the server may have given the oldest answer that the client has not read; none if it
    /// reads in each turn what was written in it.
    pub(crate) fn told_since(&self) -> Option<Nanos> {
        self.unread_since.into_iter().chain(self.unsent_since).min()
    }

    pub(crate) fn is_mid_frame(&self) -> bool {
        self.arrived_bytes > self.whole_bytes
    }

    /// Whether the server can see that the client is gone.
    pub(crate) fn has_hung_up(&self) -> bool {
        self.sending == Sending::Ended || self.reset
    }

    /// Whether the client has done something for which the server may close, now or once it reads
    /// on.
    pub(crate) fn has_left(&self) -> bool {
        self.has_hung_up() || self.fatal_arrived
    }

    /// Whether the server may have told it more than it has read.
    pub(crate) fn is_behind(&self) -> bool {
        self.stalled.is_some() || self.told_since().is_some() || self.reset
    }

    /// Whether it may subscribe to this. A second time is as good as the first.
    pub(crate) fn has_room_for(&self, subscription: &Subscription, plan: &Plan) -> bool {
        let subscriptions_max = plan.rules.subscriptions_max as usize;
        let has_room = subscriptions_max == 0 || self.subscriptions.len() < subscriptions_max;
        subscription.is_valid() && (has_room || self.subscriptions.contains_key(subscription))
    }

    /// Whether it certainly subscribes to something; such a connection may be silent.
    pub(crate) fn is_subscribed(&self) -> bool {
        let leaves = |request: &OpenRequest| matches!(request.kind, RequestKind::Unsubscribe(_));
        !self.subscriptions.is_empty() && !self.open_requests.iter().any(leaves)
    }

    /// Whether the read timeout may have struck.
    pub(crate) fn is_overdue(&self, now: Nanos, settings: &Settings, owns: bool) -> bool {
        let mut span = settings.read_timeout;
        let mut since = self.line_since;
        if self.door == Door::Http && self.is_mid_frame() {
            span = span.min(HTTP_PART_MAX);
        }
        if settings.access.asks_for_token() && !self.is_open {
            (span, since) = (span.min(settings.auth_timeout), self.connected_at);
        }
        let late = now >= since.after(span);
        self.was_overdue || late && (self.is_mid_frame() || !owns)
    }

    /// Whether the write timeout may have struck.
    pub(crate) fn is_stuck(&self, now: Nanos, settings: &Settings) -> bool {
        // It may read again, but did not in time.
        let since = self.stalled.or(self.unread_since).unwrap_or(Nanos::NEVER);
        settings.write_timeout != Millis::ZERO && now >= since.after(settings.write_timeout)
    }
}
