//! `history`.

use std::sync::Arc;

use agent_host_ledger::{Ledger, LedgerError};
use agent_host_protocol::{
    ApiError, ErrorCode, Page,
    grant::ConversationKey,
    manifest::HistoryOperation,
    message::ContentPart,
    transcript::{MESSAGE, TranscriptItem},
};
use agent_host_providers::search::{SearchError, TranscriptDoc, TranscriptFilter, TranscriptIndex};
use agent_host_sandbox::{HistoryCalls, PageRequest, parse_json};
use futures_util::future::BoxFuture;
use serde::Deserialize;

use super::{RunCalls, granted, top_k, within};
use crate::{execution::call::Call, record::ledger_failed};

/// A question, and what narrows it.
const MAX_QUERY_BYTES: usize = 32 * 1024;

/// Items that a search looks at, where many of them have left the conversation: some milliseconds.
const MAX_FOUND: usize = 2_000;

/// Items that are added to the index at a time.
const INDEXED_AT_ONCE: usize = 500;

/// The filters of a search, as the guest writes them.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Filters {
    conversation_id: Option<String>,
    thread_id: Option<String>,
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
                "`filters` is an object of `conversation_id`, `thread_id`, `event_types`, `roles`, `since` and `until`: {error}"
            ))
        })
    }

    /// The conversation that is to be searched, where one is named.
    fn conversation(&self) -> Option<ConversationName<'_>> {
        let named = ConversationName::parse(self.conversation_id.as_deref()?);
        Some(ConversationName { thread: self.thread_id.as_deref().or(named.thread), ..named })
    }
}

/// A conversation that a guest names: its id, or `ID U+001F THREAD` for a thread of it. Ids have no control characters.
struct ConversationName<'a> {
    conversation: &'a str,
    thread: Option<&'a str>,
}

impl<'a> ConversationName<'a> {
    fn parse(text: &'a str) -> Self {
        match text.split_once('\u{1f}') {
            Some((conversation, thread)) => Self { conversation, thread: Some(thread) },
            None => Self { conversation: text, thread: None },
        }
    }

    /// The key of the conversation, in the workspace of `own`. Without a thread: the run's own thread in its own conversation, and
    /// the main thread of another.
    fn key(&self, own: &ConversationKey) -> ConversationKey {
        match self.thread {
            None if self.conversation == own.conversation() => own.clone(),
            thread => ConversationKey::new(own.workspace(), self.conversation, thread.unwrap_or_default()),
        }
    }
}

impl RunCalls {
    /// The form of a conversation that [`ConversationName::parse`] reads; a thread without a conversation is one of the run's own.
    pub(super) fn named_conversation(&self, conversation: Option<String>, thread: Option<String>) -> Option<String> {
        let own = || self.run.terms.grant.conversation.as_ref().map(|own| own.conversation().to_owned());
        match thread {
            Some(thread) => conversation.or_else(own).map(|conversation| format!("{conversation}\u{1f}{thread}")),
            None => conversation,
        }
    }

    /// The conversation of a call, for the audit.
    fn conversation_resource(&self, requested: Option<&ConversationName<'_>>) -> Option<String> {
        match requested {
            Some(ConversationName { conversation, thread: Some(thread) }) => Some(format!("{conversation}/{thread}")),
            Some(ConversationName { conversation, thread: None }) => Some((*conversation).to_owned()),
            None => self.run.terms.grant.conversation.as_ref().map(|own| own.conversation().to_owned()),
        }
    }

    /// Steps 3 and 4 of the gate, for a transcript: gives the conversation to read.
    fn transcript(
        &self,
        operation: HistoryOperation,
        action: &str,
        requested: Option<&ConversationName<'_>>,
    ) -> Result<ConversationKey, ApiError> {
        let grant = &self.run.terms.grant;
        granted(&grant.permissions.history, &operation, action)?;
        let Some(own) = &grant.conversation else {
            return Err(ApiError::new(
                ErrorCode::NotFound,
                "the event of this run belongs to no conversation, so it has no history",
            ));
        };
        let key = requested.map_or_else(|| own.clone(), |requested| requested.key(own));
        // The same error for a conversation that exists and one that does not, so that a run cannot probe for
        // conversations.
        if self.reads(&key) {
            Ok(key)
        } else {
            Err(ApiError::unauthorized(
                "this run is granted the history of its own conversation only: `conversations` of its manifest and of its binding \
                 open others",
            ))
        }
    }
}

