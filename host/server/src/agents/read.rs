//! The body of a request for a run, read while it arrives: one message is in memory at a time, the data of pictures goes to disk,
//! and messages that the host has said itself are kept as digests.

use std::collections::HashMap;

use agent_host_runs::{BlobWriter, ForeignHistory};
use axum::{body::Body, http::HeaderMap};
use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{claims, history::Digests, store};
use crate::{
    agui::{
        event::{Content, Message, MessageBody, Part, Source},
        input::{self, RunAgentInput},
        split::{PASSED, Piece, Splitter},
    },
    app::App,
    artifacts::upload::{Spool, UploadBody, in_time},
    http::{Problem, ProblemCode},
};

/// A body of at most so many bytes needs no turn.
const SMALL_BODY: usize = 1 << 20;
/// Largest number of messages, as of the reader of whole inputs.
const MAX_MESSAGES: usize = input::MAX_MESSAGES;
/// Data of one request that goes to disk while it arrives: as many parts as a message has at most, for a history of them.
const MAX_SPOOLED: usize = 1_024;
/// The value of a source whose data is on disk, with the digest of the data behind it. No base64 has a colon.
const SPOOLED: &str = "agent-host:spooled:";

/// Groups of four characters in the middle.
const MIDDLE: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::RequireNone));
/// The end: encoders differ in whether they fill it up.
const END: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent));

/// Data of a request that is on disk, by its digest.
#[derive(Default)]
pub(crate) struct SpooledFile(Mutex<HashMap<String, Vec<SpooledData>>>);

/// Data on disk that no artifact has yet. Dropping it removes the data.
pub(crate) struct SpooledData {
    pub(crate) writer: BlobWriter,
    /// The media type in the data URL that it came in.
    pub(crate) media_type: Option<String>,
}

impl SpooledFile {
    /// Takes the data that the value of a source stands for; `None` for any other value.
    pub(crate) fn take(&self, value: &str) -> Option<SpooledData> {
        self.0.lock().get_mut(value.strip_prefix(SPOOLED)?)?.pop()
    }

    fn add(&self, digest: String, data: SpooledData) {
        self.0.lock().entry(digest).or_default().push(data);
    }
}

impl std::fmt::Debug for SpooledData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpooledData").field("media_type", &self.media_type).finish_non_exhaustive()
    }
}

/// An input, and what was kept of it elsewhere.
pub(crate) struct ReadInput {
    pub(crate) input: RunAgentInput,
    pub(crate) spooled: SpooledFile,
    /// Of messages whose content was left out of the input.
    pub(crate) digests: Digests,
    pub(crate) ids: MessageIds,
}

/// The scope of the ids of a client's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageIds {
    /// An id names one message of the thread.
    Thread,
    /// An id names one message of the run, as in the strict profile: each run has one new message.
    Run,
}

impl ReadInput {
    /// An input of the strict profile.
    pub(crate) fn strict(input: RunAgentInput) -> Self {
        Self { input, spooled: SpooledFile::default(), digests: Digests::default(), ids: MessageIds::Run }
    }

    /// The name of a message of the client in its thread.
    pub(crate) fn key(&self, message_id: &str) -> String {
        match self.ids {
            MessageIds::Thread => message_id.to_owned(),
            // The id of a run has no line break.
            MessageIds::Run => format!("{}\n{message_id}", self.input.run_id),
        }
    }
}

/// Reads the input in a body.
///
/// # Errors
/// `payload_too_large` above `agui.body_bytes`, `media_invalid` for data that is no base64, and what the reader of inputs
/// refuses.
pub(crate) async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<ReadInput, Problem> {
    let limit = app.host.config().agui.body_bytes;
    let too_large = |problem: Problem| match problem.code() {
        ProblemCode::PayloadTooLarge => Problem::new(
            ProblemCode::PayloadTooLarge,
            format!("the body is larger than {limit} bytes: send only new messages, or upload files first (`agui.body_bytes`)"),
        ),
        _ => problem,
    };
    let mut body = UploadBody::new(headers, body, limit as u64).await.map_err(too_large)?;
    let reading = async {
        let mut reader = Reader::new(app);
        let (mut pieces, mut size, mut turn) = (Vec::new(), 0, None);
        while let Some(bytes) = body.next().await.map_err(too_large)? {
            size += bytes.len();
            if size > SMALL_BODY && turn.is_none() {
                // Large bodies are read a few at a time: each may have one message of its whole size in memory.
                turn = Some(app.agui.large_bodies.acquire().await.map_err(Problem::internal)?);
            }
            reader.splitter.push(&bytes, &mut pieces)?;
            for piece in pieces.drain(..) {
                reader.take(piece).await?;
            }
        }
        reader.splitter.finish()?;
        reader.end()
    };
    in_time(reading).await
}

