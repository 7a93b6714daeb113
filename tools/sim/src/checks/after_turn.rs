//! Everything that must hold after a turn.
//!
//! Finds the connections that the server has ended and asks for the reason, reads what the server
//! wrote to each client and has it checked, compares the tables with the turn before and with what
//! clients know, and, when the server has nothing to do, looks for anybody who was forgotten.

use std::collections::BTreeMap;

use super::answers::{AnswerCheck, AnswerKind};
use super::crowd::LOOK_EVERY;
use super::entries::Parked;
use super::grants::KnownGrants;
use super::key_events::{TurnFacts, is_attentive};
use super::limits::Room;
use super::lock_table::{EndReasons, SeenLocks};
use super::reports::ReportCheck;
use crate::Sabotage;
use crate::clients::connection::{Connection, Moment, Sending};
use crate::clients::http_answers::Heard;
use crate::clients::request::{EntryKind, RequestKind};
use crate::faults::http::broken;
use crate::faults::ranges::heard;
use crate::life::{Draining, Life};
use crate::simulation::Simulation;
use crate::trace::readable;
use latchd::base::{Millis, Nanos};
use latchd::server::Door;

/// How long somebody with a wrong secret may have to wait for the answer.
const WRONG_SECRET_MAX: Millis = Millis(101);

/// Most ids of connections that are gone that are kept, to be reported to the server.
const STALE_MAX: usize = 4;

impl Simulation {
    /// The order of the checks.
    pub(crate) fn check_turn(&mut self) -> Result<(), String> {
        let numbers: Vec<u32> = self.life.connections.keys().copied().collect();
        self.note_unsent();
        self.note_full();
        // Ends come first: a client that was cut off holds nothing any more, and in the same turn
        // the next one may have been told of its grant.
        for &number in &numbers {
            self.notice_end(number)?;
        }
        self.check_ranges()?;
        let requests_per_key = self.requests_per_key();
        let parked = self.parked();
        let room = self.look_at_limits()?;
        for &number in &numbers {
            self.read_lines(number, &requests_per_key, room.as_ref())
                .map_err(|why| format!("connection {number}: {why}"))?;
        }
        let before = self.before_reports();
        self.check_table()?;
        self.check_claims()?;
        self.check_reports(before, &requests_per_key)?;
        let Life {
            known_grants,
            seen_locks,
            span,
            ..
        } = &mut *self.life;
        known_grants.turn_ended(span.began, self.turn, seen_locks);
        known_grants.check_exclusion(self.now)?;
        self.check_promptness()?;
        self.check_entries(parked)?;
        for &number in &numbers {
            self.forget_ended(number)
                .map_err(|why| format!("connection {number}: {why}"))?;
        }
        if self.is_quiet() {
            self.check_quiet()?;
        }
        self.check_lives()?;
        self.check_drain()
    }

    /// A turn that had too much to send goes on in the next one. Until then any client may be told
    /// something that happened in this one.
    fn note_unsent(&mut self) {
        // So does what is not on the disk yet.
        if self.life.server.has_unsent() || !self.is_kept() {
            for conn in self.life.connections.values_mut() {
                conn.unsent_since.get_or_insert(self.life.span.began);
            }
        }
    }

    fn note_full(&mut self) {
        let data = self.data.as_ref();
        if data.is_some_and(|data| data.keeper.borrow().is_refusing) {
            self.life.full_in_turn = Some(self.turn);
        }
    }

    /// Whether the server has, or may have, a reason to end this connection.
    pub(crate) fn has_reason_to_end(&self, number: u32, conn: &Connection) -> bool {
        let settings = &self.plan.settings;
        let owns = conn.is_subscribed()
            || self.life.known_ranges.owns_something(number)
            || self.life.known_grants.owns_something(number, self.now);
        // A shutdown waits for clients that hold something, not for those that only listen; nor for
        // what will be held again after it.
        let is_done = (self.plan.disk.is_some()
            || !self.life.known_grants.owns_something(number, self.now))
            && !self.keeps_shutdown_waiting(number);
        let is_over = self.life.draining.is_some() && (is_done || self.is_shutdown_forced());
        // A client that said `hello` and does not read its pushes is a slow consumer.
        let is_slow = conn.may_be_pushed_to && conn.unread_since.is_some();
        // A connection that was not let in makes room for others, at either of two bounds.
        let is_bounded = settings.connections_max != 0 || settings.memory_max != 0;
        let makes_room = settings.access.asks_for_token() && !conn.is_open && is_bounded;
        conn.has_left()
            || conn.close_arrived
            || conn.end_told
            || makes_room
            || is_slow
            || is_over
            || conn.is_overdue(self.now, settings, owns)
            || conn.is_stuck(self.now, settings)
            || self.may_be_overrun(conn)
            || self.may_be_in_the_way(conn)
    }

