//! Starting: what is said, what is refused and how, and the options that concern the process.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use latchd::base::Millis;
use rustix::fs::{CWD, mkfifoat};

use crate::vocabulary::{Daemon, End, PATIENCE, latchd, refusal};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn the_start_line_names_the_version_and_the_real_port() {
    let daemon = Daemon::start(&[]);
    let port = daemon.address().port();
    assert_ne!(port, 0);
    let line = &daemon.log()[0];
    let said = format!(" INFO  latchd {VERSION} listens on 127.0.0.1:{port}");
    assert!(line.ends_with(&said), "{line}");
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
}

#[cfg(feature = "cli")]
#[test]
fn the_hint_of_the_start_can_be_pasted() {
    const TOKEN: &str = "it's 100% \\n s3cret";
    let with_token = format!("--auth-token={TOKEN}");
    let latch = std::path::Path::new(env!("CARGO_BIN_EXE_latch"))
        .parent()
        .unwrap();
    let path = format!("{}:{}", latch.display(), std::env::var("PATH").unwrap());
    for options in [
        &["--host=127.0.0.1"][..],
        &["--host=0.0.0.0"],
        &["--host=::1"],
        &["--host=::"],
        &["--host=::", &with_token],
        &["--log-format=text", &with_token],
    ] {
        if options[0].contains("::")
            && TcpListener::bind((std::net::Ipv6Addr::LOCALHOST, 0)).is_err()
        {
            eprintln!("skipped: this machine has no IPv6 loopback");
            continue;
        }
        let daemon = Daemon::start(options);
        let hint = daemon.wait_for_log(" INFO  hold a lock from another terminal");
        assert!(!hint.contains("s3cret"), "{hint}");
        let (_, command) = hint.split_once("): ").unwrap();
        let (command, work) = command.split_at(command.find("sleep 10").unwrap());
        assert_eq!(work, "sleep 10", "{hint}");
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("{command} printenv LATCH_KEY")])
            .env("PATH", &path)
            .env_remove("LATCH_SERVER")
            .env_remove("LATCH_AUTH_TOKEN");
        let asks_for_token = options.contains(&&*with_token);
        assert_eq!(hint.contains("$LATCH_AUTH_TOKEN"), asks_for_token, "{hint}");
        if asks_for_token {
            bash.env("LATCH_AUTH_TOKEN", TOKEN);
        }
        let bash = bash.output().unwrap();
        assert_eq!(bash.stdout, b"demo\n", "{options:?}: {bash:?}");
        assert!(bash.status.success(), "{options:?}: {bash:?}");
    }
}

#[test]
fn member_of_a_cluster_says_how_far_etcd_may_be_and_gives_no_hint_while_it_follows() {
    let etcd = "--etcd=http://127.0.0.1:1";
    for (ttl, longest) in [("5s", 300), ("3s", 180), ("60s", 600)] {
        let ttl = format!("--cluster-ttl={ttl}");
        let daemon = Daemon::start(&["--cluster=c", etcd, &ttl]);
        daemon.wait_for_log(&format!("longest round trip to etcd: {longest} ms"));
        daemon.wait_for_log("clients may make this process use"); // what follows the hint
        assert!(!daemon.logged("hold a lock from another terminal"));
    }
}

/// The default port may be taken by somebody else's daemon; then it is named in the refusal.
#[test]
fn without_options_it_listens_on_port_6388_of_loopback() {
    let mut daemon = Daemon::spawn(latchd()); // HTTP has its own test
    daemon.wait_for_log("127.0.0.1:6388");
    if daemon.logged("listens on 127.0.0.1:6388") {
        assert!(!daemon.logged("WARN"));
        daemon.stop();
    } else {
        let (code, log) = daemon.wait_for_exit();
        assert_eq!(code, 69);
        assert!(log.concat().contains("in use"), "{log:?}");
    }
}

#[test]
fn the_environment_is_heard_and_a_flag_beats_it() {
    let mut command = latchd();
    command
        .env("LATCHD_PORT", "0")
        .env("LATCHD_DEFAULT_LEASE_TTL_S", "7")
        .env("LATCHD_WIRE_FENCE", "never")
        .arg("--wire-fence=always");
    let grant = Daemon::serve(command).connect().lock("k", "0");
    assert_eq!(grant.lease, Millis::from_secs(7));
    assert!(grant.fence.is_some());
}

