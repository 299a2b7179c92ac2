//! Context of a run: the event, the conversation, the actor, and the resources that the run may use.

use std::cell::Cell;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::artifacts::Artifacts;
use crate::contract::{
    Actor, ArtifactRef, AvailableApis, Conversation, Event, Message, ModelOperation, ModelResource, Resources, RunContext,
    SkillResource, StateScope, StaticRef, StorageArea,
};
use crate::error::ApiError;
use crate::events::Events;
use crate::history::History;
use crate::http::Http;
use crate::interactions::Question;
use crate::json::from_str;
use crate::knowledge::Knowledge;
use crate::limits::{MESSAGE_BYTES, split_at_json_len};
use crate::message::{MessageWriter, RunMessages};
use crate::models::Model;
use crate::outcome::Failure;
use crate::platform::Platform;
use crate::results::{Batch, message_completed};
use crate::runs::Runs;
use crate::state::State;
use crate::steering::Steering;
use crate::storage::Storage;
use crate::timers;
use crate::tools::Tools;

/// The context of one run.
///
/// Reading the context makes no host call, except where a method says so. The context does not contain the history; the
/// runner pulls the pages that it needs. The whole record is [`Context::contract`].
#[derive(Debug)]
pub struct Context {
    contract: RunContext,
    messages: RunMessages,
    call_ids: Cell<u32>,
}

impl Context {
    pub(crate) fn new(contract: RunContext) -> Self {
        Self { contract, messages: RunMessages::default(), call_ids: Cell::new(0) }
    }

    /// Returns the messages of the run, for its end.
    pub(crate) fn messages(&self) -> RunMessages {
        self.messages.clone()
    }

    /// Returns all fields, as defined by the contract.
    #[must_use]
    pub fn contract(&self) -> &RunContext {
        &self.contract
    }

