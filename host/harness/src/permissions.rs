//! Permission requests of an agent: answered by a rule of the operator, or by a person.

use std::{
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use agent_host_config::{HarnessPolicy, HarnessRule};
use agent_host_protocol::time;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    acp_schema::PermissionOption,
    agent_run::AgentRun,
    host_client::{HeldRun, HostError},
    results::{Results, cut},
    shell,
};

/// Longest title of a question, in bytes; the host takes 300 characters.
const MAX_TITLE: usize = 280;
/// Longest description of a question, in bytes.
const MAX_DESCRIPTION: usize = 8 * 1024;
/// Characters by which a shell starts other commands, or reads and writes files.
const SHELL: [char; 11] = [';', '|', '&', '$', '<', '>', '`', '\n', '(', ')', '\\'];

/// The action that an agent asks permission for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Intent {
    /// Kind of the tool, such as `execute`.
    pub(crate) kind: String,
    /// One line for people.
    pub(crate) title: String,
    /// Files and folders that are concerned.
    pub(crate) paths: Vec<PathBuf>,
    /// The command, where one is executed.
    pub(crate) command: Option<String>,
    /// The command or the change, for the person who decides.
    pub(crate) description: String,
}

/// The answer to a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Granted,
    Refused,
}

/// A permission request of an agent.
pub(crate) struct Asked {
    /// Id of the tool call that it is about.
    pub(crate) call_id: String,
    pub(crate) intent: Intent,
    /// The answers that the agent offers.
    pub(crate) options: Vec<PermissionOption>,
}

/// Answers a permission request, by a rule at once, else by a person in a task of its own. `respond` gets the option that it is;
/// `None` where no option says it, or the turn is cancelled.
pub(crate) async fn decide<F, R>(frame: &AgentRun, results: &mut Results, jobs: &mut JoinSet<()>, asked: Asked, respond: F)
where
    F: FnOnce(Option<PermissionOption>) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let Asked { call_id, intent, options } = asked;
    let policy = judge(&frame.config.rules, &intent, &frame.workspace.dir);
    let verdict = match policy {
        HarnessPolicy::Allow => Verdict::Granted,
        HarnessPolicy::Deny => Verdict::Refused,
        HarnessPolicy::Ask => {
            // The question comes after the call that it is about.
            results.flush().await;
            let (run, stop) = (Arc::clone(&frame.run), frame.stop.clone());
            let timeout_ms = frame.config.limits.ask_timeout_ms;
            jobs.spawn(async move {
                let chosen = match ask(&run, &intent, &options, timeout_ms).await {
                    Ok(Some(option)) => Some(option.clone()),
                    Ok(None) => option(&options, Verdict::Refused).cloned(),
                    // The turn is cancelled.
                    Err(error) => {
                        stop.hear(&error);
                        None
                    }
                };
                respond(chosen).await;
            });
            return;
        }
    };
    let data = json!({ "tool_call_id": call_id, "policy": policy, "granted": verdict == Verdict::Granted });
    results.add("harness.permission", data, None).await;
    respond(option(&options, verdict).cloned()).await;
}

/// The policy for an intent: that of the first rule that fits, else to ask.
pub(crate) fn judge(rules: &[HarnessRule], intent: &Intent, workspace: &Path) -> HarnessPolicy {
    rules.iter().find(|rule| fits(rule, intent, workspace)).map_or(HarnessPolicy::Ask, |rule| rule.policy)
}

fn fits(rule: &HarnessRule, intent: &Intent, workspace: &Path) -> bool {
    let denies = rule.policy == HarnessPolicy::Deny;
    let kind = rule.kinds.is_empty() || rule.kinds.contains(&intent.kind);
    let below = |path: &PathBuf| {
        let path = plain(&workspace.join(path));
        rule.paths.iter().any(|root| path.starts_with(plain(&workspace.join(root))))
    };
    let paths = match (rule.paths.is_empty(), denies) {
        (true, _) => true,
        (false, true) => intent.paths.iter().any(below),
        (false, false) => !intent.paths.is_empty() && intent.paths.iter().all(below),
    };
    let command = match (&intent.command, rule.commands.is_empty()) {
        (_, true) => true,
        (None, false) => false,
        (Some(command), false) => {
            let fits = |command: &str| match rule.policy {
                HarnessPolicy::Deny => command.split(SHELL).any(|part| begins(rule, part)),
                HarnessPolicy::Ask => begins(rule, command),
                HarnessPolicy::Allow => begins(rule, command) && !command.contains(SHELL),
            };
            fits(command) || fits(&shell::inner(command))
        }
    };
    kind && paths && command
}

/// True if `command` begins with one of the rule's commands, as whole words.
fn begins(rule: &HarnessRule, command: &str) -> bool {
    rule.commands.iter().any(|beginning| {
        let mut words = command.split_whitespace();
        beginning.split_whitespace().all(|word| words.next() == Some(word))
    })
}

/// `path` without `.` and `..`. Links are not followed: confinement is what holds a process.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
        plain
    })
}

/// The option of the agent that says what the verdict is, for once only.
pub(crate) fn option(options: &[PermissionOption], verdict: Verdict) -> Option<&PermissionOption> {
    let kinds = match verdict {
        Verdict::Granted => ["allow_once", "allow_always"],
        Verdict::Refused => ["reject_once", "reject_always"],
    };
    kinds.iter().find_map(|kind| options.iter().find(|option| option.kind == *kind))
}

