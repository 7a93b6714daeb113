//! SIGTERM and SIGINT while the daemon starts, before there is a loop that hears them.
//!
//! The first one is remembered: the start goes on to its next safe point and the process ends in
//! order. A second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

use super::{DaemonError, failed_to};

/// Remembers a signal to stop until [`EarlyStop::hand_over`].
pub(super) struct EarlyStop {
    is_told: Arc<AtomicBool>,
    actions: Vec<SigId>,
}

impl EarlyStop {
    pub(super) fn listen() -> Result<Self, DaemonError> {
        let is_told = Arc::new(AtomicBool::new(false));
        let mut actions = Vec::new();
        for signal in [SIGTERM, SIGINT] {
            // In this order: the first signal finds the flag unset, and sets it.
            let ends = flag::register_conditional_default(signal, Arc::clone(&is_told));
            actions.push(ends.map_err(failed_to("catch signals"))?);
            let remembers = flag::register(signal, Arc::clone(&is_told));
            actions.push(remembers.map_err(failed_to("catch signals"))?);
        }
        Ok(Self { is_told, actions })
    }

    /// Whether there was a signal to stop.
    pub(super) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::SeqCst)
    }

    /// The loop hears signals from now on. Returns whether there was one before.
    pub(super) fn hand_over(self) -> bool {
        for action in &self.actions {
            low_level::unregister(*action);
        }
        self.is_told()
    }
}
