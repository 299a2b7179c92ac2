//! Bindings: which runner answers which event, and what it is granted.

use std::{collections::BTreeMap, sync::Arc};

use agent_host_config::{BindingConfig, Pattern};
use agent_host_protocol::{
    FailureCode, Grant, Interface, RunnerId,
    context::{Conversation, Delivery},
    event::Envelope,
    grant::ConversationKey,
    manifest::{EventOperation, Permissions, RunOperation, RunnerManifest, StateScope, ToolOperation},
    run::{Execution, RunFailure},
};
use agent_host_sandbox::Runner;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    policy::{inline, services::Services},
    record::terms::Terms,
};

/// A binding, ready to be asked.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) config: BindingConfig,
    pattern: Pattern,
    /// The configuration in the form of permissions, made once.
    policy: Permissions,
}

/// The runner of a binding.
#[derive(Clone)]
pub(crate) enum BoundRunner {
    /// A component that the host holds, in its sandbox.
    Guest(Runner),
    /// An executor, that takes the runs of this runner.
    External {
        manifest: Arc<RunnerManifest>,
        /// The component with this runner, where there is one.
        component: String,
    },
    /// The host itself: it imports a capture.
    Import(Arc<RunnerManifest>),
}

impl BoundRunner {
    pub(crate) fn manifest(&self) -> &RunnerManifest {
        match self {
            Self::Guest(runner) => &runner.manifest,
            Self::External { manifest, .. } | Self::Import(manifest) => manifest,
        }
    }

    fn component(&self) -> &str {
        match self {
            Self::Guest(runner) => runner.component.digest(),
            Self::External { component, .. } => component,
            Self::Import(_) => "",
        }
    }

    pub(crate) fn execution(&self) -> Execution {
        match self {
            Self::Guest(_) | Self::Import(_) => Execution::Host,
            Self::External { .. } => Execution::External,
        }
    }

    /// The guest, where the host executes it.
    pub(crate) fn guest(self) -> Option<Runner> {
        match self {
            Self::Guest(runner) => Some(runner),
            Self::External { .. } | Self::Import(_) => None,
        }
    }

    /// The same runner, executed by executors.
    pub(crate) fn external(self) -> Self {
        match self {
            Self::Guest(runner) => Self::External { component: runner.component.digest().to_owned(), manifest: runner.manifest },
            other => other,
        }
    }
}

/// The runners that are installed now.
pub(crate) type InstalledRunners<'a> = dyn Fn() -> Vec<RunnerId> + 'a;

