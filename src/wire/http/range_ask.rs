//! What is asked about byte ranges, and about the clients that they belong to.
//!
//! Over HTTP a range belongs to a client that was registered before: every request names it and shows
//! its secret. Clients, owners and secrets are what the line protocol can say, too, because both may
//! use the same client. Whether there are such bytes, or such a client, the engine says.

use super::ask::{Ask, Said};
use super::fields::Field;
use super::problem::{self, Problem};
use super::target::{self, LOCK_NAME_BYTES_MAX};
use crate::base::Millis;
use crate::engine::types::{
    Attach, ByteRange, OfClient, RANGE_OWNER_BYTES_MAX, RangeAsk, RangeCursor, RangeRequest,
    RangesOf, SECRET_BYTES_MAX, Secret, Sharing, Span,
};
use crate::wire::command::{self, is_adapter};
use crate::wire::verbs::LINE_BYTES_MAX;

impl<'a> Said<'a> {
    pub(super) fn lock_range(&self) -> Result<Ask<'a>, Problem<'a>> {
        self.about_range(|said| {
            let (mode, span) = (said.sharing()?, said.span()?);
            let wait = said.wait()?;
            Ok(RangeAsk::Lock { mode, span, wait })
        })
    }

    pub(super) fn unlock_range(&self) -> Result<Ask<'a>, Problem<'a>> {
        self.about_range(|said| {
            let span = said.span()?;
            Ok(RangeAsk::Unlock { span })
        })
    }

    pub(super) fn test_range(&self) -> Result<Ask<'a>, Problem<'a>> {
        self.about_range(|said| {
            let (mode, span) = (said.sharing()?, said.span()?);
            Ok(RangeAsk::Test { mode, span })
        })
    }

    pub(super) fn cancel_range(&self) -> Result<Ask<'a>, Problem<'a>> {
        self.about_range(|said| {
            let (mode, span) = (said.sharing()?, said.span()?);
            Ok(RangeAsk::Cancel { mode, span })
        })
    }

    pub(super) fn reclaim_range(&self) -> Result<Ask<'a>, Problem<'a>> {
        self.about_range(|said| {
            let (mode, span) = (said.sharing()?, said.span()?);
            Ok(RangeAsk::Reclaim { mode, span })
        })
    }

    fn about_range(
        &self,
        ask: impl FnOnce(&Self) -> Result<RangeAsk, Problem<'a>>,
    ) -> Result<Ask<'a>, Problem<'a>> {
        let client = self.fields.text(Field::Client).unwrap_or_default();
        if client.text.is_empty() {
            return Err(problem::CLIENT_REQUIRED);
        }
        let of = OfClient {
            id: client_id(client.text.as_bytes(), client.is_replaced)?,
            secret: self.secret()?,
        };
        let owner = self.range_owner()?;
        let ask = ask(self)?;
        let request = RangeRequest {
            resource: self.name,
            owner: owner.as_bytes(),
            ask,
        };
        Ok(Ask::Range { of, request })
    }

    pub(super) fn register(&self) -> Result<Ask<'a>, Problem<'a>> {
        let OfClient { id, secret } = self.client_in_path()?;
        let ttl = self.fields.whole(Field::TtlMs).unwrap_or(0);
        let ttl = u64::try_from(ttl).ok().map(Millis);
        let ttl = ttl.filter(|ttl| (Millis(1)..=Millis::MAX).contains(ttl));
        let ttl = ttl.ok_or(problem::CLIENT_TTL_RANGE)?;
        Ok(Ask::Register(Attach {
            id,
            adapter: self.adapter()?,
            ttl,
            secret,
        }))
    }

    pub(super) fn client_in_path(&self) -> Result<OfClient<'a>, Problem<'a>> {
        Ok(OfClient {
            id: client_id(self.name, false)?,
            secret: self.secret()?,
        })
    }

    fn adapter(&self) -> Result<Option<&'a str>, Problem<'a>> {
        let Some(adapter) = self.fields.text(Field::Adapter) else {
            return Ok(None);
        };
        match is_adapter(adapter.text) && !adapter.is_replaced {
            true => Ok(Some(adapter.text)),
            false => Err(problem::BAD_ADAPTER),
        }
    }

