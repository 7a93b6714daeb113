//! The program that the tests start many of: it locks and lets go as it is told over its input, and
//! says what came of it.
//!
//! Its first line is the path of the lock file; each further one is an order, answered by one line that
//! begins with `@` (`churn` says many). It is also compiled on its own, with a library that is broken on
//! purpose (`mutants.rs`), so it uses nothing but that and `std`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchd::ephemeral::{Cleanup, EphemeralLock, Error, Guard};

pub(crate) fn main() {
    let mut lines = io::stdin().lines().map(|line| line.unwrap());
    let Some(path) = lines.next() else { return };
    let mut contender = Contender {
        path: path.into(),
        guard: None,
    };
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = contender.obey(&words).unwrap_or_else(|why| why);
        say(&answer);
    }
}

fn say(answer: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "@{answer}"); // if nobody listens any more, the input ends, too
    let _ = out.flush();
}

struct Contender {
    path: PathBuf,
    guard: Option<Guard>,
}

impl Contender {
    fn obey(&mut self, words: &[&str]) -> Result<String, String> {
        let number = |word: &str| word.parse::<u32>().unwrap();
        match words {
            ["pid"] => Ok(std::process::id().to_string()),
            ["acquire", kind, mode] => self.acquire(kind, mode),
            ["release"] => {
                let cleanup = self.guard.take().unwrap().release();
                Ok(cleanup.map_or_else(|error| error.to_string(), |it| format!("{it:?}")))
            }
            ["leak"] => {
                std::mem::forget(self.guard.take());
                Ok("leaked".to_owned())
            }
            ["in-place"] => Ok(self
                .guard
                .as_ref()
                .unwrap()
                .is_in_place()
                .unwrap()
                .to_string()),
            #[cfg(unix)]
            ["child", "with", fifo] => self.child(fifo, true),
            #[cfg(unix)]
            ["child", "without", fifo] => self.child(fifo, false),
            ["count", times] => self.count(number(times)),
            ["mix", times, seed] => self.mix(number(times), number(seed)),
            ["share", times] => self.share(number(times)),
            ["probe", times] => self.probe(number(times)),
            ["churn"] => loop {
                self.churn()?;
            },
            other => panic!("{other:?}"),
        }
    }

    fn lock(&self, kind: &str) -> EphemeralLock {
        match kind {
            "shared" => EphemeralLock::shared(&self.path),
            "exclusive" => EphemeralLock::exclusive(&self.path),
            "kept" => EphemeralLock::exclusive(&self.path).keep_file(true),
            other => panic!("{other}"),
        }
    }

    /// Says which file it has, and how often it had to begin again.
    fn acquire(&mut self, kind: &str, mode: &str) -> Result<String, String> {
        let lock = self.lock(kind);
        let result = match mode {
            "try" => lock.try_acquire(),
            "block" => lock.acquire(),
            ms => lock
                .timeout(Duration::from_millis(ms.parse().unwrap()))
                .acquire(),
        };
        let guard = result.map_err(|error| name_of(&error))?;
        let answer = format!("held {} {}", file_of(&guard), guard.retries());
        self.guard = Some(guard);
        Ok(answer)
    }

