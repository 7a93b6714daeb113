//! Which server, with which token and under which name; and what its errors mean for whoever typed the command.

use std::ffi::{OsStr, OsString};
use std::iter::once_with;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ArgMatches;

use super::exit::{Exit, Fail};
use super::output::{escaped, quoted};
use super::sys;
use crate::base::Token;
use crate::client::{Builder, Client, Error, NO_LEADER, Reason};

/// Where a server is if nobody says anything.
const SERVER: &str = "127.0.0.1:6388";
/// How long a server may take to answer. People wait, and scripts have other plans.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a cluster may take to have a leader: a little longer than it takes after one was killed.
const LEADER_PATIENCE: Duration = Duration::from_secs(10);

/// How long a server may take to show who has what, before whoever waits is told that it does not answer.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// What it takes to reach the servers. All paths are absolute: the warden, and a `latch` in the command, may be in
/// another directory.
#[derive(Clone)]
pub(crate) struct Servers {
    list: String,
    auth: Option<Auth>,
    /// Whose certificates are trusted, if not those of the system.
    ca_file: Option<PathBuf>,
    /// By how many percent clocks may differ in speed, if it was set.
    clock_drift: Option<u32>,
}

/// The token of the servers, and where it is from.
#[derive(Clone)]
struct Auth {
    token: Vec<u8>,
    /// The file that it stood in, if it was not in the environment itself.
    file: Option<PathBuf>,
}

impl Servers {
    /// Flag, then environment, then default.
    pub(crate) fn of(matches: &ArgMatches) -> Result<Self, Fail> {
        let flag = matches.get_one::<OsString>("server").cloned();
        let list = flag.or_else(|| env("LATCH_SERVER"));
        let list = list.unwrap_or_else(|| SERVER.into());
        let list = list.into_string().map_err(|list| {
            let list = quoted(list.as_encoded_bytes());
            Fail::usage(format!(
                "{list} is no server: write host:port or unix:/path, or members of a cluster as host:port+host:port"
            ))
        })?;
        let auth = auth_token(matches.get_one::<PathBuf>("auth-token-file"))?;
        let ca_file = matches.get_one::<PathBuf>("ca-file").cloned();
        let ca_file = ca_file.or_else(|| env("LATCH_CA_FILE").map(PathBuf::from));
        Ok(Self {
            list: absolute_sockets(&list),
            auth,
            ca_file: ca_file.map(|path| absolute(&path)),
            clock_drift: clock_drift(matches)?,
        })
    }

    /// What has another `latch` reach the same servers, as options. Secrets are in the environment or in files, never
    /// here.
    pub(crate) fn options(&self) -> Vec<OsString> {
        let mut options = vec!["--server".into(), OsString::from(&self.list)];
        let token_file = self.auth.as_ref().and_then(|auth| auth.file.as_ref());
        for (option, path) in [
            ("--auth-token-file", token_file),
            ("--ca-file", self.ca_file.as_ref()),
        ] {
            options.extend(
                path.map(|path| [option.into(), path.into()])
                    .into_iter()
                    .flatten(),
            );
        }
        if let Some(percent) = self.clock_drift {
            options.extend(["--clock-drift".into(), percent.to_string().into()]);
        }
        options
    }

    /// The same as variables, for a command that may have a `latch` in it. A token that beats ours there is taken away.
    pub(crate) fn env(&self) -> Vec<(&'static str, Option<OsString>)> {
        let mut env = vec![("LATCH_SERVER", Some(OsString::from(&self.list)))];
        if let Some(file) = self.auth.as_ref().and_then(|auth| auth.file.as_ref()) {
            env.push(("LATCH_AUTH_TOKEN_FILE", Some(file.into())));
            env.push(("LATCH_AUTH_TOKEN", None));
        }
        if let Some(file) = &self.ca_file {
            env.push(("LATCH_CA_FILE", Some(file.into())));
        }
        if let Some(percent) = self.clock_drift {
            env.push(("LATCH_CLOCK_DRIFT", Some(percent.to_string().into())));
        }
        env
    }

    /// A client that is not connected yet.
    pub(crate) fn builder(&self) -> Builder {
        let connect_timeout = match self.have_members() {
            true => LEADER_PATIENCE,
            false => PATIENCE,
        };
        let mut builder = Client::builder(&self.list)
            .name(own_name())
            .connect_timeout(connect_timeout)
            .answer_timeout(PATIENCE);
        if let Some(path) = &self.ca_file {
            builder = builder.ca_file(path);
        }
        if let Some(percent) = self.clock_drift {
            builder = builder.clock_drift(percent);
        }
        match &self.auth {
            Some(auth) => builder.auth_token(auth.token.clone()),
            None => builder,
        }
    }

    pub(crate) fn client(&self) -> Result<Client, Fail> {
        self.builder().build().map_err(fail)
    }

