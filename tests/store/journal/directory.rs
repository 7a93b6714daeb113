//! The journal in a directory of the system: its thread, its lock, and a look at it while it runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};

use latchd::base::Nanos;
use latchd::engine::types::{Record, Sharing};
use latchd::store::{
    Durability, Ending, Journal, Notice, OpenError, Opened, Options, Progress, Store, inspect,
    repair,
};

use crate::journal::history::{
    CLOCKS, Maker, SALT, State, client, ended, granted, key, numbered, ranged, stored,
};

/// A journal, and what its thread says.
struct Running {
    opened: Opened,
    woken: Receiver<()>,
    notices: Receiver<Notice>,
}

fn open(dir: &Path, durability: Durability, segment_bytes: u64) -> Result<Running, OpenError> {
    open_with(dir, durability, segment_bytes, || {})
}

/// The same, with something that happens while files are read.
fn open_with(
    dir: &Path,
    durability: Durability,
    segment_bytes: u64,
    while_reading: impl Fn(),
) -> Result<Running, OpenError> {
    let (wake, woken) = mpsc::channel();
    let (report, notices) = mpsc::channel();
    let options = Options {
        durability,
        segment_bytes,
        salt: SALT,
        wall_ms: Box::new(|| CLOCKS.wall_ms),
        wake: Box::new(move || wake.send(()).unwrap_or(())),
        report: Box::new(move |notice| report.send(notice).unwrap_or(())),
    };
    let opened = Journal::open(dir, options, &mut |_| while_reading())?;
    Ok(Running {
        opened,
        woken,
        notices,
    })
}

impl Running {
    fn journal(&mut self) -> &mut Journal {
        &mut self.opened.journal
    }

    fn append(&mut self, record: &Record) {
        self.journal().append(Nanos(0), record);
    }

    /// Hands over, and waits until everything up to this record may be spoken of.
    fn wait_for(&mut self, number: u64) -> Progress {
        self.journal().commit(Nanos(0));
        loop {
            let progress = self.journal().progress();
            if progress.durable >= number || progress.failed.is_some() {
                return progress;
            }
            self.woken.recv().unwrap();
        }
    }

    fn state(&self) -> State {
        let mut state = State::default();
        let restore = &self.opened.restore;
        let apply = |record| state.apply(&record);
        restore.each(CLOCKS, apply, |_| {}).unwrap();
        state
    }
}

#[test]
fn what_was_kept_is_there_again_and_numbers_begin_anew() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("new/data");
    let records = [granted("a", 1), stored("v", b"1"), granted("b", 2)];
    for durability in [Durability::Sync, Durability::Async] {
        let _ = fs::remove_dir_all(&dir);
        let mut first = open(&dir, durability, 1 << 16).unwrap();
        assert_eq!(first.opened.life.epoch, 1);
        let mode = fs::metadata(&dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "nobody else may look");
        assert!(first.journal().is_durable());
        for record in &records {
            first.append(record);
        }
        assert_eq!(first.wait_for(3).durable, 3);
        first.journal().stop().unwrap();
        drop(first);

        let mut second = open(&dir, durability, 1 << 16).unwrap();
        assert_eq!(second.opened.life.epoch, 2);
        assert_eq!(
            second.opened.found.ending,
            Ending::Clean(CLOCKS.wall_ms),
            "{durability}"
        );
        assert_eq!(second.state(), State::of(&records));
        second.append(&ended("a", 1));
        assert_eq!(
            second.wait_for(1).durable,
            1,
            "numbers are those of this life"
        );
        drop(second); // as if it were killed

        let third = open(&dir, durability, 1 << 16).unwrap();
        assert_eq!(third.opened.found.ending, Ending::Unclean);
        assert_eq!(third.opened.found.life.unwrap().durability, durability);
        assert_eq!(
            third.state(),
            State::of(records.iter().chain(&[ended("a", 1)]))
        );
    }
}

