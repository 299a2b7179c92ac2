//! Unit tests with a scripted host: a runner runs as plain Rust, without wasm, server or network.
//!
//! ```
//! use agent_host_sdk::testing::TestHost;
//! use agent_host_sdk::{Completion, Context, Failure, Manifest, ModelOperation, ModelRequest, Runner};
//!
//! struct Answers;
//!
//! impl Runner for Answers {
//!     fn manifest() -> Manifest {
//!         Manifest::new("acme", "answers").models([ModelOperation::Invoke])
//!     }
//!
//!     fn run(ctx: Context) -> Result<Completion, Failure> {
//!         let answer = ctx.default_model()?.invoke(&ModelRequest::new().user(ctx.text()))?;
//!         ctx.reply(&answer.text())?;
//!         Ok(Completion::stop())
//!     }
//! }
//!
//! let run = TestHost::new().model("chat", |request| format!("{} messages", request.messages.len())).run::<Answers>("Hi");
//! assert_eq!(run.text(), "1 messages");
//!
//! let run = TestHost::new().run::<Answers>("Hi");
//! assert_eq!(run.failure().code, "provider_not_ready");
//! ```
//!
//! The scripted host has the rules of the real one. A call of an interface that the manifest does not declare panics with
//! the reason (the real host would refuse the component). A call that is not granted fails with `unauthorized`, a missing
//! resource with `not_found`, and batches of results have their limits. State, storage, artifacts and the transcript stay
//! in the [`TestHost`], so a second `run` is the next event of the same conversation.
//!
//! Differences from the real host: search matches shared words, schemas are not checked, and calls take no time. The
//! clock of the test advances only when the runner sleeps or waits, and then immediately.
//!
//! People, the platform, child runs and HTTP servers are scripted too:
//!
//! ```
//! use agent_host_sdk::serde_json::json;
//! use agent_host_sdk::testing::{ActionReply, AnswerReply, ChildReply, HttpReply, TestHost};
//! use std::time::Duration;
//!
//! let host = TestHost::new()
//!     .action("item.delete", |target, _payload| match target["id"].as_u64() {
//!         Some(7) => ActionReply::denied("7 stays"),
//!         _ => json!({"deleted": true}).into(),
//!     })
//!     .answers([AnswerReply::from(true), AnswerReply::declined("ask my boss"), AnswerReply::expired()])
//!     .steering("be brief")
//!     .steering_after_pulls(1, "in French, please")
//!     .child("plugin:acme/worker/default", |start| match start.input.text.as_deref() {
//!         Some("break") => ChildReply::failed("worker.broken", "it broke"),
//!         _ => ChildReply::from("done").after(Duration::from_secs(3)),
//!     })
//!     .http("POST", "https://agent.example.com/*", |_request| HttpReply::chunks(["data: a\n", "\ndata: b\n\n"]));
//! # let _host = host;
//! ```

#![allow(clippy::panic, reason = "a test fails by a panic that says why")]

mod asks;
mod beyond;
pub(crate) mod bindings;
mod children;
mod permission;
mod run;
mod script;
mod scripted;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_beyond;
mod wire;

use serde_json::{Value, json};

pub use self::asks::{ActionReply, AnswerReply, TestAction};
pub use self::children::{ChildReply, TestChild};
pub use self::permission::Permission;
use self::permission::{DeclaredPermissions, everything};
pub use self::run::TestRun;
pub use self::script::{Reply, ToolReply};
use self::scripted::{Artifact, Model, ScriptedHost, Tool};
pub use self::wire::HttpReply;
use crate::contract::agent_host::runner::context as contract;
use crate::contract::{
    ArtifactOperation, ArtifactRef, AvailableApis, BootstrapMode, EventOperation, HistoryOperation, Hit, Message, ModelResource,
    Request, Resources, RunContext, RunOperation, SkillResource, StateScope, StaticRef, StorageArea, ToolOperation, ToolResource,
    TranscriptItem,
};
use crate::error::ApiError;
use crate::{Context, Runner};

/// Host for a test, with scripted models, tools, people and services.
///
/// Defaults: no configuration, no model, no tool, an empty conversation. The declared permissions of the runner are
/// granted, except those of [`deny`](Self::deny).
#[must_use]
pub struct TestHost {
    host: ScriptedHost,
    config: String,
    event_type: String,
    event_data: String,
    attachments: Vec<ArtifactRef>,
    conversation: bool,
    parent: Option<String>,
    deadline_ms: u64,
    skills: Vec<SkillResource>,
    static_refs: Vec<StaticRef>,
}