    /// A client that looks while somebody waits, and says soon if nobody answers.
    pub(crate) fn looking_client(&self) -> Result<Client, Fail> {
        let builder = self.builder().connect_timeout(LOOK_PATIENCE);
        builder.answer_timeout(LOOK_PATIENCE).build().map_err(fail)
    }

    /// A client whose locks outlive it.
    pub(crate) fn keeping_client(&self) -> Result<Client, Fail> {
        self.builder().keep(true).build().map_err(fail)
    }

    /// Each of them alone, for what is not about one key.
    pub(crate) fn each(&self) -> Vec<Self> {
        let each = self.list.split(',').map(|server| Self {
            list: server.trim().to_owned(),
            auth: self.auth.clone(),
            ca_file: self.ca_file.clone(),
            clock_drift: self.clock_drift,
        });
        each.collect()
    }

    /// As they were given, but for where unix sockets are.
    pub(crate) fn list(&self) -> &str {
        &self.list
    }

    /// Whether there are several members of a cluster among them, so that one may lead after another.
    pub(crate) fn have_members(&self) -> bool {
        let mut parts = self.list.split(',').map(str::trim);
        parts.any(|it| !it.starts_with("unix:") && it.contains('+'))
    }
}

fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Flag, then environment.
fn clock_drift(matches: &ArgMatches) -> Result<Option<u32>, Fail> {
    let flag = matches.get_one::<u32>("clock-drift").copied();
    let Some(text) = env("LATCH_CLOCK_DRIFT").filter(|_| flag.is_none()) else {
        return Ok(flag);
    };
    let percent = text.to_str().and_then(|it| it.parse().ok());
    match percent.filter(|it| *it <= 50) {
        Some(percent) => Ok(Some(percent)),
        None => {
            let text = quoted(text.as_encoded_bytes());
            Err(Fail::usage(format!(
                "LATCH_CLOCK_DRIFT: {text} is no percentage from 0 to 50"
            )))
        }
    }
}

/// A file that was named beats the environment, and there the token itself beats a file.
fn auth_token(flag: Option<&PathBuf>) -> Result<Option<Auth>, Fail> {
    let file = match flag {
        Some(path) => Some(path.clone()),
        None => match env("LATCH_AUTH_TOKEN") {
            Some(token) => {
                return Ok(Some(Auth {
                    token: token.into_encoded_bytes(),
                    file: None,
                }));
            }
            None => env("LATCH_AUTH_TOKEN_FILE").map(PathBuf::from),
        },
    };
    let Some(path) = file else {
        return Ok(None);
    };
    let shown = quoted(path.as_os_str().as_encoded_bytes());
    let bytes = std::fs::read(&path).map_err(|error| {
        let message = format!("cannot read the token in {shown}: {error}");
        Fail::new(Exit::CANNOT_OPEN, message)
    })?;
    match bytes.trim_ascii() {
        b"" => {
            let message = format!("the token file {shown} is empty: put the server's token in it");
            Err(Fail::new(Exit::CANNOT_OPEN, message))
        }
        token => Ok(Some(Auth {
            token: token.to_vec(),
            file: Some(absolute(&path)),
        })),
    }
}

/// Where it is from everywhere; as it is if nobody can say where we are.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The list with the whole path of every unix socket. In each part between commas such a path goes to the end.
fn absolute_sockets(list: &str) -> String {
    const UNIX: &str = "unix:";
    let part = |part: &str| {
        let trimmed = part.trim();
        let member = match trimmed.starts_with(UNIX) {
            true => Some(0),
            // Behind other members, perhaps with blanks between.
            false => trimmed.match_indices('+').find_map(|(plus, _)| {
                let rest = trimmed[plus + 1..].trim_start();
                rest.starts_with(UNIX).then(|| trimmed.len() - rest.len())
            }),
        };
        let (before, path) = match member {
            Some(at) => trimmed.split_at(at + UNIX.len()),
            None => return trimmed.to_owned(),
        };
        let whole = absolute(Path::new(path)).into_os_string().into_string();
        match whole {
            // A directory with a comma in its name cannot be written in a list.
            Ok(whole) if !path.is_empty() && !whole.contains(',') => format!("{before}{whole}"),
            _ => trimmed.to_owned(),
        }
    };
    let parts: Vec<String> = list.split(',').map(part).collect();
    parts.join(",")
}

/// The name that `who` shows for this process, such as `alice@db1:4711`. No other process has it.
/// The user is the one of the environment, or else of the user database, or else a number.
pub(crate) fn own_name() -> String {
    let plain = |text: &OsStr, most: usize| -> String {
        let text = text.to_string_lossy();
        let is_plain = |it: &char| it.is_ascii_alphanumeric() || "-_.".contains(*it);
        text.chars().filter(is_plain).take(most).collect()
    };
    let user = [env("LOGNAME"), env("USER")].into_iter().flatten();
    let user = user.chain(once_with(sys::user_names).flatten());
    let user = user.map(|user: OsString| plain(&user, 20));
    let user = { user }.find(|user| !user.is_empty()).unwrap_or_default();
    let host = plain(&sys::host_name(), 28);
    format!("{user}@{host}:{}", std::process::id())
}

