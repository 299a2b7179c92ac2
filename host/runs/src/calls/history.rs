//! `history`.

use std::sync::Arc;

use agent_host_ledger::{Ledger, LedgerError};
use agent_host_protocol::{
    ApiError, ErrorCode, Page, grant::ConversationKey, manifest::HistoryOperation, message::ContentPart,
    transcript::TranscriptItem,
};
use agent_host_providers::search::{SearchError, TranscriptDoc, TranscriptFilter, TranscriptIndex};
use agent_host_sandbox::{HistoryCalls, PageRequest, parse_json};
use async_trait::async_trait;
use serde::Deserialize;

use super::{RunCalls, granted, top_k, within};
use crate::{execution::call::Call, record::ledger_failed};

/// A question, and what narrows it.
const MAX_QUERY_BYTES: usize = 32 * 1024;

/// Items that are added to the index at a time.
const INDEXED_AT_ONCE: usize = 500;

/// The filters of a search, as the guest writes them.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Filters {
    conversation_id: Option<String>,
    event_types: Vec<String>,
    roles: Vec<String>,
    since: Option<u64>,
    until: Option<u64>,
}

impl Filters {
    fn parse(text: Option<&str>) -> Result<Self, ApiError> {
        let Some(text) = text else { return Ok(Self::default()) };
        let filters = parse_json("`filters`", text)?;
        // An array would be read as well, by position.
        if !filters.is_object() {
            return Err(ApiError::invalid_argument("`filters` is a JSON object, such as {\"roles\":[\"user\"]}"));
        }
        serde_json::from_value(filters).map_err(|error| {
            ApiError::invalid_argument(format!(
                "`filters` is an object of `conversation_id`, `event_types`, `roles`, `since` and `until`: {error}"
            ))
        })
    }
}

impl RunCalls {
    /// Steps 3 and 4 of the gate, for a transcript.
    fn transcript(&self, operation: HistoryOperation, action: &str, asked: Option<&str>) -> Result<(), ApiError> {
        let grant = &self.run.terms.grant;
        granted(&grant.permissions.history, &operation, action)?;
        match (&grant.conversation, asked) {
            (None, _) => {
                Err(ApiError::new(ErrorCode::NotFound, "the event of this run belongs to no conversation, so it has no history"))
            }
            // The same error for a conversation that exists and one that does not, so that a run cannot probe for
            // conversations.
            (Some(own), Some(asked)) if own.conversation() != asked => {
                Err(ApiError::unauthorized("this run is granted the history of its own conversation only"))
            }
            _ => Ok(()),
        }
    }

    fn own_conversation(&self) -> ConversationKey {
        self.run.terms.grant.conversation.clone().unwrap_or_default()
    }
}

#[async_trait]
impl HistoryCalls for RunCalls {
    async fn history_page(&mut self, request: PageRequest) -> Result<Page<TranscriptItem>, ApiError> {
        let run = &*self.run;
        let own = self.own_conversation();
        let wanted = request.conversation_id.as_deref();
        let resource = wanted.or(run.terms.grant.conversation.as_ref().map(ConversationKey::conversation));
        let asked = run.journal.asked(&request);
        let call = Call::read("history.page", asked).resource(resource).scope("conversation");
        let allowed = || self.transcript(HistoryOperation::Page, "history.page", wanted);
        let effect = async |()| {
            let (before, after) = (request.before.as_deref(), request.after.as_deref());
            let mut page = run.ledger.transcript(&own, before, after, request.limit, request.direction).map_err(ledger_failed)?;
            if !request.include_artifacts {
                page.items.iter_mut().for_each(|item| item.artifacts.clear());
            }
            Ok(page)
        };
        run.pass(call, allowed, effect).await.outcome
    }

