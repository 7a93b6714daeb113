//! What an operator may write, and what comes of it: each option by flag, by variable, and wrong.
//!
//! Never touches the real environment or command line.

use std::fs;
use std::os::unix::ffi::OsStringExt;

use super::row::Takes;
use super::*;

/// Loads a command line whose words are separated by blanks.
pub(super) fn load_line(line: &str, env: &[(&str, &str)]) -> Result<Outcome, ConfigError> {
    let args = ["latchd"].into_iter().chain(line.split_whitespace());
    load(args.map(OsString::from), &|name| {
        let (_, text) = env.iter().find(|(set, _)| *set == name)?;
        Some((*text).to_owned())
    })
}

#[track_caller]
fn config(line: &str, env: &[(&str, &str)]) -> Config {
    match load_line(line, env) {
        Ok(Outcome::Run(config)) => config,
        other => panic!("{line} {env:?}: {other:?}"),
    }
}

#[track_caller]
fn error(line: &str, env: &[(&str, &str)]) -> String {
    match load_line(line, env) {
        Err(error) => error.to_string(),
        other => panic!("{line} {env:?}: {other:?}"),
    }
}

/// One sample per row: a value that is not the default, another, the field as it then reads, and
/// values that must be refused.
pub(super) struct Sample {
    pub(super) flag: &'static str,
    pub(super) good: &'static str,
    pub(super) other: &'static str,
    reads: &'static str,
    pub(super) bad: &'static [&'static str],
}

const BAD_SPANS: &[&str] = &[
    "-1",
    "+1",
    "1.5",
    "1_0",
    "x",
    "1h",
    "9223372037",
    "99999999999999999999",
    "-9223372037",
];
const BAD_SPANS_ABOVE_ZERO: &[&str] = &["0", "0ms", "-1", "x", "9223372037s"];
const BAD_COUNTS: &[&str] = &["-1", "+1", "1k", "4294967296", "99999999999999999999"];
const BAD_SWITCHES: &[&str] = &["2", "maybe", "truee"];

