//! A connection that is encrypted or is not, behind one [`Transport`].

use std::io;

use super::Tls;
use crate::server::identity::Identity;
use crate::server::{Host, Transport, Upkeep};

/// A transport, as it is or with TLS over it.
#[derive(Debug)]
pub enum MaybeTls<T: Transport> {
    /// As it is.
    Plain(T),
    /// With TLS over it. In a box, so that those without pay nothing for it.
    Tls(Box<Tls<T>>),
}

impl<T: Transport> MaybeTls<T> {
    /// The transport itself, to be registered or looked at.
    pub fn inner_mut(&mut self) -> &mut T {
        match self {
            Self::Plain(inner) => inner,
            Self::Tls(tls) => tls.inner_mut(),
        }
    }

    fn inner(&self) -> &T {
        match self {
            Self::Plain(inner) => inner,
            Self::Tls(tls) => tls.inner(),
        }
    }
}

impl<T: Transport> Transport for MaybeTls<T> {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(inner) => inner.read(into),
            Self::Tls(tls) => tls.read(into),
        }
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(inner) => inner.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn shutdown_write(&mut self) {
        match self {
            Self::Plain(inner) => inner.shutdown_write(),
            Self::Tls(tls) => tls.shutdown_write(),
        }
    }

    fn peer(&self) -> String {
        self.inner().peer()
    }

    fn address(&self) -> String {
        self.inner().address()
    }

    fn host(&self) -> Host {
        self.inner().host()
    }

    fn identity(&self) -> Identity {
        match self {
            Self::Plain(inner) => inner.identity(),
            Self::Tls(tls) => tls.identity(),
        }
    }

    #[inline]
    fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    #[inline]
    fn is_in_handshake(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.is_in_handshake(),
        }
    }

    #[inline]
    fn upkeep(&mut self) -> Upkeep {
        match self {
            Self::Plain(_) => Upkeep::default(),
            Self::Tls(tls) => tls.upkeep(),
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Tls(tls) => tls.memory(),
        }
    }

    #[inline]
    fn unsent(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Tls(tls) => tls.unsent(),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.flush(),
        }
    }
}
