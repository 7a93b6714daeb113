//! Streams of events: a subscription that was granted, or figures every second.
//!
//! A connection that has become a stream is asked nothing any more. Pushes reach it as they reach any
//! subscriber, spelled as events, and it is closed like one if it does not read them. Its timer adds
//! what it says of itself: a sign of life, or the next figures; but nothing while it has not read what
//! was said before.

use super::super::Server;
use super::super::closing::Closing;
use super::super::conn::{Conn, Owed, Transport};
use crate::base::{ConnId, Millis, Nanos};
use crate::engine::types::Reply;
use crate::store::Store;
use crate::wire::codec::Codec;
use crate::wire::http::Speech;
use crate::wire::http::events::{self, Framing};

/// How often a stream shows that it is alive.
const BEAT_EVERY: Millis = Millis(15_000);

/// How often figures are told.
const FIGURES_EVERY: Millis = Millis(1_000);

impl<T: Transport, S: Store> Server<T, S> {
    /// The subscription that the request asked for was granted, or was not.
    pub(super) fn begin_stream(&mut self, now: Nanos, id: ConnId, reply: &Reply) {
        let is_granted = matches!(reply, Reply::Done);
        let speech = |framing| Speech::Events {
            framing,
            beat_at: now.after(BEAT_EVERY),
        };
        if is_granted {
            return self.become_stream(now, id, speech);
        }
        if let Some(codec) = self.conns[id.slot as usize].codec.as_http() {
            codec.speech = Speech::Answers;
        }
        self.say_reply(now, id, reply);
    }

    /// Figures, now and every second.
    pub(super) fn begin_figures(&mut self, now: Nanos, id: ConnId) {
        self.become_stream(now, id, |framing| Speech::Figures {
            framing,
            due_at: now.after(FIGURES_EVERY),
        });
        self.tell_figures(now, id);
    }

    fn become_stream(&mut self, now: Nanos, id: ConnId, speech: impl FnOnce(Framing) -> Speech) {
        let line = self.say_document(id, events::begin);
        let Self {
            conns,
            timers,
            settings,
            draining,
            ..
        } = self;
        let conn = &mut conns[id.slot as usize];
        if let Some(codec) = conn.codec.as_http() {
            codec.speech = speech(Framing::of(&codec.context()));
            // Nobody waits for those who come while we stop, so it ends with what it is told at first.
            codec.ends |= *draining;
        }
        timers.rearm(conn.timer, conn.deadline(now, settings));
        self.note_said(id, 200, None, line);
    }

    /// The timer of a stream has fired: says what is due.
    pub(in crate::server) fn on_stream_timer(&mut self, now: Nanos, id: ConnId) {
        let conn = &mut self.conns[id.slot as usize];
        let has_read = conn.outbox.is_empty();
        let Some(codec) = conn.codec.as_http() else {
            return;
        };
        match &mut codec.speech {
            Speech::Events { framing, beat_at } if *beat_at <= now => {
                *beat_at = now.after(BEAT_EVERY);
                if has_read {
                    let framing = *framing;
                    events::beat(conn.outbox.buf(&mut self.pool), framing);
                    self.owe(id, Owed::Push);
                }
            }
            Speech::Figures { due_at, .. } if *due_at <= now => {
                *due_at = now.after(FIGURES_EVERY);
                if has_read {
                    self.tell_figures(now, id);
                }
            }
            _ => {}
        }
    }

    /// Tells a stream how much there is of everything.
    fn tell_figures(&mut self, now: Nanos, id: ConnId) {
        self.mark_all(id);
        let mut page = std::mem::take(&mut self.http.page);
        self.write_stats(now, &mut page);
        let Self { conns, pool, .. } = self;
        let Conn { codec, outbox, .. } = &mut conns[id.slot as usize];
        if let Codec::Http(codec) = codec
            && let Some(framing) = codec.framing()
        {
            events::event(outbox.buf(pool), framing, b"stats", |out| {
                out.extend_from_slice(&page);
            });
        }
        self.budget.charge_walk(page.len());
        self.keep_page(page);
        self.owe(id, Owed::Push);
    }

    /// Ends a connection that has been told all that it will be.
    #[cold]
    pub(in crate::server) fn end_answered(&mut self, now: Nanos, id: ConnId) {
        match &self.conns[id.slot as usize].codec {
            Codec::Http(codec) if codec.is_stream() => self.end_stream(now, id),
            _ => self.leave(now, id, Closing::LastAnswer, "was answered"),
        }
    }

    /// Ends a stream because we stop: says so, if there is a way to say it.
    pub(in crate::server) fn end_stream(&mut self, now: Nanos, id: ConnId) {
        let Self { conns, pool, .. } = self;
        let Conn { codec, outbox, .. } = &mut conns[id.slot as usize];
        if let Codec::Http(codec) = codec
            && let Some(framing) = codec.framing()
        {
            events::end(outbox.buf(pool), framing);
        }
        self.leave(now, id, Closing::LastAnswer, "the server stops");
    }
}
