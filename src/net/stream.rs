//! What is accepted: a socket, with TLS over it or without.

use std::io;

use mio::event::Source;
use mio::{Interest, Registry, Token};

use super::Socket;
use crate::tls::MaybeTls;

/// One accepted connection.
pub type Stream = MaybeTls<Socket>;

impl Source for MaybeTls<Socket> {
    fn register(&mut self, to: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        self.inner_mut().register(to, token, interest)
    }

    fn reregister(&mut self, to: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        self.inner_mut().reregister(to, token, interest)
    }

    fn deregister(&mut self, from: &Registry) -> io::Result<()> {
        self.inner_mut().deregister(from)
    }
}
