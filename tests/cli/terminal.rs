//! On a terminal: whose it is, Ctrl-C, Ctrl-Z, the waiting line.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use rustix::net::sockopt::socket_peercred;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::latch::{clean, expect, latch, plain, program, wait_until};
use crate::vocabulary::{Daemon, PATIENCE};

pub(crate) const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// A pseudo-terminal and a program on it. The program leads a session of its own, as after a login.
pub(crate) struct Terminal {
    keyboard: File,
    shown: Arc<Shown>,
    child: Child,
    /// How much was expected already.
    seen: usize,
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shown {
    text: Mutex<(String, bool)>,
    changed: Condvar,
}

impl Terminal {
    /// Runs this on a terminal of 100 columns.
    #[track_caller]
    pub(crate) fn start(command: &Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize {
            ws_row: 30,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let open = || {
            let path = name.to_str().unwrap();
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap()
        };
        // setsid(1) does what would need code between fork and exec.
        let mut inside = Command::new("setsid");
        clean(&mut inside);
        inside
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside.env("TERM", "xterm").env("PS1", "$ ");
        inside.stdin(open()).stdout(open()).stderr(open());
        let child = inside.spawn().unwrap();
        drop(inside); // and with it our copies of the terminal
        let keyboard = File::from(master);
        let shown = Arc::new(Shown::default());
        let reader = thread::spawn({
            let (mut screen, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&shown));
            move || {
                let mut bytes = [0; 4096];
                // When the last one has left the terminal there is an error to be read.
                while let Ok(count @ 1..) = screen.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..count]);
                    shown.text.lock().unwrap().0.push_str(&text);
                    shown.changed.notify_all();
                }
                shown.text.lock().unwrap().1 = true;
                shown.changed.notify_all();
            }
        });
        Self {
            keyboard,
            shown,
            child,
            seen: 0,
            reader: Some(reader),
        }
    }

    /// An interactive shell that finds the daemon, and `latch`.
    #[track_caller]
    pub(crate) fn shell(daemon: &Daemon) -> Self {
        let mut shell = plain("bash");
        shell.args(["--noprofile", "--norc", "--noediting", "-i"]);
        shell.env("LATCH_SERVER", daemon.address().to_string());
        let dir = Path::new(program()).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap();
        let mut dirs = vec![dir.to_owned()];
        dirs.extend(std::env::split_paths(&path));
        shell.env("PATH", std::env::join_paths(dirs).unwrap());
        let mut terminal = Self::start(&shell);
        terminal.expect("$ ");
        terminal
    }

    pub(crate) fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until this is shown, behind what was expected before. Returns all up to it.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) -> String {
        let from = self.seen;
        let found = |shown: &str| shown[from..].find(text).map(|at| from + at + text.len());
        let guard = self.shown.text.lock().unwrap();
        let missing = |it: &mut (String, bool)| found(&it.0).is_none() && !it.1;
        let waited = self
            .shown
            .changed
            .wait_timeout_while(guard, PATIENCE, missing);
        let (guard, _) = waited.unwrap();
        let shown = guard.0.clone();
        drop(guard);
        let Some(end) = found(&shown) else {
            panic!("{text:?} is not in {:?}", &shown[from..]);
        };
        self.seen = end;
        shown[from..end].to_owned()
    }

    /// Runs a line in a shell and waits until the shell asks for the next one.
    #[track_caller]
    pub(crate) fn run(&mut self, line: &str) -> String {
        // In two parts, so that the echo of what is typed is not taken for it.
        self.type_in(&format!("{line}; echo en''d=$?\n"));
        self.expect("end=")
    }

    #[track_caller]
    pub(crate) fn code(&mut self) -> Option<i32> {
        crate::latch::wait_gone(rustix::process::Pid::from_child(&self.child));
        self.child.wait().unwrap().code()
    }

    #[track_caller]
    fn signal(&mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        crate::latch::wait_gone(rustix::process::Pid::from_child(&self.child));
        self.child.wait().unwrap().signal()
    }

    /// Everything that was shown, once nobody is left on it.
    pub(crate) fn all(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.shown.text.lock().unwrap().0.clone()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the terminal: {:?}", self.shown.text.lock().unwrap().0);
        }
    }
}

fn latch_on(daemon: &Daemon, words: &[&str]) -> Command {
    let mut command = latch(words);
    command.env("LATCH_SERVER", daemon.address().to_string());
    command.stdin(Stdio::inherit());
    command
}