/// A start that fails for another reason, such as a port that is taken, is no crash; nor does it
/// make one undone.
#[test]
fn a_life_that_took_no_record_leaves_the_directory_as_it_found_it() {
    let dir = tempfile::tempdir().unwrap();
    let ending = |running: &Running| running.opened.found.ending;
    let clean = Ending::Clean(CLOCKS.wall_ms);
    let unused = || open(dir.path(), Durability::Sync, 1 << 16).unwrap();
    assert_eq!(ending(&unused()), Ending::None);
    assert_eq!(ending(&unused()), clean, "after one on a new directory");
    assert_eq!(ending(&unused()), clean, "after one like it");
    let mut killed = unused();
    killed.append(&granted("a", 1));
    killed.wait_for(1);
    drop(killed);
    assert_eq!(ending(&unused()), Ending::Unclean);
    assert_eq!(ending(&unused()), Ending::Unclean, "still");
    assert_eq!(unused().state().grants.len(), 1);
}

/// The reactor would wait for ever.
#[test]
fn a_thread_that_panics_says_that_it_failed() {
    let dir = tempfile::tempdir().unwrap();
    let (wake, woken) = mpsc::channel();
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let options = Options {
        durability: Durability::Sync,
        segment_bytes: 1 << 16,
        salt: SALT,
        wall_ms: Box::new(|| CLOCKS.wall_ms),
        wake: Box::new(move || {
            let is_first = is_first.swap(false, std::sync::atomic::Ordering::Relaxed);
            assert!(!is_first, "as if there were a bug in the thread");
            wake.send(()).unwrap_or(());
        }),
        report: Box::new(|notice| panic!("{notice}")),
    };
    let mut journal = Journal::open(dir.path(), options, &mut |_| {})
        .unwrap()
        .journal;
    journal.append(Nanos(0), &granted("a", 1));
    journal.commit(Nanos(0));
    woken.recv().unwrap();
    let failed = journal.progress().failed.unwrap();
    assert!(failed.contains("panicked"), "{failed}");
    assert_eq!(journal.stop(), Err(failed));
}

/// Said once, because room is looked for again and again.
#[test]
fn a_next_segment_that_cannot_be_made_ahead_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = open(dir.path(), Durability::Sync, 1 << 18).unwrap();
    // Its name is taken by something that is no file.
    let in_the_way = dir.path().join(format!("{:020}.log.tmp", 0));
    fs::create_dir(&in_the_way).unwrap();
    let value = [7; 40_000];
    for number in 1..40 {
        running.append(&stored("v", &value));
        assert_eq!(running.wait_for(number).failed, None);
    }
    running.journal().stop().unwrap();
    drop(running.opened);
    let notices: Vec<Notice> = running.notices.iter().collect();
    let told = notices
        .iter()
        .filter(|notice| matches!(notice, Notice::NoSpare(_)));
    assert_eq!(told.count(), 1, "{notices:?}");
}

#[test]
fn a_second_daemon_is_refused_by_name_and_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = open(dir.path(), Durability::Sync, 1 << 16).unwrap();
    first.append(&granted("a", 1));
    first.wait_for(1);
    let look = || {
        let files = fs::read_dir(dir.path())
            .unwrap()
            .map(|it| it.unwrap().path());
        let mut files: Vec<_> = files
            .map(|it| (it.clone(), fs::read(it).unwrap()))
            .collect();
        files.sort();
        files
    };
    let before = look();
    let us = Some(std::process::id());
    let refused = open(dir.path(), Durability::Sync, 1 << 16).map(drop);
    assert!(matches!(refused, Err(OpenError::InUse(pid)) if pid == us));
    let refused = repair(dir.path(), 0).map(drop);
    assert!(matches!(refused, Err(OpenError::InUse(pid)) if pid == us));
    let error = refused.unwrap_err().to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    assert!(look() == before);
    drop(first);
    open(dir.path(), Durability::Sync, 1 << 16)
        .map(drop)
        .unwrap();
}

