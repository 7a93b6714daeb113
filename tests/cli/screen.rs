//! `latch top`: what is on the screen, and that the screen is as it was before on every way out.

use crate::latch::latch;
use crate::terminal::{CTRL_C, Terminal};
use crate::vocabulary::Daemon;

const BEGIN: &str = "\x1b[?1049h";
const END: &str = "\x1b[?1049l";

fn top(daemon: &Daemon) -> Terminal {
    let mut command = latch(&["top"]);
    command.env("LATCH_SERVER", daemon.address().to_string());
    let mut terminal = Terminal::start(&command);
    terminal.expect(BEGIN);
    terminal
}

#[test]
fn queues_holders_and_rates_are_shown_live() {
    let daemon = Daemon::start(&[]);
    let mut holder = daemon.connect();
    holder.ask("hello _ name=alice@db1");
    holder.lock("nightly", "0 60");
    holder.lock("quiet", "0 60");
    let mut waiter = daemon.connect();
    waiter.put("l nightly 60");
    holder.wait_for_waiters("nightly", 1);
    let mut terminal = top(&daemon);
    terminal.expect("Longest waits");
    terminal.expect("nightly");
    terminal.expect("Held");
    terminal.expect("alice@db1");
    terminal.expect("grants 0/s");
    holder.lock("another", "0 60");
    terminal.expect("another");
    terminal.type_in("/");
    terminal.expect("/▏");
    terminal.type_in("quie");
    terminal.expect("/quie▏");
    terminal.type_in("\r");
    terminal.expect("only quie");
    terminal.expect("latch top");
    let page = terminal.expect("only quie");
    assert!(
        page.contains("quiet") && !page.contains("nightly"),
        "{page:?}"
    );
    terminal.type_in("q");
    assert_eq!(terminal.code(), Some(0));
    assert!(terminal.all().contains(END));
}

#[test]
fn the_screen_is_as_before_on_every_way_out() {
    let daemon = Daemon::start(&[]);
    for how in ["q", CTRL_C] {
        let mut terminal = Terminal::shell(&daemon);
        terminal.run("stty -a > /tmp/latch-before-$$");
        terminal.type_in("latch top\n");
        terminal.expect("q: quit");
        terminal.type_in(how);
        terminal.expect(END);
        terminal.expect("$ ");
        let compare =
            "stty -a | diff - /tmp/latch-before-$$ && echo sa''me; rm /tmp/latch-before-$$";
        let said = terminal.run(compare);
        assert!(said.contains("same"), "{said:?}");
    }
    let mut terminal = Terminal::shell(&daemon);
    terminal.type_in("latch top\n");
    terminal.expect("q: quit");
    terminal.type_in("\x1a");
    terminal.expect(END);
    terminal.expect("Stopped");
    terminal.type_in("fg\n");
    terminal.expect(BEGIN);
    terminal.type_in("q");
    terminal.expect(END);
}

/// A shell with the settings of its terminal noted, to be compared by [`expect_same_settings`].
fn shell_with_noted_settings(daemon: &Daemon) -> Terminal {
    let mut terminal = Terminal::shell(daemon);
    terminal.run("before=$(stty -a)");
    terminal.expect("$ ");
    terminal
}

#[track_caller]
fn expect_same_settings(terminal: &mut Terminal) {
    terminal.expect(END);
    terminal.expect("$ ");
    let said = terminal.run("test \"$before\" = \"$(stty -a)\" && echo sa''me");
    assert!(said.contains("same"), "{said:?}");
}

const STOPPED: &str = "until jobs | grep -q Stopped; do sleep 0.05; done";

#[test]
fn top_in_the_background_stops_until_it_is_in_the_foreground() {
    let daemon = Daemon::start(&[]);
    let mut terminal = shell_with_noted_settings(&daemon);
    terminal.type_in("latch top &\n");
    let shown = terminal.run(STOPPED);
    assert!(!shown.contains(BEGIN), "{shown:?}");
    // Still in the background, so it stops again.
    terminal.type_in("bg\n");
    let shown = terminal.run(STOPPED);
    assert!(!shown.contains(BEGIN), "{shown:?}");
    terminal.type_in("fg\n");
    terminal.expect(BEGIN);
    terminal.expect("q: quit");
    terminal.type_in("q");
    expect_same_settings(&mut terminal);
}

#[test]
fn top_that_is_suspended_and_resumed_leaves_the_terminal_as_it_was() {
    let daemon = Daemon::start(&[]);
    let mut terminal = shell_with_noted_settings(&daemon);
    terminal.type_in("latch top\n");
    terminal.expect("q: quit");
    for _ in 0..2 {
        terminal.type_in("\x1a");
        expect_same_settings(&mut terminal);
        terminal.type_in("fg\n");
        terminal.expect(BEGIN);
        terminal.expect("q: quit");
    }
    terminal.type_in("\x1a");
    expect_same_settings(&mut terminal);
    terminal.type_in("bg\n");
    terminal.run(STOPPED);
    // The settings that are given back are those that the shell had at the last `fg`.
    terminal.run("stty -ixon; before=$(stty -a)");
    terminal.expect("$ ");
    terminal.type_in("fg\n");
    terminal.expect(BEGIN);
    terminal.expect("q: quit");
    terminal.type_in("q");
    expect_same_settings(&mut terminal);
}

/// SIGSTOP cannot be heard, so the shell finds the terminal as `latch top` has set it.
#[test]
fn top_that_was_stopped_without_notice_sets_the_terminal_again() {
    let daemon = Daemon::start(&[]);
    let mut terminal = shell_with_noted_settings(&daemon);
    terminal.type_in("sh -c 'echo \"[$$]\"; exec latch top'\n");
    terminal.expect("\n[");
    let pid = terminal.expect("]").trim_end_matches(']').parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    terminal.expect("q: quit");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    terminal.expect("Stopped");
    terminal.type_in("fg\n");
    terminal.expect(BEGIN);
    terminal.expect("q: quit");
    terminal.type_in("q");
    expect_same_settings(&mut terminal);
}

#[test]
fn top_in_the_background_can_be_ended() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::shell(&daemon);
    terminal.type_in("latch top &\n");
    terminal.run(STOPPED);
    terminal.type_in("kill %1\n");
    // `wait` does not wait if the shell has not heard yet that the job is continued.
    terminal.run("while jobs | grep -Eq 'Stopped|Running'; do sleep 0.05; done");
    let shown = terminal.run("jobs -l");
    assert!(!shown.contains("Stopped"), "{shown:?}");
}

#[test]
fn a_server_that_is_gone_is_told_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let daemon = Daemon::start_at(&socket, &[]);
    let mut command = latch(&["top"]);
    command.env("LATCH_SERVER", format!("unix:{}", socket.display()));
    let mut terminal = Terminal::start(&command);
    terminal.expect("connections");
    drop(daemon);
    terminal.expect("Is latchd running there?");
    let _daemon = Daemon::start_at(&socket, &[]);
    terminal.expect("grants");
    terminal.type_in("q");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn without_a_terminal_there_is_nothing_to_be_seen() {
    let daemon = Daemon::start(&[]);
    let mut command = std::process::Command::new("setsid"); // and with it no terminal at all
    command.args(["--wait", crate::latch::program(), "top"]);
    command.env("LATCH_SERVER", daemon.address().to_string());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(66), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("latch stats"));
}
