//! A thread as a client sees it: its messages, its state, and its open questions. A thread is the folded stream of its
//! runs.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use agent_host_protocol::{
    Event, Grant, Run, RunEvent, RunId, RunStatus, grant::ConversationKey, limits::MAX_PAGE, manifest::StateScope, run::Execution,
};
use agent_host_runs::{Action, ActionStatus, AskKind, EventRecord, LedgerError, Records, RunRecord};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    claims::{CLAIMED_MESSAGES, MAX_CLAIMED},
    replay,
    store::Thread,
};
use crate::{
    agui::{
        cursor::{Cursor, Place},
        event::{Interrupt, Message},
        fold::View,
        interrupts,
        project::{Children, Projector, Step, claimed_message, user_message},
        shape::{Shape, ShapedMessage},
    },
    app::App,
    http::Problem,
};

/// Events of a record that are read at one time.
const PIECE: usize = 1_000;

/// The end of the messages of an active run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessageLimit {
    /// Of this run,
    pub(crate) run: RunId,
    /// up to and with this event of its record.
    pub(crate) sequence: u64,
    /// The places in the records of its open children; nothing of those that it leaves out. The place in that of the run does
    /// not count.
    pub(crate) place: Place,
}

/// The newest messages of a thread.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// In their order.
    pub(crate) messages: Vec<Message>,
    /// From where older ones are read, where there are some.
    pub(crate) older: Option<String>,
}

/// Reads the newest messages of a thread: whole turns, at least `limit` messages where there are so many.
pub(crate) fn messages(
    app: &App,
    key: &ConversationKey,
    limit: usize,
    until: Option<&MessageLimit>,
) -> Result<Messages, Problem> {
    page(app, key, limit, None, until)
}

/// The shapes of the newest messages of a thread: whole turns, at least `limit` messages where there are so many.
pub(crate) fn shapes(app: &App, key: &ConversationKey, limit: usize) -> Result<Vec<ShapedMessage>, Problem> {
    let shaped = |message: &Message| (message.id.clone(), Shape::of(message));
    let turn = |records: &Records, event: Event| -> Result<Vec<ShapedMessage>, Problem> {
        let known = records.event(event.event_id)?;
        let mut shapes: Vec<ShapedMessage> = claimed(records, key, known.as_ref())?.iter().map(shaped).collect();
        shapes.extend(user_message(&event).iter().map(shaped));
        let runs = known.map(|record| record.runs).unwrap_or_default();
        for id in runs {
            if let Some(known) = app.agui.shapes.get(id) {
                shapes.extend_from_slice(&known);
                continue;
            }
            let Some(record) = records.run(id)? else { continue };
            let (messages, is_final) = messages_of_run(app, &record, None)?;
            let of_run: Arc<[ShapedMessage]> = messages.iter().map(shaped).collect();
            if is_final {
                app.agui.shapes.keep(id, &of_run);
            }
            shapes.extend_from_slice(&of_run);
        }
        Ok(shapes)
    };
    turns(app, key, limit, None, turn).map(|(shapes, _)| shapes)
}

/// Likewise, those before `before`, which is the `older` of another page.
fn page(
    app: &App,
    key: &ConversationKey,
    limit: usize,
    before: Option<String>,
    until: Option<&MessageLimit>,
) -> Result<Messages, Problem> {
    let turn = |records: &Records, event| turn(app, records, key, event, until);
    turns(app, key, limit, before, turn).map(|(messages, older)| Messages { messages, older })
}

/// Reads turns, newest first, until they have `limit` items; gives the items in their order, and from where older ones are
/// read.
fn turns<T>(
    app: &App,
    key: &ConversationKey,
    limit: usize,
    before: Option<String>,
    turn: impl Fn(&Records, Event) -> Result<Vec<T>, Problem>,
) -> Result<(Vec<T>, Option<String>), Problem> {
    let records = app.host.records();
    // Newest first, each with its items in their order.
    let mut turns: Vec<Vec<T>> = Vec::new();
    let (mut count, mut before, mut oldest, mut older) = (0, before, None, None);
    'pages: loop {
        let page = records.conversation_events(key, before.as_deref(), MAX_PAGE)?;
        for event in page.items {
            if count >= limit {
                older = oldest.map(|id| records.conversation_event_cursor(key, id)).transpose()?.flatten();
                break 'pages;
            }
            oldest = Some(event.event_id);
            let turn = turn(&records, event)?;
            count += turn.len();
            turns.push(turn);
        }
        before = page.next_cursor.filter(|_| page.has_more);
        if before.is_none() {
            break;
        }
    }
    Ok((turns.into_iter().rev().flatten().collect(), older))
}

