//! The engine that ships and a frozen copy of the engine before it was rebuilt get the same random
//! inputs, and have to answer and record the same.
//!
//! `table.rs` lists the combinations: every verb, by every kind of session, with every ending.
//! `scene.rs` plays a case, `goals.rs` pursues the cells of the table in it, `noise.rs` does
//! everything else. `pair.rs` compares; `driver.rs` is compiled once for each engine.
//!
//! A case replays from its seed: `LOCKSTEP_SEED=7 cargo test --test engine lockstep::` plays only
//! that one. `LOCKSTEP_CASES` sets the number of cases, and `LOCKSTEP_REPORT=1` shows how often
//! each cell was reached.

#![allow(unreachable_pub, reason = "modules of a test have no outside")]
#![allow(
    clippy::duplicate_mod,
    reason = "the driver is compiled for each of the two engines"
)]

mod asks;
mod frozen;
mod goals;
mod names;
mod noise;
mod pair;
mod scene;
mod step;
mod table;
mod today;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fastrand::Rng;

use self::pair::{Compare, Pair};
use self::scene::{MS, Scene, Verdict};
use self::step::{Conn, Heard, Name, Ns, OfClient, Rules, Subject, Token, What};
use self::table::{Cell, Ending, Reached, Verb};

/// How many cases are played in a run of all tests.
const CASES: u64 = 1_600;

/// Cells that a case pursues.
const GOALS: u64 = 6;

/// The step from one pursued cell to the next. It and the number of cells have no common divisor,
/// so all cells have their turn.
const STRIDE: u64 = 607;

type Subjects = [Box<dyn Subject>; 2];

fn frozen_and_today(rules: &Rules) -> Subjects {
    [
        Box::new(frozen::driver::Driver::new(rules)),
        Box::new(today::driver::Driver::new(rules)),
    ]
}

/// The cells that the case with this seed pursues.
fn goals(seed: u64) -> Vec<Cell> {
    let cells: Vec<Cell> = Cell::possible().collect();
    let count = cells.len() as u64;
    let places = (0..GOALS).map(|it| (seed % count * GOALS + it) * STRIDE % count);
    places.map(|it| cells[it as usize]).collect()
}

fn rules(chance: &mut Rng, goals: &[Cell]) -> Rules {
    let comes_back = |it: &Cell| {
        matches!(it.ending, Ending::Failover | Ending::Restart)
            || matches!(it.verb, Verb::Reclaim | Verb::RangeReclaim) && it.is_own()
    };
    let mut one_in = |count: u32| chance.u32(..count) == 0;
    let durable = goals.iter().any(comes_back) || one_in(2);
    let auto_release = !one_in(6);
    let deadlock_detection = one_in(4);
    let small_limits = one_in(5);
    let grace_is_strict = one_in(4);
    let fence = if one_in(4) { 4_096 - 20 } else { 0 };
    let mut limit = |usual: u32, small: u32| match small_limits && chance.u32(..3) == 0 {
        true => small,
        false => usual,
    };
    Rules {
        durable,
        auto_release,
        deadlock_detection,
        locks_max: limit(0, 4),
        holds_max: limit(0, 6),
        waiters_per_key_max: limit(0, 2),
        keys_max: limit(0, 4),
        list_length_max: limit(0, 2),
        subscriptions_max: limit(0, 3),
        clients_per_adapter_max: limit(0, 2),
        clients_max: match limit(0, 1) {
            0 => Vec::new(),
            limit => vec![("gw", limit)],
        },
        ranges_per_resource_max: limit(1_000, 4),
        ranges_per_client_max: limit(1_000, 4),
        ranges_max: limit(1_000, 6),
        range_wait_max: limit(0, 40).into(),
        search: [None, Some((0, 8)), Some((2_000, 2))][chance.usize(..3)],
        notes: chance.u8(..3),
        lease_default: [30, 2_000][chance.usize(..2)],
        grace_period: [200, 5_000][chance.usize(..2)],
        grace_is_strict,
        gc_interval: [5, 5_000][chance.usize(..2)],
        gc_idle_max: [20, 60_000][chance.usize(..2)],
        fence,
        seed: chance.u64(..),
    }
}

/// What a case has shown.
struct Played {
    reached: Reached,
    inputs: u64,
}

/// Plays the case with this seed. An error says how the two differ, and after which inputs.
fn play(seed: u64, subjects: impl FnOnce(&Rules) -> Subjects, compare: Compare) -> Verdict<Played> {
    let mut chance = Rng::with_seed(seed);
    let goals = goals(seed);
    let rules = rules(&mut chance, &goals);
    let mut pair = Pair::new(subjects(&rules), compare);
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut scene = Scene::new(&mut pair, rules, chance);
        play_scene(&mut scene, &goals)?;
        let (now, reached, inputs) = (scene.now, scene.reached, scene.inputs);
        pair.look(now)?;
        Verdict::Ok(Played { reached, inputs })
    }));
    match played {
        Ok(Ok(played)) => Ok(played),
        Ok(Err(why)) => Err(format!(
            "case {seed} (LOCKSTEP_SEED={seed}), after\n{}\n{why}",
            pair.last()
        )),
        Err(panic) => {
            eprintln!("case {seed} (LOCKSTEP_SEED={seed}), after\n{}", pair.last());
            resume_unwind(panic)
        }
    }
}