#[rustfmt::skip]
pub(super) const SAMPLES: &[Sample] = &[
    Sample { flag: "config", good: "", other: "", reads: "", bad: &["/nowhere/latchd.toml", "src"] },
    Sample { flag: "host", good: "[::1]", other: "0.0.0.0", reads: "host: ::1", bad: &["nowhere.example", "::1:", "127.0.0.1:6388"] },
    Sample { flag: "port", good: "0", other: "65535", reads: "port: 0", bad: &["65536", "-1", "+1", "http"] },
    Sample { flag: "unix-socket", good: "/run/l.sock", other: "x", reads: r#"unix_socket: Some("/run/l.sock")"#, bad: &[] },
    Sample { flag: "unix-socket-mode", good: "0660", other: "600", reads: "unix_socket_mode: 432", bad: &["888", "rw-", "10000", "-600"] },
    Sample { flag: "http-port", good: "0", other: "off", reads: "http_port: Asked(0)", bad: &["65536", "-1", "+1", "http", "none", "OFF"] },
    Sample { flag: "http-unix-socket", good: "/run/h.sock", other: "x", reads: r#"http_unix_socket: Some("/run/h.sock")"#, bad: &[] },
    Sample { flag: "http-host-name", good: "a.example,b", other: "c", reads: r#"http_host_names: ["a.example", "b"]"#, bad: &["a:80", "http://a", "a,,b", "a,", "*.a", "[::1]"] },
    Sample { flag: "metrics-open", good: "true", other: "off", reads: "metrics_open: true", bad: BAD_SWITCHES },
    Sample { flag: "share", good: "a=/x,b=/y", other: "c=z", reads: r#"shares: [Share { name: "a", prefix: [47, 120] }, Share { name: "b""#, bad: &["a", "a=", "=x", "a=x,b=x", "ä=x"] },
    Sample { flag: "get-secrets", good: "true", other: "off", reads: "get_secrets: true", bad: BAD_SWITCHES },
    Sample { flag: "access-log", good: "true", other: "off", reads: "access_log: true", bad: BAD_SWITCHES },
    Sample { flag: "data-dir", good: "/var/lib/latchd", other: "x", reads: r#"data_dir: Some("/var/lib/latchd")"#, bad: &[] },
    Sample { flag: "durability", good: "async", other: "sync", reads: "durability: Async", bad: &["never", "Sync", "1"] },
    Sample { flag: "cluster", good: "prod", other: "x", reads: r#"name: Some("prod")"#, bad: &["a/b", "ä"] },
    Sample { flag: "etcd", good: "http://a:1,http://b:2", other: "http://c:3", reads: r#"etcd: "http://a:1,http://b:2""#, bad: &["a:1", "http://a:1,b"] },
    Sample { flag: "shard", good: "1/3", other: "0/2", reads: "shard: Shard { index: 1, count: 3 }", bad: &["3/3", "0/0", "1", "a/b", "0/1025"] },
    Sample { flag: "advertise", good: "10.0.0.1:6388", other: "a:1", reads: r#"advertise: Some("10.0.0.1:6388")"#, bad: &["a", "a:0", "a:x", ":1"] },
    Sample { flag: "advertise-http", good: "10.0.0.1:6389", other: "a:1", reads: r#"advertise_http: Some("10.0.0.1:6389")"#, bad: &["a", "a:0", "a:x", ":1"] },
    Sample { flag: "cluster-ttl", good: "10s", other: "3", reads: "ttl: Millis(10000)", bad: &["2", "3500ms", "61", "-1", "x"] },
    Sample { flag: "cluster-margin", good: "600ms", other: "1", reads: "margin: Some(Millis(600))", bad: &["0", "1ms", "99ms", "-1", "x", "9223372037s"] },
    Sample { flag: "cluster-batch", good: "64k", other: "1m", reads: "batch_bytes: 65536", bad: &["15k", "2m", "0", "half", "-1", "x"] },
    Sample { flag: "cluster-trim", good: "8m", other: "1g", reads: "trim_bytes: 8388608", bad: &["1023k", "0", "half", "-1", "x"] },
    Sample { flag: "etcd-ca", good: "/etc/ca.pem", other: "x", reads: r#"etcd_ca: Some("/etc/ca.pem")"#, bad: &[] },
    Sample { flag: "etcd-cert", good: "/etc/c.pem", other: "x", reads: r#"etcd_cert: Some("/etc/c.pem")"#, bad: &[] },
    Sample { flag: "etcd-key", good: "/etc/k.pem", other: "x", reads: r#"etcd_key: Some("/etc/k.pem")"#, bad: &[] },
    Sample { flag: "etcd-user", good: "latchd", other: "x", reads: r#"etcd_user: Some("latchd")"#, bad: &[] },
    Sample { flag: "etcd-password-file", good: "/etc/pw", other: "x", reads: r#"etcd_password_file: Some("/etc/pw")"#, bad: &[] },
    Sample { flag: "etcd-quota", good: "4g", other: "16m", reads: "quota_bytes: 4294967296", bad: &["15m", "0", "half", "-1", "x"] },
    Sample { flag: "etcd-compact", good: "No", other: "ON", reads: "compacts: false", bad: BAD_SWITCHES },
    Sample { flag: "default-lease-ttl", good: "100ms", other: "7", reads: "default_lease_ttl: Millis(100)", bad: BAD_SPANS_ABOVE_ZERO },
    Sample { flag: "lease-sweep-interval", good: "5", other: "1s", reads: "Config", bad: BAD_SPANS_ABOVE_ZERO },
    Sample { flag: "gc-interval", good: "9223372036", other: "7", reads: "gc_interval: Millis(9223372036000)", bad: BAD_SPANS_ABOVE_ZERO },
    Sample { flag: "gc-max-idle", good: "0", other: "7", reads: "gc_max_idle: Millis(0)", bad: BAD_SPANS },
    Sample { flag: "auto-release-on-disconnect", good: "No", other: "ON", reads: "auto_release_on_disconnect: false", bad: BAD_SWITCHES },
    Sample { flag: "deadlock-detection", good: "on", other: "off", reads: "deadlock_detection: true", bad: BAD_SWITCHES },
    Sample { flag: "wire-fence", good: "always", other: "auto", reads: "wire_fence: Always", bad: &["sometimes", "Auto"] },
    Sample { flag: "max-locks", good: "0", other: "7", reads: "max_locks: None", bad: BAD_COUNTS },
    Sample { flag: "max-holds", good: "0", other: "7", reads: "max_holds: None", bad: BAD_COUNTS },
    Sample { flag: "max-connections", good: "4294967295", other: "7", reads: "max_connections: Some(4294967295)", bad: BAD_COUNTS },
    Sample { flag: "max-memory", good: "2g", other: "0", reads: "max_memory: Bytes(2147483648)", bad: &["-1", "+1", "1.5g", "2t", "most", "99999999999g"] },
    Sample { flag: "max-waiters", good: "9", other: "7", reads: "max_waiters: Some(9)", bad: BAD_COUNTS },
    Sample { flag: "max-keys", good: "0", other: "7", reads: "max_keys: None", bad: BAD_COUNTS },
    Sample { flag: "max-list-length", good: "9", other: "0", reads: "max_list_length: Some(9)", bad: BAD_COUNTS },
    Sample { flag: "max-subscriptions", good: "9", other: "0", reads: "max_subscriptions: Some(9)", bad: BAD_COUNTS },
    Sample { flag: "max-clients-per-adapter", good: "9", other: "0", reads: "max_clients_per_adapter: Some(9)", bad: BAD_COUNTS },
    Sample { flag: "max-clients", good: "nfs=9,smb=0", other: "nfs=1", reads: r#"max_clients: [ClientLimit { adapter: "nfs", clients: 9 }, ClientLimit { adapter: "smb", clients: 0 }]"#, bad: &["nfs", "nfs=", "=1", "nfs=-1", "nfs=1,nfs=2", "nfs=4294967296", "n/s=1"] },
    Sample { flag: "max-range-locks-per-resource", good: "0", other: "7", reads: "max_range_locks_per_resource: None", bad: BAD_COUNTS },
    Sample { flag: "max-range-locks-per-client", good: "9", other: "0", reads: "max_range_locks_per_client: Some(9)", bad: BAD_COUNTS },
    Sample { flag: "max-range-locks", good: "4294967295", other: "7", reads: "max_range_locks: Some(4294967295)", bad: BAD_COUNTS },
    Sample { flag: "max-range-wait", good: "0", other: "250ms", reads: "max_range_wait: None", bad: BAD_SPANS },
    Sample { flag: "grace-period", good: "45", other: "0", reads: "grace_period: Millis(45000)", bad: BAD_SPANS },
    Sample { flag: "grace-policy", good: "strict", other: "held", reads: "grace_policy: Strict", bad: &["lax", "Held", "1"] },
    Sample { flag: "read-timeout", good: "1", other: "7", reads: "read_timeout: Millis(1000)", bad: BAD_SPANS_ABOVE_ZERO },
    Sample { flag: "write-timeout", good: "0", other: "7", reads: "write_timeout: None", bad: BAD_SPANS },
    Sample { flag: "shutdown-timeout", good: "250ms", other: "0", reads: "shutdown_timeout: Some(Millis(250))", bad: BAD_SPANS },
    Sample { flag: "auth-token", good: "s3cret", other: "x", reads: "auth_token: Some(Secret(…))", bad: &[] },
    Sample { flag: "auth-token-file", good: "tests/scripts/tokens/roles.tokens", other: "x", reads: "", bad: &["/nowhere/token", "src", "Cargo.toml"] },
    Sample { flag: "tls-cert", good: "/etc/cert.pem", other: "x", reads: r#"tls_cert: Some("/etc/cert.pem")"#, bad: &[] },
    Sample { flag: "tls-key", good: "/etc/key.pem", other: "x", reads: r#"tls_key: Some("/etc/key.pem")"#, bad: &[] },
    Sample { flag: "tls-client-ca", good: "/etc/ca.pem", other: "x", reads: r#"tls_client_ca: Some("/etc/ca.pem")"#, bad: &[] },
    Sample { flag: "auth-timeout", good: "250ms", other: "7", reads: "auth_timeout: Millis(250)", bad: BAD_SPANS_ABOVE_ZERO },
    Sample { flag: "tls-handshake-timeout", good: "250ms", other: "7", reads: "tls_handshake_timeout: Millis(250)", bad: BAD_SPANS_ABOVE_ZERO },
    Sample { flag: "unix-admin-uid", good: "1000", other: "0", reads: "unix_admin_uid: Some(1000)", bad: &["-1", "root", "4294967295", "+0"] },
    Sample { flag: "cpu", good: "3", other: "7", reads: "cpu: Some(3)", bad: &["-1", "all", "0x1", "99999999999999999999"] },
    Sample { flag: "spin", good: "1", other: "off", reads: "spin: true", bad: BAD_SWITCHES },
    Sample { flag: "log-file", good: "/var/log/latchd.log", other: "x", reads: r#"log_file: Some("/var/log/latchd.log")"#, bad: &[] },
    Sample { flag: "log-format", good: "json", other: "text", reads: "log_format: Json", bad: &["xml", "JSON"] },
    Sample { flag: "debug", good: "yes", other: "0", reads: "log_level: Debug", bad: BAD_SWITCHES },
    Sample { flag: "log-level", good: "trace", other: "warn", reads: "log_level: Trace", bad: &["off", "loud", "3"] },
];

/// The samples and their rows; the token file has tests of its own, and so has the configuration file
/// (`file_tests.rs`).
fn samples() -> impl Iterator<Item = (&'static Sample, &'static Row)> {
    assert!(
        SAMPLES
            .iter()
            .map(|s| s.flag)
            .eq(ROWS.iter().map(|row| row.flag))
    );
    SAMPLES.iter().zip(ROWS)
}

/// Those that need a file, or one another, have tests of their own.
pub(super) fn stands_alone(flag: &str) -> bool {
    let others = ["auth-token-file", "tls-cert", "tls-key", "tls-client-ca"];
    flag != CONFIG && !others.contains(&flag) && !etcd::FLAGS.contains(&flag)
}

#[test]
fn every_option_by_flag_by_variable_and_flag_over_variable() {
    for (sample, row) in samples().filter(|(_, row)| stands_alone(row.flag)) {
        let Sample {
            flag,
            good,
            other,
            reads,
            ..
        } = sample;
        let by_flag = config(&format!("--{flag}={good}"), &[]);
        assert!(
            format!("{by_flag:?}").contains(reads),
            "--{flag}={good}: {by_flag:?}"
        );
        if row.flag != "lease-sweep-interval" {
            assert_ne!(
                by_flag,
                Config::default(),
                "--{flag}={good} changes nothing"
            );
        }
        assert_eq!(
            by_flag,
            config(&format!("-{flag}={good}"), &[]),
            "Go's one dash"
        );
        if !matches!(row.takes, Takes::Switch { .. }) {
            assert_eq!(by_flag, config(&format!("--{flag} {good}"), &[]));
            assert_eq!(by_flag, config(&format!("-{flag} {good}"), &[]));
        }
        for name in row.env {
            assert_eq!(by_flag, config("", &[(name, good)]), "{name}={good}");
            assert_eq!(
                by_flag,
                config(&format!("--{flag}={good}"), &[(name, other)]),
                "{name}"
            );
        }
        if row.takes != Takes::Words {
            assert_eq!(
                by_flag,
                config(&format!("--{flag}={other} --{flag}={good}"), &[]),
                "the last"
            );
        }
    }
}

#[test]
fn a_bad_value_is_an_error_that_names_option_and_value() {
    for (sample, row) in samples() {
        for bad in sample.bad {
            let says = error(&format!("--{}={bad}", row.flag), &[]);
            assert!(says.starts_with(&format!("--{}: ", row.flag)), "{says}");
            assert!(says.contains(&format!("{bad:?}")), "{says}");
            for name in row.env {
                let says = error("", &[(name, bad)]);
                assert!(says.starts_with(&format!("{name}: ")), "{says}");
                assert!(says.contains(&format!("{bad:?}")), "{says}");
            }
        }
        let says = error(&format!("--{}=", row.flag), &[]);
        assert!(
            says.contains(&format!("--{}", row.flag)),
            "empty by flag: {says}"
        );
    }
    let says = error("--port -5", &[]);
    assert_eq!(
        says,
        r#"--port: "-5" is not a port: a whole number from 0 to 65535, 0 for any free one"#
    );
    assert!(error("", &[("LATCHD_PORT", " 6388")]).contains(r#"" 6388""#));
    assert!(
        !error("", &[("LATCHD_HOST", "a\nb")]).contains('\n'),
        "one line"
    );
}

#[test]
fn an_empty_variable_is_unset_unless_it_is_a_token() {
    for row in ROWS.iter().filter(|row| !row.is_token()) {
        for name in row.env {
            assert_eq!(config("", &[(name, "")]), Config::default(), "{name}");
        }
    }
    let env = [("LATCHD_GC_INTERVAL", ""), ("LATCHD_GC_LOOP_SLEEP", "7")];
    assert_eq!(config("", &env).gc_interval, Millis::from_secs(7));
    for name in ["LATCHD_AUTH_TOKEN", "LATCHD_AUTH_TOKEN_FILE"] {
        let says = error("", &[(name, "")]);
        assert!(
            says.starts_with(&format!("{name}: ")) && says.contains("empty"),
            "{says}"
        );
    }
}

#[test]
fn a_port_made_by_kubernetes_is_refused_with_the_way_out() {
    let says = error("", &[("LATCHD_PORT", "tcp://10.96.0.12:6388")]);
    assert!(
        says.starts_with(r#"LATCHD_PORT: "tcp://10.96.0.12:6388" is not a port"#),
        "{says}"
    );
    assert!(says.contains("enableServiceLinks: false"), "{says}");
}

#[test]
fn a_port_for_http_made_by_kubernetes_is_refused_with_the_name_of_that_service() {
    let says = error("", &[("LATCHD_HTTP_PORT", "tcp://10.96.0.12:6389")]);
    assert!(says.contains("a service named latchd-http; "), "{says}");
}

#[test]
fn names_given_several_times_all_count_and_beat_the_variable() {
    let names = |line: &str| config(line, &[("LATCHD_HTTP_HOST_NAME", "env")]).http_host_names;
    assert_eq!(names(""), ["env"]);
    assert_eq!(names("--http-host-name a"), ["a"]);
    let several = "--http-host-name a --http-host-name=b,c -http-host-name d";
    assert_eq!(names(several), ["a", "b", "c", "d"]);
    let says = error("--http-host-name a --http-host-name b:1", &[]);
    assert!(
        says.starts_with(r#"--http-host-name: "a,b:1" is not a host name"#),
        "{says}"
    );
    let says = error("--http-host-name --spin", &[]);
    assert!(says.contains("--http-host-name=VALUE"), "{says}");
}

#[test]
fn a_port_for_http_is_asked_for_by_flag_or_variable_and_not_by_default() {
    assert_eq!(config("", &[]).http_port, HttpPort::IfFree(6389));
    let asked = HttpPort::Asked(6389);
    assert_eq!(config("--http-port 6389", &[]).http_port, asked);
    let by_variable = [("LATCHD_HTTP_PORT", "6389")];
    assert_eq!(config("", &by_variable).http_port, asked);
    assert_eq!(
        config("--http-port off", &by_variable).http_port,
        HttpPort::Off
    );
}

#[test]
fn the_files_of_tls_come_together() {
    let pair = "--tls-cert /c.pem --tls-key /k.pem";
    let by_flag = config(pair, &[]);
    assert_eq!(by_flag.tls_cert, Some("/c.pem".into()));
    assert_eq!(by_flag.tls_key, Some("/k.pem".into()));
    assert_eq!(by_flag.tls_client_ca, None);
    let env = [("LATCHD_TLS_CERT", "/c.pem"), ("LATCHD_TLS_KEY", "/k.pem")];
    assert_eq!(config("", &env), by_flag);
    assert_eq!(
        config("--tls-cert /c.pem", &[("LATCHD_TLS_KEY", "/k.pem")]),
        by_flag
    );
    let mutual = config(
        &format!("{pair} --tls-client-ca /ca.pem --host 0.0.0.0"),
        &[],
    );
    assert_eq!(mutual.tls_client_ca, Some("/ca.pem".into()));
    assert!(
        !mutual.is_open_to_the_network(),
        "a certificate is asked for"
    );
    assert!(config(&format!("{pair} --host 0.0.0.0"), &[]).is_open_to_the_network());
    for (half, names) in [
        ("--tls-cert /c.pem", "--tls-key"),
        ("--tls-key /k.pem", "--tls-cert"),
        ("--tls-client-ca /ca.pem", "--tls-cert"),
        ("--tls-key /k.pem --tls-client-ca /ca.pem", "--tls-cert"),
    ] {
        let wrong = load_line(half, &[]).unwrap_err();
        assert_eq!(wrong.exit(), Exit::Config, "{half}");
        assert!(wrong.to_string().contains(names), "{half}: {wrong}");
        assert!(wrong.to_string().contains(&half[..9]), "{half}: {wrong}");
    }
}

#[test]
fn one_socket_does_not_speak_two_protocols() {
    for (line, says) in [
        (
            "--port 7 --http-port 7",
            "--port and --http-port are both 7: choose another for one",
        ),
        (
            "--unix-socket /run/x --http-unix-socket /run//x",
            r#"--unix-socket and --http-unix-socket are both "/run/x": choose another for one"#,
        ),
    ] {
        assert_eq!(error(line, &[]), says);
        assert_eq!(load_line(line, &[]).unwrap_err().exit(), Exit::Config);
    }
    config("--port 0 --http-port 0", &[]); // any two
    config("--port 6389", &[]); // nobody asked for HTTP
}

#[test]
fn variables_are_named_after_flags_and_dflockds_are_not_read() {
    for row in ROWS {
        let own = format!("LATCHD_{}", row.flag.to_uppercase().replace('-', "_"));
        assert_eq!(row.env[0], own);
        assert!(row.env.iter().all(|name| name.starts_with("LATCHD_")));
        if row.value == "DURATION" {
            assert!(row.env.contains(&format!("{own}_S").as_str()), "{own}_S");
        }
    }
    assert_eq!(
        config("", &[("DFLOCKD_PORT", "1"), ("DFLOCKD_AUTH_TOKEN", "x")]),
        Config::default()
    );
}

#[test]
fn the_defaults() {
    let c = config("", &[]);
    assert_eq!(c, Config::default());
    assert_eq!(c.listen_addr().to_string(), "127.0.0.1:6388");
    assert_eq!((c.unix_socket, c.unix_socket_mode), (None, 0o600));
    assert_eq!(
        (c.http_port, c.http_unix_socket),
        (HttpPort::IfFree(6389), None)
    );
    assert!(c.http_host_names.is_empty());
    assert!(!c.metrics_open && !c.get_secrets && !c.access_log);
    assert_eq!(c.default_lease_ttl, Millis::from_secs(33));
    assert_eq!(
        (c.gc_interval, c.gc_max_idle),
        (Millis::from_secs(5), Millis::from_secs(60))
    );
    assert_eq!(
        (c.max_locks, c.max_connections, c.max_waiters),
        (Some(1_000_000), None, None)
    );
    assert_eq!(c.max_holds, Some(10_000_000));
    assert_eq!(
        (c.max_keys, c.max_list_length, c.max_subscriptions),
        (Some(1_000_000), Some(1_000_000), None)
    );
    assert_eq!(c.max_clients_per_adapter, Some(10_000));
    assert_eq!(
        (
            c.max_range_locks_per_resource,
            c.max_range_locks_per_client,
            c.max_range_locks
        ),
        (Some(1_000), Some(10_000), Some(100_000))
    );
    assert_eq!(c.max_range_wait, Some(Millis::from_secs(60)));
    assert_eq!(
        (c.grace_period, c.grace_policy),
        (Millis::from_secs(90), GracePolicy::Held)
    );
    assert_eq!(c.max_memory, MaxMemory::Half);
    assert_eq!(c.read_timeout, Millis::from_secs(23));
    assert_eq!(c.write_timeout, Some(Millis::from_secs(5)));
    assert_eq!(c.shutdown_timeout, Some(Millis::from_secs(30)));
    assert!(c.auto_release_on_disconnect && !c.spin);
    assert_eq!((c.auth_token, c.cpu), (None, None));
    assert_eq!(
        (c.wire_fence, c.log_format),
        (WireFence::Auto, LogFormat::Text)
    );
    assert_eq!(c.log_level, LevelFilter::Info);
}

#[test]
fn an_ipv6_address_keeps_its_brackets_and_the_open_door_is_noticed() {
    for line in ["--host ::1 --port 7", "--host [::1] --port 7"] {
        assert_eq!(config(line, &[]).listen_addr().to_string(), "[::1]:7");
    }
    for (line, open) in [
        ("", false),
        ("--host ::1", false),
        ("--host ::ffff:127.0.0.1", false),
        ("--host ::", true),
        ("--host 0.0.0.0", true),
        ("--host 0.0.0.0 --auth-token x", false),
    ] {
        assert_eq!(config(line, &[]).is_open_to_the_network(), open, "{line}");
    }
}

#[test]
fn switches_in_every_spelling() {
    let env_off = [("LATCHD_AUTO_RELEASE_ON_DISCONNECT", "0")];
    for (line, env, on) in [
        ("", &[][..], true),
        ("", &env_off, false),
        ("--auto-release-on-disconnect", &env_off, true),
        ("-auto-release-on-disconnect", &env_off, true),
        ("--auto-release-on-disconnect=false", &[], false),
        ("--auto-release-on-disconnect=0", &[], false),
        ("--no-auto-release-on-disconnect", &[], false),
        (
            "--no-auto-release-on-disconnect --auto-release-on-disconnect",
            &[],
            true,
        ),
        (
            "--auto-release-on-disconnect --no-auto-release-on-disconnect",
            &[],
            false,
        ),
        (
            "--auto-release-on-disconnect=yes --no-auto-release-on-disconnect",
            &[],
            false,
        ),
    ] {
        assert_eq!(
            config(line, env).auto_release_on_disconnect,
            on,
            "{line} {env:?}"
        );
    }
    assert!(config("--spin", &[]).spin);
    assert!(
        error("--spin no", &[]).contains(r#""no""#),
        "Go takes no value without = either"
    );
    assert!(error("--no-auto-release-on-disconnect=1", &[]).contains("takes no value"));
}

#[test]
fn debug_and_log_level_agree_on_who_speaks_last() {
    for (line, env, level) in [
        (
            "--debug",
            &[("LATCHD_LOG_LEVEL", "warn")],
            LevelFilter::Debug,
        ),
        (
            "--log-level warn",
            &[("LATCHD_DEBUG", "1")],
            LevelFilter::Warn,
        ),
        (
            "--debug --log-level trace",
            &[("LATCHD_DEBUG", "0")],
            LevelFilter::Trace,
        ),
        (
            "--log-level error --debug",
            &[("LATCHD_DEBUG", "0")],
            LevelFilter::Error,
        ),
        (
            "--debug=false",
            &[("LATCHD_LOG_LEVEL", "warn")],
            LevelFilter::Warn,
        ),
        ("--debug=false", &[("LATCHD_DEBUG", "1")], LevelFilter::Info),
    ] {
        assert_eq!(config(line, env).log_level, level, "{line} {env:?}");
    }
}

#[test]
fn tokens_come_from_the_best_source_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "from file \r\n\n").unwrap();
    let file = path.to_str().unwrap();
    let by_file = format!("--auth-token-file={file}");
    let token = |line: &str, env: &[(&str, &str)]| {
        let secret = config(line, env).auth_token.unwrap();
        String::from_utf8(secret.as_bytes().to_vec()).unwrap()
    };
    let env = [
        ("LATCHD_AUTH_TOKEN", "env"),
        ("LATCHD_AUTH_TOKEN_FILE", file),
    ];
    let broken = [
        ("LATCHD_AUTH_TOKEN", ""),
        ("LATCHD_AUTH_TOKEN_FILE", "/nowhere"),
    ];
    assert_eq!(token("--auth-token flag", &env), "flag");
    assert_eq!(token("--auth-token flag", &broken), "flag");
    assert_eq!(token(&by_file, &env), "from file");
    assert_eq!(token(&by_file, &broken), "from file");
    assert_eq!(token("", &env), "env");
    assert_eq!(token("", &env[1..]), "from file");
    assert!(error(&format!("{by_file} --auth-token x"), &[]).contains("both"));
}

#[test]
fn a_token_that_cannot_be_used_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let name = path.to_str().unwrap();
    for (contents, why) in [
        (&b""[..], "empty"),
        (b" \r\n", "empty"),
        (b"s3cret\nmore s3cret words\n", "line 2"),
        (b"s3cret\ns3cret\n", "line 2"),
        (b"s3\0cret", "control byte"),
        (b" s3cret", "blank"),
        (b"s3\xffcret", "UTF-8"),
        (&[b'x'; 200_000], "longer"),
    ] {
        fs::write(&path, contents).unwrap();
        let says = error(&format!("--auth-token-file={name}"), &[]);
        assert!(
            says.starts_with("--auth-token-file: ") && says.contains(why),
            "{says}"
        );
        // The name of a temporary directory is random: it may contain anything.
        let without_path = says.replace(name, "");
        assert!(
            says != without_path && !without_path.contains("s3") && says.len() < 300,
            "{says}"
        );
        let says = error("", &[("LATCHD_AUTH_TOKEN_FILE", name)]);
        assert!(says.starts_with("LATCHD_AUTH_TOKEN_FILE: "), "{says}");
    }
    for path in ["/nowhere/token", dir.path().to_str().unwrap()] {
        let says = error(&format!("--auth-token-file={path}"), &[]);
        assert!(
            says.contains("cannot read") && says.contains(path),
            "{says}"
        );
    }
    let says = error("", &[("LATCHD_AUTH_TOKEN", "s3cret\n")]);
    assert!(
        says.starts_with("LATCHD_AUTH_TOKEN: ") && !says.contains("s3"),
        "{says}"
    );
    assert!(error("--auth-token=", &[]).contains("empty"));
    for line in [
        "--auth-token -s3cret",
        "--auth-token --s3cret",
        "--auth-token",
    ] {
        let says = error(line, &[]);
        assert!(
            says.contains("--auth-token=VALUE") && !says.contains("s3"),
            "{says}"
        );
    }
    assert_eq!(
        config("--auth-token=-x", &[])
            .auth_token
            .unwrap()
            .as_bytes(),
        b"-x"
    );
    assert!(!format!("{:?}", config("--auth-token=s3cret", &[])).contains("s3"));
}

#[test]
fn what_is_not_utf8_is_refused() {
    let bytes = |text: &[u8]| OsString::from_vec(text.to_vec());
    let args = [bytes(b"latchd"), bytes(b"--auth-token"), bytes(b"s3\xff")];
    let says = load(args, &|_| None).unwrap_err().to_string();
    assert_eq!(says, "--auth-token: the value is not valid UTF-8");
    let says = error("", &[("LATCHD_UNIX_SOCKET", "a\u{fffd}b")]);
    assert_eq!(says, "LATCHD_UNIX_SOCKET: the value is not valid UTF-8");
}

#[test]
fn an_unknown_option_is_answered_with_the_right_one() {
    for (line, option, right) in [
        ("--prot 1", "--prot", "--port"),
        ("-prot=1", "--prot", "--port"),
        ("--auth-tokne=s3cret", "--auth-tokne", "--auth-token"),
        ("--max-lock 3", "--max-lock", "--max-locks"),
        ("--htpp-port 1", "--htpp-port", "--http-port"),
        ("--http-hostname x", "--http-hostname", "--http-host-name"),
        ("--zzz", "--zzz", "--help"),
        ("-z", "-z", "--help"),
        ("stray", "stray", "--help"),
        ("-- stray", "stray", "--help"),
        (
            "--unix-socket --spin",
            "--unix-socket",
            "--unix-socket=VALUE",
        ),
        ("--port", "--port", "missing"),
    ] {
        let says = error(line, &[]);
        assert!(
            says.contains(option) && says.contains(right),
            "{line}: {says}"
        );
        assert!(!says.contains("s3") && !says.contains('\n'), "{says}");
    }
}

#[test]
fn a_variable_that_means_nothing_is_noticed() {
    let names = [
        "PATH",
        "LATCHD_PORT",
        "LATCHD_AUTH_TOKN",
        "LATCHD_GC_LOOP_SLEEP",
        "LATCHD_A",
    ];
    let unknown = unknown_env(names.map(str::to_owned).into_iter());
    assert_eq!(unknown, ["LATCHD_A", "LATCHD_AUTH_TOKN"]);
}

#[test]
fn a_directory_can_be_looked_at_and_mended_instead_of_served() {
    let inspects = |line: &str| match load_line(line, &[]) {
        Ok(Outcome::Inspect { path, json }) => (path, json),
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(inspects("--inspect /data"), ("/data".into(), false));
    assert_eq!(inspects("--inspect=/data --json"), ("/data".into(), true));
    let by_variable = [("LATCHD_DATA_DIR", "/data")];
    for (line, env) in [
        ("--repair --data-dir /data", &[][..]),
        ("--repair", &by_variable),
    ] {
        assert_eq!(load_line(line, env), Ok(Outcome::Repair("/data".into())));
    }
    assert_eq!(
        error("--repair", &[]),
        "--repair: which directory? Name it with --data-dir"
    );
    for line in [
        "--json",
        "--inspect",
        "--inspect a --repair --data-dir a",
        "--check-config --repair --data-dir a",
        "--check-config --inspect a",
    ] {
        assert!(load_line(line, &[]).is_err(), "{line}");
    }
}

#[path = "etcd_tests.rs"]
mod etcd;