    /// Whether it may have kept others from their answers by not reading its own, where memory is
    /// bounded.
    fn may_be_in_the_way(&self, conn: &Connection) -> bool {
        let is_long = |since: Nanos| self.now.since(since) >= Millis(250).nanos();
        self.plan.is_tight() && conn.unread_since.is_some_and(is_long)
    }

    /// Whether the shutdown closes every connection: after a second signal, or its timeout.
    pub(crate) fn is_shutdown_forced(&self) -> bool {
        let timeout = self.plan.settings.shutdown_timeout;
        self.life.is_killed
            || self.life.draining.is_some_and(|draining| {
                timeout != Millis::ZERO && self.now >= draining.began.after(timeout)
            })
    }

    /// Whether the server may have had more to tell it than it keeps for one connection.
    fn may_be_overrun(&self, conn: &Connection) -> bool {
        (self.plan.is_loud || self.plan.is_tight()) && conn.is_behind() && conn.subscribes_sent > 0
    }

    /// Notices that the server has ended a connection, and asks for the reason.
    fn notice_end(&mut self, number: u32) -> Result<(), String> {
        let conn = &self.life.connections[&number];
        let owns = conn.is_subscribed()
            || self.life.known_ranges.owns_something(number)
            || self.life.known_grants.owns_something(number, self.now);
        let many_end = self.plan.crowd.is_some() || self.life.draining.is_some();
        if many_end && self.has_reason_to_end(number, conn) {
            // Where many end at once, its client may see the end some turns later.
            self.life.known_grants.owner_leaves(number);
        }
        let conn = self
            .life
            .connections
            .get_mut(&number)
            .expect("listed this turn");
        if conn.stalled.is_some() && conn.is_overdue(self.now, &self.plan.settings, owns) {
            // The server may have cut it off, and it cannot know, so it can be sure of nothing.
            conn.was_overdue = true;
            self.life.known_grants.owner_leaves(number);
        }
        if conn.ended || !conn.peer.is_ended() {
            return Ok(());
        }
        let conn = &self.life.connections[&number];
        let was_refused = conn.id.is_none();
        if !was_refused && !self.has_reason_to_end(number, conn) {
            return Err(format!("connection {number} was ended for no reason"));
        }
        let (client, is_ours) = (conn.client, conn.has_left());
        if !is_ours {
            self.totals.cut_off += 1;
            self.totals.overrun += u64::from(self.may_be_overrun(conn));
        }
        self.trace
            .say(self.now, format_args!("c{client:<2} <- end of {number}"));
        if self.data.is_some() && self.life.draining.is_some() {
            // A server that stops is not a client that left: what it holds may be held on.
            self.life.known_grants.owner_leaves(number);
        } else {
            self.life.known_grants.owner_is_gone(number, self.turn);
        }
        let conn = self
            .life
            .connections
            .get_mut(&number)
            .expect("looked at above");
        conn.ended = true;
        conn.ended_by = self.turn;
        conn.stalled = None; // it reads what is there, and no more will come
        Ok(())
    }

    /// How many requests about each key the server may have seen in this turn.
    fn requests_per_key(&self) -> Vec<u32> {
        let mut requests_per_key = vec![0; self.plan.keys.len()];
        for request in self
            .life
            .connections
            .values()
            .flat_map(|conn| &conn.open_requests)
        {
            if let Some(key) = request.kind.key().filter(|_| request.arrived.is_some()) {
                requests_per_key[key] += 1;
            }
            // To observe a key makes the server look at its leases first, whichever key it is.
            if matches!(request.kind, RequestKind::Subscribe(_)) && request.arrived.is_some() {
                requests_per_key.iter_mut().for_each(|count| *count += 1);
            }
        }
        requests_per_key
    }

