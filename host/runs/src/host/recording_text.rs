//! The text of a recording, read from a ledger a piece at a time: a recording of any run takes bounded memory.

use std::collections::{BTreeSet, VecDeque};

use agent_host_ledger::{BlobReader, Ledger, RunRecord};
use agent_host_protocol::{RunId, hex};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::record::RecordingError;

/// The version of the form of a recording.
pub(super) const FORMAT: u32 = 1;

/// Events that are read at a time.
const EVENTS: usize = 64;
/// Bytes of a journal that are read at a time.
const JOURNAL_BYTES: usize = 256 << 10;
/// Bytes of a blob that are read at a time. Base64 of so many has no padding, so pieces of it are one text.
const BLOB_BYTES: usize = 3 << 16;

/// A piece of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordedSegment {
    /// Number of its first entry.
    pub first: u64,
    /// The entries, as Base64.
    pub entries: String,
}

/// Content that is too long for the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordedBlob {
    /// SHA-256 of the blob, in lower-case hexadecimal.
    pub sha256: String,
    /// The content, as Base64.
    pub content: String,
}

/// The JSON text of a recording, in pieces. Each piece is read when it is asked for.
pub struct RecordingText {
    ledger: Ledger,
    record: RunRecord,
    stage: Stage,
    /// Digests of blobs that were named.
    named: BTreeSet<String>,
    /// Digests of blobs whose content is not in the text yet.
    blobs: VecDeque<String>,
    has_blob: bool,
}

/// The next piece.
enum Stage {
    /// Event, terms and context.
    Beginning([Box<RawValue>; 3]),
    /// Events after this one.
    Events(u64),
    /// Segments of the journal from this number on.
    Journal(u64),
    Blobs,
    /// The blob, from this byte on.
    Blob(BlobReader, u64),
    Done,
}

impl RecordingText {
    /// Opens the recording of a run.
    ///
    /// # Errors
    /// [`RecordingError::NotFound`], [`RecordingError::NoJournal`], or that the ledger cannot be read.
    pub fn open(ledger: &Ledger, id: RunId) -> Result<Self, RecordingError> {
        let record = ledger.run(id)?.ok_or(RecordingError::NotFound(id))?;
        let event = ledger.event_json(record.run.event_id)?.ok_or(RecordingError::NotFound(id))?;
        let (Some(terms), Some(context)) = (ledger.terms(id)?, ledger.context(id)?) else {
            return Err(RecordingError::NoJournal(id));
        };
        if ledger.journal_page(record.run_no, 0, 1)?.is_empty() {
            return Err(RecordingError::NoJournal(id));
        }
        let stage = Stage::Beginning([event, terms, context]);
        Ok(Self { ledger: ledger.clone(), record, stage, named: BTreeSet::new(), blobs: VecDeque::new(), has_blob: false })
    }

    /// The next piece; `None` behind the last.
    fn piece(&mut self) -> Result<Option<String>, RecordingError> {
        let mut piece = String::new();
        let RunRecord { run_no, run } = &self.record;
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Beginning([event, terms, context]) => {
                let run = text(&**run)?;
                piece = format!(
                    "{{\"format\":{FORMAT},\"run\":{run},\"event\":{event},\"terms\":{terms},\"context\":{context},\"events\":["
                );
                Stage::Events(0)
            }
            Stage::Events(after) => {
                let mut events = self.ledger.run_events_after(*run_no, run.run_id, after, EVENTS)?;
                // Those that the run had when it was read.
                events.retain(|event| event.sequence <= run.last_sequence);
                for event in &events {
                    push(&mut piece, event.sequence == 1, event)?;
                }
                match events.last() {
                    Some(last) => Stage::Events(last.sequence),
                    None => {
                        piece.push_str("],\"journal\":[");
                        Stage::Journal(0)
                    }
                }
            }
            Stage::Journal(from) => {
                let rows = self.ledger.journal_page(*run_no, from, JOURNAL_BYTES)?;
                let next = rows.last().map(|last| last.first + 1);
                for (place, row) in rows.into_iter().enumerate() {
                    let segment = RecordedSegment { first: row.first, entries: STANDARD.encode(&row.bytes) };
                    push(&mut piece, from == 0 && place == 0, &segment)?;
                    for digest in row.blobs {
                        let sha256 = hex::encode(&digest);
                        if self.named.insert(sha256.clone()) {
                            self.blobs.push_back(sha256);
                        }
                    }
                }
                match next {
                    Some(next) => Stage::Journal(next),
                    None => {
                        piece.push_str("],\"blobs\":[");
                        Stage::Blobs
                    }
                }
            }
            Stage::Blobs => match self.blobs.pop_front() {
                Some(sha256) => match self.ledger.blob(&sha256)? {
                    Some(blob) => {
                        let comma = if std::mem::replace(&mut self.has_blob, true) { "," } else { "" };
                        piece = format!("{comma}{{\"sha256\":\"{sha256}\",\"content\":\"");
                        Stage::Blob(blob, 0)
                    }
                    None => Stage::Blobs,
                },
                None => {
                    piece.push_str("]}");
                    Stage::Done
                }
            },
            Stage::Blob(blob, offset) => {
                let bytes = blob.read_at(offset, BLOB_BYTES)?;
                STANDARD.encode_string(&bytes, &mut piece);
                if bytes.len() < BLOB_BYTES {
                    piece.push_str("\"}");
                    Stage::Blobs
                } else {
                    Stage::Blob(blob, offset + bytes.len() as u64)
                }
            }
            Stage::Done => return Ok(None),
        };
        Ok(Some(piece))
    }
}

impl Iterator for RecordingText {
    type Item = Result<String, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.piece() {
                Ok(Some(piece)) if piece.is_empty() => {}
                Ok(piece) => return piece.map(Ok),
                // The stage is the last one now: the text ends in the middle.
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Adds an element of an array.
fn push(piece: &mut String, is_first: bool, element: &impl Serialize) -> Result<(), RecordingError> {
    if !is_first {
        piece.push(',');
    }
    piece.push_str(&text(element)?);
    Ok(())
}

fn text(value: &impl Serialize) -> Result<String, RecordingError> {
    serde_json::to_string(value).map_err(|error| RecordingError::Malformed(error.to_string()))
}
