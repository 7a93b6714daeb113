//! Whether a request may be served: by its token, and by whether a browser asks for somebody else's page.
//!
//! Without a token whoever reaches the port may ask, so a page of any site could have its visitor's
//! browser ask: `Host` and `Sec-Fetch-Site` show it. With a token that page would have to know it;
//! then the name under which people know the server is theirs to choose. Tokens are compared in
//! `server/auth.rs`.

use super::super::auth::NotLetIn;
use super::super::conn::Transport;
use super::super::{HttpSettings, Server};
use crate::base::{ConnId, Nanos};
use crate::store::Store;
use crate::wire::http::problem::FORBIDDEN;
use crate::wire::http::{Access, Asked, Problem, guard};

/// Why a request is not served.
pub(super) enum Refused {
    /// It has not shown the token, or a wrong one: told so after a while, like every guess.
    WrongSecret,
    Problem(Problem<'static>),
}

impl<T: Transport, S: Store> Server<T, S> {
    /// Whether the request may be served.
    pub(super) fn check_access(
        &mut self,
        now: Nanos,
        id: ConnId,
        asked: &Asked<'_>,
    ) -> Result<(), Refused> {
        if self.check_sender(id, asked)? {
            return Ok(());
        }
        let row = asked.context.route.map(|route| route.row());
        let only_looks = row.is_none_or(|row| !row.changes && !row.streams);
        guard::check_fetch_site(asked.fetch_site, only_looks).map_err(Refused::Problem)?;
        self.lets_in(now, id, asked).map_err(|why| match why {
            NotLetIn::WrongToken => Refused::WrongSecret,
            NotLetIn::Forbidden => {
                let operation = asked.context.route.map_or("", |it| it.row().operation);
                self.audit_forbidden(now, id, operation, asked.subject());
                Refused::Problem(FORBIDDEN)
            }
        })
    }

    /// Whether the head of a request shows a token or needs none, so that its body may be read.
    pub(super) fn check_head(&mut self, id: ConnId, asked: &Asked<'_>) -> Result<(), Refused> {
        let is_open = self.check_sender(id, asked)?;
        match is_open || self.lets_in_by_head(id, asked.bearer) {
            true => Ok(()),
            false => Err(Refused::WrongSecret),
        }
    }

    /// Refuses requests of foreign pages; returns whether the page is open to all.
    fn check_sender(&self, id: ConnId, asked: &Asked<'_>) -> Result<bool, Refused> {
        let is_encrypted = self.conns[id.slot as usize].transport.is_encrypted();
        let is_open = is_open(asked, &self.settings.http);
        let asks_for_token = self.passes.asks_for_token();
        // Probes come under whatever name their machine has for us, and learn nothing.
        let host = asked.host.filter(|_| !is_open && !asks_for_token);
        let names = self.settings.http.host_names.iter().map(String::as_str);
        guard::check_host(host, names).map_err(Refused::Problem)?;
        guard::check_origin(asked.host, asked.origin, is_encrypted).map_err(Refused::Problem)?;
        Ok(is_open)
    }
}

/// Whether anybody may ask, whatever it shows.
fn is_open(asked: &Asked<'_>, settings: &HttpSettings) -> bool {
    let route = asked.context.route;
    match route.map_or(Access::Token, |route| route.row().access) {
        Access::Open => true,
        Access::Metrics => settings.metrics_open,
        Access::Token => false,
    }
}
