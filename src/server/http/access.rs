//! Who may ask: the token, and whether a browser asks for somebody else's page.
//!
//! Without a token whoever reaches the port may ask, so a page of any site could have its visitor's
//! browser ask: a `Host` that is none of ours shows it. With a token that page would have to know it;
//! then the name under which people know the server is theirs to choose. Never says which part of a
//! token was wrong, nor how long it took to find out.

use super::super::{Settings, auth};
use crate::wire::http::{Access, Asked, Problem, guard};

/// Why a request is not served.
pub(super) enum Refused {
    /// It has not shown the token, or a wrong one: told so after a while, like every guess.
    WrongSecret,
    Problem(Problem<'static>),
}

/// Whether the request may be served.
pub(super) fn check(
    asked: &Asked<'_>,
    settings: &Settings,
    is_encrypted: bool,
) -> Result<(), Refused> {
    let access = asked
        .context
        .route
        .map_or(Access::Token, |route| route.row().access);
    let is_open = match access {
        Access::Open => true,
        Access::Metrics => settings.http.metrics_open,
        Access::Token => false,
    };
    let secret = settings.auth_token.as_deref();
    // Probes come under whatever name their machine has for us, and learn nothing.
    let host = asked.host.filter(|_| !is_open && secret.is_none());
    let names = settings.http.host_names.iter().map(String::as_str);
    guard::check_host(host, names).map_err(Refused::Problem)?;
    guard::check_origin(asked.host, asked.origin, is_encrypted).map_err(Refused::Problem)?;
    match secret {
        Some(secret) if !is_open && !auth::is_right(secret, asked.bearer) => {
            Err(Refused::WrongSecret)
        }
        _ => Ok(()),
    }
}
