//! Damage: a torn end is cut off and served, anything else is refused, and nothing is touched.

use std::fs;
use std::path::Path;

use crate::durability::directory::{Directory, epoch, holder, kill};
use crate::vocabulary::{Daemon, Grant, latchd_with_default_ports, refusal};

/// A directory with two segments: `old` was granted in the first, `new` in the second.
fn two_segments() -> (Directory, [Grant; 2]) {
    let directory = Directory::new();
    let grants = ["old", "new"].map(|key| {
        let daemon = directory.start(&[]);
        let mut client = daemon.connect();
        for number in 0..20 {
            assert_eq!(client.ask(&format!("kset v{number} {key}")), "ok");
        }
        let grant = client.lock(key, "0 600");
        kill(daemon);
        grant
    });
    assert_eq!(directory.segments().len(), 2);
    (directory, grants)
}

/// Where what was written ends: the rest is zeros.
fn used(segment: &Path) -> usize {
    let bytes = fs::read(segment).unwrap();
    bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1
}

fn flip(file: &Path, offset: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[offset] ^= 0x40;
    fs::write(file, bytes).unwrap();
}

#[test]
fn damage_before_the_end_is_refused_by_name_and_nothing_is_touched() {
    let (directory, _) = two_segments();
    let segment = directory.segments().remove(0);
    let name = segment.file_name().unwrap().to_str().unwrap().to_owned();
    let whole = fs::read(&segment).unwrap();
    let end = used(&segment);
    for offset in [0, end / 3, end / 2, end - 1] {
        flip(&segment, offset);
        let before = directory.files();
        let said = refusal(74, directory.command(&[]));
        let mut after = directory.files();
        after.insert("LOCK".to_owned(), before["LOCK"].clone()); // it names the process
        assert!(after == before, "byte {offset}: it changed something");
        assert!(said.contains(&name) && said.contains("--repair"), "{said}");
        let (_, at) = said.split_once("at byte ").expect("an offset");
        let at: usize = at.split(',').next().unwrap().parse().unwrap();
        assert!(at <= offset && offset - at < 200, "{offset}: {said}");
        fs::write(&segment, &whole).unwrap();
    }
    directory.start(&[]);
}

#[test]
fn a_segment_that_is_missing_is_damage_as_well() {
    let (directory, _) = two_segments();
    fs::remove_file(&directory.segments()[0]).unwrap();
    refusal(74, directory.command(&[]));
}

/// The exit code and the output of `latchd --inspect`.
fn inspected(directory: &Directory) -> (i32, String) {
    let mut command = latchd_with_default_ports();
    command.arg("--inspect").arg(directory.path());
    let mut inspect = Daemon::spawn(command);
    let (code, log) = inspect.wait_for_exit();
    (code, format!("{}\n{}", inspect.stdout(), log.join("\n")))
}

/// Everything in the newest segment was acknowledged, and no later file says that it was there.
#[test]
fn the_newest_segment_that_is_missing_is_refused_by_name() {
    for stops in [true, false] {
        let (directory, _) = two_segments();
        let mut daemon = directory.start(&[]);
        daemon.connect().lock("newest", "0 600");
        match stops {
            true => drop(daemon.stop()),
            false => kill(daemon),
        }
        assert_eq!(inspected(&directory).0, 0);
        let newest = directory.segments().pop().unwrap();
        let name = newest.file_name().unwrap().to_str().unwrap();
        fs::remove_file(&newest).unwrap();
        let before = directory.files();
        let said = refusal(74, directory.command(&[]));
        assert!(said.contains(name) && said.contains("missing"), "{said}");
        let (code, said) = inspected(&directory);
        assert_eq!(code, 74, "{said}");
        assert!(said.contains(name) && said.contains("missing"), "{said}");
        let said = refusal(74, directory.command(&["--check-config"]));
        assert!(said.contains(name), "{said}");
        let mut after = directory.files();
        after.insert("LOCK".to_owned(), before["LOCK"].clone()); // it names the process
        assert!(after == before, "it changed something");
    }
}

/// Of a newer directory only the file of the lock is left.
#[test]
fn a_directory_without_any_segment_is_not_new_if_it_was_used_before() {
    let (directory, _) = two_segments();
    for segment in directory.segments() {
        fs::remove_file(segment).unwrap();
    }
    for _ in 0..2 {
        let said = refusal(74, directory.command(&[]));
        assert!(!said.contains("is new") && said.contains(".log"), "{said}");
        assert_eq!(inspected(&directory).0, 74);
    }
    let mut repair = Daemon::spawn(directory.command(&["--repair"]));
    let (code, log) = repair.wait_for_exit();
    assert_eq!(code, 74, "{log:#?}");
    assert!(!log.join("\n").contains("--repair"), "{log:#?}");
}

