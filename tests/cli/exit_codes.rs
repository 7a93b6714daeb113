//! Every exit code that is promised, and what is said with it.

use std::fs;

use crate::latch::{Run, expect, latch, latch_at, said};
use crate::vocabulary::Daemon;

#[test]
fn the_exit_code_of_the_command_is_passed_on() {
    let daemon = Daemon::start(&[]);
    for code in [0, 1, 2, 42, 64, 79, 126, 255] {
        let exit = format!("exit {code}");
        expect(&daemon, code, &["run", "k", "--", "sh", "-c", &exit]);
        expect(&daemon, code, &["run", "k", "-c", &exit]);
    }
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("INT", 130), ("SEGV", 139)] {
        let kill = format!("kill -{signal} $$");
        expect(&daemon, code, &["run", "k", "-c", &kill]);
    }
}

#[test]
fn conflicts_are_1_or_what_was_asked_for() {
    let daemon = Daemon::start(&[]);
    let mut client = daemon.connect();
    client.lock("k", "0 60");
    let run = |options: &[&str]| {
        let words = [&["run"], options, &["k", "--", "true"]].concat();
        said(latch_at(&daemon, &words))
    };
    let tried = run(&["-n"]);
    assert_eq!((tried.code, tried.err.as_str()), (Some(1), ""), "{tried:?}");
    assert_eq!(run(&["-n", "-E", "42"]).code, Some(42));
    let waited = run(&["-w", "0.05"]);
    assert_eq!(waited.code, Some(1));
    assert!(waited.err.contains("'k' is held by"), "{waited:?}");
    assert_eq!(run(&["-w", "50ms", "-E", "0"]).code, Some(0));
    expect(&daemon, 1, &["acquire", "-n", "k"]);
    expect(&daemon, 3, &["acquire", "-n", "-E", "3", "k"]);
    expect(&daemon, 1, &["get", "nothing"]);
    expect(&daemon, 1, &["who", "nobody"]);
}

#[test]
fn a_wrong_command_line_is_64_and_says_what_to_do() {
    for (words, hint) in [
        (&["nonsense"][..], "unrecognized"),
        (&["nonsense"], "latch help"),
        (&["help", "nosuch"], "latch help"),
        (&["help", "rnu"], "latch run"),
        (&["run"], "KEY"),
        (&["run", "k"], "--"),
        (&["run", "k", "k", "--", "true"], "twice"),
        (
            &["run", "-n", "-w", "1", "k", "--", "true"],
            "cannot be used",
        ),
        (&["run", "--lease", "0", "k", "--", "true"], "30s"),
        (&["run", "--lease", "1x", "k", "--", "true"], "250ms"),
        (&["run", "--semaphore", "0", "k", "--", "true"], "semaphore"),
        (&["run", "-c", "true", "k", "--", "true"], "-c"),
        (&["run", "--serve", "x", "k", "--", "true"], "--server"),
        (&["run", "k", "a b", "--", "true"], "'a b' cannot be a key"),
        (&["get", "a b"], "'a b' cannot be a key"),
        (
            &["range", "lock", "a b", "0", "1", "--", "true"],
            "'a b' cannot be a key",
        ),
        (&["release", "k"], "LATCH_TOKEN"),
        (&["release", "k", "short"], "32"),
        (&["set", "k", "a\tb"], "tab"),
        (&["range", "lock", "f", "0", "1"], "--client"),
        (&["file"], "PATH"),
        (&["file", "a.lock"], "latch file"),
    ] {
        let daemon = Daemon::start(&[]);
        let said = said(latch_at(&daemon, words));
        assert_eq!(said.code, Some(64), "{words:?}: {said:?}");
        assert!(said.err.starts_with("latch: "), "{said:?}");
        assert!(said.err.contains(hint), "{words:?}: {said:?}");
    }
}

#[test]
fn what_cannot_be_opened_is_66() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("full"), "mine").unwrap();
    std::os::unix::fs::symlink(path("full"), path("link")).unwrap();
    for file in [path("none/x"), path("full"), path("link"), path("")] {
        let said = said(latch(&["file", &file, "--", "true"]));
        assert_eq!(said.code, Some(66), "{file}: {said:?}");
        assert!(said.err.starts_with("latch: "), "{said:?}");
    }
    assert_eq!(fs::read(path("full")).unwrap(), b"mine");
    let mut command = latch(&["ping"]);
    command.env("LATCH_AUTH_TOKEN_FILE", path("none"));
    assert_eq!(said(command).code, Some(66));
    fs::write(path("empty"), "\n").unwrap();
    let said = said(latch(&["ping", "--auth-token-file", &path("empty")]));
    assert_eq!(said.code, Some(66));
    assert!(said.err.contains("empty"), "{said:?}");
}

