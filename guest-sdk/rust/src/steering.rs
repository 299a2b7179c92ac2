//! Input that arrives for the conversation while the run is active.
//!
//! ```
//! use agent_host_sdk::{ApiError, Context, ModelRequest};
//!
//! /// Between two turns of a model: what the user has said meanwhile.
//! fn listen(ctx: &Context, request: &mut ModelRequest) -> Result<(), ApiError> {
//!     if ctx.available_apis().steering {
//!         for input in ctx.steering().inputs() {
//!             request.push(input?.message());
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! The manifest must declare [`steering`](crate::Manifest::steering). What a run has not taken when it ends becomes a run
//! of its own, so nothing is lost by not asking; what it has taken, it must answer.

use std::time::Duration;

use crate::contract::{Message, Role};
use crate::error::ApiError;
use crate::host::steering as host;
use crate::limits::millis32;

pub use crate::contract::SteeringInput;

/// How many inputs [`Steering::inputs`] takes in one host call.
const AT_ONCE: u32 = 16;

/// How many it gives at most: as many as the host lets wait. A flood must not keep a run from its work.
const MOST: u32 = 100;

/// The input of other events, as [`Context::steering`](crate::Context::steering) gives it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steering(());

impl Steering {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Takes what has arrived, oldest first, at most `limit`. Does not wait.
    ///
    /// # Errors
    /// As the host answers.
    pub fn pull(self, limit: u32) -> Result<Vec<SteeringInput>, ApiError> {
        Ok(host::pull(limit, 0)?)
    }

    /// Waits until something arrives, at most so long, and takes all that is there, at most `limit`. Nothing came where it
    /// gives nothing.
    ///
    /// # Errors
    /// As the host answers.
    pub fn wait(self, limit: u32, at_most: Duration) -> Result<Vec<SteeringInput>, ApiError> {
        Ok(host::pull(limit, millis32(at_most))?)
    }

    /// Takes what has arrived, oldest first, one after the other and 100 at most. Does not wait. Where the host has more than
    /// it gives at one time (512 KiB), the rest comes with the next call.
    pub fn inputs(self) -> SteeringInputs {
        SteeringInputs { ready: Vec::new().into_iter(), left: MOST }
    }
}

/// What has arrived, one after the other. Few host calls, each for several.
#[must_use = "an iterator does nothing until it is asked"]
#[derive(Debug)]
pub struct SteeringInputs {
    ready: std::vec::IntoIter<SteeringInput>,
    /// How many more may be taken; 0 at the end.
    left: u32,
}

impl Iterator for SteeringInputs {
    type Item = Result<SteeringInput, ApiError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(input) = self.ready.next() {
            return Some(Ok(input));
        }
        let limit = self.left.min(AT_ONCE);
        if limit == 0 {
            return None;
        }
        match Steering::new().pull(limit) {
            Ok(inputs) => {
                self.left = if inputs.len() < limit as usize { 0 } else { self.left - limit };
                self.ready = inputs.into_iter();
                self.ready.next().map(Ok)
            }
            Err(error) => {
                self.left = 0;
                Some(Err(error))
            }
        }
    }
}

impl SteeringInput {
    /// The text; empty where the event has none.
    #[must_use]
    pub fn text(&self) -> &str {
        self.input.text.as_deref().unwrap_or_default()
    }

    /// The input as a message of the user for a model: its text, and a note for each attachment.
    #[must_use]
    pub fn message(&self) -> Message {
        let mut text = self.text().to_owned();
        for attachment in &self.input.attachments {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&attachment.note());
        }
        Message::of(Role::User, text)
    }
}