#[test]
fn help_and_version_are_printed_and_nothing_is_started() {
    for (option, says) in [
        ("--help", "--unix-socket-mode"),
        ("-h", "Usage: latchd [OPTIONS]"),
        ("--version", concat!("latchd ", env!("CARGO_PKG_VERSION"))),
        ("-V", concat!("latchd ", env!("CARGO_PKG_VERSION"))),
    ] {
        let mut command = latchd();
        command.arg(option);
        let mut daemon = Daemon::spawn(command);
        let (code, log) = daemon.wait_for_exit();
        assert_eq!((code, log), (0, Vec::new()), "{option}");
        let text = daemon.stdout();
        assert!(text.contains(says), "{option}: {text}");
    }
}

/// What a unit file may rely on, in one table. The other tests say the same with each message.
#[test]
fn exit_codes_tell_a_supervisor_what_happened() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("latchd.sock");
    let _first = Daemon::start_at(&socket, &[]);
    let port_in_use = format!("--port={}", taken.local_addr().unwrap().port());
    let socket_in_use = format!("--port=0 --unix-socket={}", socket.display());
    for (code, line) in [
        (0, "--help"),
        (0, "--version"),
        (1, "--host=192.0.2.1"), // an address of another machine
        (64, "--prot=1"),
        (64, "--port=http"),
        (64, "--port"),
        (64, "start"),
        (69, &port_in_use),
        (69, &socket_in_use),
        (78, "--port=0 --unix-socket=/dev/null"),
        (78, "--port=0 --cpu=99999"),
        (64, "--shard=2/2"),
        (64, "--reshard=2:2"),
        (78, "--port=0 --shard=0/2"), // of which cluster?
        (78, "--reshard=1:2"),
        (78, "--reshard=1:2 --cluster=prod"), // where is etcd?
        (78, "--auth-token-file=/nowhere"),
        (78, "--auth-token-file=/dev/null"),
        (78, "--auth-token-file=/dev/null --auth-token=x"),
    ] {
        let mut command = latchd();
        command.args(line.split(' '));
        let (exit_code, log) = Daemon::spawn(command).wait_for_exit();
        assert_eq!(exit_code, code, "{line}: {log:#?}");
    }
    let mut command = latchd();
    command.env("LATCHD_PORT", "http");
    refusal(64, command);
}

/// The names of its threads, as `/proc` tells them.
fn threads(daemon: &Daemon) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.status("Pid"))).unwrap();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap();
    let mut names: Vec<String> = tasks
        .map(|it| name(it.unwrap()).trim().to_owned())
        .collect();
    names.sort();
    names
}

/// docs/design.md says which others there may be: each comes with a setting.
#[test]
fn a_daemon_that_keeps_nothing_is_one_thread_whatever_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("latchd.sock");
    let daemon = Daemon::start_at(&socket, &["--http-port=0", "--auth-token=s3cret"]);
    let mut clients: Vec<_> = (0..20).map(|_| daemon.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask("auth _ s3cret"), "ok");
        client.lock(&format!("k{number}"), "0 3600s");
        client.put("l k0 3600");
    }
    assert_eq!(threads(&daemon), ["latchd"]);
}

/// Others are sent to it by an address, and where it listens is none.
#[cfg(feature = "cluster")]
#[test]
fn a_member_that_listens_everywhere_has_to_say_where_it_is() {
    let member = ["--cluster=c", "--etcd=http://127.0.0.1:1", "--port=0"];
    for (options, needed) in [
        (&["--host=0.0.0.0"][..], "--advertise is needed"),
        (&["--host=::"], "--advertise is needed"),
        (
            &["--host=0.0.0.0", "--advertise-http=a:1"],
            "--advertise is needed",
        ),
        (
            &["--host=0.0.0.0", "--advertise=a:1", "--http-port=0"],
            "--advertise-http is needed",
        ),
    ] {
        if options[0].contains("::")
            && TcpListener::bind((std::net::Ipv6Addr::UNSPECIFIED, 0)).is_err()
        {
            eprintln!("skipped: this machine has no IPv6");
            continue;
        }
        for check in [&[][..], &["--check-config"]] {
            let mut command = latchd();
            command.args(member).args(options).args(check);
            let said = refusal(78, command);
            assert!(said.contains(needed), "{options:?} {check:?}: {said}");
        }
    }
    for options in [
        &["--host=127.0.0.1", "--http-port=0"][..],
        &["--host=0.0.0.0", "--advertise=a:1"],
    ] {
        let mut command = latchd();
        command.args(member).args(options).arg("--check-config");
        let (code, log) = Daemon::spawn(command).wait_for_exit();
        assert_eq!(code, 0, "{options:?}: {log:?}");
    }
}

