//! Runs a piece of a test in a forked child of the test's process.

#![allow(unsafe_code, reason = "a process cannot be forked without")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// How long a child may take.
const PATIENCE: Duration = Duration::from_secs(30);

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(code: i32) -> !;
}

/// Runs this in a forked child. What it changes is changed there alone. It must return true, in
/// time: a child that waits for a lock of a thread which it does not have waits for ever.
#[track_caller]
pub(crate) fn assert_in_child(work: impl FnOnce() -> bool) {
    // The child has this thread alone. It touches what the test gave it, and ends without any
    // destructor.
    let pid = unsafe { fork() };
    if pid == 0 {
        let is_right = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
        unsafe { _exit(i32::from(!is_right)) };
    }
    let child = Pid::from_raw(pid).expect("a child");
    let start = Instant::now();
    let status = loop {
        match waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            Some((_, status)) => break status,
            None if start.elapsed() > PATIENCE => {
                kill_process(child, Signal::KILL).unwrap();
                waitpid(Some(child), WaitOptions::empty()).unwrap();
                panic!("the child hangs");
            }
            None => std::thread::park_timeout(Duration::from_millis(1)),
        }
    };
    assert_eq!(status.exit_status(), Some(0), "{status:?}");
}
