//! Actions on the platform that the event came from. The operator's systems execute an action after a policy or a person
//! allowed it.
//!
//! ```
//! use agent_host_sdk::platform::ActionOutcome;
//! use agent_host_sdk::{Completion, Context, Failure, serde_json::json};
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     // Waits for the decision of a person, for days if necessary. A waiting run survives a restart of its host.
//!     let outcome = ctx.platform().request_action("message.pin", json!({"message_id": "m7"}), json!({"days": 3}))?;
//!     match outcome {
//!         ActionOutcome::Executed(_) => ctx.reply("Pinned.")?,
//!         ActionOutcome::Denied(why) => ctx.reply(&format!("I may not pin it: {why}"))?,
//!         ActionOutcome::Expired => ctx.reply("Nobody answered, so it is not pinned.")?,
//!     }
//!     Ok(Completion::stop())
//! }
//! ```
//!
//! To request an action without waiting for its outcome, emit
//! [`results::action_requested`](crate::results::action_requested).

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::contract::ErrorCode;
use crate::error::ApiError;
use crate::host::platform as host;
use crate::json::{IntoJson, JsonError, from_str};

pub use crate::contract::ActionOutcome;

/// Platform actions of this run, from [`Context::platform`](crate::Context::platform). The manifest must name the actions
/// ([`Manifest::platform_actions`](crate::Manifest::platform_actions)).
#[derive(Clone, Copy, Debug)]
pub struct Platform<'a> {
    granted: &'a [String],
}

impl<'a> Platform<'a> {
    pub(crate) fn new(granted: &'a [String]) -> Self {
        Self { granted }
    }

    /// Returns the actions that this run may request, without a host call. Policy or a person may still deny an action.
    #[must_use]
    pub fn actions(&self) -> &'a [String] {
        self.granted
    }

    /// Returns true if this run may request the action, without a host call.
    #[must_use]
    pub fn can(&self, action: &str) -> bool {
        self.granted.iter().any(|granted| granted == action)
    }

    /// Requests an action and waits for its outcome. The platform defines the target and the payload of each action.
    ///
    /// A denial and an expiry are outcomes, not errors: the run continues.
    ///
    /// # Errors
    /// Fails with `unauthorized` if the action is not granted to this run; otherwise with the error of the host, such as
    /// `runtime_error` if the platform failed.
    pub fn request_action(&self, action: &str, target: impl IntoJson, payload: impl IntoJson) -> Result<ActionOutcome, ApiError> {
        Ok(host::request_action(action, &target.into_json(), &payload.into_json())?)
    }

    /// Like [`request_action`](Self::request_action), with target and payload as serializable types.
    ///
    /// # Errors
    /// Fails with `invalid_argument` if a value has no JSON form; otherwise like
    /// [`request_action`](Self::request_action).
    pub fn request_action_of(
        &self,
        action: &str,
        target: &impl Serialize,
        payload: &impl Serialize,
    ) -> Result<ActionOutcome, ApiError> {
        let (target, payload) = (json_of(target)?, json_of(payload)?);
        Ok(host::request_action(action, &target, &payload)?)
    }
}

fn json_of(value: &impl Serialize) -> Result<String, ApiError> {
    serde_json::to_string(value)
        .map_err(|error| ApiError::new(ErrorCode::InvalidArgument, format!("the value has no JSON form: {error}")))
}

impl ActionOutcome {
    /// Returns true if the action was executed.
    #[must_use]
    pub fn is_executed(&self) -> bool {
        matches!(self, Self::Executed(_))
    }

    /// Returns the answer of the platform; `None` if the action was not executed.
    ///
    /// # Errors
    /// Fails if the answer does not have the shape of `T`.
    pub fn value<T: DeserializeOwned>(&self) -> Result<Option<T>, JsonError> {
        match self {
            Self::Executed(json) => from_str(json).map(Some),
            Self::Denied(_) | Self::Expired => Ok(None),
        }
    }
}
