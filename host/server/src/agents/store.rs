//! The entries of threads and their AG-UI runs in the ledger.
//!
//! An AG-UI run is a *segment* of a run of the host: from an event of its record to the end of the run, or to the place
//! where the run waits for people or for the client. The next AG-UI run, which brings the answers, is the next segment of
//! the same run of the host. The entries store only this mapping; the content is in the record.

use agent_host_protocol::{
    EventId, Run, RunId, Timestamp,
    grant::{ConversationKey, of_end_user},
};
use agent_host_runs::{EntryWrite, LedgerError, Response};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use tokio::sync::MutexGuard;

use super::list;
use crate::{access::caller::Caller, app::App, http::Problem};

/// A thread of a workspace: the conversation with this id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) id: String,
    pub(crate) key: ConversationKey,
    digest: String,
    /// The workspace, or the end user in it.
    owner: String,
}

/// An AG-UI run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunEntry {
    /// The agent that was asked.
    pub(crate) agent: String,
    /// The id that the client gave it.
    pub(crate) run_id: String,
    /// The run of the host that it is a segment of.
    pub(crate) host_run: RunId,
    /// The segment begins after this event of its record.
    #[serde(default)]
    pub(crate) from: u64,
    /// Digests of the accepted input, so that the same id with another input is noticed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) taken: Vec<InputDigest>,
    /// Answers of the request, written before they are delivered, so that a host that crashed in between delivers
    /// them later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) answers: Vec<GivenAnswer>,
    /// The run that it was asked for by, as the client says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent_run_id: Option<String>,
    pub(crate) at: Timestamp,
}

/// Something that a run took of what a client sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InputDigest {
    /// The id of the message, or of the interrupt.
    pub(crate) id: String,
    /// Of its content.
    pub(crate) digest: String,
}

/// An answer to something that a run asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct GivenAnswer {
    pub(crate) action_id: String,
    pub(crate) response: Response,
}

/// The entry of a thread: its last AG-UI run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ThreadEntry {
    pub(crate) thread_id: String,
    pub(crate) run_id: String,
    pub(crate) host_run: RunId,
    pub(crate) at: Timestamp,
    /// The agent of that run. Empty in entries of hosts before threads were listed.
    #[serde(default)]
    pub(crate) agent: String,
    /// The beginning of its first message.
    #[serde(default)]
    pub(crate) title: String,
    /// Time of its first run.
    #[serde(default)]
    pub(crate) created_at: Timestamp,
}

/// The owner of a caller's threads: its workspace, or the end user in it. Ids have no line breaks.
pub(super) fn owner_of(caller: &Caller) -> String {
    let workspace = caller.0.workspace.as_deref().unwrap_or_default();
    match &caller.0.end_user {
        Some(user) => format!("{workspace}\n{user}"),
        None => workspace.to_owned(),
    }
}

