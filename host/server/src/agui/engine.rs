//! How an AG-UI run begins: once for each `runId`, as a new run of the host, or as the answer to one that waits.

use std::collections::HashMap;

use agent_host_protocol::{
    EventId, Run, RunId, Scope,
    context::{Conversation, Delivery},
    event::Envelope,
    time,
    tool::ClientTool,
};
use agent_host_runs::{Action, AgentRun, BusyThread, Decision, EntryWrite, HostError, Response};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::{
    event::{Content, MessageBody},
    history::{self, Judged, NewMessage, ToolAnswer},
    input::{Resume, ResumeStatus, RunAgentInput},
    interrupts, media,
    store::{GivenAnswer, RunEntry, Taken, Thread},
    thread::{self, Asked, Folded},
};
use crate::{
    app::App,
    caller::Caller,
    problem::{Problem, ProblemCode},
};

/// Where events of AG-UI come from, as runners see it in `delivery.surface`.
pub(crate) const SURFACE: &str = "agui";

/// Locks that the threads share. A thread holds its own for the moment in which a run of it begins.
const STRIPES: usize = 1_024;

/// What the routes of AG-UI share.
pub(crate) struct Agui {
    locks: Vec<Mutex<()>>,
    pub(crate) folded: Folded,
    /// How many receive a run as their own.
    pub(crate) watchers: parking_lot::Mutex<HashMap<RunId, usize>>,
}

impl Default for Agui {
    fn default() -> Self {
        Self {
            locks: (0..STRIPES).map(|_| Mutex::default()).collect(),
            folded: Folded::default(),
            watchers: parking_lot::Mutex::default(),
        }
    }
}

impl Agui {
    /// Of two requests for one thread, one begins and the other sees that it has.
    async fn lock(&self, thread: &Thread) -> Option<MutexGuard<'_, ()>> {
        match self.locks.get(thread.stripe(self.locks.len())) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }
}

/// A run that was begun, now or before.
#[derive(Debug, Clone)]
pub(crate) struct Begun {
    pub(crate) thread: Thread,
    pub(crate) run: RunEntry,
    /// Whether it was begun before, by a request with the same `runId`.
    pub(crate) repeated: bool,
    /// Whether the thread is new with it.
    pub(crate) thread_created: bool,
    /// Whether the client shows a history that is not the host's.
    pub(crate) contradicted: bool,
}

/// Begins the run that a client asks for, or finds it where it was begun before. When this returns, it is on disk.
pub(crate) async fn begin(app: &App, caller: &Caller, agent: &str, input: &RunAgentInput) -> Result<Begun, Problem> {
    // Who may say something may hear what is said to it.
    caller.may(Scope::EventsWrite)?;
    let thread = Thread::of(caller, &input.thread_id);
    let _alone = app.agui.lock(&thread).await;
    if let Some(run) = thread.run(app, &input.run_id)? {
        return again(app, caller, agent, thread, run, input).await;
    }
    let active = app.host.active_runs(&thread.key)?;
    let asked = match active.first() {
        Some(run) => Asked::by(app, run)?,
        None => Asked::default(),
    };
    let calls: Vec<String> = asked.open.iter().filter_map(|action| asked.call_of(action)).map(str::to_owned).collect();
    let judged = history::judge(app, &thread, input, &calls, app.host.config().agui.foreign_history)?;
    match active.first().filter(|_| !asked.is_empty()) {
        Some(run) => answer(app, caller, agent, thread, run, &asked, input, &judged).await,
        None => start(app, caller, agent, thread, &active, input, judged).await,
    }
}