#[test]
fn no_server_is_69_and_says_where() {
    for server in ["127.0.0.1:1", "unix:/nonexistent/latchd.sock"] {
        for words in [
            &["run", "k", "--", "true"][..],
            &["ping"],
            &["ls"],
            &["get", "k"],
            &["watch", ">"],
            &["acquire", "k"],
            &["top"],
        ] {
            let mut command = latch(words);
            command.env("LATCH_SERVER", server);
            let said = said(command);
            assert_eq!(said.code, Some(69), "{words:?}: {said:?}");
            assert!(said.err.contains(server), "{said:?}");
            assert!(said.err.contains("LATCH_SERVER"), "{said:?}");
        }
    }
    // Somebody else answers there.
    let daemon = Daemon::start(&["--http-port", "0"]);
    let mut command = latch(&["ping"]);
    command.env("LATCH_SERVER", daemon.http_address().to_string());
    assert_eq!(said(command).code, Some(69));
}

#[test]
fn a_token_that_is_missing_or_wrong_is_77() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (dir.path().join("good"), dir.path().join("bad"));
    fs::write(&good, "sesame\n").unwrap();
    fs::write(&bad, "wrong").unwrap();
    let daemon = Daemon::start(&["--auth-token-file", good.to_str().unwrap()]);
    let run = ["run", "k", "--", "true"];
    let refused = said(latch_at(&daemon, &run));
    assert_eq!(refused.code, Some(77), "{refused:?}");
    assert!(refused.err.contains("LATCH_AUTH_TOKEN"), "{refused:?}");
    let code = |change: &dyn Fn(&mut std::process::Command)| {
        let mut command = latch_at(&daemon, &run);
        change(&mut command);
        said(command).code
    };
    assert_eq!(
        code(&|it| {
            it.env("LATCH_AUTH_TOKEN", "wrong");
        }),
        Some(77)
    );
    assert_eq!(
        code(&|it| {
            it.env("LATCH_AUTH_TOKEN", "sesame");
        }),
        Some(0)
    );
    assert_eq!(
        code(&|it| {
            it.env("LATCH_AUTH_TOKEN_FILE", &good);
        }),
        Some(0)
    );
    assert_eq!(
        code(&|it| {
            it.env("LATCH_AUTH_TOKEN_FILE", &bad);
        }),
        Some(77)
    );
    let flagged = |path: &std::path::Path| {
        let path = path.to_str().unwrap();
        let words = ["run", "--auth-token-file", path, "k", "--", "true"];
        let mut command = latch_at(&daemon, &words);
        command.env("LATCH_AUTH_TOKEN", "overruled");
        said(command).code
    };
    assert_eq!((flagged(&good), flagged(&bad)), (Some(0), Some(77)));
}

#[test]
fn what_the_server_refuses_is_75() {
    let daemon = Daemon::start(&["--max-waiters", "1"]);
    expect(&daemon, 0, &["run", "k", "--", "true"]);
    let said_of = |words: &[&str]| said(latch_at(&daemon, words));
    let other = said_of(&["run", "-s", "k", "--", "true"]);
    assert_eq!(other.code, Some(75), "{other:?}");
    assert!(other.err.contains("latch who"), "{other:?}");
    let slots = said_of(&["run", "--semaphore", "3", "k", "--", "true"]);
    assert_eq!(slots.code, Some(75), "{slots:?}");
    let mut holder = daemon.connect();
    holder.lock("k", "0 60");
    let mut waiter = daemon.connect();
    waiter.put("l k 60");
    holder.wait_for_waiters("k", 1);
    assert_eq!(said_of(&["run", "k", "--", "true"]).code, Some(75));
}

#[test]
fn a_command_that_cannot_be_run_is_126_or_127() {
    let daemon = Daemon::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plain");
    fs::write(&file, "no program").unwrap();
    let run = |name: &str| said(latch_at(&daemon, &["run", "k", "--", name]));
    let missing = run("no-such-command");
    assert_eq!(missing.code, Some(127), "{missing:?}");
    assert!(missing.err.contains("PATH"), "{missing:?}");
    let forbidden = run(file.to_str().unwrap());
    assert_eq!(forbidden.code, Some(126), "{forbidden:?}");
    assert!(forbidden.err.contains("chmod"), "{forbidden:?}");
    expect(&daemon, 1, &["who", "k"]);
}

#[test]
fn a_lock_that_was_lost_is_79() {
    let daemon = Daemon::start(&[]);
    let mut run = Run::start(latch_at(
        &daemon,
        &["run", "k", "-c", "echo; exec sleep 1000"],
    ));
    run.line();
    expect(&daemon, 0, &["break", "k", "--all"]);
    assert_eq!(run.code(), Some(79));
    let token = expect(&daemon, 0, &["acquire", "j"]);
    let token = token.split(' ').next().unwrap();
    expect(&daemon, 0, &["release", "j", token]);
    expect(&daemon, 79, &["release", "j", token]);
    expect(&daemon, 79, &["renew", "j", token]);
}

