//! Runs as people read them.

use agent_host_protocol::{Page, Run, run::ModelUsage, time};
use agent_host_runs::ListedRun;

use super::failure_text;
use crate::{
    styled::{self, StyledText},
    table::Table,
    text,
};

/// Cells of a question or an answer in a table.
const EXCERPT: usize = 32;

/// A page of runs, one row each.
pub(crate) fn table(page: &Page<ListedRun>) -> StyledText {
    let heading = ["RUN", "STATUS", "BINDING", "QUESTION", "ANSWER", "CONVERSATION", "CREATED", "TOOK", "REASON"];
    let mut table = Table::new(heading);
    let excerpt = |text: &Option<String>| text.as_ref().map_or_else(|| "-".to_owned(), |text| text::one_line(text, EXCERPT));
    for ListedRun { run, question, answer } in &page.items {
        table.row([
            run.run_id.to_string(),
            run.status.to_string(),
            run.binding_id.clone(),
            excerpt(question),
            excerpt(answer),
            run.conversation_id.clone().unwrap_or_else(|| "-".to_owned()),
            time::display(run.created_at),
            took(run).unwrap_or_else(|| "-".to_owned()),
            run.status_reason.clone().unwrap_or_default(),
        ]);
    }
    let mut output = table.render();
    if let Some(cursor) = page.next_cursor.as_ref().filter(|_| page.has_more) {
        output.push_str(&format!("more: --cursor {cursor}\n"));
    }
    output
}

/// Use of models, such as `120 in, 30 out in 2 calls, cost 0.0123`.
fn usage_text(usage: &ModelUsage) -> String {
    let ModelUsage { calls, unmeasured_calls, input, output, .. } = usage;
    let mut text = format!("{input} in, {output} out in {calls} calls");
    if *unmeasured_calls > 0 {
        text.push_str(&format!(" ({unmeasured_calls} without a report of the provider)"));
    }
    if let Some(micros) = usage.cost_micros {
        text.push_str(&format!(", cost {}.{:06}", micros / 1_000_000, micros % 1_000_000));
    }
    text
}

fn took(run: &Run) -> Option<String> {
    Some(text::duration_ms(run.finished_at?.saturating_sub(run.started_at?)))
}

/// The texts of a run: the message that it answers, and its last message.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) input: Option<String>,
    pub(crate) output: Option<String>,
}