#[test]
fn the_command_has_the_terminal() {
    let daemon = Daemon::start(&[]);
    let script = "test -t 0 && test -t 1 && echo all; read line < /dev/tty; echo \"<$line>\"";
    let mut terminal = Terminal::start(&latch_on(&daemon, &["run", "k", "-c", script]));
    terminal.expect("all");
    terminal.type_in("typed\n");
    terminal.expect("<typed>");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn ctrl_c_ends_the_command_and_us() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::start(&latch_on(
        &daemon,
        &["run", "k", "-c", "echo go; exec sleep 1000"],
    ));
    terminal.expect("go");
    terminal.type_in(CTRL_C);
    assert_eq!(terminal.signal(), Some(2), "as it would be without us");
    expect(&daemon, 1, &["who", "k"]);
}

#[test]
fn ctrl_c_is_130_in_a_shell_and_a_command_may_want_it_otherwise() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::shell(&daemon);
    terminal.type_in("latch run k -c 'echo g''o; exec sleep 1000'\n");
    terminal.expect("go");
    terminal.type_in(CTRL_C);
    terminal.expect("$ ");
    terminal.run("echo \"<$?>\"");
    assert!(terminal_shows(&terminal, "<130>"));
    terminal.type_in(
        "latch run k -c 'trap \"echo no; exit 3\" INT; echo g''o; while :; do sleep 0.02; done'\n",
    );
    terminal.expect("go");
    terminal.type_in(CTRL_C);
    terminal.expect("no");
    terminal.run("echo \"<$?>\"");
    assert!(terminal_shows(&terminal, "<3>"));
}

fn terminal_shows(terminal: &Terminal, text: &str) -> bool {
    terminal.shown.text.lock().unwrap().0.contains(text)
}

/// A script is in the same process group as we are, and hears nothing of a Ctrl-C that the command has got.
#[test]
fn ctrl_c_ends_the_script_around_it() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::shell(&daemon);
    terminal.type_in(
        "bash -c 'for i in 1 2 3; do latch run k -c \"echo rou''nd; exec sleep 1000\"; done'\n",
    );
    terminal.expect("round");
    terminal.type_in(CTRL_C);
    let rest = terminal.expect("$ ");
    assert!(!rest.contains("round"), "{rest:?}");
}

#[test]
fn ctrl_z_stops_both_and_fg_continues_both() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::shell(&daemon);
    let mut client = daemon.connect();
    terminal
        .type_in("latch run --lease 1s k -c 'echo g''o; read line; echo \"<$line>\"; exit 4'\n");
    terminal.expect("go");
    terminal.type_in(CTRL_Z);
    terminal.expect("Stopped");
    // flock(1) would keep its lock, and so do we: for longer than the lease.
    let who = |client: &mut crate::vocabulary::Client| -> serde_json::Value {
        serde_json::from_str(&client.ask("who k _")[3..]).unwrap()
    };
    let fence = who(&mut client)["holders"][0]["fence"].clone();
    assert!(fence.is_u64());
    wait_until("it is held for longer than its lease", || {
        let who = who(&mut client);
        assert_eq!(who["holders"][0]["fence"], fence, "{who}");
        who["holders"][0]["since_s"].as_f64().unwrap() > 2.5
    });
    terminal.type_in("fg\n");
    terminal.type_in("typed\n");
    terminal.expect("<typed>");
    terminal.run("echo \"<$?>\"");
    assert!(terminal_shows(&terminal, "<4>"));
    assert_eq!(who(&mut client)["holder_count"], 0);
}

#[test]
fn bg_continues_it_in_the_background() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::shell(&daemon);
    let dir = tempfile::tempdir().unwrap();
    let sign = dir.path().join("sign");
    // Without starting anything: a shell whose child is stopped before it has become a program cannot be stopped itself.
    let wait = format!("while ! test -e {}; do :; done", sign.display());
    terminal.type_in(&format!("latch run k -c 'echo g''o; {wait}; exit 4'\n"));
    terminal.expect("go");
    terminal.type_in(CTRL_Z);
    terminal.expect("Stopped");
    terminal.type_in("bg\n");
    std::fs::write(&sign, "").unwrap();
    terminal.run("wait %1; echo \"<$?>\"");
    assert!(terminal_shows(&terminal, "<4>"));
}

#[test]
fn a_lock_that_was_lost_meanwhile_ends_what_was_stopped() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::shell(&daemon);
    terminal.type_in(
        "latch run k -c 'trap \"echo awa''ke\" CONT TERM; echo g''o; read line; echo awa''ke'\n",
    );
    terminal.expect("go");
    terminal.type_in(CTRL_Z);
    terminal.expect("Stopped");
    expect(&daemon, 0, &["break", "k", "--all"]);
    terminal.type_in("fg\n");
    terminal.expect("was lost");
    terminal.run("echo \"<$?>\"");
    assert!(terminal_shows(&terminal, "<79>"));
    assert!(
        !terminal_shows(&terminal, "awake"),
        "it has not run for a moment"
    );
}

