//! Log lines of the run.
//!
//! ```
//! use agent_host_sdk::log;
//!
//! fn report(tools: usize) {
//!     log::info!("{tools} tools");
//! }
//! ```
//!
//! The log of a run also contains what the runner writes to standard output and standard error. The host limits number
//! and size of the lines and drops the excess.

pub use crate::contract::agent_host::runner::log::Level;

/// Writes a line. The macros of this module are shorter.
pub fn write(level: Level, message: &str) {
    crate::host::log::write(level, message);
}

#[doc(inline)]
pub use crate::{__log_debug as debug, __log_error as error, __log_info as info, __log_trace as trace, __log_warn as warn};

/// Writes a line of the level `trace`. Arguments as for `format!`.
#[doc(hidden)]
#[macro_export]
macro_rules! __log_trace {
    ($($argument:tt)+) => {
        $crate::log::write($crate::log::Level::Trace, &::std::format!($($argument)+))
    };
}

/// Writes a line of the level `debug`. Arguments as for `format!`.
#[doc(hidden)]
#[macro_export]
macro_rules! __log_debug {
    ($($argument:tt)+) => {
        $crate::log::write($crate::log::Level::Debug, &::std::format!($($argument)+))
    };
}

/// Writes a line of the level `info`. Arguments as for `format!`.
#[doc(hidden)]
#[macro_export]
macro_rules! __log_info {
    ($($argument:tt)+) => {
        $crate::log::write($crate::log::Level::Info, &::std::format!($($argument)+))
    };
}

/// Writes a line of the level `warn`. Arguments as for `format!`.
#[doc(hidden)]
#[macro_export]
macro_rules! __log_warn {
    ($($argument:tt)+) => {
        $crate::log::write($crate::log::Level::Warn, &::std::format!($($argument)+))
    };
}

/// Writes a line of the level `error`. Arguments as for `format!`.
#[doc(hidden)]
#[macro_export]
macro_rules! __log_error {
    ($($argument:tt)+) => {
        $crate::log::write($crate::log::Level::Error, &::std::format!($($argument)+))
    };
}
