//! No room: changes are refused and what makes room goes on, until there is room again.

use crate::durability::directory::{Directory, epoch, holder, kill};
use crate::durability::mounts::Mount;
use crate::vocabulary::{Client, Daemon, Grant, refusal};

const FULL: &str = "error_storage";

/// What is there when the disk is full.
struct Filled {
    /// Its holder stays connected.
    holder: Client,
    kept: Grant,
    released: Grant,
    /// How many values were acknowledged.
    values: usize,
}

/// Stores values until there is no room, and tries what must go on then.
#[track_caller]
fn fill(daemon: &Daemon) -> Filled {
    let mut client = daemon.connect();
    epoch(&mut client);
    let kept = client.lock("kept", "0 600");
    let released = client.lock("released", "0 600");
    assert_eq!(client.ask("incr c 5"), "ok 5");
    assert_eq!(client.ask("rpush l a"), "ok 1");
    let value = "v".repeat(10_000);
    let mut values = 0;
    loop {
        client.raw(format!("kset\nv{values}\n{value}\n"));
        let answer = client.line();
        if answer == FULL {
            break;
        }
        assert_eq!(answer, "ok");
        values += 1;
        assert!(values < 10_000, "there is always room");
    }
    daemon.wait_for_log("full");
    for change in [
        "l other 0",
        "sl pool 0 3",
        "kset w v",
        "rpush l b",
        "incr c 1",
        "cset c 1",
        "e place",
    ] {
        assert_eq!(client.ask(change), FULL, "{change}");
    }
    assert_eq!(client.ask("ping _ _"), "ok");
    assert_eq!(client.ask("get c _"), "ok 5");
    assert_eq!(client.ask("kget v0 _"), format!("ok {value}"));
    assert_eq!(holder(&mut client, "kept"), Some(kept.token_fence()));
    let renewed = client.ask(&format!("n kept {} 600", kept.token));
    assert_eq!(renewed, format!("ok 600 {}", kept.token_fence()));
    client.release("released", &released);
    assert_eq!(client.ask("lpop l _"), "ok a");
    assert_eq!(client.ask("kdel v0 _"), "ok");
    Filled {
        holder: client,
        kept,
        released,
        values,
    }
}

/// Everything that was acknowledged is there, however the daemon ended.
#[track_caller]
fn check(client: &mut Client, filled: &Filled) {
    assert_eq!(holder(client, "kept"), Some(filled.kept.token_fence()));
    assert_eq!(holder(client, "released"), None);
    assert_eq!(client.ask("get c _"), "ok 5");
    assert_eq!(client.ask("llen l _"), "ok 0");
    assert_eq!(client.ask("kget v0 _"), "nil");
    for number in 1..filled.values {
        let answer = client.ask(&format!("kget v{number} _"));
        assert!(answer.starts_with("ok vvv"), "v{number}: {answer:.20}");
    }
    assert_ne!(filled.kept.token, filled.released.token);
}

/// Asks until there is room: it is looked for every 250 ms.
#[track_caller]
fn wait_for_room(daemon: &Daemon, filled: &mut Filled) {
    daemon.wait_for_log("there is room on the disk again");
    let client = &mut filled.holder;
    while client.ask("kset w v") == FULL {}
    assert_eq!(client.ask("rpush m b"), "ok 1");
    client.lock("other", "0 600");
}

/// A disk with room for a small segment and for no second one, because there is ballast on it.
fn small_disk() -> Option<Mount> {
    match Mount::tmpfs("24m") {
        Ok(mount) => {
            mount.shell("head -c 22m /dev/zero >\"$0/ballast\"");
            Some(mount)
        }
        Err(why) => {
            crate::durability::skip("a tmpfs in a namespace", &why);
            None
        }
    }
}

#[test]
fn what_was_acknowledged_on_a_full_disk_survives_a_kill() {
    let Some(mount) = small_disk() else { return };
    let daemon = mount.start(&[]);
    let filled = fill(&daemon);
    kill(daemon);
    // The next life needs a segment of its own; a smaller one will do.
    let daemon = mount.start(&[]);
    check(&mut daemon.connect(), &filled);
}

