//! UI results of a guest: steps, activities, subagents and schemas of forms (results `ui.*`).

use std::collections::HashMap;

use agent_host_protocol::{ResultKind, RunEvent, ui};
use agent_host_runs::facts::{open::OpenElements, record::read};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    CloseReason,
    children::ChildRuns,
    ids::Ids,
    invocations::{Invocation, Invocations},
    out::Out,
    text::Texts,
    tools::Tools,
};
use crate::agui::{
    event::{Kind, PatchOp},
    ui_schema,
};

/// The activity that a form is.
const SCHEMA: &str = "ui_schema";

/// The UI elements besides messages.
#[derive(Debug, Default)]
pub(super) struct Ui {
    steps: OpenElements<()>,
    subagents: Invocations,
    pub(super) children: ChildRuns,
    /// Steps that were open when the run began to wait.
    suspended_steps: OpenElements<()>,
    /// Ids on the wire.
    activities: HashMap<String, String>,
    /// Ids of forms, by the id of what they are beside.
    schemas: HashMap<String, String>,
}

#[derive(Deserialize)]
struct Step {
    name: String,
}

#[derive(Deserialize)]
struct Activity {
    activity_id: String,
    activity_type: String,
    content: Map<String, Value>,
}

#[derive(Deserialize)]
struct Patch {
    activity_id: String,
    activity_type: String,
    patch: Vec<PatchOp>,
}

#[derive(Deserialize)]
struct SubagentStart {
    subagent_id: String,
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parent_tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct SubagentEnd {
    subagent_id: String,
    #[serde(default)]
    result: Option<Value>,
}

#[derive(Deserialize)]
struct SubagentFailure {
    subagent_id: String,
    message: String,
    #[serde(default)]
    code: Option<String>,
}

#[derive(Deserialize)]
struct Schema {
    #[serde(flatten)]
    beside: FormOwner,
    schema: Map<String, Value>,
}

#[derive(Deserialize)]
struct Hints {
    #[serde(flatten)]
    beside: FormOwner,
    hints: Map<String, Value>,
}

/// The element that a form or an encrypted value belongs to.
#[derive(Deserialize)]
#[serde(untagged)]
enum FormOwner {
    Message { message_id: String },
    Call { tool_call_id: String },
}

/// A value that only the provider of the model can read.
#[derive(Deserialize)]
struct EncryptedValue {
    #[serde(flatten)]
    of: FormOwner,
    encrypted_value: String,
}

/// The form of a result is not the one that its type has.
struct MalformedResult;

impl Ui {
    /// Handles a result of another type. A result that the projection does not know, or that is malformed, is shown as it
    /// is; results for the host alone are not shown.
    pub(super) fn other(&mut self, out: &mut Out, ids: &mut Ids, texts: &mut Texts, tools: &mut Tools, event: &RunEvent) {
        let taken = match event.kind.as_str() {
            ui::STEP_STARTED => self.step_started(out, read(event)),
            ui::STEP_FINISHED => self.step_finished(out, read(event)),
            ui::ACTIVITY => self.activity(out, ids, read(event)),
            ui::ACTIVITY_DELTA => self.activity_delta(out, read(event)),
            ui::SUBAGENT_STARTED => self.subagent_started(out, ids, tools, read(event)),
            ui::SUBAGENT_FINISHED => self.subagent_finished(out, read(event)),
            ui::SUBAGENT_FAILED => self.subagent_failed(out, read(event)),
            ui::SCHEMA => read(event).ok_or(MalformedResult).and_then(|Schema { beside, schema }| {
                ui_schema::check(&schema).map_err(|why| {
                    tracing::debug!(why, "an interface is no schema, and is passed on as it is");
                    MalformedResult
                })?;
                self.schema(out, ids, texts, tools, &beside, schema);
                Ok(())
            }),
            ui::HINTS => read(event).ok_or(MalformedResult).and_then(|Hints { beside, hints }| {
                let schema = ui_schema::compile(&hints).map_err(|why| {
                    tracing::debug!(why, "hints give no interface, and are passed on as they are");
                    MalformedResult
                })?;
                self.schema(out, ids, texts, tools, &beside, schema);
                Ok(())
            }),
            ui::ENCRYPTED => encrypted_value(out, texts, tools, read(event)),
            name if ResultKind::from_name(name).is_some() => Ok(()),
            _ => Err(MalformedResult),
        };
        if taken.is_err() {
            out.custom(event.kind.clone(), event.data_value());
        }
    }

    fn step_started(&mut self, out: &mut Out, step: Option<Step>) -> Result<(), MalformedResult> {
        let name = named(step.ok_or(MalformedResult)?.name)?;
        if !self.steps.contains(&name) {
            self.steps.get_or_insert_with(&name, || ());
            out.say(Kind::StepStarted { step_name: name });
        }
        Ok(())
    }

    fn step_finished(&mut self, out: &mut Out, step: Option<Step>) -> Result<(), MalformedResult> {
        let name = named(step.ok_or(MalformedResult)?.name)?;
        if self.suspended_steps.remove(&name).is_some() && !self.steps.contains(&name) {
            out.say(Kind::StepStarted { step_name: name.clone() });
            out.say(Kind::StepFinished { step_name: name });
        } else if self.steps.remove(&name).is_some() {
            out.say(Kind::StepFinished { step_name: name });
        }
        Ok(())
    }

