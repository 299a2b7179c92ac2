//! Native events of other frameworks as results of a run: those that an executor appends to its claim, and their translation.
//!
//! An append keeps its raw events as an artifact, and the result `import.events` in front of the results names it. So the
//! state of the translation follows from the ledger: after a restart of the host, the raw events of the claim are translated again.

use std::sync::Arc;

use agent_host_facts::import::{
    self, Form, Translator,
    fit::{Bounds, fit},
};
use agent_host_ledger::{AppendMark, Ledger, LedgerError, RunChange};
use agent_host_protocol::{
    ApiError, Limits, RunId, RunResult, SentResult,
    import::{EVENTS, RawEvents},
};
use agent_host_sandbox::Batch;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::{Runs, appended::AppendedResults, claims::AppendOutcome};
use crate::{
    calls::{RunArtifacts, RunCalls},
    execution::blocking,
    record::HostError,
};

/// The results of native events as they can be written. Large content becomes artifacts of the run.
pub(super) async fn written(
    artifacts: &RunArtifacts,
    limits: &Limits,
    results: Vec<RunResult>,
) -> Result<Vec<SentResult>, ApiError> {
    let bounds = Bounds {
        result_bytes: limits.result_bytes,
        tool_output_chars: limits.tool_output_chars,
        preview_chars: limits.tool_preview_chars,
    };
    let mut sent = Vec::with_capacity(results.len() + 1);
    for result in results {
        sent.push(as_sent(&match fit(result, bounds) {
            Ok(result) => result,
            Err(large) => {
                let artifact = artifacts.keep(large.bytes(), large.media_type(), Some(large.name()), IMPORT).await?;
                large.with(artifact)
            }
        })?);
    }
    Ok(sent)
}

/// The source of the artifacts.
pub(super) const IMPORT: &str = "import";
/// Media type of native events, one a line.
pub(crate) const NATIVE_LINES: &str = "application/x-ndjson";

fn as_sent(result: &RunResult) -> Result<SentResult, ApiError> {
    let data = result.data().map_err(|error| ApiError::invalid_argument(error.to_string()))?;
    let data = serde_json::value::RawValue::from_string(data.get().to_owned());
    Ok(SentResult {
        kind: result.kind().into_owned(),
        data: data.map_err(|error| ApiError::invalid_argument(error.to_string()))?,
        run_id: None,
        sequence: None,
        timestamp: None,
        metadata: None,
    })
}

/// Native events of one append, numbered and parsed.
struct Portion<'a> {
    events: Vec<&'a str>,
    values: Vec<Value>,
    hashes: Vec<u64>,
}

impl<'a> Portion<'a> {
    fn read(text: &'a str, first: u64) -> Result<Self, HostError> {
        let invalid = |error: import::NativeError| HostError::Invalid(error.to_string());
        let events = import::events(text, first).map_err(invalid)?;
        let values: Vec<Value> = (first..)
            .zip(&events)
            .map(|(number, event)| import::lines::parse(event, number))
            .collect::<Result<_, _>>()
            .map_err(invalid)?;
        let hashes = values.iter().map(hash).collect();
        Ok(Self { events, values, hashes })
    }
}

/// The hash of a native event, however it is written. Nothing stores it.
fn hash(event: &Value) -> u64 {
    xxh3_64(event.to_string().as_bytes())
}

