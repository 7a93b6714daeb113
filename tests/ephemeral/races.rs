//! What can come between any two steps of somebody who locks: one test for each.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use latchd::ephemeral::{Cleanup, EphemeralLock, Error, Holder, Kind, lock_path_beside};

use crate::program::{
    Contender, Place, Program, file_at, has, is_locked, until_held_by, until_open, until_waiters,
};

/// A file that is removed while it is held: the next one makes another, and the first must not remove that.
pub(crate) fn removed_while_held(program: &Program) -> Result<(), String> {
    let place = Place::new();
    let mut holder = program.start(&place.path);
    let mut newcomer = program.start(&place.path);
    let old = holder.acquire("exclusive", "try");
    fs::remove_file(&place.path).unwrap();
    assert_eq!(holder.ask("in-place"), "false");
    let new = newcomer.acquire("exclusive", "try");
    assert_ne!(old, new, "while one is open, no other has its number");
    let cleanup = holder.ask("release");
    let seen = (place.file(), is_locked(&place.path));
    if seen != (Some(new), true) {
        return Err(format!("violation: {cleanup}, and then {seen:?}"));
    }
    assert_eq!(cleanup, "LeftReplaced");
    assert_eq!(newcomer.ask("in-place"), "true");
    assert_eq!(newcomer.ask("release"), "Removed");
    assert_eq!(place.file(), None);
    Ok(())
}

#[test]
fn a_holder_whose_file_was_removed_leaves_the_next_ones_alone() {
    removed_while_held(&Program::Ours).unwrap();
}

/// What cleaners of temporary files do is no different.
#[test]
fn a_cleaner_of_old_empty_files_is_like_any_other_who_removes_it() {
    let place = Place::new();
    let mut holder = Program::Ours.start(&place.path);
    holder.acquire("shared", "try");
    let mut find = Command::new("find");
    find.arg(place.dir.path())
        .args(["-type", "f", "-empty", "-delete"]);
    assert!(find.status().unwrap().success());
    let newcomer = EphemeralLock::exclusive(&place.path).try_acquire().unwrap();
    assert_eq!(holder.ask("release"), "LeftReplaced");
    assert!(newcomer.is_in_place().unwrap());
    assert!(is_locked(&place.path));
    assert_eq!(newcomer.release().unwrap(), Cleanup::Removed);
}

/// A contender, perhaps one whose lock takes its time, has opened a file that is removed and made again,
/// up to 100 times, before it is locked.
fn removed_between_open_and_lock(in_front: &[&str]) {
    for kind in ["exclusive", "shared"] {
        let place = Place::new();
        let lock = EphemeralLock::exclusive(&place.path);
        let holder = lock.try_acquire().unwrap();
        let mut contender = Contender::start(Program::Ours.command(in_front), &place.path);
        let pid = contender.pid();
        contender.tell(&format!("acquire {kind} block"));
        until_open(pid, &place.path);
        assert_eq!(holder.release().unwrap(), Cleanup::Removed);
        for _ in 0..100 {
            let Ok(holder) = lock.try_acquire() else {
                break; // it has found the new one already
            };
            assert_eq!(holder.release().unwrap(), Cleanup::Removed);
        }
        let (file, retries) = contender.held();
        assert!(retries > 0);
        assert_eq!(Some(file), place.file());
        assert!(is_locked(&place.path));
        assert_eq!(contender.ask("release"), "Removed");
        assert_eq!(place.file(), None);
    }
}

#[test]
fn a_file_that_is_removed_between_open_and_lock_is_not_taken_for_the_lock() {
    removed_between_open_and_lock(&[]);
}

#[test]
fn a_lock_that_takes_200_ms_to_ask_for_is_still_on_the_right_file() {
    if has("strace", &["-f", "true"]) {
        let inject = "inject=flock:delay_enter=200000";
        removed_between_open_and_lock(&["strace", "-f", "-qq", "-o", "/dev/null", "-e", inject]);
    }
}

/// Each release makes everybody begin again once at most, so nobody tries more often than there are holders.
#[test]
fn waiters_of_a_file_that_is_gone_find_the_new_one_in_few_tries() {
    const WAITERS: usize = 12;
    let place = Place::new();
    let holder = EphemeralLock::exclusive(&place.path).try_acquire().unwrap();
    let contenders: Vec<_> = (0..WAITERS)
        .map(|_| {
            let mut contender = Program::Ours.start(&place.path);
            contender.tell("acquire exclusive block");
            contender
        })
        .collect();
    until_waiters(&place.path, WAITERS);
    drop(holder);
    std::thread::scope(|scope| {
        for mut contender in contenders {
            scope.spawn(move || {
                let (_, retries) = contender.held();
                assert!((1..=WAITERS as u32).contains(&retries), "{retries}");
                assert_eq!(contender.ask("release"), "Removed");
            });
        }
    });
    assert_eq!(place.file(), None);
}

