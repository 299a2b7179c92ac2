//! The messages of a thread, one day at a time.
//!
//! The order and the numbers are those of the transcript; ids, texts and interfaces of what runs said are those of the stream,
//! folded, so a client finds here what it has seen there.

use std::collections::{HashMap, HashSet};

use agent_host_protocol::{
    RunId, Scope, Timestamp,
    grant::ConversationKey,
    message::{ArtifactRef, ContentPart},
    run::Execution,
    time,
    transcript::{MESSAGE, TranscriptItem},
};
use agent_host_runs::{HistoryClaim, LedgerError, Records};
use axum::{http::StatusCode, response::Response};
use jiff::tz::TimeZone;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    checked_thread,
    day::{self, Day},
    errors::{Code, Refusal, agent_refusals},
};
use crate::{
    access::ApiRequest,
    agents::{store::Thread, thread},
    agui::{
        event::{Content, Kind, Message, MessageBody, Part},
        fold::View,
        project::{Projector, Step, user_message},
    },
    app::App,
    http::json,
};

/// The type of the activities that interfaces are shown as, and what their ids have behind that of the message.
const UI: (&str, &str) = ("ui_schema", ":ui");

/// One day of a thread.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AgentHistorySnapshot)]
struct Snapshot {
    /// Kind of the answer: always `history_day`.
    scope: &'static str,
    /// The thread; `null` where there is none at all.
    thread_id: Option<String>,
    /// The day, in the time zone of the request: `YYYY-MM-DD`. `null` where nothing was said.
    day: Option<String>,
    /// True if there is an older day; `before` with this day asks for it.
    has_more: bool,
    /// Messages of the day, in order.
    messages: Vec<SignedMessage>,
}

/// A message of a day.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = AgentHistoryMessage)]
struct SignedMessage {
    /// As in the stream.
    id: String,
    /// Number in the transcript. The answer of a tool has the number of the message before it.
    seq: u64,
    /// `user`, `assistant` or `tool`.
    role: &'static str,
    /// Text of the message.
    content: String,
    /// Of a message of the user: the signed address of what came with it, for a while; `null` where nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<Option<String>>,
    /// All attachments, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Attachment>,
    /// Of an answer: the interface that it is shown with; `null` where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    ui_schema: Option<Option<Value>>,
    /// Time, in UTC (ISO 8601).
    timestamp: String,
}

/// Something that came with a message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AgentHistoryAttachment)]
struct Attachment {
    /// Media type.
    mime_type: String,
    /// Signed address.
    url: String,
}

agent_refusals!(HistoryRefusals = [SessionNotFound, SessionIdInvalid]);

/// Shows what was said in a thread, a day at a time
///
/// The newest day, or the newest before `before`, in the time zone of the client. Of a day with more messages than `[agui] history_messages`, the
/// newest ones.
#[utoipa::path(get, path = "/api/v1/agent/history", tag = "agent", security(("bearer" = ["runs:read"])),
    params(
        ("threadId" = Option<String>, Query, description = "The thread; the one that was last written to, where none is named.", max_length = 256),
        ("before" = Option<String>, Query, description = "Only days before this one: `YYYY-MM-DD`."),
        ("timezone" = Option<String>, Query, description = "IANA name of the time zone of the days; else that of the last message (`forwardedProps.client_time.device_timezone`), else UTC.", max_length = 64),
    ),
    responses((status = 200, description = "The day.", body = Snapshot), HistoryRefusals))]
pub(crate) async fn history(request: ApiRequest) -> Result<Response, Refusal> {
    let ApiRequest { app, caller, mut query, .. } = request;
    caller.may(Scope::RunsRead)?;
    super::agent(&app)?;
    let named = query.text("threadId");
    let zone = query.text("timezone").map(|name| parse_zone(&name)).transpose()?;
    let before = query.text("before");
    // Refused here also where there is no thread to look for it in.
    let _ = before.as_deref().map(|text| parse_day(text, &TimeZone::UTC)).transpose()?;
    query.finish()?;
    let named = named.map(|id| checked_thread(&app, id)).transpose()?;
    let id = match named.clone() {
        Some(id) => Some(id),
        None => Thread::latest_of(&app, &caller)?,
    };
    let Some(id) = id else { return Ok(json(StatusCode::OK, &snapshot(None))) };
    let key = Thread::of(&caller, &id).key;
    let most = u64::from(app.host.config().agui.history_messages);
    let read = app.read(move |records| read(records, &key, zone, before.as_deref(), most)).await?;
    let signed = match read {
        ThreadRead::Nothing if named.is_some() => {
            return Err(Refusal::new(Code::SessionNotFound, "there is no such thread, or it has no messages"));
        }
        ThreadRead::Nothing | ThreadRead::NoDay => snapshot(Some(id)),
        ThreadRead::Day(found) => {
            let messages = found.messages.into_iter().map(|message| signed(&app, message)).collect();
            Snapshot { day: Some(found.day.to_string()), has_more: found.has_more, messages, ..snapshot(Some(id)) }
        }
    };
    Ok(json(StatusCode::OK, &signed))
}

