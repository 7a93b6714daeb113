//! What a program gets that depends on the library with `default-features = false`: what it names,
//! and none of the crates that the rest needs.

use std::io::ErrorKind;
use std::process::Command;

/// The tools, and crates that only they bring.
const OF_TOOLS: [&str; 3] = ["hdrhistogram", "latch-load", "latch-sim"];

/// The names of all crates in a build with these flags; `None` if this machine has no cargo.
fn crates(flags: &[&str]) -> Option<Vec<String>> {
    let lines = crates_as(flags, "{p}")?;
    let names = lines.iter().filter_map(|line| line.split(' ').next());
    Some(names.map(str::to_owned).collect())
}

/// A line in this format for each of them.
fn crates_as(flags: &[&str], format: &str) -> Option<Vec<String>> {
    let tree = [
        "tree",
        "--offline",
        "--locked",
        "-e",
        "normal",
        "--prefix",
        "none",
        "--format",
        format,
    ];
    let output = Command::new(env!("CARGO"))
        .args(tree)
        .args([
            "--manifest-path",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ])
        .args(flags)
        .output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: there is no cargo at {}", env!("CARGO"));
            return None;
        }
        output => output.expect("cargo tree runs"),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree {flags:?}: {errors}");
    let lines = String::from_utf8_lossy(&output.stdout);
    Some(lines.lines().map(str::to_owned).collect())
}

#[test]
fn the_daemon_needs_no_crate_of_the_clients() {
    let Some(crates) = crates(&["--no-default-features", "--features", "daemon"]) else {
        return;
    };
    assert!(crates.iter().any(|it| it == "mio"), "no tree: {crates:?}");
    for name in ["fastrand", "ureq"] {
        assert!(!crates.iter().any(|it| it == name), "{name}: {crates:?}");
    }
}

/// What `cargo run` and `cargo build` make has nothing for developers in it: none of the tools, and
/// of the daemon no code that only they need.
#[test]
fn what_ships_has_nothing_for_developers() {
    let Some(crates) = crates(&[]) else {
        return;
    };
    assert!(crates.iter().any(|it| it == "mio"), "no tree: {crates:?}");
    for name in OF_TOOLS {
        assert!(!crates.iter().any(|it| it == name), "{name}: {crates:?}");
    }
    let features = crates_as(&[], "{p} {f}").unwrap();
    let own = features.iter().find(|it| it.starts_with("latchd "));
    let own = own.expect("its features");
    assert!(own.contains("daemon") && !own.contains("judge"), "{own}");
}

#[test]
fn only_tls_needs_rustls() {
    let flags = ["--no-default-features", "--features", "daemon"];
    let Some(without) = crates(&flags) else {
        return;
    };
    let with = crates(&["--no-default-features", "--features", "daemon,tls"]).unwrap();
    for name in ["rustls", "ring", "rustls-webpki"] {
        assert!(!without.iter().any(|it| it == name), "{name}: {without:?}");
        assert!(with.iter().any(|it| it == name), "{name}: {with:?}");
    }
    assert!(
        !with
            .iter()
            .any(|it| it.contains("openssl") || it.contains("aws-lc"))
    );
}

#[test]
fn the_client_needs_no_crate_of_the_daemon() {
    let flags = ["--no-default-features", "--features", "client"];
    let Some(mut crates) = crates(&flags) else {
        return;
    };
    crates.sort();
    crates.dedup();
    let expected = [
        "bitflags",
        "itoa",
        "latchd",
        "linux-raw-sys",
        "memchr",
        "rustix",
        "serde_core",
        "serde_json",
        "uuid",
        "zmij",
    ];
    assert_eq!(crates, expected);
}

#[test]
fn the_command_needs_nothing_of_the_daemon() {
    let flags = ["--no-default-features", "--features", "cli"];
    let Some(crates) = crates(&flags) else {
        return;
    };
    assert!(crates.iter().any(|it| it == "clap"), "no tree: {crates:?}");
    for name in ["mio", "slab", "socket2", "env_logger", "httparse"] {
        assert!(!crates.iter().any(|it| it == name), "{name}: {crates:?}");
    }
}