#[test]
fn of_two_who_make_the_file_one_has_it_and_the_other_waits() {
    let place = Place::new();
    let path = &place.path;
    let mut two = [Program::Ours.start(path), Program::Ours.start(path)];
    for _ in 0..500 {
        for contender in &mut two {
            contender.tell("acquire exclusive try");
        }
        let answers = two.each_mut().map(|contender| contender.hear());
        let held: Vec<bool> = answers.iter().map(|it| it.starts_with("held ")).collect();
        let holders = held.iter().filter(|is_held| **is_held).count();
        assert_eq!(holders, 1, "{answers:?}");
        let loser = held.iter().position(|is_held| !is_held).unwrap();
        assert_eq!(answers[loser], "Busy");
        two[loser].tell("acquire exclusive block");
        assert_eq!(two[1 - loser].ask("release"), "Removed");
        let (file, _) = two[loser].held();
        assert_eq!(Some(file), place.file());
        assert_eq!(two[loser].ask("release"), "Removed");
    }
}

#[test]
fn a_file_that_is_renamed_away_or_over_is_somebody_elses_then() {
    let place = Place::new();
    let (path, other) = (&place.path, place.dir.path().join("other"));
    let mut holder = Program::Ours.start(path);
    // Away: the name is free for the next one.
    let old = holder.acquire("exclusive", "try");
    fs::rename(path, &other).unwrap();
    let newcomer = EphemeralLock::exclusive(path).try_acquire().unwrap();
    assert_eq!(holder.ask("release"), "LeftReplaced");
    assert!(newcomer.is_in_place().unwrap() && is_locked(path));
    assert_eq!(file_at(&other), Some(old), "nobody told us to remove it");
    drop(newcomer);
    // Over: what is there is another file, which nobody has locked, and which has contents.
    holder.acquire("exclusive", "try");
    fs::write(&other, "data").unwrap();
    fs::rename(&other, path).unwrap();
    assert_eq!(holder.ask("release"), "LeftReplaced");
    assert_eq!(fs::read(path).unwrap(), b"data");
    fs::remove_file(path).unwrap();
    // A link, also one to the file itself.
    holder.acquire("exclusive", "try");
    fs::rename(path, &other).unwrap();
    symlink(&other, path).unwrap();
    assert_eq!(holder.ask("release"), "LeftReplaced");
    assert!(path.is_symlink() && other.exists());
}

/// A second name for the file is no way to keep others from noticing that the first one is gone.
#[test]
fn a_hard_link_does_not_make_a_removed_file_the_lock() {
    let place = Place::new();
    let lock = EphemeralLock::exclusive(&place.path);
    let holder = lock.try_acquire().unwrap();
    let other = place.dir.path().join("other");
    fs::hard_link(&place.path, &other).unwrap();
    let mut waiter = Program::Ours.start(&place.path);
    waiter.tell("acquire exclusive block");
    until_waiters(&place.path, 1);
    assert_eq!(holder.release().unwrap(), Cleanup::Removed);
    let (file, retries) = waiter.held();
    assert!(retries > 0);
    assert_eq!(Some(&file), place.file().as_ref());
    assert_ne!(Some(file), file_at(&other));
}

#[test]
fn two_of_one_process_exclude_each_other() {
    let place = Place::new();
    let exclusive = EphemeralLock::exclusive(&place.path);
    let shared = EphemeralLock::shared(&place.path);
    let is_busy = |lock: &EphemeralLock| matches!(lock.try_acquire(), Err(Error::Busy { .. }));
    let guard = exclusive.try_acquire().unwrap();
    assert!(is_busy(&exclusive) && is_busy(&shared));
    assert_eq!(guard.release().unwrap(), Cleanup::Removed);
    let guards = [shared.try_acquire().unwrap(), shared.try_acquire().unwrap()];
    assert!(is_busy(&exclusive));
    let (pid, kind) = (Some(std::process::id()), Kind::Shared);
    until_held_by(&place.path, &[Holder { pid, kind }; 2]);
    let [first, last] = guards;
    assert_eq!(first.release().unwrap(), Cleanup::LeftBusy);
    assert!(is_busy(&exclusive));
    assert_eq!(last.release().unwrap(), Cleanup::Removed);
}

#[test]
fn a_directory_that_is_gone_is_an_error_and_no_endless_loop() {
    let place = Place::new();
    let dir = place.dir.path().join("dir");
    let path = dir.join("x.lock");
    let mut waiter = Program::Ours.start(&path);
    assert_eq!(waiter.ask("acquire exclusive block"), "Io NotFound");
    // Also for somebody who waits already.
    fs::create_dir(&dir).unwrap();
    let holder = EphemeralLock::exclusive(&path).try_acquire().unwrap();
    waiter.tell("acquire exclusive block");
    until_waiters(&path, 1);
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(holder.release().unwrap(), Cleanup::LeftReplaced);
    assert_eq!(waiter.hear(), "Io NotFound");
}