fn parse_day(text: &str, zone: &TimeZone) -> Result<Day, Refusal> {
    let refused = || Refusal::new(Code::PayloadInvalid, "`before` is a day, such as 2026-03-15").with("field", "before");
    Day::parse(text, zone).ok_or_else(refused)
}

fn parse_zone(name: &str) -> Result<TimeZone, Refusal> {
    let refused = |_| {
        let detail = "`timezone` is the IANA name of a time zone, such as Asia/Shanghai";
        Refusal::new(Code::PayloadInvalid, detail).with("field", "timezone")
    };
    TimeZone::get(name).map_err(refused)
}

/// The time zone that the client named with the last message of a thread that has one; else UTC.
fn zone_of(records: &Records, last: &TranscriptItem) -> Result<TimeZone, LedgerError> {
    let event = records.event(last.event_id)?;
    let named = event.and_then(|record| record.event.envelope.timezone);
    Ok(named.and_then(|name| TimeZone::get(&name).ok()).unwrap_or(TimeZone::UTC))
}

/// Of a thread in which nothing was said.
fn snapshot(thread_id: Option<String>) -> Snapshot {
    Snapshot { scope: "history_day", thread_id, day: None, has_more: false, messages: Vec::new() }
}

/// The result of reading a thread.
enum ThreadRead {
    /// The thread has no messages.
    Nothing,
    /// No day is that early.
    NoDay,
    Day(FoundDay),
}

/// A day that was found.
struct FoundDay {
    day: Day,
    has_more: bool,
    messages: Vec<DayMessage>,
}

