//! The context of a run: the event, its input, actor and place, the grant, and cursors. Never the history.

use agent_host_ledger::Ledger;
use agent_host_protocol::{
    Event, Grant, RunId, Timestamp,
    context::{
        AvailableApis, ContextAccess, Conversation, EventContext, HistoryResource, InlinePolicy, Resources, RunContext, Runtime,
        StateSnapshot, StorageResource, Trigger,
    },
    encoded::json_len,
    grant::ConversationKey,
    hex,
    manifest::{ArtifactOperation, BootstrapMode, EventOperation, HistoryOperation, StateScope, StorageArea},
    message::{Message, Role},
    page::Direction,
    transcript::MESSAGE,
};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{
    policy::services::Services,
    record::{HostError, claimed::HistoryClaim, terms::Terms},
};

/// Pages of the transcript that are read for inlined messages: items of other types lie between them.
const MAX_TAIL_PAGES: usize = 8;

/// The sources of a context besides the ledger.
pub(crate) struct Sources<'a> {
    pub(crate) run_id: RunId,
    pub(crate) parent_run_id: Option<RunId>,
    pub(crate) attempt: u32,
    pub(crate) event: &'a Event,
    pub(crate) services: &'a Services,
    pub(crate) event_no: u64,
    pub(crate) transcript_seq: Option<u64>,
    pub(crate) terms: &'a Terms,
    pub(crate) deadline_at: Timestamp,
    pub(crate) snapshot_bytes: usize,
}

/// Puts the context of a run together, when it starts: a run that waited sees the state that the runs before it left.
pub(crate) fn build(ledger: &Ledger, sources: &Sources<'_>) -> Result<RunContext, HostError> {
    let Sources { run_id, parent_run_id, event, terms, .. } = sources;
    let envelope = &event.envelope;
    let grant = &terms.grant;
    let permissions = &grant.permissions;
    let conversation = envelope.conversation.as_ref();
    let (bootstrap, inline_policy) = bootstrap(ledger, sources)?;
    let trace_id = envelope.trace_id.clone().unwrap_or_else(|| run_id.to_string());
    Ok(RunContext {
        run_id: *run_id,
        parent_run_id: *parent_run_id,
        trigger: Trigger::of(event),
        event: EventContext::of(event),
        conversation: conversation.cloned(),
        actor: envelope.actor.clone(),
        subject: envelope.subject.clone(),
        input: envelope.input.clone(),
        delivery: terms.delivery.clone(),
        resources: Resources {
            models: sources.services.model_resources(grant),
            tools: sources.services.tool_resources(grant),
            knowledge_bases: sources.services.knowledge_resources(grant),
            artifacts: if permissions.artifacts.is_empty() {
                Vec::new()
            } else {
                envelope.artifacts().chain(&grant.skill_files).cloned().collect()
            },
            skills: grant.skills.clone(),
            storage: StorageResource {
                plugin_storage: permissions.storage.contains(&StorageArea::Plugin),
                workspace_storage: permissions.storage.contains(&StorageArea::Workspace),
                binding_storage: permissions.storage.contains(&StorageArea::Binding),
            },
            history: HistoryResource {
                page: permissions.history.contains(&HistoryOperation::Page),
                search: permissions.history.contains(&HistoryOperation::Search),
            },
            platform_actions: permissions.platform_api.clone(),
            platform_capabilities: terms.delivery.platform_capabilities.clone(),
        },
        context: access(sources, inline_policy),
        state: snapshot(ledger, terms, sources.snapshot_bytes)?,
        runtime: Runtime {
            host: "agent-host".to_owned(),
            host_version: env!("CARGO_PKG_VERSION").to_owned(),
            trace_id,
            deadline_at: Some(sources.deadline_at),
            locale: envelope.locale.clone(),
            timezone: envelope.timezone.clone(),
            attempt: sources.attempt,
            static_refs: grant.static_refs.clone(),
            metadata: Map::new(),
        },
        config: terms.config.clone(),
        bootstrap,
        adapter: envelope.adapter.clone(),
        metadata: Map::new(),
    })
}

