//! What a crowd reads: an answer for each request, and no fence twice.
//!
//! Looked at now and then, because to look at thousands after every turn would take longer than the
//! turn. What the crowd has done to the table is checked with everything else: `Engine::check`, the
//! tally, and that nothing is left at the end.

use std::collections::BTreeSet;

use crate::clients::crowd::{Crowd, Member, Scene};
use crate::simulation::Simulation;
use latchd::wire::client::{Grant, Line, split_line};

/// Turns between two looks at a crowd, and, where there is one, between two walks over the whole
/// table.
pub(crate) const LOOK_EVERY: u64 = 64;

impl Simulation {
    /// Every member reads what it was written. If the server has nothing to do, nobody is owed an
    /// answer but those who wait.
    pub(crate) fn check_crowd(&mut self) -> Result<(), String> {
        let is_quiet = self.is_quiet();
        let owed_max = self.plan.crowd.map_or(0, |scene| scene.waits_each());
        let mut refusals: Vec<&[u8]> = Vec::new();
        if self.life.draining.is_some() {
            refusals.push(b"error_draining");
        }
        refusals.extend(self.plan.crowd.map_or(&[][..], Scene::refusals));
        let Crowd { members, fences } = &mut self.life.crowd;
        for (index, member) in members.iter_mut().enumerate() {
            let complain = |why: &str| format!("member {index} of the crowd: {why}");
            read(member, fences, &refusals).map_err(|why| complain(&why))?;
            member.has_left |= member.peer.is_ended();
            if is_quiet && member.reads() && member.owed > owed_max {
                return Err(complain("no answer"));
            }
        }
        Ok(())
    }
}

fn read(member: &mut Member, fences: &mut BTreeSet<u64>, refusals: &[&[u8]]) -> Result<(), String> {
    if !member.reads() {
        return Ok(());
    }
    member.received.extend(member.peer.receive());
    let mut used = 0;
    while let Some((line, length)) = split_line(&member.received[used..]) {
        used += length;
        if let Some(Line::Push(_)) = Line::read(line) {
            continue;
        }
        member.owed = member.owed.checked_sub(1).ok_or("an answer to nothing")?;
        if line.starts_with(b"error") && !refusals.contains(&line) {
            return Err(format!("was told {}", line.escape_ascii()));
        }
        // What an enqueue acquired is told again to the wait.
        if line.starts_with(b"ok ")
            && let Some(grant) = Grant::read(line)
            && !fences.insert(grant.token.fence.0)
        {
            return Err(format!("{} was given out twice", grant.token.fence));
        }
    }
    member.received.drain(..used);
    Ok(())
}
