//! Holds every line a client reads against the question it answers.
//!
//! Answers come in the order of questions, so a line belongs to the oldest open one; its shape, its
//! lease, its fence and its timing must fit that question and no other. What it says about grants
//! goes to the history. Never knows the server's state, only the rules it was started with.

use super::entries::{Answer, Things};
use super::grants::History;
use super::lock_table::Checker;
use super::pushes::Hearing;
use crate::base::{Millis, Nanos, Token};
use crate::engine::types::Mode;
use crate::sim::clients::connection::{Asked, Connection, Moment, Sending, Ticket};
use crate::sim::clients::request::{Ask, What};
use crate::sim::plan::Plan;

/// What is known when a line comes in.
pub(crate) struct Judge<'w> {
    pub(crate) plan: &'w Plan,
    pub(crate) history: &'w mut History,
    /// The lock table as it was before this turn.
    pub(crate) before: &'w Checker,
    /// How many questions about each key the server may have seen in this turn.
    pub(crate) rivals: &'w [u32],
    /// The question that was the first of its connection in this turn.
    pub(crate) first: Option<u64>,
    pub(crate) things: &'w mut Things,
    pub(crate) hearing: &'w mut Hearing,
    /// The connection's number.
    pub(crate) conn_number: u32,
    pub(crate) now: Nanos,
    /// The turn just over.
    pub(crate) turn: u64,
    /// The turn in which the server was told to stop.
    pub(crate) draining: Option<u64>,
}

/// How a line ended a question, for the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Granted,
    TimedOut,
    /// About a counter, a value, a list or a barrier; the same, with success.
    Thing,
    Swapped,
    Met,
    Other,
}