/// The messages of an event and of its runs.
fn turn(
    app: &App,
    records: &Records,
    key: &ConversationKey,
    event: Event,
    until: Option<&MessageLimit>,
) -> Result<Vec<Message>, Problem> {
    let known = records.event(event.event_id)?;
    let mut messages = claimed(records, key, known.as_ref())?;
    messages.extend(user_message(&event));
    let runs = known.map(|record| record.runs).unwrap_or_default();
    for id in runs {
        let Some(record) = records.run(id)? else { continue };
        let until = until.filter(|until| until.run == id);
        messages.extend(messages_of_run(app, &record, until)?.0.iter().cloned());
    }
    Ok(messages)
}

/// The history that a client has claimed with an event.
fn claimed(records: &Records, key: &ConversationKey, event: Option<&EventRecord>) -> Result<Vec<Message>, Problem> {
    // Other clients may send such a member as well, and a read is bounded.
    let count = |event: &EventRecord| {
        let count = event.event.envelope.data.get(CLAIMED_MESSAGES).and_then(Value::as_u64);
        count.map(|count| count.min(MAX_CLAIMED as u64))
    };
    let Some((event, count)) = event.and_then(|event| Some((event, count(event)?))) else { return Ok(Vec::new()) };
    // The place of the last item: that of the message of the event, where it has one.
    let own = u64::from(user_message(&event.event).is_some());
    let end = event.transcript_seq.unwrap_or_default().saturating_sub(own);
    let items = records.transcript_after(key, end.saturating_sub(count), usize::try_from(count).unwrap_or(usize::MAX))?;
    Ok(items.iter().filter(|item| item.event_id == event.event.event_id && item.seq <= end).filter_map(claimed_message).collect())
}

/// The ids of the history that a client has claimed when a thread began.
pub(crate) fn claimed_ids(app: &App, key: &ConversationKey) -> Result<HashSet<String>, Problem> {
    let records = app.host.records();
    let Some(first) = records.transcript_item(key, 1)?.filter(|item| claimed_message(item).is_some()) else {
        return Ok(HashSet::new());
    };
    let event = records.event(first.event_id)?;
    Ok(claimed(&records, key, event.as_ref())?.into_iter().map(|message| message.id).collect())
}

/// The messages of a run, and whether they are final.
fn messages_of_run(app: &App, record: &RunRecord, until: Option<&MessageLimit>) -> Result<(Arc<[Message]>, bool), Problem> {
    let id = record.run.run_id;
    let is_whole = record.run.status.is_terminal() && until.is_none_or(|until| until.sequence >= record.run.last_sequence);
    if is_whole && let Some(messages) = app.agui.messages.get(id) {
        return Ok((messages, true));
    }
    let folded = fold_with(&app.host.records(), record, until, children(app).view())?;
    let messages: Arc<[Message]> = folded.view.messages.into();
    let is_final = is_whole && !folded.is_partial;
    if is_final {
        app.agui.messages.keep(id, &messages);
    }
    Ok((messages, is_final))
}

/// The records of child runs, for the projections of their parents.
pub(crate) fn children(app: &App) -> Children {
    let app = app.clone();
    Children::new(move |run, until, with| {
        let records = app.host.records();
        let read = records.run(run).and_then(|record| match record {
            Some(record) => each(&records, &record, until, with),
            None => Ok(()),
        });
        if let Err(error) = read {
            tracing::debug!(run_id = %run, %error, "a child is shown without all of its content");
        }
    })
}

/// The present place of a stream of an active run that has read its record up to `sequence`, with all that its children have said.
fn present_place(app: &App, record: &RunRecord, sequence: u64) -> Result<Place, LedgerError> {
    let children = children(app);
    let run = &record.run;
    let mut projector = Projector::new(run.run_id, run.execution == Execution::External).with_children(children.clone().live());
    each(&app.host.records(), record, sequence, |event| {
        replay::push(&mut projector, &children, event, &mut |_| {});
    })?;
    replay::catch_up(&mut projector, &children, &mut |_| {});
    Ok(Place { cursor: Cursor { sequence, part: u32::MAX }, ..projector.place() })
}

