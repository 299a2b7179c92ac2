//! A run with all that is needed to execute it again, anywhere: its context, its journal and what that refers to, and what
//! it said. A file of it beside the source of a runner is a regression test.

use std::{path::Path, sync::Arc};

use agent_host_ledger::{Accept, JournalSegment, Ledger, NewRun, Options, RunWrite};
use agent_host_protocol::{Event, Run, RunEvent, RunId, RunStatus};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

use super::recording_text::{FORMAT, RecordedBlob, RecordedSegment, RecordingText};
use crate::{
    execution::writer::RunWriter,
    record::{
        RecordingError,
        journal::timeline::{self, JournaledCall},
    },
};

/// A run as it can be executed again.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// 1.
    pub format: u32,
    /// The record of the run.
    pub run: Run,
    /// The event that it answers.
    pub event: Event,
    /// The terms of the run: its grant and configuration.
    #[schema(value_type = Value)]
    pub terms: Box<RawValue>,
    /// The context that the runner received.
    #[schema(value_type = Value)]
    pub context: Box<RawValue>,
    /// The events of the run: results of the runner and facts of the host.
    pub events: Vec<RunEvent>,
    /// The host calls of the run.
    pub journal: Vec<RecordedSegment>,
    /// The blobs that the journal refers to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blobs: Vec<RecordedBlob>,
}

