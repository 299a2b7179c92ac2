//! The results that an executor has appended in one claim: their numbers, and the comparison of results that are appended again.
//!
//! The number and the hash of each result are stored with its event ([`AppendMark`]), so that the comparison is the same after a
//! restart of the host.

use std::collections::VecDeque;

use agent_host_facts::import::{Form, Translator};
use agent_host_ledger::{AppendMark, Ledger};
use agent_host_protocol::{
    ResultKind, RunEvent, RunId, SentResult,
    import::{EVENTS, RawEvents},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::record::HostError;

/// Results of one claim whose content is compared when they are appended again.
const KNOWN_RESULTS: usize = 4_096;
/// Events of a run that are searched for them after a restart. A run has events of its host calls between the results.
const SEARCHED_EVENTS: u64 = 4 * KNOWN_RESULTS as u64;

/// The appended results of a claim.
#[derive(Debug)]
pub(super) struct AppendedResults {
    claim: u32,
    /// Number of the last one.
    last: u64,
    /// Hashes of the last ones, at most [`KNOWN_RESULTS`].
    hashes: VecDeque<u64>,
    /// The id of the message whose pieces came without one, until it is completed.
    open_message: Option<String>,
    /// The form of the native events, where the claim appends those and no results.
    form: Option<Form>,
    /// The translation of the native events, as the last of them left it. `None` where they have to be read again.
    translator: Option<Translator>,
    /// True if results of an earlier life of the host are not read yet.
    is_forgetful: bool,
}

impl AppendedResults {
    /// The results of a claim of which the host has those up to `last`.
    pub(super) fn new(claim: u32, last: u64) -> Self {
        Self { claim, last, hashes: VecDeque::new(), open_message: None, form: None, translator: None, is_forgetful: last > 0 }
    }

    /// Number of the last result.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn check_gap(&self, first: u64) -> Result<(), HostError> {
        let expected = self.last + 1;
        if first > expected { Err(HostError::SequenceGap { expected, first }) } else { Ok(()) }
    }

    /// Reads what an earlier life of the host has stored of the claim, once.
    pub(super) fn recall(&mut self, ledger: &Ledger, run_no: u64, run_id: RunId, last_sequence: u64) -> Result<(), HostError> {
        if !std::mem::take(&mut self.is_forgetful) {
            return Ok(());
        }
        let after = last_sequence.saturating_sub(SEARCHED_EVENTS);
        let mut stored = ledger.appended_results(run_no, run_id, self.claim, after)?;
        // Of native events, the first result of an append alone is marked, and it may have many.
        if stored.is_empty() {
            stored = ledger.appended_results(run_no, run_id, self.claim, 0)?;
        }
        if let Some((_, event)) = stored.iter().rev().find(|(_, event)| event.kind == EVENTS) {
            let raw: Option<RawEvents> = serde_json::from_str(event.data.get()).ok();
            self.form = raw.map(|raw| raw.form);
            return Ok(());
        }
        // Without a gap up to the last one: what lies before a gap cannot be numbered by its place.
        for (mark, _) in stored.iter().rev().take(KNOWN_RESULTS) {
            if mark.number != self.last.saturating_sub(self.hashes.len() as u64) {
                break;
            }
            self.hashes.push_front(mark.hash);
        }
        self.open_message = stored.iter().rev().find_map(|(mark, event)| self.left_open(*mark, event)).flatten();
        Ok(())
    }

    /// Fails where the claim has appended something of another form; `None` is that of results.
    pub(super) fn check_form(&self, form: Option<Form>) -> Result<(), HostError> {
        if self.last == 0 || self.form == form {
            return Ok(());
        }
        let own = self.form.map_or("results", Form::as_str);
        let theirs = form.map_or("results", Form::as_str);
        Err(HostError::Conflict(format!("this claim appends {own}, and these are {theirs}: append one form in one claim")))
    }

    /// The translation of the native events so far. `None` where they have to be read again.
    pub(super) fn translator(&self, form: Form) -> Option<&Translator> {
        // A claim whose first append was refused may begin again with another form.
        self.translator.as_ref().filter(|translator| translator.form() == form)
    }

    pub(super) fn keep_translator(&mut self, translator: Translator) {
        self.translator = Some(translator);
    }

    /// Adds new native events; `through` is the number of the last of them.
    pub(super) fn add_native(&mut self, through: u64, hashes: &[u64], translator: Translator) {
        self.form = Some(translator.form());
        self.translator = Some(translator);
        self.add(through, hashes, None);
    }

    pub(super) fn forget_hashes(&mut self) {
        self.hashes.clear();
    }

    /// Notes the hashes of the next ones, oldest first.
    pub(super) fn note_hashes(&mut self, hashes: &[u64]) {
        self.hashes.extend(hashes);
        let surplus = self.hashes.len().saturating_sub(KNOWN_RESULTS);
        self.hashes.drain(..surplus);
    }

    /// The message that this event of a result leaves open: `None` where the event is about no message, and where its sender had
    /// named it.
    fn left_open(&self, mark: AppendMark, event: &RunEvent) -> Option<Option<String>> {
        #[derive(Deserialize)]
        struct MessageName {
            message_id: String,
        }
        let kind = ResultKind::from_name(&event.kind)?;
        let is_piece = matches!(kind, ResultKind::MessageDelta | ResultKind::ReasoningDelta);
        if !is_piece && kind != ResultKind::MessageCompleted {
            return None;
        }
        let MessageName { message_id } = serde_json::from_str(event.data.get()).ok()?;
        let own = message_id.strip_prefix(&format!("m{}.", self.claim))?.parse::<u64>().ok()?;
        (own <= mark.number).then_some(is_piece.then_some(message_id))
    }

    /// The results with ids for messages that have none: pieces without an id belong to one message, until a
    /// `message.completed` without an id ends it. Returns the id of a message that stays open. `first` is the number of the
    /// first result.
    pub(super) fn with_message_ids(
        &self,
        first: u64,
        results: Vec<SentResult>,
    ) -> Result<(Vec<SentResult>, Option<String>), HostError> {
        let mut open = self.open_message.clone();
        let mut named = Vec::with_capacity(results.len());
        for (number, result) in (first..).zip(results) {
            let is_piece = matches!(result.kind.as_str(), "message.delta" | "reasoning.delta");
            let is_end = result.kind == "message.completed";
            if !(is_piece || is_end) || has_message_id(&result) {
                named.push(result);
                continue;
            }
            let id = open.take().unwrap_or_else(|| format!("m{}.{number}", self.claim));
            named.push(result.with_message_id(&id).map_err(HostError::Refused)?);
            open = is_piece.then_some(id);
        }
        Ok((named, open))
    }

    /// The marks of new results; `first` is the number of the first.
    pub(super) fn marks(&self, first: u64, hashes: &[u64]) -> Vec<AppendMark> {
        (first..).zip(hashes).map(|(number, hash)| AppendMark { claim: self.claim, number, hash: *hash }).collect()
    }

    /// The number of the first of these results that the host has otherwise. `first` is the number of the first.
    pub(super) fn differs(&self, first: u64, hashes: &[u64]) -> Option<u64> {
        let first_known = self.last + 1 - self.hashes.len() as u64;
        let known = |number: u64| self.hashes.get(usize::try_from(number.checked_sub(first_known)?).ok()?);
        let mut numbered = (first..).zip(hashes);
        numbered.find(|(number, hash)| known(*number).is_some_and(|known| known != *hash)).map(|(number, _)| number)
    }

    /// Adds new results; `last` is the number of the last of them, `open_message` the message that they leave open.
    pub(super) fn add(&mut self, last: u64, hashes: &[u64], open_message: Option<String>) {
        self.last = last;
        self.open_message = open_message;
        self.note_hashes(hashes);
    }
}

fn has_message_id(result: &SentResult) -> bool {
    #[derive(Deserialize)]
    struct MessageName {
        #[serde(default)]
        message_id: Option<IgnoredAny>,
    }
    serde_json::from_str::<MessageName>(result.data.get()).is_ok_and(|named| named.message_id.is_some())
}

/// The hash of a result: of its type and its data as a JSON value, however it is written. It is stored, so its function stays.
pub(super) fn hash(result: &SentResult) -> u64 {
    let data =
        serde_json::from_str::<Value>(result.data.get()).map_or_else(|_| result.data.get().to_owned(), |data| data.to_string());
    xxh3_64(format!("{}\0{data}", result.kind).as_bytes())
}