/// Fences after it are above all that the missing segment can have given out.
#[test]
fn repair_says_that_the_newest_segment_is_missing() {
    let (directory, [old, new]) = two_segments();
    let newest = directory.segments().pop().unwrap();
    let name = newest.file_name().unwrap().to_str().unwrap();
    fs::remove_file(&newest).unwrap();
    let mut repair = Daemon::spawn(directory.command(&["--repair"]));
    let (code, log) = repair.wait_for_exit();
    let said = format!("{}\n{}", repair.stdout(), log.join("\n"));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(name) && said.contains("dropped"), "{said}");
    assert_eq!(inspected(&directory).0, 0);
    let daemon = directory.start(&[]);
    daemon.wait_for_log("may be lost");
    let mut client = daemon.connect();
    assert_eq!(holder(&mut client, "old"), Some(old.token_fence()));
    assert_eq!(holder(&mut client, "new"), None);
    assert!(client.lock("new", "0").token_fence() > new.token_fence());
}

/// The last byte of the header's checksum, in the only file there is.
#[test]
fn a_wrong_byte_in_the_only_header_costs_no_record() {
    let directory = Directory::new();
    let daemon = directory.start(&[]);
    let held = daemon.connect().lock("held", "0 600");
    kill(daemon);
    let segment = directory.segments().remove(0);
    let name = segment.file_name().unwrap().to_str().unwrap().to_owned();
    flip(&segment, 63);
    let said = refusal(74, directory.command(&[]));
    assert!(said.contains(&name) && said.contains("--repair"), "{said}");
    let mut repair = Daemon::spawn(directory.command(&["--repair"]));
    let (code, log) = repair.wait_for_exit();
    let said = format!("{}\n{}", repair.stdout(), log.join("\n"));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(&name), "{said}");
    let daemon = directory.start(&[]);
    let mut client = daemon.connect();
    assert!(epoch(&mut client) > 1);
    assert_eq!(holder(&mut client, "held"), Some(held.token_fence()));
}

#[test]
fn repair_keeps_what_is_good_and_says_what_it_dropped() {
    let (directory, [old, new]) = two_segments();
    let segment = directory.segments().remove(0);
    flip(&segment, used(&segment) / 2);
    let mut repair = Daemon::spawn(directory.command(&["--repair"]));
    let (code, log) = repair.wait_for_exit();
    let said = format!("{}\n{}", repair.stdout(), log.join("\n"));
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains(segment.file_name().unwrap().to_str().unwrap()),
        "{said}"
    );
    assert!(said.contains("dropped"), "{said}");

    let daemon = directory.start(&[]);
    daemon.wait_for_log("may be lost");
    let mut client = daemon.connect();
    epoch(&mut client);
    for (key, grant) in [("old", &old), ("new", &new)] {
        assert_eq!(holder(&mut client, key), Some(grant.token_fence()), "{key}");
    }
    for number in 0..20 {
        assert_eq!(client.ask(&format!("kget v{number} _")), "ok new");
    }
    assert!(client.lock("next", "0").token_fence() > new.token_fence());
}

#[test]
fn nothing_is_repaired_where_nothing_is_damaged() {
    let (directory, [old, _]) = two_segments();
    let before = directory.files();
    let mut repair = Daemon::spawn(directory.command(&["--repair"]));
    assert_eq!(repair.wait_for_exit().0, 0);
    let mut after = directory.files();
    after.insert("LOCK".to_owned(), before["LOCK"].clone());
    assert!(after == before);
    let daemon = directory.start(&[]);
    assert_eq!(
        holder(&mut daemon.connect(), "old"),
        Some(old.token_fence())
    );
}

/// A batch that was being written when the power went: some of it is there.
#[test]
fn a_torn_end_is_cut_off_and_served() {
    let (directory, [old, new]) = two_segments();
    let segment = directory.segments().remove(1);
    let end = used(&segment);
    let mut bytes = fs::read(&segment).unwrap();
    bytes.resize(bytes.len().max(end + 300), 0);
    for (at, byte) in bytes[end + 8..end + 300].iter_mut().enumerate() {
        *byte = at as u8;
    }
    fs::write(&segment, bytes).unwrap();
    let daemon = directory.start(&[]);
    let line = daemon.wait_for_log("cut ");
    assert!(
        line.contains(segment.file_name().unwrap().to_str().unwrap()),
        "{line}"
    );
    let mut client = daemon.connect();
    for (key, grant) in [("old", &old), ("new", &new)] {
        assert_eq!(holder(&mut client, key), Some(grant.token_fence()), "{key}");
    }
    kill(daemon);
    // It is told of once.
    assert!(!directory.start(&[]).logged("cut "));
}
