//! A real echo run, copied row for row, each copy with ids and a conversation of its own.

use std::{collections::BTreeMap, sync::Arc};

use agent_host_ledger::{
    Accept, AcceptOutcome, AuditRecord, Ledger, NewContext, NewEvent, NewItem, NewRun, RunChange, RunWrite, StateWrite,
};
use agent_host_protocol::{
    Event, EventId, Run, RunId, RunStatus, context::RunContext, grant::ConversationKey, manifest::StateScope, page::Direction,
    run::Terminal, transcript::TranscriptItem,
};
use agent_host_runs::{Config, Host, Terms};
use anyhow::Context;
use serde_json::value::{RawValue, to_raw_value};

use crate::in_process;

const MIB: usize = 1024 * 1024;

/// All rows of one run in the ledger.
pub(crate) struct Sample {
    event: Event,
    run: Run,
    terms: Terms,
    context: Box<RawValue>,
    events: Vec<NewEvent>,
    terminal: Terminal,
    transcript: Vec<TranscriptItem>,
    state: Vec<(StateScope, String, Box<RawValue>)>,
    audit: Vec<AuditRecord>,
}

/// All copies have ids of the same length, so that all have rows of the same length.
fn conversation(number: u64) -> String {
    format!("sample-{number:012}")
}

impl Sample {
    /// A real run, read back from the ledger that it was written to.
    pub(crate) async fn make(config: Config) -> anyhow::Result<Self> {
        let host = Host::start(config).await?;
        let run = in_process::run(&host, in_process::envelope(conversation(0))).await?;
        let sample = Self::read(host.ledger(), Arc::unwrap_or_clone(run));
        host.shutdown(std::time::Duration::from_secs(10)).await;
        sample
    }

    fn read(ledger: &Ledger, run: Run) -> anyhow::Result<Self> {
        let id = run.run_id;
        let run_no = ledger.run(id)?.context("the run is not in the ledger")?.run_no;
        let terms: Terms = serde_json::from_str(ledger.terms(id)?.context("the run has no terms")?.get())?;
        let key = terms.grant.conversation.clone().context("the run has no conversation")?;
        let events: Vec<_> = ledger
            .run_events_after(run_no, id, 0, usize::from(u8::MAX))?
            .into_iter()
            .map(|event| NewEvent {
                sequence: event.sequence,
                kind: event.kind.into(),
                data: event.data.into(),
                timestamp: event.timestamp,
                source: event.source,
                metadata: event.metadata.map(Into::into),
            })
            .collect();
        let terminal = Terminal::Completed(serde_json::from_str(events.last().context("the run has no events")?.data.get())?);
        let mut state = Vec::new();
        for scope in StateScope::ALL {
            let Some(scope_key) = terms.grant.state_key(*scope) else { continue };
            for (key, value) in ledger.state_scope(&scope_key, MIB)? {
                state.push((*scope, key, to_raw_value(&value)?));
            }
        }
        Ok(Self {
            event: ledger.event(run.event_id)?.context("the event is not in the ledger")?.event,
            context: ledger.context(id)?.context("the run has no context")?,
            transcript: ledger.transcript(&key, None, None, 100, Direction::Forward)?.items,
            audit: ledger.audit_page(id, None, 100)?.items,
            run,
            terms,
            events,
            terminal,
            state,
        })
    }

    /// Writes the run once more, under the next ids.
    pub(crate) async fn copy(&self, ledger: &Ledger, number: u64) -> anyhow::Result<()> {
        let (event_id, run_id) = (EventId::new(), RunId::new());
        let key = ConversationKey::new("", &conversation(number), "");
        let mut event = self.event.clone();
        event.event_id = event_id;
        if let Some(conversation) = &mut event.envelope.conversation {
            conversation.conversation_id = Some(key.conversation().to_owned());
        }
        let mut terms = self.terms.clone();
        terms.grant.conversation = Some(key.clone());
        let mut items = self.transcript.iter().map(|item| self.item(item, &key, event_id, run_id));
        let run = Run {
            run_id,
            event_id,
            conversation_id: Some(key.conversation().to_owned()),
            status: RunStatus::Created,
            started_at: None,
            finished_at: None,
            deadline_at: None,
            last_sequence: 0,
            record_digest: None,
            usage: None,
            usage_by_model: BTreeMap::new(),
            claimed_usage: None,
            children_usage: None,
            ..self.run.clone()
        };
        let accept = Accept {
            event: Arc::new(event),
            idempotency: None,
            runs: vec![NewRun { run, terms: terms.stored()?, events: Vec::new() }],
            history: Vec::new(),
            transcript: items.next(),
            artifacts: Vec::new(),
            refers_to: Vec::new(),
            entries: Vec::new(),
            state: Vec::new(),
            branch: None,
        };
        let AcceptOutcome::New { runs, .. } = ledger.accept(accept).await? else {
            anyhow::bail!("an event without a key was repeated")
        };
        let run_no = runs.first().context("the event made no run")?.run_no;

        let (old_run, old_event) = (self.run.run_id.to_string(), self.run.event_id.to_string());
        let context = self.context.get().replace(&old_run, &run_id.to_string()).replace(&old_event, &event_id.to_string());
        let context: RunContext = serde_json::from_str(&context.replace(&conversation(0), key.conversation()))?;
        let at = self.run.updated_at;
        let state = self.state.iter().filter_map(|(scope, name, value)| {
            Some(StateWrite {
                scope_key: terms.grant.state_key(*scope)?,
                key: name.clone(),
                value: Some(value.clone()),
                expected: None,
                quota: None,
            })
        });
        let audit = self.audit.iter().map(|record| AuditRecord {
            run_id: record.run_id.map(|_| run_id),
            resource: record.resource.as_ref().map(|resource| resource.replace(&conversation(0), key.conversation())),
            ..record.clone()
        });
        let write = RunWrite {
            run_no,
            changes: vec![
                RunChange::Start { at, deadline_at: self.run.deadline_at },
                RunChange::End { at, terminal: self.terminal.clone() },
            ],
            context: Some(NewContext::of(&context)?),
            events: self.events.clone(),
            transcript: items.collect(),
            state: state.collect(),
            audit: audit.collect::<Vec<_>>().into(),
            ..RunWrite::default()
        };
        ledger.submit(write).await?.await?;
        Ok(())
    }

    fn item(&self, item: &TranscriptItem, key: &ConversationKey, event_id: EventId, run_id: RunId) -> NewItem {
        NewItem {
            conversation: key.clone(),
            event_id,
            run_id: item.run_id.map(|_| run_id),
            role: item.role.clone().into(),
            item_type: item.item_type.clone().into(),
            content: item.content.clone(),
            artifacts: item.artifacts.clone(),
            created_at: item.created_at,
        }
    }
}