/// Nobody but the warden can ask for the bytes meanwhile: the server closes connections that are silent.
#[test]
fn bytes_stay_locked_while_the_command_is_stopped() {
    let daemon = Daemon::start(&["--read-timeout", "1"]);
    let mut terminal = Terminal::shell(&daemon);
    terminal.type_in(
        "latch range lock --ttl 3s f 0 10 -- sh -c 'echo g''o; read line; echo \"<$line>\"; exit 4'\n",
    );
    terminal.expect("go");
    terminal.type_in(CTRL_Z);
    terminal.expect("Stopped");
    wait_until("that is longer than they are kept for nobody", || {
        let list = expect(&daemon, 0, &["range", "list", "--json", "f"]);
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        assert_eq!(list["lock_count"], 1, "{list}");
        list["locks"][0]["since_ms"].as_u64().unwrap() > 7_000
    });
    terminal.type_in("fg\n");
    terminal.type_in("typed\n");
    terminal.expect("<typed>");
    terminal.run("echo \"<$?>\"");
    assert!(terminal_shows(&terminal, "<4>"));
    expect(&daemon, 0, &["range", "test", "f", "0", "10"]);
}

/// Starts a daemon with these files, which `latch` in the terminal finds at the socket.
fn durable(dir: &Path) -> Daemon {
    let data = dir.join("data").to_str().unwrap().to_owned();
    Daemon::start_at(&dir.join("s"), &["--data-dir", &data])
}

/// Stands in for the daemon at its socket, and hangs up on everybody, until this process has come.
fn hang_up_until(dir: &Path, pid: i32) {
    let socket = dir.join("s");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    for stream in listener.incoming() {
        let peer = socket_peercred(stream.unwrap()).unwrap();
        if peer.pid.as_raw_pid() == pid {
            break;
        }
    }
    std::fs::remove_file(&socket).unwrap();
}

/// The command waits, stopped, until the server can be asked whether the lock is still ours, as long as the lease lasts.
#[test]
fn a_server_that_is_away_for_a_moment_when_it_is_continued_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = durable(dir.path());
    let mut terminal = Terminal::shell(&daemon);
    let server = dir.path().join("s");
    terminal.run(&format!("export LATCH_SERVER=unix:{}", server.display()));
    terminal.expect("$ "); // or it may come behind what is typed next
    terminal.type_in(
        "latch run --lease 60s k -c 'echo \"[$PPID]\"; read line; echo \"<$line>\"; exit 4'\n",
    );
    terminal.expect("\n[");
    let pid = terminal.expect("]").trim_end_matches(']').parse().unwrap();
    terminal.type_in(CTRL_Z);
    terminal.expect("Stopped");
    drop(daemon); // kill -9
    terminal.type_in("fg\n");
    hang_up_until(dir.path(), pid);
    terminal.type_in(CTRL_Z); // not now, then
    terminal.expect("Stopped");
    terminal.type_in("fg\n");
    hang_up_until(dir.path(), pid);
    let daemon = durable(dir.path());
    terminal.type_in("typed\n");
    terminal.expect("<typed>");
    terminal.run("echo \"<$?>\"");
    assert!(terminal_shows(&terminal, "<4>"));
    expect(&daemon, 1, &["who", "k"]);
}

/// And if it stays away the command ends with the lease, without having run for a moment.
#[test]
fn a_server_that_stays_away_ends_what_was_stopped_when_the_lease_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = durable(dir.path());
    let mut terminal = Terminal::shell(&daemon);
    terminal.type_in(
        "latch run --lease 2s k -c 'trap \"echo awa''ke\" CONT TERM; echo g''o; read line; echo awa''ke'\n",
    );
    terminal.expect("go");
    terminal.type_in(CTRL_Z);
    terminal.expect("Stopped");
    drop(daemon);
    terminal.type_in("fg\n");
    terminal.expect("could not be renewed");
    terminal.run("echo \"<$?>\"");
    assert!(terminal_shows(&terminal, "<79>"));
    assert!(
        !terminal_shows(&terminal, "awake"),
        "it has not run for a moment"
    );
}

