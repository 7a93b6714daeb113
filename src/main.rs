//! latchd: reads the settings, runs the daemon. No logic.

fn main() {}
