//! `plugin:agent-host/supervisor/default` splits its input into tasks (one per line or `;`), starts a child run of
//! another runner for each, and gathers the answers. A progress message shows finished tasks while others are running.
//!
//! Worth copying: children run concurrently within a bound; a failed child does not affect the others; the run stops
//! waiting while there is time to report. The host does the rest: the grant of a child is at most that of this run, a
//! child is cancelled with its parent, and a cycle of supervisors ends at a configured depth.

use std::time::Duration;

use agent_host_sdk::runs::{Bounds, ChildResult, StartRun};
use agent_host_sdk::serde_json::json;
use agent_host_sdk::{
    ArtifactOperation, Capabilities, Completion, Context, Failure, FormItem, KnowledgeOperation, Manifest, ModelOperation,
    RunOperation, Runner, ToolOperation,
};
use serde::Deserialize;

#[cfg(test)]
mod tests;

/// Maximum child runs of one run, in the host's default configuration.
const MOST_TASKS: usize = 256;

/// Time reserved to cancel open children and to report.
const RESERVE: Duration = Duration::from_secs(10);

/// Maximum length of a task in messages, in characters. The child receives the whole task.
const SHOWN_CHARS: usize = 60;

/// Configuration of a binding: the fields of the form below, with the same defaults.
#[derive(Deserialize)]
#[serde(default)]
struct Config {
    worker: String,
    at_once: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { worker: "plugin:agent-host/echo/default".to_owned(), at_once: 4 }
    }
}

struct Supervisor;

impl Runner for Supervisor {
    fn manifest() -> Manifest {
        let defaults = Config::default();
        Manifest::new("agent-host", "supervisor")
            .label("en", "Supervisor")
            .label("zh-Hans", "主管")
            .description("en", "Splits work among other runners, and gathers what they say.")
            .capabilities(Capabilities { streaming: true, ..Capabilities::default() })
            // `Get` to wait for children, `Events` to read their answers.
            .runs([RunOperation::Start, RunOperation::Get, RunOperation::Events, RunOperation::Cancel])
            // Permissions of the workers: a child gets what both its manifest and its parent have. This runner uses none
            // of them.
            .models([ModelOperation::Invoke, ModelOperation::Stream, ModelOperation::CountTokens])
            .tools([ToolOperation::Detail, ToolOperation::Call])
            .knowledge_bases([KnowledgeOperation::Retrieve])
            .artifacts([ArtifactOperation::Read, ArtifactOperation::Create])
            .interactions()
            .form(FormItem::string("worker").label("en", "Runner that does the work").default(defaults.worker))
            .form(
                FormItem::integer("at_once")
                    .label("en", "Tasks at the same time")
                    .description("en", "The host has a limit of its own.")
                    .default(defaults.at_once),
            )
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let config: Config = ctx.config()?;
        if !ctx.available_apis().runs {
            let why = "this run may start no others: let the binding grant `runs`, and the worker in `runner_ids`";
            return Err(Failure::new("supervisor.no_runs", why));
        }
        let tasks = split(ctx.text());
        match tasks.len() {
            0 => {
                ctx.reply("Give me tasks: a line each, or with `;` between them.")?;
                return Ok(Completion::stop());
            }
            1..=MOST_TASKS => {}
            many => return Err(Failure::new("supervisor.too_many_tasks", format!("{many} tasks are more than {MOST_TASKS}"))),
        }

        // Progress is a separate message that grows while the children run. The answer is another message.
        let mut progress = ctx.message();
        let mut done = 0;
        let children = tasks.iter().map(|task| StartRun::new(&config.worker).text(*task).objective(excerpt(task)));
        let bounds = Bounds { at_once: config.at_once, at_most: time_to_wait(&ctx) };
        let ends = ctx.runs().for_each_child(children, bounds, |place, child| {
            done += 1;
            let sign = if child.end.is_completed() { "done" } else { "failed" };
            let task = tasks.get(place).map(|task| excerpt(task)).unwrap_or_default();
            writeln!(progress, "[{done}/{}] {sign}: {task}", tasks.len())?;
            progress.flush()
        })?;
        progress.finish()?;

        report(&ctx, &tasks, &ends)
    }
}

/// Reports the end of each task. The run fails only if all tasks failed.
fn report(ctx: &Context, tasks: &[&str], ends: &[ChildResult]) -> Result<Completion, Failure> {
    let failed = ends.iter().filter(|child| !child.end.is_completed()).count();
    let runs: Vec<_> = ends.iter().map(|child| child.run.as_ref().map(|run| run.id())).collect();
    let metadata = json!({"tasks": tasks.len(), "failed": failed, "runs": runs});
    if failed == tasks.len() {
        let first = ends.first().map(|child| child.end.to_string()).unwrap_or_default();
        let why = format!("none of {failed} tasks was done; the first: {first}");
        return Err(Failure::new("supervisor.all_failed", why).details(metadata));
    }
    let mut out = ctx.message();
    for (task, child) in tasks.iter().zip(ends) {
        let sign = if child.end.is_completed() { "" } else { "FAILED: " };
        writeln!(out, "{}: {sign}{}", excerpt(task), child.end)?;
    }
    if failed > 0 {
        write!(out, "{failed} of {} tasks failed.", tasks.len())?;
    }
    out.finish()?;
    Ok(Completion::stop().metadata(metadata))
}

fn split(text: &str) -> Vec<&str> {
    text.split(['\n', ';']).map(str::trim).filter(|task| !task.is_empty()).collect()
}

/// Returns the beginning of a task.
fn excerpt(task: &str) -> String {
    match task.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", task.get(..end).unwrap_or_default()),
        None => task.to_owned(),
    }
}

/// Returns the time left less the reserve, or less a tenth of the time left if the tenth is smaller.
fn time_to_wait(ctx: &Context) -> Duration {
    // Without a deadline the run waits up to a day; a person can cancel it.
    let left = ctx.time_left().unwrap_or(Duration::from_secs(24 * 60 * 60));
    left.saturating_sub(RESERVE.min(left / 10))
}

agent_host_sdk::export!(Supervisor);
