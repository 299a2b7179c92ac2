//! `plugin:test/asks/default` asks people and platforms for what its text names, one step after the other, and says after
//! each what came of it: an event `x.step` with `step` and `outcome`, and all outcomes in its reply. The steps are separated
//! by `;;` (JSON has `;`), their words by one space, so JSON is written without:
//!
//! `act ACTION TARGET PAYLOAD`, `emit-act ACTION TARGET PAYLOAD [ACTION TARGET PAYLOAD ...]` (one batch, not waited for),
//! `ask KIND EXPIRES_MS TITLE [SCHEMA]` (`-` for no expiry; from now; `_` in the title is nothing), `say TEXT`, `sleep MS`, `attempt`, `stream` (opens a
//! response of the first model and keeps it open), `drain` (reads it to its end), `claim` (facts that only a runner knows), `fail`.

use std::time::{SystemTime, UNIX_EPOCH};

use agent_host_sdk::contract::agent_host::runner::{interactions, models, platform, results};
use agent_host_sdk::contract::{ActionRequest, CustomResult, RunResult};
use agent_host_sdk::serde_json::{Value, from_str, json};
use agent_host_sdk::{
    ApiError, Capabilities, Chunk, Completion, Context, Failure, Manifest, ModelOperation, ModelRequest, Runner, facts, timers,
};

struct Asks;

impl Runner for Asks {
    fn manifest() -> Manifest {
        Manifest::new("test", "asks")
            .label("en", "Asks")
            .capabilities(Capabilities { streaming: true, platform_api: true, ..Capabilities::default() })
            .models([ModelOperation::Stream])
            .platform_actions(["message.send", "message.edit", "issue.close", "report.file"])
            .interactions()
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let mut stream = None;
        let mut outcomes = Vec::new();
        for step in ctx.text().split(";;").map(str::trim) {
            let outcome = take(&ctx, step, &mut stream)?;
            let data = json!({ "step": step, "outcome": outcome }).to_string();
            results::emit(&[RunResult::Other(CustomResult { type_: "x.step".to_owned(), data })]).map_err(ApiError::from)?;
            outcomes.push(outcome);
        }
        ctx.reply(&Value::from(outcomes).to_string())?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Asks);

fn take(ctx: &Context, step: &str, stream: &mut Option<models::ResponseStream>) -> Result<Value, Failure> {
    let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
    let words: Vec<&str> = rest.split(' ').collect();
    Ok(match (word, words.as_slice()) {
        ("claim", _) => {
            let steps = [("read", facts::StepStatus::Completed), ("answer", facts::StepStatus::InProgress)];
            let handoff = facts::Handoff::new("h1", "a person").reason("the sum is too large");
            let claims = [
                facts::plan(&steps),
                facts::progress(1, Some(2)),
                handoff.requested(),
                facts::compacted(12, "They talked."),
                facts::usage(3, 4),
            ];
            results::emit(&claims).map_err(ApiError::from)?;
            Value::from("claimed")
        }
        ("act", [action, target, payload]) => acted(platform::request_action(action, target, payload).map_err(ApiError::from)),
        ("emit-act", asked) if asked.len() % 3 == 0 => {
            let request = |words: &[&str]| match words {
                [action, target, payload] => Some(RunResult::ActionRequested(ActionRequest {
                    action: (*action).to_owned(),
                    target: (*target).to_owned(),
                    payload: (*payload).to_owned(),
                })),
                _ => None,
            };
            let batch: Vec<_> = asked.chunks(3).filter_map(request).collect();
            match results::emit(&batch) {
                Ok(sequence) => json!({ "emitted": sequence }),
                Err(error) => refused(&error.into()),
            }
        }
        ("ask", [kind, expires_ms, title, schema @ ..]) => answered(ask(kind, expires_ms, title, schema.first().copied())?),
        ("say", _) => {
            ctx.reply(rest)?;
            rest.into()
        }
        ("sleep", _) => {
            timers::sleep(rest.parse()?)?;
            Value::Null
        }
        ("attempt", _) => ctx.contract().runtime.attempt.into(),
        ("stream", _) => {
            let request = ModelRequest::new().user("go");
            let opened = models::stream(ctx.default_model()?.id(), request.contract()).map_err(ApiError::from)?;
            *stream = Some(opened);
            Value::Null
        }
        ("drain", _) => {
            let opened = stream.take().ok_or_else(|| usage(step))?;
            let mut text = String::new();
            loop {
                let chunks = opened.next().map_err(ApiError::from)?;
                if chunks.is_empty() {
                    break text.into();
                }
                text.extend(chunks.into_iter().filter_map(|chunk| if let Chunk::Text(text) = chunk { Some(text) } else { None }));
            }
        }
        ("fail", _) => return Err(Failure::new("asks.failed", "as it was asked to")),
        _ => return Err(usage(step)),
    })
}

fn ask(
    kind: &str,
    expires_ms: &str,
    title: &str,
    schema: Option<&str>,
) -> Result<Result<interactions::Answer, ApiError>, Failure> {
    let kind = match kind {
        "confirmation" => interactions::QuestionKind::Confirmation,
        "choice" => interactions::QuestionKind::Choice,
        "form" => interactions::QuestionKind::Form,
        "plan-review" => interactions::QuestionKind::PlanReview,
        _ => return Err(usage(kind)),
    };
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis()).unwrap_or(u64::MAX);
    let expires_at = if expires_ms == "-" { None } else { Some(now.saturating_add(expires_ms.parse()?)) };
    let question = interactions::Question {
        kind,
        title: title.replace('_', ""),
        description: Some("Asked by a test.".to_owned()),
        answer_schema: schema.map(str::to_owned),
        expires_at,
    };
    Ok(interactions::ask(&question).map_err(ApiError::from))
}

fn acted(outcome: Result<platform::ActionOutcome, ApiError>) -> Value {
    match outcome {
        Ok(platform::ActionOutcome::Executed(result)) => json!({ "executed": parsed(&result) }),
        Ok(platform::ActionOutcome::Denied(reason)) => json!({ "denied": reason }),
        Ok(platform::ActionOutcome::Expired) => "expired".into(),
        Err(error) => refused(&error),
    }
}

fn answered(answer: Result<interactions::Answer, ApiError>) -> Value {
    match answer {
        Ok(interactions::Answer::Submitted(answer)) => json!({ "submitted": parsed(&answer) }),
        Ok(interactions::Answer::Declined(reason)) => json!({ "declined": reason }),
        Ok(interactions::Answer::Expired) => "expired".into(),
        Err(error) => refused(&error),
    }
}

fn refused(error: &ApiError) -> Value {
    let details = error.details.as_deref().map(parsed);
    json!({ "error": error.code.as_str(), "message": error.message, "retryable": error.retryable, "details": details })
}

fn parsed(text: &str) -> Value {
    from_str(text).unwrap_or_else(|error| json!({ "malformed": text, "why": error.to_string() }))
}

fn usage(step: &str) -> Failure {
    Failure::new("usage", format!("there is no step `{step}`, or not now"))
}
