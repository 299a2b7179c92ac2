//! Input that arrives for the conversation while the run is active.
//!
//! ```
//! use agent_host_sdk::{ApiError, Context, ModelRequest};
//!
//! /// Adds the input that arrived since the last turn of the model.
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
//! The manifest must declare [`steering`](crate::Manifest::steering). Input that a run has not taken at its end becomes a
//! run of its own, so no input is lost. The run must answer the input that it has taken.

use std::time::Duration;

use crate::contract::{Message, Role};
use crate::error::ApiError;
use crate::host::steering as host;
use crate::limits::millis32;

pub use crate::contract::SteeringInput;

/// Maximum inputs per host call of [`Steering::inputs`].
const AT_ONCE: u32 = 16;

/// Maximum inputs of one [`Steering::inputs`], the number that the host lets wait. A flood of input must not block the
/// run.
const MOST: u32 = 100;

/// Input of other events, from [`Context::steering`](crate::Context::steering).
#[derive(Clone, Copy, Debug, Default)]
pub struct Steering(());

impl Steering {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Takes input that has arrived, oldest first, at most `limit` items. Does not wait.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn pull(self, limit: u32) -> Result<Vec<SteeringInput>, ApiError> {
        Ok(host::pull(limit, 0)?)
    }

    /// Waits until input arrives, at most for the given time, and takes up to `limit` items. Returns an empty list on
    /// timeout.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn wait(self, limit: u32, at_most: Duration) -> Result<Vec<SteeringInput>, ApiError> {
        Ok(host::pull(limit, millis32(at_most))?)
    }

    /// Returns an iterator over input that has arrived, oldest first, at most 100 items. Does not wait. One host call
    /// returns at most 512 KiB; the next call returns the rest.
    pub fn inputs(self) -> SteeringInputs {
        SteeringInputs { ready: Vec::new().into_iter(), left: MOST }
    }
}

/// Iterator over input that has arrived. A host call takes several items.
#[must_use = "an iterator does nothing until `next` is called"]
#[derive(Debug)]
pub struct SteeringInputs {
    ready: std::vec::IntoIter<SteeringInput>,
    /// Number of items that may still be taken; 0 at the end.
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
    /// Returns the text; empty if the event has none.
    #[must_use]
    pub fn text(&self) -> &str {
        self.input.text.as_deref().unwrap_or_default()
    }

    /// Returns the input as a user message for a model: its text, and a note for each attachment.
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