fn play_scene(scene: &mut Scene<'_>, goals: &[Cell]) -> Verdict {
    if scene.one_in(8) {
        scene.spell_of(What::MemoryFull)?; // while the tables have no room at all
    }
    if scene.is_crowded() {
        scene.crowd_of_waiters()?;
    }
    for &goal in goals {
        for _ in 0..scene.chance.u8(..4) {
            scene.noise()?;
        }
        scene.pursue(goal)?;
        if scene.is_draining && !scene.rules.durable {
            break; // it does not come back
        }
    }
    for slot in 0..scene.lines.len() {
        scene.reconnect(slot)?;
    }
    // Everything ends at last.
    scene.pass_to(scene.now + 70_000 * MS)
}

fn set(name: &str) -> Option<u64> {
    let text = std::env::var_os(name)?;
    let number = text.to_str().and_then(|it| it.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name} is no number")))
}

#[test]
fn every_cell_is_reached() {
    let only = set("LOCKSTEP_SEED");
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => 0..set("LOCKSTEP_CASES").unwrap_or(CASES),
    };
    let mut reached = Reached::default();
    let mut inputs = 0;
    for seed in seeds.clone() {
        match play(seed, frozen_and_today, Compare::Exactly) {
            Ok(played) => {
                reached.add(&played.reached);
                inputs += played.inputs;
            }
            Err(why) => panic!("{why}"),
        }
    }
    if set("LOCKSTEP_REPORT").is_some() {
        println!("{}{inputs} inputs", reached.report());
    }
    if only.is_none() && seeds.end >= CASES {
        let empty = reached.empty();
        assert!(empty.is_empty(), "{} not reached: {empty:?}", empty.len());
    }
}

#[test]
fn engines_have_equal_effects_at_rest() {
    for seed in 0..CASES / 40 {
        if let Err(why) = play(seed, frozen_and_today, Compare::AtRest) {
            panic!("{why}");
        }
    }
}

#[test]
fn a_case_replays_from_its_seed() {
    let inputs = |seed| {
        let played = play(seed, frozen_and_today, Compare::Exactly);
        played.map(|it| it.inputs)
    };
    assert_eq!(inputs(3), inputs(3));
    assert_ne!(inputs(3), inputs(4));
}

/// An engine that is not quite the other one.
struct Altered {
    it: today::driver::Driver,
    how: Alteration,
    /// How many inputs it takes as it should.
    left: u32,
}

#[derive(Clone, Copy, Debug)]
enum Alteration {
    DropsAnEffect,
    SwapsTwoEffects,
    DropsARecord,
    DoesOtherWork,
    IsLateByAnInstant,
}

impl Subject for Altered {
    fn apply(&mut self, now: Ns, what: &What) -> Heard {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return self.it.apply(now, what);
        }
        let other = match (self.how, what) {
            (Alteration::DoesOtherWork, What::Time(_)) => Some(What::Time(2_000)),
            _ => None,
        };
        let now = match self.how {
            Alteration::IsLateByAnInstant => now + 1,
            _ => now,
        };
        let mut heard = self.it.apply(now, other.as_ref().unwrap_or(what));
        match self.how {
            Alteration::DropsAnEffect => _ = heard.effects.pop(),
            Alteration::SwapsTwoEffects if heard.effects.len() > 1 => heard.effects.swap(0, 1),
            Alteration::DropsARecord => _ = heard.records.pop(),
            _ => {}
        }
        heard
    }

    fn next_deadline(&self) -> Option<Ns> {
        self.it.next_deadline()
    }

    fn figures(&self) -> String {
        self.it.figures()
    }

    fn look(&mut self, now: Ns, conns: &[Conn]) -> String {
        self.it.look(now, conns)
    }

    fn image(&self) -> Vec<String> {
        self.it.image()
    }

    fn check(&self) {
        self.it.check();
    }

    fn record_count(&self) -> u64 {
        self.it.record_count()
    }

    fn is_held(&self, now: Ns, key: Name, fence: u64) -> bool {
        self.it.is_held(now, key, fence)
    }

    fn proves(&self, owner: Name, key: Name, token: Token) -> bool {
        self.it.proves(owner, key, token)
    }

    fn may_speak_for(&mut self, of: OfClient) -> bool {
        self.it.may_speak_for(of)
    }

    fn has_ranges(&self, now: Ns, resource: Name, client: &str, owner: Name) -> bool {
        self.it.has_ranges(now, resource, client, owner)
    }
}

/// Whether some of the first cases tell the altered engine from the frozen one, and what they say.
fn alarm(how: Alteration, compare: Compare) -> Option<String> {
    let subjects = |rules: &Rules| -> Subjects {
        let altered = Altered {
            it: today::driver::Driver::new(rules),
            how,
            left: 30,
        };
        [
            Box::new(frozen::driver::Driver::new(rules)),
            Box::new(altered),
        ]
    };
    (0..40).find_map(|seed| play(seed, subjects, compare).err())
}

#[test]
fn every_alteration_is_noticed() {
    for how in [
        Alteration::DropsAnEffect,
        Alteration::SwapsTwoEffects,
        Alteration::DropsARecord,
        Alteration::DoesOtherWork,
        Alteration::IsLateByAnInstant,
    ] {
        let alarm = alarm(how, Compare::Exactly);
        let alarm = alarm.unwrap_or_else(|| panic!("{how:?} was not noticed"));
        for part in ["LOCKSTEP_SEED=", "frozen", "today", " ns: "] {
            assert!(alarm.contains(part), "{part} is missing: {alarm}");
        }
    }
}

#[test]
fn effects_are_compared_at_rest_and_not_by_turn() {
    assert_ne!(alarm(Alteration::DropsAnEffect, Compare::AtRest), None);
    assert_eq!(alarm(Alteration::DoesOtherWork, Compare::AtRest), None);
}