impl Judge<'_> {
    pub(crate) fn line(&mut self, conn: &mut Connection, line: &[u8]) -> Result<Verdict, String> {
        if let Some(news) = line.strip_prefix(b"lost ") {
            return self.lost(conn, news).map(|()| Verdict::Other);
        }
        if let Some(heard) = self.hearing.push((self.conn_number, conn), line) {
            return heard.map(|()| Verdict::Other);
        }
        let word = line.split(|&byte| byte == b' ').next().unwrap_or_default();
        if self.is_farewell(conn, line) {
            conn.farewell = true;
            return Ok(Verdict::Other);
        }
        if conn.farewell {
            return Err("a line after the farewell".to_owned());
        }
        if conn.was_overdue && word == b"error" {
            // The farewell to somebody who did not read, or the answer to one of its questions.
            if let Some(asked) = conn.asked.pop_front()
                && let What::Renew {
                    target: Some(fence),
                    ..
                } = asked.what
            {
                self.history.renewal_lost(self.now, fence, asked.number);
            }
            return Ok(Verdict::Other);
        }
        let Some(asked) = conn.asked.pop_front() else {
            return Err("an answer without a question".to_owned());
        };
        let here = Moment {
            at: self.now,
            turn: self.turn,
        };
        let arrived = match (asked.arrived, &asked.what) {
            (Some(arrived), _) => arrived,
            (None, What::Last(_)) if conn.poison_arrived => here,
            _ => return Err(format!("an answer to {:?} before it arrived", asked.what)),
        };
        let text = str::from_utf8(line).map_err(|_| "an answer that is not text".to_owned())?;
        conn.answered(self.now, &asked);
        self.hearing
            .note(self.plan, (self.conn_number, conn), &asked, text);
        let verdict = match word {
            _ if asked.what.is_other() => self.other(conn, &asked, arrived, text),
            b"ok" | b"acquired" | b"queued" => self.yes(conn, &asked, arrived, text),
            _ => self.no(conn, &asked, arrived, text),
        };
        verdict.map_err(|why| format!("{why} (answer {text:?} to {:?})", asked.what))
    }

    /// The read timeout says `error` to a question that was never finished, or to none.
    fn is_farewell(&self, conn: &Connection, line: &[u8]) -> bool {
        let is_locked = self.plan.settings.auth_token.is_some() && !conn.is_open;
        let word: &[u8] = if is_locked { b"error_auth" } else { b"error" };
        let owns = conn.is_seated() || self.history.owns_something(self.conn_number, self.now);
        let is_answer = conn.asked.front().is_some_and(|asked| match asked.what {
            // A line is too long before it ends.
            What::Last(last) => last.is_some() && conn.poison_arrived,
            What::Release { .. } | What::Renew { .. } | What::Nonsense => asked.arrived.is_some(),
            What::Thing(Ask::Add { key, .. }) if key == self.plan.wild_counter() => {
                asked.arrived.is_some()
            }
            What::TakeSeat(ref seat) if !conn.has_room_for(seat, self.plan) => {
                asked.arrived.is_some()
            }
            // Nothing else is answered like this. To somebody who does not read, the farewell may
            // have been said before the question arrived.
            _ => asked.arrived.is_some() && conn.blind_since.is_none(),
        });
        line == word && conn.is_overdue(self.now, &self.plan.settings, owns) && !is_answer
    }

    fn lost(&mut self, conn: &Connection, news: &[u8]) -> Result<(), String> {
        if !conn.may_be_pushed_to {
            return Err("a push to somebody who did not say hello".to_owned());
        }
        let mut words = news.rsplitn(3, |&byte| byte == b' ');
        let why = words.next().unwrap_or_default();
        let fence = words
            .next()
            .and_then(|word| str::from_utf8(word).ok()?.parse().ok());
        let (Some(fence), b"expired") = (fence, why) else {
            return Err("a push nobody can read".to_owned());
        };
        if self
            .history
            .get(fence)
            .is_some_and(|it| it.owner != self.conn_number)
        {
            return Err(format!("{fence} was lost by somebody else"));
        }
        self.history.lost(self.now, fence, self.turn)
    }

    /// What concerns no lock.
    fn other(
        &mut self,
        conn: &mut Connection,
        asked: &Asked,
        arrived: Moment,
        text: &str,
    ) -> Result<Verdict, String> {
        conn.is_open = true;
        match &asked.what {
            What::Thing(ask) => {
                let answer = Answer {
                    conn_number: self.conn_number,
                    question: asked.number,
                    arrived,
                    now: Moment {
                        at: self.now,
                        turn: self.turn,
                    },
                    draining: self.draining.is_some(),
                    text,
                };
                self.things.answer(self.plan, ask, &answer)?;
                return Ok(match ask {
                    Ask::Swap { .. } if text == "ok" => Verdict::Swapped,
                    Ask::Meet { .. } if text == "ok" => Verdict::Met,
                    _ => Verdict::Thing,
                });
            }
            What::TakeSeat(seat) => {
                let by = (self.conn_number, &mut *conn);
                self.hearing.seated(self.plan, by, seat, self.turn, text)?;
            }
            What::LeaveSeat(seat) => {
                expect(text, "ok")?;
                conn.seats.remove(seat);
            }
            What::Signal { payload, .. } => self.hearing.signalled(conn, payload, text)?,
            _ => unreachable!("of a lock"),
        }
        Ok(Verdict::Other)
    }

    /// Something was granted, done or told.
    fn yes(
        &mut self,
        conn: &mut Connection,
        asked: &Asked,
        arrived: Moment,
        text: &str,
    ) -> Result<Verdict, String> {
        let since = conn.earliest(self.now, asked);
        conn.is_open = true;
        match asked.what {
            What::Acquire {
                key, mode, lease, ..
            } => {
                let (fence, token) = grant(text, "ok", lease, asked.with_fence)?;
                let by = asked.begun.map_or(self.turn, |it| it.turn);
                let ticket = Ticket {
                    mode,
                    lease,
                    fence_before: asked.fence_before,
                    joined: (arrived.turn, by),
                    held: None,
                    waited: false,
                };
                self.granted(conn, key, fence, token, &ticket, since)?;
                if mode == Mode::Lead {
                    conn.led.insert(self.plan.keys[key].0.clone());
                }
                Ok(Verdict::Granted)
            }
            What::Enqueue { key, mode, lease } => {
                let mut ticket = Ticket {
                    mode,
                    lease,
                    fence_before: asked.fence_before,
                    joined: (arrived.turn, self.turn),
                    held: None,
                    waited: false,
                };
                let mut verdict = Verdict::Other;
                if text != "queued" {
                    let (fence, token) = grant(text, "acquired", lease, asked.with_fence)?;
                    self.granted(conn, key, fence, token, &ticket, since)?;
                    ticket.held = Some(fence);
                    verdict = Verdict::Granted;
                    // A wait that is already on its way starts the lease again.
                    for later in &conn.asked {
                        if matches!(later.what, What::Wait { key: it, .. } if it == key) {
                            self.history.renewal_sent(fence, later.number, since, lease);
                        }
                    }
                }
                conn.tickets.insert(key, ticket);
                Ok(verdict)
            }
            What::Wait { key, .. } => {
                let Some(ticket) = conn.tickets.remove(&key) else {
                    return Err("waited for a ticket that was never taken".to_owned());
                };
                let (fence, token) = grant(text, "ok", ticket.lease, asked.with_fence)?;
                match self.history.get(fence) {
                    Some(known) if ticket.held == Some(fence) && known.token == token => {
                        let span = (since, ticket.lease);
                        self.history
                            .renewed(self.now, fence, asked.number, span, arrived.turn)?;
                    }
                    _ if ticket.held.is_some() => {
                        return Err("a wait for one grant was answered with another".to_owned());
                    }
                    _ => self.granted(conn, key, fence, token, &ticket, since)?,
                }
                Ok(Verdict::Granted)
            }
            What::Release { target, .. } => {
                let fence = target.ok_or("invariant 6: released with a token of nobody")?;
                expect(text, "ok")?;
                self.history.released(fence, arrived, self.turn)?;
                conn.tickets.retain(|_, ticket| ticket.held != Some(fence));
                Ok(Verdict::Other)
            }
            What::Renew { target, lease, .. } => {
                let fence = target.ok_or("invariant 6: renewed with a token of nobody")?;
                let mut words = text.split(' ').skip(1);
                check_lease(words.next(), lease)?;
                check_fence(words.next(), fence, asked.with_fence)?;
                expect(words.next().unwrap_or_default(), "")?;
                let span = (since, lease);
                self.history
                    .renewed(self.now, fence, asked.number, span, arrived.turn)?;
                Ok(Verdict::Other)
            }
            What::Position { .. } => match text[2..].trim_start().parse::<u32>() {
                Ok(_) => Ok(Verdict::Other),
                Err(_) => Err("not a position".to_owned()),
            },
            What::Json if text.starts_with("ok {") && text.ends_with('}') => Ok(Verdict::Other),
            What::Hello if text.starts_with("ok latchd/") => Ok(Verdict::Other),
            What::Ok => expect(text, "ok").map(|()| Verdict::Other),
            _ => Err("a yes to another question".to_owned()),
        }
    }

    fn granted(
        &mut self,
        conn: &Connection,
        key: usize,
        fence: u64,
        token: &str,
        ticket: &Ticket,
        since: Nanos,
    ) -> Result<(), String> {
        if self.draining.is_some_and(|turn| ticket.joined.0 >= turn) {
            return Err("granted while draining".to_owned());
        }
        let left = conn.ended
            || conn.reset
            || conn.poisoned
            || conn.was_overdue
            || conn.sending != Sending::Open;
        self.history.granted(
            self.now,
            fence,
            token,
            key,
            ticket.mode,
            self.conn_number,
            ticket.joined,
            (since, ticket.lease),
            ticket.fence_before,
            left,
        )
    }

    /// Refused, too late, or malformed.
    fn no(
        &mut self,
        conn: &mut Connection,
        asked: &Asked,
        arrived: Moment,
        text: &str,
    ) -> Result<Verdict, String> {
        let Plan {
            rules,
            mismatch_pct,
            ..
        } = self.plan;
        let allowed = match (text, &asked.what) {
            (_, What::Nonsense) => text == "error",
            (_, What::Last(last)) => *last == Some(text),
            ("timeout", What::Acquire { wait, .. } | What::Wait { wait, .. }) => {
                if self.now < arrived.at.after(*wait) {
                    return Err("a wait ended before its time".to_owned());
                }
                true
            }
            ("error_max_locks", What::Acquire { .. } | What::Enqueue { .. }) => {
                rules.locks_max != 0
            }
            ("error_max_waiters", What::Acquire { .. } | What::Enqueue { .. }) => {
                rules.waiters_per_key_max != 0
            }
            (
                "error_limit_mismatch" | "error_type_mismatch",
                What::Acquire { .. } | What::Enqueue { .. },
            ) => *mismatch_pct > 0,
            ("error_draining", What::Acquire { .. } | What::Enqueue { .. } | What::Wait { .. }) => {
                self.draining.is_some()
            }
            ("error_already_enqueued", What::Enqueue { key, .. }) => conn.tickets.contains_key(key),
            ("error_lease_expired", What::Wait { .. } | What::Renew { .. }) => true,
            ("error_not_enqueued", What::Wait { key, .. }) => {
                // In line and never granted as far as we know: then nobody else can end it.
                conn.tickets
                    .get(key)
                    .is_none_or(|ticket| ticket.held.is_some())
            }
            ("error", What::Release { .. } | What::Renew { .. }) => true,
            ("nil", What::Position { key }) => {
                if self.history.holds(self.conn_number, *key, self.now) {
                    return Err("holds the key, but was told it does not".to_owned());
                }
                true
            }
            _ => false,
        };
        if !allowed {
            return Err("not an answer to this question".to_owned());
        }
        self.check_alone(conn, asked, text)?;
        match asked.what {
            // Refused for another reason than the ticket it had: then it has none any more.
            What::Enqueue { key, .. } if text != "error_already_enqueued" => {
                conn.tickets.remove(&key);
            }
            What::Wait { key, .. } => {
                if let Some(fence) = conn.tickets.remove(&key).and_then(|ticket| ticket.held) {
                    self.history
                        .not_renewed(self.now, fence, asked.number, self.turn)?;
                }
            }
            What::Release {
                target: Some(fence),
                ..
            } => self.history.not_released(self.now, fence)?,
            What::Renew {
                target: Some(fence),
                ..
            } => self
                .history
                .not_renewed(self.now, fence, asked.number, self.turn)?,
            _ => {}
        }
        Ok(if text == "timeout" {
            Verdict::TimedOut
        } else {
            Verdict::Other
        })
    }
}

