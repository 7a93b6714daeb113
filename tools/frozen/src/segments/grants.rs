//! Which grant a segment comes from: its id, its age, and the life of the server that made it.
//!
//! Ids only grow, from one life of the server to the next as well. Records have the epoch of a life;
//! in memory a life is a small number, so that it fits into what a segment takes anyway.

use super::range::{ByteRange, Segment, Sharing};

/// The present life of the server: what it granted is not pending.
pub const LIVE: u16 = 0;

/// A grant of bytes, as it is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeGrant {
    /// Its number; 0 in records of earlier versions, which have none. Of an unlock: the number of what
    /// it may split off.
    pub id: u64,
    /// When it was made, in nanoseconds since 1970; 0 if that is not known.
    pub since: u64,
    /// The epoch of the server that made it; 0 if that is not known.
    pub epoch: u64,
}

/// A grant of bytes, as [`Segments`](super::Segments) are told of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Its number. The next number belongs to it, too: see [`Segments::set`](super::Segments::set).
    pub id: u64,
    /// When it was made, in nanoseconds.
    pub since: u64,
    /// The life of the server that made it: [`LIVE`], or one that [`Grants`] has numbered.
    pub life: u16,
}

impl Grant {
    /// The segment that it makes.
    pub(super) fn of(self, range: ByteRange, mode: Sharing) -> Segment {
        Segment {
            range,
            mode,
            id: self.id,
            since: self.since,
            life: self.life,
        }
    }
}

/// Numbers grants, and lives of the server.
#[derive(Debug, Default)]
pub struct Grants {
    /// The highest id that was given out, as far as is known.
    last_id: u64,
    /// The epochs of earlier lives that granted something.
    epochs: Vec<u64>,
}

impl Grants {
    /// A number for a grant, which also takes the next one. All are above this.
    pub fn next_id(&mut self, above: u64) -> u64 {
        let id = self.last_id.max(above) + 1;
        self.last_id = id + 1;
        id
    }

    /// A grant of an earlier life. One without a number has the lowest that is above all before it:
    /// the same, whoever reads the same records.
    pub fn restored(&mut self, recorded: RangeGrant) -> Grant {
        let RangeGrant { id, since, epoch } = recorded;
        let id = match id {
            0 => self.next_id(0),
            id => {
                self.last_id = self.last_id.max(id + 1);
                id
            }
        };
        let life = self.life_of(epoch);
        Grant { id, since, life }
    }

    /// The number of a life. There are hardly more than one or two at a time; of more than a `u16` can
    /// tell, the last ones are told as one.
    fn life_of(&mut self, epoch: u64) -> u16 {
        let known = self.epochs.iter().rposition(|it| *it == epoch);
        let at = known.unwrap_or_else(|| {
            if self.epochs.len() < usize::from(u16::MAX) {
                self.epochs.push(epoch);
            }
            self.epochs.len() - 1
        });
        at as u16 + 1
    }

    /// The epoch of a life; none of [`LIVE`].
    #[must_use]
    pub fn epoch_of(&self, life: u16) -> Option<u64> {
        let at = usize::from(life).checked_sub(1)?;
        self.epochs.get(at).copied()
    }
}
