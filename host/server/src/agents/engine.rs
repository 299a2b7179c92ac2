//! The start of an AG-UI run: once for each `runId`, as a new run of the host, or as the answer to a waiting one.

use agent_host_config::BusyThread;
use agent_host_protocol::{
    EventId, Run, RunId, Scope, auth,
    context::{Actor, Conversation, Delivery},
    event::Envelope,
    time,
    tool::ClientTool,
};
use agent_host_runs::{
    Action, AgentRun, ClaimedRole, EntryWrite, HostError, Response,
    facts::record::{BranchReason, Decision},
};
use serde_json::{Map, Value, json};

use super::{
    claims::{CLAIMED_MESSAGES, Instruction},
    history::{self, Judgement, NewMessage, Rules, ToolAnswer},
    list,
    media::{self, StoredContent},
    read::ReadInput,
    store::{GivenAnswer, InputDigest, RunEntry, Thread, ThreadEntry},
    thread::{self, OpenActions},
};
use crate::{
    access::caller::Caller,
    agui::{
        event::{Content, MessageBody},
        input::{ContextItem, Resume, ResumeStatus, RunAgentInput, Tool},
        interrupts,
    },
    app::App,
    http::{Problem, ProblemCode},
};

/// The source of AG-UI events, shown to runners in `delivery.surface`.
const SURFACE: &str = "agui";

/// A run that was started, now or before.
#[derive(Debug, Clone)]
pub(crate) struct StartedRun {
    pub(crate) thread: Thread,
    pub(crate) run: RunEntry,
    /// True if an earlier request with the same `runId` started the run.
    pub(crate) repeated: bool,
    /// True if the run is the first of its thread.
    pub(crate) thread_created: bool,
    /// True if the history of the client differs from that of the host.
    pub(crate) contradicted: bool,
}

/// The way in which a client reads the run that it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// The answer to its request is the stream: to leave it is the only way to stop the run.
    Stream,
    /// By other requests, if at all.
    Elsewhere,
}

/// A request for a run of a thread.
#[derive(Clone, Copy)]
struct RunRequest<'a> {
    app: &'a App,
    caller: &'a Caller,
    agent: &'a str,
    /// The body of the request.
    read: &'a ReadInput,
    input: &'a RunAgentInput,
    reading: ReadMode,
    thread: &'a Thread,
}

/// Begins the run that a client asks for, or finds the run of an earlier request. The run is durable when this function
/// returns.
pub(crate) async fn begin(
    app: &App,
    caller: &Caller,
    agent: &str,
    read: &ReadInput,
    reading: ReadMode,
) -> Result<StartedRun, Problem> {
    let input = &read.input;
    // The right to write includes the right to read the answer.
    caller.may(Scope::EventsWrite)?;
    app.host.await_agent(agent).await;
    let thread = Thread::of(caller, &input.thread_id);
    if thread.run(app, &input.run_id)?.is_none() {
        // Before the lock, which other requests of the thread wait for.
        app.host.notice_hang_up(&thread.key, app.host.config().agui.busy).await?;
    }
    let _alone = thread.lock(app).await;
    let request = RunRequest { app, caller, agent, read, input, reading, thread: &thread };
    if let Some(run) = thread.run(app, &input.run_id)? {
        return repeat(request, run).await;
    }
    let active = app.host.active_runs(&thread.key)?;
    let open_actions = match active.first() {
        Some(run) => OpenActions::of(app, run)?,
        None => OpenActions::default(),
    };
    let calls: Vec<String> =
        open_actions.open.iter().filter_map(|action| open_actions.call_of(action)).map(str::to_owned).collect();
    let config = app.host.config();
    let rules = Rules {
        foreign: config.agui.foreign_history,
        instructions: app.host.agent(agent)?.client_instructions,
        overlaps: !active.is_empty() && matches!(config.agui.busy, BusyThread::Queue | BusyThread::Steer),
    };
    let judged = history::judge(app, &thread, read, &calls, rules)?;
    match active.first().filter(|_| !open_actions.is_empty()) {
        Some(run) if passes_over_calls(run, &open_actions, &judged, request) => start(request, judged, Some(run.run_id)).await,
        Some(run) => answer(request, run, &open_actions, &judged).await,
        None => start(request, judged, None).await,
    }
}

