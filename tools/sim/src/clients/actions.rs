//! What clients do: they connect, send requests, fall silent and leave.
//!
//! Everything is noted before the server can know of it. What becomes of the bytes on their way is
//! in `faults`.

use super::connection::{Connection, Sending};
use super::http_requests::{KEPT_ASKS_MAX, KeptAsk};
use super::lock_requests::{OPEN_REQUESTS_MAX, RequestWriter, WrittenRequest};
use super::range_requests::RangeWriter;
use super::request::{Look, RequestKind};
use crate::faults::http::with_short_lease;
use crate::faults::ranges::altered;
use crate::pipe::{encrypted_pipe, metered_pipe};
use crate::plan::{Action, Ending, pick};
use crate::simulation::{Scheduled, Simulation};
use crate::trace::{LINE_BYTES_KEPT, readable};
use crate::{HttpFault, Sabotage};
use latchd::base::Millis;
use latchd::server::{Door, Host};
use latchd::tls::MaybeTls;

/// How many groups a client joins to hear a loud signal so often that four signals are too many.
pub(crate) const LOUD_GROUPS: usize = 20;

impl Simulation {
    pub(crate) fn act(&mut self, client: usize) -> Result<(), String> {
        self.actions_left = self.actions_left.saturating_sub(1);
        self.perhaps_restart()?;
        self.perhaps_shut_down();
        self.perhaps_pause();
        self.perhaps_break_disk();
        self.perhaps_crowd();
        self.act_as(client);
        Ok(())
    }

    fn act_as(&mut self, client: usize) {
        let Some(number) = self.clients[client] else {
            return self.connect(client);
        };
        if client >= self.plan.clients {
            return self.act_on_ranges(client, number);
        }
        let action = self.plan.action(&mut self.rng);
        let conn = &self.life.connections[&number];
        match action {
            Action::Idle => {}
            Action::HalfClose => self.close(number),
            Action::Close => {
                self.clients[client] = None;
                self.close(number);
                if self.rng.bool() {
                    // Whatever the server writes after this is answered with a reset.
                    let after = self.think();
                    self.schedule(after, Scheduled::Break(number));
                }
            }
            Action::Reset => self.reset(number),
            Action::Stall => self.stall(number),
            _ if conn.fatal_sent || conn.end_told || conn.sending != Sending::Open => {}
            _ if conn.asks_for_events || conn.closes => {
                // It asks for nothing else, but what it has begun it sends.
                let rest = std::mem::take(&mut self.conn(number).unsent);
                if !rest.is_empty() {
                    self.send(number, &rest);
                }
            }
            _ if !conn.unsent.is_empty() => {
                if self.rng.u8(..4) != 0 {
                    let rest = std::mem::take(&mut self.conn(number).unsent);
                    self.send(number, &rest);
                }
            }
            _ if conn.open_requests.len() >= OPEN_REQUESTS_MAX => {}
            _ if !conn.open_requests.is_empty() && self.rng.u8(..100) >= self.plan.pipeline_pct => {
            }
            Action::Burst => self.burst(number),
            Action::ListenLoud(_) if conn.door == Door::Line => self.listen_loud(number),
            Action::SignalLoud => self.signal_loud(number),
            Action::BeginFrame => {
                if let Some(written) = self.write_request(number, Action::Acquire) {
                    let cut = self.rng.usize(1..written.len());
                    self.send(number, &written[..cut]);
                    self.conn(number).unsent = written[cut..].to_vec();
                }
            }
            action => {
                let written = self.write_request(number, action);
                if let Some(written) =
                    written.or_else(|| self.write_request(number, Action::Acquire))
                {
                    self.send(number, &written);
                }
            }
        }
    }

