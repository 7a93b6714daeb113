//! What a server would say over HTTP that is broken in one way: to see that the checks notice.
//!
//! The server itself is not touched. Its answers are changed on their way to the client, or its request
//! is, so that the client believes something else than what is so.

use crate::HttpFault;
use crate::checks::grants::KnownGrants;
use crate::clients::connection::Connection;
use crate::clients::http_answers::{Heard, HttpAnswer};
use crate::clients::request::{Look, RequestKind};

/// How much shorter leases are than a client is told.
const SHORTER: u64 = 10;

/// The request as a server would take it that keeps leases for less time than it says.
pub(crate) fn with_short_lease(frame: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(frame).into_owned();
    let Some((before, rest)) = text.split_once("\"ttl_ms\":") else {
        return frame.to_vec();
    };
    let end = rest.find([',', '}']).unwrap_or(0);
    let ms: u64 = rest[..end].parse().unwrap_or(1);
    // As long as before, because a length may have been told.
    let ms = (ms / SHORTER).max(1);
    format!("{before}\"ttl_ms\":{ms:>end$}{}", &rest[end..]).into_bytes()
}

/// What the client hears instead.
pub(crate) fn broken(
    fault: HttpFault,
    conn: &Connection,
    known_grants: &KnownGrants,
    heard: Heard,
) -> Vec<Heard> {
    let (Heard::Answer(answer), Some(request)) = (&heard, conn.open_requests.front()) else {
        return vec![heard];
    };
    let mut it = answer.clone();
    match (fault, &request.kind) {
        (HttpFault::AnswerTwice, _) => return vec![heard.clone(), heard],
        (HttpFault::LoseAnswer, RequestKind::Look(_)) => return Vec::new(),
        (HttpFault::ForgetIds, RequestKind::Acquire { .. }) => {
            let id = request.http.as_ref().map_or("", |it| &it.id);
            if it.status == 200 && known_grants.asks().granted(id).is_some() {
                it.status = 409;
                it.body = "{\"reason\":\"HELD\",\"recommended_retry_ms\":25}\n".to_owned();
            }
        }
        (HttpFault::ShortLeases, &RequestKind::Acquire { lease, .. }) if it.status == 200 => {
            set_number(&mut it, "lease_expiry_ms", lease.0);
        }
        (HttpFault::ShortenOnRenewal, &RequestKind::Renew { lease, .. }) if it.status == 200 => {
            set_number(&mut it, "lease_expiry_ms", lease.0);
        }
        (HttpFault::RefuseRenewals, RequestKind::Renew { .. }) => {
            it.status = 409;
            it.body = "{\"renewed\":false,\"reason\":\"NOT_OWNER_OR_EXPIRED\"}\n".to_owned();
        }
        (HttpFault::ReleaseForAnybody, RequestKind::Release { resigns, .. }) => {
            let word = if *resigns { "resigned" } else { "released" };
            it.body = format!("{{\"{word}\":true}}\n");
        }
        (HttpFault::BreakNothing, RequestKind::Break { .. }) => {
            it.status = 404;
            it.body = "{\"error\":\"\",\"reason\":\"NOT_HELD\"}\n".to_owned();
        }
        (HttpFault::GiveFenceTwice, RequestKind::Acquire { .. }) if it.status == 200 => {
            let first = known_grants
                .nth(0)
                .map(|(fence, it)| (fence, it.token.clone()));
            if let Some((fence, token)) = first {
                let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &token[part]);
                set(&mut it, "lease_id", &format!("\"{}\"", parts.join("-")));
                set_number(&mut it, "fencing_token", fence);
            }
        }
        (HttpFault::SkipOnPage, RequestKind::Look(Look::Page { .. })) => {
            if let Some((_, next)) = it.body.rsplit_once("],\"next\"") {
                it.body = format!("{{\"locks\":[],\"next\"{next}");
            }
        }
        (HttpFault::ShowTwice, RequestKind::Look(Look::Page { .. })) => {
            let list = it.body.strip_prefix("{\"locks\":[");
            if let Some((locks, next)) = list.and_then(|it| it.rsplit_once("],\"next\""))
                && !locks.is_empty()
            {
                it.body = format!("{{\"locks\":[{locks},{locks}],\"next\"{next}");
            }
        }
        (HttpFault::AlwaysReady, RequestKind::Look(Look::Ready)) => it.status = 200,
        (HttpFault::MiscountHeld, RequestKind::Look(Look::Metrics)) => {
            it.body = it.body.replace("\nlocks_held ", "\nlocks_held 1");
        }
        _ => {}
    }
    vec![Heard::Answer(it)]
}

fn set_number(answer: &mut HttpAnswer, name: &str, number: u64) {
    set(answer, name, &number.to_string());
}

fn set(answer: &mut HttpAnswer, name: &str, value: &str) {
    let title = format!("\"{name}\":");
    if let Some((before, rest)) = answer.body.split_once(&title[..]) {
        let end = rest.find([',', '}']).unwrap_or(0);
        answer.body = format!("{before}{title}{value}{}", &rest[end..]);
    }
}
