//! Time and waiting. A run that sleeps costs next to nothing.
//!
//! ```
//! use agent_host_sdk::{ApiError, timers};
//!
//! fn a_minute_later() -> Result<u64, ApiError> {
//!     timers::sleep(60_000)?;
//!     Ok(timers::now())
//! }
//! ```

use crate::error::ApiError;
use crate::host::timers as host;

/// Unix time in milliseconds, as the host has it.
#[must_use]
pub fn now() -> u64 {
    host::now()
}

/// Waits until a time, Unix milliseconds. A time that has passed is no wait.
///
/// # Errors
/// `cancelled` or `deadline_exceeded`, when the run ends first.
pub fn sleep_until(at: u64) -> Result<(), ApiError> {
    Ok(host::sleep_until(at)?)
}

/// Waits so many milliseconds.
///
/// # Errors
/// As [`sleep_until`].
pub fn sleep(millis: u64) -> Result<(), ApiError> {
    sleep_until(now().saturating_add(millis))
}
