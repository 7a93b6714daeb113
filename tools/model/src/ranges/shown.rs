//! What the engine shows of locks of bytes, and the numbers that it gives them.

use latchd::engine::types::{ByteRange, Sharing};

use super::Owner;
use crate::Model;

impl Model {
    /// Each change takes two numbers: one for the lock, and the next for what it splits off.
    pub(super) fn next_range_id(&mut self) -> u64 {
        let id = self.ranges.last_id + 1;
        self.ranges.last_id = id + 1;
        self.ranges
            .ids
            .extend([(id, (self.inputs, None)), (id + 1, (self.inputs, None))]);
        id
    }

    /// The engine says that this is the number of a lock which the model has numbered so. It must
    /// never change, and later locks have higher numbers. Of what happens at one instant the engine
    /// chooses the order.
    pub(crate) fn learn_range_id(&mut self, id: u64, theirs: u64) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("number {theirs} of a range lock: {what}"));
        let (input, known) = match self.ranges.ids.get(&id) {
            Some(&(input, known)) => (input, known),
            None => (0, Some(id)), // it was restored
        };
        if let Some(known) = known {
            return if known == theirs {
                Ok(())
            } else {
                wrong(&format!("{known} was due"))
            };
        }
        let known = |(_, it): (&u64, &(u64, Option<u64>))| Some((it.0, it.1?));
        let before = self
            .ranges
            .ids
            .range(..id)
            .rev()
            .filter_map(known)
            .find(|it| it.0 < input);
        let after = self
            .ranges
            .ids
            .range(id..)
            .filter_map(known)
            .find(|it| it.0 > input);
        if before.is_some_and(|it| it.1 >= theirs) || after.is_some_and(|it| it.1 <= theirs) {
            return wrong("out of order");
        }
        let mut same = self.ranges.ids.values().filter(|it| it.0 == input);
        if same.any(|it| it.1 == Some(theirs)) {
            return wrong("given twice");
        }
        self.ranges.ids.insert(id, (input, Some(theirs)));
        Ok(())
    }

    /// What the engine shows of a resource, held and waited for, is what there is.
    ///
    /// # Errors
    /// What differs.
    pub fn compare_ranges(
        &mut self,
        resource: &[u8],
        held: &[ShownRange],
        waiting: &[ShownRange],
    ) -> Result<(), String> {
        let ours = self.all_held().filter(|it| it.1 == resource);
        let ours = ours.map(|(owner, _, it)| ShownRange {
            lock: Some((it.id, it.since, it.epoch, it.pending)),
            ..self.shown_range(owner, it.range, it.mode)
        });
        let mut ours: Vec<ShownRange> = ours.collect();
        for shown in held {
            let theirs = shown.lock.map(|it| it.0);
            let is_it = |it: &ShownRange| it.without_id() == shown.without_id();
            let Some(at) = ours.iter().position(is_it) else {
                return Err(format!(
                    "{resource:?}: {shown:?} is shown, not one of {ours:?}"
                ));
            };
            if let (Some((id, ..)), Some(theirs)) = (ours.remove(at).lock, theirs) {
                self.learn_range_id(id, theirs)?;
            }
        }
        let queue = self
            .queue_of(resource)
            .into_iter()
            .map(|it| self.range_wait(it));
        let queue = queue.map(|it| self.shown_range(&it.owner, it.range, it.mode));
        let queue: Vec<ShownRange> = queue.collect();
        match ours.is_empty() && queue == waiting {
            true => Ok(()),
            false => Err(format!(
                "{resource:?}: not shown {ours:?}, queue {queue:?}, not {waiting:?}"
            )),
        }
    }

    fn shown_range(&self, owner: &Owner, range: ByteRange, mode: Sharing) -> ShownRange {
        let (client, owner) = (self.called_in_lists(owner.session), owner.name.clone());
        ShownRange {
            client,
            owner,
            mode,
            range,
            lock: None,
        }
    }
}

impl ShownRange {
    /// It without its number, which the model gives otherwise than the engine.
    fn without_id(&self) -> Self {
        let lock = self
            .lock
            .map(|(_, since, epoch, pending)| (0, since, epoch, pending));
        Self {
            lock,
            ..self.clone()
        }
    }
}

/// A lock, or one that is waited for, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownRange {
    /// The id of the client, or `#` and the number of a connection.
    pub client: String,
    /// The name of the owner; empty for the client itself.
    pub owner: Vec<u8>,
    /// Shared or exclusive.
    pub mode: Sharing,
    /// Which bytes.
    pub range: ByteRange,
    /// Of a lock: its number, its time, the epoch it is from, and whether it is pending.
    pub lock: Option<(u64, u64, u64, bool)>,
}
