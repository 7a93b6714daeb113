//! What clients do: they come, speak, fall silent and go.
//!
//! Everything they do is noted before the server can know of it; what becomes of it on the way is in
//! `faults`.

use super::connection::{Connection, Sending};
use super::lock_requests::{OPEN_QUESTIONS_MAX, Said, Speaker};
use super::request::What;
use crate::base::Millis;
use crate::pipe::pipe;
use crate::sim::plan::{Deed, Ending, pick};
use crate::sim::simulation::{Scheduled, Simulation};
use crate::sim::trace::{LINE_BYTES_KEPT, readable};

/// As a member of how many groups somebody hears what is loud: four lines are too many then.
pub(crate) const CRAVED_GROUPS: usize = 20;

impl Simulation {
    pub(crate) fn act(&mut self, client: usize) {
        self.deeds_left = self.deeds_left.saturating_sub(1);
        self.perhaps_shut_down();
        self.perhaps_pause();
        let Some(number) = self.clients[client] else {
            return self.connect(client);
        };
        let deed = self.plan.deed(&mut self.rng);
        let conn = &self.connections[&number];
        match deed {
            Deed::Idle => {}
            Deed::HalfClose => self.close(number),
            Deed::Close => {
                self.clients[client] = None;
                self.close(number);
                if self.rng.bool() {
                    // Whatever the server writes from now on is answered with a reset.
                    let after = self.think();
                    self.schedule(after, Scheduled::Break(number));
                }
            }
            Deed::Reset => self.reset(number),
            Deed::Stall => self.stall(number),
            _ if conn.poisoned || conn.farewell || conn.sending != Sending::Open => {}
            _ if !conn.unsent.is_empty() => {
                if self.rng.u8(..4) != 0 {
                    let rest = std::mem::take(&mut self.conn(number).unsent);
                    self.send(number, &rest);
                }
            }
            _ if conn.asked.len() >= OPEN_QUESTIONS_MAX => {}
            _ if !conn.asked.is_empty() && self.rng.u8(..100) >= self.plan.pipeline_pct => {}
            Deed::Burst => self.burst(number),
            Deed::Crave(_) => self.crave(number),
            Deed::Shout => self.shout(number),
            Deed::Begin => {
                if let Some(said) = self.say(number, Deed::Acquire) {
                    let cut = self.rng.usize(1..said.len());
                    self.send(number, &said[..cut]);
                    self.conn(number).unsent = said[cut..].to_vec();
                }
            }
            deed => {
                let said = self.say(number, deed);
                if let Some(said) = said.or_else(|| self.say(number, Deed::Acquire)) {
                    self.send(number, &said);
                }
            }
        }
    }

    pub(crate) fn conn(&mut self, number: u32) -> &mut Connection {
        self.connections
            .get_mut(&number)
            .expect("asked by number only while it lives")
    }

    pub(crate) fn connect(&mut self, client: usize) {
        if self.draining.is_some() {
            return;
        }
        self.connections_made += 1;
        let number = self.connections_made;
        let (server_end, peer) = pipe(number);
        self.trace
            .say(self.now, format_args!("c{client:<2} connects as {number}"));
        self.connections
            .insert(number, Connection::new(client, peer, self.now));
        self.clients[client] = Some(number);
        self.backlog.push_back((number, server_end));
        self.expect_turn();
        if self.rng.bool() {
            self.act_again(client);
        }
    }

    /// Something to do at once, besides what is on the agenda.
    pub(crate) fn act_again(&mut self, client: usize) {
        if self.deeds_left > 0 {
            let after = self.within(self.plan.delay_ms_max);
            self.schedule(after, Scheduled::React(client));
        }
    }

    /// Notes one question and returns its bytes.
    fn say(&mut self, number: u32, deed: Deed) -> Option<Vec<u8>> {
        let conn = &self.connections[&number];
        let mut speaker = Speaker {
            rng: &mut self.rng,
            plan: &self.plan,
            history: &self.history,
            things: &self.things,
            serial: self.questions + 1,
            number,
            conn,
            now: self.now,
        };
        let said = speaker.say(deed)?;
        Some(self.utter(number, said))
    }