/// A directory is edited by putting another in its place; the lock beside it is held all the while.
#[test]
fn the_lock_beside_a_directory_outlives_the_directory() {
    let place = Place::new();
    let dir = place.dir.path().join("site");
    fs::create_dir(&dir).unwrap();
    let path = lock_path_beside(&dir).unwrap();
    let guard = EphemeralLock::exclusive(&path).try_acquire().unwrap();
    fs::rename(&dir, dir.with_file_name("old")).unwrap();
    assert!(is_locked(&path));
    fs::create_dir(&dir).unwrap();
    assert!(guard.is_in_place().unwrap());
    assert_eq!(guard.release().unwrap(), Cleanup::Removed);
}

#[test]
fn what_somebody_writes_to_a_held_lock_file_is_not_removed() {
    let place = Place::new();
    let lock = EphemeralLock::exclusive(&place.path);
    let guard = lock.try_acquire().unwrap();
    fs::write(&place.path, "data").unwrap();
    assert_eq!(guard.release().unwrap(), Cleanup::LeftWritten);
    assert_eq!(fs::read(&place.path).unwrap(), b"data");
    assert!(!is_locked(&place.path));
}

#[test]
fn a_file_that_is_kept_stays_with_its_contents() {
    let place = Place::new();
    let lock = EphemeralLock::exclusive(&place.path).keep_file(true);
    assert_eq!(lock.acquire().unwrap().release().unwrap(), Cleanup::Kept);
    let file = place.file();
    assert!(file.is_some());
    fs::write(&place.path, "1234\n").unwrap();
    let guard = lock.acquire().unwrap();
    assert!(matches!(lock.try_acquire(), Err(Error::Busy { .. })));
    assert_eq!(guard.release().unwrap(), Cleanup::Kept);
    assert_eq!(fs::read(&place.path).unwrap(), b"1234\n");
    assert_eq!(place.file(), file);
}

#[test]
fn a_timeout_ends_the_wait_and_nothing_else() {
    let place = Place::new();
    let holder = EphemeralLock::exclusive(&place.path).try_acquire().unwrap();
    let mut waiter = Program::Ours.start(&place.path);
    assert_eq!(waiter.ask("acquire exclusive 0"), "Busy");
    assert_eq!(waiter.ask("acquire shared 20"), "Busy");
    assert!(holder.is_in_place().unwrap() && is_locked(&place.path));
    // Longer than anybody looks at this test.
    waiter.tell("acquire exclusive 86400000");
    drop(holder);
    let (file, _) = waiter.held();
    assert_eq!(Some(file), place.file());
}

/// The directory is renamed and another made in its place: whoever waited is at the new one then, where
/// everybody else goes, and the holder removes its file where that is now.
#[test]
fn a_directory_that_is_replaced_takes_its_lock_file_along() {
    let place = Place::new();
    let (dir, moved) = (place.dir.path().join("dir"), place.dir.path().join("moved"));
    fs::create_dir(&dir).unwrap();
    let path = dir.join("x.lock");
    let holder = EphemeralLock::exclusive(&path).try_acquire().unwrap();
    let mut waiter = Program::Ours.start(&path);
    waiter.tell("acquire exclusive block");
    until_waiters(&path, 1);
    fs::rename(&dir, &moved).unwrap();
    fs::create_dir(&dir).unwrap();
    assert!(!holder.is_in_place().unwrap());
    assert_eq!(holder.release().unwrap(), Cleanup::Removed);
    assert_eq!(fs::read_dir(&moved).unwrap().count(), 0);
    let (file, _) = waiter.held();
    assert_eq!(Some(file), file_at(&path));
    assert_eq!(waiter.ask("in-place"), "true");
    assert_eq!(waiter.ask("release"), "Removed");
}

#[test]
fn a_lock_is_the_same_by_every_way_to_it() {
    let place = Place::new();
    let link = place.dir.path().join("link");
    symlink(place.dir.path(), &link).unwrap();
    let guard = EphemeralLock::exclusive(link.join("x.lock")).try_acquire();
    let guard = guard.unwrap();
    assert_eq!(guard.path(), link.join("x.lock"));
    // One that ends in another process's view of the files can be written down in no other way.
    let seen = place.path.strip_prefix("/").unwrap();
    for other in [place.path.clone(), Path::new("/proc/self/root").join(seen)] {
        let other = EphemeralLock::exclusive(other).try_acquire();
        assert!(matches!(other, Err(Error::Busy { .. })));
    }
    // That the way leads elsewhere now is noticed; what is removed is nevertheless what was made.
    fs::remove_file(&link).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), &link).unwrap();
    File::create(elsewhere.path().join("x.lock")).unwrap();
    assert!(!guard.is_in_place().unwrap());
    assert_eq!(guard.release().unwrap(), Cleanup::Removed);
    assert_eq!(place.file(), None);
    assert!(elsewhere.path().join("x.lock").exists());
}
