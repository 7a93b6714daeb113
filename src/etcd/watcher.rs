//! A watch as whoever follows sees it: begun, listened to, and begun anew when it is over.

use std::time::Duration;

use super::{Gateway, Trouble, Watch, Watched};

/// Something that tells what changes as etcd does.
pub trait Watching {
    /// Begins to watch the keys from `key` to before `end`, and everything that has changed since
    /// `from_revision`. What was watched before is not any more.
    ///
    /// # Errors
    /// Nobody takes the watch.
    fn begin(
        &mut self,
        key: &[u8],
        end: &[u8],
        from_revision: u64,
        within: Duration,
    ) -> Result<(), Trouble>;

    /// Whether it watches.
    fn is_begun(&self) -> bool;

    /// Waits for the next change, for no longer than this.
    ///
    /// # Errors
    /// The watch is over. [`Trouble::Compacted`]: what has changed since cannot be had any more.
    fn next(&mut self, within: Duration) -> Result<Watched, Trouble>;

    /// Watches no longer.
    fn end(&mut self);
}

/// A watch over the JSON gateway.
pub struct Watcher {
    gateway: Gateway,
    watch: Option<Watch>,
}

impl Watcher {
    /// Watches nothing yet.
    #[must_use]
    pub fn new(gateway: Gateway) -> Self {
        Self {
            gateway,
            watch: None,
        }
    }
}

impl Watching for Watcher {
    fn begin(
        &mut self,
        key: &[u8],
        end: &[u8],
        from_revision: u64,
        within: Duration,
    ) -> Result<(), Trouble> {
        self.watch = None;
        let begun = Watch::begin(&mut self.gateway, key, end, from_revision, within)?;
        self.watch = Some(begun);
        Ok(())
    }

    fn is_begun(&self) -> bool {
        self.watch.is_some()
    }

    fn next(&mut self, within: Duration) -> Result<Watched, Trouble> {
        let Some(watch) = &mut self.watch else {
            return Err(Trouble::Unanswered("nothing is watched".to_owned()));
        };
        watch.next(within).inspect_err(|_| self.watch = None)
    }

    fn end(&mut self) {
        self.watch = None;
    }
}
