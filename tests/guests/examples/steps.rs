//! `plugin:test/steps/default` takes the steps that its text names, one after the other, and says after each what came of
//! it: an event `x.step` with `step` and `outcome`. The steps are separated by `;`, their words by spaces:
//!
//! `attempt`, `now`, `say TEXT`, `unfinished TEXT` (a message without its end), `sleep MS` (the standard library), `timer MS`, `until MS` (since 1970), `get KEY`,
//! `set KEY TEXT` (state of the runner), `await KEY` (asks for it until somebody has set it), `load KEY`, `store KEY TEXT` (storage of the plugin), `create`, `write TEXT COUNT`,
//! `fill KEY COUNT` and `weigh KEY` (many bytes of storage), `fill-state KEY COUNT` and `weigh-state KEY`, `finish`, `open`, `read BYTES`, `rest` (the artifact that was finished last, or came with the event), `fail`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_host_sdk::contract::agent_host::runner::{artifacts, results, state, storage};
use agent_host_sdk::contract::{CustomResult, RunResult};
use agent_host_sdk::serde_json::{Value, json};
use agent_host_sdk::{
    ApiError, ArtifactOperation, Capabilities, Completion, Context, Failure, Manifest, Runner, StateScope, StorageArea, timers,
};

struct Steps;

impl Runner for Steps {
    fn manifest() -> Manifest {
        Manifest::new("test", "steps")
            .label("en", "Steps")
            .capabilities(Capabilities { streaming: true, ..Capabilities::default() })
            .state([StateScope::Runner])
            .storage([StorageArea::Plugin])
            .artifacts([ArtifactOperation::Metadata, ArtifactOperation::Read, ArtifactOperation::Create])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let mut held = OpenResources {
            artifact: ctx.attachments().first().map(|given| given.artifact_id.clone()),
            ..OpenResources::default()
        };
        let mut outcomes = Vec::new();
        for step in ctx.text().split(';').map(str::trim) {
            let outcome = held.take(&ctx, step)?;
            let data = json!({ "step": step, "outcome": outcome }).to_string();
            results::emit(&[RunResult::Other(CustomResult { type_: "x.step".to_owned(), data })]).map_err(ApiError::from)?;
            outcomes.push(outcome);
        }
        ctx.reply(&Value::from(outcomes).to_string())?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Steps);

/// The open resources between two steps.
#[derive(Default)]
struct OpenResources {
    writer: Option<artifacts::Writer>,
    reader: Option<artifacts::Reader>,
    artifact: Option<String>,
}

impl OpenResources {
    fn take(&mut self, ctx: &Context, step: &str) -> Result<Value, Failure> {
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        let two = || rest.split_once(' ').ok_or_else(|| usage(step));
        Ok(match word {
            "attempt" => ctx.contract().runtime.attempt.into(),
            "now" => SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis().to_string().into(),
            "say" => {
                ctx.reply(rest)?;
                rest.into()
            }
            "unfinished" => {
                let mut out = ctx.message();
                out.write(rest)?;
                Value::Null
            }
            "sleep" => {
                std::thread::sleep(Duration::from_millis(rest.parse()?));
                Value::Null
            }
            "timer" => {
                timers::sleep(rest.parse()?)?;
                Value::Null
            }
            "until" => {
                timers::sleep_until(rest.parse()?)?;
                Value::Null
            }
            "get" => state::get(StateScope::Runner, rest).map_err(ApiError::from)?.into(),
            "set" => {
                let (key, text) = two()?;
                let set = state::set(StateScope::Runner, key, &json!(text).to_string());
                set.err().map(|error| ApiError::from(error).to_string()).into()
            }
            "await" => {
                while state::get(StateScope::Runner, rest).map_err(ApiError::from)?.is_none() {
                    timers::sleep(50)?;
                }
                Value::Null
            }
            "load" => {
                let bytes = storage::get(StorageArea::Plugin, rest).map_err(ApiError::from)?;
                bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).into()
            }
            "store" => {
                let (key, text) = two()?;
                storage::set(StorageArea::Plugin, key, text.as_bytes()).map_err(ApiError::from)?;
                Value::Null
            }
            "fill" => {
                let (key, count) = two()?;
                storage::set(StorageArea::Plugin, key, &many(key, count.parse()?)).map_err(ApiError::from)?;
                Value::Null
            }
            "weigh" => summed(&storage::get(StorageArea::Plugin, rest).map_err(ApiError::from)?.unwrap_or_default()),
            "fill-state" => {
                let (key, count) = two()?;
                let text = String::from_utf8_lossy(&many(key, count.parse()?)).into_owned();
                let set = state::set(StateScope::Runner, key, &json!(text).to_string());
                set.err().map(|error| ApiError::from(error).to_string()).into()
            }
            "weigh-state" => summed(state::get(StateScope::Runner, rest).map_err(ApiError::from)?.unwrap_or_default().as_bytes()),
            "create" => {
                self.writer = Some(artifacts::create("text/plain", Some("steps.txt")).map_err(ApiError::from)?);
                Value::Null
            }
            "write" => {
                let (text, count) = two()?;
                let writer = self.writer.as_ref().ok_or_else(|| usage(step))?;
                let written = writer.write(text.repeat(count.parse()?).as_bytes());
                written.err().map(|error| ApiError::from(error).code.as_str().to_owned()).into()
            }
            "finish" => {
                let writer = self.writer.take().ok_or_else(|| usage(step))?;
                let artifact = match artifacts::Writer::finish(writer).map_err(ApiError::from) {
                    Ok(artifact) => artifact,
                    Err(error) => return Ok(error.to_string().into()),
                };
                self.artifact = Some(artifact.artifact_id.clone());
                json!({ "artifact_id": artifact.artifact_id, "size": artifact.size, "sha256": artifact.sha256 })
            }
            "open" => {
                let artifact = self.artifact.as_ref().ok_or_else(|| usage(step))?;
                self.reader = Some(artifacts::open(artifact).map_err(ApiError::from)?);
                Value::Null
            }
            "read" => {
                let reader = self.reader.as_ref().ok_or_else(|| usage(step))?;
                summed(&reader.read(rest.parse()?).map_err(ApiError::from)?)
            }
            "rest" => {
                let reader = self.reader.as_ref().ok_or_else(|| usage(step))?;
                let mut bytes = Vec::new();
                loop {
                    let more = reader.read(64 * 1024).map_err(ApiError::from)?;
                    if more.is_empty() {
                        break summed(&bytes);
                    }
                    bytes.extend_from_slice(&more);
                }
            }
            "fail" => return Err(Failure::new("steps.failed", "as it was asked to")),
            _ => return Err(usage(step)),
        })
    }
}

/// Bytes that differ with the key.
fn many(key: &str, count: usize) -> Vec<u8> {
    key.bytes().cycle().take(count).collect()
}

/// Bytes in short: how many there are, and their sum.
fn summed(bytes: &[u8]) -> Value {
    json!([bytes.len(), bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()])
}

fn usage(step: &str) -> Failure {
    Failure::new("usage", format!("there is no step `{step}`, or not now"))
}