    /// What a client does that locks bytes.
    fn act_on_ranges(&mut self, client: usize, number: u32) {
        if self.rng.u8(..100) < self.plan.ranges.leave_pct {
            return match self.rng.u8(..8) {
                0 => self.stall(number),
                1 => self.close(number),
                2..5 => {
                    self.clients[client] = None;
                    self.close(number);
                }
                _ => self.reset(number),
            };
        }
        let mut bytes = Vec::new();
        let count = *pick(&mut self.rng, &[1, 1, 1, 1, 1, 1, 4]);
        for _ in 0..count {
            let conn = &self.life.connections[&number];
            let is_open = conn.sending == Sending::Open && !conn.end_told && !conn.ended;
            let has_open = !conn.open_requests.is_empty();
            let may_follow = count > 1 || self.rng.u8(..100) < self.plan.pipeline_pct;
            if !is_open || has_open && !may_follow || conn.awaits_client() {
                break;
            }
            let mut writer = RangeWriter {
                rng: &mut self.rng,
                plan: &self.plan,
                known: &self.life.known_ranges,
                number,
                conn,
                home: self.plan.ranges.homes[client - self.plan.clients],
            };
            if let Some(written) = writer.write() {
                bytes.extend(self.note_request(number, written));
            }
        }
        if !bytes.is_empty() {
            self.send(number, &bytes);
        }
    }

    pub(crate) fn conn(&mut self, number: u32) -> &mut Connection {
        self.life
            .connections
            .get_mut(&number)
            .expect("asked by number only while it lives")
    }

    pub(crate) fn connect(&mut self, client: usize) {
        self.connect_by(client, self.plan.door(client));
    }

    pub(crate) fn connect_by(&mut self, client: usize, door: Door) {
        if !self.life.is_listening() {
            return self.trace.say(
                self.now,
                format_args!("c{client:<2} finds nobody listening"),
            );
        }
        self.connections_made += 1;
        let number = self.connections_made;
        // Each from its own host, so that no wrong secret makes others wait: whoever asks is
        // answered at once.
        let host = Host::User(number);
        let (server_end, peer) = match self.plan.dialect(number) {
            None => {
                let (pipe, peer) = metered_pipe(number, host, &self.meter);
                (MaybeTls::Plain(pipe), peer)
            }
            Some(dialect) => {
                self.totals.encrypted += 1;
                let memory = self.life.server.transport_memory();
                encrypted_pipe(number, host, &self.meter, door, dialect, memory)
            }
        };
        let over = match server_end {
            MaybeTls::Plain(_) => "",
            MaybeTls::Tls(_) => " with TLS",
        };
        self.trace.say(
            self.now,
            format_args!("c{client:<2} connects as {number}, {door:?}{over}"),
        );
        self.life
            .connections
            .insert(number, Connection::new(client, door, peer, self.now));
        self.clients[client] = Some(number);
        self.life.backlog.push_back((number, server_end));
        self.expect_turn();
        if self.rng.bool() {
            self.act_again(client);
        }
    }

    /// Lets the client act soon, besides what is on the agenda.
    pub(crate) fn act_again(&mut self, client: usize) {
        if self.actions_left > 0 {
            let after = self.within(self.plan.delay_ms_max);
            self.schedule(after, Scheduled::React(client));
        }
    }

    /// Writes a request for this action and returns its bytes, unless there is nothing to ask for.
    fn write_request(&mut self, number: u32, action: Action) -> Option<Vec<u8>> {
        let conn = &self.life.connections[&number];
        let mut writer = RequestWriter {
            rng: &mut self.rng,
            plan: &self.plan,
            known_grants: &self.life.known_grants,
            known_entries: &self.life.known_entries,
            request_number: self.requests_made + 1,
            number,
            conn,
            now: self.now,
        };
        let written = match conn.door {
            Door::Line => writer.write(action)?,
            Door::Http => writer.write_http(action, self.life.known_grants.kept_asks())?,
        };
        Some(self.note_request(number, written))
    }