/// With no more than four descriptors there is none to wait with.
#[test]
fn what_goes_wrong_here_is_70() {
    let daemon = Daemon::start(&[]);
    let mut command = crate::latch::plain("sh");
    let script = "ulimit -n 4 && exec \"$0\" run k -- true";
    command.args(["-c", script, crate::latch::program()]);
    command.env("LATCH_SERVER", daemon.address().to_string());
    let said = said(command);
    assert_eq!(said.code, Some(70), "{said:?}");
    assert!(said.err.starts_with("latch: cannot "), "{said:?}");
    expect(&daemon, 1, &["who", "k"]);
}

#[test]
fn output_that_cannot_be_written_is_74() {
    let daemon = Daemon::start(&[]);
    expect(&daemon, 0, &["acquire", "k"]);
    for words in [
        &["ls"][..],
        &["ls", "--json"],
        &["who", "k"],
        &["stats"],
        &["ping"],
        &["incr", "c"],
        &["acquire", "j"],
        &["help"],
        &["completions", "bash"],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = latch_at(&daemon, words);
        command
            .stdout(full.unwrap())
            .stderr(std::process::Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(74), "{words:?}: {err}");
        assert!(err.contains("standard output"), "{words:?}: {err}");
    }
}

/// A lock whose token nobody has read is nobody's: it is let go again.
#[test]
fn what_is_acquired_and_not_told_is_let_go() {
    let daemon = Daemon::start(&[]);
    let latch = crate::latch::program();
    // A pipe whose reader has gone, for sure: a shell waits for neither side.
    let (read, broken) = std::io::pipe().unwrap();
    drop(read);
    for verb in ["acquire", "elect"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        for (out, redirected) in [
            (full.unwrap().into(), ""),
            (std::process::Stdio::from(broken.try_clone().unwrap()), ""),
            (std::process::Stdio::piped(), ">&-"),
            (std::process::Stdio::piped(), "1</dev/null"),
        ] {
            let mut command = crate::latch::plain("sh");
            let script = format!("exec {latch} {verb} --lease 1h k {redirected}");
            command.args(["-c", &script]).stdout(out);
            command.env("LATCH_SERVER", daemon.address().to_string());
            command.stderr(std::process::Stdio::piped());
            let output = command.spawn().unwrap().wait_with_output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(74), "{verb} {redirected}: {err}");
            // A closed output is seen before the lock is asked for.
            let word = match redirected {
                "" => "let go",
                ">&-" => "closed",
                _ => "reading only",
            };
            assert!(err.contains(word), "{verb} {redirected}: {err}");
            expect(&daemon, 1, &["who", "k"]);
        }
    }
    // `/dev/null` is no closed output if it is open for writing.
    for (key, null) in [("k", std::process::Stdio::null()), ("j", null_for_both())] {
        let mut command = latch_at(&daemon, &["acquire", key]);
        command.stdout(null);
        assert_eq!(command.status().unwrap().code(), Some(0));
        expect(&daemon, 0, &["who", key]);
    }
}

/// `/dev/null` for reading and writing, as daemons and Python's `subprocess.DEVNULL` have it.
fn null_for_both() -> std::process::Stdio {
    let null = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null");
    null.unwrap().into()
}

/// What `latch` comes to with this output, and what it says.
fn with_output(daemon: &Daemon, out: std::process::Stdio, line: &str) -> (Option<i32>, String) {
    let mut command = crate::latch::plain("sh");
    let script = format!("exec {} {line}", crate::latch::program());
    command.args(["-c", &script]).stdout(out);
    command.env("LATCH_SERVER", daemon.address().to_string());
    command.stderr(std::process::Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), err)
}

