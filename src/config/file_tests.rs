//! What stands in a configuration file, and what comes of it: every option of the table as a key, and
//! every way to write one wrong.

use std::fs;

use super::row::Takes;
use super::tests::{SAMPLES, Sample, load_line, stands_alone};
use super::*;

/// What a command line and an environment give with this file.
fn load_with(
    contents: &[u8],
    line: &str,
    env: &[(&str, &str)],
) -> (String, Result<Outcome, ConfigError>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latchd.toml");
    fs::write(&path, contents).unwrap();
    let path = path.to_str().unwrap();
    let outcome = load_line(&format!("--config={path} {line}"), env);
    (path.to_owned(), outcome)
}

#[track_caller]
fn config(contents: &str, line: &str, env: &[(&str, &str)]) -> Config {
    match load_with(contents.as_bytes(), line, env).1 {
        // Where the settings came from is not what is compared.
        Ok(Outcome::Run(config)) => Config {
            config_file: None,
            config_file_has_token: false,
            shares_are_in_file: false,
            ..config
        },
        other => panic!("{contents} {line} {env:?}: {other:?}"),
    }
}

/// What is said about this file, behind its path. It always ends the start with 78, in one line.
#[track_caller]
fn error(contents: impl AsRef<[u8]>) -> String {
    let contents = contents.as_ref();
    let shown = contents.escape_ascii();
    match load_with(contents, "", &[]) {
        (path, Err(error)) => {
            assert_eq!(error.exit(), Exit::Config, "{shown}: {error}");
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            let behind = text.strip_prefix(&path).map(str::to_owned);
            behind.unwrap_or_else(|| panic!("{shown} does not name the file: {text}"))
        }
        (_, other) => panic!("{shown}: {other:?}"),
    }
}

/// A value as it is written in TOML.
fn written(takes: Takes, text: &str) -> String {
    match takes {
        Takes::Switch { .. } => value::switch(text).unwrap().to_string(),
        Takes::Words => {
            let words: Vec<String> = text.split(',').map(|it| format!("{it:?}")).collect();
            format!("[{}]", words.join(", "))
        }
        Takes::Number if text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0') => {
            text.to_owned()
        }
        Takes::Number | Takes::Word => format!("{text:?}"),
    }
}

/// The one test that every present and future option passes: by its key in the file it is what it
/// is by its flag, a variable beats the file, and the flag beats both.
#[test]
fn every_option_of_the_table_is_a_key_and_the_weakest_source() {
    let samples = SAMPLES.iter().zip(ROWS);
    for (sample, row) in samples.filter(|(_, row)| row.flag != CONFIG) {
        let Sample {
            flag, good, other, ..
        } = sample;
        let by_key = format!("{flag} = {}\n", written(row.takes, good));
        // What needs a file or another option may be refused for that, but not because it is unknown.
        if !stands_alone(flag) {
            if let (_, Err(error)) = load_with(by_key.as_bytes(), "", &[]) {
                let says = error.to_string();
                assert!(
                    says.contains(flag) && !says.contains("unknown key"),
                    "{says}"
                );
            }
            continue;
        }
        let by_flag = config("", &format!("--{flag}={good}"), &[]);
        assert_eq!(config(&by_key, "", &[]), by_flag, "{by_key}");
        let weaker = format!("{flag} = {}\n", written(row.takes, other));
        for name in row.env {
            assert_eq!(config(&weaker, "", &[(name, good)]), by_flag, "{name}");
        }
        let line = format!("--{flag}={good}");
        assert_eq!(config(&weaker, &line, &[]), by_flag, "{line}");
    }
}

#[test]
fn config_file_holds_the_token_only_if_that_token_counts() {
    let token = "auth-token = \"in-the-file\"";
    for (contents, line, env, has_token) in [
        (token, "", &[][..], true),
        (token, "--auth-token=stronger", &[], false),
        (token, "", &[("LATCHD_AUTH_TOKEN", "stronger")], false),
        ("", "--auth-token=stronger", &[], false),
    ] {
        let outcome = load_with(contents.as_bytes(), line, env).1;
        let Ok(Outcome::Run(config)) = outcome else {
            panic!("{contents} {line}: {outcome:?}");
        };
        assert_eq!(config.config_file_has_token, has_token, "{contents} {line}");
    }
}

