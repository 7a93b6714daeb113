//! Other people's TLS: OpenSSL's `s_client`, Python's `ssl`, curl.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use latchd::wire::client::frame;

use crate::tls::certificates::{Authority, Folder, GOOD};
use crate::tls::http::https_address;
use crate::vocabulary::Daemon;

/// Whether this machine has the program; says so if not.
fn has(program: &str, argument: &str) -> bool {
    let found = Command::new(program)
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let has = found.is_ok_and(|status| status.success());
    if !has {
        eprintln!("skipped: this machine has no {program}");
    }
    has
}

/// What `s_client` prints when this is typed into it, up to the end.
#[track_caller]
fn s_client(at: SocketAddr, folder: &Folder, options: &[&str], typed: &str) -> (String, String) {
    let mut child = Command::new("openssl")
        .args([
            "s_client",
            "-quiet",
            "-verify_return_error",
            "-verify_ip",
            "127.0.0.1",
        ])
        .args(["-CAfile", &folder.text("ca.pem")])
        .args(["-connect", &at.to_string()])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It is closed by the daemon, which is told to by what is typed.
    let mut stdin = child.stdin.take().unwrap();
    if let Err(error) = stdin.write_all(typed.as_bytes()) {
        // It was refused in the handshake, and has ended already.
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(output.stdout), text(output.stderr))
}

/// A line that no request has room for: it is answered `error`, and the connection is closed.
fn too_long() -> String {
    format!("{}\n", "x".repeat(300))
}

#[test]
fn openssl_holds_a_lock_with_every_version_and_is_told_the_end() {
    if !has("openssl", "version") {
        return;
    }
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let typed = format!("{}{}{}", frame("l k 0"), frame("ping _ _"), too_long());
    for version in ["-tls1_2", "-tls1_3"] {
        for alpn in [&["-alpn", "latchd"][..], &["-alpn", "h2,latchd"], &[]] {
            let options = [&[version], alpn].concat();
            let (said, errors) = s_client(daemon.address(), &folder, &options, &typed);
            let lines: Vec<&str> = said.lines().collect();
            assert!(lines[0].starts_with("ok "), "{options:?}: {said} {errors}");
            assert_eq!(lines[1..], ["ok", "error"], "{options:?}: {errors}");
            assert!(!errors.contains("unexpected eof"), "{options:?}: {errors}");
        }
    }
    for version in ["-tls1", "-tls1_1"] {
        let (said, _) = s_client(daemon.address(), &folder, &[version], &typed);
        assert_eq!(said, "", "{version}");
    }
    let (said, errors) = s_client(daemon.address(), &folder, &["-alpn", "http/1.1"], &typed);
    assert_eq!(said, "");
    assert!(errors.contains("no application protocol"), "{errors}");
}

#[test]
fn openssl_asks_over_http_with_every_version_and_is_told_the_end() {
    if !has("openssl", "version") {
        return;
    }
    let folder = Folder::new();
    let daemon = folder.daemon(&["--http-port", "0"]);
    let at = https_address(&daemon);
    let typed = "GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n";
    for version in ["-tls1_2", "-tls1_3"] {
        for alpn in [&["-alpn", "http/1.1"][..], &["-alpn", "h2,http/1.1"], &[]] {
            let options = [&[version], alpn].concat();
            let (said, errors) = s_client(at, &folder, &options, typed);
            assert!(
                said.starts_with("HTTP/1.1 200 "),
                "{options:?}: {said} {errors}"
            );
            assert!(!errors.contains("unexpected eof"), "{options:?}: {errors}");
        }
    }
    for alpn in ["latchd", "h2"] {
        let (said, errors) = s_client(at, &folder, &["-alpn", alpn], typed);
        assert_eq!(said, "", "{alpn}");
        assert!(errors.contains("no application protocol"), "{errors}");
    }
}