/// Nor is it told as a loss of the lock if somebody else kills the command meanwhile.
#[test]
fn what_somebody_kills_while_it_is_to_be_continued_was_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = durable(dir.path());
    let mut terminal = Terminal::shell(&daemon);
    let server = dir.path().join("s");
    terminal.run(&format!("export LATCH_SERVER=unix:{}", server.display()));
    terminal.expect("$ ");
    terminal.type_in("latch run --lease 60s k -c 'echo \"[$PPID]$$.\"; read line'\n");
    terminal.expect("\n[");
    let pid = terminal.expect("]").trim_end_matches(']').parse().unwrap();
    let command = terminal.expect(".").trim_end_matches('.').parse().unwrap();
    terminal.type_in(CTRL_Z);
    terminal.expect("Stopped");
    drop(daemon);
    terminal.type_in("fg\n");
    hang_up_until(dir.path(), pid);
    let command = rustix::process::Pid::from_raw(command).unwrap();
    rustix::process::kill_process(command, rustix::process::Signal::KILL).unwrap();
    terminal.run("echo \"<$?>\"");
    assert!(terminal_shows(&terminal, "<137>"));
}

#[test]
fn a_background_job_that_reads_is_stopped_and_can_be_had_back() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::shell(&daemon);
    terminal.type_in("latch run k -c 'read line < /dev/tty; echo \"<$line>\"; exit 4' &\n");
    terminal.run("until jobs | grep -q Stopped; do sleep 0.05; done");
    terminal.type_in("fg\n");
    terminal.type_in("typed\n");
    terminal.expect("<typed>");
    terminal.run("echo \"<$?>\"");
    assert!(terminal_shows(&terminal, "<4>"));
}

#[test]
fn a_pipeline_works_and_its_other_end_may_have_the_terminal() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::shell(&daemon);
    // What stands behind the pipe reads from the terminal, as a pager does.
    terminal
        .type_in("latch run k -- echo from''latch | (cat; read key < /dev/tty; echo \"<$key>\")\n");
    terminal.expect("fromlatch");
    terminal.type_in("x\n");
    terminal.expect("<x>");
    // And a command in a pipeline that wants to read gets it.
    terminal.type_in("latch run k -c 'read line; echo \"[$line]\"' | cat\n");
    terminal.type_in("typed\n");
    terminal.expect("[typed]");
    terminal.type_in("latch run k -c 'echo g''o >&2; exec sleep 1000' | cat\n");
    terminal.expect("go");
    terminal.type_in(CTRL_C);
    terminal.run("echo \"<${PIPESTATUS[0]}>\"");
    expect(&daemon, 1, &["who", "k"]);
}

/// Nobody is there who could say `fg`.
#[test]
fn ctrl_z_without_a_shell_stops_nothing() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::start(&latch_on(
        &daemon,
        &["run", "k", "-c", "echo go; read line; exit 5"],
    ));
    terminal.expect("go");
    terminal.type_in(CTRL_Z);
    terminal.type_in("typed\n");
    assert_eq!(terminal.code(), Some(5));
}

#[test]
fn a_line_says_who_has_it_and_where_we_are_and_is_gone_afterwards() {
    let daemon = Daemon::start(&[]);
    let mut holder = daemon.connect();
    holder.ask("hello _ name=alice@db1:4711");
    let grant = holder.lock("k", "0 60");
    let mut first = daemon.connect();
    first.put("l k 60");
    holder.wait_for_waiters("k", 1);
    let mut terminal = Terminal::start(&latch_on(&daemon, &["run", "k", "--", "echo", "mine"]));
    terminal.expect("'k' is held by alice@db1:4711 for ");
    terminal.expect("; you are number 2 of 2");
    drop(first);
    terminal.expect("; you are next");
    holder.release("k", &grant);
    let end = terminal.expect("mine");
    assert_eq!(terminal.code(), Some(0));
    assert!(end.ends_with("\r\x1b[Kmine"), "the line is gone: {end:?}");
}

#[test]
fn the_line_says_so_if_the_server_does_not_answer() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.lock("k", "0 3600");
    let mut terminal = Terminal::start(&latch_on(&daemon, &["run", "k", "--", "true"]));
    terminal.expect("held by");
    daemon.freeze();
    let server = daemon.address().to_string();
    terminal.expect(&format!("{server} does not answer, and is asked again"));
    daemon.thaw();
    terminal.expect("held by");
}