/// Something that was said, before it is signed and written.
#[derive(Debug, Clone, PartialEq)]
struct DayMessage {
    id: String,
    seq: u64,
    who: MessageAuthor,
    text: String,
    at: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
enum MessageAuthor {
    /// With what came with it.
    User(Vec<ArtifactRef>),
    /// With its interface.
    Assistant(Option<Value>),
    Tool(Option<Value>),
}

/// The day, put together.
fn read(
    records: &Records,
    key: &ConversationKey,
    zone: Option<TimeZone>,
    before: Option<&str>,
    most: u64,
) -> Result<ThreadRead, LedgerError> {
    let len = records.transcript_len(key)?;
    let one = |seq: u64| records.transcript_item(key, seq);
    // A missing item is older than all existing ones.
    let at = |seq: u64| Ok::<_, LedgerError>(one(seq)?.map_or(0, |item: TranscriptItem| item.created_at));
    let Some(last) = one(len)?.filter(|_| len > 0) else { return Ok(ThreadRead::Nothing) };
    let zone = match zone {
        Some(zone) => zone,
        None => zone_of(records, &last)?,
    };
    let before = before.and_then(|text| Day::parse(text, &zone));
    let Some(span) = day::newest(len, before, &zone, at)? else { return Ok(ThreadRead::NoDay) };
    if one(span.end - 1)?.is_none() {
        return Ok(ThreadRead::NoDay);
    }
    let first = span.first.max(span.end.saturating_sub(most));
    let count = usize::try_from(span.end - first).unwrap_or(usize::MAX);
    let mut items = records.transcript_after(key, first.saturating_sub(1), count)?;
    // Calls of tools and notices come from the records of the runs.
    items.retain(|item| item.item_type == MESSAGE);
    let has_more = span.first > 1 && one(span.first - 1)?.is_some();
    let messages = messages_of(records, span.day, &items)?;
    Ok(ThreadRead::Day(FoundDay { day: span.day, has_more, messages }))
}

/// The items of a day, and the other output of their runs.
fn messages_of(records: &Records, day: Day, items: &[TranscriptItem]) -> Result<Vec<DayMessage>, LedgerError> {
    let mut spoken = Vec::new();
    let mut seen = HashSet::new();
    let mut users = HashMap::new();
    for item in items {
        let Some(record) = records.event(item.event_id)? else { continue };
        if item.run_id.is_none() {
            users.insert(item.seq, user_message(&record.event).map(|message| message.id));
        }
        for id in record.runs.into_iter().chain(item.run_id) {
            if seen.insert(id) {
                spoken.extend(spoken_by(records, id)?);
            }
        }
    }
    spoken.retain(|spoken| day.has(spoken.at));
    Ok(merged(items, &users, spoken))
}

/// A message of a run, as the stream shows it.
#[derive(Debug, Clone, PartialEq)]
struct RunMessage {
    run: RunId,
    id: String,
    who: MessageAuthor,
    text: String,
    at: Timestamp,
}

fn spoken_by(records: &Records, id: RunId) -> Result<Vec<RunMessage>, LedgerError> {
    let Some(record) = records.run(id)? else { return Ok(Vec::new()) };
    let mut projector = Projector::new(id, record.run.execution == Execution::External);
    let mut view = View::default();
    let mut times: HashMap<String, Timestamp> = HashMap::new();
    thread::each(records, &record, u64::MAX, |event| {
        for step in projector.push(event) {
            match step {
                Step::Event(stamped) | Step::Past(stamped) => {
                    times.extend(message_of(&stamped.event.kind).map(|id| (id.to_owned(), event.timestamp)));
                    view.apply(&stamped.event);
                }
                Step::Correct(message, _) => {
                    times.insert(message.id.clone(), event.timestamp);
                    view.correct(message);
                }
                Step::End(..) => {}
            }
        }
    })?;
    let began = record.run.created_at;
    Ok(spoken_in(id, view.messages, |message| times.get(message).copied().unwrap_or(began)))
}

/// The message that an event makes or changes.
fn message_of(kind: &Kind) -> Option<&str> {
    match kind {
        Kind::TextMessageStart { message_id, .. }
        | Kind::TextMessageContent { message_id, .. }
        | Kind::TextMessageEnd { message_id }
        | Kind::ToolCallResult { message_id, .. } => Some(message_id),
        _ => None,
    }
}

/// The messages of a view that history shows, each with its interface.
fn spoken_in(run: RunId, messages: Vec<Message>, at: impl Fn(&str) -> Timestamp) -> Vec<RunMessage> {
    let mut interfaces: HashMap<String, Value> = HashMap::new();
    for message in &messages {
        if let MessageBody::Activity { activity_type, content } = &message.body
            && activity_type == UI.0
            && let Some(of) = message.id.strip_suffix(UI.1)
        {
            interfaces.insert(of.to_owned(), Value::Object(content.clone()));
        }
    }
    let mut spoken = Vec::new();
    for message in messages {
        let (who, text) = match message.body {
            MessageBody::Assistant { content, tool_calls, .. } => {
                // An interface of a call belongs to the call's answer, which has its id.
                let is_of_call = tool_calls.iter().any(|call| call.id == message.id);
                let ui = if is_of_call { None } else { interfaces.remove(&message.id) };
                let text = content.unwrap_or_default();
                // The message only has tool calls.
                if text.is_empty() && ui.is_none() {
                    continue;
                }
                (MessageAuthor::Assistant(ui), text)
            }
            MessageBody::Tool { content, tool_call_id, .. } => {
                // A runner names the call, or the message that answers it.
                let ui = interfaces.remove(&message.id).or_else(|| interfaces.remove(&tool_call_id));
                (MessageAuthor::Tool(ui), text_of(&content))
            }
            _ => continue,
        };
        spoken.push(RunMessage { run, at: at(&message.id), id: message.id, who, text });
    }
    spoken
}

fn text_of(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => {
            parts.iter().filter_map(|part| if let Part::Text { text } = part { Some(text.as_str()) } else { None }).collect()
        }
    }
}

