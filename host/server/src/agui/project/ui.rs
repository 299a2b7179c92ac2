//! UI results of a guest: steps, activities, subagents, schemas of forms (results `ui.*`), and children.

use std::collections::HashMap;

use agent_host_protocol::{ResultKind, RunEvent, ui};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Closing, Out, ids::Ids, ordered::Ordered, read, text::Texts, tools::Tools};
use crate::agui::event::{Kind, PatchOp};

/// The activity that a form is.
const SCHEMA: &str = "ui_schema";

/// The UI elements besides messages.
#[derive(Debug, Default)]
pub(super) struct Ui {
    steps: Ordered<()>,
    /// Open subagents, with their ids on the wire.
    subagents: Ordered<String>,
    children: Ordered<String>,
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
struct Started {
    subagent_id: String,
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parent_tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct Finished {
    subagent_id: String,
    #[serde(default)]
    result: Option<Value>,
}

#[derive(Deserialize)]
struct Failed {
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

/// The element that a form belongs to.
#[derive(Deserialize)]
#[serde(untagged)]
enum FormOwner {
    Message { message_id: String },
    Call { tool_call_id: String },
}

/// A run was started.
#[derive(Deserialize)]
pub(super) struct ChildStarted {
    run_id: String,
    #[serde(default)]
    runner_id: String,
    #[serde(default)]
    objective: String,
}

/// The child has ended.
#[derive(Deserialize)]
pub(super) struct ChildEnded {
    run_id: String,
    status: String,
}

/// The form of a result is not the one that its type has.
struct Malformed;

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
            ui::SCHEMA => self.schema(out, ids, texts, tools, read(event)),
            name if ResultKind::from_name(name).is_some() => Ok(()),
            _ => Err(Malformed),
        };
        if taken.is_err() {
            out.custom(event.kind.clone(), event.data_value());
        }
    }

    fn step_started(&mut self, out: &mut Out, step: Option<Step>) -> Result<(), Malformed> {
        let name = named(step.ok_or(Malformed)?.name)?;
        if !self.steps.contains(&name) {
            self.steps.get_or_insert_with(&name, || ());
            out.say(Kind::StepStarted { step_name: name });
        }
        Ok(())
    }

    fn step_finished(&mut self, out: &mut Out, step: Option<Step>) -> Result<(), Malformed> {
        let name = named(step.ok_or(Malformed)?.name)?;
        if self.steps.remove(&name).is_some() {
            out.say(Kind::StepFinished { step_name: name });
        }
        Ok(())
    }

    fn activity(&mut self, out: &mut Out, ids: &mut Ids, activity: Option<Activity>) -> Result<(), Malformed> {
        let Activity { activity_id, activity_type, content } = activity.ok_or(Malformed)?;
        let activity_type = named(activity_type)?;
        let message_id = self.activities.entry(activity_id).or_insert_with_key(|name| ids.activity(name)).clone();
        out.say(Kind::ActivitySnapshot { message_id, activity_type, content, replace: None });
        Ok(())
    }

    /// Changes of what is not there change nothing.
    fn activity_delta(&mut self, out: &mut Out, patch: Option<Patch>) -> Result<(), Malformed> {
        let Patch { activity_id, activity_type, patch } = patch.ok_or(Malformed)?;
        let activity_type = named(activity_type)?;
        if !patch.iter().all(is_pointed) {
            return Err(Malformed);
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
        started: Option<Started>,
    ) -> Result<(), Malformed> {
        let Started { subagent_id, name, description, parent_tool_call_id } = started.ok_or(Malformed)?;
        let name = named(name)?;
        if !self.subagents.contains(&subagent_id) {
            let parent_tool_call_id = parent_tool_call_id.and_then(|call| tools.known(&call).map(str::to_owned));
            let id = self.subagents.get_or_insert_with(&subagent_id, || ids.subagent(&subagent_id)).clone();
            out.say(subagent(id, name, description, parent_tool_call_id));
        }
        Ok(())
    }

    fn subagent_finished(&mut self, out: &mut Out, finished: Option<Finished>) -> Result<(), Malformed> {
        let Finished { subagent_id, result } = finished.ok_or(Malformed)?;
        if let Some(subagent_run_id) = self.subagents.remove(&subagent_id) {
            let result = result.filter(|result| !result.is_null());
            out.say(Kind::SubagentFinished { subagent_run_id, result });
        }
        Ok(())
    }

    fn subagent_failed(&mut self, out: &mut Out, failed: Option<Failed>) -> Result<(), Malformed> {
        let Failed { subagent_id, message, code } = failed.ok_or(Malformed)?;
        if let Some(subagent_run_id) = self.subagents.remove(&subagent_id) {
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
        schema: Option<Schema>,
    ) -> Result<(), Malformed> {
        let Schema { beside, schema: content } = schema.ok_or(Malformed)?;
        let beside = match &beside {
            FormOwner::Message { message_id } => texts.id_of(ids, message_id),
            FormOwner::Call { tool_call_id } => tools.id_of(ids, tool_call_id),
        }
        .to_owned();
        let message_id = self.schemas.entry(beside).or_insert_with_key(|beside| ids.beside(beside)).clone();
        out.say(Kind::ActivitySnapshot { message_id, activity_type: SCHEMA.to_owned(), content, replace: None });
        Ok(())
    }

    pub(super) fn child_started(&mut self, out: &mut Out, ids: &mut Ids, started: ChildStarted) {
        let ChildStarted { run_id, runner_id, objective } = started;
        if self.children.contains(&run_id) {
            return;
        }
        let id = self.children.get_or_insert_with(&run_id, || ids.child(run_id.clone())).clone();
        let name = runner_id.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("run").to_owned();
        out.say(subagent(id, name, Some(objective).filter(|objective| !objective.is_empty()), None));
    }

    pub(super) fn child_ended(&mut self, out: &mut Out, ended: ChildEnded) {
        let ChildEnded { run_id, status } = ended;
        let Some(subagent_run_id) = self.children.remove(&run_id) else { return };
        out.say(if status == "completed" {
            Kind::SubagentFinished { subagent_run_id, result: None }
        } else {
            Kind::SubagentError { subagent_run_id, message: format!("the run ended as {status}"), code: Some(status) }
        });
    }

    /// Closes the open elements. An element that continues in the next segment is not started there again: no event depends
    /// on its start.
    pub(super) fn close(&mut self, out: &mut Out, closing: Closing) {
        for (step_name, ()) in self.steps.take().into_iter().rev() {
            out.say(Kind::StepFinished { step_name });
        }
        let open = self.children.take().into_iter().chain(self.subagents.take());
        for (_, subagent_run_id) in open {
            out.say(match closing {
                Closing::Waits | Closing::Completes => Kind::SubagentFinished { subagent_run_id, result: None },
                Closing::Fails | Closing::Retries => {
                    Kind::SubagentError { subagent_run_id, message: "its run ended before it did".to_owned(), code: None }
                }
            });
        }
        if closing != Closing::Waits {
            *self = Self::default();
        }
    }
}

/// Checks a name: clients refuse an element without one.
fn named(name: String) -> Result<String, Malformed> {
    if name.is_empty() { Err(Malformed) } else { Ok(name) }
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

fn subagent(id: String, name: String, description: Option<String>, parent_tool_call_id: Option<String>) -> Kind {
    Kind::SubagentStarted { subagent_run_id: id, name, description, parent_subagent_run_id: None, parent_tool_call_id }
}