    fn activity(&mut self, out: &mut Out, ids: &mut Ids, activity: Option<Activity>) -> Result<(), MalformedResult> {
        let Activity { activity_id, activity_type, content } = activity.ok_or(MalformedResult)?;
        let activity_type = named(activity_type)?;
        let message_id = self.activities.entry(activity_id).or_insert_with_key(|name| ids.activity(name)).clone();
        out.say(Kind::ActivitySnapshot { message_id, activity_type, content, replace: None });
        Ok(())
    }

    /// Changes of what is not there change nothing.
    fn activity_delta(&mut self, out: &mut Out, patch: Option<Patch>) -> Result<(), MalformedResult> {
        let Patch { activity_id, activity_type, patch } = patch.ok_or(MalformedResult)?;
        let activity_type = named(activity_type)?;
        if !patch.iter().all(is_pointed) {
            return Err(MalformedResult);
        }
        if let Some(message_id) = self.activities.get(&activity_id).cloned() {
            out.say(Kind::ActivityDelta { message_id, activity_type, patch });
        }
        Ok(())
    }

    fn subagent_started(
        &mut self,
        out: &mut Out,
        ids: &mut Ids,
        tools: &Tools,
        started: Option<SubagentStart>,
    ) -> Result<(), MalformedResult> {
        let SubagentStart { subagent_id, name, description, parent_tool_call_id } = started.ok_or(MalformedResult)?;
        let name = named(name)?;
        let parent_tool_call_id = parent_tool_call_id.and_then(|call| tools.known(&call).map(str::to_owned));
        let new = || Invocation { id: ids.subagent(&subagent_id), name, description, parent_tool_call_id };
        self.subagents.begin(out, &subagent_id, new);
        Ok(())
    }

    fn subagent_finished(&mut self, out: &mut Out, finished: Option<SubagentEnd>) -> Result<(), MalformedResult> {
        let SubagentEnd { subagent_id, result } = finished.ok_or(MalformedResult)?;
        if let Some(subagent_run_id) = self.subagents.end(out, &subagent_id) {
            let result = result.filter(|result| !result.is_null());
            out.say(Kind::SubagentFinished { subagent_run_id, result, outcome: None });
        }
        Ok(())
    }

    fn subagent_failed(&mut self, out: &mut Out, failed: Option<SubagentFailure>) -> Result<(), MalformedResult> {
        let SubagentFailure { subagent_id, message, code } = failed.ok_or(MalformedResult)?;
        if let Some(subagent_run_id) = self.subagents.end(out, &subagent_id) {
            out.say(Kind::SubagentError { subagent_run_id, message, code });
        }
        Ok(())
    }

    fn schema(
        &mut self,
        out: &mut Out,
        ids: &mut Ids,
        texts: &mut Texts,
        tools: &mut Tools,
        beside: &FormOwner,
        content: Map<String, Value>,
    ) {
        let beside = match beside {
            FormOwner::Message { message_id } => texts.id_of(ids, message_id),
            FormOwner::Call { tool_call_id } => tools.id_of(ids, tool_call_id),
        }
        .to_owned();
        let message_id = self.schemas.entry(beside).or_insert_with_key(|beside| ids.beside(beside)).clone();
        out.say(Kind::ActivitySnapshot { message_id, activity_type: SCHEMA.to_owned(), content, replace: None });
    }

    /// Closes the open elements. An element that continues in the next segment is suspended, and begins there again with the next
    /// event about it.
    pub(super) fn close(&mut self, out: &mut Out, closing: CloseReason) {
        for (step_name, ()) in self.steps.take().into_iter().rev() {
            let suspended = closing == CloseReason::Waits;
            if suspended {
                self.suspended_steps.get_or_insert_with(&step_name, || ());
                // Steps have no outcome.
                out.mark("agentHost", json!({ "suspended": true }));
            }
            out.say(Kind::StepFinished { step_name });
        }
        self.children.close(out, closing);
        self.subagents.close(out, closing);
        if closing != CloseReason::Waits {
            let children = std::mem::take(&mut self.children);
            *self = Self { children, ..Self::default() };
        }
    }
}

/// Checks a name: clients refuse an element without one.
fn named(name: String) -> Result<String, MalformedResult> {
    if name.is_empty() { Err(MalformedResult) } else { Ok(name) }
}

/// True if the paths of the operation are JSON Pointers (RFC 6901).
fn is_pointed(operation: &PatchOp) -> bool {
    let is_pointer = |path: &String| {
        let escapes = path.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        escapes && (path.is_empty() || path.starts_with('/'))
    };
    match operation {
        PatchOp::Add { path, .. } | PatchOp::Remove { path } | PatchOp::Replace { path, .. } | PatchOp::Test { path, .. } => {
            is_pointer(path)
        }
        PatchOp::Move { from, path } | PatchOp::Copy { from, path } => is_pointer(from) && is_pointer(path),
    }
}

/// Shows the encrypted value of a reasoning, a text or a call that has begun.
fn encrypted_value(out: &mut Out, texts: &Texts, tools: &Tools, value: Option<EncryptedValue>) -> Result<(), MalformedResult> {
    let EncryptedValue { of, encrypted_value } = value.ok_or(MalformedResult)?;
    let (subtype, entity) = match &of {
        FormOwner::Message { message_id } => {
            let entity = out.reasoning_of(message_id).or_else(|| texts.begun_id(message_id));
            ("message", entity.map(str::to_owned))
        }
        FormOwner::Call { tool_call_id } => ("tool-call", tools.known(tool_call_id).map(str::to_owned)),
    };
    let (subtype, entity_id) = (subtype.to_owned(), entity.ok_or(MalformedResult)?);
    out.say(Kind::ReasoningEncryptedValue { subtype, entity_id, encrypted_value });
    Ok(())
}