/// Whatever wrote the file: who has it locked has the directory, also a daemon of an earlier version.
#[test]
fn a_lock_of_whoever_it_is_counts_and_what_is_in_the_file_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LOCK");
    fs::write(&path, "4294967295 and more\n").unwrap();
    let earlier = fs::OpenOptions::new().write(true).open(&path).unwrap();
    earlier.lock().unwrap();
    let refused = open(dir.path(), Durability::Sync, 1 << 16).map(drop);
    let us = Some(std::process::id());
    assert!(matches!(refused, Err(OpenError::InUse(pid)) if pid == us));
    assert_eq!(fs::read(&path).unwrap(), b"4294967295 and more\n");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    earlier.unlock().unwrap();
    let running = open(dir.path(), Durability::Sync, 1 << 16).unwrap();
    let bytes = fs::read(&path).unwrap();
    let process = format!("{}\n", std::process::id());
    let (first, rest) = bytes[..512].split_at(process.len());
    assert_eq!(first, process.as_bytes());
    assert!(rest.iter().all(|&byte| byte == 0), "nothing is left of it");
    drop(running);
    assert!(path.exists(), "it stays");
}

/// Reading a large directory takes seconds, so the file can be gone when that is done.
#[test]
fn start_fails_if_its_lock_file_is_deleted_while_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = open(dir.path(), Durability::Sync, 1 << 16).unwrap();
    first.append(&granted("a", 1));
    first.wait_for(1);
    drop(first);
    let delete = || drop(fs::remove_file(dir.path().join("LOCK")));
    let refused = open_with(dir.path(), Durability::Sync, 1 << 16, delete).map(drop);
    assert!(
        matches!(&refused, Err(OpenError::Failed(why)) if why.contains("LOCK")),
        "{refused:?}"
    );
    let next = open(dir.path(), Durability::Sync, 1 << 16).unwrap();
    assert_eq!(next.state().grants.len(), 1);
}

/// The directory itself is locked, whatever becomes of `LOCK`.
#[test]
fn lock_of_a_directory_ends_with_its_journal_also_if_the_restored_records_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path(), Durability::Sync, 1 << 16).unwrap().opened;
    fs::remove_file(dir.path().join("LOCK")).unwrap();
    let us = Some(std::process::id());
    let refused = repair(dir.path(), 0).map(drop);
    assert!(matches!(refused, Err(OpenError::InUse(pid)) if pid == us));
    assert_eq!(inspect(dir.path()).unwrap().holder.is_locked, Some(true));
    assert!(!dir.path().join("LOCK").exists(), "it was made");
    let _restore = first.restore;
    drop(first.journal);
    assert_eq!(inspect(dir.path()).unwrap().holder.is_locked, Some(false));
    open(dir.path(), Durability::Sync, 1 << 16)
        .map(drop)
        .unwrap();
}

#[test]
fn a_lock_file_that_is_a_link_is_refused_and_what_it_leads_to_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let victim = tempfile::NamedTempFile::new().unwrap();
    fs::write(victim.path(), "precious").unwrap();
    std::os::unix::fs::symlink(victim.path(), dir.path().join("LOCK")).unwrap();
    let refused = open(dir.path(), Durability::Sync, 1 << 16).map(drop);
    let Err(OpenError::Directory(error)) = refused else {
        panic!("{refused:?}");
    };
    assert!(error.to_string().contains("symbolic link"), "{error}");
    assert_eq!(fs::read(victim.path()).unwrap(), b"precious");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// More than a hundred segments go by while others look, and nobody sees anything half done.
