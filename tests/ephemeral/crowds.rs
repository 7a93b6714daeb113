//! Many processes at one lock, for long: nobody is ever inside with somebody else.

use std::fs;

use latchd::ephemeral::{Cleanup, EphemeralLock};

use crate::program::{Place, Program, all_do, file_at, is_locked};

/// Processes at a time, and how often each locks: less on Windows, because wine is slower.
pub(crate) const CROWD: u32 = if cfg!(windows) { 4 } else { 16 };
pub(crate) const TIMES: u32 = if cfg!(windows) { 300 } else { 2_000 };

/// How often two share it.
const SHARED_TIMES: usize = if cfg!(windows) { 100 } else { 2_500 };

/// Each adds to a number, in steps that anybody else would disturb.
pub(crate) fn count(program: &Program, times: u32) -> Result<(), String> {
    let place = Place::new();
    let number = place.dir.path().join("x.lock.number");
    fs::write(&number, "0").unwrap();
    let contenders = (0..CROWD).map(|_| program.start(&place.path)).collect();
    let orders = vec![format!("count {times}"); CROWD as usize];
    all_do(contenders, &orders)?;
    let number = fs::read_to_string(&number).unwrap();
    if number != (CROWD * times).to_string() {
        return Err(format!("violation: {number} of {}", CROWD * times));
    }
    match place.names()[..] {
        [_] => Ok(()),
        ref names => Err(format!("violation: left {names:?}")),
    }
}

/// The same with as many who only read.
pub(crate) fn mix(program: &Program, times: u32) -> Result<(), String> {
    let place = Place::new();
    fs::write(place.dir.path().join("x.lock.number"), "0").unwrap();
    let contenders = (0..CROWD).map(|_| program.start(&place.path)).collect();
    let orders: Vec<String> = (1..=CROWD)
        .map(|seed| format!("mix {times} {seed}"))
        .collect();
    all_do(contenders, &orders)?;
    // A file that the last two left to each other would be allowed: the next holder removes it.
    let lock = EphemeralLock::exclusive(&place.path).try_acquire();
    lock.map_err(|error| error.to_string())?.release().unwrap();
    match place.names()[..] {
        [_] => Ok(()),
        ref names => Err(format!("violation: left {names:?}")),
    }
}

#[test]
fn a_crowd_counts_and_leaves_no_file() {
    count(&Program::Ours, TIMES).unwrap();
}

#[test]
fn readers_see_nothing_move_and_writers_are_alone() {
    mix(&Program::Ours, TIMES / 4).unwrap();
}

#[test]
fn of_two_who_share_the_first_to_go_takes_nothing_from_the_other() {
    let place = Place::new();
    let path = &place.path;
    let mut two = [Program::Ours.start(path), Program::Ours.start(path)];
    for round in 0..SHARED_TIMES {
        for contender in &mut two {
            contender.tell("acquire shared block");
        }
        let files = two.each_mut().map(|contender| contender.held().0);
        assert_eq!(files[0], files[1]);
        two.swap(0, round % 2);
        let [first, last] = &mut two;
        assert_eq!(first.ask("release"), "LeftBusy");
        assert!(is_locked(path), "round {round}");
        assert_eq!(place.file(), Some(files[0].clone()));
        assert_eq!(last.ask("release"), "Removed");
        assert_eq!(place.file(), None);
    }
    // Both at the same time: at most one removes it, and if none does, the next one will.
    for _ in 0..SHARED_TIMES {
        for contender in &mut two {
            contender.tell("acquire shared block");
        }
        for contender in &mut two {
            contender.held();
        }
        for contender in &mut two {
            contender.tell("release");
        }
        let cleanups = two.each_mut().map(|contender| contender.hear());
        let removed = cleanups.iter().filter(|it| *it == "Removed").count();
        assert!(removed <= 1, "{cleanups:?}");
        if removed == 0 {
            let guard = EphemeralLock::exclusive(path).try_acquire().unwrap();
            assert_eq!(guard.release().unwrap(), Cleanup::Removed);
        }
        assert_eq!(file_at(path), None, "{cleanups:?}");
    }
}

#[test]
fn who_is_alone_never_meets_one_of_those_who_share() {
    let place = Place::new();
    let contenders = (0..3).map(|_| Program::Ours.start(&place.path)).collect();
    let (share, probe) = (2 * SHARED_TIMES, 8 * SHARED_TIMES);
    let orders = [("share", share), ("share", share), ("probe", probe)];
    let orders = orders.map(|(order, times)| format!("{order} {times}"));
    all_do(contenders, &orders).unwrap();
}