    async fn history_search(
        &mut self,
        query: String,
        filters: Option<String>,
        at_most: u32,
    ) -> Result<Vec<TranscriptItem>, ApiError> {
        let run = &*self.run;
        let own = self.own_conversation();
        let bytes = query.len() + filters.as_ref().map_or(0, String::len);
        let asked = run.journal.asked(&(&query, &filters, at_most));
        let resource = Some(own.conversation());
        let call = Call::read("history.search", asked).resource(resource).scope("conversation").bytes(bytes);
        let filters = within("a query", bytes, MAX_QUERY_BYTES).and_then(|()| Filters::parse(filters.as_deref()));
        let allowed = || {
            let asked_for = filters.as_ref().ok().and_then(|filters| filters.conversation_id.as_deref());
            self.transcript(HistoryOperation::Search, "history.search", asked_for)?;
            top_k(at_most, run.limits.search_top_k)?;
            filters.as_ref().map(drop).map_err(Clone::clone)
        };
        let found = async |()| {
            let Filters { event_types, roles, since, until, .. } = filters.clone()?;
            let filter = TranscriptFilter { roles, event_types, since, until };
            let (ledger, services, key) = (run.ledger.clone(), Arc::clone(&self.services), own.clone());
            let search = move || search(&ledger, services.transcripts()?, &key, &query, &filter, at_most as usize);
            tokio::task::spawn_blocking(search).await.unwrap_or_else(|error| Err(failed(error)))
        };
        run.pass(call, allowed, found).await.outcome
    }
}

/// The reason why a search failed.
enum Failed {
    Index(SearchError),
    Ledger(LedgerError),
}

impl From<SearchError> for Failed {
    fn from(error: SearchError) -> Self {
        Self::Index(error)
    }
}

impl From<LedgerError> for Failed {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

/// Searches one conversation. An index that turns out to be damaged has emptied itself, and is filled again.
fn search(
    ledger: &Ledger,
    index: &TranscriptIndex,
    key: &ConversationKey,
    query: &str,
    filter: &TranscriptFilter,
    top_k: usize,
) -> Result<Vec<TranscriptItem>, ApiError> {
    let once = || searched(ledger, index, key, query, filter, top_k);
    let found = match once() {
        Err(Failed::Index(SearchError::Damaged { .. })) => once(),
        found => found,
    };
    found.map_err(|error| match error {
        Failed::Ledger(error) => ledger_failed(error),
        Failed::Index(error) => failed(error),
    })
}

/// Brings the index of one conversation up to its transcript, and asks it.
fn searched(
    ledger: &Ledger,
    index: &TranscriptIndex,
    key: &ConversationKey,
    query: &str,
    filter: &TranscriptFilter,
    top_k: usize,
) -> Result<Vec<TranscriptItem>, Failed> {
    let name = key.index();
    let mut seen = index.indexed(name)?;
    loop {
        let items = ledger.transcript_range(key, seen, INDEXED_AT_ONCE)?;
        let Some(last) = items.last() else { break };
        seen = last.seq;
        let docs = items.iter().map(|item| doc(ledger, item)).collect::<Result<Vec<_>, _>>()?;
        index.add(name, &docs)?;
    }
    let found = index.search(name, query, filter, top_k)?;
    let seqs: Vec<_> = found.into_iter().map(|(seq, _)| seq).collect();
    Ok(ledger.transcript_items(key, &seqs)?)
}

fn doc(ledger: &Ledger, item: &TranscriptItem) -> Result<TranscriptDoc, LedgerError> {
    let event = ledger.event(item.event_id)?;
    let texts = item.content.iter().filter_map(|part| match part {
        ContentPart::Text(text) => Some(text.as_str()),
        ContentPart::Artifact(artifact) => artifact.name.as_deref(),
        ContentPart::Other(_) => None,
    });
    Ok(TranscriptDoc {
        seq: item.seq,
        text: texts.collect::<Vec<_>>().join("\n"),
        role: item.role.clone(),
        event_type: event.map(|record| record.event.envelope.event_type).unwrap_or_default(),
        created_at: item.created_at,
    })
}

fn failed(error: impl std::fmt::Display) -> ApiError {
    tracing::error!(%error, "the transcript could not be searched");
    ApiError::retryable(ErrorCode::RuntimeError, "the host could not search; its log has the reason")
}
