//! What HTTP has to remember of a connection, from the first byte of a request to the last of its
//! answer.
//!
//! A connection asks, and is answered, one request at a time; or it has asked for events, and is a
//! stream from then on. Never looks at a clock: when it was asked and what is due is handed in.

use super::context::{Context, Memo};
use super::events::Framing;
use super::reader::{Part, Reader};
use crate::base::Nanos;

/// What HTTP has to remember of a connection.
#[derive(Debug)]
pub struct HttpCodec {
    /// Finds requests in what has come.
    pub reader: Reader,
    /// What the answer to the present request has to know.
    pub memo: Memo,
    /// How far the next request has come.
    pub part: Part,
    /// When the present request was there in full.
    pub asked_at: Nanos,
    /// When the connection could first be spoken on.
    pub came_at: Nanos,
    /// What it speaks by now.
    pub speech: Speech,
    /// What was wrong in the present request is the secret of a client, and not the token.
    pub is_client_secret: bool,
    /// Who the peer is, if that was asked for already.
    pub peer: Option<[u8; 17]>,
    /// The last answer was made: nothing is served any more.
    pub ends: bool,
}

/// What a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// Requests and answers.
    Answers,
    /// The present request asks for events, and becomes a stream if the table grants it.
    Subscribes,
    /// Events, as they happen.
    Events {
        /// How they are cut.
        framing: Framing,
        /// When there is to be a sign of life.
        beat_at: Nanos,
    },
    /// Figures, at regular times.
    Figures {
        /// How they are cut.
        framing: Framing,
        /// When the next ones are due.
        due_at: Nanos,
    },
}

impl Default for HttpCodec {
    fn default() -> Self {
        Self {
            reader: Reader::default(),
            memo: Memo::default(),
            part: Part::Nothing,
            asked_at: Nanos(0),
            came_at: Nanos(0),
            speech: Speech::Answers,
            is_client_secret: false,
            peer: None,
            ends: false,
        }
    }
}

impl HttpCodec {
    /// Whether the bytes last read were the beginning of a request.
    #[must_use]
    pub const fn is_mid_request(&self) -> bool {
        !matches!(self.part, Part::Nothing)
    }

    /// Whether it is asked nothing any more, because it is a stream.
    #[must_use]
    pub const fn is_stream(&self) -> bool {
        matches!(self.speech, Speech::Events { .. } | Speech::Figures { .. })
    }

    /// How events are cut, if it is told some.
    #[must_use]
    pub const fn framing(&self) -> Option<Framing> {
        match self.speech {
            Speech::Events { framing, .. } | Speech::Figures { framing, .. } => Some(framing),
            Speech::Answers | Speech::Subscribes => None,
        }
    }

    /// When the stream has something to say of itself.
    #[must_use]
    pub const fn next_event(&self) -> Option<Nanos> {
        match self.speech {
            Speech::Events { beat_at: at, .. } | Speech::Figures { due_at: at, .. } => Some(at),
            Speech::Answers | Speech::Subscribes => None,
        }
    }

    /// What the answer to the present request has to know. On a connection that nothing was asked on,
    /// what is known of a request that cannot be read.
    #[must_use]
    pub fn context(&self) -> Context<'_> {
        self.memo.context().unwrap_or(Context::UNREAD)
    }
}
