//! The hot path, one scenario at a time and a stated number of times, for counting instructions.
//!
//! A busy machine changes how long something takes, never how many instructions it is. So
//! `tools/instructions` runs each scenario under callgrind for two numbers of operations; the
//! difference is what the operations cost, without start and set-up. Everything is the same in
//! every run: seeds, names, times, order. Each scenario checks every answer.
//!
//! `instructions --list` names the scenarios, `instructions <scenario> <operations>` runs one.
//! Without either, as under `cargo bench`, each runs once: to see that it works, not to measure.

#[path = "../engine/harness.rs"]
#[expect(dead_code, reason = "the engine's benches use more of it")]
mod harness;

mod scenarios;
mod server_harness;

use std::process::ExitCode;

use scenarios::{SCENARIOS, Scenario};

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = given.iter().map(String::as_str).collect();
    match words[..] {
        ["--list"] => {
            for scenario in &SCENARIOS {
                let [fewer, more] = scenario.operations;
                println!("{} {fewer} {more}", scenario.name);
            }
        }
        [name, operations] if !name.starts_with("--") => {
            let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
            let (Some(scenario), Ok(operations)) = (scenario, operations.parse()) else {
                eprintln!(
                    "there is no scenario {name}, or {operations} is not a number; see --list"
                );
                return ExitCode::from(2);
            };
            run(scenario, operations);
        }
        _ => {
            for scenario in &SCENARIOS {
                run(scenario, scenario.batch);
                println!("{}: runs", scenario.name);
            }
            println!("to count: tools/instructions");
        }
    }
    ExitCode::SUCCESS
}

fn run(scenario: &Scenario, operations: u32) {
    assert_eq!(
        operations % scenario.batch,
        0,
        "{} does {} at a time",
        scenario.name,
        scenario.batch
    );
    (scenario.run)(operations / scenario.batch);
}
