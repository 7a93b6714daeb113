//! No data directory: nothing is kept, and everything may be spoken of at once.

use super::{Progress, Store};
use crate::base::Nanos;
use crate::engine::types::Record;

/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory;

impl Store for Memory {
    #[inline(always)]
    fn is_durable(&self) -> bool {
        false
    }

    #[inline(always)]
    fn append(&mut self, _: Nanos, _: &Record) {}

    #[inline(always)]
    fn commit(&mut self, _: Nanos) {}

    #[inline(always)]
    fn progress(&mut self) -> Progress {
        Progress {
            durable: u64::MAX,
            ..Progress::default()
        }
    }

    #[inline(always)]
    fn is_behind(&self) -> bool {
        false
    }

    #[inline(always)]
    fn memory(&self) -> usize {
        0
    }

    #[inline(always)]
    fn stop(&mut self) -> Result<(), String> {
        Ok(())
    }
}
