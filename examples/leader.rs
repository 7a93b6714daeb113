//! Leader election: one of many processes leads, and another takes over when it stops or is gone.
//!
//! ```sh
//! cargo run --example leader -- localhost:6388 scheduler
//! ```
//!
//! Start it in several terminals. Each line that is read on standard input is work for the leader; at
//! the end of input it resigns, and the next in the queue leads.

use std::error::Error;
use std::io::{BufRead, stdin};
use std::time::Duration;

use latchd::client::{Client, ErrorKind, Guard, Standing};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let servers = arguments
        .next()
        .unwrap_or_else(|| "localhost:6388".to_owned());
    let key = arguments.next().unwrap_or_else(|| "scheduler".to_owned());
    let client = Client::connect(&servers)?;

    println!("{} follows", client.name());
    let lead = lead(&client, &key)?;
    println!("{} leads, fence {}", client.name(), lead.fence());

    // Whoever leads has to stop at once when it does so no longer. Here that is the whole process.
    lead.on_lost(|why| {
        eprintln!("leads no longer: {why}");
        std::process::exit(79);
    });
    for job in stdin().lock().lines() {
        wait_until_certain(&lead);
        println!("job {:?} under fence {}", job?, lead.fence());
    }
    lead.release()?;
    println!("{} has resigned", client.name());
    Ok(())
}

/// Waits in the queue for as long as it takes.
fn lead(client: &Client, key: &str) -> Result<Guard, latchd::client::Error> {
    loop {
        let lead = client.elect(key).lease(Duration::from_secs(10));
        match lead.wait(Duration::from_secs(60)).acquire() {
            Err(error) if error.kind() == ErrorKind::Busy => {}
            result => return result,
        }
    }
}

/// A broken connection is made again, perhaps in time. Until it is known, nobody acts.
fn wait_until_certain(lead: &Guard) {
    while lead.standing() == Standing::Doubtful {
        let _ = lead.lost().wait(Duration::from_millis(100));
    }
}