#[test]
fn bytes_that_are_waited_for_are_shown_with_whoever_has_them() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.ask("attach gw/7 0 s3cret");
    assert_eq!(client.ask("rangelock f ex 0 100 0"), "ok");
    let words = ["range", "lock", "f", "0", "10", "--", "echo", "got", "it"];
    let mut terminal = Terminal::start(&latch_on(&daemon, &words));
    terminal.expect("bytes 0 to 9 of 'f' are held by gw/7");
    assert_eq!(client.ask("rangeunlock f 0 0"), "ok");
    terminal.expect("got it");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn ctrl_c_while_waiting_clears_the_line_and_leaves_the_queue() {
    let daemon = Daemon::start(&[]);
    let mut holder = daemon.connect();
    holder.lock("k", "0 60");
    let mut terminal = Terminal::start(&latch_on(&daemon, &["run", "k", "--", "true"]));
    terminal.expect("held by");
    terminal.type_in(CTRL_C);
    assert_eq!(terminal.signal(), Some(2));
    assert!(terminal.all().ends_with("\r\x1b[K"), "{:?}", terminal.all());
    holder.wait_for_waiters("k", 0);
}

#[test]
fn a_lock_that_is_free_is_had_without_a_word() {
    let daemon = Daemon::start(&[]);
    let mut terminal = Terminal::start(&latch_on(&daemon, &["run", "k", "--", "true"]));
    assert_eq!(terminal.code(), Some(0));
    assert_eq!(terminal.all(), "");
}

#[test]
fn what_others_write_cannot_reach_the_terminal() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.raw(b"l\nk\x1b[31mred\n0 60\n");
    client.line();
    client.raw(b"kset\nv\n\x1b]0;title\x07\n");
    client.expect("ok");
    for words in [&["ls"][..], &["get", "v"], &["who", "k\x1b[31mred"]] {
        let mut terminal = Terminal::start(&latch_on(&daemon, words));
        terminal.code();
        let shown = terminal.all();
        assert!(!shown.contains("\x1b[31mred"), "{words:?}: {shown:?}");
        assert!(!shown.contains("\x1b]0"), "{words:?}: {shown:?}");
        let is_missing = words[0] != "who" && !shown.contains("\\u{1b}");
        assert!(!is_missing, "{words:?}: {shown:?}");
    }
}

/// Characters that a terminal obeys, and ones that make text look like another text.
#[test]
fn nothing_in_json_can_deceive_a_terminal_either() {
    const DECEIVING: [char; 6] = [
        '\u{9b}',
        '\u{61c}',
        '\u{202e}',
        '\u{2067}',
        '\u{2028}',
        '\u{e0041}',
    ];
    let key = format!("k{}", DECEIVING.iter().collect::<String>());
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.raw(format!("l\n{key}\n0 60\n"));
    client.line();
    client.raw(format!("kset\nv{key}\n{key}\n"));
    client.expect("ok");
    client.ask("attach gw/7 0 s3cret");
    client.raw(format!("rangelock\nf\nex 0 100 0 {key}\n"));
    client.line();
    for words in [
        &["ls"][..],
        &["ls", "--all"],
        &["who", &key],
        &["get", &format!("v{key}")],
        &["stats"],
        &["range", "list", "f"],
        &["--json", "ls"],
        &["--json", "ls", "--all"],
        &["--json", "who", &key],
        &["--json", "get", &format!("v{key}")],
        &["--json", "stats"],
        &["--json", "range", "list", "f"],
        &["--json", "acquire", "-n", &format!("a{key}")],
    ] {
        let mut terminal = Terminal::start(&latch_on(&daemon, words));
        assert_eq!(terminal.code(), Some(0), "{words:?}");
        let shown = terminal.all();
        assert!(!shown.contains(DECEIVING), "{words:?}: {shown:?}");
        if words[0] == "--json" {
            let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
            let is_there =
                read.to_string().contains(&key) || words[1] == "stats" || words[1] == "range";
            assert!(is_there, "it reads as it was: {shown}");
        }
    }
    for words in [
        &[&*key][..],
        &["ls", &format!("--{key}")],
        &["acquire", "--wait", &key, "k"],
    ] {
        let mut terminal = Terminal::start(&latch_on(&daemon, words));
        assert_eq!(terminal.code(), Some(64), "{words:?}");
        let shown = terminal.all();
        assert!(!shown.contains(DECEIVING), "{words:?}: {shown:?}");
        assert!(shown.contains("\\u{202e}"), "{words:?}: {shown:?}");
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.lock("k", "0 60");
    let shown = |change: &dyn Fn(&mut Command)| {
        let mut command = latch_on(&daemon, &["ls"]);
        change(&mut command);
        let mut terminal = Terminal::start(&command);
        assert_eq!(terminal.code(), Some(0));
        terminal.all()
    };
    assert!(shown(&|_| ()).contains("\x1b[1mKEY"));
    assert!(
        !shown(&|it| {
            it.env("NO_COLOR", "1");
        })
        .contains('\x1b')
    );
    assert!(
        shown(&|it| {
            it.env("NO_COLOR", "");
        })
        .contains('\x1b')
    );
}
