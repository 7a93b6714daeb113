//! A data directory of a test, and daemons on it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use latchd::base::{Fence, Nanos};
use latchd::engine::types::Record;
use latchd::store::{Durability, Journal, Notice, Opened, Options, Store};
use serde_json::Value;
use tempfile::TempDir;

use crate::vocabulary::{Client, Daemon, latchd};

/// A directory that is removed at the end.
pub(crate) struct Directory {
    /// Not there yet: the daemon makes it.
    path: PathBuf,
    _around: TempDir,
}

impl Directory {
    pub(crate) fn new() -> Self {
        let around = tempfile::tempdir().unwrap();
        Self {
            path: around.path().join("data"),
            _around: around,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The program with this directory and these options, on a free port.
    pub(crate) fn command(&self, options: &[&str]) -> Command {
        let mut command = latchd();
        command.args(["--port", "0", "--data-dir"]).arg(&self.path);
        command.args(options);
        command
    }

    /// A daemon that serves what is there.
    #[track_caller]
    pub(crate) fn start(&self, options: &[&str]) -> Daemon {
        Daemon::serve(self.command(options))
    }

    /// Names and bytes of all files.
    pub(crate) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(&self.path).unwrap();
        let read = |path: PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(path).unwrap())
        };
        entries.map(|entry| read(entry.unwrap().path())).collect()
    }

    /// The segments, oldest first.
    pub(crate) fn segments(&self) -> Vec<PathBuf> {
        let names = self.files().into_keys();
        let names = names.filter(|name| name.ends_with(".log"));
        names.map(|name| self.path.join(name)).collect()
    }

    /// Whether there is a file with such a name now.
    pub(crate) fn has_file(&self, is_it: impl Fn(&str) -> bool) -> bool {
        let mut entries = fs::read_dir(&self.path).unwrap();
        entries.any(|entry| is_it(entry.unwrap().file_name().to_str().unwrap()))
    }

    /// How much all files take on the disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let entries = fs::read_dir(&self.path).unwrap();
        // A file may be gone by now.
        let data = entries.filter_map(|entry| entry.unwrap().metadata().ok());
        data.map(|data| data.blocks() * 512).sum()
    }
}

/// Lets a directory that nobody uses know of fences up to this one: if the clock will reach it in
/// years only, it is as if it had been set back.
pub(crate) fn reserve_fences(path: &Path, upto: u64) {
    let upto = Fence(upto);
    keep(path, 0, &[Record::Fences { upto }]);
}

/// A life that keeps these records in a directory that nobody uses, at this time of day, and stops.
pub(crate) fn keep(path: &Path, wall_ms: u64, records: &[Record]) {
    let mut journal = open(path, wall_ms, |notice| panic!("{notice}")).journal;
    for record in records {
        journal.append(Nanos(0), record);
    }
    journal.stop().unwrap();
}

/// A life in a directory that nobody uses. Its segments are short, so that they are soon compacted.
pub(crate) fn open(path: &Path, wall_ms: u64, report: impl Fn(Notice) + Send + 'static) -> Opened {
    let options = Options {
        durability: Durability::Sync,
        segment_bytes: 1 << 16,
        salt: 1,
        wall_ms: Box::new(move || wall_ms),
        wake: Box::new(|| {}),
        report: Box::new(report),
    };
    Journal::open(path, options, &mut |_| {}).unwrap()
}

/// Ends the daemon as `kill -9` does.
pub(crate) fn kill(daemon: Daemon) {
    drop(daemon);
}

/// What `hello` and the log call the epoch.
#[track_caller]
pub(crate) fn epoch(client: &mut Client) -> u64 {
    let hello = client.ask("hello _ fence=1");
    let words = hello
        .split(' ')
        .find_map(|word| word.strip_prefix("epoch="));
    words
        .and_then(|epoch| epoch.parse().ok())
        .expect("an epoch")
}

/// The answer to `who`.
#[track_caller]
pub(crate) fn who(client: &mut Client, key: &str) -> Value {
    let answer = client.ask(&format!("who {key} _"));
    serde_json::from_str(answer.strip_prefix("ok ").unwrap()).unwrap()
}

/// The fence of the one holder.
#[track_caller]
pub(crate) fn holder(client: &mut Client, key: &str) -> Option<u64> {
    let who = who(client, key);
    let holders = who["holders"].as_array().unwrap();
    assert!(holders.len() <= 1, "{who}");
    holders
        .first()
        .map(|holder| holder["fence"].as_u64().unwrap())
}
