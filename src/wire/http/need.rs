//! What a request over HTTP needs of whoever asks, and what it is about.

use super::{Ask, Asked};
use crate::engine::types::Request;
use crate::wire::need::{Need, Subject, home};

impl<'a> Asked<'a> {
    /// What it needs. A path that leads nowhere needs nothing, and neither does one that is open to all.
    #[must_use]
    pub fn need(&self) -> Need {
        self.context
            .route
            .map_or(Need::Nothing, |route| route.row().need)
    }

    /// What it is about: the name in its path, and what else it names. Of a malformed request only the path
    /// is known.
    #[must_use]
    pub fn subject(&self) -> Subject<'a> {
        match self.what {
            Ok(Ask::Engine { request, .. } | Ask::Subscribe(request)) => Subject::of(&request),
            Ok(Ask::Lease { key } | Ask::Holders { key } | Ask::Who { key }) => Subject::Name(key),
            Ok(Ask::Break { key, .. }) => Subject::Name(key),
            Ok(Ask::Register(attach)) => Subject::Name(attach.id.as_bytes()),
            Ok(Ask::Detach(of) | Ask::EndReclaim(of)) => Subject::Name(of.id.as_bytes()),
            Ok(Ask::Range { of, request }) => Subject::Names(request.resource, of.id.as_bytes()),
            Ok(Ask::BreakRangesOf { client }) => Subject::Name(client),
            Ok(Ask::Ranges { resource } | Ask::BreakRanges { resource, .. }) => {
                Subject::Name(resource)
            }
            Ok(_) => Subject::Nothing,
            Err(_) => match self.context.name {
                b"" => Subject::Nothing,
                name => Subject::Name(name),
            },
        }
    }

    /// The id with which it may be sent again, if it is an acquire that has one.
    #[must_use]
    pub fn repeatable_id(&self) -> Option<&'a str> {
        match self.what {
            Ok(Ask::Engine {
                request: Request::Acquire { .. },
                by: Some(by),
            }) => by.request_id,
            _ => None,
        }
    }

    /// The name whose shard has to be asked, if it is about one.
    #[must_use]
    pub fn home(&self) -> Option<&'a [u8]> {
        let is_of_client = matches!(
            self.what,
            Ok(Ask::Register(_) | Ask::Detach(_) | Ask::EndReclaim(_) | Ask::BreakRangesOf { .. })
                | Err(_)
        );
        home(self.subject(), is_of_client)
    }
}
