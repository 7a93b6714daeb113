//! The command `latch-sim`: what it accepts, and what it says to somebody who has never used it.
//!
//! Whether everything holds in the runs is the matter of `simulation.rs`.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot run the program has to fail"
)]

use crate::tool::tool;

/// Runs it with these words: exit code, standard output, standard error.
fn latch_sim(line: &str) -> (i32, String, String) {
    let output = tool("latch-sim")
        .args(line.split_whitespace())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

#[test]
fn without_a_seed_it_explains_itself() {
    let (code, out, said) = latch_sim("");
    assert_eq!((code, out.as_str()), (64, ""));
    let (code, help, error) = latch_sim("--help");
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(said, help);
    for needed in ["simulated clients", "latch-sim 7 ", "latch-sim 0..", "64 "] {
        assert!(help.contains(needed), "{needed:?} is not in {help}");
    }
}

#[test]
fn words_that_make_no_sense_end_it_with_64_and_are_named() {
    for line in [
        "seven",
        "-7",
        "+7",
        "1.5",
        "7 8",
        "7 8 9",
        "5..",
        "..5",
        "a..b",
        "9..1",
        "3..3",
        "--seeds",
        "--seeds 7",
        "--seeds 1..2 3",
        "--sedes 1..2",
    ] {
        let (code, out, said) = latch_sim(line);
        assert_eq!((code, out.as_str()), (64, ""), "{line}: {said}");
        let wrong = line.strip_prefix("--seeds ").filter(|it| !it.contains(' '));
        assert!(
            said.contains(&format!("{:?}", wrong.unwrap_or(line))),
            "{line}: {said}"
        );
        assert!(
            said.contains("--help") && said.lines().count() == 1,
            "{line}: {said}"
        );
    }
}

#[test]
fn one_seed_is_told_and_a_range_is_counted() {
    let (code, story, _) = latch_sim("7");
    assert_eq!(code, 0);
    assert!(story.lines().count() > 10, "{story}");
    let (code, totals, _) = latch_sim("7..9");
    assert_eq!(code, 0);
    let seeds = totals.lines().next().unwrap();
    assert_eq!(seeds.split_whitespace().collect::<Vec<_>>(), ["seeds", "2"]);
    assert_eq!(latch_sim("--seeds 7..9").1, totals);
}
