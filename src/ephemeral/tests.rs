//! What can be seen from within one process; `tests/ephemeral` has the rest, with many.

use std::fs;
use std::path::Path;

use super::*;

#[test]
fn the_lock_of_a_directory_is_beside_it() {
    let here = std::path::absolute(".").unwrap();
    let beside = |dir: &str| lock_path_beside(dir).unwrap();
    assert_eq!(beside("/a/b"), Path::new("/a/b.lock"));
    assert_eq!(beside("/a/b///"), Path::new("/a/b.lock"));
    assert_eq!(beside("/a/./b/."), Path::new("/a/b.lock"));
    assert_eq!(beside("/a/b.d"), Path::new("/a/b.d.lock"));
    assert_eq!(beside("b"), here.join("b.lock"));
    assert_eq!(beside("."), lock_path_beside(here).unwrap());
    for nothing in ["/", "..", "/a/..", ""] {
        assert!(lock_path_beside(nothing).is_err(), "{nothing:?}");
    }
}

/// A child that was forked has a copy of the guard, and to drop it must not take the lock from us.
#[cfg(unix)]
#[test]
fn a_copy_in_a_forked_process_neither_unlocks_nor_removes() {
    for kind in [Kind::Exclusive, Kind::Shared] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let lock = EphemeralLock::new(path.clone(), kind);
        let guard = lock.acquire().unwrap();
        // The holder's own descriptor: the copy has another one of the same open file.
        let holders_own = std::os::fd::AsFd::as_fd(&guard)
            .try_clone_to_owned()
            .unwrap();
        let copy = guard.into_copy_of_another_process();
        assert_eq!(copy.release().unwrap(), Cleanup::LeftToHolder);
        assert!(path.exists());
        let other = EphemeralLock::exclusive(&path);
        assert!(matches!(other.try_acquire(), Err(Error::Busy { .. })));
        drop(holders_own);
        assert_eq!(
            other.try_acquire().unwrap().release().unwrap(),
            Cleanup::Removed
        );
    }
}

#[test]
fn an_observer_that_panics_while_a_guard_is_dropped_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.lock");
    let lock = EphemeralLock::exclusive(&path).observe(|event| {
        assert!(!matches!(event, Event::Released { .. }), "on purpose");
    });
    drop(lock.acquire().unwrap());
    assert!(!path.exists());
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = lock.acquire().unwrap();
        panic!("on purpose");
    }));
    assert!(result.is_err());
    assert!(!path.exists(), "dropped while panicking");
}

#[test]
fn errors_say_what_and_where_and_what_to_do() {
    let path = || Path::new("/run/a\n.lock").to_owned();
    let source = |kind: io::ErrorKind| io::Error::from(kind);
    let errors = [
        Error::Busy { path: path() },
        Error::Unsupported {
            path: path(),
            why: lock_file::on_network("nfs4"),
        },
        Error::Symlink { path: path() },
        Error::NotRegular {
            path: path(),
            what: "a pipe",
        },
        Error::NotEmpty {
            path: path(),
            bytes: 3,
        },
        Error::io(&path(), "open")(source(io::ErrorKind::PermissionDenied)),
        Error::io(&path(), "open")(source(io::ErrorKind::NotFound)),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains(r#""/run/a\n.lock""#), "{text}");
        assert!(text.contains(": ") || text.contains("; "), "{text}");
        assert_eq!(error.path(), path());
        assert_eq!(io::Error::from(error).to_string(), text);
    }
}

#[test]
fn paths_that_name_no_file_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let given = |name: &str| dir.path().join(name);
    let refused = |path: PathBuf| EphemeralLock::exclusive(path).try_acquire().unwrap_err();
    for name in ["x.lock/", "..", "", "."] {
        let error = refused(given(name));
        assert!(matches!(error, Error::NotRegular { .. }), "{name}: {error}");
    }
    assert!(matches!(refused(PathBuf::new()), Error::NotRegular { .. }));
    assert!(matches!(refused("/".into()), Error::NotRegular { .. }));
    let error = refused(given("a\0b"));
    assert!(matches!(error, Error::Io { .. }), "{error}");
    let error = refused(given(&"n".repeat(300)));
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