/// Every file that an option names: opening a FIFO would wait for a writer.
#[test]
fn fifo_at_the_path_of_any_named_file_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (fifo, file) = (dir.path().join("fifo"), dir.path().join("file"));
    mkfifoat(CWD, &fifo, 0o600.into()).unwrap();
    fs::write(&file, "x\n").unwrap();
    let (fifo, file) = (fifo.to_str().unwrap(), file.to_str().unwrap());
    let member = ["--cluster=c", "--etcd=https://127.0.0.1:1"];
    let cases: [(&str, &[&str], &[&str]); 9] = [
        ("--config", &[], &[]),
        ("--auth-token-file", &[], &[]),
        ("--tls-cert", &["--tls-key", file], &[]),
        ("--tls-key", &["--tls-cert", file], &[]),
        (
            "--tls-client-ca",
            &["--tls-cert", file, "--tls-key", file],
            &[],
        ),
        ("--etcd-ca", &[], &member),
        (
            "--etcd-cert",
            &["--etcd-ca", file, "--etcd-key", file],
            &member,
        ),
        (
            "--etcd-key",
            &["--etcd-ca", file, "--etcd-cert", file],
            &member,
        ),
        ("--etcd-password-file", &["--etcd-user=me"], &member),
    ];
    for (option, more, member) in cases {
        for check in [&[][..], &["--check-config"]] {
            let mut command = latchd();
            command.args(["--port=0", option, fifo]);
            command.args(more).args(member).args(check);
            let said = refusal(78, command);
            let is_told = said.contains(option) && said.contains("it is not a regular file");
            assert!(is_told, "{option} {check:?}: {said}");
        }
    }
}