/// It is tried again, but not as often as room is looked for, and nobody reads the same every time.
#[test]
fn a_compaction_without_room_is_told_of_once() {
    let Some(mount) = small_disk() else { return };
    let daemon = mount.start(&[]);
    assert_eq!(daemon.connect().ask("kset w v"), "ok");
    kill(daemon);
    let daemon = mount.start(&[]);
    mount.shell("cat /dev/zero >\"$0/more\" 2>/dev/null; true");
    let mut filled = fill(&daemon);
    let told = "cannot be compacted";
    daemon.wait_for_log(told);
    // Eight times 250 ms.
    assert_eq!(filled.holder.ask("blpop nothing 2"), "nil");
    let log = daemon.log();
    let lines = log.iter().filter(|line| line.contains(told));
    assert_eq!(lines.count(), 1, "{log:#?}");
}

#[test]
fn without_room_to_begin_it_ends_and_says_so() {
    let Some(mount) = small_disk() else { return };
    mount.shell("cat /dev/zero >\"$0/more\" 2>/dev/null; true");
    let said = refusal(74, mount.latchd(&[]));
    assert!(said.contains("make room"), "{said}");
    mount.shell("rm \"$0/more\"");
    assert_eq!(mount.start(&[]).connect().ask("kset w v"), "ok");
}

#[test]
fn a_full_disk_refuses_changes_until_there_is_room_again() {
    let Some(mount) = small_disk() else { return };
    let daemon = mount.start(&[]);
    let mut filled = fill(&daemon);
    std::fs::remove_file(mount.path("ballast")).unwrap();
    wait_for_room(&daemon, &mut filled);
    kill(daemon);
    let daemon = mount.start(&[]);
    let mut client = daemon.connect();
    check(&mut client, &filled);
    assert_eq!(client.ask("kget w _"), "ok v");
    assert!(holder(&mut client, "other").is_some());
}

/// The first segment takes 8 MiB of 13. When it is used there are 5 left: not enough for another
/// one of its length, and enough for a shorter one.
#[test]
fn a_nearly_full_disk_refuses_nothing_while_there_is_room() {
    let mount = match Mount::tmpfs("13m") {
        Ok(mount) => mount,
        Err(why) => return crate::durability::skip("a tmpfs in a namespace", &why),
    };
    let daemon = mount.start(&["--http-port=0"]);
    let mut http = daemon.http();
    assert_eq!(http.get("/readyz").json()["status"], "ok");
    let filled = fill(&daemon);
    let stored = filled.values * 10_000;
    assert!(stored > 9_000_000, "{stored} bytes were stored");
    let answer = http.get("/readyz");
    assert_eq!(answer.status, 200, "releases and renewals go on");
    let health = answer.json();
    assert_eq!(health["status"], "degraded", "{health}");
    assert!(health["missing_bytes"].as_u64().unwrap() > 0, "{health}");
    let mut filled = filled;
    mount.shell("mount -o remount,size=64m \"$0\"");
    wait_for_room(&daemon, &mut filled);
    assert_eq!(http.get("/readyz").json()["status"], "ok");
    kill(daemon);
    check(&mut mount.start(&[]).connect(), &filled);
}

/// Segments become as short as the limit says, and SIGXFSZ does not end the daemon.
#[test]
fn a_limit_on_file_sizes_makes_segments_shorter() {
    const LIMIT_BYTES: u64 = 1 << 20;
    let directory = Directory::new();
    let mut command = std::process::Command::new("sh");
    let script = "ulimit -S -f 2048 && exec \"$@\""; // of 512 bytes each
    let latchd = directory.command(&["--http-port=off"]);
    command.args(["-c", script, "sh"]).arg(latchd.get_program());
    command.args(latchd.get_args());
    let daemon = Daemon::serve(command);
    let value = "w".repeat(10_000);
    let mut client = daemon.connect();
    let kept = client.lock("kept", "0 600");
    for number in 0..300 {
        client.raw(format!("kset\nw{number}\n{value}\n"));
        assert_eq!(client.line(), "ok");
    }
    let files = directory.files().into_values();
    let longest = files.map(|bytes| bytes.len()).max();
    assert!(longest.unwrap() as u64 <= LIMIT_BYTES);
    assert!(directory.segments().len() > 2);
    kill(daemon);
    let daemon = directory.start(&[]);
    let mut client = daemon.connect();
    assert_eq!(holder(&mut client, "kept"), Some(kept.token_fence()));
    assert_eq!(client.ask("kget w299 _"), format!("ok {value}"));
}
