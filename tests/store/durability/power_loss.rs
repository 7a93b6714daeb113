//! Power loss: the disk is cut off from one moment to the next, and what was not synced is gone.
//!
//! A killed process loses nothing that it has written, synced or not; this does. ext4 can be told to
//! forget everything that is not on its disk. Needs root and a loop device.

use std::fs::{self, File};

use rustix::ioctl;
use rustix::process::Signal;

use crate::durability::crash::{Machine, crash_often, rounds};
use crate::durability::directory::{holder, kill, reserve_fences};
use crate::durability::mounts::Mount;
use crate::vocabulary::Daemon;

/// `EXT4_IOC_SHUTDOWN`, and its flag that not even the file system's journal is written.
const SHUTDOWN: ioctl::Opcode = ioctl::opcode::read::<u32>(b'X', 125);
const NO_LOG_FLUSH: u32 = 2;

#[allow(unsafe_code, reason = "rustix knows no safe name for it")]
fn cut_off(file_system: &File) -> std::io::Result<()> {
    // SAFETY: it reads one u32 through the pointer, and that is what it is given.
    unsafe {
        let shutdown = ioctl::Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH);
        Ok(ioctl::ioctl(file_system, shutdown)?)
    }
}

/// A machine whose power goes.
struct Powered {
    mount: Mount,
    options: &'static [&'static str],
}

impl Powered {
    /// Or why there is none.
    fn new(options: &'static [&'static str]) -> Result<Self, String> {
        let mount = Mount::ext4(128)?;
        let machine = Self { mount, options };
        machine.lose_power().map_err(|error| error.to_string())?;
        machine.restore_power();
        Ok(machine)
    }

    fn lose_power(&self) -> std::io::Result<()> {
        cut_off(&File::open(self.mount.path(""))?)
    }

    /// A process that another test is about to start may still have our descriptor for a moment.
    fn restore_power(&self) {
        self.mount.shell(
            "for try in $(seq 1000); do umount \"$0\" 2>&1 && break; done >/dev/null && \
             mount -o loop \"$0.disk\" \"$0\"",
        );
    }
}

impl Machine for Powered {
    fn start(&mut self) -> Daemon {
        self.mount.start(self.options)
    }

    /// With the power the network goes, too: the loop is stopped first, while the journal may be in
    /// the middle of a sync. (One that is cut off there may succeed on ext4, and nobody may hear it.)
    fn bring_down(&mut self, daemon: Daemon) {
        daemon.signal(Signal::STOP);
        let loop_thread = format!("/proc/{0}/task/{0}/stat", daemon.status("Pid"));
        let is_stopped = || fs::read_to_string(&loop_thread).unwrap().contains(") T ");
        while !is_stopped() {}
        self.lose_power().unwrap();
        kill(daemon);
        self.restore_power();
    }
}

fn skip(why: &str) {
    crate::durability::skip("root and an ext4 on a loop device", why);
}

#[test]
fn what_was_acknowledged_survives_the_loss_of_power() {
    match Powered::new(&[]) {
        Ok(mut machine) => crash_often(&mut machine, rounds(100) / 4),
        Err(why) => skip(&why),
    }
}

/// Only the last moments may be lost, and the next start says so.
#[test]
fn with_async_durability_what_is_older_than_a_moment_survives() {
    let mut machine = match Powered::new(&["--durability=async"]) {
        Ok(machine) => machine,
        Err(why) => return skip(&why),
    };
    let daemon = machine.start();
    let mut client = daemon.connect();
    let fence = client.lock("k", "0 600").token_fence();
    assert_eq!(client.ask("incr c 1"), "ok 1");
    assert_eq!(client.ask("blpop nothing 1"), "nil"); // ten times 100 ms
    machine.bring_down(daemon);
    let daemon = machine.start();
    daemon.wait_for_log("last 100 ms");
    let mut client = daemon.connect();
    assert_eq!(holder(&mut client, "k"), Some(fence));
    assert_eq!(client.ask("get c _"), "ok 1");
    assert!(client.lock("next", "0").token_fence() > fence);
}

/// A grant may be lost, but not that its fence was given out; and the clock is of no help here.
#[test]
fn with_async_durability_no_fence_is_given_out_twice() {
    let mut machine = match Powered::new(&["--durability=async"]) {
        Ok(machine) => machine,
        Err(why) => return skip(&why),
    };
    let mut highest = {
        let daemon = machine.start();
        daemon.connect().lock("k", "0").token_fence() + (1 << 50)
    };
    reserve_fences(&machine.mount.path("data"), highest);
    for life in 0..5 {
        let daemon = machine.start();
        let fence = daemon
            .connect()
            .lock(&format!("k{life}"), "0")
            .token_fence();
        assert!(fence > highest, "{fence} after {highest}");
        highest = fence;
        machine.bring_down(daemon);
    }
}
