//! SIGHUP: what is read again while the daemon serves, in one place.
//!
//! Each part is read on its own. If it is good it counts for whoever comes from now on; otherwise what
//! was there before stays, and one line says why. Connections that are open, and what they hold, are
//! not touched. What is not named here is read at the start only.

use std::path::{Path, PathBuf};

use log::{error, info};

use super::tls::TlsFiles;
use super::{SharedManager, output};
use crate::config::{Config, shares_in_file, token_file};
use crate::net::Stream;
use crate::server::Server;
use crate::server::audit::{self, Operator};
use crate::store::Store;

/// Something else that can be read again: what it is called, and how; otherwise says why it stays.
pub(super) type More = (&'static str, Box<dyn Fn() -> Result<(), String>>);

/// What can be read again.
pub(super) struct Reload {
    token_file: Option<PathBuf>,
    admin_uid: Option<u32>,
    /// The configuration file, if its shares count.
    shares_file: Option<PathBuf>,
    tls: Option<TlsFiles>,
    more: Vec<More>,
    /// Who is told when it begins and when it is done.
    manager: Option<SharedManager>,
}

impl Reload {
    /// What these settings have been read from.
    pub(super) fn new(
        config: &Config,
        tls: Option<TlsFiles>,
        more: Vec<More>,
        manager: Option<SharedManager>,
    ) -> Self {
        Self {
            token_file: config.auth_token_file.clone(),
            admin_uid: config.unix_admin_uid,
            shares_file: (config.config_file.clone()).filter(|_| config.shares_are_in_file),
            tls,
            more,
            manager,
        }
    }

    /// Reads all of it again.
    pub(super) fn run<S: Store>(&self, server: &mut Server<Stream, S>) {
        if let Some(manager) = &self.manager {
            manager.borrow_mut().tell_reloading();
        }
        self.read_again(server);
        if let Some(manager) = &self.manager {
            manager.borrow_mut().tell_reloaded();
        }
    }

    fn read_again<S: Store>(&self, server: &mut Server<Stream, S>) {
        // The log itself says later what came of it.
        let has_log_file = output::reopen();
        let parts = [
            self.tls.as_ref().map(|tls| (CERTIFICATE, tls.reload())),
            (self.token_file.as_ref()).map(|path| (TOKENS, self.reload_tokens(path, server))),
            (self.shares_file.as_ref()).and_then(|path| reload_shares(path, server)),
        ];
        let more = self.more.iter().map(|(what, read)| (*what, read()));
        let parts: Vec<_> = parts.into_iter().flatten().chain(more).collect();
        if has_log_file {
            info!("SIGHUP: the log file is opened again");
        } else if parts.is_empty() {
            info!(
                "SIGHUP: nothing to reload; settings are read at the start only, \
                 restart latchd to change them"
            );
        }
        for (what, reloaded) in parts {
            let result = if reloaded.is_ok() { "read" } else { "kept" };
            audit::tell(
                "reload",
                &by_signal(),
                &[("what", what), ("result", result)],
            );
            match reloaded {
                Ok(()) if what == SHARES => info!("SIGHUP: {what} is read again"),
                Ok(()) => info!("SIGHUP: {what} is read again, and counts for new connections"),
                Err(why) => error!("SIGHUP: {what} stays as it was: {why}"),
            }
        }
    }

    /// Whoever has shown a token before stays, with what that gave it.
    fn reload_tokens<S: Store>(
        &self,
        path: &Path,
        server: &mut Server<Stream, S>,
    ) -> Result<(), String> {
        let tokens = token_file(&path.to_string_lossy())
            .map_err(|why| format!("--auth-token-file: {why}"))?;
        server.set_access(tokens.access().clone().with_admin_uid(self.admin_uid));
        Ok(())
    }
}

/// Nothing is said of a file that has no shares and had none.
fn reload_shares<S: Store>(
    path: &Path,
    server: &mut Server<Stream, S>,
) -> Option<(&'static str, Result<(), String>)> {
    let reloaded = match shares_in_file(path) {
        Ok(shares) if shares.is_empty() && server.shares().is_empty() => return None,
        Ok(shares) => {
            server.set_shares(shares);
            Ok(())
        }
        Err(why) => Err(why.to_string()),
    };
    Some((SHARES, reloaded))
}

/// A signal does not say who has sent it: root, or the user of the daemon.
fn by_signal() -> Operator {
    Operator {
        client: "SIGHUP".to_owned(),
        ..Operator::default()
    }
}

const CERTIFICATE: &str = "the TLS certificate with its key";
const TOKENS: &str = "the token file";
const SHARES: &str = "the list of shares";