/// What an error of the client means here: which exit code, and what to do.
pub(crate) fn fail(error: Error) -> Fail {
    // Words of a server may be anybody's.
    let said = escaped(error.to_string().as_bytes());
    let (exit, advice) = match &error {
        Error::Busy { .. } => (Exit::CONFLICT, ""),
        Error::Down { why, .. } if why.to_string().starts_with(NO_LEADER) => (
            Exit::UNREACHABLE,
            ". Look at these members and at their etcd; --server or LATCH_SERVER says which they are",
        ),
        Error::Down { .. } => (
            Exit::UNREACHABLE,
            ". Is latchd running there? --server or LATCH_SERVER says where it is",
        ),
        Error::Lost { .. } => (Exit::LOST, ""),
        Error::Misuse(_) => (Exit::USAGE, ""),
        Error::Unknown { .. } => (Exit::UNREACHABLE, ""),
        Error::Garbage { .. } => (
            Exit::UNREACHABLE,
            ". Is that the port of the line protocol (6388)?",
        ),
        Error::Refused(refusal) => match refusal.reason() {
            Reason::Auth | Reason::Forbidden => (
                Exit::AUTH,
                ". LATCH_AUTH_TOKEN, LATCH_AUTH_TOKEN_FILE or --auth-token-file gives another token",
            ),
            Reason::Draining => (Exit::UNREACHABLE, ""),
            Reason::Deadlock => (Exit::CONFLICT, ""),
            _ => (
                Exit::REFUSED,
                match refusal.word() {
                    "error_type_mismatch" | "error_limit_mismatch" => {
                        ". `latch who` tells which; use it the same way everywhere, or another key"
                    }
                    _ => "",
                },
            ),
        },
    };
    Fail::new(exit, format!("{said}{advice}"))
}

/// The same of a request for a lock, about which `latch who` can be asked if its answer was lost.
pub(crate) fn fail_of_lock(error: Error) -> Fail {
    let is_unknown = matches!(error, Error::Unknown { .. });
    let mut fail = fail(error);
    if is_unknown {
        fail.message += ". `latch who` shows whether the lock is held";
    }
    fail
}

/// An answer that can be read, but not as one to what was asked.
pub(crate) fn nonsense() -> Fail {
    Fail::new(
        Exit::UNREACHABLE,
        "the server answers something else than it was asked. Is it a latchd of another version?",
    )
}

/// A token as it is printed.
pub(crate) fn token_text(token: Token) -> String {
    String::from_utf8_lossy(&token.hex()).into_owned()
}

/// A token as it was typed.
pub(crate) fn token(text: &[u8]) -> Result<Token, Fail> {
    Token::parse(text).ok_or_else(|| {
        let text = quoted(text);
        Fail::usage(format!(
            "{text} is no token: it is the first word that `latch acquire` prints, 32 hexadecimal digits"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_name_is_one_that_servers_take() {
        let name = own_name();
        assert!(!name.is_empty() && name.len() <= 64, "{name}");
        assert!(name.bytes().all(|it| it.is_ascii_graphic()), "{name}");
        assert!(
            name.ends_with(&format!(":{}", std::process::id())),
            "{name}"
        );
    }

    #[test]
    fn several_members_are_told_from_one_server() {
        for (list, have_members) in [
            ("localhost", false),
            ("a,b", false),
            ("unix:/run/a+b.sock", false),
            ("a+b", true),
            ("a, b+unix:/c", true),
        ] {
            let servers = Servers {
                list: list.to_owned(),
                auth: None,
                ca_file: None,
                clock_drift: None,
            };
            assert_eq!(servers.have_members(), have_members, "{list}");
        }
    }

    #[test]
    fn sockets_are_found_from_everywhere() {
        let here = std::env::current_dir().expect("we are somewhere");
        let here = here.to_str().expect("its name is text");
        for (list, whole) in [
            ("localhost", "localhost".to_owned()),
            ("unix:/run/a+b.sock", "unix:/run/a+b.sock".to_owned()),
            ("unix:a.sock", format!("unix:{here}/a.sock")),
            ("unix:./a+b", format!("unix:{here}/a+b")),
            (
                "a:1+unix:b+unix:c, unix:d",
                format!("a:1+unix:{here}/b+unix:c,unix:{here}/d"),
            ),
            ("a + unix:b", format!("a + unix:{here}/b")),
            ("unix:", "unix:".to_owned()),
        ] {
            assert_eq!(absolute_sockets(list), whole, "{list}");
        }
    }

    #[test]
    fn tokens_are_read_and_printed() {
        let text = "000660599d1e2c3f9f8e7d6c5b4a3921";
        let read = token(text.as_bytes()).expect("a token");
        assert_eq!(token_text(read), text);
        let fail = token(b"x\x1b").expect_err("no token");
        assert_eq!(fail.exit, Exit::USAGE);
        assert!(fail.message.contains("\\u{1b}"), "{fail}");
    }
}