/// Bytes of a session key: `s_` and 32 hexadecimal digits.
const SESSION_KEY_BYTES: usize = 34;

/// The key of the session of a run (agent-owned context note, section 6): a hash of workspace, bot, binding, runner, conversation
/// and thread. `None` for a run without a conversation.
pub(crate) fn session_key(grant: &Grant, conversation: Option<&Conversation>) -> Option<String> {
    let own = grant.conversation.as_ref()?;
    let bot = conversation.and_then(|conversation| conversation.bot_id.as_deref()).unwrap_or_default();
    let parts = [own.workspace(), bot, grant.binding_id.as_str(), grant.runner_id.as_str(), own.conversation(), own.thread()];
    let mut hash = Sha256::new();
    for part in parts {
        // Ids have no control characters.
        hash.update(part);
        hash.update([0]);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut key = String::with_capacity(SESSION_KEY_BYTES);
    key.push_str("s_");
    hex::append(&mut key, &digest[..16]);
    Some(key)
}

/// The APIs and cursors with which the run can read more of the conversation.
fn access(sources: &Sources<'_>, inline_policy: InlinePolicy) -> ContextAccess {
    let Sources { event, terms, .. } = sources;
    let grant = &terms.grant;
    let permissions = &grant.permissions;
    let conversation = event.envelope.conversation.as_ref();
    ContextAccess {
        conversation_id: conversation.and_then(|c| c.conversation_id.clone()),
        thread_id: conversation.and_then(|c| c.thread_id.clone()),
        latest_cursor: grant
            .conversation
            .as_ref()
            .zip(sources.transcript_seq)
            .map(|(key, seq)| Ledger::transcript_cursor(key, seq.saturating_add(1))),
        event_seq: Some(sources.event_no),
        transcript_seq: sources.transcript_seq,
        has_history_before: sources.transcript_seq.is_some_and(|seq| seq > 1),
        session_key: session_key(grant, event.envelope.conversation.as_ref()),
        inline_policy,
        available_apis: AvailableApis {
            history_page: permissions.history.contains(&HistoryOperation::Page),
            history_search: permissions.history.contains(&HistoryOperation::Search),
            event_get: permissions.events.contains(&EventOperation::Get),
            event_page: permissions.events.contains(&EventOperation::Page),
            artifact_metadata: permissions.artifacts.contains(&ArtifactOperation::Metadata),
            artifact_read: permissions.artifacts.contains(&ArtifactOperation::Read),
            artifact_create: permissions.artifacts.contains(&ArtifactOperation::Create),
            storage: !permissions.storage.is_empty(),
            state: !permissions.state.is_empty(),
            steering: grant.steering,
            interactions: permissions.interactions,
            runs: !permissions.runs.is_empty(),
        },
    }
}

/// The state that a context brings along: all granted scopes, each as far as the bound allows.
fn snapshot(ledger: &Ledger, terms: &Terms, mut bytes: usize) -> Result<StateSnapshot, HostError> {
    let mut snapshot = StateSnapshot::default();
    for scope in StateScope::ALL {
        let Some(scope_key) = terms.grant.state_key(*scope) else { continue };
        let values = ledger.state_scope(&scope_key, bytes)?;
        let state_bytes: usize = values.iter().map(|(key, value)| key.len() + json_len(value)).sum();
        bytes = bytes.saturating_sub(state_bytes);
        *snapshot.scope_mut(*scope) = values;
    }
    Ok(snapshot)
}

/// Key of the summary that a runner keeps of a conversation, in state of scope `conversation`: a string, or an object with
/// `text` and the `transcript_seq` up to which it sums up.
const SUMMARY_KEY: &str = "context.summary";

/// The messages and the summary that the terms of the run put into its context, and the decision on them.
fn bootstrap(
    ledger: &Ledger,
    sources: &Sources<'_>,
) -> Result<(Option<agent_host_protocol::context::Bootstrap>, InlinePolicy), HostError> {
    let terms = sources.terms;
    let mode = terms.bootstrap.as_ref().map_or(BootstrapMode::CurrentEvent, |bootstrap| bootstrap.mode);
    let by = terms.inline_reason.as_deref().unwrap_or("the binding asks for no messages");
    let policy = |mode, delivered_count, source_total_count, reason: String| InlinePolicy {
        mode,
        delivered_count,
        source_total_count,
        messages_complete: source_total_count == Some(delivered_count),
        reason: Some(reason),
    };
    let bounds = terms.bootstrap.as_ref().filter(|_| matches!(mode, BootstrapMode::RecentTail | BootstrapMode::SummaryTail));
    let Some(bounds) = bounds else { return Ok((None, policy(mode, 0, None, by.to_owned()))) };
    let (Some(key), Some(seq)) = (&terms.grant.conversation, sources.transcript_seq) else {
        return Ok((None, policy(BootstrapMode::CurrentEvent, 0, None, format!("{by}; the event has no conversation"))));
    };
    let mut bytes = bounds.max_bytes as usize;
    let (summary, summed_up) = match mode {
        BootstrapMode::SummaryTail => summary(ledger, terms, key, &mut bytes)?,
        _ => (None, 0),
    };
    let mut before = Some(Ledger::transcript_cursor(key, seq));
    let (mut messages, mut cut) = (Vec::new(), false);
    'pages: for _ in 0..MAX_TAIL_PAGES {
        let page = ledger.transcript(key, before.as_deref(), None, bounds.max_events.max(1), Direction::Backward)?;
        for item in page.items {
            if item.seq <= summed_up {
                cut = false;
                break 'pages;
            }
            // Inlined messages are facts; what a client claims is read by pages, where it is marked.
            let is_fact = item.item_type == MESSAGE && HistoryClaim::of(&item).is_none();
            let Some(role) = role(&item.role).filter(|_| is_fact) else { continue };
            let message = Message { role, content: item.content, name: None, tool_calls: Vec::new(), tool_call_id: None };
            let size = json_len(&message);
            cut = size > bytes || messages.len() >= bounds.max_events as usize;
            if cut {
                break 'pages;
            }
            bytes -= size;
            messages.push(message);
        }
        cut = page.has_more;
        before = page.next_cursor;
        if !cut {
            break;
        }
    }
    messages.reverse();
    let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
    let total = u32::try_from(seq.saturating_sub(1)).unwrap_or(u32::MAX);
    let what = match (&summary, cut) {
        (_, true) => "the newest messages within the bounds",
        (Some(_), false) => "the summary of the runner and every message after it",
        (None, false) => "every message before this event",
    };
    let bootstrap = agent_host_protocol::context::Bootstrap { messages, summary, ..Default::default() };
    Ok((Some(bootstrap), policy(mode, count, Some(total), format!("{by}; {what}"))))
}

