//! A cron guard: of all machines that start the same job at the same time, one runs it.
//!
//! ```sh
//! cargo run --example cron_guard -- localhost:6388 nightly
//! ```
//!
//! Whoever comes while another one runs it goes home (exit code 0), and so does whoever comes after it was
//! done today: a value beside the lock says so. Whoever loses the lock while it works stops.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use latchd::client::{Client, ErrorKind};

/// For how long nobody needs to do it again.
const DONE_FOR: Duration = Duration::from_secs(12 * 60 * 60);

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let servers = arguments
        .next()
        .unwrap_or_else(|| "localhost:6388".to_owned());
    let job = arguments.next().unwrap_or_else(|| "nightly".to_owned());
    let client = Client::connect(&servers)?;

    let guard = match client
        .lock(&job)
        .lease(Duration::from_secs(30))
        .try_acquire()
    {
        Ok(guard) => guard,
        Err(error) if error.kind() == ErrorKind::Busy => {
            let who = client.who(&job)?;
            let holder = who.holders.first().and_then(|it| it.name.as_deref());
            println!("{job} is under way: {}", holder.unwrap_or("somebody"));
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => return Err(error.into()),
    };
    let done = client.value(format!("{job}.done"));
    if let Some(by) = done.get()? {
        println!("{job} was done by {}", String::from_utf8_lossy(&by));
        return Ok(ExitCode::SUCCESS);
    }

    for step in 1..=3 {
        // Between two steps is the time to look. A step that must not be done twice takes the fence
        // with it: see the example `fenced_sqlite`.
        if !guard.is_held() {
            eprintln!("{job} was lost after {} of 3 steps", step - 1);
            return Ok(ExitCode::from(79));
        }
        println!("{job}: step {step} of 3 under fence {}", guard.fence());
    }
    done.set_for(client.name(), DONE_FOR)?;
    guard.release()?;
    println!("{job} is done");
    Ok(ExitCode::SUCCESS)
}
