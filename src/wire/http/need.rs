//! What a request over HTTP needs of whoever asks, and what it is about.

use super::{Ask, Asked};
use crate::wire::need::{Need, Subject, home, is_of_group};

impl<'a> Asked<'a> {
    /// What it needs. A path that leads nowhere needs nothing, and neither does one that is open to all.
    #[must_use]
    pub fn need(&self) -> Need {
        match (self.context.route, &self.what) {
            (_, Ok(Ask::Subscribe(request))) if is_of_group(request) => Need::Write,
            (Some(route), _) => route.row().need,
            (None, _) => Need::Nothing,
        }
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

    /// The name whose shard has to be asked, if it is about one.
    #[must_use]
    pub fn home(&self) -> Option<&'a [u8]> {
        let is_of_client = matches!(
            self.what,
            Ok(Ask::Register(_) | Ask::Detach(_) | Ask::EndReclaim(_)) | Err(_)
        );
        home(self.subject(), is_of_client)
    }
}