impl Recording {
    /// Reads a run from a ledger.
    ///
    /// # Errors
    /// [`RecordingError::NotFound`], [`RecordingError::NoJournal`], or that the ledger cannot be read.
    pub fn read(ledger: &Ledger, id: RunId) -> Result<Self, RecordingError> {
        let text: String = RecordingText::open(ledger, id)?.collect::<Result<_, _>>()?;
        Self::parse(&text)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`RecordingError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, RecordingError> {
        let recording: Self = serde_json::from_str(text).map_err(|error| RecordingError::Malformed(error.to_string()))?;
        if recording.format != FORMAT {
            return Err(RecordingError::Malformed(format!("its format is {}, not {FORMAT}", recording.format)));
        }
        Ok(recording)
    }

    /// `sha256:HEX` of the component that the run was of.
    #[must_use]
    pub fn component(&self) -> Option<String> {
        let terms: Value = serde_json::from_str(self.terms.get()).ok()?;
        Some(terms.get("grant")?.get("component")?.as_str()?.to_owned())
    }

    /// The host calls of the run, in order.
    ///
    /// # Errors
    /// [`RecordingError::Malformed`].
    pub fn calls(&self) -> Result<Vec<JournaledCall>, RecordingError> {
        let mut segments = Vec::with_capacity(self.journal.len());
        for segment in &self.journal {
            segments.push(decoded(&segment.entries)?);
        }
        timeline::of(segments.iter().map(Vec::as_slice)).map_err(|error| RecordingError::Malformed(error.to_string()))
    }

    /// Puts it into an empty ledger in `dir`, as a run that was interrupted; gives the ledger and the number of the run.
    pub(crate) async fn unpack(&self, dir: &Path) -> Result<(Ledger, u64), RecordingError> {
        // The ledger holds one run for a short time: the files that a serving host preallocates would take longer to make
        // than to use.
        let options = Options { checkpoint_wal_bytes: 1 << 20, cache_bytes: 4 << 20, ..Options::new(dir.join("ledger")) };
        let failed = |error: &dyn std::fmt::Display| {
            RecordingError::Ledger(agent_host_ledger::LedgerError::Unavailable(error.to_string().into()))
        };
        let ledger = tokio::task::spawn_blocking(move || options.open()).await.map_err(|error| failed(&error))?;
        let ledger = ledger.map_err(|error| failed(&error))?;
        let run = Run {
            turn: None,
            status: RunStatus::Created,
            status_reason: None,
            failure: None,
            finished_at: None,
            cancel_requested_at: None,
            cancel_reason: None,
            last_sequence: 0,
            ..self.run.clone()
        };
        let accept = Accept {
            event: Arc::new(self.event.clone()),
            idempotency: None,
            runs: vec![NewRun { run, terms: self.terms.clone().into(), events: Vec::new() }],
            history: Vec::new(),
            transcript: None,
            artifacts: Vec::new(),
            refers_to: Vec::new(),
            entries: Vec::new(),
            state: Vec::new(),
            branch: None,
        };
        ledger.accept(accept).await?;
        let run_no = ledger.run(self.run.run_id)?.ok_or(RecordingError::NotFound(self.run.run_id))?.run_no;
        let mut blobs = Vec::with_capacity(self.blobs.len());
        for blob in &self.blobs {
            let content = decoded(&blob.content)?;
            let mut writer = ledger.blob_writer(content.len() as u64)?;
            writer.write(&content)?;
            let written = writer.finish()?;
            if written.sha256 != blob.sha256 {
                return Err(RecordingError::Malformed(format!("blob {} has another content", blob.sha256)));
            }
            blobs.push(written);
        }
        // All of them in as few commits as can be.
        let writer = RunWriter::new(&ledger, self.run.run_id, run_no);
        let mut commits = Vec::with_capacity(self.journal.len());
        for segment in &self.journal {
            let bytes = decoded(&segment.entries)?;
            let segment = JournalSegment { first: segment.first, bytes, blobs: std::mem::take(&mut blobs) };
            commits.push(writer.append(RunWrite { journal: Some(segment), ..RunWrite::default() }).await?);
        }
        for commit in commits {
            commit.await?;
        }
        Ok((ledger, run_no))
    }
}

fn decoded(text: &str) -> Result<Vec<u8>, RecordingError> {
    STANDARD.decode(text).map_err(|error| RecordingError::Malformed(error.to_string()))
}

/// The host calls of a run, as a ledger has them: those after call `after`, at most `limit`.
///
/// # Errors
/// Fails if the run does not exist, has no journal, or cannot be read.
pub fn journaled_calls(ledger: &Ledger, id: RunId, after: u64, limit: u64) -> Result<Vec<JournaledCall>, RecordingError> {
    let record = ledger.run(id)?.ok_or(RecordingError::NotFound(id))?;
    let calls = timeline::timeline(ledger, record.run_no, after, limit);
    let calls = calls.map_err(|stop| RecordingError::Malformed(stop.failure().message))?;
    calls.ok_or(RecordingError::NoJournal(id))
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::{Limits, hex};
    use agent_host_sandbox::{GuestClock, World};
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::record::journal::{EarlierJournal, Journal, Mode, Outcome, RequestDigest, Step};

    const CALLS: usize = 600;

    fn text(call: usize) -> String {
        format!("\"{call}{}\"", "x".repeat(4_000))
    }

    #[tokio::test]
    async fn a_journal_of_several_pages_answers_in_its_order() {
        let mut recording = Recording::parse(include_str!("../../../../tests/golden/1/probe.json")).unwrap();
        let limits = Limits { journal_bytes: 1 << 30, ..Limits::default() };
        let world = World::new(&limits, GuestClock::new(1_000_000), [7; 32]);
        let before = Journal::begin(Mode::Recording, &world, &limits);
        let mut segments = Vec::new();
        for call in 0..CALLS {
            let Ok(Step::Live(ticket)) = before.enter("state.get", RequestDigest::of(&call)) else { panic!("there is no past") };
            before.settle(ticket, Outcome::Answer(text(call)), Vec::new());
            if call % 40 == 0 || call == CALLS - 1 {
                segments.extend(before.take().split().0);
            }
        }
        let bytes: usize = segments.iter().map(|segment| segment.bytes.len()).sum();
        assert!(bytes > 2 << 20, "{bytes} bytes are not several pages");
        let stored =
            |segment: &JournalSegment| RecordedSegment { first: segment.first, entries: STANDARD.encode(&segment.bytes) };
        recording.journal = segments.iter().map(stored).collect();
        let content = vec![b'x'; 700_000];
        let sha256 = hex::encode(&Sha256::digest(&content));
        recording.blobs = vec![RecordedBlob { sha256, content: STANDARD.encode(&content) }];
        let dir = tempfile::tempdir().unwrap();
        let (ledger, run_no) = recording.unpack(dir.path()).await.unwrap();

        let recorded = EarlierJournal::read(&ledger, run_no, &limits).unwrap().unwrap();
        assert!(recorded.is_whole && recorded.without_progress == 0);
        let after = Journal::resume(Mode::Recording, recorded, &limits);
        for call in 0..CALLS {
            let Ok(Step::Answered(answered)) = after.enter("state.get", RequestDigest::of(&call)) else {
                panic!("call {call} has no answer")
            };
            assert_eq!(answered.outcome, Outcome::Answer(text(call)), "call {call}");
        }
        assert!(matches!(after.enter("state.get", RequestDigest::of(&CALLS)), Ok(Step::Live(_))));

        let context = RunWrite { context: Some(recording.context.clone().into()), ..RunWrite::default() };
        let id = recording.run.run_id;
        RunWriter::new(&ledger, id, run_no).commit(context).await.unwrap();
        let pieces: Vec<_> = RecordingText::open(&ledger, id).unwrap().collect::<Result<_, _>>().unwrap();
        let longest = pieces.iter().map(String::len).max().unwrap();
        assert!(longest < 1 << 20, "a piece of {longest} bytes");
        let read = Recording::read(&ledger, id).unwrap();
        assert_eq!((&read.journal, &read.blobs), (&recording.journal, &recording.blobs));
        assert_eq!(read.context.get(), recording.context.get());
    }
}