    /// Returns the id of the run.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.contract.run_id
    }

    /// Returns the id of the parent run; `None` if no run started this one.
    #[must_use]
    pub fn parent_run_id(&self) -> Option<&str> {
        self.contract.parent_run_id.as_deref()
    }

    /// Returns the text of the input; empty if the event has none.
    #[must_use]
    pub fn text(&self) -> &str {
        self.contract.input.text.as_deref().unwrap_or_default()
    }

    /// Returns the attachments of the input.
    #[must_use]
    pub fn attachments(&self) -> &[ArtifactRef] {
        &self.contract.input.attachments
    }

    /// Returns the event.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.contract.event
    }

    /// Returns the conversation; `None` if the event belongs to no conversation.
    #[must_use]
    pub fn conversation(&self) -> Option<&Conversation> {
        self.contract.conversation.as_ref()
    }

    /// Returns the id of the conversation, if any.
    #[must_use]
    pub fn conversation_id(&self) -> Option<&str> {
        self.conversation()?.conversation_id.as_deref()
    }

    /// Returns the actor that caused the event, if known.
    #[must_use]
    pub fn actor(&self) -> Option<&Actor> {
        self.contract.actor.as_ref()
    }

    /// Returns the models, tools and other resources that this run may use.
    #[must_use]
    pub fn resources(&self) -> &Resources {
        &self.contract.resources
    }

    /// Returns the first granted model that allows the operation.
    #[must_use]
    pub fn model_for(&self, operation: ModelOperation) -> Option<&ModelResource> {
        self.resources().models.iter().find(|model| model.operations.contains(&operation))
    }

    /// Returns the granted model with this id.
    ///
    /// ```
    /// # use agent_host_sdk::{Completion, Context, Failure, ModelRequest};
    /// fn run(ctx: Context) -> Result<Completion, Failure> {
    ///     let answer = ctx.model("chat")?.invoke(&ModelRequest::new().user(ctx.text()))?;
    ///     ctx.reply(&answer.text())?;
    ///     Ok(Completion::stop())
    /// }
    /// ```
    ///
    /// # Errors
    /// Fails with the code `provider_not_ready` if no such model is granted to the run. The message lists the granted
    /// models and says how to configure one.
    pub fn model(&self, model_id: &str) -> Result<Model<'_>, Failure> {
        let models = &self.resources().models;
        models.iter().find(|model| model.model_id == model_id).map(Model::new).ok_or_else(|| {
            let granted: Vec<_> = models.iter().map(|model| format!("`{}`", model.model_id)).collect();
            let granted = if granted.is_empty() { "none".to_owned() } else { granted.join(", ") };
            let message = format!(
                "the model `{model_id}` is not granted to this run (granted: {granted}): configure it in agent-host.toml, and \
                 let the binding use it"
            );
            Failure::new("provider_not_ready", message)
        })
    }

    /// Returns the first granted chat model.
    ///
    /// # Errors
    /// Fails with the code `provider_not_ready` if no chat model is granted.
    pub fn default_model(&self) -> Result<Model<'_>, Failure> {
        self.resources().models.iter().find(|model| model.model_type == "llm").map(Model::new).ok_or_else(|| {
            Failure::new(
                "provider_not_ready",
                "no chat model is granted to this run: configure one in agent-host.toml, and let the binding use it",
            )
        })
    }

    /// Returns the tools of the host that are granted to this run.
    #[must_use]
    pub fn tools(&self) -> Tools<'_> {
        Tools::new(&self.resources().tools, &self.call_ids)
    }

    /// Returns the knowledge bases that are granted to this run.
    #[must_use]
    pub fn knowledge(&self) -> Knowledge<'_> {
        Knowledge::new(&self.resources().knowledge_bases)
    }

    /// Returns access to earlier events.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new()
    }

    /// Returns access to the artifacts of the host, such as those of [`Context::attachments`].
    #[must_use]
    pub fn artifacts(&self) -> Artifacts {
        Artifacts::new()
    }

    /// Returns access to one area of the storage: bytes that outlive the run.
    #[must_use]
    pub fn storage(&self, area: StorageArea) -> Storage {
        Storage::new(area)
    }

    /// Returns the skills that this run may read. The content of a skill is an artifact:
    /// `ctx.artifacts().read_text(&skill.content.artifact_id, limit)`.
    #[must_use]
    pub fn skills(&self) -> &[SkillResource] {
        &self.resources().skills
    }

    /// Returns the skill with this name; `None` if the run may not read one.
    #[must_use]
    pub fn skill(&self, name: &str) -> Option<&SkillResource> {
        self.skills().iter().find(|skill| skill.skill_name == name)
    }

    /// Returns references to content that does not change between runs, each with its hash. At the start of a prompt,
    /// such content lets model services reuse the prefix of an earlier prompt.
    #[must_use]
    pub fn static_refs(&self) -> &[StaticRef] {
        &self.contract.runtime.static_refs
    }

    /// Returns access to the platform actions of this run.
    #[must_use]
    pub fn platform(&self) -> Platform<'_> {
        Platform::new(&self.resources().platform_actions)
    }

    /// Asks a person a question and waits for the answer. See [`interactions`](crate::interactions).
    ///
    /// # Errors
    /// Fails with `unauthorized` if this run may not ask, and with `runtime_error` if the answer does not have the shape
    /// of `A`.
    pub fn ask<A>(&self, question: Question<A>) -> Result<A, ApiError> {
        question.ask()
    }

    /// Returns access to input that arrives while this run is active.
    #[must_use]
    pub fn steering(&self) -> Steering {
        Steering::new()
    }

    /// Returns access to child runs of this run.
    #[must_use]
    pub fn runs(&self) -> Runs {
        Runs::new()
    }

    /// Returns access to HTTP requests.
    #[must_use]
    pub fn http(&self) -> Http {
        Http::new()
    }

    /// Returns the calls that the grant of this run allows. A call that is not allowed fails with `unauthorized`.
    #[must_use]
    pub fn available_apis(&self) -> &AvailableApis {
        &self.contract.context.available_apis
    }

    /// Returns the deadline of the run, in ms since the Unix epoch; `None` without a deadline.
    #[must_use]
    pub fn deadline_at(&self) -> Option<u64> {
        self.contract.runtime.deadline_at
    }

    /// Returns the time until the deadline; `None` without a deadline. Makes a host call.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline_at().map(|at| Duration::from_millis(at.saturating_sub(timers::now())))
    }

    /// Returns the language of the answer as a BCP 47 tag, if known to the host.
    #[must_use]
    pub fn locale(&self) -> Option<&str> {
        self.contract.runtime.locale.as_deref()
    }

    /// Returns the configuration of the binding.
    ///
    /// # Errors
    /// Fails with the code `runner.invalid_config` if the configuration does not fit `T`. The message names the field.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        from_str(&self.contract.config)
            .map_err(|error| Failure::new("runner.invalid_config", format!("the configuration, {error}")))
    }

    /// Returns the data of the event.
    ///
    /// # Errors
    /// Fails with the code `runner.invalid_event` if the data does not fit `T`. The message names the field.
    pub fn event_data<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        from_str(&self.contract.event.data)
            .map_err(|error| Failure::new("runner.invalid_event", format!("the data of the event, {error}")))
    }

    /// Returns the state in a scope.
    #[must_use]
    pub fn state(&self, scope: StateScope) -> State<'_> {
        let snapshot = &self.contract.state;
        let snapshot = match scope {
            StateScope::Conversation => &snapshot.conversation,
            StateScope::Actor => &snapshot.actor,
            StateScope::Subject => &snapshot.subject,
            StateScope::Runner => &snapshot.runner,
            StateScope::Binding => &snapshot.binding,
        };
        State::new(scope, snapshot)
    }

    /// Returns access to the transcript.
    #[must_use]
    pub fn history(&self) -> History {
        History::new()
    }

    /// Starts a message that is streamed while the runner writes the text.
    pub fn message(&self) -> MessageWriter {
        MessageWriter::new(self.messages.clone())
    }

    /// Returns a message id, unique in the run, for a message that the runner builds itself.
    #[must_use]
    pub fn next_message_id(&self) -> String {
        self.messages.next_id()
    }

    /// Emits a complete text without deltas, in one host call. A text longer than [`MESSAGE_BYTES`] becomes several
    /// messages.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn reply(&self, text: &str) -> Result<(), ApiError> {
        let mut batch = Batch::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (head, tail) = split_at_json_len(rest, MESSAGE_BYTES);
            batch.push(message_completed(self.messages.next_id(), Message::assistant(head)))?;
            rest = tail;
        }
        batch.flush()
    }
}