impl Runs {
    /// Appends native events to a claimed run, as results ([`crate::Host::append_native`]). All of them are written in one commit.
    pub(crate) async fn append_native(
        &self,
        run_id: RunId,
        token: &str,
        form: Form,
        first: Option<u64>,
        text: &str,
    ) -> Result<AppendOutcome, HostError> {
        let handle = self.claim_handle(run_id, token)?;
        let mut calls = handle.calls()?;
        let mut appended = handle.appended.lock().await;
        let run = Arc::clone(&calls.run);
        appended.recall(&self.ledger, run.run_no, run_id, run.writer.last_sequence())?;
        appended.check_form(Some(form))?;
        let first = first.unwrap_or(appended.last() + 1);
        if first == 0 {
            return Err(HostError::Invalid("`first` counts from 1".to_owned()));
        }
        appended.check_gap(first)?;
        let Portion { events, values, hashes } = Portion::read(text, first)?;
        let through = first.saturating_add(events.len() as u64 - 1);
        let known = usize::try_from(appended.last() + 1 - first).unwrap_or(usize::MAX).min(events.len());
        // A copy: an append that is refused leaves the translation as it was.
        let mut translator = match appended.translator(form).cloned() {
            Some(translator) => translator,
            None => {
                let translator = self.translator(&calls, form, handle.claim, &mut appended).await?;
                appended.keep_translator(translator.clone());
                translator
            }
        };
        let (repeated, new) = hashes.split_at(known);
        let answer = |appended: u64, replayed, translator: &Translator| AppendOutcome {
            appended,
            last_sequence: run.writer.last_sequence(),
            replayed,
            end: translator.end().cloned(),
        };
        if let Some(number) = appended.differs(first, repeated) {
            return Err(HostError::ResultConflict { number });
        }
        if new.is_empty() {
            return Ok(answer(appended.last(), true, &translator));
        }
        let results = values.iter().skip(known).flat_map(|event| translator.push(event)).collect();
        let raw = RawParts { form, first: first + known as u64, events: events.get(known..).unwrap_or_default() };
        let work = async {
            let artifacts = calls.artifacts();
            let mut sent = vec![raw.keep(&artifacts).await?];
            sent.extend(written(&artifacts, &run.limits, results).await?);
            // Found again by the mark of its first result.
            let mark = AppendMark { claim: handle.claim, number: through, hash: 0 };
            let written = calls.emit_imported(Batch::sent(sent), vec![RunChange::Append { through }], &[mark]).await?;
            written.durable().await
        };
        handle.scope.call(work).await?.map_err(HostError::Refused)?;
        let answer = answer(through, false, &translator);
        appended.add_native(through, new, translator);
        Ok(answer)
    }

    /// The translation as the events that the host has of the claim leave it. The hashes of the last of them are put into `appended`.
    async fn translator(
        &self,
        calls: &RunCalls,
        form: Form,
        claim: u32,
        appended: &mut AppendedResults,
    ) -> Result<Translator, HostError> {
        let mut translator = Translator::new(form);
        appended.forget_hashes();
        if appended.last() == 0 {
            return Ok(translator);
        }
        let run = &calls.run;
        for part in raw_events(&self.ledger, run.run_no, run.run_id, claim)? {
            let bytes = calls.artifacts().whole(&part.artifact_id).await.map_err(HostError::Refused)?;
            let text = String::from_utf8(bytes).map_err(|error| HostError::Internal(error.to_string()))?;
            let mut hashes = Vec::new();
            for (number, event) in (part.first..).zip(text.lines()) {
                let value = import::lines::parse(event, number).map_err(|error| HostError::Internal(error.to_string()))?;
                translator.push(&value);
                hashes.push(hash(&value));
            }
            appended.note_hashes(&hashes);
        }
        Ok(translator)
    }
}

/// The native events that were appended to a claim before, in order.
fn raw_events(ledger: &Ledger, run_no: u64, run_id: RunId, claim: u32) -> Result<Vec<RawEvents>, LedgerError> {
    let appended = ledger.appended_results(run_no, run_id, claim, 0)?;
    let events = appended.into_iter().filter(|(_, event)| event.kind == EVENTS);
    Ok(events.filter_map(|(_, event)| serde_json::from_str(event.data.get()).ok()).collect())
}

/// The raw events of an append.
struct RawParts<'a> {
    form: Form,
    first: u64,
    events: &'a [&'a str],
}

impl RawParts<'_> {
    /// Keeps them as an artifact; gives the result that names it.
    async fn keep(&self, artifacts: &RunArtifacts) -> Result<SentResult, ApiError> {
        let Self { form, first, events } = self;
        // An event of an array may have line breaks between its members.
        let lines: String = events.iter().map(|event| event.replace(['\n', '\r'], " ") + "\n").collect();
        let count = events.len() as u64;
        let name = format!("{}.{first}-{}.jsonl", form.as_str(), first + count - 1);
        let artifact_id = artifacts.keep(lines.into_bytes(), NATIVE_LINES, Some(name), IMPORT).await?.artifact_id;
        let raw = RawEvents { form: *form, first: *first, count, artifact_id };
        let data = serde_json::to_value(raw).map_err(|error| ApiError::invalid_argument(error.to_string()))?;
        as_sent(&RunResult::Other { kind: EVENTS.to_owned(), data })
    }
}

impl RunArtifacts {
    /// The whole content of an artifact.
    pub(crate) async fn whole(&self, id: &str) -> Result<Vec<u8>, ApiError> {
        let record = self.visible(id)?;
        let (blob, size) = (self.blob(&record)?, usize::try_from(record.size).unwrap_or(usize::MAX));
        blocking(move || blob.read_at(0, size)).await
    }
}