    fn secret(&self) -> Result<Secret<'a>, Problem<'a>> {
        let secret = self.fields.text(Field::Secret).unwrap_or_default();
        let fits = (1..=SECRET_BYTES_MAX).contains(&secret.text.len());
        match fits && !secret.is_replaced && is_one_word(secret.text) {
            true => Ok(Secret(secret.text.as_bytes())),
            false => Err(problem::SECRET_REQUIRED),
        }
    }

    fn range_owner(&self) -> Result<&'a str, Problem<'a>> {
        let owner = self.fields.text(Field::RangeOwner).unwrap_or_default();
        let fits = owner.text.len() <= RANGE_OWNER_BYTES_MAX && !owner.is_replaced;
        match fits && is_one_word(owner.text) && !owner.text.starts_with("flavor=") {
            true => Ok(owner.text),
            false => Err(problem::RANGE_OWNER.about(owner.text.as_bytes())),
        }
    }

    fn sharing(&self) -> Result<Sharing, Problem<'a>> {
        let word = self.text(Field::Mode).as_bytes();
        Sharing::from_word(word).ok_or_else(|| problem::RANGE_MODE.about(word))
    }

    fn span(&self) -> Result<Span, Problem<'a>> {
        let start = self.fields.natural(Field::Start);
        let len = self.fields.natural(Field::Len);
        let (Some(start), Some(len)) = (start, len) else {
            return Err(problem::SPAN_REQUIRED);
        };
        Ok(Span { start, len })
    }

    /// A page of resources.
    pub(super) fn resources(&self) -> Result<Ask<'a>, Problem<'a>> {
        let page = self.page()?;
        let contains = self.query.get("contains");
        if contains.is_some_and(|it| !(1..=LOCK_NAME_BYTES_MAX).contains(&it.len())) {
            return Err(problem::CONTAINS);
        }
        let contains = contains.unwrap_or_default();
        let of = RangesOf {
            client: self.query.get("client"),
            owner: self.query.get("owner"),
        };
        if of.client.or(of.owner).is_none() {
            return Ok(Ask::Resources { page, contains });
        }
        let after = match page.after {
            Some(text) => RangeCursor::parse(text).ok_or(problem::UNKNOWN_CURSOR)?,
            None => RangeCursor::default(),
        };
        Ok(Ask::RangesOf {
            of,
            after,
            limit: page.limit,
            contains,
        })
    }

    /// Whose range locks are to end.
    pub(super) fn break_ranges_of(&self) -> Result<Ask<'a>, Problem<'a>> {
        let client = self.query.get("client").filter(|it| !it.is_empty());
        let client = client.ok_or(problem::CLIENT_QUERY)?;
        Ok(Ask::BreakRangesOf { client })
    }

    /// Which bytes are to be set free; all of them if the query names none.
    pub(super) fn break_ranges(&self) -> Result<Ask<'a>, Problem<'a>> {
        let number = |name| match self.query.get(name) {
            None => Ok(None),
            Some(text) => match target::digits(text) {
                None => Err(problem::SPAN_QUERY.about(text)),
                number => Ok(number),
            },
        };
        let span = match (number("start")?, number("len")?) {
            (None, None) => None,
            (Some(start), Some(len)) => Some(Span { start, len }),
            _ => return Err(problem::SPAN_QUERY),
        };
        if span.is_some_and(|it| ByteRange::new(it.start, it.len).is_none()) {
            return Err(problem::BAD_RANGE);
        }
        Ok(Ask::BreakRanges {
            resource: self.name,
            span,
        })
    }
}

fn client_id(id: &[u8], is_replaced: bool) -> Result<&str, Problem<'_>> {
    let fits = id.len() <= LINE_BYTES_MAX && !is_replaced;
    let checked = command::client_id(id).ok().filter(|_| fits);
    checked.ok_or_else(|| problem::CLIENT_ID.about(id))
}

/// Whether the line protocol can say it: there a blank ends a word.
fn is_one_word(text: &str) -> bool {
    !text.bytes().any(|it| it.is_ascii_control() || it == b' ')
}
