//! What the warden of a command does with locks that a server has, and how it is started.
//!
//! It is started beside everything else, since a process takes longer to start than a free lock to be had, and is told of
//! each lock as soon as that is held: whatever ends us, nothing is left to its lease that somebody could let go.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::connect::Servers;
use super::exit::Fail;
use super::range_run::Claim;
use super::supervise::warden::{self, Hold, Warden};
use super::sys::spawn;
use crate::base::Token;
use crate::client::Client;

/// A warden that is being started.
pub(crate) struct WardenMeanwhile {
    warden: Arc<Warden>,
    started: Receiver<Result<(), Fail>>,
}

impl WardenMeanwhile {
    /// Begins to start one that reaches the same servers. If nobody wants it in the end it has nothing to end, and
    /// goes.
    pub(crate) fn start(servers: &Servers) -> Result<Self, Fail> {
        let (warden, start) = Warden::new()?;
        let options = servers.options();
        let (sender, started) = channel();
        spawn(move || {
            let _ = sender.send(start.start(&options, None));
        })?;
        Ok(Self {
            warden: Arc::new(warden),
            started,
        })
    }

    /// What it is told it hears when it is there.
    pub(crate) fn warden(&self) -> Arc<Warden> {
        Arc::clone(&self.warden)
    }

    /// Waits until it is there.
    pub(crate) fn started(self) -> Result<Arc<Warden>, Fail> {
        let gone = |_| Fail::system("start a process", "the thread that should is gone");
        self.started.recv().map_err(gone)??;
        Ok(self.warden)
    }

    /// There is nothing to be let go.
    pub(crate) fn dismiss(self) {
        self.warden.dismiss();
    }
}

/// Locks of a server, in the warden.
#[derive(Clone)]
pub(crate) struct Remote {
    servers: Servers,
    client: Option<Client>,
}

impl Remote {
    pub(crate) fn new(servers: Servers) -> Self {
        let client = None;
        Self { servers, client }
    }

    fn renew_one(&mut self, hold: &Hold, lease: Duration) -> Option<Duration> {
        let Hold { key, token } = hold;
        match Claim::parse(token, key) {
            Some(claim) => {
                let client = claim.client(&self.servers).ok()?;
                claim.renew(&client).ok()?
            }
            None => {
                let token = Token::parse(token.as_bytes())?;
                self.client()?.renew(key, token, Some(lease)).ok()
            }
        }
    }

    fn client(&mut self) -> Option<&Client> {
        if self.client.is_none() {
            self.client = self.servers.keeping_client().ok();
        }
        self.client.as_ref()
    }
}

impl warden::Locks for Remote {
    fn release(&mut self, holds: &[Hold]) {
        for Hold { key, token } in holds.iter().rev() {
            // What cannot be let go ends with its lease, or with its client.
            if let Some(token) = Token::parse(token.as_bytes()) {
                let _ = self.client().map(|client| client.release(key, token));
            } else if let Some(claim) = Claim::parse(token, key) {
                let client = claim.client(&self.servers);
                let _ = client.map(|client| claim.release(&client));
            }
        }
    }

    fn renew(&mut self, holds: &[Hold], lease: Duration) -> Option<Duration> {
        // All of them, also behind one that is lost: a command that cannot be ended needs what is left.
        let left: Vec<_> = holds
            .iter()
            .map(|hold| self.renew_one(hold, lease))
            .collect();
        let left: Option<Vec<Duration>> = left.into_iter().collect();
        left?.into_iter().min()
    }
}