#[test]
fn openssl_shows_a_certificate_where_one_is_asked_for() {
    if !has("openssl", "version") {
        return;
    }
    let folder = Folder::new();
    let (clients, strangers) = (Authority::new("clients"), Authority::new("strangers"));
    folder.write("clients.pem", &clients.pem());
    let daemon = folder.daemon(&["--tls-client-ca", &folder.text("clients.pem")]);
    for (authority, is_welcome) in [(&clients, true), (&strangers, false)] {
        let pair = authority.client("somebody", GOOD);
        folder.write("own.pem", &pair.cert);
        folder.write("own.key", &pair.key);
        let (cert, key) = (folder.text("own.pem"), folder.text("own.key"));
        for version in ["-tls1_2", "-tls1_3"] {
            let options = [version, "-cert", &cert, "-key", &key];
            let (said, errors) = s_client(daemon.address(), &folder, &options, &too_long());
            let heard = if is_welcome { "error\n" } else { "" };
            assert_eq!(said, heard, "{version}: {errors}");
        }
    }
    let (said, errors) = s_client(daemon.address(), &folder, &["-tls1_3"], &too_long());
    assert_eq!(said, "", "without one: {errors}");
    assert!(errors.contains("certificate required"), "{errors}");
}

/// A client of TLS 1.2 may ask to begin again; it is told no, and nobody else notices.
#[test]
fn renegotiation_is_refused() {
    if !has("openssl", "version") {
        return;
    }
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let mut child = Command::new("openssl")
        .args(["s_client", "-tls1_2", "-CAfile", &folder.text("ca.pem")])
        .args(["-connect", &daemon.address().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It takes this for a command of its own.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"R\n").unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("RENEGOTIATING"), "{errors}");
    assert!(errors.contains("no renegotiation"), "{errors}");
    let (said, _) = s_client(daemon.address(), &folder, &[], &too_long());
    assert_eq!(said, "error\n");
}

/// What both Python programs begin with: a CA file, the address as the name, one version.
const PYTHON_CONTEXT: &str = r#"
import http.client, json, socket, ssl, sys

host, port, ca, cert, key = sys.argv[1:6]
context = ssl.create_default_context(cafile=ca)
context.minimum_version = ssl.TLSVersion[sys.argv[6]]
context.maximum_version = ssl.TLSVersion[sys.argv[6]]
if cert:
    context.load_cert_chain(cert, key)
"#;

/// As the clients of dflockd do it: a CA file, the address as the name, one connection after the other.
const PYTHON_LINES: &str = r#"
def connect():
    raw = socket.create_connection((host, int(port)), timeout=10)
    return context.wrap_socket(raw, server_hostname=host)

def ask(sock, file, *lines):
    sock.sendall(("\n".join(lines) + "\n").encode())
    return file.readline().decode().split()

holder, waiter = connect(), connect()
assert holder.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[sys.argv[6]]
held, waited = holder.makefile("rb"), waiter.makefile("rb")
ok, token, lease = ask(holder, held, "l", "job", "10 60")
assert (ok, lease) == ("ok", "60"), (ok, lease)
waiter.sendall(b"l\njob\n10\n")
value = "v" * 65536
assert ask(holder, held, "kset", "big", value) == ["ok"]
assert ask(holder, held, "kget", "big", "") == ["ok", value]
assert ask(holder, held, "r", "job", token) == ["ok"]
ok, token, lease = waited.readline().decode().split()
assert (ok, lease) == ("ok", "33"), (ok, lease)

# A thousand requests before the first answer is read.
waiter.sendall(b"ping\n_\n_\n" * 1000)
assert all(waited.readline() == b"ok\n" for _ in range(1000))

# A client that closes without a word, as most do, lets go of what it holds.
waited.close()
waiter.close()
assert ask(holder, held, "l", "job", "10")[0] == "ok"

# And one that says goodbye is answered with a goodbye.
plain = holder.unwrap()
plain.settimeout(10)
assert plain.recv(1) == b""
print("good")
"#;

/// The same by the other door, with Python's own HTTP: a lease on one connection, a stream on another.
const PYTHON_HTTP: &str = r#"
def connect():
    return http.client.HTTPSConnection(host, int(port), timeout=10, context=context)

def post(connection, path, body):
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())

