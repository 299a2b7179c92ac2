//! Time and waiting. A run that sleeps long is parked and uses no memory.
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

/// Returns the time of the host, in ms since the Unix epoch.
#[must_use]
pub fn now() -> u64 {
    host::now()
}

/// Waits until a time, in ms since the Unix epoch. Returns immediately if the time has passed.
///
/// # Errors
/// Fails with `cancelled` or `deadline_exceeded` if the run ends before that time.
pub fn sleep_until(at: u64) -> Result<(), ApiError> {
    Ok(host::sleep_until(at)?)
}

/// Waits for a number of milliseconds.
///
/// # Errors
/// Like [`sleep_until`].
pub fn sleep(millis: u64) -> Result<(), ApiError> {
    sleep_until(now().saturating_add(millis))
}
