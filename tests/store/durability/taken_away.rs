//! Files that are deleted, replaced or renamed while a daemon writes them. The daemon acknowledges
//! nothing that a later start would not find, and no second daemon gets in.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::durability::directory::{Directory, holder};
use crate::vocabulary::{Client, Daemon, Grant, latchd, refusal};

/// Gives the name to another file with the same bytes.
fn replace(path: &Path) {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    fs::rename(copy, path).unwrap();
}

fn delete(path: &Path) {
    fs::remove_file(path).unwrap();
}

fn rename(path: &Path) {
    fs::rename(path, path.with_extension("old")).unwrap();
}

/// A daemon and a client that holds one lock, which was acknowledged.
fn with_a_lock(directory: &Directory, options: &[&str]) -> (Daemon, Client, Grant) {
    let daemon = directory.start(options);
    let mut client = daemon.connect();
    let kept = client.lock("kept", "0 600");
    (daemon, client, kept)
}

fn bytes_of_segments(directory: &Directory) -> Vec<Vec<u8>> {
    let segments = directory.segments();
    segments
        .iter()
        .map(|path| fs::read(path).unwrap())
        .collect()
}

/// Expects that the next change is not acknowledged. The daemon ends as after a failed write, and
/// its log has these words.
#[track_caller]
fn expect_no_acknowledgement(mut daemon: Daemon, names: &str) {
    let mut client = daemon.connect();
    client.put("l lost 0 600");
    let (told, _) = client.rest();
    assert!(told.is_empty(), "{:?}", String::from_utf8_lossy(&told));
    expect_storage_error(&mut daemon, names);
}

#[track_caller]
fn expect_storage_error(daemon: &mut Daemon, names: &str) {
    let (code, log) = daemon.wait_for_exit();
    assert_eq!(code, 74, "{log:#?}");
    let is_said = |line: &String| line.contains("ERROR") && line.contains(names);
    assert!(log.iter().any(is_said), "{log:#?}");
}

#[test]
fn second_daemon_is_refused_after_the_lock_file_is_deleted() {
    let directory = Directory::new();
    let (first, _client, _) = with_a_lock(&directory, &[]);
    delete(&directory.path().join("LOCK"));
    let before = directory.files();
    let pid = first.status("Pid");
    for options in [&[][..], &["--repair"]] {
        let said = refusal(75, directory.command(options));
        assert!(said.contains(&format!("process {pid};")), "{said}");
    }
    assert!(directory.files() == before, "it changed something");
    let mut inspect = latchd();
    inspect.arg("--inspect").arg(directory.path());
    let mut inspect = Daemon::spawn(inspect);
    inspect.wait_for_exit();
    let seen = inspect.stdout();
    assert!(
        seen.contains(&format!("in use; last process {pid}")),
        "{seen}"
    );
}

#[test]
fn daemon_ends_before_the_next_write_if_its_lock_file_is_deleted_or_replaced() {
    for (options, take_away) in [
        (&[][..], delete as fn(&Path)),
        (&[], replace),
        (&[], rename),
        (&["--durability=async"], delete),
        (&["--durability=async"], replace),
    ] {
        let directory = Directory::new();
        let (daemon, _client, kept) = with_a_lock(&directory, options);
        take_away(&directory.path().join("LOCK"));
        let before = bytes_of_segments(&directory);
        expect_no_acknowledgement(daemon, "LOCK");
        assert!(bytes_of_segments(&directory) == before, "it was written");
        let next = directory.start(&[]);
        let mut client = next.connect();
        assert_eq!(holder(&mut client, "kept"), Some(kept.token_fence()));
        assert_eq!(holder(&mut client, "lost"), None);
    }
}

#[test]
fn daemon_ends_before_the_next_acknowledgement_if_its_segment_is_deleted_or_replaced() {
    for take_away in [delete, replace, rename] {
        let directory = Directory::new();
        let (daemon, _client, _) = with_a_lock(&directory, &[]);
        let segment = directory.segments().pop().unwrap();
        take_away(&segment);
        let name = segment.file_name().unwrap().to_str().unwrap();
        expect_no_acknowledgement(daemon, name);
    }
}

#[test]
fn daemon_ends_before_the_next_acknowledgement_if_its_directory_is_deleted() {
    for options in [&[][..], &["--durability=async"]] {
        let directory = Directory::new();
        let (daemon, _client, _) = with_a_lock(&directory, options);
        fs::remove_dir_all(directory.path()).unwrap();
        expect_no_acknowledgement(daemon, "the data directory was deleted");
        assert!(!directory.path().exists(), "it was made again");
    }
}

#[test]
fn stop_fails_if_the_directory_is_deleted() {
    let directory = Directory::new();
    let (mut daemon, _client, _) = with_a_lock(&directory, &[]);
    fs::remove_dir_all(directory.path()).unwrap();
    daemon.signal(Signal::TERM);
    expect_storage_error(&mut daemon, "the data directory was deleted");
}

/// It is the same directory: nothing is lost, and its lock goes with it.
#[test]
fn daemon_goes_on_in_a_renamed_directory() {
    let directory = Directory::new();
    let (mut daemon, mut client, kept) = with_a_lock(&directory, &[]);
    let renamed = directory.path().with_extension("renamed");
    fs::rename(directory.path(), &renamed).unwrap();
    let later = client.lock("later", "0 600");
    let at_renamed = || {
        let mut command = latchd();
        command.args(["--port=0", "--data-dir"]).arg(&renamed);
        command
    };
    refusal(75, at_renamed());
    daemon.stop();
    let next = Daemon::serve(at_renamed());
    let mut client = next.connect();
    assert_eq!(holder(&mut client, "kept"), Some(kept.token_fence()));
    assert_eq!(holder(&mut client, "later"), Some(later.token_fence()));
}