impl HistoryCalls for RunCalls {
    fn history_page(&mut self, request: PageRequest) -> BoxFuture<'_, Result<Page<TranscriptItem>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let requested = request.conversation_id.as_deref().map(ConversationName::parse);
            let digest = run.journal.digest(&request);
            let resource = self.conversation_resource(requested.as_ref());
            let call = Call::read("history.page", digest).resource(resource.as_deref()).scope("conversation");
            let key = || self.transcript(HistoryOperation::Page, "history.page", requested.as_ref());
            let allowed = || key().map(drop);
            let effect = async |()| {
                let (before, after) = (request.before.as_deref(), request.after.as_deref());
                let mut page =
                    run.ledger.transcript(&key()?, before, after, request.limit, request.direction).map_err(ledger_failed)?;
                if !request.include_artifacts {
                    page.items.iter_mut().for_each(|item| item.artifacts.clear());
                }
                Ok(page)
            };
            run.pass(call, allowed, effect).await.outcome
        })
    }

    fn history_search(
        &mut self,
        query: String,
        filters: Option<String>,
        at_most: u32,
    ) -> BoxFuture<'_, Result<Vec<TranscriptItem>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let bytes = query.len() + filters.as_ref().map_or(0, String::len);
            let digest = run.journal.digest(&(&query, &filters, at_most));
            let filters = within("a query", bytes, MAX_QUERY_BYTES).and_then(|()| Filters::parse(filters.as_deref()));
            let requested = filters.as_ref().ok().and_then(Filters::conversation);
            let resource = self.conversation_resource(requested.as_ref());
            let call = Call::read("history.search", digest).resource(resource.as_deref()).scope("conversation").bytes(bytes);
            let key = || self.transcript(HistoryOperation::Search, "history.search", requested.as_ref());
            let allowed = || {
                key()?;
                top_k(at_most, run.limits.search_top_k)?;
                filters.as_ref().map(drop).map_err(Clone::clone)
            };
            let found = async |()| {
                let Filters { event_types, roles, since, until, .. } = filters.clone()?;
                let filter = TranscriptFilter { roles, event_types, since, until };
                let (ledger, services, key) = (run.ledger.clone(), Arc::clone(&self.services), key()?);
                let search = move || search(&ledger, services.transcripts()?, &key, &query, &filter, at_most as usize);
                tokio::task::spawn_blocking(search).await.unwrap_or_else(|error| Err(failed(error)))
            };
            run.pass(call, allowed, found).await.outcome
        })
    }
}

/// The reason why a search failed.
enum SearchFailure {
    Index(SearchError),
    Ledger(LedgerError),
}

impl From<SearchError> for SearchFailure {
    fn from(error: SearchError) -> Self {
        Self::Index(error)
    }
}

impl From<LedgerError> for SearchFailure {
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
    let once = || search_index(ledger, index, key, query, filter, top_k);
    let found = match once() {
        Err(SearchFailure::Index(SearchError::Damaged { .. })) => once(),
        found => found,
    };
    found.map_err(|error| match error {
        SearchFailure::Ledger(error) => ledger_failed(error),
        SearchFailure::Index(error) => failed(error),
    })
}

/// Brings the index of one conversation up to its transcript, and asks it.
fn search_index(
    ledger: &Ledger,
    index: &TranscriptIndex,
    key: &ConversationKey,
    query: &str,
    filter: &TranscriptFilter,
    top_k: usize,
) -> Result<Vec<TranscriptItem>, SearchFailure> {
    let name = key.index();
    let mut seen = index.indexed(name)?;
    loop {
        let items = ledger.transcript_range(key, seen, INDEXED_AT_ONCE)?;
        let Some(last) = items.last() else { break };
        seen = last.seq;
        let messages = items.iter().filter(|item| item.item_type == MESSAGE);
        let docs = messages.map(|item| doc(ledger, item)).collect::<Result<Vec<_>, _>>()?;
        index.add(name, &docs)?;
    }
    // The index has what has left the conversation with a branch too: more is asked for until enough of it is present.
    let mut asked = top_k;
    loop {
        let found = index.search(name, query, filter, asked)?;
        let seqs: Vec<_> = found.iter().map(|(seq, _)| *seq).collect();
        let mut items = ledger.transcript_items(key, &seqs)?;
        if items.len() >= top_k || found.len() < asked || asked >= MAX_FOUND {
            items.truncate(top_k);
            return Ok(items);
        }
        asked = asked.saturating_mul(4).min(MAX_FOUND);
    }
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