impl Default for TestHost {
    fn default() -> Self {
        Self {
            host: ScriptedHost { now: 1_760_000_000_000, ..ScriptedHost::default() },
            config: "{}".to_owned(),
            event_type: "message.received".to_owned(),
            event_data: "{}".to_owned(),
            attachments: Vec::new(),
            conversation: true,
            parent: None,
            deadline_ms: 300_000,
            skills: Vec::new(),
            static_refs: Vec::new(),
        }
    }
}

impl TestHost {
    /// Creates a host with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the configuration of the binding.
    pub fn config(mut self, config: Value) -> Self {
        self.config = config.to_string();
        self
    }

    /// Stores a value in the state.
    pub fn state(mut self, scope: StateScope, key: &str, value: Value) -> Self {
        self.host.state.insert((scope as u8, key.to_owned()), value.to_string());
        self
    }

    /// Stores bytes in the storage.
    pub fn storage(mut self, area: StorageArea, key: &str, value: impl Into<Vec<u8>>) -> Self {
        self.host.storage.insert((area as u8, key.to_owned()), value.into());
        self
    }

    /// Adds messages to the transcript: pairs of role and text.
    pub fn history<'h>(mut self, messages: impl IntoIterator<Item = (&'h str, &'h str)>) -> Self {
        for (role, text) in messages {
            let event_id = format!("earlier-{}", self.host.transcript.len() + 1);
            self.host.add_item(role, "message", text, &event_id);
        }
        self
    }

    /// Adds an item of any kind to the transcript. The host assigns its number and its cursor.
    pub fn transcript_item(mut self, change: impl FnOnce(&mut TranscriptItem)) -> Self {
        self.host.add_item("user", "message", "", "earlier");
        if let Some(item) = self.host.transcript.last_mut() {
            let (seq, cursor) = (item.seq, item.cursor.clone());
            change(item);
            item.seq = seq;
            item.cursor = cursor;
        }
        self
    }

    /// Adds a chat model with a function that answers each request.
    pub fn model<R: Into<Reply>>(mut self, id: &str, mut answer: impl FnMut(&Request) -> R + 'static) -> Self {
        let chat = Model::Chat(Box::new(move |request| answer(request).into()));
        self.host.models.push((id.to_owned(), chat));
        self
    }

    /// Adds a chat model with replies in order. A further request fails the test.
    pub fn replies<R: Into<Reply>>(self, id: &str, replies: impl IntoIterator<Item = R>) -> Self {
        let mut replies = replies.into_iter().map(Into::into).collect::<Vec<Reply>>().into_iter();
        let name = id.to_owned();
        self.model(id, move |_| {
            replies.next().unwrap_or_else(|| panic!("the model `{name}` was asked once more than it has replies"))
        })
    }

    /// Sets the token count of the chat models. Default: a quarter of the bytes, plus 4 per message.
    pub fn tokens(mut self, count: impl FnMut(&[Message]) -> u64 + 'static) -> Self {
        self.host.count = Some(Box::new(count));
        self
    }

    /// Adds an embedding model.
    pub fn embedding(mut self, id: &str, embed: impl FnMut(&str) -> Vec<f32> + 'static) -> Self {
        self.host.models.push((id.to_owned(), Model::Embedding(Box::new(embed))));
        self
    }

    /// Adds a rerank model with a function that scores a document for a query.
    pub fn reranker(mut self, id: &str, score: impl FnMut(&str, &str) -> f64 + 'static) -> Self {
        self.host.models.push((id.to_owned(), Model::Rerank(Box::new(score))));
        self
    }

    /// Adds a tool of the host or of the client: its name (`SERVER__TOOL` for a tool of the host), the JSON Schema of its
    /// parameters, and the function that answers calls. The parameters must be an object; the schema is not checked.
    pub fn tool<R: Into<ToolReply>>(mut self, name: &str, schema: Value, mut answer: impl FnMut(Value) -> R + 'static) -> Self {
        let answer = Box::new(move |parameters| answer(parameters).into());
        self.host.tools.push((name.to_owned(), Tool { schema: schema.to_string(), destructive: None, answer }));
        self
    }

    /// Marks a tool as destructive in its details.
    pub fn destructive(mut self, name: &str) -> Self {
        match self.host.tools.iter_mut().find(|(known, _)| known == name) {
            Some((_, tool)) => tool.destructive = Some(true),
            None => panic!("there is no tool `{name}` yet"),
        }
        self
    }

    /// Adds a knowledge base: pairs of document id and text, or whole passages. A search finds passages that share a word
    /// with the query; a filter compares members of the metadata.
    pub fn knowledge<P: Into<Hit>>(mut self, id: &str, passages: impl IntoIterator<Item = P>) -> Self {
        self.host.knowledge.push((id.to_owned(), passages.into_iter().map(Into::into).collect()));
        self
    }

    /// Adds an artifact, with the id `artifact-1` for the first, and so on.
    pub fn artifact(mut self, media_type: &str, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.host.keep_artifact(media_type, Some(name), content.into());
        self
    }

    /// Adds an artifact as an attachment of the next event.
    pub fn attachment(mut self, media_type: &str, name: &str, content: impl Into<Vec<u8>>) -> Self {
        let reference = self.host.keep_artifact(media_type, Some(name), content.into());
        self.attachments.push(reference);
        self
    }

    /// Sets the type and the data of the event. Default: `message.received`.
    pub fn event(mut self, event_type: &str, data: Value) -> Self {
        event_type.clone_into(&mut self.event_type);
        self.event_data = data.to_string();
        self
    }

    /// Removes the conversation of the event.
    pub fn without_conversation(mut self) -> Self {
        self.conversation = false;
        self
    }

    /// Makes the run a child of this run.
    pub fn parent(mut self, run_id: &str) -> Self {
        self.parent = Some(run_id.to_owned());
        self
    }

    /// Sets the time until the deadline in the context, by the clock of the test. Default: 5 minutes. The test host does
    /// not end a run at its deadline.
    pub fn time(mut self, time: std::time::Duration) -> Self {
        self.deadline_ms = crate::limits::millis(time);
        self
    }

    /// Adds a skill that the run may read.
    pub fn skill(mut self, name: &str, description: &str, content: &str) -> Self {
        let content = self.host.keep_artifact("text/markdown", Some("SKILL.md"), content.into());
        self.skills.push(SkillResource { skill_name: name.to_owned(), description: Some(description.to_owned()), content });
        self
    }

    /// Adds a static reference. The hash is that of the test host, not SHA-256.
    pub fn static_ref(mut self, name: &str, content: &str) -> Self {
        let artifact = self.host.keep_artifact("text/plain", Some(name), content.into());
        self.static_refs.push(StaticRef {
            name: name.to_owned(),
            version: "1".to_owned(),
            sha256: artifact.artifact_id.clone(),
            content: Some(artifact),
        });
        self
    }

    /// Denies a declared permission. A call fails with `unauthorized`.
    pub fn deny(mut self, permission: impl Into<Permission>) -> Self {
        self.host.denied.push(permission.into());
        self
    }

    /// Makes the next call of a function, such as `models.invoke` or `state.set`, fail. A second `fail` applies to the
    /// call after that.
    pub fn fail(mut self, function: &str, error: ApiError) -> Self {
        self.host.failures.entry(function.to_owned()).or_default().push_back(error.into());
        self
    }

    /// Cancels the next run after this number of host calls: every later call fails with `cancelled`.
    pub fn cancel_after(mut self, calls: usize) -> Self {
        self.host.cancel_after = Some(calls);
        self
    }

    /// Runs the runner on a message with this text. State, storage, artifacts and transcript remain for the next run.
    ///
    /// # Panics
    /// Panics if the runner panics, calls an interface that its manifest does not declare, or completes without the end of a message
    /// that it wrote ([`MessageWriter::finish`](crate::MessageWriter::finish)).
    pub fn run<R: Runner>(&mut self, text: &str) -> TestRun {
        self.host.declared = DeclaredPermissions::by(R::manifest().into_contract(R::NAME, "0.0.0"));
        self.host.run_no += 1;
        let context = Context::new(self.context(text));
        let messages = context.messages();
        scripted::install(std::mem::take(&mut self.host));
        let outcome = R::run(context);
        self.host = scripted::take();
        let unfinished = outcome.as_ref().map(|completion| messages.unfinished_texts(completion)).unwrap_or_default();
        assert!(unfinished.is_empty(), "the runner completed without `finish` for the messages {unfinished:?}");
        self.host.cancel_after = None;
        self.attachments.clear();
        let (completion, failure) = match outcome {
            Ok(completion) => (Some(completion), None),
            Err(failure) => (None, Some(failure)),
        };
        let host = &mut self.host;
        let children = host.end_of_children();
        let beyond = &mut host.beyond;
        beyond.pulls = 0;
        TestRun {
            actions: std::mem::take(&mut beyond.asked_actions),
            questions: std::mem::take(&mut beyond.questions),
            steering_left: std::mem::take(&mut beyond.arrivals).into_iter().map(|(_, text)| text).collect(),
            children,
            most_children_at_once: std::mem::take(&mut beyond.most_children),
            http: std::mem::take(&mut beyond.requests),
            completion,
            failure,
            results: std::mem::take(&mut host.results),
            batches: std::mem::take(&mut host.batches),
            requests: std::mem::take(&mut host.requests),
            tool_calls: std::mem::take(&mut host.tool_calls),
            calls: std::mem::take(&mut host.calls),
            log: std::mem::take(&mut host.log),
            state: host.state.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            storage: host.storage.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            artifacts: host
                .artifacts
                .iter()
                .map(|Artifact { reference, content }| (reference.clone(), content.clone()))
                .collect(),
        }
    }

    /// Calls a function with a context of this host, to test a part of a runner. The host answers the host calls of the
    /// function. All permissions are declared.
    ///
    /// ```
    /// use agent_host_sdk::StorageArea;
    /// use agent_host_sdk::testing::TestHost;
    ///
    /// let mut host = TestHost::new();
    /// host.with(|ctx| ctx.storage(StorageArea::Plugin).set_json("n", &1)).unwrap();
    /// let kept = host.with(|ctx| ctx.storage(StorageArea::Plugin).get_json("n")).unwrap();
    /// assert_eq!(kept, Some(1));
    /// ```
    pub fn with<T>(&mut self, part: impl FnOnce(&Context) -> T) -> T {
        let named = self.host.beyond.actions.iter().filter_map(|(name, _)| name.clone());
        self.host.declared = everything(named.collect());
        self.host.run_no += 1;
        let context = Context::new(self.context(""));
        scripted::install(std::mem::take(&mut self.host));
        let value = part(&context);
        self.host = scripted::take();
        value
    }

    /// Builds the context of the next run, and adds its event to the log and the transcript.
    fn context(&mut self, text: &str) -> RunContext {
        let number = self.host.run_no;
        let event_id = format!("event-{number}");
        let event = contract::Event {
            event_id: event_id.clone(),
            event_type: self.event_type.clone(),
            event_time: Some(self.host.now),
            source: "api".to_owned(),
            source_event_type: None,
            raw_ref: None,
            data: self.event_data.clone(),
        };
        self.host.events.push(event.clone());
        if self.conversation {
            self.host.add_item("user", "message", text, &event_id);
            if let Some(item) = self.host.transcript.last_mut() {
                item.artifacts.clone_from(&self.attachments);
            }
        }
        let seq = self.host.transcript.len() as u64;
        let conversation = self.conversation.then(|| "conversation-1".to_owned());
        RunContext {
            run_id: format!("run-{number}"),
            parent_run_id: self.parent.clone(),
            trigger: contract::Trigger {
                type_: self.event_type.clone(),
                source: "api".to_owned(),
                timestamp: Some(self.host.now),
            },
            event,
            conversation: conversation.clone().map(|id| contract::Conversation {
                conversation_id: Some(id),
                thread_id: None,
                launcher_type: None,
                launcher_id: None,
                bot_id: None,
                workspace_id: None,
            }),
            actor: Some(contract::Actor {
                actor_type: "user".to_owned(),
                actor_id: Some("actor-1".to_owned()),
                actor_name: None,
                metadata: "{}".to_owned(),
            }),
            subject: None,
            input: contract::Input {
                text: Some(text.to_owned()),
                contents: Vec::new(),
                attachments: self.attachments.clone(),
                message_chain: None,
            },
            delivery: contract::Delivery {
                surface: "api".to_owned(),
                reply_target: None,
                supports_streaming: true,
                supports_edit: false,
                supports_reaction: false,
                max_message_size: None,
                platform_capabilities: "{}".to_owned(),
            },
            resources: self.resources(),
            context: contract::ContextAccess {
                conversation_id: conversation.clone(),
                thread_id: None,
                latest_cursor: conversation.as_ref().map(|_| (seq + 1).to_string()),
                event_seq: Some(number),
                transcript_seq: conversation.as_ref().map(|_| seq),
                has_history_before: conversation.is_some() && seq > 1,
                inline_policy: contract::InlinePolicy {
                    mode: BootstrapMode::CurrentEvent,
                    delivered_count: 0,
                    source_total_count: None,
                    messages_complete: false,
                    reason: None,
                },
                available_apis: self.apis(),
            },
            state: contract::StateSnapshot {
                conversation: self.snapshot(StateScope::Conversation),
                actor: self.snapshot(StateScope::Actor),
                subject: self.snapshot(StateScope::Subject),
                runner: self.snapshot(StateScope::Runner),
                binding: self.snapshot(StateScope::Binding),
            },
            runtime: contract::Runtime {
                host: "test".to_owned(),
                host_version: env!("CARGO_PKG_VERSION").to_owned(),
                trace_id: format!("trace-{number}"),
                deadline_at: Some(self.host.now.saturating_add(self.deadline_ms)),
                locale: None,
                timezone: None,
                attempt: 1,
                static_refs: self.static_refs.clone(),
                metadata: "{}".to_owned(),
            },
            config: self.config.clone(),
            bootstrap: None,
            adapter: None,
            metadata: "{}".to_owned(),
        }
    }

    fn resources(&self) -> Resources {
        let host = &self.host;
        let models = host.models.iter().map(|(id, model)| ModelResource {
            model_id: id.clone(),
            model_type: model.kind().to_owned(),
            provider: Some("script".to_owned()),
            operations: model.operations().iter().copied().filter(|operation| host.granted((*operation).into())).collect(),
        });
        let tools = host.tools.iter().map(|(name, _)| ToolResource {
            tool_name: name.clone(),
            description: Some(format!("The tool {name}.")),
            operations: [ToolOperation::Detail, ToolOperation::Call]
                .into_iter()
                .filter(|operation| host.granted((*operation).into()))
                .collect(),
        });
        Resources {
            models: models.filter(|model| !model.operations.is_empty()).collect(),
            tools: tools.filter(|tool| !tool.operations.is_empty()).collect(),
            knowledge_bases: host.knowledge_bases(),
            artifacts: self.attachments.clone(),
            skills: self.skills.clone(),
            storage: [StorageArea::Plugin, StorageArea::Workspace, StorageArea::Binding]
                .into_iter()
                .filter(|area| host.granted((*area).into()))
                .collect(),
            platform_actions: host.granted_actions(),
            platform_capabilities: "{}".to_owned(),
        }
    }

    fn apis(&self) -> AvailableApis {
        let granted = |permission: Permission| self.host.granted(permission);
        let scopes = [StateScope::Conversation, StateScope::Actor, StateScope::Subject, StateScope::Runner, StateScope::Binding];
        AvailableApis {
            history_page: self.conversation && granted(HistoryOperation::Page.into()),
            history_search: self.conversation && granted(HistoryOperation::Search.into()),
            event_get: granted(EventOperation::Get.into()),
            event_page: granted(EventOperation::Page.into()),
            artifact_metadata: granted(ArtifactOperation::Metadata.into()),
            artifact_read: granted(ArtifactOperation::Read.into()),
            artifact_create: granted(ArtifactOperation::Create.into()),
            state: scopes.into_iter().any(|scope| granted(scope.into())),
            storage: [StorageArea::Plugin, StorageArea::Workspace, StorageArea::Binding]
                .into_iter()
                .any(|area| granted(area.into())),
            steering: self.conversation && granted(Permission::Steering),
            interactions: self.host.may_ask(),
            runs: granted(RunOperation::Start.into()),
        }
    }

    /// Returns the values of a scope as a JSON object.
    fn snapshot(&self, scope: StateScope) -> String {
        let here = self.host.state.iter().filter(|((at, _), _)| *at == scope as u8 && self.host.granted(scope.into()));
        let values = here.map(|((_, key), value)| (key.clone(), serde_json::from_str(value).unwrap_or(Value::Null)));
        json!(values.collect::<serde_json::Map<_, _>>()).to_string()
    }
}