/// The report on a binding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct BindingReport {
    /// Id of the binding.
    pub id: String,
    /// Name for people, where the configuration has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The runner.
    pub runner: String,
    /// Priority of the binding.
    pub priority: i32,
    /// True if an event would be answered now.
    pub ready: bool,
    /// Reason why no event is answered, and the remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Binding {
    pub(crate) fn new(config: BindingConfig) -> Result<Self, String> {
        config.check()?;
        let pattern = Pattern::new(&config.matches)?;
        let policy = config.resources.permissions(config.state.as_ref());
        Ok(Self { config, pattern, policy })
    }

    pub(crate) fn matches(&self, envelope: &Envelope) -> bool {
        self.pattern.matches(envelope)
    }

    pub(crate) fn report(&self, runner: Option<&BoundRunner>) -> BindingReport {
        let problem = match runner {
            None => Some(self.no_runner()),
            Some(runner) => self.checked_config(runner.manifest()).err(),
        };
        BindingReport {
            id: self.config.id.clone(),
            label: self.config.label.clone(),
            runner: self.config.runner.to_string(),
            priority: self.config.priority,
            ready: problem.is_none(),
            problem,
        }
    }

    fn no_runner(&self) -> String {
        format!(
            "no plugin holds {}: drop its component into the plugins directory (`agent-host runners` says what is there), or name it in \
             `[[external_runners]]` or `[[executor_runners]]` where executors take its runs",
            self.config.runner
        )
    }

    fn checked_config(&self, manifest: &RunnerManifest) -> Result<serde_json::Map<String, serde_json::Value>, String> {
        let checked = manifest.check_config(self.config.config.clone());
        checked.map_err(|problems| {
            format!("the configuration of binding `{}` does not fit {}: {}", self.config.id, manifest.id, problems.join("; "))
        })
    }

    /// The terms of a run of this binding for this event. If the binding cannot run, the terms contain the reason: the run
    /// is created all the same, so that an event without an answer leaves a trace.
    pub(crate) fn terms(
        &self,
        envelope: &Envelope,
        runner: Option<&BoundRunner>,
        services: &Services,
        installed: &InstalledRunners<'_>,
        default_deadline_ms: u64,
    ) -> Terms {
        let failed = |code, message| Err(RunFailure::host(code, message));
        let checked = match runner {
            None => failed(FailureCode::RunnerNotFound, self.no_runner()),
            Some(runner) => match self.checked_config(runner.manifest()) {
                Ok(config) => Ok((config, runner)),
                Err(problem) => failed(FailureCode::InvalidConfig, problem),
            },
        };
        let (config, grant, refusal) = match checked {
            Ok((config, runner)) => (config, self.grant(envelope, Some(runner), services, installed), None),
            Err(failure) => (serde_json::Map::new(), self.grant(envelope, None, services, installed), Some(failure)),
        };
        let inline = runner.map(|runner| inline::terms(&runner.manifest().context, self.config.bootstrap.as_ref()));
        Terms {
            grant,
            config,
            delivery: envelope.delivery.clone().unwrap_or_else(|| self.delivery()),
            deadline_ms: self.config.deadline_ms.unwrap_or(default_deadline_ms),
            waiting_counts: self.config.waiting_counts,
            inline_reason: inline.as_ref().map(|inline| inline.reason.into()),
            bootstrap: inline.map(|inline| inline.bootstrap),
            durability: self.config.durability,
            max_attempts: self.config.max_attempts,
            in_doubt: self.config.in_doubt,
            budget: self.config.budget(),
            charged_key: None,
            approvals: self.config.approvals.clone(),
            execution: runner.map(BoundRunner::execution).unwrap_or_default(),
            queue: self.config.queue.clone().map(Box::new),
            ad_hoc: false,
            streamed: false,
            deliver: self.config.deliver.clone(),
            depth: 0,
            refusal,
        }
    }

    /// Manifest ∩ binding ∩ scope of the run.
    fn grant(
        &self,
        envelope: &Envelope,
        runner: Option<&BoundRunner>,
        services: &Services,
        installed: &InstalledRunners<'_>,
    ) -> Grant {
        let conversation = envelope.conversation.as_ref().and_then(ConversationKey::of);
        let actor = envelope.actor.as_ref().and_then(|actor| actor.actor_id.clone());
        let subject = envelope.subject.as_ref().and_then(|subject| subject.subject_id.clone());
        let mut permissions = runner.map(|runner| self.permissions(runner.manifest())).unwrap_or_default();
        if conversation.is_none() {
            permissions.history.clear();
            permissions.conversations.clear();
            // The run can read its own event only.
            permissions.events.retain(|operation| *operation == EventOperation::Get);
        }
        permissions.state.retain(|scope| match scope {
            StateScope::Conversation => conversation.is_some(),
            StateScope::Actor => actor.is_some(),
            StateScope::Subject => subject.is_some(),
            StateScope::Runner | StateScope::Binding => true,
        });
        let steers = runner.is_some_and(|runner| runner.manifest().interfaces().contains(Interface::Steering));
        let policy = &self.config.resources;
        let named = services.named(policy, &permissions);
        let runners = if permissions.runs.contains(&RunOperation::Start) {
            let is_named = |id: &RunnerId| policy.runner_ids.as_ref().is_none_or(|names| names.names(id.as_str()));
            installed().into_iter().filter(is_named).collect()
        } else {
            Vec::new()
        };
        let http_secrets = match &policy.http_secrets {
            Some(names) if !permissions.http_hosts.is_empty() => services.secrets(names),
            _ => Vec::new(),
        };
        let library = services.library.granted(policy, &permissions);
        let static_refs = match runner {
            Some(runner) if !runner.manifest().context.wants_static_context_refs => BTreeMap::new(),
            _ => {
                let mut refs = library.static_refs;
                refs.extend(services.static_refs(&named, &permissions, &self.config.approvals));
                refs
            }
        };
        Grant {
            models: named.models,
            tools: named.tools,
            // Client tools are part of the request: see `Host::plan`.
            client_tools: Vec::new(),
            knowledge_bases: named.knowledge_bases,
            runners,
            http_secrets,
            skills: library.skills,
            skill_files: library.skill_files,
            static_refs,
            workspace: envelope.workspace().map(ToOwned::to_owned),
            runner_id: self.config.runner.clone(),
            binding_id: self.config.id.clone(),
            component: runner.map(|runner| runner.component().to_owned()).unwrap_or_default(),
            permissions,
            steering: steers && conversation.is_some() && self.config.resources.steering.unwrap_or(true),
            conversation,
            actor,
            subject,
        }
    }

    /// True if a run with these permissions may have tools of its client.
    pub(crate) fn takes_client_tools(&self, permissions: &Permissions) -> bool {
        self.config.resources.client_tools.unwrap_or(true) && permissions.tools.contains(&ToolOperation::Call)
    }

    /// Manifest ∩ binding: the most that a run of it may be granted.
    pub(crate) fn permissions(&self, manifest: &RunnerManifest) -> Permissions {
        let mut permissions = manifest.permissions.intersection(&self.policy);
        inline::supported(&manifest.context, &mut permissions);
        permissions
    }

    fn delivery(&self) -> Delivery {
        let policy = &self.config.delivery;
        Delivery {
            surface: policy.surface.clone(),
            reply_target: None,
            supports_streaming: policy.supports_streaming,
            supports_edit: policy.supports_edit,
            supports_reaction: policy.supports_reaction,
            max_message_size: policy.max_message_size,
            platform_capabilities: serde_json::Map::new(),
        }
    }
}