#[test]
fn file_locks_need_four_small_crates() {
    let flags = ["--no-default-features", "--features", "ephemeral"];
    let Some(mut crates) = crates(&flags) else {
        return;
    };
    crates.sort();
    let expected = ["bitflags", "latchd", "linux-raw-sys", "log", "rustix"];
    assert_eq!(crates, expected);
}

/// The client over HTTP gets nothing of the daemon: no loop, no slots, no command line, no logger. (ureq
/// tells `log` what it does; nobody listens unless the program has a logger.)
#[test]
fn a_client_over_http_needs_ureq_and_a_clock() {
    let flags = ["--no-default-features", "--features", "http"];
    let Some(mut crates) = crates(&flags) else {
        return;
    };
    crates.sort();
    crates.dedup();
    let expected = [
        "base64",
        "bitflags",
        "bytes",
        "fastrand",
        "http",
        "httparse",
        "itoa",
        "latchd",
        "linux-raw-sys",
        "log",
        "percent-encoding",
        "rustix",
        "ureq",
        "ureq-proto",
        "utf8-zero",
    ];
    assert_eq!(crates, expected);
}

/// With TLS there is one provider of cryptography, and it is ring.
#[test]
fn a_client_over_https_brings_ring_alone() {
    let flags = ["--no-default-features", "--features", "http,tls"];
    let Some(crates) = crates(&flags) else {
        return;
    };
    let has = |name: &str| crates.iter().any(|it| it == name);
    assert!(has("rustls") && has("ring"), "{crates:?}");
    for name in [
        "aws-lc-rs",
        "openssl",
        "native-tls",
        "mio",
        "slab",
        "clap",
        "env_logger",
    ] {
        assert!(!has(name), "{name}: {crates:?}");
    }
}

#[test]
fn without_a_feature_there_is_nothing() {
    let Some(crates) = crates(&["--no-default-features"]) else {
        return;
    };
    assert_eq!(crates, ["latchd"]);
}

/// Otherwise the test of what ships would not notice that a crate has another name now.
#[test]
fn the_tools_are_there() {
    let tools = ["--package", "latch-load", "--package", "latch-sim"];
    let Some(crates) = crates(&tools) else {
        return;
    };
    for name in OF_TOOLS {
        assert!(crates.iter().any(|it| it == name), "{name}: {crates:?}");
    }
}

/// What stands behind a word in a file, up to the next blank.
fn behind<'t>(text: &'t str, word: &str) -> Vec<&'t str> {
    let rests = text.split(word).skip(1);
    rests
        .filter_map(|rest| rest.split_whitespace().next())
        .collect()
}

#[test]
fn packages_have_the_features_that_the_page_about_operating_promises() {
    let page = include_str!("../../docs/operating.md");
    let line = page
        .lines()
        .find(|line| line.starts_with("Each of them has the features "));
    let promised: Vec<&str> = line.expect("which").split('`').skip(1).step_by(2).collect();
    assert!(promised.contains(&"daemon"), "{promised:?}");
    for (name, script) in [
        ("static", include_str!("../../tools/package/static")),
        ("Dockerfile", include_str!("../../tools/package/Dockerfile")),
    ] {
        assert_eq!(
            behind(script, "--features "),
            [promised.join(",")],
            "{name}"
        );
        assert!(script.contains("--no-default-features"), "{name}");
    }
    // The Debian package and whoever builds from source take what there is by default.
    let deb = include_str!("../../tools/package/deb");
    assert!(deb.contains("cargo build") && !deb.contains("features"));
    let manifest = include_str!("../../Cargo.toml");
    let default = manifest
        .lines()
        .find(|line| line.starts_with("default = ["));
    for feature in promised {
        let quoted = format!("\"{feature}\"");
        assert!(default.is_some_and(|it| it.contains(&quoted)), "{feature}");
    }
}
