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
