//! `latchd --check-config`: whether a daemon could start with these settings, without starting one.
//!
//! Everything that a start reads is read, and what it would make or open is looked at. Nothing is
//! changed, nobody is connected to, no port is opened; so whether a port is free is not said.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access, Mode, OFlags, access, open, statfs};
use rustix::io::Errno;

use super::data_dir::cannot_open;
use super::tls::TlsFiles;
use super::{DaemonError, cluster, cluster_of, exposed, failed_to, pin, print};
use crate::config::{Config, Exit};
use crate::net::check_lock_beside;
use crate::store::{self, Durability, OpenError};

/// What is looked at, besides what reading the settings has looked at already.
const CHECKS: [Check; 6] = [core, tls, data_dir, member, sockets, log_file];

/// One look at what the settings name.
type Check = fn(&Config) -> Result<(), DaemonError>;

/// Says on standard output that the settings can be used, or on standard error all that is wrong.
/// `unknown_env` names the variables that look like settings and are none.
#[must_use]
pub fn check_config(config: &Config, unknown_env: &[String]) -> Exit {
    for name in unknown_env {
        eprintln!("warning: the environment variable {name} is not a setting: see --help");
    }
    if config.is_open_to_the_network() {
        eprintln!(
            "warning: other machines can connect and no token is asked for: \
             set --auth-token-file, or --host 127.0.0.1"
        );
    }
    if config.data_dir.is_some() && config.durability == Durability::Async {
        eprintln!("warning: --durability async: a crash of the machine can lose the last 100 ms");
    }
    for warning in exposed::warnings(config, false) {
        eprintln!("warning: {warning}");
    }
    let mut exit = Exit::Success;
    for error in CHECKS.iter().filter_map(|check| check(config).err()) {
        eprintln!("configuration error: {error}");
        if exit == Exit::Success {
            exit = error.exit;
        }
    }
    if exit == Exit::Success {
        let from = config.config_file.as_ref();
        let from = from.map_or(String::new(), |file| format!(", from {}", file.display()));
        return print(&format!("ok: the settings can be used{from}"));
    }
    exit
}

fn core(config: &Config) -> Result<(), DaemonError> {
    // This process ends at once, so it may as well stay there.
    let pinned = config.cpu.map_or(Ok(()), pin::pin_to_cpu);
    pinned.map_err(|cause| DaemonError {
        exit: Exit::Config,
        ..failed_to("pin the thread")(cause)
    })
}

fn tls(config: &Config) -> Result<(), DaemonError> {
    TlsFiles::open(config).map(drop)
}

/// A directory that a daemon uses at the moment is as good as another.
fn data_dir(config: &Config) -> Result<(), DaemonError> {
    let Some(dir) = &config.data_dir else {
        return Ok(());
    };
    let not_usable = |error| cannot_open(dir, &OpenError::Directory(error));
    match fs::metadata(dir) {
        Ok(metadata) if !metadata.is_dir() => {
            Err(not_usable(io::Error::other("it is not a directory")))
        }
        Ok(_) => {
            may_write(dir).map_err(not_usable)?;
            store::check(dir).map_err(|error| cannot_open(dir, &error))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // It would be made, with those above it that are missing.
            let is_there = |path: &&Path| fs::symlink_metadata(path).is_ok();
            let above = dir.ancestors().map(or_here).find(is_there).unwrap_or(dir);
            may_write(above).map_err(|error| {
                not_usable(io::Error::other(format!("{}: {error}", above.display())))
            })
        }
        Err(error) => Err(not_usable(error)),
    }
}

/// Whether etcd is there is not said: nobody is connected to.
fn member(config: &Config) -> Result<(), DaemonError> {
    match cluster_of(config)? {
        Some(name) => cluster::check(config, name),
        None => Ok(()),
    }
}

fn sockets(config: &Config) -> Result<(), DaemonError> {
    for (flag, path) in [
        ("--unix-socket", &config.unix_socket),
        ("--http-unix-socket", &config.http_unix_socket),
    ] {
        let Some(path) = path else {
            continue;
        };
        let found = match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.file_type().is_socket() => Ok(()),
            Ok(_) => Err(io::Error::other("it exists and is not a socket")),
            Err(error) if error.kind() == ErrorKind::NotFound => may_write(directory_of(path)),
            Err(error) => Err(error),
        };
        let found = found.and_then(|()| check_lock_beside(path));
        found.map_err(|cause| DaemonError {
            exit: Exit::Config,
            ..failed_to(&format!("listen on {} ({flag})", path.display()))(cause)
        })?;
    }
    Ok(())
}

fn log_file(config: &Config) -> Result<(), DaemonError> {
    let Some(path) = &config.log_file else {
        return Ok(());
    };
    let opened = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => OpenOptions::new().append(true).open(path).map(drop),
        Ok(metadata) if metadata.is_dir() => Err(io::Error::other("it is a directory")),
        Ok(_) => access(path, Access::WRITE_OK).map_err(io::Error::from),
        Err(error) if error.kind() == ErrorKind::NotFound => may_write(directory_of(path)),
        Err(error) => Err(error),
    };
    opened.map_err(|cause| cannot_open_log(path, cause))
}

/// The log file cannot be used; also what a start says.
pub(super) fn cannot_open_log(path: &Path, cause: io::Error) -> DaemonError {
    DaemonError {
        attempt: format!("cannot open the log file {} (--log-file)", path.display()),
        cause,
        advice: "check the path and its permissions".to_owned(),
        exit: Exit::Config,
    }
}

/// Whether files can be made in this directory. It tries with a file that gets no name: root has
/// permission also where no file can be made, such as `/proc`.
fn may_write(dir: &Path) -> io::Result<()> {
    /// What `statfs` calls FUSE. It need not say how large it is.
    const FUSE: u32 = 0x6573_5546;
    access(dir, Access::WRITE_OK | Access::EXEC_OK)?;
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(_) => Ok(()),
        // The error for this comes with the first segment.
        Err(Errno::NOSPC | Errno::DQUOT) => Ok(()),
        // A file system without such files, as that of a network, or one without any.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let system = statfs(dir)?;
            match system.f_blocks == 0 && system.f_type as u32 != FUSE {
                true => Err(io::Error::other("no files can be made on its file system")),
                false => Ok(()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

fn directory_of(path: &Path) -> &Path {
    or_here(path.parent().unwrap_or(path))
}

/// The path of a file in the working directory has nothing before its name.
fn or_here(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() {
        return Path::new(".");
    }
    dir
}