/// True if the client sends a new message where a run waits for calls of its tools. A page that was reloaded has forgotten them; other
/// clients send results along that cancel them. The run ends in both cases. A run that waits for people is not passed over.
fn passes_over_calls(run: &Run, open_actions: &OpenActions, judged: &Judgement, request: RunRequest<'_>) -> bool {
    let only_calls = !open_actions.pending().is_empty();
    only_calls && request.input.resume.is_empty() && !judged.new.is_empty() && run.binding_id == request.agent
}

/// The same `runId` once more: it never runs twice.
async fn repeat(request: RunRequest<'_>, run: RunEntry) -> Result<StartedRun, Problem> {
    let RunRequest { app, caller, agent, input, thread, .. } = request;
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
    Ok(StartedRun { thread: thread.clone(), run, repeated: true, thread_created: false, contradicted: false })
}

/// The first member that differs from the first request with this `runId`. Clients that attach send what they have received
/// since, and some send nothing: neither is another request.
fn differs(run: &RunEntry, input: &RunAgentInput) -> Option<&'static str> {
    let sent = |id: &str| run.taken.iter().find(|taken| taken.id == id);
    let mut last_user = None;
    for message in &input.messages {
        let taken = match &message.body {
            MessageBody::User { content, .. } => {
                last_user = Some(message.id.as_str());
                InputDigest::new(&message.id, content)
            }
            MessageBody::Tool { content, tool_call_id, .. } => InputDigest::new(tool_call_id, content),
            _ => continue,
        };
        if sent(&taken.id).is_some_and(|first| *first != taken) {
            return Some("content of a message");
        }
    }
    if run.answers.is_empty() && last_user.is_some_and(|id| sent(id).is_none()) {
        return Some("message");
    }
    let resumed = |resume: &Resume| sent(&resume.interrupt_id) == Some(&digest_of(resume));
    (!input.resume.iter().all(resumed)).then_some("`resume`")
}

fn digest_of(resume: &Resume) -> InputDigest {
    let status = if resume.status == ResumeStatus::Resolved { "resolved" } else { "cancelled" };
    InputDigest::new(&resume.interrupt_id, &(status, &resume.payload))
}

