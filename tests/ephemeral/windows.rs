//! What is different on Windows: removal by a handle, names of devices, errors that may pass.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::windows::fs::OpenOptionsExt;
use std::path::Path;

use latchd::ephemeral::{Cleanup, EphemeralLock, Error, holders};

use crate::program::{Place, Program};

fn refused(path: &Path) -> Error {
    EphemeralLock::exclusive(path).try_acquire().unwrap_err()
}

#[test]
fn what_is_no_lock_file_is_refused_and_left_alone() {
    let place = Place::new();
    fs::write(&place.path, "precious").unwrap();
    let error = refused(&place.path);
    assert!(matches!(error, Error::NotEmpty { bytes: 8, .. }), "{error}");
    assert_eq!(fs::read(&place.path).unwrap(), b"precious");
    fs::remove_file(&place.path).unwrap();
    fs::create_dir(&place.path).unwrap();
    let names = [
        "x.lock\\",
        "x.lock/",
        "x.lock",
        "NUL",
        "other:stream",
        "other:",
    ];
    for name in names {
        let error = refused(&place.dir.path().join(name));
        assert!(matches!(error, Error::NotRegular { .. }), "{name}: {error}");
    }
    for device in ["NUL", r"\\.\NUL", r"\\.\pipe\x.lock"] {
        let error = refused(Path::new(device));
        assert!(
            matches!(error, Error::NotRegular { .. }),
            "{device}: {error}"
        );
    }
    assert_eq!(place.names(), ["x.lock"]);
}

#[test]
fn a_missing_directory_is_an_error_of_its_own() {
    let place = Place::new();
    let error = refused(&place.dir.path().join("missing").join("x.lock"));
    assert!(
        error.to_string().ends_with("; make its directory first"),
        "{error}"
    );
}

/// As a scanner has it open: the name of the file goes all the same, and a new one can be made.
#[test]
fn a_file_that_another_has_open_is_removed_at_the_release() {
    let place = Place::new();
    let lock = EphemeralLock::exclusive(&place.path);
    let guard = lock.try_acquire().unwrap();
    let scanner = File::open(&place.path).unwrap();
    assert_eq!(guard.release().unwrap(), Cleanup::Removed);
    assert_eq!(place.names(), [""; 0]);
    let next = lock.try_acquire().unwrap();
    assert!(next.is_in_place().unwrap());
    drop(scanner);
    assert_eq!(next.release().unwrap(), Cleanup::Removed);
}

/// Errors that may pass are retried a bounded number of times, then returned.
#[test]
fn a_file_that_cannot_be_opened_is_an_error_and_no_endless_loop() {
    let place = Place::new();
    let alone = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .share_mode(0)
        .open(&place.path);
    let alone = alone.unwrap();
    let lock = EphemeralLock::exclusive(&place.path);
    for result in [lock.try_acquire(), lock.acquire()] {
        assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
    }
    drop(alone);
    assert_eq!(lock.acquire().unwrap().release().unwrap(), Cleanup::Removed);
}

#[test]
fn a_file_that_is_kept_stays_with_its_contents() {
    let place = Place::new();
    fs::write(&place.path, "1234").unwrap();
    let lock = EphemeralLock::exclusive(&place.path).keep_file(true);
    let guard = lock.acquire().unwrap();
    assert!(matches!(lock.try_acquire(), Err(Error::Busy { .. })));
    assert_eq!(guard.release().unwrap(), Cleanup::Kept);
    assert_eq!(lock.acquire().unwrap().release().unwrap(), Cleanup::Kept);
    assert_eq!(fs::read(&place.path).unwrap(), b"1234");
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
    let [first, last] = [shared.try_acquire().unwrap(), shared.try_acquire().unwrap()];
    assert!(is_busy(&exclusive));
    assert_eq!(first.release().unwrap(), Cleanup::LeftBusy);
    assert!(is_busy(&exclusive));
    assert_eq!(last.release().unwrap(), Cleanup::Removed);
}

#[test]
fn holders_are_not_told() {
    let error = holders("x.lock").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// The waiter opened the file before the holder removed it, so it finds another one at the path, or none.
#[test]
fn a_waiter_begins_again_when_the_file_is_removed() {
    let place = Place::new();
    let mut holder = Program::Ours.start(&place.path);
    let mut waiter = Program::Ours.start(&place.path);
    for _ in 0..1_000 {
        holder.acquire("exclusive", "block");
        waiter.tell("acquire exclusive block");
        assert_eq!(holder.ask("release"), "Removed");
        let (_, retries) = waiter.held();
        assert_eq!(waiter.ask("in-place"), "true");
        assert_eq!(waiter.ask("release"), "Removed");
        if retries > 0 {
            return;
        }
    }
    panic!("the waiter never opened a file that was removed");
}