/// Items of a transcript, and what runs said, as one: in the order of the transcript, with what it has not between.
fn merged(items: &[TranscriptItem], users: &HashMap<u64, Option<String>>, spoken: Vec<RunMessage>) -> Vec<DayMessage> {
    let mut waiting: Vec<Option<RunMessage>> = spoken.into_iter().map(Some).collect();
    let mut messages: Vec<DayMessage> = Vec::new();
    for item in items {
        let text = text_of_item(&item.content);
        if let Some(claim) = HistoryClaim::of(item) {
            let who = match item.role.as_str() {
                "assistant" if text.is_empty() => continue,
                "assistant" => MessageAuthor::Assistant(None),
                "tool" => MessageAuthor::Tool(None),
                _ => MessageAuthor::User(Vec::new()),
            };
            messages.push(DayMessage { id: claim.message_id, seq: item.seq, who, text, at: item.created_at });
            continue;
        }
        let Some(run) = item.run_id else {
            if item.role == "user" {
                let id = users.get(&item.seq).cloned().flatten().unwrap_or_else(|| item.event_id.to_string());
                messages.push(DayMessage {
                    id,
                    seq: item.seq,
                    who: MessageAuthor::User(attachments(item)),
                    text,
                    at: item.created_at,
                });
            }
            continue;
        };
        let is_it =
            |spoken: &RunMessage| spoken.run == run && spoken.text == text && !matches!(spoken.who, MessageAuthor::Tool(_));
        let Some(place) = waiting.iter().position(|spoken| spoken.as_ref().is_some_and(is_it)) else {
            // Such as a message of attachments alone.
            if item.role == "assistant" && !text.is_empty() {
                messages.push(DayMessage {
                    id: item.transcript_id.clone(),
                    seq: item.seq,
                    who: MessageAuthor::Assistant(None),
                    text,
                    at: item.created_at,
                });
            }
            continue;
        };
        let before = messages.last().map_or(item.seq, |message| message.seq);
        for spoken in waiting.iter_mut().take(place).filter(|spoken| spoken.as_ref().is_some_and(|it| it.run == run)) {
            messages.extend(spoken.take().map(|spoken| of_spoken(spoken, before)));
        }
        messages.extend(waiting.get_mut(place).and_then(Option::take).map(|spoken| of_spoken(spoken, item.seq)));
    }
    // Of runs that said nothing in the end, or that the transcript does not have.
    for spoken in waiting.into_iter().flatten() {
        let place = messages.iter().rposition(|message| message.at <= spoken.at).map_or(0, |place| place + 1);
        let seq = place
            .checked_sub(1)
            .and_then(|last| messages.get(last))
            .or_else(|| messages.first())
            .map_or(0, |message| message.seq);
        messages.insert(place, of_spoken(spoken, seq));
    }
    messages
}

fn of_spoken(RunMessage { id, who, text, at, .. }: RunMessage, seq: u64) -> DayMessage {
    DayMessage { id, seq, who, text, at }
}

fn text_of_item(content: &[ContentPart]) -> String {
    content.iter().filter_map(|part| if let ContentPart::Text(text) = part { Some(text.as_str()) } else { None }).collect()
}

/// The attachments of a message, each once.
fn attachments(item: &TranscriptItem) -> Vec<ArtifactRef> {
    let within =
        item.content.iter().filter_map(|part| if let ContentPart::Artifact(artifact) = part { Some(artifact) } else { None });
    let mut found: Vec<ArtifactRef> = Vec::new();
    for artifact in within.chain(&item.artifacts) {
        if !found.iter().any(|other| other.artifact_id == artifact.artifact_id) {
            found.push(artifact.clone());
        }
    }
    found
}

