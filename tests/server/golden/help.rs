//! Help texts and man pages of both programs.

use std::process::Command;

use latchd::config::{self, Outcome};

use super::folder::Folder;

/// What `latchd` prints with this option.
fn of_latchd(option: &str) -> String {
    match config::load(["latchd".into(), option.into()], &|_| None) {
        Ok(Outcome::Print(text)) => text,
        other => panic!("latchd {option}: {other:?}"),
    }
}

/// What `latch` prints with these arguments.
fn of_latch(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latch"));
    let output = command.args(arguments).env_clear().output().unwrap();
    assert!(output.status.success(), "latch {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The names in the list of commands of a help text.
fn commands(help: &str) -> Vec<String> {
    let Some((_, list)) = help.split_once("\nCommands:\n") else {
        return Vec::new();
    };
    let (list, _) = list.split_once("\n\n").unwrap_or((list, ""));
    let names = list.lines().filter_map(|it| it.split_whitespace().next());
    names
        .filter(|it| *it != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn help_texts_are_what_they_were() {
    let mut folder = Folder::new("help");
    folder.add("latchd.txt", of_latchd("--help"));
    folder.add("latch.txt", of_latch(&["--help"]));
    let of_all = commands(&of_latch(&["--help"]));
    assert!(of_all.len() > 20, "{of_all:?}");
    for name in &of_all {
        let help = of_latch(&[name, "--help"]);
        for sub in commands(&help) {
            let help = of_latch(&[name, &sub, "--help"]);
            folder.add(&format!("latch-{name}-{sub}.txt"), help);
        }
        folder.add(&format!("latch-{name}.txt"), help);
    }
    folder.check();
}

#[test]
fn man_pages_are_what_they_were() {
    let mut folder = Folder::new("man");
    folder.add("latchd.8", of_latchd("--man"));
    let dir = tempfile::tempdir().unwrap();
    of_latch(&["man", dir.path().to_str().unwrap()]);
    for entry in dir.path().read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        folder.add(name, std::fs::read_to_string(&path).unwrap());
    }
    folder.check();
}
