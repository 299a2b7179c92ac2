//! Sources of events besides the API, as the configuration describes them: the clocks of schedules, and the signatures and
//! mappings of signed requests.

mod hooks;
mod schedule;
mod signature;
mod template;

pub use self::hooks::{HookError, HookRequest};
pub(crate) use self::{
    hooks::{HookSource, open as open_hooks},
    schedule::Schedule,
};
