//! Platform, people, child runs and HTTP servers of the scripted host.

use serde_json::Value;

use super::asks::{ActionReply, AnswerReply, TestAction};
use super::children::{Arrival, Child, ChildReply, ScriptedEnd, TestChild};
use super::permission::Permission;
use super::scripted::{ScriptedHost, position, refuse};
use super::wire::{HttpReply, Server, destination, names};
use crate::contract::agent_host::runner::context as contract;
use crate::contract::agent_host::runner::types;
use crate::contract::{
    ActionOutcome, AskedQuestion, ErrorCode, HttpRequest, QuestionAnswer, RunEventPage, RunOperation, RunSummary, StartRequest,
    SteeringInput,
};

type Answer<T> = Result<T, types::ApiError>;

/// Default of the host for the expiry of questions and actions: a day.
const EXPIRES_MS: u64 = 24 * 60 * 60 * 1000;
/// Default limits of the host.
const ASK_BYTES: usize = 24 * 1024;
const TITLE_CHARS: usize = 300;
const CHILDREN: usize = 256;
const CHILDREN_AT_ONCE: usize = 16;

pub(super) type ActionFn = Box<dyn FnMut(&TestAction) -> ActionReply>;
pub(super) type PersonFn = Box<dyn FnMut(&AskedQuestion) -> AnswerReply>;
pub(super) type ChildFn = Box<dyn FnMut(&StartRequest) -> ChildReply>;

/// Scripts of the test, and the record of the run.
#[derive(Default)]
pub(super) struct Beyond {
    /// By name; `None` for every name.
    pub(super) actions: Vec<(Option<String>, ActionFn)>,
    pub(super) person: Option<PersonFn>,
    pub(super) arrivals: Vec<(Arrival, String)>,
    pub(super) runners: Vec<(String, ChildFn)>,
    pub(super) servers: Vec<Server>,
    // Record of the run.
    pub(super) asked_actions: Vec<TestAction>,
    pub(super) questions: Vec<AskedQuestion>,
    pub(super) pulls: usize,
    pub(super) steered: usize,
    pub(super) children: Vec<Child>,
    pub(super) most_children: usize,
    pub(super) requests: Vec<HttpRequest>,
}

impl ScriptedHost {
    /// Returns true if the action is granted.
    pub(super) fn action_granted(&self, action: &str) -> bool {
        self.granted(Permission::Platform)
            && self.declared.permissions.platform_actions.iter().any(|declared| declared == action)
            && self.beyond.actions.iter().any(|(name, _)| name.as_deref().is_none_or(|name| name == action))
    }

    pub(super) fn granted_actions(&self) -> Vec<String> {
        let declared = &self.declared.permissions.platform_actions;
        declared.iter().filter(|action| self.action_granted(action)).cloned().collect()
    }

    pub(super) fn may_ask(&self) -> bool {
        self.granted(Permission::Interactions) && self.beyond.person.is_some()
    }

    pub(super) fn request_action(&mut self, action: &str, target: &str, payload: &str) -> Answer<ActionOutcome> {
        self.pass("platform.request-action", Permission::Platform)?;
        if action.len() + target.len() + payload.len() > ASK_BYTES {
            return refuse(ErrorCode::PayloadTooLarge, format!("an action has at most {ASK_BYTES} bytes"));
        }
        let action_request = TestAction { action: action.to_owned(), target: json(target)?, payload: json(payload)? };
        if !self.action_granted(action) {
            return refuse(ErrorCode::Unauthorized, format!("the action `{action}` is not granted to this run"));
        }
        self.beyond.asked_actions.push(action_request.clone());
        // A script for this name takes precedence over one for all names.
        let scripts = &mut self.beyond.actions;
        let named = scripts.iter().position(|(name, _)| name.as_deref() == Some(action));
        let place = named.or_else(|| scripts.iter().position(|(name, _)| name.is_none()));
        let Some((_, script)) = place.and_then(|place| scripts.get_mut(place)) else {
            return refuse(ErrorCode::Unauthorized, format!("the action `{action}` is not granted to this run"));
        };
        let outcome = script(&action_request).0?;
        if outcome == ActionOutcome::Expired {
            self.now += EXPIRES_MS;
        }
        Ok(outcome)
    }