    /// Notes a request, and returns its bytes.
    pub(crate) fn note_request(&mut self, number: u32, written: WrittenRequest) -> Vec<u8> {
        let WrittenRequest {
            kind,
            verb,
            mut frame,
            with_fence,
            shows_fence_reader,
            http,
        } = written;
        let conn = &self.life.connections[&number];
        let keeps = conn.keeps;
        let is_acquire = matches!(kind, RequestKind::Acquire { .. });
        if self.sabotage == Some(Sabotage::Http(HttpFault::ShortLeases)) && is_acquire {
            frame = with_short_lease(&frame);
        }
        if let Some(Sabotage::Range(fault)) = self.sabotage {
            frame = altered(fault, &kind, frame);
        }
        let shown = readable(&on_one_line(&frame[..frame.len().min(LINE_BYTES_KEPT)]));
        self.trace
            .say(self.now, format_args!("c{:<2} -> {shown}", conn.client));
        self.trace.mix_line(&frame);
        self.requests_made += 1;
        let request_number = self.requests_made;
        match kind {
            RequestKind::Release {
                target: Some(fence),
                ..
            } => self.life.known_grants.release_sent(fence),
            RequestKind::Renew {
                target: Some(fence),
                lease,
                ..
            } => self.life.known_grants.renewal_sent(
                fence,
                request_number,
                (number, keeps),
                self.now,
                lease,
                http.is_some(),
            ),
            RequestKind::Break { fence, .. } => self.life.known_grants.break_sent(fence),
            RequestKind::Range(asked) => self.life.known_ranges.sent(request_number, number, asked),
            RequestKind::Acquire { .. } if http.as_ref().is_some_and(|it| !it.id.is_empty()) => {
                let kept = KeptAsk {
                    kind: kind.clone(),
                    verb,
                    ask: http.clone().unwrap_or_default(),
                    frame: frame.clone(),
                };
                self.life.known_grants.ask_sent(kept, KEPT_ASKS_MAX);
            }
            RequestKind::Wait { key, .. } => {
                self.life.waits.insert((number, key));
                let ticket = self.conn(number).tickets.get_mut(&key);
                if let Some(ticket) = ticket.filter(|ticket| !ticket.waited) {
                    ticket.waited = true;
                    if let (Some(fence), lease) = (ticket.held, ticket.lease) {
                        self.life.known_grants.renewal_sent(
                            fence,
                            request_number,
                            (number, keeps),
                            self.now,
                            lease,
                            false,
                        );
                        self.life.known_grants.asked_again(fence, keeps);
                    }
                }
            }
            RequestKind::Subscribe(_) => {
                let conn = self.conn(number);
                conn.subscribes_sent += 1;
                conn.asks_for_events = conn.door == Door::Http;
            }
            RequestKind::Look(Look::Figures) => self.conn(number).asks_for_events = true,
            RequestKind::Signal {
                ref channel,
                ref payload,
            } => {
                self.life.known_pushes.signal_sent(number, channel, payload);
            }
            RequestKind::Fatal(_) => {
                self.conn(number).fatal_sent = true;
                self.life.known_grants.owner_leaves(number);
            }
            _ => {}
        }
        let fence_before = self.life.known_grants.fence_max;
        // Whoever claims what a leader held may be told to resign.
        if let RequestKind::Renew {
            key,
            target: Some(fence),
            ..
        } = kind
            && self.life.known_grants.is_unclaimed(fence)
        {
            let name = self.plan.keys[key].0.clone();
            self.conn(number).led.insert(name);
        }
        let conn = (self.life.connections.get_mut(&number)).expect("it has just asked");
        conn.closes |= http.as_ref().is_some_and(|it| it.closes);
        conn.reads_fence |= shows_fence_reader;
        match kind {
            RequestKind::Ok if frame.starts_with(b"auth") => conn.has_shown_secret = true,
            RequestKind::Hello => {
                conn.may_be_pushed_to = true;
                if let Some(at) = frame.windows(6).position(|part| part == b"fence=") {
                    conn.hello_fence = Some(frame[at + 6] == b'1');
                }
                conn.tells_deadlocks |= frame.windows(9).any(|part| part == b"deadlock=");
                if let Some(at) = frame.windows(5).position(|part| part == b"keep=") {
                    conn.keeps = frame[at + 5] == b'1';
                    self.life.keepers.extend(conn.keeps.then_some(number));
                    if self.sabotage == Some(Sabotage::ForgetKeep) {
                        frame[at + 5] = b'0';
                    }
                }
            }
            _ => {}
        }
        conn.note_request(
            request_number,
            kind,
            verb,
            (with_fence, fence_before),
            frame.len(),
            http,
        );
        frame
    }

