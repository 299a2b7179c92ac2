//! Input of the client beside the message: what a front end of AG-UI sends of its page with each run.
//!
//! Everything here comes from the client, so it is data and no instruction of the operator: a page may show what others wrote.
//! [`memory::Prompt::client`](crate::memory::Prompt::client) puts it into a prompt so that it cannot pass for anything else.
//!
//! ```
//! use agent_host_sdk::{Completion, Context, Failure};
//!
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     let Some(client) = ctx.client()? else { return Ok(Completion::stop()) };
//!     for item in &client.context {
//!         ctx.reply(&format!("{}: {}", item.description, item.value))?;
//!     }
//!     Ok(Completion::stop())
//! }
//! ```

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::contract::{ErrorCode, TranscriptItem};
use crate::error::ApiError;
use crate::json::from_str;
use crate::{Context, log};

/// Maximum size of the data of an event that is read from its artifact, in bytes. Clients send the context of a page; what is
/// larger does not fit a prompt either.
const DATA_BYTES: usize = 1024 * 1024;

/// Members of `forwarded_props` that are for the host.
const OF_HOST: [&str; 2] = ["agentHost", "agnoBackground"];

/// Input of the client, from [`Context::client`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClientInput {
    /// Id of the thread.
    pub thread_id: String,
    /// Id that the client gave to the run.
    pub run_id: String,
    /// Run that the client says it continues.
    pub parent_run_id: Option<String>,
    /// Items that the client wants the agent to know.
    pub context: Vec<ContextItem>,
    /// State that the client shares; `None` if it sent none.
    pub state: Option<Value>,
    /// Properties that the client passes on, also those for the host.
    pub forwarded_props: Map<String, Value>,
    /// Messages of role `system` and `developer`, if the binding offers them (`client_instructions = "offer"`).
    pub instructions: Vec<Instruction>,
}

/// Item that a client wants the agent to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContextItem {
    /// Meaning of the value.
    pub description: String,
    /// Value.
    pub value: String,
}

/// Instruction of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Instruction {
    /// `system` or `developer`.
    pub role: String,
    /// Text.
    pub content: String,
}

impl ClientInput {
    /// Returns the properties that the client passes on, without those for the host.
    #[must_use]
    pub fn props(&self) -> Map<String, Value> {
        let own = self.forwarded_props.iter().filter(|(name, _)| !OF_HOST.contains(&name.as_str()));
        own.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

#[derive(Deserialize)]
struct Data {
    agui: Option<ClientInput>,
}

impl Context {
    /// Returns the input of the client beside the message; `None` if the event does not come from a client of AG-UI. Large
    /// input is an artifact, which takes host calls and needs `artifacts` [`Read`](crate::ArtifactOperation::Read); without
    /// that permission, or above 1 MiB, the input is left out with a warning.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn client(&self) -> Result<Option<ClientInput>, ApiError> {
        let read = |json: &str| match from_str::<Data>(json) {
            Ok(data) => data.agui,
            Err(error) => {
                log::warn!("the input of the client is left out: {error}");
                None
            }
        };
        if let Some(found) = read(&self.event().data) {
            return Ok(Some(found));
        }
        let Some(whole) = self.event().raw_ref.as_ref().filter(|_| self.event().source == "webui") else { return Ok(None) };
        if !self.available_apis().artifact_read {
            log::warn!("the input of the client is large, and the run may not read artifacts");
            return Ok(None);
        }
        match self.artifacts().read_text(&whole.artifact_id, DATA_BYTES) {
            Ok(json) => Ok(read(&json)),
            Err(error) if error.code == ErrorCode::PayloadTooLarge => {
                log::warn!("the input of the client is left out: {error}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Mark of an item of the transcript that the host has not seen: history that a client claims (`foreign_history = "accept"`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryClaim {
    /// Tools that the client says were called: name and arguments.
    pub tool_calls: Vec<(String, String)>,
    /// Call that the item answers, as the client tells it.
    pub tool_call_id: Option<String>,
}

impl HistoryClaim {
    /// Returns the mark of an item; `None` for an item that the host has seen.
    #[must_use]
    pub fn of(item: &TranscriptItem) -> Option<Self> {
        #[derive(Deserialize)]
        struct Part {
            #[serde(rename = "type")]
            kind: Option<String>,
            #[serde(default)]
            tool_calls: Vec<Call>,
            tool_call_id: Option<String>,
        }
        #[derive(Deserialize)]
        struct Call {
            tool_name: String,
            arguments: String,
        }
        // Runs do not claim.
        let content = item.content.as_deref().filter(|_| item.run_id.is_none())?;
        let parts: Vec<Part> = from_str(content).or_else(|_| from_str(content).map(|part| vec![part])).ok()?;
        let Part { tool_calls, tool_call_id, .. } = parts.into_iter().find(|part| part.kind.as_deref() == Some("claimed"))?;
        let tool_calls = tool_calls.into_iter().map(|call| (call.tool_name, call.arguments)).collect();
        Some(Self { tool_calls, tool_call_id })
    }
}