struct Reader<'a> {
    app: &'a App,
    splitter: Splitter,
    members: Map<String, Value>,
    messages: Option<Vec<Message>>,
    digests: Digests,
    spooled: SpooledFile,
    /// The values that stand for the data that was passed on, in its order.
    passed: Vec<String>,
    decoding: Option<Base64Decoder>,
}

impl<'a> Reader<'a> {
    fn new(app: &'a App) -> Self {
        Self {
            app,
            splitter: Splitter::new(),
            members: Map::new(),
            messages: None,
            digests: Digests::with_room(match app.host.config().agui.foreign_history {
                // Messages of another thread of this host may be history of a new one.
                ForeignHistory::Accept => claims::MAX_CLAIMED_BYTES,
                ForeignHistory::Refuse | ForeignHistory::Ignore => 0,
            }),
            spooled: SpooledFile::default(),
            passed: Vec::new(),
            decoding: None,
        }
    }

    async fn take(&mut self, piece: Piece) -> Result<(), Problem> {
        match piece {
            Piece::Member(name, value) => {
                self.members.insert(name, input::value(&value)?);
            }
            Piece::Messages => self.messages = Some(Vec::new()),
            Piece::Message(json) => self.message(&json)?,
            Piece::Data(data) => {
                let place = self.messages.as_ref().map_or(0, Vec::len);
                let decoding = match self.decoding.take() {
                    Some(decoding) => decoding,
                    None if self.passed.len() == MAX_SPOOLED => {
                        let detail =
                            format!("`messages` have more than {MAX_SPOOLED} files in them: upload them, or leave old ones out");
                        return Err(Problem::new(ProblemCode::MediaTooLarge, detail).in_field("messages"));
                    }
                    None => Base64Decoder::new(self.app, place).await?,
                };
                self.decoding = Some(decoding.push(&data).await?);
            }
            Piece::DataEnd => {
                let Some(decoding) = self.decoding.take() else { return Ok(()) };
                let (digest, data) = decoding.end().await?;
                self.passed.push(format!("{SPOOLED}{digest}"));
                self.spooled.add(digest, data);
            }
        }
        Ok(())
    }

    fn message(&mut self, json: &[u8]) -> Result<(), Problem> {
        let messages = self.messages.get_or_insert_with(Vec::new);
        if messages.len() == MAX_MESSAGES {
            return Err(Problem::invalid("messages", format!("`messages` has more than {MAX_MESSAGES} entries")));
        }
        let mut message = input::message_at(messages.len(), input::value(json)?)?;
        if let MessageBody::User { content: Content::Parts(parts), .. }
        | MessageBody::Tool { content: Content::Parts(parts), .. } = &mut message.body
        {
            parts.iter_mut().for_each(|part| resolve(part, &self.passed));
        }
        self.digests.keep(&mut message);
        messages.push(message);
        Ok(())
    }

    fn end(self) -> Result<ReadInput, Problem> {
        let Self { members, messages, digests, spooled, .. } = self;
        Ok(ReadInput { input: input::read_with(members, messages)?, spooled, digests, ids: MessageIds::Thread })
    }
}

/// Puts the digest of data in the place of its number.
fn resolve(part: &mut Part, passed: &[String]) {
    let (Part::Image { source } | Part::Audio { source } | Part::Video { source } | Part::Document { source }) = part else {
        return;
    };
    let (Source::Data { value, .. } | Source::Url { value, .. }) = source else { return };
    let number = value.strip_prefix(PASSED).and_then(|number| number.parse::<usize>().ok());
    if let Some(spooled) = number.and_then(|number| passed.get(number)) {
        value.clone_from(spooled);
    }
}