    /// Sends many frames in one go, some of which may have to wait for another turn. Long answers
    /// fill the outbox of a client that does not read them, and then even more frames have to wait.
    fn burst(&mut self, number: u32) {
        let mut count = *pick(&mut self.rng, &[3, 10, 10, 60]);
        let mut actions = &[
            Action::Inspect,
            Action::Inspect,
            Action::Acquire,
            Action::Enqueue,
            Action::Release,
            Action::Push,
            Action::Pop,
            Action::Counter,
            Action::Signal,
        ][..];
        let has_long_answers = self.plan.keys.iter().any(|(name, _)| name.contains(&1));
        if has_long_answers && self.rng.bool() {
            (count, actions) = (OPEN_REQUESTS_MAX / 2, &[Action::Stats]);
            self.stall(number);
        }
        let mut bytes = Vec::new();
        for _ in 0..count {
            let action = *pick(&mut self.rng, actions);
            let conn = &self.life.connections[&number];
            if !(conn.fatal_sent || conn.closes || conn.asks_for_events)
                && let Some(written) = self.write_request(number, action)
            {
                bytes.extend(written);
            }
        }
        if !bytes.is_empty() {
            self.send(number, &bytes);
        }
    }

    /// Listens so often that a few signals are too many; then stops reading.
    fn listen_loud(&mut self, number: u32) {
        if self.life.connections[&number].subscribes_sent as usize >= LOUD_GROUPS {
            return self.stall_for(number, 100, 12 * self.plan.think_ms_max);
        }
        let mut bytes = Vec::new();
        for group in 0..LOUD_GROUPS {
            if !self.life.connections[&number].fatal_sent {
                bytes.extend(
                    self.write_request(number, Action::ListenLoud(group))
                        .unwrap_or_default(),
                );
            }
        }
        self.send(number, &bytes);
    }

    /// Sends more of the longest signals than a client that does not read can take.
    fn signal_loud(&mut self, number: u32) {
        let mut bytes = Vec::new();
        for _ in 0..self.rng.u32(1..=6) {
            // The request after it must be answered too, even if this client hears its own signals.
            for action in [Action::SignalLoud, Action::Inspect] {
                let conn = &self.life.connections[&number];
                if !(conn.fatal_sent || conn.closes || conn.asks_for_events) {
                    bytes.extend(self.write_request(number, action).unwrap_or_default());
                }
            }
        }
        self.send(number, &bytes);
    }

    /// Ends the run as planned: no client acts any more.
    pub(crate) fn end(&mut self) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        self.trace
            .say(self.now, format_args!("the end: {:?}", self.plan.ending));
        self.crowd_leaves(..);
        let may_stay = match self.plan.ending {
            Ending::Leave => false,
            Ending::Silence => true,
            Ending::Drain | Ending::Kill => {
                self.plan.settings.shutdown_timeout != Millis::ZERO && self.rng.bool()
            }
        };
        let numbers: Vec<u32> = self.life.connections.keys().copied().collect();
        for number in numbers {
            let conn = &self.life.connections[&number];
            let mut requests = conn.open_requests.iter();
            // The server never cuts off a client that waits or subscribes, so silence would never
            // end.
            let never_times_out = !conn.tickets.is_empty()
                || conn.client >= self.plan.clients
                || conn.asks_for_events
                || !conn.subscriptions.is_empty()
                || requests.any(|it| {
                    matches!(
                        it.kind,
                        RequestKind::Enqueue { .. } | RequestKind::Subscribe(_)
                    )
                });
            if may_stay && !never_times_out {
                continue;
            }
            if self.rng.u8(..4) == 0 {
                let at = self.think();
                self.schedule(at, Scheduled::Break(number));
            } else {
                self.close(number);
            }
        }
    }
}

/// The frame as one line, for the trace.
fn on_one_line(frame: &[u8]) -> Vec<u8> {
    let blank = |&byte: &u8| if byte == b'\n' { b' ' } else { byte };
    frame.iter().map(blank).collect()
}