    /// Reads what the server wrote to this client, and checks it.
    fn read_lines(
        &mut self,
        number: u32,
        requests_per_key: &[u32],
        room: Option<&Room>,
    ) -> Result<(), String> {
        let conn = self
            .life
            .connections
            .get_mut(&number)
            .expect("listed this turn");
        let client = conn.client;
        let first = conn.open_requests.front().map(|request| request.number);
        let tally = self.life.server.engine().tally();
        let mut lines = match conn.door {
            Door::Line => conn.receive(),
            Door::Http => Vec::new(),
        }
        .into_iter();
        let mut once_more = None;
        loop {
            let mut check = AnswerCheck {
                plan: &self.plan,
                known_grants: &mut self.life.known_grants,
                before: &self.life.seen_locks,
                requests_per_key,
                room,
                first,
                known_entries: &mut self.life.known_entries,
                known_pushes: &mut self.life.known_pushes,
                known_ranges: &mut self.life.known_ranges,
                reports: &mut self.life.reports,
                conn_number: number,
                now: self.now,
                turn: self.turn,
                span: self.life.span,
                epoch: self.life.epoch,
                has_restored: self.life.has_restored,
                full_in_turn: self.life.full_in_turn,
                draining: self.life.draining.map(|it| it.turn),
                tally,
            };
            let line = match conn.door {
                Door::Line => lines.next(),
                Door::Http => {
                    let sabotage = self.sabotage;
                    match hear(conn, &mut once_more, sabotage, check.known_grants)? {
                        None => None,
                        Some(heard) => {
                            self.totals.http_answers += 1;
                            match check.line_of(conn, &heard)? {
                                Some(line) => Some(line),
                                None => continue,
                            }
                        }
                    }
                }
            };
            let Some(mut line) = line else {
                break;
            };
            if let Some(Sabotage::Range(fault)) = self.sabotage {
                line = heard(fault, conn, line);
            }
            self.trace.say(
                self.now,
                format_args!("c{client:<2} <- {}", readable(&line)),
            );
            self.trace.mix_line(&line);
            self.totals.answers += 1;
            match check.check_line(conn, &line)? {
                AnswerKind::Granted => self.totals.grants_told += 1,
                AnswerKind::NamedGrant => {
                    self.totals.grants_told += 1;
                    self.totals.named_grants += 1;
                }
                AnswerKind::GrantedAgain => self.totals.granted_again += 1,
                AnswerKind::Page => self.totals.pages += 1,
                AnswerKind::Walk => {
                    self.totals.pages += 1;
                    self.totals.walks += 1;
                }
                AnswerKind::Head => self.totals.heads += 1,
                AnswerKind::Figures => self.totals.figures += 1,
                AnswerKind::TimedOut => self.totals.timeouts += 1,
                AnswerKind::Entry => self.totals.entry_answers += 1,
                AnswerKind::Swapped => self.totals.swaps += 1,
                AnswerKind::Met => self.totals.met += 1,
                AnswerKind::Report => self.totals.reports += 1,
                AnswerKind::Reclaimed => self.totals.reclaimed += 1,
                AnswerKind::RangeGranted => self.totals.ranges_granted += 1,
                AnswerKind::RangeReclaimed => self.totals.ranges_reclaimed += 1,
                AnswerKind::RangeNotReclaimed => self.totals.ranges_not_reclaimed += 1,
                AnswerKind::InGrace => self.totals.refused_in_grace += 1,
                AnswerKind::Cancelled => self.totals.cancelled += 1,
                AnswerKind::Deadlock => self.totals.deadlocks += 1,
                AnswerKind::RangeLimit => self.totals.range_limits += 1,
                AnswerKind::Resumed => self.totals.resumed += 1,
                AnswerKind::NoRoom => self.totals.no_room += 1,
                AnswerKind::NoMemory => self.totals.no_memory += 1,
                AnswerKind::NoDisk => self.totals.refused_by_disk += 1,
                AnswerKind::Other => {}
            }
        }
        let is_free =
            conn.open_requests.is_empty() && conn.sending == Sending::Open && !conn.asks_for_events;
        if is_free && self.totals.answers > 0 && self.rng.u8(..100) < self.plan.eager_pct / 4 {
            self.act_again(client);
        }
        Ok(())
    }

