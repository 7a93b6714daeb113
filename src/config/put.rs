//! Putting a value into the settings: where a row needs more than a field and a rule.

use std::path::PathBuf;

use super::row::Wrong;
use super::{Config, value};

/// Puts a value into the settings, or refuses it if it could not be understood.
pub(super) fn put<T>(place: &mut T, value: Option<T>) -> Result<(), Wrong> {
    *place = value.ok_or(Wrong::Value)?;
    Ok(())
}

pub(super) fn put_port(config: &mut Config, text: &str) -> Result<(), Wrong> {
    refuse_service_link(text, "latchd")?;
    put(&mut config.port, value::port(text))
}

pub(super) fn put_http_port(config: &mut Config, text: &str) -> Result<(), Wrong> {
    refuse_service_link(text, "latchd-http")?;
    put(&mut config.http_port, value::http_port(text))
}

/// Kubernetes gives every pod beside a service named latchd a LATCHD_PORT that is no port, and "not
/// a number" would not lead anyone there.
fn refuse_service_link(text: &str, service: &str) -> Result<(), Wrong> {
    if !text.starts_with("tcp://") {
        return Ok(());
    }
    Err(Wrong::Because(format!(
        "{text:?} is not a port but what Kubernetes sets for a service named {service}; \
         set enableServiceLinks: false for the pod, or rename the service"
    )))
}

/// The path of a unix socket. One that is too long can be read, but no socket can have it.
pub(super) fn put_socket(place: &mut Option<PathBuf>, text: &str) -> Result<(), Wrong> {
    put(place, value::path(text).map(Some))?;
    let (bytes, most) = (text.len(), value::SOCKET_PATH_BYTES_MAX);
    if bytes > most {
        let why =
            format!("{text:?} has {bytes} bytes, and the path of a socket at most {most} bytes");
        return Err(Wrong::File(why));
    }
    Ok(())
}

pub(super) fn put_token(
    config: &mut Config,
    token: Result<value::Secret, Wrong>,
) -> Result<(), Wrong> {
    config.auth_token = Some(token?);
    Ok(())
}

pub(super) fn token_in_file(path: &str) -> Result<value::Secret, Wrong> {
    if path.is_empty() {
        let why = "the path is empty; to run without a token, do not set it";
        return Err(Wrong::Because(why.to_owned()));
    }
    value::token_file(path).map_err(Wrong::File)
}
