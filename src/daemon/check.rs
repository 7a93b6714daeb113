//! `latchd --check-config`: whether a daemon could start with these settings, without starting one.
//!
//! Everything that a start reads is read, and what it would make or open is looked at. Nothing is
//! changed, nobody is connected to, no port is opened; so whether a port is free is not said.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access, access};

use super::tls::TlsFiles;
use super::{DaemonError, cluster, cluster_of, failed_to, pin, print};
use crate::config::{Config, Exit};
use crate::store::{self, Durability};

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
    let cannot = |exit, why: String, advice: &str| DaemonError {
        attempt: format!(
            "cannot use the data directory {} (--data-dir)",
            dir.display()
        ),
        cause: io::Error::other(why),
        advice: advice.to_owned(),
        exit,
    };
    match fs::metadata(dir) {
        Ok(metadata) if !metadata.is_dir() => {
            let why = "it is not a directory".to_owned();
            return Err(cannot(Exit::Config, why, "choose another"));
        }
        Ok(_) => may_write(dir)
            .map_err(|error| cannot(Exit::Config, error.to_string(), "change its permissions"))?,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // It would be made, with those above it that are missing.
            let above = dir.ancestors().skip(1).map(or_here).find(|it| it.exists());
            let may_make = above.map_or(Ok(()), |above| {
                may_write(above).map_err(|error| format!("{}: {error}", above.display()))
            });
            let advice = "make it, or change the permissions above it";
            return may_make.map_err(|why| cannot(Exit::Config, why, advice));
        }
        Err(error) => return Err(cannot(Exit::Config, error.to_string(), "")),
    }
    let advice = "restore a backup, or keep what is provably good with --repair";
    match store::inspect(dir) {
        Ok(found) => found.damage.map_or(Ok(()), |damage| {
            Err(cannot(Exit::Storage, damage.to_string(), advice))
        }),
        Err(error) => Err(cannot(Exit::Storage, error.to_string(), "")),
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

/// Whether files can be made in this directory.
fn may_write(dir: &Path) -> io::Result<()> {
    Ok(access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
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
