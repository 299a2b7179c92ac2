//! What a run is handed: the event, who and where, and what it may use.

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
use crate::message::{MessageIds, MessageWriter};
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
/// Reading it is free: it is in the memory of the runner already. The history is not in it, the
/// runner pulls what it needs. The whole record is at [`Context::contract`].
#[derive(Debug)]
pub struct Context {
    contract: RunContext,
    ids: MessageIds,
    call_ids: Cell<u32>,
}

impl Context {
    pub(crate) fn new(contract: RunContext) -> Self {
        Self { contract, ids: MessageIds::default(), call_ids: Cell::new(0) }
    }

    /// Every field, as the contract has it.
    #[must_use]
    pub fn contract(&self) -> &RunContext {
        &self.contract
    }

    /// The run.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.contract.run_id
    }

    /// The run that started this one, where one did.
    #[must_use]
    pub fn parent_run_id(&self) -> Option<&str> {
        self.contract.parent_run_id.as_deref()
    }

    /// The text of the input; empty where the event has none.
    #[must_use]
    pub fn text(&self) -> &str {
        self.contract.input.text.as_deref().unwrap_or_default()
    }

    /// What came with the input.
    #[must_use]
    pub fn attachments(&self) -> &[ArtifactRef] {
        &self.contract.input.attachments
    }

    /// What happened.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.contract.event
    }

    /// Where it happened. An event need not belong to a conversation.
    #[must_use]
    pub fn conversation(&self) -> Option<&Conversation> {
        self.contract.conversation.as_ref()
    }

    /// The id of the conversation, where there is one.
    #[must_use]
    pub fn conversation_id(&self) -> Option<&str> {
        self.conversation()?.conversation_id.as_deref()
    }

    /// Who made it happen.
    #[must_use]
    pub fn actor(&self) -> Option<&Actor> {
        self.contract.actor.as_ref()
    }

    /// The models, tools and other things that this run may use.
    #[must_use]
    pub fn resources(&self) -> &Resources {
        &self.contract.resources
    }

    /// The first model that this run may use in this way.
    #[must_use]
    pub fn model_for(&self, operation: ModelOperation) -> Option<&ModelResource> {
        self.resources().models.iter().find(|model| model.operations.contains(&operation))
    }

    /// The granted model with this id.
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
    /// A [`Failure`] with the code `provider_not_ready` when the run was granted no such model. Its
    /// message says what there is and what to do.
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

    /// The first chat model that this run was granted.
    ///
    /// # Errors
    /// A [`Failure`] with the code `provider_not_ready` when there is none.
    pub fn default_model(&self) -> Result<Model<'_>, Failure> {
        self.resources().models.iter().find(|model| model.model_type == "llm").map(Model::new).ok_or_else(|| {
            Failure::new(
                "provider_not_ready",
                "no chat model is granted to this run: configure one in agent-host.toml, and let the binding use it",
            )
        })
    }

    /// The tools of the host that this run was granted.
    #[must_use]
    pub fn tools(&self) -> Tools<'_> {
        Tools::new(&self.resources().tools, &self.call_ids)
    }

    /// The knowledge bases that this run was granted.
    #[must_use]
    pub fn knowledge(&self) -> Knowledge<'_> {
        Knowledge::new(&self.resources().knowledge_bases)
    }

    /// Earlier events.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new()
    }

    /// Bytes that the host keeps, such as those of [`Context::attachments`].
    #[must_use]
    pub fn artifacts(&self) -> Artifacts {
        Artifacts::new()
    }

    /// Bytes of the runner that outlive the run.
    #[must_use]
    pub fn storage(&self, area: StorageArea) -> Storage {
        Storage::new(area)
    }

    /// The skills that this run may read. The content of one is an artifact:
    /// `ctx.artifacts().read_text(&skill.content.artifact_id, limit)`.
    #[must_use]
    pub fn skills(&self) -> &[SkillResource] {
        &self.resources().skills
    }

    /// The skill of this name, where the run may read it.
    #[must_use]
    pub fn skill(&self, name: &str) -> Option<&SkillResource> {
        self.skills().iter().find(|skill| skill.skill_name == name)
    }

    /// Content that does not change from run to run, each with its hash: put it first into a prompt, and services that keep
    /// the beginning of a prompt know it again.
    #[must_use]
    pub fn static_refs(&self) -> &[StaticRef] {
        &self.contract.runtime.static_refs
    }

    /// The actions that this run may ask of the platform.
    #[must_use]
    pub fn platform(&self) -> Platform<'_> {
        Platform::new(&self.resources().platform_actions)
    }

    /// Asks a person, and waits for the answer. See [`interactions`](crate::interactions).
    ///
    /// # Errors
    /// `unauthorized` where this run may not ask; `runtime_error` where the answer has not the shape that was asked for.
    pub fn ask<A>(&self, question: Question<A>) -> Result<A, ApiError> {
        question.ask()
    }

    /// Input that arrives while this run is active.
    #[must_use]
    pub fn steering(&self) -> Steering {
        Steering::new()
    }

    /// Other runs that this run starts.
    #[must_use]
    pub fn runs(&self) -> Runs {
        Runs::new()
    }

    /// Requests to the outside.
    #[must_use]
    pub fn http(&self) -> Http {
        Http::new()
    }

    /// Which calls the grant of this run allows. A call that is not allowed answers
    /// `unauthorized`.
    #[must_use]
    pub fn available_apis(&self) -> &AvailableApis {
        &self.contract.context.available_apis
    }

    /// When the host ends the run, in Unix milliseconds.
    #[must_use]
    pub fn deadline_at(&self) -> Option<u64> {
        self.contract.runtime.deadline_at
    }

    /// How long this run may still take; none, where it has no deadline. A host call.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline_at().map(|at| Duration::from_millis(at.saturating_sub(timers::now())))
    }

    /// The language to answer in, as a BCP 47 tag, where the host knows one.
    #[must_use]
    pub fn locale(&self) -> Option<&str> {
        self.contract.runtime.locale.as_deref()
    }

    /// The configuration of the binding.
    ///
    /// # Errors
    /// A [`Failure`] with the code `runner.invalid_config` whose message names the field that does
    /// not fit `T`.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        from_str(&self.contract.config)
            .map_err(|error| Failure::new("runner.invalid_config", format!("the configuration, {error}")))
    }

    /// The data of the event.
    ///
    /// # Errors
    /// A [`Failure`] with the code `runner.invalid_event` whose message names the field that does
    /// not fit `T`.
    pub fn event_data<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        from_str(&self.contract.event.data)
            .map_err(|error| Failure::new("runner.invalid_event", format!("the data of the event, {error}")))
    }

    /// The state in a scope.
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

    /// The transcript.
    #[must_use]
    pub fn history(&self) -> History {
        History::new()
    }

    /// Starts a message that is streamed while it is written.
    pub fn message(&self) -> MessageWriter {
        MessageWriter::new(self.ids.clone())
    }

    /// An id for a message that the runner builds itself, unique in the run.
    #[must_use]
    pub fn next_message_id(&self) -> String {
        self.ids.next()
    }

    /// Says a text that is complete already, without deltas. One host call; a text of more than
    /// [`MESSAGE_BYTES`] becomes several messages.
    ///
    /// # Errors
    /// As the host answers.
    pub fn reply(&self, text: &str) -> Result<(), ApiError> {
        let mut batch = Batch::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (head, tail) = split_at_json_len(rest, MESSAGE_BYTES);
            batch.push(message_completed(self.ids.next(), Message::assistant(head)))?;
            rest = tail;
        }
        batch.flush()
    }
}
