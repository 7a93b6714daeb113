//! Contenders as processes: started, talked to, killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;

use tempfile::TempDir;

#[cfg(target_os = "linux")]
pub(crate) use self::linux::*;

/// Set for a process of this test program that is to be a contender.
pub(crate) const CONTENDS: &str = "LATCHD_TEST_CONTENDS";

/// A directory with a lock file that is not there yet.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) path: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap().join("x.lock");
        Self { dir, path }
    }

    /// Which file is at the path, as contenders say it.
    pub(crate) fn file(&self) -> Option<String> {
        file_at(&self.path)
    }

    /// The names of everything there.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        entries.map(|entry| name(entry.unwrap())).collect()
    }
}

pub(crate) fn file_at(path: &Path) -> Option<String> {
    let file = fs::symlink_metadata(path).ok()?;
    Some(id_of(&file))
}

#[cfg(unix)]
fn id_of(file: &fs::Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    format!("{}:{}", file.dev(), file.ino())
}

#[cfg(windows)]
fn id_of(_: &fs::Metadata) -> String {
    "unknown".to_owned()
}

/// What contenders are made of: this test program, or one that was built for it.
#[derive(Clone)]
pub(crate) enum Program {
    Ours,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "mutants only"))]
    At(PathBuf),
}

impl Program {
    /// The command that starts one, with another in front of it, such as strace with its options.
    pub(crate) fn command(&self, in_front: &[&str]) -> Command {
        let (program, args): (_, &[&str]) = match self {
            Self::Ours => (
                std::env::current_exe().unwrap(),
                &["--exact", "contends_if_it_is_told_to", "--nocapture"],
            ),
            Self::At(path) => (path.clone(), &[]),
        };
        let mut command = match in_front {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command.args(args).env(CONTENDS, "1");
        command
    }

    /// A contender for the lock file at the path.
    pub(crate) fn start(&self, path: &Path) -> Contender {
        Contender::start(self.command(&[]), path)
    }
}

/// A process that does what it is told; killed when it is dropped.
pub(crate) struct Contender {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Contender {
    pub(crate) fn start(command: Command, path: &Path) -> Self {
        Self::try_start(command, path).unwrap()
    }

    pub(crate) fn try_start(mut command: Command, path: &Path) -> std::io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut it = Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        it.tell(path.to_str().unwrap());
        Ok(it)
    }

    /// Gives an order and does not wait.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.input, "{order}").unwrap();
    }

    #[track_caller]
    pub(crate) fn hear(&mut self) -> String {
        next_answer(&mut self.output).expect("the contender has ended")
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.hear()
    }

    /// Acquires, and says which file it has.
    #[track_caller]
    pub(crate) fn acquire(&mut self, kind: &str, mode: &str) -> String {
        self.tell(&format!("acquire {kind} {mode}"));
        self.held().0
    }

    /// Hears that it has acquired: which file, after how many retries.
    #[track_caller]
    pub(crate) fn held(&mut self) -> (String, u32) {
        let answer = self.hear();
        let words: Vec<&str> = answer.split(' ').collect();
        let ["held", file, retries] = words[..] else {
            panic!("not held: {answer}");
        };
        (file.to_owned(), retries.parse().unwrap())
    }

    /// `kill -9`, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        self.end();
    }
}

/// The next answer; `None` if the process has ended.
fn next_answer(output: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    loop {
        line.clear();
        if output.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        // The harness may have begun the line ("test x ... ").
        if let Some((_, answer)) = line.split_once('@')
            && let Some(answer) = answer.strip_suffix('\n')
        {
            return Some(answer.to_owned());
        }
    }
}

/// Lets many contenders follow one order each, and ends all as soon as one complains.
pub(crate) fn all_do(mut contenders: Vec<Contender>, orders: &[String]) -> Result<(), String> {
    let (tell, told) = mpsc::channel();
    let mut children = Vec::new();
    std::thread::scope(|scope| {
        for (contender, order) in contenders.iter_mut().zip(orders) {
            contender.tell(order);
            let Contender { child, output, .. } = contender;
            children.push(child);
            let tell = tell.clone();
            scope.spawn(move || {
                let _ = tell.send(next_answer(output));
            });
        }
        drop(tell);
        let mut complaint = None;
        for answer in told {
            if answer.as_deref() != Some("done") && complaint.is_none() {
                complaint = Some(answer.unwrap_or_else(|| "one has ended".to_owned()));
                for child in &mut children {
                    let _ = child.kill();
                }
            }
        }
        complaint.map_or(Ok(()), Err)
    })
}

/// Whether somebody has it, asked as a program that knows nothing of us would.
pub(crate) fn is_locked(path: &Path) -> bool {
    let Ok(file) = fs::File::open(path) else {
        return false;
    };
    match file.try_lock() {
        Ok(()) => {
            file.unlock().unwrap(); // not only closed: see recipe 7
            false
        }
        Err(fs::TryLockError::WouldBlock) => true,
        Err(fs::TryLockError::Error(error)) => panic!("{error}"),
    }
}

/// What only Linux shows.
#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeSet;
    use std::os::unix::fs::MetadataExt;

    use latchd::ephemeral::{Holder, holders};

    use super::*;

    impl Contender {
        /// The contender's own number, also if another program is in front of it.
        pub(crate) fn pid(&mut self) -> u32 {
            self.ask("pid").parse().unwrap()
        }
    }

    /// Waits until it is so. For what the system shows and does not tell.
    pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    /// Waits until the process has the file open.
    pub(crate) fn until_open(pid: u32, path: &Path) {
        let fds = PathBuf::from(format!("/proc/{pid}/fd"));
        until(|| {
            let entries = fs::read_dir(&fds).unwrap();
            let mut links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
            links.any(|link| link == path)
        });
    }

    /// Waits until so many processes wait in the kernel for a lock on the file.
    pub(crate) fn until_waiters(path: &Path, count: usize) {
        let inode = format!(":{}", fs::metadata(path).unwrap().ino());
        until(|| {
            let locks = fs::read_to_string("/proc/locks").unwrap();
            // 1: -> FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF; one may be told twice.
            let pid = |line: &str| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let is_it = fields.get(1) == Some(&"->") && fields.get(6)?.ends_with(&inode);
                is_it.then(|| fields[5].to_owned())
            };
            locks.lines().filter_map(pid).collect::<BTreeSet<_>>().len() == count
        });
    }

    /// Waits until the system says that these have it: with many locks it may leave one out at first.
    pub(crate) fn until_held_by(path: &Path, expected: &[Holder]) {
        until(|| holders(path).unwrap() == expected);
    }

    /// Whether a program is there; otherwise says what is left out.
    pub(crate) fn has(program: &str, args: &[&str]) -> bool {
        let output = Command::new(program).args(args).output();
        let is_there = output.is_ok_and(|output| output.status.success());
        if !is_there {
            eprintln!("SKIPPED: {program} {args:?} does not work here");
        }
        is_there
    }
}