    pub(super) fn ask(&mut self, question: &AskedQuestion) -> Answer<QuestionAnswer> {
        self.pass("interactions.ask", Permission::Interactions)?;
        if let Some(schema) = &question.answer_schema {
            json(schema)?;
        }
        if question.title.trim().is_empty() || question.title.chars().count() > TITLE_CHARS {
            return refuse(ErrorCode::InvalidArgument, format!("the title of a question has 1 to {TITLE_CHARS} characters"));
        }
        let texts = [&question.description, &question.answer_schema];
        if question.title.len() + texts.into_iter().flatten().map(String::len).sum::<usize>() > ASK_BYTES {
            return refuse(ErrorCode::PayloadTooLarge, format!("a question has at most {ASK_BYTES} bytes"));
        }
        let Some(person) = &mut self.beyond.person else {
            return refuse(ErrorCode::Unauthorized, "questions to people are not granted to this run");
        };
        let answer = person(question).0?;
        self.beyond.questions.push(question.clone());
        if answer == QuestionAnswer::Expired {
            self.now = self.now.max(question.expires_at.unwrap_or(self.now + EXPIRES_MS));
        }
        Ok(answer)
    }

    pub(super) fn pull(&mut self, limit: u32, wait_ms: u32) -> Answer<Vec<SteeringInput>> {
        self.pass("steering.pull", Permission::Steering)?;
        if !(1..=100).contains(&limit) {
            return refuse(ErrorCode::InvalidArgument, "a pull takes 1 to 100 inputs");
        }
        let (pulls, results) = (self.beyond.pulls, self.results.len());
        self.beyond.pulls += 1;
        let there = |when: Arrival| match when {
            Arrival::AtStart => true,
            Arrival::AfterPulls(after) => pulls >= after,
            Arrival::AfterResults(after) => results >= after,
        };
        let mut inputs = Vec::new();
        let arrivals = std::mem::take(&mut self.beyond.arrivals);
        for (when, text) in arrivals {
            if inputs.len() < limit as usize && there(when) {
                self.beyond.steered += 1;
                inputs.push(self.steering_input(&text));
            } else {
                self.beyond.arrivals.push((when, text));
            }
        }
        if inputs.is_empty() {
            self.now += u64::from(wait_ms);
        }
        Ok(inputs)
    }

    fn steering_input(&mut self, text: &str) -> SteeringInput {
        let event = contract::Event {
            event_id: format!("event-{}-{}", self.run_no, self.beyond.steered),
            event_type: "message.received".to_owned(),
            event_time: Some(self.now),
            source: "api".to_owned(),
            source_event_type: None,
            raw_ref: None,
            data: "{}".to_owned(),
        };
        self.events.push(event.clone());
        self.add_item("user", "message", text, &event.event_id);
        let input =
            contract::Input { text: Some(text.to_owned()), contents: Vec::new(), attachments: Vec::new(), message_chain: None };
        SteeringInput { event, input }
    }

    fn open_children(&self) -> usize {
        self.beyond.children.iter().filter(|child| child.ended(self.now).is_none()).count()
    }

    pub(super) fn start_run(&mut self, request: &StartRequest) -> Answer<String> {
        self.pass("runs.start", Permission::Run(RunOperation::Start))?;
        if let Some(config) = &request.config
            && !json(config)?.is_object()
        {
            return refuse(ErrorCode::InvalidArgument, "the configuration of a run is a JSON object");
        }
        if self.beyond.children.len() >= CHILDREN {
            return refuse(ErrorCode::Unauthorized, format!("a run starts at most {CHILDREN} others"));
        }
        if self.open_children() >= CHILDREN_AT_ONCE {
            let message = format!("a run has at most {CHILDREN_AT_ONCE} others under way at one time");
            return Err(types::ApiError { code: ErrorCode::RateLimited, message, retryable: true, details: None });
        }
        let Some((_, script)) = self.beyond.runners.iter_mut().find(|(id, _)| *id == request.runner_id) else {
            return refuse(ErrorCode::Unauthorized, format!("the runner `{}` is not granted to this run", request.runner_id));
        };
        let reply = script(request);
        if let Some(error) = reply.refused {
            return Err(error.into());
        }
        let parent = format!("run-{}", self.run_no);
        let run_id = format!("{parent}-child-{}", self.beyond.children.len() + 1);
        self.beyond.children.push(Child::new(run_id.clone(), parent, request.clone(), self.now, reply));
        self.beyond.most_children = self.beyond.most_children.max(self.open_children());
        Ok(run_id)
    }

    fn child(&mut self, run_id: &str) -> Answer<&mut Child> {
        match self.beyond.children.iter_mut().find(|child| child.run_id == run_id) {
            Some(child) => Ok(child),
            None => refuse(ErrorCode::NotFound, format!("this run started no run `{run_id}`")),
        }
    }