    /// Forgets a connection that has ended, after asking why its open requests had no answer.
    fn forget_ended(&mut self, number: u32) -> Result<(), String> {
        let conn = &self.life.connections[&number];
        if !conn.ended {
            return Ok(());
        }
        let client = conn.client;
        if !conn.peer.is_closed() {
            // The server writes no more. A client that reads this closes too, or lets the server
            // wait.
            if self.rng.bool() {
                self.close(number);
            }
            return Ok(());
        }
        // Cleanly means that it ended for no other reason than the end of the client's stream.
        let cleanly = conn.id.is_some()
            && conn.sending == Sending::Ended
            && !(conn.reset || conn.fatal_sent || conn.end_told)
            && conn.unread_since.is_none()
            && !self.is_held_up_by_unread()
            && self.life.draining.is_none();
        if cleanly {
            let first = conn
                .open_requests
                .iter()
                .find(|request| request.arrived.is_some());
            if conn.has_torn_line() {
                return Err("ended within a line".to_owned());
            }
            if let Some(request) = first
                && request.kind.wait() == Millis::ZERO
            {
                return Err(format!("ended without an answer to {:?}", request.kind));
            }
        }
        let reads = !conn.reset && conn.unread_since.is_none();
        if conn.is_newcomer && reads && !conn.end_told && !self.is_shutdown_forced() {
            return Err("was refused when it came, and not told so".to_owned());
        }
        let is_lossy = conn.is_behind() || conn.fatal_sent || self.life.draining.is_some();
        let conn = self
            .life
            .connections
            .remove(&number)
            .expect("looked at above");
        if is_lossy {
            self.life
                .known_pushes
                .note_ended_unread(number, conn.subscribes_sent);
            self.life.known_entries.was_given_back |=
                conn.open_requests.iter().any(|it| it.kind.is_pop());
        }
        self.life.known_ranges.conn_is_gone(number, self.turn);
        for request in conn.open_requests {
            let popped = request.kind.popped_list();
            if let Some(key) = popped.filter(|_| is_lossy && request.arrived.is_some()) {
                *self.life.lost_pops.entry(key).or_default() += 1;
            }
            let fence = match request.kind {
                RequestKind::Renew { target, .. } => target,
                RequestKind::Wait { key, .. } => {
                    conn.tickets.get(&key).and_then(|ticket| ticket.held)
                }
                _ => None,
            };
            if let Some(fence) = fence {
                self.life
                    .known_grants
                    .renewal_lost(self.now, fence, request.number);
            }
        }
        self.life.stale.extend(conn.id);
        if self.life.stale.len() > STALE_MAX {
            self.life.stale.pop_front();
        }
        if self.clients[client] == Some(number) {
            self.clients[client] = None;
        }
        Ok(())
    }

    fn check_table(&mut self) -> Result<(), String> {
        // A walk over everything.
        if self.plan.crowd.is_none() || self.turn.is_multiple_of(LOOK_EVERY) {
            self.life.server.engine().check();
            self.check_crowd()?;
        }
        let names: Vec<&[u8]> = self.plan.keys.iter().map(|(name, _)| &name[..]).collect();
        // Taken out, because it looks at the rest of the simulation while it changes.
        let mut seen_locks = std::mem::take(&mut self.life.seen_locks);
        let has_left = |number: u32| {
            let conn = self.life.connections.get(&number);
            conn.is_none_or(|conn| conn.ended || self.has_reason_to_end(number, conn))
        };
        let outlasts = |number: u32| {
            let conn = self.life.connections.get(&number);
            let has_asked = |it: &Connection| {
                let is_open = it.open_requests.iter().any(|it| it.arrived.is_some());
                is_open || it.answered_by == self.turn
            };
            let is_cut_off = self.life.draining.is_some() && has_left(number);
            self.data.is_some() && (is_cut_off || conn.is_some_and(has_asked))
        };
        let reasons = EndReasons {
            by_serial: &self.life.by_serial,
            has_left: &has_left,
            outlasts: &outlasts,
            waits: &self.life.waits,
            auto_release: self.plan.rules.auto_release,
            has_crowd: self.plan.crowd.is_some(),
            awake_since: self.life.paused_until,
        };
        let result = seen_locks.after_turn(
            self.life.span,
            &self.life.server,
            &names,
            &self.life.known_grants,
            &reasons,
        );
        self.life.seen_locks = seen_locks;
        result?;
        Ok(())
    }

    /// The table before this turn, if somebody read what it shows, or is told of deadlocks.
    fn before_reports(&self) -> Option<SeenLocks> {
        let is_used = !self.life.reports.is_empty() || self.plan.deadlock_pct > 0;
        is_used.then(|| self.life.seen_locks.clone())
    }