/// The message with signed addresses of its attachments.
fn signed(app: &App, message: DayMessage) -> SignedMessage {
    let DayMessage { id, seq, who, text, at } = message;
    let mut signed = SignedMessage {
        id,
        seq,
        role: "user",
        content: text,
        url: None,
        attachments: Vec::new(),
        ui_schema: None,
        timestamp: time::display(at),
    };
    match who {
        MessageAuthor::User(artifacts) => {
            let signed_attachment = |artifact: ArtifactRef| Attachment {
                url: super::attachments::signed(app, &artifact.artifact_id),
                mime_type: artifact.media_type,
            };
            let attachments: Vec<Attachment> = artifacts.into_iter().map(signed_attachment).collect();
            signed.url = Some(attachments.first().map(|attachment| attachment.url.clone()));
            signed.attachments = if attachments.len() > 1 { attachments } else { Vec::new() };
        }
        MessageAuthor::Assistant(ui) => (signed.role, signed.ui_schema) = ("assistant", Some(ui)),
        MessageAuthor::Tool(ui) => (signed.role, signed.ui_schema) = ("tool", Some(ui)),
    }
    signed
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::EventId;
    use serde_json::Map;

    use super::*;
    use crate::agui::event::{Function, FunctionType, ToolCall};

    fn item(seq: u64, run_id: Option<RunId>, role: &str, text: &str, at: Timestamp) -> TranscriptItem {
        TranscriptItem {
            transcript_id: format!("t-{seq}"),
            event_id: EventId::new(),
            run_id,
            conversation_id: None,
            thread_id: None,
            role: role.to_owned(),
            item_type: "message".to_owned(),
            content: vec![ContentPart::Text(text.to_owned())],
            artifacts: Vec::new(),
            seq,
            cursor: String::new(),
            created_at: at,
        }
    }

    fn message(run: RunId, id: &str, who: MessageAuthor, text: &str, at: Timestamp) -> RunMessage {
        RunMessage { run, id: id.to_owned(), who, text: text.to_owned(), at }
    }

    fn outline(messages: &[DayMessage]) -> Vec<(&str, u64)> {
        messages.iter().map(|message| (message.id.as_str(), message.seq)).collect()
    }

    #[test]
    fn tool_answers_keep_their_position() {
        let (one, two) = (RunId::new(), RunId::new());
        let items = [
            item(4, None, "user", "q1", 10),
            item(5, Some(one), "assistant", "let me look", 20),
            item(6, Some(one), "assistant", "done", 40),
            item(7, None, "user", "q2", 50),
        ];
        let users = [(4, Some("u1".to_owned())), (7, Some("u2".to_owned()))].into();
        let messages = merged(
            &items,
            &users,
            vec![
                message(one, "a1", MessageAuthor::Assistant(None), "let me look", 20),
                message(one, "c1:result", MessageAuthor::Tool(None), "42", 30),
                message(one, "a2", MessageAuthor::Assistant(None), "done", 40),
                // The call fails without output.
                message(two, "c2:result", MessageAuthor::Tool(None), "43", 60),
            ],
        );
        assert_eq!(outline(&messages), [("u1", 4), ("a1", 5), ("c1:result", 5), ("a2", 6), ("u2", 7), ("c2:result", 7)]);
    }

    #[test]
    fn repeated_messages_are_shown_twice() {
        let run = RunId::new();
        let items = [item(1, Some(run), "assistant", "ok", 20), item(2, Some(run), "assistant", "ok", 20)];
        let both = vec![
            message(run, "a1", MessageAuthor::Assistant(None), "ok", 20),
            message(run, "a2", MessageAuthor::Assistant(None), "ok", 20),
        ];
        assert_eq!(outline(&merged(&items, &HashMap::new(), both)), [("a1", 1), ("a2", 2)]);
    }

    #[test]
    fn an_item_that_the_stream_has_not_is_shown_as_it_is_kept() {
        let items =
            [item(1, None, "user", "q", 1), item(2, Some(RunId::new()), "assistant", "a", 2), item(3, None, "system", "s", 3)];
        let messages = merged(&items, &[(1, None)].into(), Vec::new());
        assert_eq!(outline(&messages), [(items[0].event_id.to_string().as_str(), 1), ("t-2", 2)]);
    }

    #[test]
    fn interfaces_go_with_their_messages() {
        let message = |id: &str, body| Message::new(id, body);
        let ui = |of: &str, version: &str| {
            let content = Map::from_iter([("version".to_owned(), version.into())]);
            message(&format!("{of}:ui"), MessageBody::Activity { activity_type: "ui_schema".to_owned(), content })
        };
        let assistant = |content: Option<&str>| MessageBody::Assistant {
            content: content.map(str::to_owned),
            name: None,
            tool_calls: Vec::new(),
        };
        let tool = |call: &str| MessageBody::Tool {
            content: Content::Text("42".to_owned()),
            tool_call_id: call.to_owned(),
            error: None,
        };
        let function = Function { name: "f".to_owned(), arguments: "{}".to_owned() };
        let carrier = MessageBody::Assistant {
            content: None,
            name: None,
            tool_calls: vec![ToolCall { id: "c1".to_owned(), kind: FunctionType::Function, function, encrypted_value: None }],
        };
        let messages = vec![
            message("a0", assistant(None)),
            message("c1", carrier),
            message("c1:result", tool("c1")),
            ui("c1", "1"),
            message("a1", assistant(Some("done"))),
            ui("a1", "2"),
            message("a2", assistant(None)),
            ui("a2", "3"),
        ];
        let spoken = spoken_in(RunId::new(), messages, |_| 7);
        let version = |ui: &Option<Value>| ui.as_ref().map(|ui| ui["version"].as_str().unwrap().to_owned());
        let seen: Vec<_> = spoken
            .iter()
            .map(|spoken| match &spoken.who {
                MessageAuthor::User(_) => unreachable!("runs are no users"),
                MessageAuthor::Assistant(ui) | MessageAuthor::Tool(ui) => (spoken.id.as_str(), version(ui)),
            })
            .collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(seen, [("c1:result", some("1")), ("a1", some("2")), ("a2", some("3"))]);
    }
}
