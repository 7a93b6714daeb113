//! A fenced write: the database refuses a holder whose lock has passed on to another one.
//!
//! ```sh
//! cargo run --example fenced_sqlite -- localhost:6388 /tmp/accounts.db
//! ```
//!
//! A lease can end while its holder still believes in it: the process was stopped, the machine slept, the
//! network was gone. No client can rule that out, but the data can: every grant has a fence above all
//! before it, the highest one seen is kept beside the row, and a write with a lower one changes nothing.
//!
//! Here a first holder loses its lock without noticing (it is broken by an operator), a second one
//! writes, and then the first one tries to.

use std::error::Error;
use std::time::Duration;

use latchd::client::Client;
use rusqlite::{Connection, params};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS account (
    id      TEXT    PRIMARY KEY,
    balance INTEGER NOT NULL,
    fence   INTEGER NOT NULL
)";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let servers = arguments
        .next()
        .unwrap_or_else(|| "localhost:6388".to_owned());
    let path = arguments.next().unwrap_or_else(|| "accounts.db".to_owned());
    let client = Client::connect(&servers)?;
    let database = Connection::open(path)?;
    database.execute(TABLE, ())?;
    database.execute("INSERT OR IGNORE INTO account VALUES ('alice', 0, 0)", ())?;

    let lock = client.lock("account.alice").lease(Duration::from_secs(30));
    let first = lock.acquire()?;
    assert!(write(&database, 100, first.fence())?);
    println!("the first holder wrote under fence {}", first.fence());

    client.break_grant("account.alice", first.fence())?;
    let second = lock.acquire()?;
    assert!(write(&database, 200, second.fence())?);
    println!("the second holder wrote under fence {}", second.fence());

    // The first one was asleep all the while, and goes on where it was.
    let is_written = write(&database, -1, first.fence())?;
    assert!(!is_written, "a stale holder has written");
    println!("the first holder was refused under fence {}", first.fence());

    let balance: i64 = database.query_row("SELECT balance FROM account", (), |row| row.get(0))?;
    println!("the balance is {balance}");
    second.release()?;
    Ok(())
}

/// Writes unless somebody with a higher fence has been here. One statement, so that nobody comes
/// between the look and the write.
fn write(database: &Connection, balance: i64, fence: u64) -> rusqlite::Result<bool> {
    // Fences stay below 2^53.
    let fence = i64::try_from(fence).unwrap_or(i64::MAX);
    let rows = database.execute(
        "UPDATE account SET balance = ?1, fence = ?2 WHERE id = 'alice' AND fence <= ?2",
        params![balance, fence],
    )?;
    Ok(rows == 1)
}