#[test]
fn wrong_settings_end_it_and_name_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, token) = (dir.path().join("empty"), dir.path().join("token"));
    fs::write(&empty, " \n").unwrap();
    fs::write(&token, "s3cret\n").unwrap();
    let at = |option: &str, path: &std::path::Path| format!("{option}={}", path.display());
    let (empty_file, token_file) = (
        at("--auth-token-file", &empty),
        at("--auth-token-file", &token),
    );
    let missing_file = at("--auth-token-file", &dir.path().join("missing"));
    for (code, options, says) in [
        (64, &["--prot=1"][..], "did you mean --port?"),
        (64, &["--tls-cart=x"], "--tls-cart"),
        (64, &["serve"], "\"serve\""),
        (64, &["--port=65536"], "--port"),
        (64, &["--port"], "--port"),
        (64, &["--port", "x"], "--port"),
        (64, &["--host=example.org"], "--host"),
        (64, &["--read-timeout=0"], "--read-timeout"),
        (64, &["--read-timeout", "-5"], "--read-timeout"),
        (64, &["--write-timeout=-1ms"], "--write-timeout"),
        (64, &["--shutdown-timeout=9223372037"], "--shutdown-timeout"),
        (64, &["--default-lease-ttl=0"], "--default-lease-ttl"),
        (64, &["--gc-max-idle=1.5s"], "--gc-max-idle"),
        (64, &["--max-connections=-1"], "--max-connections"),
        (64, &["--max-locks=99999999999"], "--max-locks"),
        (64, &["--wire-fence=maybe"], "--wire-fence"),
        (64, &["--unix-socket="], "--unix-socket"),
        (64, &["--unix-socket-mode=1777"], "--unix-socket-mode"),
        (64, &["--log-level=loud"], "--log-level"),
        (64, &["--spin=perhaps"], "--spin"),
        (64, &["--auth-token="], "--auth-token"),
        (78, &[&empty_file], "is empty"),
        (78, &[&missing_file], "--auth-token-file"),
        (
            78,
            &[&token_file, "--auth-token=x"],
            "--auth-token and --auth-token-file",
        ),
    ] {
        let mut command = latchd();
        command.args(options);
        let said = refusal(code, command);
        assert!(said.starts_with("configuration error: "), "{said}");
        assert!(said.contains(says), "{options:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[test]
fn wrong_variables_end_it_and_are_named() {
    use std::os::unix::ffi::OsStringExt;
    for (name, value) in [
        ("LATCHD_PORT", OsString::from("-1")),
        ("LATCHD_READ_TIMEOUT_S", OsString::from("1h")),
        ("LATCHD_GC_LOOP_SLEEP", OsString::from("0")),
        (
            "LATCHD_AUTO_RELEASE_ON_DISCONNECT",
            OsString::from("perhaps"),
        ),
        ("LATCHD_AUTH_TOKEN", OsString::new()),
        ("LATCHD_AUTH_TOKEN_FILE", OsString::new()),
        ("LATCHD_HOST", OsString::from_vec(vec![0xff])),
    ] {
        let mut command = latchd();
        command.env(name, value);
        let said = refusal(64, command);
        let start = format!("configuration error: {name}: ");
        assert!(said.starts_with(&start), "{said}");
    }
}

#[test]
fn a_port_in_use_is_refused_and_named() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap();
    let mut command = latchd();
    command.arg(format!("--port={}", address.port()));
    let said = refusal(69, command);
    let place = format!("cannot listen on {address} (--host, --port): ");
    assert!(said.contains(&place), "{said}");
    assert!(said.contains("in use"), "{said}");
    assert!(said.ends_with("choose another --port"), "{said}");
}

#[test]
fn an_address_of_another_machine_is_refused() {
    let mut command = latchd();
    command.args(["--host=192.0.2.1", "--port=0"]);
    let said = refusal(1, command);
    let place = "cannot listen on 192.0.2.1:0 (--host, --port): ";
    assert!(said.contains(place), "{said}");
    assert!(said.ends_with("choose another --host"), "{said}");
}

#[test]
fn open_to_the_network_without_a_secret_is_worth_a_warning() {
    let warns = |options: &[&str]| {
        let mut daemon = Daemon::start(options);
        let _ = daemon.connect();
        let log = daemon.stop();
        log.iter()
            .any(|it| it.contains("WARN") && it.contains("--auth-token-file"))
    };
    assert!(warns(&["--host=0.0.0.0"]));
    assert!(!warns(&["--host=0.0.0.0", "--auth-token=s3cret"]));
    assert!(!warns(&["--host=127.0.0.1"]));
}

#[test]
fn cpu_keeps_the_process_on_one_core() {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let (_, allowed) = own.split_once("Cpus_allowed_list:\t").unwrap();
    let core: String = allowed.chars().take_while(char::is_ascii_digit).collect();
    let daemon = Daemon::start(&["--cpu", &core]);
    assert_eq!(daemon.status("Cpus_allowed_list"), core);
    assert_eq!(daemon.connect().ask("ping _ _"), "ok");
}

#[test]
fn a_core_that_is_not_there_is_refused() {
    for core in ["999", "99999999"] {
        let mut command = latchd();
        command.args(["--port=0", "--cpu", core]);
        let said = refusal(78, command);
        assert!(said.contains(&format!("--cpu {core}")), "{said}");
    }
}

#[test]
fn a_spinning_daemon_serves_and_stops() {
    let mut daemon = Daemon::start(&["--spin"]);
    let mut client = daemon.connect();
    let grant = client.lock("k", "0");
    client.release("k", &grant);
    daemon.stop();
    assert_eq!(client.end(), End::Closed);
}

/// The reader of the log goes away, as when a log collector crashes; locks matter more.
#[test]
fn nobody_reading_the_log_stops_nothing() {
    let mut command: Command = latchd();
    command.args(["--port=0", "--debug"]).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap())
        .read_line(&mut line)
        .unwrap(); // and then closed
    let (_, address) = line.trim_end().split_once("listens on ").unwrap();
    let answers = (0..3).map(|_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"nonsense\nk\n\nping\n\n\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        std::io::read_to_string(stream).unwrap()
    });
    let answers: Vec<String> = answers.collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(answers, ["error\nok\n"; 3]);
}
