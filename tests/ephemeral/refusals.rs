//! What is no lock file, and where none can be made: the exact error, and nothing touched.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use latchd::ephemeral::{EphemeralLock, Error};

use crate::program::{Contender, Place, Program, has};

/// Every way to ask for it.
fn refusals(path: &Path) -> Vec<Error> {
    let locks = [EphemeralLock::exclusive(path), EphemeralLock::shared(path)];
    let refused = |lock: &EphemeralLock| {
        [lock.try_acquire(), lock.acquire()].map(|result| result.map(drop).unwrap_err())
    };
    locks.iter().flat_map(refused).collect()
}

#[test]
fn a_link_is_not_followed() {
    let place = Place::new();
    let victim = place.dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let before = fs::metadata(&victim).unwrap();
    let nowhere = place.dir.path().join("nowhere");
    let empty = place.dir.path().join("empty");
    File::create(&empty).unwrap();
    for target in [&victim, &nowhere, &empty, &place.path] {
        symlink(target, &place.path).unwrap();
        for error in refusals(&place.path) {
            assert!(matches!(error, Error::Symlink { .. }), "{error}");
        }
        assert!(place.path.is_symlink());
        fs::remove_file(&place.path).unwrap();
    }
    let after = fs::metadata(&victim).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(
        (before.ino(), before.mtime_nsec()),
        (after.ino(), after.mtime_nsec())
    );
    assert!(!nowhere.exists() && empty.exists());
}

#[test]
fn a_file_with_contents_is_no_lock_file() {
    let place = Place::new();
    fs::write(&place.path, "precious").unwrap();
    let before = place.file();
    for error in refusals(&place.path) {
        assert!(matches!(error, Error::NotEmpty { bytes: 8, .. }), "{error}");
    }
    assert_eq!(fs::read(&place.path).unwrap(), b"precious");
    assert_eq!(place.file(), before);
}

#[test]
fn a_directory_a_pipe_a_socket_and_a_device_are_no_lock_files() {
    let place = Place::new();
    let path = &place.path;
    let check = |expected: &str| {
        for error in refusals(path) {
            let Error::NotRegular { what, .. } = error else {
                panic!("{error}");
            };
            assert_eq!(what, expected);
        }
    };
    fs::create_dir(path).unwrap();
    check("a directory");
    fs::remove_dir(path).unwrap();
    let _listener = UnixListener::bind(path).unwrap();
    check("a socket");
    assert!(fs::symlink_metadata(path).unwrap().file_type().is_socket());
    fs::remove_file(path).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    check("a pipe");
    // Nobody has opened it: to write without waiting is possible only if somebody reads.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let writer = OpenOptions::new()
        .write(true)
        .custom_flags(nonblock)
        .open(path);
    assert!(writer.is_err());
    for error in refusals(Path::new("/dev/null")) {
        assert!(
            matches!(
                error,
                Error::NotRegular {
                    what: "a device",
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn a_missing_directory_is_not_made() {
    let place = Place::new();
    let path = place.dir.path().join("missing").join("x.lock");
    for error in refusals(&path) {
        assert!(
            matches!(&error, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound),
            "{error}"
        );
        assert!(
            error.to_string().ends_with("; make its directory first"),
            "{error}"
        );
    }
    assert_eq!(place.names(), [""; 0]);
    let file = place.dir.path().join("file");
    File::create(&file).unwrap();
    for error in refusals(&file.join("x.lock")) {
        assert!(
            matches!(&error, Error::Io { source, .. } if source.kind() == ErrorKind::NotADirectory),
            "{error}"
        );
    }
}

/// A contender that may do nothing special, in a copy of this program that everybody can reach.
#[test]
fn without_permission_there_is_no_lock() {
    let around = tempfile::tempdir().unwrap();
    fs::set_permissions(around.path(), Permissions::from_mode(0o755)).unwrap();
    let place = Place::new();
    let mut command = Program::Ours.command(&[]);
    if rustix::process::geteuid().is_root() {
        let program = around.path().join("contender");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let mut other = Command::new(&program);
        other.args(command.get_args()).uid(65_534).gid(65_534);
        other.env(crate::program::CONTENDS, "1").current_dir("/");
        command = other;
    }
    let path = around.path().join("x.lock");
    let mut contender = match Contender::try_start(command, &path) {
        Err(error) => return eprintln!("SKIPPED: no other user can be had: {error}"),
        Ok(contender) => contender,
    };
    let mode = |mode| fs::set_permissions(around.path(), Permissions::from_mode(mode)).unwrap();
    // It can be neither made nor found.
    mode(0o555);
    assert_eq!(contender.ask("acquire shared try"), "Io PermissionDenied");
    mode(0o000);
    assert_eq!(
        contender.ask("acquire exclusive block"),
        "Io PermissionDenied"
    );
    mode(0o755);
    assert!(!path.exists());
    // It is there, and another's.
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(&path)
        .unwrap();
    assert_eq!(contender.ask("acquire shared try"), "Io PermissionDenied");
    assert!(path.exists());
    drop(place);
}

/// Whether namespaces can be had, and a contender in one of its own after a command.
fn inside(mount: &str, place: &Place) -> Option<Contender> {
    let namespaces = ["--user", "--map-root-user", "--mount"];
    let try_out = [&namespaces[..], &["true"]].concat();
    if !has("unshare", &try_out) {
        return None;
    }
    let dir = place.dir.path().to_str().unwrap();
    let script = format!("{mount} && exec \"$@\"");
    let in_front = [&["unshare"], &namespaces[..], &["sh", "-c", &script, dir]].concat();
    Some(Contender::start(
        Program::Ours.command(&in_front),
        &place.path,
    ))
}

#[test]
fn a_file_system_that_cannot_be_written_has_no_locks() {
    let place = Place::new();
    let mount = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\"";
    let Some(mut contender) = inside(mount, &place) else {
        return;
    };
    assert_eq!(
        contender.ask("acquire exclusive try"),
        "Io ReadOnlyFilesystem"
    );
    assert_eq!(
        contender.ask("acquire shared block"),
        "Io ReadOnlyFilesystem"
    );
    assert_eq!(place.names(), [""; 0]);
    File::create(&place.path).unwrap();
    assert_eq!(contender.ask("acquire shared try"), "Io ReadOnlyFilesystem");
    assert!(place.path.exists());
}

#[test]
fn a_full_file_system_has_no_locks() {
    let place = Place::new();
    let mount = "mount -t tmpfs -o nr_inodes=2 tmpfs \"$0\" && : > \"$0/other\"";
    let Some(mut contender) = inside(mount, &place) else {
        return;
    };
    assert_eq!(contender.ask("acquire exclusive try"), "Io StorageFull");
    assert_eq!(contender.ask("acquire shared block"), "Io StorageFull");
}
