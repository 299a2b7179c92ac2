//! Actions of a run, shown to the person at the terminal of `agent-host run`.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal},
};

use agent_host_facts::record::Decision;
use agent_host_protocol::{ResultKind, RunEvent};
use agent_host_runs::Response;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{action_text, run_host::RunHost};
use crate::{failure, output::Output, text};

/// Asks one thing after the other.
pub(super) struct ActionDesk<'a> {
    host: RunHost<'a>,
    output: Output,
    /// `None` if no person can answer: standard input is no terminal or has ended, or the output is for programs.
    person: Option<Person>,
    /// The open actions. The first is on the screen.
    open: VecDeque<OpenAction>,
}

/// A person at a terminal.
enum Person {
    /// No question was shown yet, so no input is read.
    Silent,
    Typing(mpsc::Receiver<String>),
}

impl<'a> ActionDesk<'a> {
    pub(super) fn new(host: RunHost<'a>, output: Output) -> Self {
        let person = (!output.is_json() && io::stdin().is_terminal()).then_some(Person::Silent);
        Self { host, output, person, open: VecDeque::new() }
    }

    /// Takes note of an event of the run.
    pub(super) fn on_event(&mut self, event: &RunEvent) {
        let kind = ResultKind::from_name(&event.kind);
        match kind {
            Some(ResultKind::ActionRequested) => {
                let Some(action) = OpenAction::of(&event.data_value()) else { return };
                if self.person.is_none() {
                    return self.output.remark(&action.to_nobody());
                }
                self.open.push_back(action);
                if self.open.len() == 1 {
                    self.ask();
                }
            }
            Some(ResultKind::ActionAnswered | ResultKind::ActionResolved) => {
                let data = event.data_value();
                let Some(place) = self.open.iter().position(|action| text::member(&data, "/action_id") == action.id.as_str())
                else {
                    return;
                };
                self.open.remove(place);
                if place == 0 {
                    self.output.remark("the question was answered by another client, or has expired");
                    self.ask();
                }
            }
            _ => {}
        }
    }

    /// Shows what is to be answered next.
    fn ask(&mut self) {
        let Some(action) = self.open.front() else { return };
        self.output.remark(&action.to_person());
        if let Some(person @ Person::Silent) = &mut self.person {
            let (send, lines) = mpsc::channel(1);
            // The thread waits for the terminal until the process ends, and blocks no other work.
            std::thread::spawn(move || {
                for line in io::stdin().lines().map_while(Result::ok) {
                    if send.blocking_send(line).is_err() {
                        break;
                    }
                }
            });
            *person = Person::Typing(lines);
        }
    }

    /// Waits for the next line that is an answer to something; for ever where nothing is asked. Safe to be dropped.
    pub(super) async fn line(&mut self) -> Option<String> {
        match &mut self.person {
            Some(Person::Typing(lines)) if !self.open.is_empty() => lines.recv().await,
            _ => std::future::pending().await,
        }
    }

    /// Takes a line as the answer to what is on the screen.
    pub(super) async fn on_line(&mut self, line: Option<String>) {
        let Some(line) = line else {
            self.person = None;
            return self.open.drain(..).for_each(|action| self.output.remark(&action.to_nobody()));
        };
        let Some(action) = self.open.front() else { return };
        let response = match action.response(&line) {
            Ok(response) => response,
            Err(problem) => return self.output.remark(problem),
        };
        if let Err(error) = self.host.respond(&action.id, response).await {
            self.output.remark(&failure::message(&error));
            // The same is asked again.
            if failure::code(&error) == "invalid_argument" {
                return;
            }
        }
        self.open.pop_front();
        self.ask();
    }
}

/// Something that a person is to answer.
struct OpenAction {
    id: String,
    request: Value,
    wants: Wants,
}

/// The kind of answer that an action accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    /// Yes or no, each of which means this.
    YesOrNo(Decision, Decision),
    /// Words or JSON.
    Words,
}

impl OpenAction {
    /// Parses the data of `action.requested`. `None` if the action is executed without asking.
    fn of(request: &Value) -> Option<Self> {
        if text::member(request, "/policy") == "allow" {
            return None;
        }
        let wants = match (text::member(request, "/kind").as_str(), text::member(request, "/question").as_str()) {
            (Some("platform_action"), _) => Wants::YesOrNo(Decision::Approve, Decision::Deny),
            (Some("question"), Some("confirmation")) => Wants::YesOrNo(Decision::Submit, Decision::Decline),
            (Some("question"), _) => Wants::Words,
            _ => Wants::YesOrNo(Decision::Repeat, Decision::Skip),
        };
        Some(Self { id: text::member(request, "/action_id").as_str()?.to_owned(), request: request.clone(), wants })
    }