    #[cfg(unix)]
    /// A child that lives until the pipe ends, with or without a copy of the locked descriptor.
    #[expect(clippy::zombie_processes, reason = "it is to outlive us")]
    fn child(&self, fifo: &str, with: bool) -> Result<String, String> {
        use std::io::{BufRead, BufReader};
        use std::os::fd::AsFd;
        use std::process::{Command, Stdio};
        let guard = self.guard.as_ref().unwrap();
        let mut child = Command::new("sh");
        child.stdin(File::open(fifo).unwrap()).stderr(Stdio::null());
        if with {
            child.args(["-c", "exec cat"]);
            child.stdout(guard.as_fd().try_clone_to_owned().unwrap());
            child.spawn().unwrap();
            return Ok("born".to_owned());
        }
        child.args(["-c", "echo born; exec cat"]);
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        // While it is being started it has copies of everything. When it speaks, that is over.
        let mut said = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut said).unwrap();
        Ok(said.trim().to_owned())
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(suffix);
        path.into()
    }

    /// Adds to a number in a file, in steps that anybody else would disturb.
    fn count(&mut self, times: u32) -> Result<String, String> {
        for _ in 0..times {
            let guard = self.lock("exclusive").acquire();
            let guard = guard.map_err(|error| error.to_string())?;
            self.add_one()?;
            match guard.release() {
                Ok(Cleanup::Removed) => {}
                other => return Err(format!("violation: released as {other:?}")),
            }
        }
        Ok("done".to_owned())
    }

    fn add_one(&self) -> Result<(), String> {
        let (inside, number) = (self.beside(".inside"), self.beside(".number"));
        fs::create_dir(&inside).map_err(|error| format!("violation: not alone: {error}"))?;
        let value = read_number(&number)?;
        fs::write(&number, (value + 1).to_string()).unwrap();
        fs::remove_dir(&inside).map_err(|error| format!("violation: not alone: {error}"))
    }

    /// Half of the time one of many who only read, which is to see nothing move.
    fn mix(&mut self, times: u32, seed: u32) -> Result<String, String> {
        let mut chance = seed.wrapping_mul(0x9e37_79b9) | 1;
        for _ in 0..times {
            chance ^= chance << 13;
            chance ^= chance >> 17;
            chance ^= chance << 5;
            let kind = match chance % 2 {
                0 => "shared",
                _ => "exclusive",
            };
            let guard = self.lock(kind).acquire();
            let guard = guard.map_err(|error| error.to_string())?;
            match kind {
                "exclusive" => self.add_one()?,
                _ => self.read_only()?,
            }
            drop(guard);
        }
        Ok("done".to_owned())
    }

    fn read_only(&self) -> Result<(), String> {
        let number = self.beside(".number");
        let before = read_number(&number)?;
        for _ in 0..10 {
            std::thread::yield_now();
            let now = read_number(&number)?;
            if now != before || self.beside(".inside").exists() {
                return Err(format!(
                    "violation: {before} became {now} while it was shared"
                ));
            }
        }
        Ok(())
    }

    /// Holds it with others, and leaves a mark while it does.
    fn share(&mut self, times: u32) -> Result<String, String> {
        let mark = self.beside(&format!(".holder.{}", std::process::id()));
        for _ in 0..times {
            let guard = self.lock("shared").acquire();
            let guard = guard.map_err(|error| error.to_string())?;
            File::create(&mark).unwrap();
            fs::remove_file(&mark).unwrap();
            let cleanup = guard.release();
            if let Err(error) = cleanup {
                return Err(format!("violation: {error}"));
            }
        }
        Ok("done".to_owned())
    }

    /// Whenever it is alone, there must be no such mark.
    fn probe(&mut self, times: u32) -> Result<String, String> {
        for _ in 0..times {
            let guard = match self.lock("exclusive").try_acquire() {
                Ok(guard) => guard,
                Err(Error::Busy { .. }) => continue,
                Err(error) => return Err(error.to_string()),
            };
            let dir = fs::read_dir(self.path.parent().unwrap()).unwrap();
            for name in dir.map(|entry| entry.unwrap().file_name()) {
                if name.to_string_lossy().contains(".holder.") {
                    return Err(format!("violation: {name:?} is here, and we are alone"));
                }
            }
            drop(guard);
        }
        Ok("done".to_owned())
    }

    /// All kinds and ways, for ever, with a line at every step.
    fn churn(&mut self) -> Result<(), String> {
        for kind in ["exclusive", "shared"] {
            say("acquiring");
            let guard = self.lock(kind).acquire();
            let guard = guard.map_err(|error| error.to_string())?;
            say("held");
            drop(guard);
            say("released");
        }
        Ok(())
    }
}

fn read_number(path: &Path) -> Result<u32, String> {
    let text = fs::read_to_string(path).unwrap();
    let number = text.parse();
    number.map_err(|_| format!("violation: {text:?} is half a number"))
}

/// Which file is locked, as `program::file_at` says it.
#[cfg(unix)]
fn file_of(guard: &Guard) -> String {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let file = File::from(guard.as_fd().try_clone_to_owned().unwrap());
    let file = file.metadata().unwrap();
    format!("{}:{}", file.dev(), file.ino())
}

/// The standard library does not tell.
#[cfg(windows)]
fn file_of(_: &Guard) -> String {
    "unknown".to_owned()
}

/// The variant and what the system said, as one line.
fn name_of(error: &Error) -> String {
    match error {
        Error::Busy { .. } => "Busy".to_owned(),
        Error::Unsupported { why, .. } => format!("Unsupported {why}"),
        Error::Symlink { .. } => "Symlink".to_owned(),
        Error::NotRegular { what, .. } => format!("NotRegular {what}"),
        Error::NotEmpty { bytes, .. } => format!("NotEmpty {bytes}"),
        Error::Io { source, .. } => format!("Io {:?}", source.kind()),
        other => format!("{other}"),
    }
}