context.set_alpn_protocols(["http/1.1"])
holder, watcher = connect(), connect()
watcher.request("GET", "/v1/watch?pattern=job")
stream = watcher.getresponse()
assert stream.status == 200, stream.status
status, lease = post(holder, "/v1/locks/job/acquire", {"owner_id": "python", "ttl_ms": 60000})
assert (status, lease["owner_id"]) == (200, "python"), (status, lease)
sock = holder.sock
assert sock.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[sys.argv[6]]
assert sock.selected_alpn_protocol() == "http/1.1"
while b"job" not in stream.readline():
    pass
status, answer = post(holder, "/v1/locks/job/release", {name: lease[name] for name in ("owner_id", "lease_id", "fencing_token")})
assert status == 200, (status, answer)
assert holder.sock is sock, "all of it was one connection"
print("good")
"#;

#[track_caller]
fn python(program: &str, at: SocketAddr, folder: &Folder, pair: [&str; 2], version: &str) {
    let program = format!("{PYTHON_CONTEXT}{program}");
    let (host, port) = (at.ip().to_string(), at.port().to_string());
    let ca = folder.text("ca.pem");
    let output = Command::new("python3")
        .args(["-c", &program, &host, &port, &ca, pair[0], pair[1], version])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "good\n", "{version}: {errors}");
}

/// At this door with every version, without a certificate of its own and with one where it is asked for.
fn python_everywhere(program: &str, at: fn(&Daemon) -> SocketAddr) {
    if !has("python3", "--version") {
        return;
    }
    let folder = Folder::new();
    folder.write("clients.pem", &folder.authority.pem());
    let pair = folder.authority.client("python", GOOD);
    folder.write("own.pem", &pair.cert);
    folder.write("own.key", &pair.key);
    let own = [folder.text("own.pem"), folder.text("own.key")];
    let open = folder.daemon(&["--http-port", "0"]);
    let client_ca = ["--tls-client-ca", &folder.text("clients.pem")];
    let mutual = folder.daemon(&[&["--http-port", "0"][..], &client_ca].concat());
    for version in ["TLSv1_2", "TLSv1_3"] {
        python(program, at(&open), &folder, ["", ""], version);
        python(program, at(&mutual), &folder, [&own[0], &own[1]], version);
    }
}

#[test]
fn python_waits_pipelines_and_leaves_with_every_version() {
    python_everywhere(PYTHON_LINES, Daemon::address);
}

#[test]
fn python_takes_a_lease_and_watches_with_every_version() {
    python_everywhere(PYTHON_HTTP, https_address);
}