/// Base64 on its way to disk, with or without the head of a data URL.
struct Base64Decoder {
    spool: Spool,
    digest: Sha256,
    /// Path of the message, for refusals.
    at: String,
    media_type: Option<String>,
    /// Characters that are no whole group yet.
    left: Vec<u8>,
    /// True after a backslash.
    escaped: bool,
    has_begun: bool,
}

impl Base64Decoder {
    async fn new(app: &App, place: usize) -> Result<Self, Problem> {
        let limits = app.host.config().limits.clone();
        let spool = Spool::open(app, limits.upload_bytes.min(limits.artifact_bytes)).await?;
        let at = format!("messages[{place}]");
        Ok(Self { spool, digest: Sha256::new(), at, media_type: None, left: Vec::new(), escaped: false, has_begun: false })
    }

    fn invalid(&self, why: &str) -> Problem {
        Problem::at(ProblemCode::MediaInvalid, &self.at, format!("`{}`: {why}", self.at))
    }

    /// Takes the next characters, with the escapes of JSON.
    async fn push(mut self, data: &[u8]) -> Result<Self, Problem> {
        if !self.has_begun {
            self.has_begun = true;
            let data = self.head(data)?;
            return self.decode(data).await;
        }
        self.decode(data).await
    }

    /// Reads the head of a data URL: it is in the first characters.
    fn head<'b>(&mut self, data: &'b [u8]) -> Result<&'b [u8], Problem> {
        let is_url = data.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"data:"));
        if !is_url {
            return Ok(data);
        }
        let malformed = || self.invalid("its data URL is malformed: it is `data:TYPE;base64,DATA`");
        let comma = data.iter().take(1_024).position(|byte| *byte == b',').ok_or_else(malformed)?;
        let head = data.get(5..comma).and_then(|head| std::str::from_utf8(head).ok()).ok_or_else(malformed)?.replace("\\/", "/");
        let (media_type, encoding) = head.rsplit_once(';').ok_or_else(malformed)?;
        if !encoding.trim().eq_ignore_ascii_case("base64") {
            return Err(malformed());
        }
        self.media_type = Some(media_type.trim().to_owned()).filter(|media_type| !media_type.is_empty());
        Ok(data.get(comma + 1..).unwrap_or_default())
    }

    async fn decode(mut self, data: &[u8]) -> Result<Self, Problem> {
        for byte in data {
            // Of the escapes of JSON, `\/` is the one that base64 may have.
            match (std::mem::take(&mut self.escaped), byte) {
                (true, b'/') | (false, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' | b'=') => self.left.push(*byte),
                (false, b'\\') => self.escaped = true,
                _ => return Err(self.invalid("its data is no base64")),
            }
        }
        // The last group may be filled up, so it waits for the end.
        let whole = self.left.len().saturating_sub(1) / 4 * 4;
        let rest = self.left.split_off(whole);
        let groups = std::mem::replace(&mut self.left, rest);
        let decoded = MIDDLE.decode(groups).map_err(|error| self.invalid(&format!("its data is no base64: {error}")))?;
        self.write(&decoded).await
    }

    async fn write(mut self, bytes: &[u8]) -> Result<Self, Problem> {
        self.digest.update(bytes);
        let at = self.at.clone();
        self.spool = self.spool.push(bytes).await.map_err(|problem| match problem.code() {
            ProblemCode::PayloadTooLarge => Problem::at(ProblemCode::MediaTooLarge, &at, format!("`{at}`: {}", problem.detail())),
            _ => problem,
        })?;
        Ok(self)
    }

    async fn end(mut self) -> Result<(String, SpooledData), Problem> {
        let last = std::mem::take(&mut self.left);
        let decoded = END.decode(last).map_err(|error| self.invalid(&format!("its data is no base64: {error}")))?;
        let Self { spool, digest, media_type, .. } = self.write(&decoded).await?;
        Ok((store::hex(&digest.finalize()), SpooledData { writer: spool.end().await?, media_type }))
    }
}