/// A run, folded.
pub(crate) struct FoldedRun {
    pub(crate) view: View,
    /// The end of its last ended segment, if any.
    pub(crate) ended: Option<Cursor>,
    /// True if a child was shown that had not ended.
    is_partial: bool,
    /// The calls that wait for the client: the ids of their actions, and theirs on the wire.
    calls: Vec<(String, String)>,
}

/// Folds the record of a run, as far as it goes, without the content of its children.
pub(crate) fn fold(records: &Records, record: &RunRecord) -> Result<FoldedRun, LedgerError> {
    fold_with(records, record, None, Children::default())
}

fn fold_with(
    records: &Records,
    record: &RunRecord,
    until: Option<&MessageLimit>,
    children: Children,
) -> Result<FoldedRun, LedgerError> {
    let run = &record.run;
    let mut projector = Projector::new(run.run_id, run.execution == Execution::External).with_children(children);
    let mut folded = FoldedRun { view: View::default(), ended: None, is_partial: false, calls: Vec::new() };
    let mut take = |step| match step {
        Step::Event(stamped) | Step::Past(stamped) => folded.view.apply(&stamped.event),
        Step::Correct(message, _) => folded.view.correct(message),
        Step::End(_, at) => folded.ended = Some(at.cursor),
    };
    each(records, record, until.map_or(u64::MAX, |until| until.sequence), |event| {
        projector.push(event).into_iter().for_each(&mut take);
    })?;
    projector.catch_up(until.map(|until| &until.place), &mut take);
    folded.is_partial = projector.is_partial();
    folded.calls = projector.client_calls().map(|(action, call)| (action.to_owned(), call.to_owned())).collect();
    Ok(folded)
}

/// Calls `with` for each event of a record up to and with `until`.
pub(crate) fn each(records: &Records, record: &RunRecord, until: u64, with: impl FnMut(&RunEvent)) -> Result<(), LedgerError> {
    each_after(records, record, 0, until, with)
}

/// Likewise, of those after event `after`.
pub(super) fn each_after(
    records: &Records,
    record: &RunRecord,
    mut after: u64,
    until: u64,
    mut with: impl FnMut(&RunEvent),
) -> Result<(), LedgerError> {
    if after >= until {
        return Ok(());
    }
    loop {
        let events = records.run_events_after(record, after, PIECE)?;
        for event in events.iter().filter(|event| event.sequence <= until) {
            with(event);
        }
        match events.last() {
            Some(last) if last.sequence < until && events.len() == PIECE => after = last.sequence,
            _ => return Ok(()),
        }
    }
}

/// The open actions of a run.
pub(crate) fn open_actions(app: &App, run: RunId) -> Result<Vec<Action>, Problem> {
    let mut open = app.host.actions(run)?;
    open.retain(|action| action.status == ActionStatus::Open);
    Ok(open)
}

/// The actions that a run waits for.
#[derive(Debug, Default)]
pub(crate) struct OpenActions {
    /// All of it.
    pub(crate) open: Vec<Action>,
    /// The ids of its actions that are calls of the client, with theirs on the wire. A guest may use one id for several.
    calls: HashMap<String, String>,
}

