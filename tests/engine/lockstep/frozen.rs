//! The engine before it was rebuilt.

use latchd_frozen as subject;

#[path = "driver.rs"]
pub mod driver;
