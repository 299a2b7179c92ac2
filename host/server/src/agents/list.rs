//! The threads of an agent, newest first, with titles.
//!
//! Each thread has one entry in the list of the agent that answered it last. The key of the entry has the time of the last run,
//! so a page is one read of the ledger, and a run moves the entry to the front in the commit that creates it.

use agent_host_protocol::{Scope, Timestamp};
use agent_host_runs::{EntryWrite, LedgerError};
use axum::{http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::store::{self, ThreadEntry};
use crate::{
    access::ApiRequest,
    agui::event::{Content, Part},
    app::off_thread,
    http::{Path, Problem, ProblemCode, json},
    openapi::refusals,
};

/// Longest title, in characters: a line of a list.
const TITLE_CHARS: usize = 80;
/// Longest text that is searched for, in characters.
const SEARCH_CHARS: usize = 200;
/// Entries that one search examines at most: some milliseconds. The cursor of the answer continues behind them.
const EXAMINED: usize = 2_000;
/// Entries that are read at a time.
const PIECE: usize = 200;

/// A thread in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AguiListedThread)]
pub(crate) struct ListedThread {
    /// Id of the thread.
    pub(crate) thread_id: String,
    /// The beginning of its first message. Empty if that has no text.
    pub(crate) title: String,
    /// Time of its first run, in Unix milliseconds.
    pub(crate) created_at: Timestamp,
    /// Time of its last run, in Unix milliseconds.
    pub(crate) updated_at: Timestamp,
}

/// Threads of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AguiThreads)]
struct Threads {
    /// Newest first.
    threads: Vec<ListedThread>,
    /// True if there may be more behind `nextCursor`.
    has_more: bool,
    /// The value of `cursor` for the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// The title of a thread that begins with this message.
pub(crate) fn title_of(content: &Content) -> String {
    let text = match content {
        Content::Text(text) => text.as_str(),
        Content::Parts(parts) => parts
            .iter()
            .find_map(|part| if let Part::Text { text } = part { Some(text.as_str()) } else { None })
            .unwrap_or_default(),
    };
    let line = text.trim_start().lines().next().unwrap_or_default().trim_end();
    match line.char_indices().nth(TITLE_CHARS - 1) {
        Some((end, _)) if line.chars().count() > TITLE_CHARS => format!("{}…", line[..end].trim_end()),
        _ => line.to_owned(),
    }
}

/// The writes that move a thread to the front of its list.
pub(super) fn moved(
    owner: &str,
    digest: &str,
    before: Option<&ThreadEntry>,
    now: &ThreadEntry,
) -> Result<Vec<EntryWrite>, LedgerError> {
    let key = key(owner, &now.agent, now.at, digest);
    let listed = ListedThread {
        thread_id: now.thread_id.clone(),
        title: now.title.clone(),
        created_at: now.created_at,
        updated_at: now.at,
    };
    let old = before.map(|before| self::key(owner, &before.agent, before.at, digest)).filter(|old| *old != key);
    Ok(old.map(EntryWrite::delete).into_iter().chain([EntryWrite::put(key, &listed)?]).collect())
}

/// The write that takes a thread out of its list.
pub(super) fn removed(owner: &str, digest: &str, last: &ThreadEntry) -> EntryWrite {
    EntryWrite::delete(key(owner, &last.agent, last.at, digest))
}

/// Newer threads have smaller keys.
fn key(owner: &str, agent: &str, at: Timestamp, digest: &str) -> String {
    format!("{}{:016x}.{digest}", prefix(owner, agent), u64::MAX - at)
}

fn prefix(owner: &str, agent: &str) -> String {
    format!("agui/list/{}/", store::digest(&[owner, agent]))
}

refusals!(ListRefusals = [NotFound, InvalidCursor]);

/// Lists or searches the threads of an agent
///
/// Newest first: the threads of the end user, or of the key's workspace, that this agent answered last. `q` finds titles that contain a text,
/// whatever its case.
#[utoipa::path(get, path = "/agents/{agent}/threads", tag = "agents", security(("bearer" = ["runs:read"])),
    params(
        ("agent" = String, Path, description = "The agent."),
        ("q" = Option<String>, Query, description = "A text that titles contain.", max_length = 200),
        ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before."),
        ("limit" = Option<u32>, Query, description = "Threads at most; 50 where it is left out.", minimum = 1, maximum = 100),
    ),
    responses((status = 200, description = "The threads.", body = Threads), ListRefusals))]
pub(crate) async fn threads(Path(agent): Path<String>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let wanted = request.query.text("q");
    let (cursor, limit) = request.query.page()?;
    if wanted.as_ref().is_some_and(|wanted| wanted.chars().count() > SEARCH_CHARS) {
        return Err(Problem::invalid("q", format!("`q` has at most {SEARCH_CHARS} characters")));
    }
    request.app.host.agent(&agent)?;
    let owner = store::owner_of(&request.caller);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let app = request.app.clone();
    let page = off_thread(move || page(&app, &prefix(&owner, &agent), wanted.as_deref(), cursor.as_deref(), limit)).await?;
    Ok(json(StatusCode::OK, &page))
}

fn page(
    app: &crate::app::App,
    prefix: &str,
    wanted: Option<&str>,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Threads, Problem> {
    let is_cursor =
        |cursor: &str| cursor.len() == 16 + 1 + 64 && cursor.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'.');
    if cursor.is_some_and(|cursor| !is_cursor(cursor)) {
        let detail = "`cursor` is none of this list: send the `nextCursor` of an answer";
        return Err(Problem::new(ProblemCode::InvalidCursor, detail).in_field("cursor"));
    }
    let wanted = wanted.map(str::to_lowercase);
    let records = app.host.records();
    let mut after = cursor.map(|cursor| format!("{prefix}{cursor}"));
    let (mut threads, mut examined) = (Vec::new(), 0);
    loop {
        let piece = records.entries_after(prefix, after.as_deref(), PIECE)?;
        let is_last = piece.len() < PIECE;
        for (key, value) in piece {
            if threads.len() == limit || examined == EXAMINED {
                let next_cursor = after.and_then(|key| key.strip_prefix(prefix).map(str::to_owned));
                return Ok(Threads { threads, has_more: true, next_cursor });
            }
            examined += 1;
            let listed: ListedThread =
                serde_json::from_str(value.get()).map_err(|error| Problem::internal(format!("entry {key}: {error}")))?;
            after = Some(key);
            if wanted.as_ref().is_none_or(|wanted| listed.title.to_lowercase().contains(wanted)) {
                threads.push(listed);
            }
        }
        if is_last {
            return Ok(Threads { threads, has_more: false, next_cursor: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_the_first_line_of_the_first_text() {
        let text = |text: &str| title_of(&Content::Text(text.to_owned()));
        assert_eq!(text("  Hello there. \nMore."), "Hello there.");
        assert_eq!(text(""), "");
        assert_eq!(text(&"é".repeat(80)), "é".repeat(80));
        assert_eq!(text(&"é".repeat(81)), format!("{}…", "é".repeat(79)));
        assert_eq!(title_of(&Content::Parts(vec![Part::Text { text: "In parts".into() }])), "In parts");
        assert_eq!(title_of(&Content::Parts(vec![])), "");
    }

    #[test]
    fn newer_threads_come_first() {
        let keys = [key("w", "a", 2_000, "x"), key("w", "a", 1_999, "a"), key("w", "a", 0, "0")];
        assert!(keys.is_sorted(), "{keys:?}");
        assert_ne!(prefix("w", "a"), prefix("wa", ""));
    }
}
