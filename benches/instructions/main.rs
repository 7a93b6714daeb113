//! The hot path, one scene at a time and a stated number of times, for counting instructions.
//!
//! A busy machine changes how long something takes, never how many instructions it is. So
//! `tools/instructions` runs each scene under callgrind for two numbers of operations; the
//! difference is what the operations cost, without start and set-up. Everything is the same in every
//! run: seeds, names, times, order. Each scene checks every answer.
//!
//! `instructions --list` names the scenes, `instructions <scene> <operations>` runs one. Without
//! either, as under `cargo bench`, each runs once: to see that it works, not to measure.

#[path = "../engine/harness.rs"]
#[expect(dead_code, reason = "the engine's benches use more of it")]
mod harness;
mod room;
mod scenes;

use std::process::ExitCode;

use scenes::{SCENES, Scene};

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = given.iter().map(String::as_str).collect();
    match words[..] {
        ["--list"] => {
            for scene in &SCENES {
                let [fewer, more] = scene.operations;
                println!("{} {fewer} {more}", scene.name);
            }
        }
        [name, operations] if !name.starts_with("--") => {
            let scene = SCENES.iter().find(|scene| scene.name == name);
            let (Some(scene), Ok(operations)) = (scene, operations.parse()) else {
                eprintln!("there is no scene {name}, or {operations} is not a number; see --list");
                return ExitCode::from(2);
            };
            run(scene, operations);
        }
        _ => {
            for scene in &SCENES {
                run(scene, scene.batch);
                println!("{}: runs", scene.name);
            }
            println!("to count: tools/instructions");
        }
    }
    ExitCode::SUCCESS
}

fn run(scene: &Scene, operations: u32) {
    assert_eq!(
        operations % scene.batch,
        0,
        "{} does {} at a time",
        scene.name,
        scene.batch
    );
    (scene.run)(operations / scene.batch);
}
