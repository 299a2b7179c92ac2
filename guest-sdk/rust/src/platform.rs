//! Actions on the platform that the event came from: the operator's systems do them, after policy or a person allowed it.
//!
//! ```
//! use agent_host_sdk::platform::ActionOutcome;
//! use agent_host_sdk::{Completion, Context, Failure, serde_json::json};
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     // Waits while a person decides, if need be for days: a run that waits costs nothing and survives its host.
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
//! A runner that does not want to wait emits [`results::action_requested`](crate::results::action_requested).

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::contract::ErrorCode;
use crate::error::ApiError;
use crate::host::platform as host;
use crate::json::{IntoJson, JsonError, from_str};

pub use crate::contract::ActionOutcome;

/// The platform, as [`Context::platform`](crate::Context::platform) gives it. The manifest must name the actions
/// ([`Manifest::platform_actions`](crate::Manifest::platform_actions)).
#[derive(Clone, Copy, Debug)]
pub struct Platform<'a> {
    granted: &'a [String],
}

impl<'a> Platform<'a> {
    pub(crate) fn new(granted: &'a [String]) -> Self {
        Self { granted }
    }

    /// The actions that this run may ask for. No host call. Policy or a person may still say no.
    #[must_use]
    pub fn actions(&self) -> &'a [String] {
        self.granted
    }

    /// Whether this run may ask for an action at all. No host call.
    #[must_use]
    pub fn can(&self, action: &str) -> bool {
        self.granted.iter().any(|granted| granted == action)
    }

    /// Asks for an action and waits for what comes of it. Target and payload are as the platform defines them for the action.
    ///
    /// A denial and an expiry are outcomes, not errors: the runner goes on.
    ///
    /// # Errors
    /// `unauthorized` where the run was not granted the action; otherwise as the host answers, such as `runtime_error` where
    /// the platform failed to do it.
    pub fn request_action(&self, action: &str, target: impl IntoJson, payload: impl IntoJson) -> Result<ActionOutcome, ApiError> {
        Ok(host::request_action(action, &target.into_json(), &payload.into_json())?)
    }

    /// As [`request_action`](Self::request_action), with types of the runner's own.
    ///
    /// # Errors
    /// `invalid_argument` where one has no JSON form; otherwise as there.
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
    /// Whether the action was done.
    #[must_use]
    pub fn is_executed(&self) -> bool {
        matches!(self, Self::Executed(_))
    }

    /// What the platform answered; none where it was not done.
    ///
    /// # Errors
    /// When the answer has not the shape of `T`.
    pub fn value<T: DeserializeOwned>(&self) -> Result<Option<T>, JsonError> {
        match self {
            Self::Executed(json) => from_str(json).map(Some),
            Self::Denied(_) | Self::Expired => Ok(None),
        }
    }
}
