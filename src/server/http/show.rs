//! What anybody may look at: pages of locks and connections, figures, health, and the dashboard.
//!
//! A page is written before its answer, because its length stands first, and into a buffer that all
//! pages share. Whatever walks stops by itself (`pages.rs`) and is charged; one walk per share is enough.

use std::mem;

use super::super::conn::{Conn, Transport};
use super::super::ranges::RangesWanted;
use super::super::stats::waits;
use super::super::{Server, ranges};
use super::pages::{self, Client, Wanted};
use super::{files, metrics, stats};
use crate::base::{ConnId, Nanos};
use crate::dashboard;
use crate::store::Store;
use crate::wire::codec::Codec;
use crate::wire::http::answer::Health;
use crate::wire::http::problem::NOT_FOUND;
use crate::wire::http::{Ask, Problem, answer};

/// How much of the buffer for pages is kept for the next one.
const PAGE_BYTES_KEPT: usize = 64 * 1024;

impl<T: Transport, S: Store> Server<T, S> {
    /// Shows it; of a file only its name, if the client has it already.
    pub(super) fn show(&mut self, now: Nanos, id: ConnId, ask: &Ask<'_>, has_file: Option<&[u8]>) {
        match *ask {
            Ask::StatsStream => self.begin_figures(now, id),
            Ask::Live => self.show_health(id, Health::Ok),
            Ask::Ready => {
                let is_elsewhere = self.store.redirect().is_some() || !self.store.may_speak();
                let health = match (self.draining, is_elsewhere) {
                    (true, _) => Health::Draining,
                    (false, true) => Health::NotLeader,
                    (false, false) if self.held_back.is_full() => Health::Degraded {
                        missing_bytes: self.store.missing_bytes(),
                    },
                    (false, false) => Health::Ok,
                };
                self.show_health(id, health);
            }
            Ask::OpenApi => {
                let file = dashboard::openapi(self.passes.asks_for_token());
                self.show_file(id, Some(file), has_file);
            }
            Ask::Dashboard => self.show_file(id, Some(&dashboard::PAGE), has_file),
            Ask::Asset { file } => self.show_file(id, dashboard::asset(file), has_file),
            Ask::Metrics => self.show_metrics(now, id),
            _ => self.show_page(now, id, ask),
        }
    }

    fn show_health(&mut self, id: ConnId, health: Health) {
        let line = self.say_document(id, |out, context| answer::health(out, context, health));
        self.note_said(id, health.status(), None, line);
    }

    fn show_file(
        &mut self,
        id: ConnId,
        file: Option<&'static dashboard::File>,
        has_file: Option<&[u8]>,
    ) {
        let Some(file) = file else {
            return self.say_problem(id, &NOT_FOUND);
        };
        let owed = self.conns[id.slot as usize].outbox.len();
        let mut status = 200;
        let line = self.say_document(id, |out, context| {
            status = files::file(out, context, file, has_file);
        });
        self.note_said(id, status, None, line);
        self.note_walk(id, owed);
    }

    fn show_metrics(&mut self, now: Nanos, id: ConnId) {
        self.mark_all(id);
        let owed = self.conns[id.slot as usize].outbox.len();
        let (shown, process) = (self.shown(now), (self.settings.http.process)());
        let mut page = mem::take(&mut self.http.page);
        let Self {
            engine, http, pace, ..
        } = self;
        metrics::metrics(&mut page, engine, &http.figures, pace, &shown, &process);
        let line = self.say_document(id, |out, context| {
            let headers = "Cache-Control: no-store\r\n";
            answer::document(out, context, 200, metrics::CONTENT_TYPE, headers, |out| {
                out.extend_from_slice(&page);
            });
        });
        self.keep_page(page);
        self.note_said(id, 200, None, line);
        self.note_walk(id, owed);
    }

    /// Appends the figures that the dashboard shows.
    pub(super) fn write_stats(&mut self, now: Nanos, page: &mut Vec<u8>) {
        let shown = self.shown(now);
        stats::stats(page, &self.engine, &shown);
    }

    fn show_page(&mut self, now: Nanos, id: ConnId, ask: &Ask<'_>) {
        self.mark_all(id);
        let owed = self.conns[id.slot as usize].outbox.len();
        let mut page = mem::take(&mut self.http.page);
        let looks = self.write_page(now, &mut page, ask);
        match &looks {
            Err(problem) => self.say_problem(id, problem),
            Ok(_) => {
                let line = self.say_document(id, |out, context| {
                    answer::json(out, context, 200, |out| out.extend_from_slice(&page));
                });
                self.note_said(id, 200, None, line);
            }
        }
        self.keep_page(page);
        self.budget.charge_visits(looks.unwrap_or(0));
        self.note_walk(id, owed);
    }

    /// Appends a page; returns how many looks it took.
    fn write_page(
        &mut self,
        now: Nanos,
        page: &mut Vec<u8>,
        ask: &Ask<'_>,
    ) -> Result<usize, Problem<'static>> {
        let view = self.engine.view(now);
        let address_of = |id: ConnId| self.address_of(id);
        match *ask {
            Ask::Locks {
                page: part,
                contains,
                held,
                waiting,
            } => {
                let wanted = Wanted {
                    contains,
                    held,
                    waiting,
                };
                pages::locks(page, view, part, wanted, &address_of)
            }
            Ask::Connections(part) => {
                let client_at = |slot: u32| self.client_at(now, slot);
                pages::connections(page, view, part, self.conns.capacity(), client_at)
            }
            Ask::Clients(part) => pages::clients(page, view, part),
            Ask::Resources {
                page: part,
                contains,
            } => pages::resources(page, view, part, contains),
            Ask::RangesOf {
                of,
                after,
                limit,
                contains,
            } => {
                let wanted = RangesWanted {
                    of,
                    after,
                    limit,
                    contains,
                };
                Ok(ranges::ranges_of(page, view, now, wanted))
            }
            Ask::Ranges { resource } => Ok(ranges::ranges(page, view, now, resource)),
            Ask::Waits => Ok(waits(page, view)),
            Ask::Who { key } => Ok(pages::who(page, view, key, &address_of)),
            Ask::Holders { key } => Ok(pages::holders(page, view, key, &address_of)),
            _ => {
                self.write_stats(now, page);
                Ok(0)
            }
        }
    }

    fn client_at(&self, now: Nanos, slot: u32) -> Option<Client> {
        let conn: &Conn<T> = self.conns.get(slot as usize)?;
        Some(Client {
            id: conn.id(slot as usize),
            address: conn.transport.address(),
            door: match conn.codec {
                Codec::Line(_) => super::super::Door::Line,
                Codec::Http(_) => super::super::Door::Http,
            },
            age_ms: conn.age_s(now) * 1_000,
        })
    }

    /// The buffer for the next page.
    pub(super) fn keep_page(&mut self, mut page: Vec<u8>) {
        page.clear();
        page.shrink_to(PAGE_BYTES_KEPT);
        self.http.page = page;
    }
}