impl OpenActions {
    /// The present open actions of a run.
    pub(crate) fn of(app: &App, run: &Run) -> Result<Self, Problem> {
        // A run that an executor holds asks without parking, so its status does not show the question.
        let may_ask = run.status == RunStatus::Waiting || run.execution == Execution::External && !run.status.is_terminal();
        if !may_ask {
            return Ok(Self::default());
        }
        let open = open_actions(app, run.run_id)?;
        let mut calls = HashMap::new();
        if open.iter().any(|action| action.kind() == AskKind::ClientTool)
            && let Some(record) = app.host.records().run(run.run_id)?
        {
            calls = fold(&app.host.records(), &record)?.calls.into_iter().collect();
        }
        Ok(Self { open, calls })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The calls of frontend tools, where nothing else is asked: then they are pending calls, and no interrupts.
    pub(crate) fn pending(&self) -> Vec<String> {
        if self.open.iter().all(|action| action.kind() == AskKind::ClientTool) {
            self.open.iter().filter_map(|action| self.call_of(action)).map(str::to_owned).collect()
        } else {
            Vec::new()
        }
    }

    /// The id on the wire of the call that a run asks the client for.
    pub(crate) fn call_of(&self, action: &Action) -> Option<&str> {
        self.calls.get(&action.action_id).map(String::as_str)
    }

    /// The interrupts, where something else than calls is asked.
    pub(crate) fn interrupts(&self) -> Vec<Interrupt> {
        if self.open.iter().all(|action| action.kind() == AskKind::ClientTool) {
            return Vec::new();
        }
        let named = |action: &Action| {
            let interrupt =
                interrupts::interrupt(action.run_id, &action.action_id, &action.request, action.answer_schema.as_ref());
            Interrupt { tool_call_id: self.call_of(action).map(str::to_owned), ..interrupt }
        };
        self.open.iter().map(named).collect()
    }
}

/// The state that a thread shares with its clients: the run's values of scope `conversation`. `None` without that scope.
pub(crate) fn state(app: &App, run: RunId) -> Result<Option<Map<String, Value>>, Problem> {
    #[derive(Deserialize)]
    struct Terms {
        grant: Grant,
    }
    let Some(terms) = app.host.records().terms(run)? else { return Ok(None) };
    let Ok(terms) = serde_json::from_str::<Terms>(terms.get()) else { return Ok(None) };
    let Some(scope) = terms.grant.state_key(StateScope::Conversation) else { return Ok(None) };
    let limit = app.host.config().limits.state_scope_bytes;
    Ok(Some(app.host.records().state(&scope, usize::try_from(limit).unwrap_or(usize::MAX))?))
}

/// A thread, for a client that opens it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AguiThread)]
pub(crate) struct ThreadView {
    /// Id of the thread.
    pub(crate) thread_id: String,
    /// The newest messages, oldest first, in the form of AG-UI; whole turns.
    #[schema(value_type = Vec<Object>)]
    pub(crate) messages: Vec<Message>,
    /// True if there are older messages.
    pub(crate) has_more: bool,
    /// The value of `before` for older messages, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<String>,
    /// The shared state: an object.
    #[schema(value_type = Object)]
    pub(crate) state: Value,
    /// Questions to people, answered by `resume`.
    #[schema(value_type = Vec<Object>)]
    pub(crate) pending_interrupts: Vec<Interrupt>,
    /// Calls of frontend tools without an answer.
    pub(crate) pending_tool_call_ids: Vec<String>,
    /// The run that is under way, where one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) active_run: Option<ActiveRun>,
}

/// A run that is under way.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AguiActiveRun)]
pub(crate) struct ActiveRun {
    /// The id that the client gave it, else that of the host.
    pub(crate) run_id: String,
    /// The id of the host.
    pub(crate) host_run_id: RunId,
    /// As the host has it.
    pub(crate) status: RunStatus,
    /// The last event in `messages`: `GET .../events?after=` continues from it.
    pub(crate) cursor: String,
}

/// Puts a thread together, from one moment of it.
/// With `before`, its messages are older ones.
pub(crate) fn view(app: &App, thread: &Thread, limit: usize, before: Option<String>) -> Result<ThreadView, Problem> {
    let records = app.host.records();
    let active = app.host.active_runs(&thread.key)?.into_iter().next();
    let last = thread.last(app)?;
    let mut hydrated = ThreadView {
        thread_id: thread.id.clone(),
        messages: Vec::new(),
        has_more: false,
        before: None,
        state: Value::Object(Map::new()),
        pending_interrupts: Vec::new(),
        pending_tool_call_ids: Vec::new(),
        active_run: None,
    };
    let mut until = None;
    if let Some(run) = &active
        && let Some(record) = records.run(run.run_id)?
    {
        // Later events are for followers.
        let sequence = record.run.last_sequence;
        let place = present_place(app, &record, sequence)?;
        let open_actions = OpenActions::of(app, &record.run)?;
        hydrated.pending_interrupts = open_actions.interrupts();
        hydrated.pending_tool_call_ids = open_actions.pending();
        if open_actions.is_empty() && !record.run.status.is_terminal() {
            let named = last.as_ref().filter(|last| last.host_run == run.run_id).map(|last| last.run_id.clone());
            let run_id = named.unwrap_or_else(|| run.run_id.to_string());
            let cursor = format!("{run_id}:{place}");
            hydrated.active_run = Some(ActiveRun { cursor, run_id, host_run_id: run.run_id, status: record.run.status });
        }
        until = Some(MessageLimit { run: run.run_id, sequence, place });
    }
    let page = page(app, &thread.key, limit, before, until.as_ref())?;
    hydrated.messages = page.messages;
    hydrated.has_more = page.older.is_some();
    hydrated.before = page.older;
    if let Some(run) = active.map(|run| run.run_id).or(last.map(|last| last.host_run))
        && let Some(state) = state(app, run)?
    {
        hydrated.state = Value::Object(state);
    }
    Ok(hydrated)
}