#[test]
fn value_that_cannot_be_printed_stays_in_its_list() {
    let daemon = Daemon::start(&[]);
    let (read, broken) = std::io::pipe().unwrap();
    drop(read);
    expect(&daemon, 0, &["push", "l", "a", "b"]);
    for (line, value) in [
        ("pop l", "a"),
        ("pop -w 1 l", "a"),
        ("pop --right l", "b"),
        ("--json pop l", "a"),
    ] {
        for (out, redirected, word) in [
            (
                fs::OpenOptions::new()
                    .write(true)
                    .open("/dev/full")
                    .unwrap()
                    .into(),
                "",
                "put back",
            ),
            (broken.try_clone().unwrap().into(), "", "put back"),
            (std::process::Stdio::piped(), ">&-", "closed"),
            (std::process::Stdio::piped(), "1</dev/null", "reading only"),
        ] {
            let line = format!("{line} {redirected}");
            let (code, err) = with_output(&daemon, out, &line);
            assert_eq!(code, Some(74), "{line}: {err}");
            assert!(err.contains(word), "{line}: {err}");
            assert_eq!(expect(&daemon, 0, &["len", "l"]), "2", "{line}");
        }
        let side = if value == "b" { "--right" } else { "--wait=0" };
        let first = expect(&daemon, 0, &["pop", side, "l"]);
        assert_eq!(first, value, "{line}: where it was");
        let put = if value == "b" {
            &["push", "l", "b"][..]
        } else {
            &["push", "--left", "l", "a"]
        };
        expect(&daemon, 0, put);
    }
    // `/dev/null` is what it says.
    let (code, err) = with_output(&daemon, null_for_both(), "pop l");
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(expect(&daemon, 0, &["len", "l"]), "1");
}

#[test]
fn closed_output_is_74_and_nothing_is_done() {
    let daemon = Daemon::start(&[]);
    let acquired = expect(&daemon, 0, &["acquire", "--lease", "9s", "k"]);
    let token = acquired.split(' ').next().unwrap();
    let mut client = daemon.connect();
    assert!(client.ask("attach n/1 100 s3cret").ends_with(" new"));
    assert_eq!(client.ask("rangelock f ex 0 100 0"), "ok");
    for line in [
        "incr c",
        "push l v",
        "push l v w",
        "ls",
        "help",
        "--json set k v",
        "signal nobody v",
        "listen --group g -w 0 jobs",
        "watch -w 0 k",
        "elect --observe -w 0 k",
        "break k --all",
        "range break f",
        "range break --client n/1",
        &format!("renew --lease 1h k {token}"),
        &format!("release --json k {token}"),
    ] {
        let closed = format!("{line} >&-");
        let (code, err) = with_output(&daemon, std::process::Stdio::piped(), &closed);
        assert_eq!(code, Some(74), "{line}: {err}");
        assert!(err.contains("it is closed"), "{line}: {err}");
    }
    let who = expect(&daemon, 0, &["who", "--json", "k"]);
    let who: serde_json::Value = serde_json::from_str(&who).unwrap();
    let left_s = who["holders"][0]["lease_left_s"].as_f64().unwrap();
    assert!(left_s <= 9.0, "renewed: {who}");
    assert!(expect(&daemon, 0, &["range", "list", "f"]).contains("holds"));
    assert_eq!(expect(&daemon, 0, &["incr", "c"]), "1");
    assert_eq!(expect(&daemon, 0, &["len", "l"]), "0");
    expect(&daemon, 1, &["get", "k"]);
    // What prints nothing needs no output.
    for line in ["release k", "barrier b 1", "run j -- true"] {
        let line = line.replace("release k", &format!("release k {token}"));
        let (code, err) = with_output(
            &daemon,
            std::process::Stdio::piped(),
            &format!("{line} >&-"),
        );
        assert_eq!(code, Some(0), "{line}: {err}");
    }
    // Nor is a closed input an empty value.
    let (code, err) = with_output(&daemon, std::process::Stdio::piped(), "set k - <&-");
    assert_eq!(code, Some(70), "{err}");
    assert!(err.contains("it is closed"), "{err}");
    expect(&daemon, 1, &["get", "k"]);
    // A command that prints nothing needs no output.
    let (code, err) = with_output(&daemon, std::process::Stdio::piped(), "set k v >&-");
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn daemon_says_that_its_output_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut command = crate::vocabulary::latchd();
    command.args(["--port", "0", "--data-dir"]).arg(&data);
    drop(Daemon::serve(command));
    let data = data.to_str().unwrap();
    for words in [
        &["--man"][..],
        &["--help"],
        &["--version"],
        &["--check-config"],
        &["--inspect", data],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        for out in [full.unwrap(), fs::File::open("/dev/null").unwrap()] {
            let mut command = crate::vocabulary::latchd();
            command.args(words).stdout(out);
            command.stderr(std::process::Stdio::piped());
            let output = command.spawn().unwrap().wait_with_output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(74), "{words:?}: {err}");
            assert!(err.contains("standard output"), "{words:?}: {err}");
        }
        let mut command = crate::latch::plain("sh");
        command.args(["-c", "exec \"$@\" >&-", "sh"]);
        command.arg(env!("CARGO_BIN_EXE_latchd")).args(words);
        let closed = said(command);
        assert_eq!(closed.code, Some(74), "{words:?}: {closed:?}");
        assert!(closed.err.contains("it is closed"), "{closed:?}");
    }
}
