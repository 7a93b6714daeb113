//! The library, broken on purpose: the tests above must notice. Otherwise they would prove nothing.
//!
//! Each mutant is built with `--cfg ephemeral_mutant="…"` into a directory of its own, and the
//! contenders with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::crashes::let_go_beside_a_child;
use crate::crowds::{TIMES, count};
use crate::program::Program;
use crate::races::removed_while_held;

/// The contender with a library that is built like this; `None` if there is no compiler.
fn build(mutant: &str) -> Option<Program> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ephemeral-mutants");
    let cargo = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(root).args(args);
        // What is set for this build (a wrapper, other flags) is not meant for that one.
        command.env("CARGO_TARGET_DIR", &target);
        command.env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_BUILD_TARGET");
        command
    };
    let out = target.join("built").join(mutant);
    std::fs::create_dir_all(&out).unwrap();
    let lib = out.join("liblatchd.rlib");
    let cfg = match mutant {
        "none" => Vec::new(),
        _ => vec!["--cfg".to_owned(), format!("ephemeral_mutant=\"{mutant}\"")],
    };
    let built = cargo(&["rustc", "--lib", "--offline", "--locked", "--quiet"])
        .args(["--no-default-features", "--features", "ephemeral", "--"])
        .args(&cfg)
        .output();
    let built = match built {
        Err(error) => {
            eprintln!("SKIPPED: there is no cargo: {error}");
            return None;
        }
        Ok(built) => built,
    };
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{mutant}: {errors}");
    std::fs::copy(target.join("debug/liblatchd.rlib"), &lib).unwrap();
    let program = out.join("contender");
    link(root, &target, &lib, &program);
    Some(Program::At(program))
}

fn link(root: &Path, target: &Path, lib: &Path, program: &PathBuf) {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command
        .args([
            "--edition",
            "2024",
            "--crate-name",
            "contender",
            "-Awarnings",
        ])
        .arg(root.join("tests/ephemeral/contender.rs"))
        .arg("--extern")
        .arg(format!("latchd={}", lib.display()))
        .arg("-L")
        .arg(format!(
            "dependency={}",
            target.join("debug/deps").display()
        ))
        .arg("-o")
        .arg(program);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

/// One test, because each build waits for the one before it anyway.
#[test]
fn what_is_broken_is_noticed() {
    // As it is, the same program passes: what the others fail at is what was broken in them.
    let Some(sound) = build("none") else { return };
    count(&sound, 50).unwrap();
    removed_while_held(&sound).unwrap();
    let_go_beside_a_child(&sound).unwrap();
    let noticed = |seen: Result<(), String>| {
        let seen = seen.expect_err("what is broken was not noticed");
        assert!(seen.starts_with("violation: "), "{seen}");
    };
    // It unlocks before it removes the name, which is the next holder's by then.
    noticed(count(&build("unlock_first").unwrap(), TIMES));
    // It does not compare the locked file with the one at the path.
    noticed(count(&build("no_check").unwrap(), TIMES));
    // It removes whatever is at the path. While all keep to the rules that is its own file, so only
    // somebody who does not keep to them brings it to light.
    noticed(removed_while_held(&build("no_verify").unwrap()));
    // It leaves the unlocking to the end of the descriptor.
    noticed(let_go_beside_a_child(&build("close_only").unwrap()));
}