#[test]
fn a_look_at_a_live_directory_sees_what_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = open(dir.path(), Durability::Async, 4096).unwrap();
    running.append(&granted("held", 7));
    running.wait_for(1);
    let (tell, told) = mpsc::channel();
    let looks = std::thread::scope(|scope| {
        let path = dir.path();
        let looker = scope.spawn(move || {
            let mut looks = 0;
            while told.try_recv().is_err() {
                let seen = inspect(path).unwrap();
                assert_eq!(seen.damage, None);
                assert!(seen.held.contains_key(&7), "{}", seen.text());
                looks += 1;
            }
            looks
        });
        let mut compactions = 0;
        let mut number = 1;
        let mut maker = Maker::new(1, 20, 100);
        while compactions < 30 {
            for _ in 0..20 {
                let record = match maker.next() {
                    // The one that is held stays held.
                    record @ (Record::Stored { .. } | Record::Deleted { .. }) => record,
                    _ => granted("other", 8),
                };
                running.append(&record);
                number += 1;
            }
            running.wait_for(number);
            let notices = running.notices.try_iter();
            compactions += notices
                .filter(|it| matches!(it, Notice::Compacted(_)))
                .count();
        }
        tell.send(()).unwrap();
        looker.join().unwrap()
    });
    assert!(looks > 3, "{looks}");
    running.journal().stop().unwrap();
    let seen = inspect(dir.path()).unwrap();
    let text = seen.text();
    for part in [
        "\"held\" lock, fence 7",
        "in order",
        "epoch      1",
        ".snapshot",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&seen.json()).unwrap();
    assert_eq!(json["held"][0]["key"], "held");
    assert_eq!(json["held"][0]["fence"], 7);
    assert_eq!(json["epoch"], 1);
    assert_eq!(json["clean_stop"], true);
    assert_eq!(json["in_use"], true, "the lock is still ours");
    let salt = format!("{:x}", 7u64.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    assert!(
        !text.contains(&salt) && !seen.json().contains(&salt),
        "no token"
    );
    drop(running);
    assert_eq!(inspect(dir.path()).unwrap().holder.is_locked, Some(false));
}

/// Copied first, `LOCK` names a segment of the copy. Copied last, it may name a later one.
#[test]
fn a_copy_of_a_live_directory_is_whole_or_says_what_is_missing() {
    let segments = |dir: &Path| {
        let names = fs::read_dir(dir).unwrap();
        let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
        let is_log = |name: &String| name.ends_with(".log");
        let mut names: Vec<String> = names.filter(is_log).collect();
        names.sort();
        names
    };
    for lock_first in [true, false] {
        let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut running = open(dir.path(), Durability::Sync, 4096).unwrap();
        running.append(&granted("held", 7));
        running.wait_for(1);
        let copy = |name: &str| drop(fs::copy(dir.path().join(name), to.path().join(name)));
        let mut number = 1;
        let mut begin_segment = || {
            let before = segments(dir.path());
            while segments(dir.path()).last() == before.last() {
                number += 1;
                running.append(&stored("v", &[7; 200]));
                running.wait_for(number);
            }
            segments(dir.path()).pop().unwrap()
        };
        if lock_first {
            copy("LOCK");
            begin_segment();
            let compacted = running.notices.recv().unwrap();
            assert!(matches!(compacted, Notice::Compacted(_)), "{compacted}");
            for file in fs::read_dir(dir.path()).unwrap() {
                let name = file.unwrap().file_name().into_string().unwrap();
                if name != "LOCK" {
                    copy(&name);
                }
            }
            let seen = inspect(to.path()).unwrap();
            assert_eq!(seen.damage, None);
            assert!(seen.held.contains_key(&7));
        } else {
            segments(dir.path()).iter().for_each(|name| copy(name));
            let newest = begin_segment();
            copy("LOCK");
            let seen = inspect(to.path()).unwrap();
            assert_eq!(seen.damage.unwrap().file, newest);
            let refused = open(to.path(), Durability::Sync, 4096).map(drop);
            assert!(refused.unwrap_err().to_string().contains(&newest));
        }
    }
}