/// A new run of the host.
async fn start(request: RunRequest<'_>, mut judged: Judgement, replaces: Option<RunId>) -> Result<StartedRun, Problem> {
    let RunRequest { app, agent, input, thread, .. } = request;
    for (place, resume) in input.resume.iter().enumerate() {
        stale(app, thread, place, resume)?;
    }
    let last = judged.new.pop();
    // A request without any message runs with an empty input, and a history that a client begins a thread with is answered as it
    // stands; a request with nothing but what the thread has wants nothing.
    if last.is_none() && judged.claimed.is_empty() && !(input.messages.is_empty() && input.resume.is_empty()) {
        return Err(Problem::new(
            ProblemCode::NothingToDo,
            "there is nothing in `messages` that this thread has not, and nothing in `resume`: send a new message of the user, \
             with an id of its own",
        )
        .in_field("messages"));
    }
    let config = app.host.config();
    let busy = if judged.branch.is_some() { config.agui.busy.of_branch() } else { config.agui.busy };
    // The decision is made when the run is created. Earlier messages are written before, and not for a run that is refused.
    if replaces.is_none() {
        app.host.check_busy(&thread.key, agent, busy).map_err(|error| refused(request, error))?;
    }
    let before = thread.last(app)?;
    let contradicted = judged.left_out || judged.knows_some && contradicts(request, &mut judged)?;
    let mut branch = judged.branch.take();
    // Earlier messages of the user without an answer. With a branch, their names are written with the run: if the host dies
    // before, the client sends the same request again, and the messages that were left behind go with its branch.
    let mut names = Vec::new();
    for message in judged.new.iter().filter(|message| !is_silent(&message.content)) {
        let envelope = envelope(request, Some(message), None).await?;
        let begins = branch.is_some();
        let entries =
            |event_id, _: &[RunId]| if begins { Ok(Vec::new()) } else { message_entries(request, &message.id, event_id) };
        let noted = app.host.note_message(envelope, None, &entries).await?.event_id;
        if let Some(branch) = &mut branch {
            branch.until.get_or_insert(noted);
            names.push((message.id.clone(), noted));
        }
    }
    let mut envelope = envelope(request, last.as_ref(), Some(&judged)).await?;
    if let Some(branch) = branch.as_ref().filter(|branch| branch.reason == BranchReason::Regenerate)
        && let Some(first) = app.host.records().event(branch.from)?
    {
        // Its files are artifacts already.
        envelope.input = first.event.envelope.input;
    }
    let before = before.map(|before| if judged.renames { ThreadEntry { title: String::new(), ..before } } else { before });
    let named = |host_run| RunEntry {
        taken: last.iter().map(|last| InputDigest::new(&last.id, &last.content)).collect(),
        parent_run_id: input.parent_run_id.clone(),
        at: time::now(),
        ..RunEntry::whole(agent, &input.run_id, host_run)
    };
    let entries = |event_id: EventId, runs: &[RunId]| -> Result<Vec<EntryWrite>, HostError> {
        let mut entries = Vec::new();
        let claimed = judged.claimed.iter().map(|message| (&message.claim.message_id, event_id));
        let names = names.iter().map(|(id, noted)| (id, *noted)).chain(claimed);
        for (id, event_id) in names.chain(last.iter().map(|last| (&last.id, event_id))) {
            entries.extend(message_entries(request, id, event_id)?);
        }
        for run in runs {
            entries.extend(thread.begin(&named(*run), before.as_ref(), || title(&judged, last.as_ref()))?);
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
        history: judged.claimed.clone(),
        streamed: request.reading == ReadMode::Stream,
        busy,
        replaces,
        branch,
        metadata: Map::new(),
        charged_key: app.host.charged_key(&request.caller.0)?,
    };
    let accepted = app.host.begin_agent_run(run, None, &entries).await.map_err(|error| refused(request, error))?;
    let host_run = *accepted.runs.first().ok_or_else(|| Problem::internal("an agent's run was accepted without a run"))?;
    Ok(StartedRun {
        run: named(host_run),
        thread: thread.clone(),
        repeated: false,
        thread_created: before.is_none(),
        contradicted,
    })
}

/// The title of a new thread: the beginning of what the user said first in it.
fn title(judged: &Judgement, last: Option<&NewMessage>) -> String {
    match judged.claimed.iter().find(|message| message.role == ClaimedRole::User) {
        Some(first) => list::title_of(&Content::Text(first.text.clone())),
        None => last.map(|last| list::title_of(&last.content)).unwrap_or_default(),
    }
}

/// The entries of a message of the client: by its name in the thread, and by its id, where that is another.
fn message_entries(request: RunRequest<'_>, message_id: &str, event_id: EventId) -> Result<Vec<EntryWrite>, HostError> {
    let key = request.read.key(message_id);
    let by_id = (key != message_id).then(|| request.thread.say(message_id, event_id)).transpose()?;
    Ok([request.thread.say(&key, event_id)?].into_iter().chain(by_id).collect())
}

/// The refusal of a run that the host does not create.
fn refused(request: RunRequest<'_>, error: HostError) -> Problem {
    match error {
        HostError::Busy { run_id } => busy(request, run_id).unwrap_or_else(|problem| problem),
        error => Problem::of_field(error),
    }
}

/// The refusal of a run while the run `active` of the thread is active. `None` while the active run is being created.
fn busy(RunRequest { app, thread, .. }: RunRequest<'_>, active: Option<RunId>) -> Result<Problem, Problem> {
    let Some(active) = active else {
        let detail = "another run of this thread is being created: send the request again in a moment";
        return Ok(Problem::new(ProblemCode::ThreadBusy, detail));
    };
    let named = thread.last(app)?.filter(|last| last.host_run == active).map(|last| last.run_id);
    let run_id = named.unwrap_or_else(|| active.to_string());
    let detail = format!("run {run_id} of this thread is active: attach to it, wait for its end, or cancel it");
    Ok(Problem::new(ProblemCode::ThreadBusy, detail).with_details(json!({ "activeRunId": run_id })))
}

/// True if the history of the client differs from that of the host.
fn contradicts(RunRequest { app, read, thread, .. }: RunRequest<'_>, judged: &mut Judgement) -> Result<bool, Problem> {
    let limit = usize::try_from(app.host.config().agui.history_messages).unwrap_or(usize::MAX);
    let mut ours = match judged.ours.take() {
        Some(ours) => ours,
        None => thread::shapes(app, &thread.key, limit)?,
    };
    // What follows a message that is asked again leaves the thread.
    let again = judged.branch.as_ref().and_then(|branch| ours.iter().position(|(id, _)| *id == branch.message_id));
    ours.truncate(again.map_or(ours.len(), |place| place + 1));
    Ok(history::contradicts(&read.digests.shapes(&read.input.messages), &ours))
}

/// True if a message is empty.
fn is_silent(content: &Content) -> bool {
    match content {
        Content::Text(text) => text.is_empty(),
        Content::Parts(parts) => parts.is_empty(),
    }
}

fn client_tool(tool: &Tool) -> ClientTool {
    ClientTool {
        name: tool.name.clone(),
        description: Some(tool.description.clone()).filter(|description| !description.is_empty()),
        parameters: tool.parameters.clone(),
    }
}

/// The content of a new message, with its files as artifacts.
async fn stored(request: RunRequest<'_>, message: &NewMessage) -> Result<StoredContent, Problem> {
    let RunRequest { app, caller, read, thread, .. } = request;
    let stored = media::stored(app, caller, &thread.key, message.place, &message.content, &read.spooled).await?;
    let limit = app.host.config().limits.http_body_bytes;
    if stored.text.as_ref().is_some_and(|text| text.len() > limit) {
        // It becomes part of an event, which is in the log and in every context.
        let detail = format!("the text of a message has at most {limit} bytes: send the rest as a document");
        return Err(Problem::new(ProblemCode::PayloadTooLarge, detail).in_field(format!("messages[{}]", message.place)));
    }
    Ok(stored)
}

/// A message of the user as an event, with the rest of the request where the run answers it. Without a message, the input
/// is empty: the run answers the history that the client claims, if any.
async fn envelope(
    request: RunRequest<'_>,
    message: Option<&NewMessage>,
    answered: Option<&Judgement>,
) -> Result<Envelope, Problem> {
    let RunRequest { caller, input, thread, .. } = request;
    let stored = match message {
        Some(message) => stored(request, message).await?,
        None => StoredContent::default(),
    };
    let mut agui = Map::new();
    // Small, so that they stay where the rest is so large that it becomes an artifact.
    let mut data = Map::new();
    agui.insert("thread_id".to_owned(), thread.id.clone().into());
    if let Some(message) = message {
        data.insert("message_id".to_owned(), message.id.clone().into());
        agui.insert("message_id".to_owned(), message.id.clone().into());
        agui.extend(message.name.clone().map(|name| ("name".to_owned(), name.into())));
    }
    if let Some(message) = message.filter(|message| !message.metadata.is_empty()) {
        agui.insert("metadata".to_owned(), Value::Object(message.metadata.clone()));
    }
    let mut timezone = None;
    if let Some(judged) = answered {
        if !judged.claimed.is_empty() {
            data.insert(CLAIMED_MESSAGES.to_owned(), judged.claimed.len().into());
        }
        if !judged.instructions.is_empty() {
            agui.insert("instructions".to_owned(), judged.instructions.iter().map(Instruction::to_json).collect());
        }
        agui.insert("run_id".to_owned(), input.run_id.clone().into());
        agui.extend(input.parent_run_id.clone().map(|id| ("parent_run_id".to_owned(), id.into())));
        agui.extend(input.state.clone().map(|state| ("state".to_owned(), state)));
        if !input.context.is_empty() {
            let as_json = |item: &ContextItem| json!({ "description": item.description, "value": item.value });
            agui.insert("context".to_owned(), input.context.iter().map(as_json).collect());
        }
        if !input.forwarded_props.is_empty() {
            agui.insert("forwarded_props".to_owned(), Value::Object(input.forwarded_props.clone()));
            let client_time = input.forwarded_props.get("client_time");
            let named = client_time.and_then(|time| time.get("device_timezone")).and_then(Value::as_str);
            timezone = named.filter(|name| name.len() <= 64).map(str::to_owned);
        }
    }
    data.insert("agui".to_owned(), Value::Object(agui));
    let mut envelope = Envelope {
        data,
        timezone,
        actor: caller.0.end_user.as_deref().map(actor_of),
        conversation: Some(Conversation {
            conversation_id: Some(thread.id.clone()),
            thread_id: Some(thread.key.thread().to_owned()).filter(|thread| !thread.is_empty()),
            workspace_id: caller.0.workspace.clone(),
            ..Conversation::default()
        }),
        delivery: Some(Delivery::streaming(SURFACE)),
        ..Envelope::message(String::new(), "webui")
    };
    envelope.input.text = stored.text;
    envelope.input.contents = stored.contents;
    Ok(envelope)
}

/// An end user as runners see it. That of an identity provider has the names that it goes by there in the metadata.
pub(crate) fn actor_of(end_user: &str) -> Actor {
    let names = auth::provider_of(end_user).map(|(provider, user)| [("identity_provider", provider), ("user", user)]);
    let metadata = names.into_iter().flatten().map(|(key, value)| (key.to_owned(), value.into())).collect();
    Actor { actor_type: "user".to_owned(), actor_id: Some(end_user.to_owned()), actor_name: None, metadata }
}

/// The next segment of a run that waits: all that it asks is answered.
async fn answer(
    request: RunRequest<'_>,
    run: &Run,
    open_actions: &OpenActions,
    judged: &Judgement,
) -> Result<StartedRun, Problem> {
    let RunRequest { app, caller, agent, input, reading, thread, .. } = request;
    if input.resume.is_empty() && judged.answers.is_empty() {
        return Err(waiting(open_actions));
    }
    caller.may(Scope::ActionsRespond)?;
    let by = app.host.answers_as(&caller.0)?;
    if run.binding_id != agent {
        let detail = format!("the run of this thread that waits is of the agent `{}`", run.binding_id);
        return Err(Problem::new(ProblemCode::Conflict, detail));
    }
    if let Some(message) = judged.new.first() {
        let detail = "answer the open question first, then send the new message with a run of its own";
        return Err(Problem::new(ProblemCode::InterruptsOpen, detail).in_field(format!("messages[{}]", message.place)));
    }
    let (answers, taken) = answers(request, open_actions, judged)?;
    if open_actions.open.iter().any(|action| !answers.iter().any(|given| given.action_id == action.action_id)) {
        return Err(waiting(open_actions));
    }
    for given in &answers {
        app.host.may_respond(&given.action_id, &given.response, by.as_deref()).map_err(Problem::of_field)?;
    }
    let host_run = run.run_id;
    let from = app
        .read(move |records| match records.run(host_run)? {
            Some(record) => Ok(thread::fold(records, &record)?.ended.map_or(0, |at| at.sequence)),
            None => Ok(0),
        })
        .await?;
    let parent_run_id = input.parent_run_id.clone();
    let run =
        RunEntry { from, taken, answers, parent_run_id, at: time::now(), ..RunEntry::whole(agent, &input.run_id, host_run) };
    app.host.record_writer().put_entries(&thread.begin(&run, thread.last(app)?.as_ref(), String::new)?).await?;
    if reading == ReadMode::Stream {
        app.host.expect_client(host_run);
    }
    for given in &run.answers {
        app.host.respond(&given.action_id, given.response.clone(), by.clone()).await?;
    }
    Ok(StartedRun { thread: thread.clone(), run, repeated: false, thread_created: false, contradicted: judged.left_out })
}

/// The answers in a request to what a run asks, from `resume` and from messages of tools.
fn answers(
    RunRequest { app, input, thread, .. }: RunRequest<'_>,
    open_actions: &OpenActions,
    judged: &Judgement,
) -> Result<(Vec<GivenAnswer>, Vec<InputDigest>), Problem> {
    let mut answers: Vec<GivenAnswer> = Vec::new();
    let mut taken = Vec::new();
    for (place, resume) in input.resume.iter().enumerate() {
        let named = |action: &&Action| {
            action.action_id == resume.interrupt_id || open_actions.call_of(action) == Some(resume.interrupt_id.as_str())
        };
        let Some(action) = open_actions.open.iter().find(named) else {
            stale(app, thread, place, resume)?;
            continue;
        };
        let response = interrupts::response(action.kind(), &action.request, resume.status, resume.payload.clone())
            .map_err(|why| Problem::invalid(format!("resume[{place}].payload"), why))?;
        taken.push(digest_of(resume));
        answers.push(GivenAnswer { action_id: action.action_id.clone(), response });
    }
    for answer in &judged.answers {
        let Some(action) =
            open_actions.open.iter().find(|action| open_actions.call_of(action) == Some(answer.tool_call_id.as_str()))
        else {
            continue;
        };
        if answers.iter().any(|given| given.action_id == action.action_id) {
            let detail = "a call is answered by a message and by `resume`: answer it once";
            return Err(Problem::new(ProblemCode::UnknownToolCall, detail));
        }
        taken.push(InputDigest::new(&answer.tool_call_id, &answer.content));
        answers.push(GivenAnswer { action_id: action.action_id.clone(), response: result_of(answer) });
    }
    Ok((answers, taken))
}

/// The client's answer to a call, for the waiting run.
fn result_of(answer: &ToolAnswer) -> Response {
    let mut result = Map::new();
    result.insert("content".to_owned(), serde_json::to_value(&answer.content).unwrap_or_default());
    result.insert("message_id".to_owned(), answer.message_id.clone().into());
    result.extend(answer.error.clone().map(|error| ("error".to_owned(), error.into())));
    Response { decision: Decision::Submit, reason: None, answer: Some(Value::Object(result)) }
}

/// The run waits, and the request does not answer all that it asks.
fn waiting(open_actions: &OpenActions) -> Problem {
    let (calls, interrupts) = (open_actions.pending(), open_actions.interrupts());
    let detail = if calls.is_empty() {
        format!("the run of this thread waits for {} answers: `resume` must have one for each of them", interrupts.len())
    } else {
        format!("the run of this thread waits for the results of {} calls: send a message of role `tool` for each", calls.len())
    };
    Problem::new(ProblemCode::InterruptsOpen, detail)
        .with_details(json!({ "pendingInterrupts": interrupts, "pendingToolCallIds": calls }))
}

/// Handles an entry of `resume` without a waiting run. An entry that confirms the expiry of a question is ignored.
fn stale(app: &App, thread: &Thread, place: usize, resume: &Resume) -> Result<(), Problem> {
    let id = resume.interrupt_id.escape_debug();
    let field = format!("resume[{place}].interruptId");
    let unknown = || {
        Problem::new(ProblemCode::UnknownInterrupt, format!("no run of this thread has the open interrupt `{id}`"))
            .in_field(field.clone())
    };
    let run: RunId = resume.interrupt_id.split_once('.').and_then(|(run, _)| run.parse().ok()).ok_or_else(unknown)?;
    let record = app.host.records().run(run)?.ok_or_else(unknown)?;
    if !thread.has(&record.run) {
        return Err(unknown());
    }
    let action = app.host.action(&resume.interrupt_id).map_err(|_| unknown())?;
    let any = Response { decision: Decision::Decline, reason: None, answer: None };
    match app.host.may_respond(&action.action_id, &any, None) {
        Err(HostError::Expired(_)) if resume.status == ResumeStatus::Cancelled => Ok(()),
        Err(error @ (HostError::Expired(_) | HostError::Answered { .. })) => Err(Problem::from(error).in_field(field)),
        _ => Err(Problem::new(ProblemCode::AlreadyAnswered, format!("no run waits for an answer to `{id}`")).in_field(field)),
    }
}

/// The AG-UI run of a thread with this id, or the run of the host with this id, where it is one of the thread.
pub(crate) fn find(app: &App, thread: &Thread, run_id: &str) -> Result<RunEntry, Problem> {
    if let Some(run) = thread.run(app, run_id)? {
        return Ok(run);
    }
    let missing = || Problem::not_found(format!("this thread has no run `{}`", run_id.escape_debug()));
    let id: RunId = run_id.parse().map_err(|_| missing())?;
    let record = app.host.records().run(id)?.ok_or_else(missing)?;
    if !thread.has(&record.run) {
        return Err(missing());
    }
    let run = record.run;
    Ok(RunEntry { at: run.created_at, ..RunEntry::whole(&run.binding_id, run_id, id) })
}

/// Requests the cancellation of a run. An ended run stays as it is.
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
    let _alone = thread.lock(app).await;
    app.host.forget_conversation(&thread.key).await?;
    thread.forget(app).await?;
    app.agui.messages.clear();
    app.agui.shapes.clear();
    Ok(())
}
