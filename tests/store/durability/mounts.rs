//! File systems of a test's own, in a mount namespace of its own: nobody else sees them, and they
//! are gone when the test is, however it ends.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use tempfile::TempDir;

use crate::vocabulary::{Daemon, latchd};

/// A mounted file system. A process stays in its namespace as long as this lives.
pub(crate) struct Mount {
    inside: Child,
    /// That process ends when this is closed.
    _input: ChildStdin,
    at: PathBuf,
    is_user_namespace: bool,
    around: TempDir,
}

impl Mount {
    /// A file system in memory of this size; or why there is none.
    pub(crate) fn tmpfs(size: &str) -> Result<Self, String> {
        let mount = format!("mount -t tmpfs -o size={size} tmpfs \"$0\"");
        Self::make(&["--user", "--map-root-user", "--mount"], &mount)
    }

    /// A new ext4 in a file, which is seen as a disk; or why there is none.
    pub(crate) fn ext4(size_mib: u64) -> Result<Self, String> {
        let mount = format!(
            "truncate -s {size_mib}M \"$0.disk\" && mkfs.ext4 -q -F \"$0.disk\" && \
             mount -o loop \"$0.disk\" \"$0\""
        );
        Self::make(&["--mount"], &mount)
    }

    fn make(namespaces: &[&str], mount: &str) -> Result<Self, String> {
        let around = tempfile::tempdir().unwrap();
        let at = around.path().join("mount");
        std::fs::create_dir(&at).unwrap();
        // It ends with its input. Nobody waits for what it mounts: the end of the namespace ends it.
        let script = format!("{{ {mount}; }} 2>&1 && echo mounted && exec cat");
        let mut inside = Command::new("unshare")
            .args(namespaces)
            .args(["sh", "-c", &script])
            .arg(&at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let output = BufReader::new(inside.stdout.take().unwrap());
        let mut last = String::new();
        for line in output.lines() {
            last = line.unwrap();
            if last == "mounted" {
                return Ok(Self {
                    _input: inside.stdin.take().unwrap(),
                    inside,
                    at,
                    is_user_namespace: namespaces.contains(&"--user"),
                    around,
                });
            }
        }
        if let Some(mut stderr) = inside.stderr.take() {
            stderr.read_to_string(&mut last).unwrap();
        }
        let _ = inside.wait();
        Err(last)
    }

    /// A command that sees the file system.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.inside.id()));
        command.arg("--mount");
        if self.is_user_namespace {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--").arg(program);
        command
    }

    /// A daemon with a data directory there.
    #[track_caller]
    pub(crate) fn start(&self, options: &[&str]) -> Daemon {
        Daemon::serve(self.latchd(options))
    }

    /// The program with a data directory there and these options, on a free port.
    pub(crate) fn latchd(&self, options: &[&str]) -> Command {
        let latchd = latchd();
        let mut command = self.command(latchd.get_program().to_str().unwrap());
        for (name, value) in latchd.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["--port", "0", "--data-dir"]);
        command.arg(self.at.join("data")).args(options);
        command
    }

    /// Runs a shell command in which `$0` is where it is mounted and `$0.disk` the disk.
    #[track_caller]
    pub(crate) fn shell(&self, script: &str) {
        let status = self
            .command("sh")
            .args(["-c", script])
            .arg(&self.at)
            .status();
        assert!(status.unwrap().success(), "{script}");
    }

    /// A path on the file system, as it is seen from outside.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let root = Path::new("/proc")
            .join(self.inside.id().to_string())
            .join("root");
        root.join(self.at.strip_prefix("/").unwrap()).join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.inside.kill(); // or it has ended by itself
        let _ = self.inside.wait();
        let _ = &self.around;
    }
}