/// The summary of the conversation, and the last item of the transcript that it sums up. Without a summary, and without the
/// permission for state of scope `conversation`, there is none, nor where what it sums up has left the conversation with a branch.
fn summary(ledger: &Ledger, terms: &Terms, key: &ConversationKey, bytes: &mut usize) -> Result<(Option<String>, u64), HostError> {
    let Some(scope_key) = terms.grant.state_key(StateScope::Conversation) else { return Ok((None, 0)) };
    let (text, summed_up) = match ledger.state_get(&scope_key, SUMMARY_KEY)? {
        Some(Value::String(text)) => (text, 0),
        Some(Value::Object(mut summary)) => {
            let Some(Value::String(text)) = summary.remove("text") else { return Ok((None, 0)) };
            (text, summary.get("transcript_seq").and_then(Value::as_u64).unwrap_or(0))
        }
        _ => return Ok((None, 0)),
    };
    // A branch removes all that follows its beginning: if the last item that was summed up is present, so are the others.
    let has_left = || -> Result<bool, HostError> {
        let is_there = summed_up > 0 && ledger.transcript_item(key, summed_up)?.is_some();
        Ok(is_there && ledger.transcript_items(key, &[summed_up])?.is_empty())
    };
    if text.len() > *bytes || has_left()? {
        return Ok((None, 0));
    }
    *bytes -= text.len();
    Ok((Some(text), summed_up))
}

fn role(name: &str) -> Option<Role> {
    [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool].into_iter().find(|role| role.as_str() == name)
}