/// Different lists of texts have different digests.
pub(super) fn digest(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    hex(&digest.finalize())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl RunEntry {
    /// An AG-UI run that is a whole run of the host, and of which nothing else is known.
    pub(crate) fn whole(agent: impl Into<String>, run_id: impl Into<String>, host_run: RunId) -> Self {
        let (agent, run_id) = (agent.into(), run_id.into());
        Self { agent, run_id, host_run, from: 0, taken: Vec::new(), answers: Vec::new(), parent_run_id: None, at: 0 }
    }
}

impl InputDigest {
    /// A thing with this id and content.
    pub(crate) fn new(id: &str, content: &impl Serialize) -> Self {
        let content = serde_json::to_string(content).unwrap_or_default();
        Self { id: id.to_owned(), digest: digest(&[&content]) }
    }
}

impl Thread {
    /// The thread with this id, as the caller sees it: a thread of one workspace is none of another.
    pub(crate) fn of(caller: &Caller, id: &str) -> Self {
        let workspace = caller.0.workspace.clone().unwrap_or_default();
        let (key, digest) = match &caller.0.end_user {
            None => (ConversationKey::new(&workspace, id, ""), digest(&[&workspace, id])),
            // The same name is another thread for each end user.
            Some(user) => (ConversationKey::new(&workspace, id, &of_end_user(user)), digest(&[&workspace, id, user])),
        };
        Self { id: id.to_owned(), key, digest, owner: owner_of(caller) }
    }

    /// True if a run of the host belongs to this thread.
    pub(crate) fn has(&self, run: &Run) -> bool {
        run.conversation_key().is_some_and(|key| key == self.key)
    }

    /// Of two requests for one thread, one begins and the other sees that it has.
    pub(crate) async fn lock<'a>(&self, app: &'a App) -> Option<MutexGuard<'a, ()>> {
        app.agui.lock(&self.digest).await
    }

    fn of_thread(&self) -> String {
        format!("agui/thread/{}", self.digest)
    }

    fn runs(&self) -> String {
        format!("agui/run/{}/", self.digest)
    }

    fn of_run(&self, run_id: &str) -> String {
        format!("{}{}", self.runs(), digest(&[run_id]))
    }

    fn messages(&self) -> String {
        format!("agui/message/{}/", self.digest)
    }

    fn of_message(&self, id: &str) -> String {
        format!("{}{}", self.messages(), digest(&[id]))
    }

    fn latest(owner: &str) -> String {
        format!("agui/latest/{}", digest(&[owner]))
    }

    /// An AG-UI run of this thread.
    pub(crate) fn run(&self, app: &App, run_id: &str) -> Result<Option<RunEntry>, Problem> {
        entry(app, &self.of_run(run_id))
    }

    /// The thread's last AG-UI run.
    pub(crate) fn last(&self, app: &App) -> Result<Option<ThreadEntry>, Problem> {
        entry(app, &self.of_thread())
    }

    /// The event that a message of the client has become.
    pub(crate) fn message(&self, app: &App, id: &str) -> Result<Option<EventId>, Problem> {
        entry(app, &self.of_message(id))
    }

    /// The thread of the caller that was last written to.
    pub(crate) fn latest_of(app: &App, caller: &Caller) -> Result<Option<String>, Problem> {
        let entry: Option<ThreadEntry> = entry(app, &Self::latest(&owner_of(caller)))?;
        Ok(entry.map(|entry| entry.thread_id))
    }

    /// True if nothing was said in the thread, or what was said is deleted.
    pub(crate) fn is_unknown(&self, app: &App) -> Result<bool, Problem> {
        let records = app.host.records();
        let len = records.transcript_len(&self.key)?;
        Ok(self.last(app)?.is_none() && (len == 0 || records.transcript_item(&self.key, len)?.is_none()))
    }

    /// The entries that are written with an AG-UI run. `before` is the entry of the thread; a thread without a title gets this one.
    pub(crate) fn begin(
        &self,
        run: &RunEntry,
        before: Option<&ThreadEntry>,
        title: impl FnOnce() -> String,
    ) -> Result<Vec<EntryWrite>, LedgerError> {
        let (title, created_at) = match before {
            Some(before) if before.created_at > 0 && before.title.is_empty() => (title(), before.created_at),
            Some(before) if before.created_at > 0 => (before.title.clone(), before.created_at),
            _ => (title(), run.at),
        };
        let (thread_id, run_id, agent) = (self.id.clone(), run.run_id.clone(), run.agent.clone());
        let last = ThreadEntry { thread_id, run_id, host_run: run.host_run, at: run.at, agent, title, created_at };
        let mut entries = list::moved(&self.owner, &self.digest, before, &last)?;
        entries.extend([
            EntryWrite::put(self.of_run(&run.run_id), run)?,
            EntryWrite::put(self.of_thread(), &last)?,
            EntryWrite::put(Self::latest(&self.owner), &last)?,
        ]);
        Ok(entries)
    }

    /// The entry that is written with a message of the client.
    pub(crate) fn say(&self, message_id: &str, event_id: EventId) -> Result<EntryWrite, LedgerError> {
        EntryWrite::put(self.of_message(message_id), &event_id)
    }

    /// Deletes what is remembered of the thread.
    pub(crate) async fn forget(&self, app: &App) -> Result<(), Problem> {
        const AT_ONCE: usize = 1_000;
        let (records, writer) = (app.host.records(), app.host.record_writer());
        for prefix in [self.runs(), self.messages()] {
            loop {
                let found = records.entries(&prefix, AT_ONCE)?;
                if found.is_empty() {
                    break;
                }
                let deletes: Vec<_> = found.into_iter().map(|(key, _)| EntryWrite::delete(key)).collect();
                writer.put_entries(&deletes).await?;
            }
        }
        let mut deletes = vec![EntryWrite::delete(self.of_thread())];
        deletes.extend(self.last(app)?.map(|last| list::removed(&self.owner, &self.digest, &last)));
        let latest = Self::latest(&self.owner);
        if entry::<ThreadEntry>(app, &latest)?.is_some_and(|latest| latest.thread_id == self.id) {
            deletes.push(EntryWrite::delete(latest));
        }
        Ok(writer.put_entries(&deletes).await?)
    }
}

fn entry<T: DeserializeOwned>(app: &App, key: &str) -> Result<Option<T>, Problem> {
    let Some(raw) = app.host.records().entry(key)? else { return Ok(None) };
    serde_json::from_str(raw.get()).map(Some).map_err(|error| Problem::internal(format!("entry {key}: {error}")))
}