#[test]
fn a_bad_value_names_file_line_and_key() {
    for (sample, row) in SAMPLES.iter().zip(ROWS) {
        if row.flag == CONFIG || row.flag == "auth-token-file" {
            continue;
        }
        let is_switch = matches!(row.takes, Takes::Switch { .. });
        for bad in sample.bad {
            let says = error(format!("# a comment\n\n{} = {bad:?}\n", row.flag));
            let place = format!(":3: {}: ", row.flag);
            assert!(says.starts_with(&place), "{says}");
            assert!(is_switch || says.contains(&format!("{bad:?}")), "{says}");
        }
        let says = error(format!("{} = 1979-05-27\n", row.flag));
        let start = format!(":1: {}: a date cannot stand here: write ", row.flag);
        assert!(says.starts_with(&start), "{says}");
    }
}

#[test]
fn kinds_of_values_are_told_apart() {
    for (line, says) in [
        ("port = true", ":1: port: true or false cannot stand here: "),
        ("port = 1.5", ":1: port: a fraction cannot stand here: "),
        ("port = 0x1900", ":1: port: a number like this cannot"),
        ("port = [1]", ":1: port: a list cannot stand here: "),
        ("port = -1", r#":1: port: "-1" is not a port"#),
        (
            "spin = \"yes\"",
            ":1: spin: text cannot stand here: write true or false",
        ),
        (
            "spin = 1",
            ":1: spin: a number like this cannot stand here: ",
        ),
        (
            "host = 1",
            ":1: host: a number like this cannot stand here: ",
        ),
        (
            "http-host-name = [\"a\", true]",
            ":1: http-host-name: true or false",
        ),
        (
            "http-host-name = [\"a b\"]",
            r#":1: http-host-name: "a b" is not a host"#,
        ),
        (
            "unix-socket-mode = 0x1ff",
            ":1: unix-socket-mode: a number like",
        ),
        (
            "unix-socket = \"\"",
            r#":1: unix-socket: "" is not the path"#,
        ),
        ("auth-token = \"\"", ":1: auth-token: the token is empty"),
        (
            "auth-token = \"a\"\nauth-token-file = \"b\"",
            ":1: auth-token and ",
        ),
    ] {
        let said = error(line);
        assert!(said.starts_with(says), "{line}: {said}");
    }
    assert_eq!(
        config("unix-socket-mode = 0o660", "", &[]).unix_socket_mode,
        0o660
    );
    assert_eq!(
        config("unix-socket-mode = 660", "", &[]).unix_socket_mode,
        0o660
    );
    assert_eq!(config("max-locks = 1_000", "", &[]).max_locks, Some(1_000));
    assert_eq!(
        config("http-host-name = \"a\"", "", &[]).http_host_names,
        ["a"]
    );
    assert!(
        config("http-host-name = []", "", &[])
            .http_host_names
            .is_empty()
    );
    assert_eq!(
        config("http-port = \"off\"", "", &[]).http_port,
        HttpPort::Off
    );
}

#[test]
fn a_key_that_means_nothing_is_answered_with_the_right_one() {
    for (line, says) in [
        ("prot = 1", r#":1: unknown key "prot"; did you mean port?"#),
        (
            "\n\nhttp_port = 1",
            r#":3: unknown key "http_port"; did you mean http-port?"#,
        ),
        (
            "--port = 1",
            r#":1: unknown key "--port"; did you mean port?"#,
        ),
        (
            "max-lock = 1",
            r#":1: unknown key "max-lock"; did you mean max-locks?"#,
        ),
        (
            "zzz = 1",
            r#":1: unknown key "zzz"; keys are the names of flags, see latchd --help"#,
        ),
        ("\"\" = 1", r#":1: unknown key ""; keys are"#),
        ("\"a=b\\n\" = 1", r#":1: unknown key "a=b\n"; keys are"#),
        ("inspect = \"x\"", r#":1: unknown key "inspect""#),
        ("help = true", r#":1: unknown key "help""#),
        (
            "no-auto-release-on-disconnect = true",
            r#":1: unknown key "no-auto-release-on-disconnect"; write auto-release-on-disconnect = false"#,
        ),
        (
            "[http]\nport = 1",
            r#":1: "http" is a section, and there are none"#,
        ),
        (
            "http.port = 1",
            r#":1: "http" is a section, and there are none"#,
        ),
        (
            "config = \"x\"",
            ":1: config: a configuration file cannot name another",
        ),
    ] {
        let said = error(line);
        assert!(said.starts_with(says), "{line}: {said}");
    }
    assert!(error("[http]\nport = 1").ends_with("such as http-port"));
}

#[test]
fn what_is_no_toml_is_refused_with_its_line_and_without_its_text() {
    for (contents, line) in [
        (&b"port\n"[..], 1),
        (b"spin = true\nauth-token = s3cret\n", 2),
        (b"auth-token = \"s3cret\n", 1),
        (b"port = 1\n\nport = 2\n", 3),
        (b"port = 06388\n", 1),
        (b"spin = true\nhost = \"\xff\"\n", 2),
    ] {
        let said = error(contents);
        assert!(said.starts_with(&format!(":{line}: ")), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_who_named_it() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("long");
    fs::write(&long, "#".repeat(300_000)).unwrap();
    let long = long.to_str().unwrap();
    let of = |line: &str, env: &[(&str, &str)]| match load_line(line, env) {
        Err(error) => {
            assert_eq!(error.exit(), Exit::Config, "{error}");
            error.to_string()
        }
        other => panic!("{line}: {other:?}"),
    };
    let said = of(&format!("--config={long}"), &[]);
    assert!(
        said.starts_with("--config: ") && said.ends_with("is longer than 256 KiB"),
        "{said}"
    );
    let said = of("--config /dev/zero", &[]);
    assert!(said.ends_with("it is not a regular file"), "{said}");
    let said = of("", &[("LATCHD_CONFIG", "/nowhere/x")]);
    assert!(
        said.starts_with(r#"LATCHD_CONFIG: cannot read "/nowhere/x": "#),
        "{said}"
    );
    let said = of("--config /nowhere/y", &[("LATCHD_CONFIG", "/nowhere/x")]);
    assert!(
        said.starts_with(r#"--config: cannot read "/nowhere/y": "#),
        "{said}"
    );
}

#[test]
fn a_token_in_the_file_is_the_weakest_and_a_port_there_was_asked_for() {
    let token = |config: Config| config.auth_token.unwrap().as_bytes().to_vec();
    let file = "auth-token = \"from file\"\n";
    assert_eq!(token(config(file, "", &[])), b"from file");
    assert_eq!(
        token(config(file, "", &[("LATCHD_AUTH_TOKEN", "env")])),
        b"env"
    );
    assert_eq!(token(config(file, "--auth-token flag", &[])), b"flag");
    assert_eq!(
        config("http-port = 6389", "", &[]).http_port,
        HttpPort::Asked(6389)
    );
    assert_eq!(
        config("debug = true", "", &[("LATCHD_LOG_LEVEL", "warn")]).log_level,
        LevelFilter::Warn
    );
}

#[test]
fn settings_are_checked_and_a_directory_mended_by_the_file_too() {
    let (_, outcome) = load_with(b"data-dir = \"/data\"\n", "--repair", &[]);
    assert_eq!(outcome, Ok(Outcome::Repair("/data".into())));
    let (path, outcome) = load_with(b"port = 7\n", "--check-config", &[]);
    match outcome {
        Ok(Outcome::Check(config)) => {
            assert_eq!(config.port, 7);
            assert_eq!(config.config_file, Some(path.into()));
        }
        other => panic!("{other:?}"),
    }
}
