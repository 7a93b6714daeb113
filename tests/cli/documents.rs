//! Help, completions and man pages, which are made from one table: every command is in all of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::latch::{latch, said};
use crate::vocabulary::Daemon;

/// What `latch help` lists.
fn commands() -> Vec<String> {
    let help = said(latch(&["help"])).out;
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let names = list
        .lines()
        .map(|line| line.split_whitespace().next().unwrap());
    let names: Vec<String> = names.map(str::to_owned).filter(|it| it != "help").collect();
    assert!(names.len() > 20, "{names:?}");
    names
}

#[test]
fn every_command_has_help_and_nothing_hidden_is_shown() {
    for name in commands() {
        let help = said(latch(&["help", &name]));
        assert_eq!(help.code, Some(0), "{name}");
        assert!(
            help.out.contains(&format!("Usage: latch {name}")),
            "{help:?}"
        );
        assert_eq!(said(latch(&[&name, "--help"])).out, help.out);
        for line in help.out.lines() {
            assert!(line.chars().count() <= 110, "{name}: {line}");
        }
    }
    let whole = said(latch(&["--help"])).out;
    assert!(
        whole.contains("latch run nightly -- ./backup.sh"),
        "an example"
    );
    assert!(whole.contains("79 "), "exit codes");
    assert!(!whole.contains("__"), "{whole}");
    let version = said(latch(&["--version"])).out;
    assert_eq!(
        version.trim(),
        format!("latch {}", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(said(latch(&[])).code, Some(64));
}

#[test]
fn shells_can_read_their_completions() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = said(latch(&["completions", shell]));
        assert_eq!(script.code, Some(0));
        for name in commands() {
            assert!(script.out.contains(&name), "{shell}: {name}");
        }
        assert!(script.out.contains("semaphore"), "{shell}");
        let file = dir.path().join(shell);
        fs::write(&file, script.out).unwrap();
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(_) => eprintln!("SKIPPED: there is no {shell}"),
        }
    }
    assert_eq!(said(latch(&["completions", "tcsh"])).code, Some(64));
}

#[test]
fn fish_completes_the_shells_of_completions() {
    let script = said(latch(&["completions", "fish"])).out;
    let mut lines = script
        .lines()
        .filter(|line| line.contains("using_subcommand completions\""));
    assert!(
        lines.any(|line| line.contains(" -f -a \"bash zsh fish\"")),
        "{script}"
    );
}

#[test]
fn every_command_has_a_man_page() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("new/man1");
    let said = said(latch(&["man", pages.to_str().unwrap()]));
    assert_eq!(said.code, Some(0), "{said:?}");
    let found: BTreeSet<String> = fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected: BTreeSet<String> = commands()
        .iter()
        .map(|name| format!("latch-{name}.1"))
        .collect();
    expected.insert("latch.1".to_owned());
    for sub in ["lock", "unlock", "test", "list", "break"] {
        expected.insert(format!("latch-range-{sub}.1"));
    }
    assert_eq!(found, expected);
    let printed: BTreeSet<&str> = said
        .out
        .lines()
        .filter_map(|it| Path::new(it).file_name()?.to_str())
        .collect();
    assert_eq!(printed.len(), expected.len());
    let page = fs::read_to_string(pages.join("latch-run.1")).unwrap();
    for part in [".TH latch-run 1", "semaphore", "LATCH_FENCE", "SIGTERM"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

#[test]
fn the_page_about_the_command_lists_every_command() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- commands -->\n", "<!-- end of commands -->");
    let start = text.find(begin).unwrap() + begin.len();
    let stop = text.find(end).unwrap();
    let table = latchd::cli::commands_markdown();
    if text[start..stop] != table {
        assert!(
            std::env::var_os("UPDATE_DOCS").is_some(),
            "the commands in docs/cli.md are out of date; run UPDATE_DOCS=1 cargo test --test cli"
        );
        fs::write(path, format!("{}{table}{}", &text[..start], &text[stop..])).unwrap();
    }
}

/// The first thing that a newcomer pastes, in two terminals. The work ends when a line is typed.
#[test]
fn the_first_lock_of_the_readme_is_waited_for_in_the_second_terminal() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let (_, section) = readme.split_once("## A first lock\n").unwrap();
    let (_, example) = section.split_once("```bash\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    assert!(example.starts_with("latch run nightly "), "{example}");
    let example = example.replace("sleep 5", "read -r line");
    assert!(example.contains("read -r line"), "{example}");

    let daemon = Daemon::start(&[]);
    let dir = Path::new(crate::latch::program()).parent().unwrap();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let paste = || {
        let mut command = Command::new("bash");
        crate::latch::clean(&mut command);
        command
            .args(["-euc", &example])
            .env("PATH", &path)
            .env("LATCH_SERVER", daemon.address().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let fence = |child: &mut Child| {
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.as_mut().unwrap());
        out.read_line(&mut line).unwrap();
        let (_, fence) = line.split_once("only me, with fence ").unwrap();
        fence.trim_end().parse::<u64>().unwrap()
    };
    let finish = |mut child: Child| {
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
    };
    let mut first = paste();
    let first_fence = fence(&mut first);
    let mut second = paste();
    daemon.connect().wait_for_waiters("nightly", 1);
    finish(first);
    assert!(first_fence < fence(&mut second));
    finish(second);
}
