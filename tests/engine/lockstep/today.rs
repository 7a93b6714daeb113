//! The engine that ships.

use latchd as subject;

#[path = "driver.rs"]
pub mod driver;