/// All details of a run, with its texts in full, and the last words of a guest that failed.
pub(crate) fn details(run: &Run, texts: &Texts) -> StyledText {
    let mut fields = vec![
        ("run", run.run_id.to_string()),
        ("status", run.status.to_string()),
        ("runner", format!("{} {}", run.runner_id, run.runner_version)),
        ("binding", run.binding_id.clone()),
        ("event", run.event_id.to_string()),
        ("events", run.last_sequence.to_string()),
        ("created", time::display(run.created_at)),
    ];
    let mut also = |name, value: Option<String>| fields.extend(value.map(|value| (name, text::one_line(&value, 1000))));
    also("started", run.started_at.map(time::display));
    also("finished", run.finished_at.map(time::display));
    also("took", took(run));
    also("deadline", run.deadline_at.filter(|_| !run.status.is_terminal()).map(time::display));
    also("conversation", run.conversation_id.clone());
    also("thread", run.thread_id.clone());
    also("workspace", run.workspace_id.clone());
    also("reason", run.status_reason.clone());
    also("failure", run.failure.as_ref().map(|failure| format!("{}: {}", failure.code, failure.message)));
    also("cancel asked", run.cancel_requested_at.map(time::display));
    also("cancel reason", run.cancel_reason.clone());
    also("tokens", run.usage.map(|usage| usage_text(&usage)));
    also("children", run.children_usage.map(|usage| usage_text(&usage)));
    also("claimed", run.claimed_usage.map(|usage| format!("{} in, {} out, as the runner says", usage.input, usage.output)));
    also("attempt", Some(run.attempt).filter(|attempt| *attempt > 1).map(|attempt| attempt.to_string()));
    also("resumed", Some(run.resumes).filter(|resumes| *resumes > 0).map(times));
    also("forked from", forked_from(run));
    also("parent", run.parent_run_id.map(|id| id.to_string()));
    also("objective", run.metadata.get("objective").and_then(|objective| objective.as_str()).map(str::to_owned));
    let log = run.failure.as_ref().and_then(failure_text::last_words);
    let mut shown = StyledText::from(text::fields(fields));
    for (name, text) in [("input", &texts.input), ("output", &texts.output), ("log", &log)] {
        let Some(text) = text.as_ref().filter(|text| !text.is_empty()) else { continue };
        shown.push_str("\n");
        shown.push(styled::HEADING, name);
        shown.push_str("\n");
        for line in text.lines() {
            shown.push_str(format!("  {line}").trim_end());
            shown.push_str("\n");
        }
    }
    shown
}

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// The run that it shares its first calls with.
fn forked_from(run: &Run) -> Option<String> {
    let of = run.metadata.get("forked_from")?.as_str()?;
    let calls = run.metadata.get("forked_at")?.as_u64()?;
    Some(format!("{of}, after call {calls}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> Run {
        serde_json::from_value(json!({
            "run_id": "01890a5d-ac96-774b-bcce-b302099a8057", "event_id": "01890a5d-ac96-774b-bcce-b302099a8058",
            "binding_id": "main", "runner_id": "plugin:agent-host/echo/default", "runner_version": "0.1.0", "status": "failed",
            "status_reason": "runner.trapped", "failure": { "code": "runner.trapped", "message": "unreachable" }, "attempt": 1,
            "created_at": 1_700_000_000_123_u64, "started_at": 1_700_000_000_200_u64, "finished_at": 1_700_000_002_700_u64,
            "updated_at": 1_700_000_002_700_u64, "last_sequence": 7,
        }))
        .unwrap()
    }

    #[test]
    fn runs_are_a_table() {
        let listed = |question: &str, answer: Option<&str>| ListedRun {
            question: Some(question.to_owned()),
            answer: answer.map(ToOwned::to_owned),
            ..run().into()
        };
        let items = vec![listed("how many sheep are there on the meadow now?", None), listed("你好", Some("three"))];
        let page = Page { items, next_cursor: Some("c1".to_owned()), prev_cursor: None, has_more: true };
        insta::assert_snapshot!(table(&page), @r"
        RUN                                   STATUS  BINDING  QUESTION                           ANSWER  CONVERSATION  CREATED                   TOOK   REASON
        01890a5d-ac96-774b-bcce-b302099a8057  failed  main     how many sheep are there on the …  -       -             2023-11-14T22:13:20.123Z  2.5 s  runner.trapped
        01890a5d-ac96-774b-bcce-b302099a8057  failed  main     你好                               three   -             2023-11-14T22:13:20.123Z  2.5 s  runner.trapped
        more: --cursor c1
        ");
    }

    #[test]
    fn a_run_that_came_back_or_branched_off_says_so() {
        let mut run = run();
        (run.attempt, run.resumes) = (2, 3);
        run.metadata.insert("forked_from".to_owned(), json!("01890a5d-ac96-774b-bcce-b302099a8056"));
        run.metadata.insert("forked_at".to_owned(), json!(4));
        let output = details(&run, &Texts::default()).to_string();
        for line in
            ["attempt      2\n", "resumed      3 times\n", "forked from  01890a5d-ac96-774b-bcce-b302099a8056, after call 4\n"]
        {
            assert!(output.contains(line), "{output}");
        }
    }

    #[test]
    fn a_run_that_another_has_started_says_by_whom_and_why() {
        let mut run = run();
        run.parent_run_id = Some("01890a5d-ac96-774b-bcce-b302099a8056".parse().unwrap());
        run.metadata.insert("objective".to_owned(), json!("count\nsheep"));
        let output = details(&run, &Texts::default()).to_string();
        for line in ["parent     01890a5d-ac96-774b-bcce-b302099a8056\n", "objective  count sheep\n"] {
            assert!(output.contains(line), "{output}");
        }
    }

    #[test]
    fn a_run_is_shown_with_what_it_has() {
        let mut run = run();
        let log = json!({ "log": "thread 't' panicked at src/lib.rs:1:2:\nno key" });
        run.failure.as_mut().unwrap().details = Some(log);
        let texts = Texts { input: Some("hello\nthere".to_owned()), output: Some("你好".to_owned()) };
        insta::assert_snapshot!(details(&run, &texts), @r"
        run       01890a5d-ac96-774b-bcce-b302099a8057
        status    failed
        runner    plugin:agent-host/echo/default 0.1.0
        binding   main
        event     01890a5d-ac96-774b-bcce-b302099a8058
        events    7
        created   2023-11-14T22:13:20.123Z
        started   2023-11-14T22:13:20.200Z
        finished  2023-11-14T22:13:22.700Z
        took      2.5 s
        reason    runner.trapped
        failure   runner.trapped: unreachable

        input
          hello
          there

        output
          你好

        log
          thread 't' panicked at src/lib.rs:1:2:
          no key
        ");
    }
}