/// The bindings of a host, highest priority first, then in the order of the file.
pub(crate) fn in_order(bindings: &[BindingConfig]) -> Result<Vec<Arc<Binding>>, String> {
    let mut all = bindings
        .iter()
        .map(|config| Binding::new(config.clone()).map(Arc::new).map_err(|problem| format!("binding `{}`: {problem}", config.id)))
        .collect::<Result<Vec<_>, _>>()?;
    all.sort_by_key(|binding| std::cmp::Reverse(binding.config.priority));
    Ok(all)
}

/// The ids of a conversation that a run record shows.
pub(crate) fn conversation_ids(conversation: Option<&Conversation>) -> [Option<String>; 4] {
    let of = |id: fn(&Conversation) -> &Option<String>| conversation.and_then(|conversation| id(conversation).clone());
    [of(|c| &c.conversation_id), of(|c| &c.thread_id), of(|c| &c.workspace_id), of(|c| &c.bot_id)]
}

/// A grant becomes what both allow.
pub(crate) fn narrow(grant: &mut Grant, by: &Grant) {
    fn both<T: PartialEq>(mine: &mut Vec<T>, theirs: &[T]) {
        mine.retain(|one| theirs.contains(one));
    }
    grant.permissions = grant.permissions.intersection(&by.permissions);
    both(&mut grant.models, &by.models);
    both(&mut grant.tools, &by.tools);
    both(&mut grant.client_tools, &by.client_tools);
    both(&mut grant.knowledge_bases, &by.knowledge_bases);
    both(&mut grant.runners, &by.runners);
    both(&mut grant.http_secrets, &by.http_secrets);
    both(&mut grant.skills, &by.skills);
    both(&mut grant.skill_files, &by.skill_files);
    grant.static_refs.retain(|name, _| by.static_refs.contains_key(name));
    grant.steering &= by.steering;
}
