//! In the place of `tls.rs`, for a daemon that was built without the feature `tls`: settings of TLS
//! are refused, and nothing else is needed.

use std::io;

use super::DaemonError;
use crate::config::{Config, Exit};
use crate::net::Listener;

/// There are none.
pub(super) enum TlsFiles {}

impl TlsFiles {
    /// None, unless the settings ask for some.
    pub(super) fn open(config: &Config) -> Result<Option<Self>, DaemonError> {
        match config.tls_cert {
            None => Ok(None),
            Some(_) => Err(DaemonError {
                attempt: "cannot use --tls-cert".to_owned(),
                cause: io::Error::other("this latchd was built without TLS"),
                advice: "build it with the feature tls, or put a TLS proxy before it".to_owned(),
                exit: Exit::Config,
            }),
        }
    }

    pub(super) fn over(&self, _: Listener) -> Listener {
        match *self {}
    }

    pub(super) fn reload(&self) -> Result<(), String> {
        match *self {}
    }
}
