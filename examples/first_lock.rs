//! The example of the README: takes a lock, prints its fence and releases it.

use std::error::Error;
use std::time::Duration;

use latchd::client::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1);
    let client = Client::connect(server.as_deref().unwrap_or("127.0.0.1:6388"))?;
    let lock = client.lock("backup").wait(Duration::from_secs(30));
    let guard = lock.acquire()?; // a thread of the client renews the lease
    println!("fence {}", guard.fence()); // the work goes here, while `guard.is_held()`
    guard.release()?;
    Ok(())
}