impl Judge<'_> {
    /// A refusal of the only question about a key in this turn can be compared with the table as it
    /// was: what is free is given, and a release is heard before the lease it ends runs out, also
    /// in a turn that comes late.
    fn check_alone(&self, conn: &Connection, asked: &Asked, text: &str) -> Result<(), String> {
        let is_first = self.first == Some(asked.number) && conn.blind_since.is_none();
        let Some(key) = asked
            .what
            .key()
            .filter(|&key| is_first && self.rivals[key] == 1)
        else {
            return Ok(());
        };
        let is_new = asked.arrived.is_some_and(|it| it.turn + 1 == self.turn);
        match asked.what {
            What::Acquire { .. } | What::Enqueue { .. }
                if matches!(text, "timeout" | "error_max_waiters")
                    && asked.begun.is_none()
                    && self.before.is_free(key, self.now) =>
            {
                Err("invariant 4: refused, although the key was free".to_owned())
            }
            What::Release {
                target: Some(fence),
                ..
            } if is_new
                && self.before.is_held(key, fence)
                && self.history.is_only_release(fence) =>
            {
                Err("a release that came in time was refused".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Fence and token of a grant, with everything else it says checked.
fn grant<'t>(
    text: &'t str,
    word: &str,
    lease: Millis,
    with_fence: bool,
) -> Result<(u64, &'t str), String> {
    let mut words = text.split(' ');
    expect(words.next().unwrap_or_default(), word)?;
    let token = words.next().unwrap_or_default();
    let fence = Token::parse(token.as_bytes())
        .ok_or("a grant without a token")?
        .fence
        .0;
    check_lease(words.next(), lease)?;
    check_fence(words.next(), fence, with_fence)?;
    expect(words.next().unwrap_or_default(), "")?;
    Ok((fence, token))
}

fn check_lease(word: Option<&str>, lease: Millis) -> Result<(), String> {
    let spelled = if lease.0.is_multiple_of(1_000) {
        format!("{}", lease.0 / 1_000)
    } else {
        format!("{}ms", lease.0)
    };
    expect(word.unwrap_or_default(), &spelled)
}

fn check_fence(word: Option<&str>, fence: u64, with_fence: bool) -> Result<(), String> {
    let spelled = if with_fence {
        fence.to_string()
    } else {
        String::new()
    };
    expect(word.unwrap_or_default(), &spelled)
}

fn expect(told: &str, wanted: &str) -> Result<(), String> {
    if told == wanted {
        Ok(())
    } else {
        Err(format!("{told:?} where {wanted:?} belongs"))
    }
}