    /// Notes what is said, and returns its bytes.
    pub(crate) fn utter(&mut self, number: u32, said: Said) -> Vec<u8> {
        let Said {
            what,
            frame,
            with_fence,
        } = said;
        let conn = &self.connections[&number];
        let shown = readable(&on_one_line(&frame[..frame.len().min(LINE_BYTES_KEPT)]));
        self.trace
            .say(self.now, format_args!("c{:<2} -> {shown}", conn.client));
        self.trace.mix_line(&frame);
        self.questions += 1;
        let question = self.questions;
        match what {
            What::Release {
                target: Some(fence),
                ..
            } => self.history.release_sent(fence),
            What::Renew {
                target: Some(fence),
                lease,
                ..
            } => self.history.renewal_sent(fence, question, self.now, lease),
            What::Wait { key, .. } => {
                self.waits.insert((number, key));
                let ticket = self.conn(number).tickets.get_mut(&key);
                if let Some(ticket) = ticket.filter(|ticket| !ticket.waited) {
                    ticket.waited = true;
                    if let (Some(fence), lease) = (ticket.held, ticket.lease) {
                        self.history.renewal_sent(fence, question, self.now, lease);
                    }
                }
            }
            What::TakeSeat(_) => self.conn(number).listens += 1,
            What::Signal {
                ref channel,
                ref payload,
            } => {
                self.hearing.signal_sent(number, channel, payload);
            }
            What::Last(_) => {
                self.conn(number).poisoned = true;
                self.history.owner_leaves(number);
            }
            _ => {}
        }
        let fence_before = self.history.fence_max;
        let conn = self.conn(number);
        match what {
            What::Ok if frame.starts_with(b"auth") => conn.has_shown_secret = true,
            What::Hello => {
                conn.may_be_pushed_to = true;
                if let Some(at) = frame.windows(6).position(|part| part == b"fence=") {
                    conn.hello_fence = Some(frame[at + 6] == b'1');
                }
            }
            _ => {}
        }
        conn.ask(question, what, (with_fence, fence_before), frame.len());
        frame
    }

    /// Many frames in one go, of which some may have to wait for another turn. Long answers to
    /// somebody who does not read them fill the outbox, and then even more have to.
    fn burst(&mut self, number: u32) {
        let mut count = *pick(&mut self.rng, &[3, 10, 10, 60]);
        let mut deeds = &[
            Deed::Ask,
            Deed::Ask,
            Deed::Acquire,
            Deed::Enqueue,
            Deed::Release,
            Deed::Push,
            Deed::Pop,
            Deed::Count,
            Deed::Signal,
        ][..];
        let has_long_answers = self.plan.keys.iter().any(|(name, _)| name.contains(&1));
        if has_long_answers && self.rng.bool() {
            (count, deeds) = (OPEN_QUESTIONS_MAX / 2, &[Deed::AskAll]);
            self.stall(number);
        }
        let mut bytes = Vec::new();
        for _ in 0..count {
            let deed = *pick(&mut self.rng, deeds);
            if !self.connections[&number].poisoned
                && let Some(said) = self.say(number, deed)
            {
                bytes.extend(said);
            }
        }
        if !bytes.is_empty() {
            self.send(number, &bytes);
        }
    }

    /// Listens so much that a few signals are too many; then stops reading.
    fn crave(&mut self, number: u32) {
        if self.connections[&number].listens as usize >= CRAVED_GROUPS {
            return self.stall_for(number, 100, 12 * self.plan.think_ms_max);
        }
        let mut bytes = Vec::new();
        for group in 0..CRAVED_GROUPS {
            if !self.connections[&number].poisoned {
                bytes.extend(self.say(number, Deed::Crave(group)).unwrap_or_default());
            }
        }
        self.send(number, &bytes);
    }

    /// More of the longest signals than somebody who does not read can take.
    fn shout(&mut self, number: u32) {
        let mut bytes = Vec::new();
        for _ in 0..self.rng.u32(1..=6) {
            // What follows must be answered too, even if it is itself who hears so much.
            for deed in [Deed::Shout, Deed::Ask] {
                if !self.connections[&number].poisoned {
                    bytes.extend(self.say(number, deed).unwrap_or_default());
                }
            }
        }
        self.send(number, &bytes);
    }

    /// The last deed is done.
    pub(crate) fn end(&mut self) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        self.trace
            .say(self.now, format_args!("the end: {:?}", self.plan.ending));
        let may_stay = match self.plan.ending {
            Ending::Leave => false,
            Ending::Silence => true,
            Ending::Drain | Ending::Kill => {
                self.plan.settings.shutdown_timeout != Millis::ZERO && self.rng.bool()
            }
        };
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        for number in numbers {
            let conn = &self.connections[&number];
            let mut asked = conn.asked.iter();
            // A client with a ticket is never cut off, so silence would never end.
            let has_place = !conn.tickets.is_empty()
                || !conn.seats.is_empty()
                || asked.any(|it| matches!(it.what, What::Enqueue { .. } | What::TakeSeat(_)));
            if may_stay && !has_place {
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

/// For the trace.
fn on_one_line(frame: &[u8]) -> Vec<u8> {
    let blank = |&byte: &u8| if byte == b'\n' { b' ' } else { byte };
    frame.iter().map(blank).collect()
}