    fn to_person(&self) -> String {
        let particulars = action_text::particulars(&self.request).into_iter();
        let details = text::fields(particulars.filter(|(name, _)| !matches!(*name, "title" | "wants")));
        let details: String = details.lines().map(|line| format!("  {line}\n")).collect();
        let prompt = match self.wants {
            Wants::YesOrNo(Decision::Submit, _) => "yes? [y/N]".to_owned(),
            Wants::YesOrNo(yes, _) => format!("{}? [y/N]", yes.as_str()),
            Wants::Words => "answer, as text or JSON; an empty line declines:".to_owned(),
        };
        format!("the run asks: {}\n{details}{prompt}", action_text::what(&self.request))
    }

    fn to_nobody(&self) -> String {
        format!(
            "the run asks: {}\nno answer is possible without a terminal: the question ends when it expires, or at the deadline of the run (--timeout). Answer questions of runs of `agent-host serve` with `agent-host actions respond`",
            action_text::what(&self.request)
        )
    }

    /// The response that a line means.
    fn response(&self, line: &str) -> Result<Response, &'static str> {
        let line = line.trim();
        let (yes, no) = match self.wants {
            Wants::YesOrNo(yes, no) => (yes, no),
            Wants::Words if line.is_empty() => {
                return Ok(Response { decision: Decision::Decline, reason: None, answer: None });
            }
            Wants::Words => {
                let is_text = text::member(&self.request, "/answer_schema/type") == "string";
                let json = serde_json::from_str(line).ok().filter(|_| !is_text);
                let answer = Some(json.unwrap_or_else(|| line.into()));
                return Ok(Response { decision: Decision::Submit, reason: None, answer });
            }
        };
        let (word, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let decision = match word.to_ascii_lowercase().as_str() {
            "y" | "yes" => yes,
            "" | "n" | "no" => no,
            _ => return Err("y or n, and perhaps why"),
        };
        Ok(Response { decision, reason: Some(reason.trim().to_owned()).filter(|reason| !reason.is_empty()), answer: None })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn open_action(request: &Value) -> OpenAction {
        let mut request = request.clone();
        request["action_id"] = json!("r.1");
        OpenAction::of(&request).unwrap()
    }

    #[test]
    fn a_line_is_an_answer() {
        let action = json!({ "kind": "platform_action", "action": "a", "policy": "ask" });
        let doubt = json!({ "kind": "effect_in_doubt", "action": "effect.repeat" });
        let sure = json!({ "kind": "question", "question": "confirmation", "title": "Sure?" });
        let form = json!({ "kind": "question", "question": "form", "title": "What?" });
        let text = json!({ "kind": "question", "question": "choice", "title": "Who?", "answer_schema": { "type": "string" } });
        for (request, line, decision, reason, answer) in [
            (&action, "y", Decision::Approve, None, None),
            (&action, " YES it is fine ", Decision::Approve, Some("it is fine"), None),
            (&action, "", Decision::Deny, None, None),
            (&action, "no too late", Decision::Deny, Some("too late"), None),
            (&doubt, "y", Decision::Repeat, None, None),
            (&doubt, "n", Decision::Skip, None, None),
            (&sure, "y", Decision::Submit, None, None),
            (&sure, "", Decision::Decline, None, None),
            (&form, "{\"a\":1}", Decision::Submit, None, Some(json!({ "a": 1 }))),
            (&form, "y", Decision::Submit, None, Some(json!("y"))),
            (&form, " ", Decision::Decline, None, None),
            (&text, "42", Decision::Submit, None, Some(json!("42"))),
        ] {
            let expect = Response { decision, reason: reason.map(str::to_owned), answer };
            assert_eq!(open_action(request).response(line), Ok(expect), "{line:?} to {request}");
        }
        assert!(open_action(&action).response("maybe").is_err());
    }

    #[test]
    fn an_allowed_action_asks_no_person() {
        assert!(OpenAction::of(&json!({ "kind": "platform_action", "action_id": "r.1", "policy": "allow" })).is_none());
    }

    #[test]
    fn a_person_sees_what_is_decided() {
        let action = json!({ "kind": "platform_action", "action": "issue.close", "target": { "n": 4 }, "payload": "bye" });
        insta::assert_snapshot!(open_action(&action).to_person(), @r#"
        the run asks: issue.close {"n":4}
          action   issue.close
          target   {"n":4}
          payload  bye
        approve? [y/N]
        "#);
        let question = json!({ "kind": "question", "question": "choice", "title": "Which?", "description": "One of them." });
        insta::assert_snapshot!(open_action(&question).to_person(), @r"
        the run asks: Which?
          description  One of them.
        answer, as text or JSON; an empty line declines:
        ");
    }
}