    pub(super) fn wait_any(&mut self, run_ids: &[String], wait_ms: u32) -> Answer<Option<RunSummary>> {
        self.pass("runs.wait-any", Permission::Run(RunOperation::Get))?;
        if run_ids.is_empty() {
            return refuse(ErrorCode::InvalidArgument, "there is no run to wait for");
        }
        let until = self.now + u64::from(wait_ms);
        let mut first: Option<(u64, String)> = None;
        for run_id in run_ids {
            let end = self.child(run_id)?.ends.as_ref().map(|(at, _)| *at).filter(|at| *at <= until);
            if let Some(at) = end
                && first.as_ref().is_none_or(|(earliest, _)| at < *earliest)
            {
                first = Some((at, run_id.clone()));
            }
        }
        let Some((at, run_id)) = first else {
            self.now = until;
            return Ok(None);
        };
        self.now = self.now.max(at);
        let now = self.now;
        Ok(Some(self.child(&run_id)?.summary(now)))
    }

    pub(super) fn get_run(&mut self, run_id: &str) -> Answer<RunSummary> {
        self.pass("runs.get", Permission::Run(RunOperation::Get))?;
        let now = self.now;
        Ok(self.child(run_id)?.summary(now))
    }

    pub(super) fn list_runs(&mut self, parent_run_id: Option<&str>, limit: u32) -> Answer<Vec<RunSummary>> {
        self.pass("runs.list", Permission::Run(RunOperation::List))?;
        if !(1..=100).contains(&limit) {
            return refuse(ErrorCode::InvalidArgument, "a list has 1 to 100 items");
        }
        // A run sees its own children only.
        if parent_run_id.is_some_and(|parent| parent != format!("run-{}", self.run_no)) {
            return refuse(ErrorCode::NotFound, "there is no such run whose children this run may see");
        }
        let newest_first = self.beyond.children.iter().rev().take(limit as usize);
        Ok(newest_first.map(|child| child.summary(self.now)).collect())
    }

    pub(super) fn run_events(&mut self, run_id: &str, after: Option<&str>, limit: u32) -> Answer<RunEventPage> {
        self.pass("runs.events-page", Permission::Run(RunOperation::Events))?;
        if !(1..=100).contains(&limit) {
            return refuse(ErrorCode::InvalidArgument, "a page has 1 to 100 items");
        }
        let now = self.now;
        let after = position(after, 0)?;
        let mut items = self.child(run_id)?.events(now);
        items.retain(|event| event.sequence > after);
        let has_more = items.len() > limit as usize;
        items.truncate(limit as usize);
        let next = items.last().map(|event| event.sequence.to_string()).filter(|_| has_more);
        Ok(RunEventPage { items, next, has_more })
    }

    pub(super) fn cancel_run(&mut self, run_id: &str, reason: &str) -> Answer<()> {
        self.pass("runs.cancel", Permission::Run(RunOperation::Cancel))?;
        let now = self.now;
        let child = self.child(run_id)?;
        if child.ended(now).is_none() {
            child.ends = Some((now, ScriptedEnd::Cancelled(reason.to_owned())));
        }
        Ok(())
    }

    pub(super) fn send(&mut self, request: &HttpRequest) -> Answer<HttpReply> {
        self.pass("http.send", Permission::Http)?;
        let (host, port) = destination(request)?;
        let declared = self.declared.permissions.http_hosts.iter().any(|pattern| names(pattern, &host, port));
        let server = self.beyond.servers.iter_mut().find(|server| server.answers(request));
        let (Some(server), true) = (server, declared) else {
            let message = format!("{} {host}:{port} is not granted to this run", request.method);
            return refuse(ErrorCode::Unauthorized, message);
        };
        self.beyond.requests.push(request.clone());
        let reply = (server.answer)(request);
        match reply.refused {
            Some(error) => Err(error.into()),
            None => Ok(reply),
        }
    }

    /// Returns the children of the run and removes them. The scripts remain for the next run.
    pub(super) fn end_of_children(&mut self) -> Vec<TestChild> {
        let now = self.now;
        let ended = |child: Child| TestChild {
            status: child.status(now),
            cancelled: match child.ends {
                Some((at, ScriptedEnd::Cancelled(reason))) if at <= now => Some(reason),
                _ => None,
            },
            run_id: child.run_id,
            request: child.request,
        };
        std::mem::take(&mut self.beyond.children).into_iter().map(ended).collect()
    }
}

fn json(text: &str) -> Answer<Value> {
    serde_json::from_str(text).or_else(|_| refuse(ErrorCode::InvalidArgument, format!("not JSON: {text}")))
}
