//! Starting and stopping: what happens around the loop, never inside it.

pub mod logging;
pub mod pin;
