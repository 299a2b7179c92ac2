//! Records for unit tests.

use std::{collections::BTreeMap, sync::Arc};

use agent_host_protocol::{Event, EventId, Run, RunId, RunStatus, encoded::JsonText, event::Envelope, run::Execution};
use serde_json::Map;

use crate::{Accept, NewRun};

/// A run that was made and has not begun.
pub(crate) fn run(event_id: EventId) -> Run {
    Run {
        run_id: RunId::new(),
        parent_run_id: None,
        retry_of: None,
        execution: Execution::Host,
        queue: None,
        event_id,
        agent_id: "main".into(),
        binding_id: "main".into(),
        runner_id: "plugin:a/b/c".parse().unwrap(),
        runner_version: "1".into(),
        conversation_id: None,
        thread_id: None,
        workspace_id: None,
        bot_id: None,
        turn: None,
        status: RunStatus::Created,
        status_reason: None,
        failure: None,
        attempt: 1,
        resumes: 0,
        created_at: 1,
        started_at: None,
        finished_at: None,
        updated_at: 1,
        deadline_at: None,
        cancel_requested_at: None,
        cancel_reason: None,
        last_sequence: 0,
        record_digest: None,
        usage: None,
        usage_by_model: BTreeMap::new(),
        claimed_usage: None,
        children_usage: None,
        metadata: Map::new(),
    }
}

/// An event without a conversation, and one run that answers it.
pub(crate) fn accept() -> Accept {
    let event = Event { event_id: EventId::new(), received_at: 1, envelope: Envelope::message("x", "api") };
    let run = run(event.event_id);
    Accept {
        event: Arc::new(event),
        idempotency: None,
        runs: vec![NewRun { run, terms: JsonText::empty_object().into(), events: Vec::new() }],
        history: Vec::new(),
        transcript: None,
        artifacts: Vec::new(),
        refers_to: Vec::new(),
        entries: Vec::new(),
        state: Vec::new(),
        branch: None,
    }
}
