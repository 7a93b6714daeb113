//! An engine that writes down what it is told, and can be told it all again.
//!
//! All decisions follow from the inputs, their times and the origin: a second engine that is fed
//! the same log must say the same, token for token. What it drew or looked up on its own would show
//! here.

use std::ops::Deref;

use latchd::base::Nanos;
use latchd::engine::types::{Effects, Input};
use latchd::engine::{Engine, Origin, Rules};

pub struct LoggedEngine {
    engine: Engine,
    origin: fn() -> Origin,
    rules: Rules,
    log: Vec<(Nanos, Input<'static>, Effects)>,
}

impl LoggedEngine {
    pub fn new(rules: Rules, origin: fn() -> Origin) -> Self {
        Self {
            engine: Engine::new(rules.clone(), origin()),
            origin,
            rules,
            log: Vec::new(),
        }
    }

    pub fn apply(&mut self, now: Nanos, input: Input<'static>) -> Effects {
        let mut out = Effects::new();
        self.engine.apply(now, input.clone(), &mut out);
        self.log.push((now, input, out.clone()));
        out
    }

    /// Plays the log to a fresh engine, which must say the same and end in the same state.
    pub fn replay(&self) -> Result<(), String> {
        let mut again = Engine::new(self.rules.clone(), (self.origin)());
        for (index, (now, input, expected)) in self.log.iter().enumerate() {
            let mut out = Effects::new();
            again.apply(*now, input.clone(), &mut out);
            if out != *expected {
                return Err(format!(
                    "input {index}, {input:?}, replays to {out:?} instead of {expected:?}"
                ));
            }
        }
        let states = |engine: &Engine| (engine.counts(), engine.tally(), engine.next_deadline());
        if states(&again) != states(&self.engine) {
            return Err("a replayed log ends in another state".to_owned());
        }
        Ok(())
    }
}

impl Deref for LoggedEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}