fn curl(folder: &Folder, arguments: &[&str]) -> (String, String) {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20"])
        .args(["--cacert", &folder.text("ca.pem")])
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn curl_acquires_and_sees_the_dashboard() {
    if !has("curl", "--version") {
        return;
    }
    let folder = Folder::new();
    let daemon = folder.daemon(&["--http-port", "0"]);
    let base = format!("https://{}", https_address(&daemon));
    let body = r#"{"owner_id":"curl","ttl_ms":60000}"#;
    for version in ["--tlsv1.2", "--tlsv1.3"] {
        let max = ["--tls-max", &version["--tlsv".len()..]];
        let acquire = format!("{base}/v1/locks/job{version}/acquire");
        let json = ["--json", body, &acquire];
        let (said, errors) = curl(&folder, &[&[version][..], &max, &json].concat());
        assert!(said.contains("\"lease_id\""), "{version}: {said} {errors}");
        let (page, errors) = curl(&folder, &[version, &format!("{base}/")]);
        assert!(page.starts_with("<!doctype html>"), "{page} {errors}");
    }
    let plain = format!("http://{}/livez", https_address(&daemon));
    let (said, errors) = curl(&folder, &[&plain]);
    assert_eq!(said, "");
    assert!(errors.contains("curl:"), "{errors}");
    daemon.wait_for_log("it does not speak TLS");
}

/// Whoever mistakes the port for the other one is sent away at once, whether TLS says so already or not.
#[test]
fn curl_at_the_port_for_lines_ends_at_once_with_one_line() {
    if !has("curl", "--version") {
        return;
    }
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let at = daemon.address();
    for (url, option, says) in [
        (
            format!("https://{at}/"),
            "--alpn",
            "support any known protocol",
        ),
        (
            format!("https://{at}/"),
            "--no-alpn",
            "it does not speak this protocol",
        ),
        (format!("http://{at}/"), "--alpn", "it does not speak TLS"),
    ] {
        let closings = || {
            let lines = daemon.log().into_iter();
            lines
                .filter(|it| it.contains("closing 127.0.0.1:"))
                .collect::<Vec<_>>()
        };
        let before = closings().len();
        let (said, errors) = curl(&folder, &[option, &url]);
        assert_eq!(said, "", "{url} {option}");
        assert!(errors.contains("curl:"), "{url} {option}: {errors}");
        daemon.wait_for_log(says);
        let lines = closings().split_off(before);
        assert_eq!(lines.len(), 1, "{url} {option}: {lines:#?}");
        assert!(lines[0].contains(says), "{url} {option}: {lines:#?}");
    }
}

/// The hint of the start, as it stands in the log, but for the name and the work.
#[cfg(feature = "cli")]
#[test]
fn the_hint_can_be_pasted() {
    let folder = Folder::new();
    let daemon = folder.daemon(&["--auth-token=it's s3cret"]);
    let hint = daemon.wait_for_log("hold a lock from another terminal");
    let (condition, command) = hint.split_once("): latch ").unwrap();
    assert!(condition.contains("$LATCH_AUTH_TOKEN"), "{hint}");
    let command = command.replace("NAME", "localhost");
    let options = command.strip_suffix("sleep 10").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_latch"))
        .args(options.split_whitespace())
        .args(["printenv", "LATCH_KEY"])
        .env("LATCH_AUTH_TOKEN", "it's s3cret")
        .env("LATCH_CA_FILE", folder.path("ca.pem"))
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"demo\n", "{output:?}");
}

/// Where clients show a certificate, which `latch` has none of.
#[test]
fn the_hint_for_clients_with_certificates_can_be_pasted() {
    if !has("openssl", "version") || !has("bash", "--version") {
        return;
    }
    let folder = Folder::new();
    folder.write("clients.pem", &folder.authority.pem());
    let client = folder.authority.client("worker", GOOD);
    folder.write("worker.pem", &client.cert);
    folder.write("worker.key", &client.key);
    let clients = folder.text("clients.pem");
    let daemon = folder.daemon(&["--tls-client-ca", &clients, "--auth-token=it's s3cret"]);
    let hint = daemon.wait_for_log("hold a lock from another terminal");
    let (_, command) = hint.split_once("): ").unwrap();
    let mut child = Command::new("bash")
        .args(["-c", command])
        .env("TOKEN", "it's s3cret")
        .env("CERT", folder.path("worker.pem"))
        .env("KEY", folder.path("worker.key"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(too_long().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "ok", "{said}");
    assert!(lines[1].starts_with("ok "), "{said}");
}

/// The command that comes with the daemon: a lock over TLS, and nothing for whoever cannot be trusted.
#[cfg(feature = "cli")]
#[test]
fn latch_runs_a_command_over_tls_and_trusts_nobody_else() {
    let folder = Folder::new();
    let daemon = folder.daemon(&[]);
    let latch = |ca: &str| {
        Command::new(env!("CARGO_BIN_EXE_latch"))
            .args(["--server", &format!("tls://{}", daemon.address())])
            .args(["--ca-file", &folder.text(ca)])
            .args(["run", "job", "--", "sh", "-c", "echo ran; exit 3"])
            .output()
            .unwrap()
    };
    let ran = latch("ca.pem");
    assert_eq!((ran.status.code(), &*ran.stdout), (Some(3), &b"ran\n"[..]));
    folder.write("other.pem", &Authority::new("somebody else").pem());
    let refused = latch("other.pem");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(69), "{said}");
    assert_eq!(refused.stdout, b"", "{said}");
}
