//! Windows. The width of a terminal is not known here.

use std::env::var_os;
use std::ffi::OsString;

pub(crate) fn columns() -> Option<usize> {
    None
}

pub(crate) fn user_names() -> Vec<OsString> {
    var_os("USERNAME").into_iter().collect()
}

pub(crate) fn host_name() -> OsString {
    var_os("COMPUTERNAME").unwrap_or_default()
}