/// Asks a person which of the agent's options it is to be. `None` is a refusal: declined, no answer in time, or nobody may be asked.
///
/// # Errors
/// Fails if the run is not to go on.
pub(crate) async fn ask<'a>(
    run: &HeldRun,
    intent: &Intent,
    options: &'a [PermissionOption],
    timeout_ms: u64,
) -> Result<Option<&'a PermissionOption>, HostError> {
    // People read names; two options of one name are told apart by their ids.
    let is_unique = |name: &str| !name.is_empty() && options.iter().filter(|option| option.name == name).count() == 1;
    let label = |option: &PermissionOption| {
        if is_unique(&option.name) { cut(&option.name, 200).to_owned() } else { cut(&option.option_id, 200).to_owned() }
    };
    let choices: Vec<String> = options.iter().map(label).collect();
    let title = intent.title.replace(char::is_control, " ");
    let question = json!({
        "kind": "choice",
        "title": cut(if title.trim().is_empty() { "Permission" } else { title.trim() }, MAX_TITLE),
        "description": cut(&intent.description, MAX_DESCRIPTION),
        "answer_schema": { "type": "string", "enum": choices },
        "expires_at": time::now().saturating_add(timeout_ms),
    });
    let outcome = match run.call("interactions.ask", &question).await {
        Ok(answer) => answer,
        Err(error @ (HostError::ClaimLost | HostError::Cancelled)) => return Err(error),
        Err(error) => {
            tracing::debug!(%error, "a permission request of an agent cannot be asked, and is refused");
            return Ok(None);
        }
    };
    let answer = outcome.get("answer").and_then(Value::as_str);
    Ok(answer.and_then(|answer| options.iter().find(|option| label(option) == answer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(policy: HarnessPolicy, kinds: &[&str], paths: &[&str], commands: &[&str]) -> HarnessRule {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        HarnessRule { policy, kinds: texts(kinds), paths: paths.iter().map(PathBuf::from).collect(), commands: texts(commands) }
    }

    fn command(text: &str) -> Intent {
        Intent { kind: "execute".into(), command: Some(text.into()), ..Intent::default() }
    }

    fn edit(paths: &[&str]) -> Intent {
        Intent { kind: "edit".into(), paths: paths.iter().map(PathBuf::from).collect(), ..Intent::default() }
    }

    #[test]
    fn the_first_rule_that_fits_answers() {
        let rules = [
            rule(HarnessPolicy::Deny, &[], &[".git", "/etc"], &[]),
            rule(HarnessPolicy::Deny, &["execute"], &[], &["rm"]),
            rule(HarnessPolicy::Allow, &["execute"], &[], &["git status", "cargo"]),
            rule(HarnessPolicy::Allow, &["edit"], &["src"], &[]),
        ];
        let judged = |intent: Intent| judge(&rules, &intent, Path::new("/w"));
        assert_eq!(judged(command("git status --short")), HarnessPolicy::Allow);
        assert_eq!(judged(command("git stat")), HarnessPolicy::Ask, "words are whole");
        assert_eq!(judged(command("cargo test; rm -rf /")), HarnessPolicy::Deny, "any command of a line is denied");
        assert_eq!(judged(command("cargo test > /w/x")), HarnessPolicy::Ask, "a shell does more than its first command");
        assert_eq!(judged(command("cargo $(rm -rf /)")), HarnessPolicy::Deny);
        assert_eq!(judged(command("/bin/bash -lc 'rm -rf /'")), HarnessPolicy::Deny, "a command in a shell is the command");
        assert_eq!(judged(command("/bin/bash -lc 'cargo test'")), HarnessPolicy::Allow);
        assert_eq!(judged(command("/bin/bash -lc 'cargo test' x")), HarnessPolicy::Ask, "a shell with more than one command");
        assert_eq!(judged(command("/bin/bash -lc 'cargo test > /w/x'")), HarnessPolicy::Ask);
        assert_eq!(judged(edit(&["/w/src/a.rs", "src/b.rs"])), HarnessPolicy::Allow);
        assert_eq!(judged(edit(&["/w/src/a.rs", "/w/b.rs"])), HarnessPolicy::Ask);
        assert_eq!(judged(edit(&["/w/src/../b.rs"])), HarnessPolicy::Ask);
        assert_eq!(judged(edit(&["/w/src/../.git/config"])), HarnessPolicy::Deny);
        assert_eq!(judged(edit(&["src/a.rs", "/etc/passwd"])), HarnessPolicy::Deny);
        assert_eq!(judged(edit(&[])), HarnessPolicy::Ask, "an edit that does not say where");
    }

    #[test]
    fn a_verdict_is_said_in_the_agents_words() {
        let all: Vec<PermissionOption> = ["reject_once", "allow_always", "allow_once"]
            .map(|kind| PermissionOption { option_id: format!("id-{kind}"), name: String::new(), kind: kind.into() })
            .into();
        assert_eq!(option(&all, Verdict::Granted).unwrap().option_id, "id-allow_once");
        assert_eq!(option(&all, Verdict::Refused).unwrap().option_id, "id-reject_once");
        assert!(option(&[], Verdict::Refused).is_none());
    }
}
