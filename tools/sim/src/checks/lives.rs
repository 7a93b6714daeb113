//! What must hold from one life of the server to the next: fences go on, and no key is held in two.

use crate::life::Life;
use crate::simulation::Simulation;

impl Simulation {
    /// A later life gives no fence that is lower than, or equal to, one of an earlier life.
    pub(crate) fn check_fences_go_on(&self, life: &Life) -> Result<(), String> {
        let origin = life.seen_locks.fence_origin();
        if origin < self.fences_given {
            let given = self.fences_given;
            return Err(format!(
                "fences go on after {origin}, but {given} was given"
            ));
        }
        Ok(())
    }

    /// No key has holders in two lives at once, as clients see it.
    pub(crate) fn check_lives(&self) -> Result<(), String> {
        let Some(other) = &self.other else {
            return Ok(());
        };
        let is_held = |life: &Life, key| life.known_grants.is_certainly_held(key, self.now);
        let keys = 0..self.plan.keys.len();
        match keys
            .into_iter()
            .find(|&key| is_held(&self.life, key) && is_held(other, key))
        {
            Some(key) => Err(format!("k{key} is held in two lives of the server at once")),
            None => Ok(()),
        }
    }
}
