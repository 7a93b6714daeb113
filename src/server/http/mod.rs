//! The HTTP door: what it shows of the server.

mod figures;

pub(super) use self::figures::HttpFigures;