#[test]
fn a_look_shows_who_has_locked_which_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = open(dir.path(), Durability::Async, 4096).unwrap();
    let (mine, other) = (["file", "nfs/1", "pid 7"], ["file", "nfs/2", ""]);
    for record in [
        client("nfs/1"),
        client("nfs/2"),
        client("nfs/gone"),
        ranged(other, (1 << 53, u64::MAX), Some(Sharing::Exclusive)),
        numbered(ranged(mine, (0, 99), Some(Sharing::Shared)), 7, 500, 3),
        ranged(["file", "nfs/gone", ""], (0, 99), Some(Sharing::Shared)),
        ranged(mine, (10, 19), None),
        Record::ClientGone {
            id: key("nfs/gone"),
        },
    ] {
        running.append(&record);
    }
    running.wait_for(8);
    drop(running);
    let seen = inspect(dir.path()).unwrap();
    let text = seen.text();
    for line in [
        "ranges     3",
        "  \"file\" from 0 to 9 shared, client \"nfs/1\" for \"pid 7\", lock 7 since 2027-01-15T08:00:00.500Z in epoch 3",
        "  \"file\" from 20 to 99 shared, client \"nfs/1\" for \"pid 7\", lock 11 since 2027-01-15T08:00:00.500Z in epoch 3",
        "  \"file\" from 9007199254740992 to the end exclusive, client \"nfs/2\", lock 1",
        "  7 ranged \"file\" from 10 to 19 not locked, client \"nfs/1\" for \"pid 7\"",
    ] {
        assert!(
            text.lines().any(|it| it == line),
            "{line} is not in\n{text}"
        );
    }
    let json: serde_json::Value = serde_json::from_str(&seen.json()).unwrap();
    let wanted = serde_json::json!([
        {"resource": "file", "start": 0, "len": 10, "mode": "shared", "client": "nfs/1", "owner": "pid 7", "id": 7, "acquired_ms": CLOCKS.wall_ms + 500, "epoch": 3},
        {"resource": "file", "start": 20, "len": 80, "mode": "shared", "client": "nfs/1", "owner": "pid 7", "id": 11, "acquired_ms": CLOCKS.wall_ms + 500, "epoch": 3},
        {"resource": "file", "start": 1u64 << 53, "len": 0, "mode": "exclusive", "client": "nfs/2", "owner": "", "id": 1, "acquired_ms": 0, "epoch": 0},
    ]);
    assert_eq!(json["ranges"], wanted);
    assert_eq!(json["follows_loss"], false);
    // The next life knows that the one before spoke before the disk, and a look says so.
    drop(open(dir.path(), Durability::Sync, 4096).unwrap());
    let seen = inspect(dir.path()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&seen.json()).unwrap();
    assert_eq!(
        (&json["follows_loss"], &json["clean_stop"]),
        (&true.into(), &false.into())
    );
    assert!(
        seen.text().contains("before it may be lost"),
        "{}",
        seen.text()
    );
}

#[test]
fn a_look_at_a_damaged_directory_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = open(dir.path(), Durability::Sync, 4096).unwrap();
    for fence in 1..4 {
        running.append(&granted("a", fence));
        running.wait_for(fence);
    }
    running.journal().stop().unwrap();
    drop(running);
    let path = dir.path().join(format!("{:020}.log", 1));
    let mut bytes = fs::read(&path).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, bytes).unwrap();
    let seen = inspect(dir.path()).unwrap();
    assert_eq!(seen.held.len(), 1);
    assert!(seen.text().contains("DAMAGED"), "{}", seen.text());
    let refused = open(dir.path(), Durability::Sync, 4096).map(drop);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("00001.log is damaged at byte"), "{error}");
    let report = repair(dir.path(), CLOCKS.wall_ms).unwrap();
    assert_eq!(report.read, 2 + 1, "two grants, and that it stopped");
    let running = open(dir.path(), Durability::Sync, 4096).unwrap();
    assert_eq!(running.state().grants.len(), 1, "the last one");
}

#[test]
fn a_later_version_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), Durability::Sync, 4096).unwrap());
    let path = dir.path().join(format!("{:020}.log", 1));
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let error = open(dir.path(), Durability::Sync, 4096)
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("version 9"), "{error}");
    assert!(repair(dir.path(), 0).is_err());
    assert!(inspect(dir.path()).is_err());
    assert!(fs::read(&path).unwrap() == bytes, "untouched");
}

#[test]
fn who_hands_over_more_than_the_disk_takes_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = open(dir.path(), Durability::Sync, 1 << 20).unwrap();
    assert!(!running.journal().is_behind());
    let mut number = 0;
    while !running.journal().is_behind() {
        running.append(&stored("v", &[1; 50_000]));
        number += 1;
    }
    running.wait_for(number);
    assert!(!running.journal().is_behind());
}

#[test]
fn a_data_directory_that_cannot_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let refused = open(&file, Durability::Sync, 4096).map(drop);
    assert!(matches!(refused, Err(OpenError::Directory(_))));
    assert!(repair(&dir.path().join("missing"), 0).is_err());
    assert!(inspect(&dir.path().join("missing")).is_err());
    assert!(!dir.path().join("missing").exists());
}
