//! What the thread that follows tells the reactor's thread, where the lock table is.

use std::sync::mpsc::SyncSender;

use super::member::Member;
use crate::base::Nanos;
use crate::store::etcd::{Lead, places};

/// Records are handed over in pieces of about this size, so that no turn of the reactor is long.
const PIECE_BYTES: usize = 64 << 10;

/// What the reactor's thread is told, in this order.
pub enum News {
    /// Forget everything: it is loaded anew.
    Reset,
    /// Replay these.
    Frames(Vec<u8>),
    /// That was everything, as far as there was any when it was read.
    Loaded,
    /// All that came before this was known since then, and is replayed now.
    Known(Nanos),
    /// Everything up to here was replayed: serve.
    Lead(Box<Lead>),
    /// This member was started for another cluster than this is, and why: it has to end.
    Unfit(String),
}

/// Hands records over, a piece at a time, and has the reactor take each: it may be the one for which
/// there was no more room.
pub(super) fn hand_over(member: &Member, news: &SyncSender<News>, bytes: &[u8]) -> Result<(), ()> {
    let tell = |piece: Vec<u8>| {
        let result = news.send(News::Frames(piece)).map_err(|_| ());
        member.tenancy.wake();
        result
    };
    let mut piece = Vec::new();
    for (at, length) in places(bytes) {
        if piece.len() + length > PIECE_BYTES && !piece.is_empty() {
            tell(std::mem::take(&mut piece))?;
        }
        piece.extend_from_slice(&bytes[at..at + length]);
    }
    match piece.is_empty() {
        true => Ok(()),
        false => tell(piece),
    }
}
