//! The log: one event, one line, in both formats, whatever peers send.

use serde_json::Value;

use crate::vocabulary::{Daemon, latchd, refusal};

/// Input that would be several lines, colours or orders to a terminal if it were logged as it is.
fn hostile_inputs() -> Vec<Vec<u8>> {
    let forged = "2026-01-01T00:00:00.000Z INFO  all is well";
    let texts = [
        format!("l\n\x1b[2J\x1b]0;{forged}\x07\n0\n"),
        format!("l\n{forged}\r{forged}\n0\n"),
        format!("nonsense\r\x1b[31m\n{forged}\n{forged}\n"),
        format!("hello\n_\nname=\u{202e}{forged}\u{85}\u{2028}\n"),
        format!("auth\n_\n{forged}\x1b\x00\n"),
        format!("GET /\x1b[2J{forged} HTTP/1.1\r\n"),
        format!("{forged}\n{forged}\n{forged}\n{}\n", "\x1b".repeat(300)),
    ];
    let mut inputs: Vec<Vec<u8>> = texts.map(String::into_bytes).into();
    inputs.push(b"l\n\xff\xfe\x9b2J\n0\n".to_vec());
    inputs
}

/// The whole log of a daemon that has heard all of it, at its most talkative.
fn log_of_a_hostile_day(options: &[&str]) -> Vec<String> {
    let mut daemon = Daemon::start(options);
    for input in hostile_inputs() {
        let mut client = daemon.connect();
        client.raw(input);
        client.half_close();
        client.rest();
    }
    daemon.stop()
}

#[test]
fn no_peer_can_forge_a_line_of_text() {
    for options in [
        &["--debug"][..],
        &["--log-level=trace", "--auth-token=s3cret"],
    ] {
        let log = log_of_a_hostile_day(options);
        assert!(log.len() > 10, "{log:#?}");
        for line in &log {
            let fields: Vec<&str> = line.splitn(3, ' ').collect();
            let [time, level, message] = fields[..] else {
                panic!("{line:?}");
            };
            assert!(time.len() == 24 && time.ends_with('Z'), "{line:?}");
            assert!(
                ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].contains(&level),
                "{line:?}"
            );
            assert!(!line.contains(char::is_control), "{line:?}");
            assert!(!message.contains("all is well"), "{line:?}");
        }
    }
}

#[test]
fn json_lines_are_objects_of_four_fields() {
    let log = log_of_a_hostile_day(&["--log-format=json", "--debug"]);
    for line in &log {
        let json: Value = serde_json::from_str(line).expect(line);
        let fields = json.as_object().unwrap();
        assert_eq!(fields.len(), 4, "{line}");
        for name in ["ts", "level", "target", "msg"] {
            assert!(fields[name].is_string(), "{line}");
        }
    }
    let start: Value = serde_json::from_str(&log[0]).unwrap();
    assert_eq!(start["level"], "INFO");
    let message = start["msg"].as_str().unwrap();
    assert!(message.contains(" listens on 127.0.0.1:"), "{message}");
}

/// A collector must be able to read why there is no daemon.
#[test]
fn a_failed_start_is_a_log_line_in_the_format_asked_for() {
    let why = "cannot listen on /dev/null (--unix-socket)";
    let start = |format: &str| {
        let mut command = latchd();
        command.args([
            "--port=0",
            "--unix-socket=/dev/null",
            "--log-format",
            format,
        ]);
        refusal(78, command)
    };
    let text = start("text");
    assert!(text.contains(&format!("Z ERROR {why}")), "{text}");
    let json = start("json");
    let json: Value = serde_json::from_str(&json).expect(&json);
    assert_eq!(json["level"], "ERROR");
    assert!(json["msg"].as_str().unwrap().starts_with(why), "{json}");
}

#[test]
fn connections_are_told_of_at_debug_only() {
    for (options, told) in [(&[][..], false), (&["--debug"], true)] {
        let mut daemon = Daemon::start(options);
        assert_eq!(daemon.connect().ask("ping _ _"), "ok");
        let log = daemon.stop();
        assert_eq!(
            log.iter().any(|line| line.contains("connection 1 from")),
            told,
            "{log:#?}"
        );
    }
}