    fn check_reports(
        &mut self,
        before: Option<SeenLocks>,
        requests_per_key: &[u32],
    ) -> Result<(), String> {
        let Some(before) = before else {
            return Ok(());
        };
        let reports = std::mem::take(&mut self.life.reports);
        let check = ReportCheck {
            plan: &self.plan,
            before: &before,
            after: &self.life.seen_locks,
            requests_per_key,
            known_grants: &self.life.known_grants,
            connections: &self.life.connections,
            span: self.life.span,
            turn: self.turn,
            longest_turn_ns: self.life.longest_turn_ns,
        };
        reports.iter().try_for_each(|report| check.check(report))?;
        if self.plan.deadlock_pct == 0 || self.life.draining.is_some() {
            return Ok(());
        }
        check.check_no_circle()
    }

    /// The clients that waited for a value or at a barrier before this turn.
    fn parked(&self) -> Vec<Parked> {
        let mut parked = Vec::new();
        for (&conn_number, conn) in &self.life.connections {
            if let Some(request) = conn.open_requests.front()
                && let (RequestKind::Entry(entry_request), Some(begun)) =
                    (&request.kind, request.begun)
            {
                let (kind, key) = entry_request.entry();
                parked.push(Parked {
                    kind,
                    key,
                    conn_number,
                    since: begun.turn,
                    stays: false,
                });
            }
        }
        parked
    }

    /// Whether a client may have done something without having read the answer.
    fn is_in_doubt(&self) -> bool {
        self.life.connections.values().any(|conn| {
            let is_lossy = conn.fatal_sent || self.life.draining.is_some();
            let is_open = || {
                conn.open_requests
                    .iter()
                    .any(|request| request.arrived.is_some())
            };
            let ended_now = conn.ended && conn.ended_by == self.turn;
            conn.id.is_some() && conn.is_behind() || ended_now && (is_lossy || is_open())
        })
    }

    fn check_entries(&mut self, mut parked: Vec<Parked>) -> Result<(), String> {
        let doubt = self.is_in_doubt();
        self.check_memory(doubt)?;
        parked.retain_mut(|it| {
            let conn = &self.life.connections[&it.conn_number];
            let begun = conn.open_requests.front().and_then(|request| request.begun);
            it.stays = begun.is_some_and(|begun| begun.turn == it.since);
            is_attentive(conn)
        });
        let view = self.life.server.engine().view(self.now);
        self.life
            .known_entries
            .after_turn(&self.plan, view, &parked, doubt)?;
        let steady = self.plan.keys.iter().zip(&self.life.seen_locks.steady);
        let steady = steady.filter(|(_, steady)| **steady);
        self.life.known_pushes.after_turn(&TurnFacts {
            number: self.turn,
            connections: &self.life.connections,
            doubt,
            is_forced_end: self.is_shutdown_forced(),
            tally: self.life.server.engine().tally(),
            steady: steady.map(|((name, _), _)| &name[..]).collect(),
        })
    }