/// The same `runId` once more: it never runs twice.
async fn again(
    app: &App,
    caller: &Caller,
    agent: &str,
    thread: Thread,
    run: RunEntry,
    input: &RunAgentInput,
) -> Result<Begun, Problem> {
    if run.agent != agent {
        let detail = format!("`runId` was used in this thread for the agent `{}`: a new run has a new id", run.agent);
        return Err(Problem::new(ProblemCode::RunIdConflict, detail).in_field("runId"));
    }
    if let Some(what) = differs(&run, input) {
        let detail = format!("`runId` was used in this thread with another {what}: a new run has a new id");
        return Err(Problem::new(ProblemCode::RunIdConflict, detail).in_field("runId"));
    }
    if !run.answers.is_empty() {
        // A host that died while it gave them gives the rest now; who was first stays first.
        let open = thread::open_actions(app, run.host_run)?;
        for given in run.answers.iter().filter(|given| open.iter().any(|action| action.action_id == given.action_id)) {
            caller.may(Scope::ActionsRespond)?;
            let by = app.host.answers_as(&caller.0)?;
            match app.host.respond(&given.action_id, given.response.clone(), by).await {
                Ok(_) | Err(HostError::Answered { .. } | HostError::Expired(_) | HostError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(Begun { thread, run, repeated: true, thread_created: false, contradicted: false })
}

/// What a request with a known `runId` has that the first one had not. Clients that attach send what they have received
/// since, and some send nothing: neither is another request.
fn differs(run: &RunEntry, input: &RunAgentInput) -> Option<&'static str> {
    let sent = |id: &str| run.taken.iter().find(|taken| taken.id == id);
    let mut last_user = None;
    for message in &input.messages {
        let taken = match &message.body {
            MessageBody::User { content, .. } => {
                last_user = Some(message.id.as_str());
                Taken::new(&message.id, content)
            }
            MessageBody::Tool { content, tool_call_id, .. } => Taken::new(tool_call_id, content),
            _ => continue,
        };
        if sent(&taken.id).is_some_and(|first| *first != taken) {
            return Some("content of a message");
        }
    }
    if run.answers.is_empty() && last_user.is_some_and(|id| sent(id).is_none()) {
        return Some("message");
    }
    let resumed = |resume: &Resume| sent(&resume.interrupt_id) == Some(&taken_of(resume));
    (!input.resume.iter().all(resumed)).then_some("`resume`")
}

fn taken_of(resume: &Resume) -> Taken {
    let status = if resume.status == ResumeStatus::Resolved { "resolved" } else { "cancelled" };
    Taken::new(&resume.interrupt_id, &(status, &resume.payload))
}

/// A new run of the host.
async fn start(
    app: &App,
    caller: &Caller,
    agent: &str,
    thread: Thread,
    active: &[Run],
    input: &RunAgentInput,
    mut judged: Judged,
) -> Result<Begun, Problem> {
    for (place, resume) in input.resume.iter().enumerate() {
        stale(app, &thread, place, resume)?;
    }
    let Some(last) = judged.new.pop() else {
        return Err(Problem::new(
            ProblemCode::NothingToDo,
            "there is nothing in `messages` that this thread has not, and nothing in `resume`: send a new message of the user, \
             with an id of its own",
        )
        .in_field("messages"));
    };
    let config = app.host.config();
    if config.agui.busy == BusyThread::Reject
        && let Some(run) = active.first()
    {
        let named = thread.last(app)?.filter(|last| last.host_run == run.run_id).map(|last| last.run_id);
        let run_id = named.unwrap_or_else(|| run.run_id.to_string());
        let detail = format!("run {run_id} of this thread goes on: attach to it, wait for its end, or cancel it");
        return Err(Problem::new(ProblemCode::ThreadBusy, detail).with_details(json!({ "activeRunId": run_id })));
    }
    let thread_created = thread.last(app)?.is_none();
    let contradicted = judged.left_out
        || judged.knows_some && {
            let limit = usize::try_from(config.agui.history_messages).unwrap_or(usize::MAX);
            let ours = thread::messages(app, &thread.key, limit, None)?;
            history::contradicts(&input.messages, &ours.messages)
        };
    // What the user said before, and nobody answered.
    for message in judged.new.iter().filter(|message| !is_silent(&message.content)) {
        let envelope = envelope(app, caller, &thread, message, None).await?;
        let entries = |event_id, _: &[RunId]| Ok(vec![thread.say(&message.id, event_id)?]);
        app.host.note_message(envelope, None, &entries).await?;
    }
    let envelope = envelope(app, caller, &thread, &last, Some(input)).await?;
    let taken = vec![Taken::new(&last.id, &last.content)];
    let named = |host_run| RunEntry {
        agent: agent.to_owned(),
        run_id: input.run_id.clone(),
        host_run,
        from: 0,
        taken: taken.clone(),
        answers: Vec::new(),
        at: time::now(),
    };
    let entries = |event_id: EventId, runs: &[RunId]| -> Result<Vec<EntryWrite>, HostError> {
        let mut entries = vec![thread.say(&last.id, event_id)?];
        for run in runs {
            entries.extend(thread.begin(&named(*run))?);
        }
        Ok(entries)
    };
    let run = AgentRun {
        binding_id: agent.to_owned(),
        envelope,
        client_tools: input.tools.iter().map(client_tool).collect(),
        state: match &input.state {
            Some(Value::Object(state)) => state.clone(),
            _ => Map::new(),
        },
        metadata: Map::new(),
    };
    let accepted = app.host.begin_agent_run(run, None, &entries).await.map_err(Problem::of_field)?;
    let host_run = *accepted.runs.first().ok_or_else(|| Problem::internal("an agent's run was accepted without a run"))?;
    Ok(Begun { run: named(host_run), thread, repeated: false, thread_created, contradicted })
}

/// Whether a message says nothing.
fn is_silent(content: &Content) -> bool {
    match content {
        Content::Text(text) => text.is_empty(),
        Content::Parts(parts) => parts.is_empty(),
    }
}

fn client_tool(tool: &super::input::Tool) -> ClientTool {
    ClientTool {
        name: tool.name.clone(),
        description: Some(tool.description.clone()).filter(|description| !description.is_empty()),
        parameters: tool.parameters.clone(),
    }
}

/// A message of the user as an event. `input` is the rest of the request, where a run answers it.
async fn envelope(
    app: &App,
    caller: &Caller,
    thread: &Thread,
    message: &NewMessage,
    input: Option<&RunAgentInput>,
) -> Result<Envelope, Problem> {
    let stored = media::stored(app, caller, &thread.id, message.place, &message.content).await?;
    let mut agui = Map::new();
    agui.insert("thread_id".to_owned(), thread.id.clone().into());
    agui.insert("message_id".to_owned(), message.id.clone().into());
    if let Some(name) = &message.name {
        agui.insert("name".to_owned(), name.clone().into());
    }
    let mut timezone = None;
    if let Some(input) = input {
        agui.insert("run_id".to_owned(), input.run_id.clone().into());
        agui.extend(input.parent_run_id.clone().map(|id| ("parent_run_id".to_owned(), id.into())));
        agui.extend(input.state.clone().map(|state| ("state".to_owned(), state)));
        if !input.context.is_empty() {
            let shown = |item: &super::input::ContextItem| json!({ "description": item.description, "value": item.value });
            agui.insert("context".to_owned(), input.context.iter().map(shown).collect());
        }
        if !input.forwarded_props.is_empty() {
            agui.insert("forwarded_props".to_owned(), Value::Object(input.forwarded_props.clone()));
            let client_time = input.forwarded_props.get("client_time");
            let named = client_time.and_then(|time| time.get("device_timezone")).and_then(Value::as_str);
            timezone = named.filter(|name| name.len() <= 64).map(str::to_owned);
        }
    }
    let mut data = Map::new();
    // Small, so that it stays where the rest is so large that it becomes an artifact.
    data.insert("message_id".to_owned(), message.id.clone().into());
    data.insert("agui".to_owned(), Value::Object(agui));
    let mut envelope = Envelope {
        data,
        timezone,
        conversation: Some(Conversation {
            conversation_id: Some(thread.id.clone()),
            workspace_id: caller.0.workspace.clone(),
            ..Conversation::default()
        }),
        delivery: Some(Delivery {
            surface: SURFACE.to_owned(),
            reply_target: None,
            supports_streaming: true,
            supports_edit: false,
            supports_reaction: false,
            max_message_size: None,
            platform_capabilities: Map::new(),
        }),
        ..Envelope::message(String::new(), "webui")
    };
    envelope.input.text = stored.text;
    envelope.input.contents = stored.contents;
    Ok(envelope)
}

/// The next segment of a run that waits: all that it asks is answered.
#[allow(clippy::too_many_arguments, reason = "what a request and a thread are, each once")]
async fn answer(
    app: &App,
    caller: &Caller,
    agent: &str,
    thread: Thread,
    run: &Run,
    asked: &Asked,
    input: &RunAgentInput,
    judged: &Judged,
) -> Result<Begun, Problem> {
    let waits = || waiting(asked);
    if input.resume.is_empty() && judged.answers.is_empty() {
        return Err(waits());
    }
    caller.may(Scope::ActionsRespond)?;
    let by = app.host.answers_as(&caller.0)?;
    if run.binding_id != agent {
        let detail = format!("the run of this thread that waits is of the agent `{}`", run.binding_id);
        return Err(Problem::new(ProblemCode::Conflict, detail));
    }
    if let Some(message) = judged.new.first() {
        let detail = "answer what is asked first, then say what is new in a run of its own";
        return Err(Problem::new(ProblemCode::InterruptsOpen, detail).in_field(format!("messages[{}]", message.place)));
    }
    let mut answers: Vec<GivenAnswer> = Vec::new();
    let mut taken = Vec::new();
    for (place, resume) in input.resume.iter().enumerate() {
        let named = |action: &&Action| {
            action.action_id == resume.interrupt_id || asked.call_of(action) == Some(resume.interrupt_id.as_str())
        };
        let Some(action) = asked.open.iter().find(named) else {
            stale(app, &thread, place, resume)?;
            continue;
        };
        let response = interrupts::response(action.kind(), &action.request, resume.status, resume.payload.clone())
            .map_err(|why| Problem::invalid(format!("resume[{place}].payload"), why))?;
        taken.push(taken_of(resume));
        answers.push(GivenAnswer { action_id: action.action_id.clone(), response });
    }
    for answer in &judged.answers {
        let Some(action) = asked.open.iter().find(|action| asked.call_of(action) == Some(answer.tool_call_id.as_str())) else {
            continue;
        };
        if answers.iter().any(|given| given.action_id == action.action_id) {
            let detail = "a call is answered by a message and by `resume`: answer it once";
            return Err(Problem::new(ProblemCode::UnknownToolCall, detail));
        }
        taken.push(Taken::new(&answer.tool_call_id, &answer.content));
        answers.push(GivenAnswer { action_id: action.action_id.clone(), response: result_of(answer) });
    }
    if asked.open.iter().any(|action| !answers.iter().any(|given| given.action_id == action.action_id)) {
        return Err(waits());
    }
    for given in &answers {
        app.host.may_respond(&given.action_id, &given.response, by.as_deref()).map_err(Problem::of_field)?;
    }
    let host_run = run.run_id;
    let from = app
        .read(move |ledger| match ledger.run(host_run)? {
            Some(record) => Ok(thread::fold(ledger, &record, None)?.ended.map_or(0, |at| at.sequence)),
            None => Ok(0),
        })
        .await?;
    let run = RunEntry { agent: agent.to_owned(), run_id: input.run_id.clone(), host_run, from, taken, answers, at: time::now() };
    app.host.ledger().put_entries(&thread.begin(&run)?).await?;
    for given in &run.answers {
        app.host.respond(&given.action_id, given.response.clone(), by.clone()).await?;
    }
    Ok(Begun { thread, run, repeated: false, thread_created: false, contradicted: judged.left_out })
}

/// What the client says of a call, for the run that waits for it.
fn result_of(answer: &ToolAnswer) -> Response {
    let mut result = Map::new();
    result.insert("content".to_owned(), serde_json::to_value(&answer.content).unwrap_or_default());
    result.insert("message_id".to_owned(), answer.message_id.clone().into());
    result.extend(answer.error.clone().map(|error| ("error".to_owned(), error.into())));
    Response { decision: Decision::Submit, reason: None, answer: Some(Value::Object(result)) }
}

/// The run waits, and the request does not answer all that it asks.
fn waiting(asked: &Asked) -> Problem {
    let (calls, interrupts) = (asked.pending(), asked.interrupts());
    let detail = if calls.is_empty() {
        format!("the run of this thread waits for {} answers: `resume` must have one for each of them", interrupts.len())
    } else {
        format!("the run of this thread waits for the results of {} calls: send a message of role `tool` for each", calls.len())
    };
    Problem::new(ProblemCode::InterruptsOpen, detail)
        .with_details(json!({ "pendingInterrupts": interrupts, "pendingToolCallIds": calls }))
}

/// An entry of `resume` that no run waits for. One that only says again that an expired question is not answered is nothing.
fn stale(app: &App, thread: &Thread, place: usize, resume: &Resume) -> Result<(), Problem> {
    let id = resume.interrupt_id.escape_debug();
    let field = format!("resume[{place}].interruptId");
    let unknown =
        || Problem::new(ProblemCode::UnknownInterrupt, format!("no run of this thread has asked `{id}`")).in_field(field.clone());
    let run: RunId = resume.interrupt_id.split_once('.').and_then(|(run, _)| run.parse().ok()).ok_or_else(unknown)?;
    let record = app.host.ledger().run(run)?.ok_or_else(unknown)?;
    if !thread.has(&record.run) {
        return Err(unknown());
    }
    let action = app.host.action(&resume.interrupt_id).map_err(|_| unknown())?;
    let any = Response { decision: Decision::Decline, reason: None, answer: None };
    match app.host.may_respond(&action.action_id, &any, None) {
        Err(HostError::Expired(_)) if resume.status == ResumeStatus::Cancelled => Ok(()),
        Err(error @ (HostError::Expired(_) | HostError::Answered { .. })) => Err(Problem::from(error).in_field(field)),
        _ => Err(Problem::new(ProblemCode::AlreadyAnswered, format!("nobody waits for an answer to `{id}`")).in_field(field)),
    }
}

/// The AG-UI run of a thread with this id, or the run of the host with this id, where it is one of the thread.
pub(crate) fn find(app: &App, thread: &Thread, run_id: &str) -> Result<RunEntry, Problem> {
    if let Some(run) = thread.run(app, run_id)? {
        return Ok(run);
    }
    let missing = || Problem::not_found(format!("this thread has no run `{}`", run_id.escape_debug()));
    let id: RunId = run_id.parse().map_err(|_| missing())?;
    let record = app.host.ledger().run(id)?.ok_or_else(missing)?;
    if !thread.has(&record.run) {
        return Err(missing());
    }
    let run = record.run;
    Ok(RunEntry {
        agent: run.binding_id,
        run_id: run_id.to_owned(),
        host_run: id,
        from: 0,
        taken: Vec::new(),
        answers: Vec::new(),
        at: run.created_at,
    })
}

/// Asks for the end of a run. One that has ended stays as it is.
pub(crate) async fn cancel(app: &App, caller: &Caller, thread: &Thread, run_id: &str) -> Result<(), Problem> {
    caller.may(Scope::RunsControl)?;
    let run = find(app, thread, run_id)?;
    match app.host.cancel(run.host_run, "run canceled by user".to_owned()).await {
        Ok(_) | Err(HostError::Conflict(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Deletes a thread: what was said, its state and its artifacts. A thread that is not there is deleted already.
pub(crate) async fn forget(app: &App, caller: &Caller, thread: &Thread) -> Result<(), Problem> {
    caller.may(Scope::RunsControl)?;
    let _alone = app.agui.lock(thread).await;
    app.host.forget_conversation(&thread.key).await?;
    thread.forget(app).await?;
    app.agui.folded.forget();
    Ok(())
}