    /// The server has nothing to do: every client has its answer, or waits and its time is not
    /// over.
    fn check_quiet(&mut self) -> Result<(), String> {
        if self.is_held_up_by_unread() {
            return Ok(()); // it is not the server that has nothing to do
        }
        // Whoever is cut off by a shutdown has its lease stopped: it begins anew in the next life.
        if self.life.draining.is_none()
            && let Some(fence) = self.life.seen_locks.not_begun()
        {
            return Err(format!("the lease of {fence} does not begin"));
        }
        let (now, turn) = (self.now, self.turn);
        let mut waiting: BTreeMap<(EntryKind, usize), usize> = BTreeMap::new();
        for (number, conn) in &mut self.life.connections {
            if conn.stalled.is_some() || conn.ended {
                continue;
            }
            (conn.unread_since, conn.unsent_since) = (None, None);
            conn.was_overdue = false;
            let Some(id) = conn.id.filter(|_| !conn.has_left() && !conn.end_told) else {
                continue;
            };
            let Some(request) = conn
                .open_requests
                .front_mut()
                .filter(|it| it.arrived.is_some())
            else {
                continue;
            };
            let mut wait = request.kind.wait();
            let mut is_guess = false;
            let begun = *request.begun.get_or_insert(Moment { at: now, turn });
            let key = request.kind.key().filter(|_| wait != Millis::ZERO);
            let mut is_parked =
                key.is_some_and(|key| self.life.seen_locks.is_in_queue(key, id.serial));
            if let RequestKind::Entry(entry_request) = &request.kind
                && wait != Millis::ZERO
            {
                *waiting.entry(entry_request.entry()).or_default() += 1;
                is_parked = true; // `check_waiting` compares the counts
            }
            if let RequestKind::Range(asked) = request.kind {
                is_parked = self.life.known_ranges.is_waiting(*number, asked);
                is_guess = self.life.known_ranges.may_be_wrong(asked);
                if is_guess {
                    (is_parked, wait) = (true, WRONG_SECRET_MAX);
                }
            }
            if let RequestKind::Fatal(Some("error_auth")) = request.kind {
                is_guess = true;
                (is_parked, wait) = (true, self.plan.settings.auth_timeout);
            }
            if !is_parked || self.life.draining.is_some() && !is_guess {
                return Err(format!(
                    "connection {number}: no answer to {:?}",
                    request.kind
                ));
            }
            if begun.at.after(wait) <= now {
                return Err(format!("connection {number}: parked for too long"));
            }
        }
        self.check_waiting(&waiting)?;
        let holders = self.life.seen_locks.holders();
        let holders = holders.map(|(serial, fence)| (serial, Some(fence)));
        let waiters = self.life.seen_locks.waiters().map(|serial| (serial, None));
        for (serial, held) in holders.chain(waiters) {
            let Some(&number) = self.life.by_serial.get(&serial) else {
                continue; // restored, and of nobody
            };
            if self.data.is_some() && self.life.draining.is_some() {
                continue; // a server that stops undoes nothing
            }
            let conn = self.life.connections.get(&number);
            let is_gone = conn.is_none_or(|it| {
                (it.ended || it.has_hung_up()) && it.stalled.is_none() && it.unread_since.is_none()
            });
            if is_gone && held.is_none_or(|fence| self.ends_with_connection(number, fence)) {
                let does = if held.is_some() { "holds" } else { "waits" };
                return Err(format!("connection {number} is gone, but {does}"));
            }
        }
        Ok(())
    }

    /// The server sees the same clients wait for values and at barriers as have asked to.
    fn check_waiting(&self, waiting: &BTreeMap<(EntryKind, usize), usize>) -> Result<(), String> {
        let view = self.life.server.engine().view(self.now);
        let behind = self
            .life
            .connections
            .values()
            .filter(|it| !is_attentive(it))
            .count();
        for kind in [EntryKind::List, EntryKind::Barrier] {
            for key in 0..self.plan.entry_count(kind) {
                let name = self.plan.name(kind, key);
                let lists = view
                    .lists()
                    .filter(|it| kind == EntryKind::List && it.key == name);
                let barriers = view.barriers();
                let barriers = barriers.filter(|it| kind == EntryKind::Barrier && it.key == name);
                let seen: u32 = lists.map(|it| it.what.1).sum::<u32>()
                    + barriers.map(|it| it.what.1).sum::<u32>();
                let asked = waiting.get(&(kind, key)).copied().unwrap_or(0);
                if !(asked..=asked + behind).contains(&(seen as usize)) {
                    return Err(format!("{asked} wait for {kind:?} {key}, {seen} are seen"));
                }
            }
        }
        Ok(())
    }

    /// When the time of a shutdown is over, every connection is closed in the next turn. What they leave
    /// behind may be more than a turn undoes, and a data directory has to know of it: then turn follows
    /// turn, until nothing is left.
    fn check_drain(&self) -> Result<(), String> {
        let timeout = self.plan.settings.shutdown_timeout;
        if let Some(Draining { ended, .. }) = self.life.draining
            && timeout != Millis::ZERO
            && self.life.span.began >= ended.after(timeout)
            && !self.life.server.is_drained()
            && !self.finishes_departures(ended.after(timeout))
        {
            let holdings = self.life.server.holdings();
            return Err(format!(
                "the shutdown takes longer than it may, with {holdings:?}"
            ));
        }
        Ok(())
    }
}

/// What the client hears next over HTTP; something else, if the server is to be a broken one.
fn hear(
    conn: &mut Connection,
    once_more: &mut Option<Heard>,
    sabotage: Option<Sabotage>,
    known_grants: &KnownGrants,
) -> Result<Option<Heard>, String> {
    if let Some(heard) = once_more.take() {
        return Ok(Some(heard));
    }
    while let Some(heard) = conn.hear()? {
        let Some(Sabotage::Http(fault)) = sabotage else {
            return Ok(Some(heard));
        };
        let mut instead = broken(fault, conn, known_grants, heard).into_iter();
        if let Some(heard) = instead.next() {
            *once_more = instead.next();
            return Ok(Some(heard));
        }
    }
    Ok(None)
}
