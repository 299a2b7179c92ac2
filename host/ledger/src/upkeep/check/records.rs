//! Checks of the record: events, runs, what runs have written, transcripts and the audit.

use std::collections::HashSet;

use agent_host_protocol::{Event, RecordDigest, Run, grant::ConversationKey};
use serde_json::value::RawValue;

use super::{Check, CheckResult, Object};
use crate::{
    error::LedgerError,
    rows::{
        ConversationRow, EventRow, EventRun, FORGOTTEN, IdempotencyAgeRow, IdempotencyRow, ListedRun, RunEnd, StoredParts,
        StoredRows, Table, TranscriptRow, json, malformed, number, part_digest, schema, stored_audit,
    },
};

impl Check<'_> {
    pub(super) fn events(&mut self) -> CheckResult {
        self.same_rows(Table::Events, Table::EventIds)?;
        let mut next = 1;
        self.each(Table::Events, |check, key, value| {
            let event_no = check.follows(Table::Events, key, &mut next)?;
            let (row, runs) = EventRow::read(event_no, value)?;
            let Some(event) = check.parses::<Event>(Table::Events, row.event) else { return Ok(()) };
            check.expect(Table::Events, row.event_id == event.event_id, || format!("event {event_no} has two ids"));
            check.listed_event(event_no, &event)?;
            let mapped = check.reader.number(Table::EventIds, &event.event_id.to_bytes())?;
            check.expect(Table::EventIds, mapped == Some(event_no), || format!("event {} is not {event_no}", event.event_id));
            for EventRun { run_no, id, terms } in runs {
                let run = check.reader.run(run_no)?;
                let holds = run.is_some_and(|run| run.run_id == id && run.event_id == event.event_id);
                check.expect(Table::Events, holds, || format!("event {event_no} has run {id}, which does not have it"));
                match terms {
                    Some(terms) => check.part(Table::Events, terms)?,
                    None => {
                        let there = check.reader.has(Table::Terms, &number(run_no))?;
                        check.expect(Table::Terms, there, || format!("run {run_no} has no terms"));
                    }
                }
            }
            Ok(())
        })
    }

    /// Checks that an event is listed under its conversation.
    fn listed_event(&mut self, event_no: u64, event: &Event) -> CheckResult {
        let Some(key) = event.envelope.conversation.as_ref().and_then(ConversationKey::of) else { return Ok(()) };
        let index = key.index();
        let no = self
            .reader
            .get(Table::Conversations, index.as_bytes(), |row| Ok(json::<ConversationRow>(Table::Conversations, row)?.no))?;
        let listed = match no {
            Some(no) => self.reader.get(Table::ConversationEvents, &schema::pair(no, event_no), |event_type| {
                Ok(event_type == event.envelope.event_type.as_bytes())
            })?,
            None => None,
        };
        self.expect(Table::ConversationEvents, listed == Some(true), || {
            format!("event {event_no} is not listed under its conversation")
        });
        self.listed_events += 1;
        Ok(())
    }

    /// Terms or a context of a row of `table`, which may be in parts.
    pub(super) fn part(&mut self, table: Table, value: &[u8]) -> CheckResult {
        let own = match StoredParts::read(table, value)? {
            StoredParts::Whole(text) => text,
            StoredParts::Parts { digest, own } => {
                let is_there = self.reader.has(Table::SharedParts, digest)?;
                self.expect(table, is_there, || "its shared part is not there".to_owned());
                own
            }
        };
        self.parses::<Object>(table, own);
        Ok(())
    }

    pub(super) fn shared_parts(&mut self) -> CheckResult {
        self.each(Table::SharedParts, |check, key, value| {
            check.expect(Table::SharedParts, part_digest(value) == key, || "a part has another digest".to_owned());
            check.parses::<Object>(Table::SharedParts, value);
            Ok(())
        })
    }

    pub(super) fn runs(&mut self) -> CheckResult {
        self.same_rows(Table::Runs, Table::RunIds)?;
        let (mut next, mut active) = (1, 0);
        let listed = self.reader.table(Table::Active)?;
        let lists = self.reader.table(Table::RunLists)?;
        let mut in_lists = 0;
        self.each(Table::Runs, |check, key, value| {
            let run_no = check.follows(Table::Runs, key, &mut next)?;
            let Some(run) = check.parses::<Run>(Table::Runs, value) else { return Ok(()) };
            let mapped = check.reader.number(Table::RunIds, &run.run_id.to_bytes())?;
            check.expect(Table::RunIds, mapped == Some(run_no), || format!("run {} is not {run_no}", run.run_id));
            let is_listed = listed.get(key)?.is_some();
            check.expect(Table::Active, is_listed != run.status.is_terminal(), || format!("run {run_no} is {}", run.status));
            let of_lists: ListedRun<'_> = json(Table::Runs, value)?;
            let mut missing: Result<bool, LedgerError> = Ok(false);
            of_lists.each_key(run_no, |key| {
                in_lists += 1;
                if let Ok(before) = missing {
                    missing = lists.get(key).map(|row| before || row.is_none());
                }
            });
            let missing = missing?;
            check.expect(Table::RunLists, !missing, || format!("run {run_no} is not in a list"));
            active += u64::from(!run.status.is_terminal());
            let event = check.reader.has(Table::EventIds, &run.event_id.to_bytes())?;
            check.expect(Table::Runs, event, || format!("run {run_no} answers an event that is not there"));
            check.events_of(run_no, &run)
        })?;
        let lists = lists.len()?;
        self.expect(Table::RunLists, lists == in_lists, || format!("the lists have {lists} rows, the runs {in_lists}"));
        let listed = listed.len()?;
        self.expect(Table::Active, listed == active, || format!("{listed} runs are active, {active} have not ended"));
        Ok(())
    }

    /// The events of a run follow each other from 1 to the last that the run names, and the last one alone ends an ended run.
    fn events_of(&mut self, run_no: u64, run: &Run) -> CheckResult {
        let table = Table::RunEvents;
        let is_forgotten = run.metadata.contains_key(FORGOTTEN);
        let (mut last, mut ended) = (if is_forgotten { run.last_sequence.saturating_sub(1) } else { 0 }, false);
        let reader = self.reader;
        let mut digest = match run.record_digest.filter(|_| !is_forgotten) {
            Some(_) => reader.event_json(run.event_id)?.map(|event| RecordDigest::begin(run.run_id, &event)),
            None => None,
        };
        reader.each_event(run_no, 0, |sequence, event| {
            let wanted = last + 1;
            digest = match digest {
                Some(digest) => Some(digest.and(event.digested(sequence)?)),
                None => None,
            };
            self.expect(table, sequence == wanted, || format!("run {run_no}: event {sequence} comes where {wanted} should"));
            self.expect(table, !ended, || format!("run {run_no}: event {sequence} follows the end"));
            self.parses::<&RawValue>(table, event.data.as_bytes());
            (last, ended) = (sequence, event.is_terminal());
            Ok(true)
        })?;
        self.expect(table, last == run.last_sequence, || {
            format!("run {run_no} ends with event {last}, but says {}", run.last_sequence)
        });
        self.expect(table, digest.is_none() || digest == run.record_digest, || {
            format!("run {run_no} has other events, or answers another event, than were written: its record has another digest")
        });
        self.expect(table, ended == run.status.is_terminal(), || {
            format!("run {run_no} is {}, but its last event differs", run.status)
        });
        Ok(())
    }

    /// Rows of events and of ends belong to runs, and the context of an end is readable.
    pub(super) fn run_events(&mut self) -> CheckResult {
        let runs = self.reader.table(Table::Runs)?;
        let mut current = None;
        self.each(Table::RunEvents, |check, key, _| {
            let (run_no, _) = schema::read_pair(key).ok_or_else(|| malformed(Table::RunEvents))?;
            if current.replace(run_no) != Some(run_no) {
                check.belongs(&runs, run_no)?;
            }
            Ok(())
        })?;
        self.each(Table::RunEnds, |check, key, value| {
            check.belongs(&runs, schema::read_number(key).ok_or_else(|| malformed(Table::RunEnds))?)?;
            match RunEnd::read(value)?.context {
                Some(context) => check.part(Table::RunEnds, context),
                None => Ok(()),
            }
        })
    }

    fn belongs(&mut self, runs: &StoredRows, run_no: u64) -> CheckResult {
        let there = runs.get(number(run_no).as_slice())?.is_some();
        self.expect(Table::RunEvents, there, || format!("there are events of run {run_no}, which is not there"));
        Ok(())
    }

    pub(super) fn transcript(&mut self) -> CheckResult {
        let mut numbers = Vec::new();
        self.each(Table::Conversations, |check, key, value| {
            if let Some(row) = check.parses::<ConversationRow>(Table::Conversations, value) {
                check.expect(Table::Conversations, row.key.index().as_bytes() == key, || {
                    format!("conversation {} has another key", row.no)
                });
                numbers.push(row.no);
            }
            Ok(())
        })?;
        numbers.sort_unstable();
        let twice = numbers.windows(2).any(|pair| pair.first() == pair.last());
        self.expect(Table::Conversations, !twice, || "two conversations have one number".to_owned());
        let mut expected = (0, 0);
        let mut used = HashSet::new();
        self.each(Table::Transcript, |check, key, value| {
            let (no, seq) = schema::read_pair(key).ok_or_else(|| malformed(Table::Transcript))?;
            let row = check.parses::<TranscriptRow>(Table::Transcript, value);
            if no != expected.0 {
                // Deleted items are missing up to their placeholder.
                expected = (no, if row.is_some_and(|row| row.is_end()) { seq } else { 1 });
                used.insert(no);
                check.expect(Table::Transcript, numbers.binary_search(&no).is_ok(), || format!("conversation {no} is not there"));
            }
            let wanted = expected.1;
            check.expect(Table::Transcript, seq == wanted, || {
                format!("conversation {no}: item {seq} comes where {wanted} should")
            });
            expected.1 = seq + 1;
            Ok(())
        })?;
        let mut listed = 0;
        self.each(Table::ConversationEvents, |check, key, _| {
            let (no, event_no) = schema::read_pair(key).ok_or_else(|| malformed(Table::ConversationEvents))?;
            if used.insert(no) {
                let there = numbers.binary_search(&no).is_ok();
                check.expect(Table::ConversationEvents, there, || format!("conversation {no} is not there"));
            }
            let there = check.reader.has(Table::Events, &number(event_no))?;
            check.expect(Table::ConversationEvents, there, || format!("event {event_no} is listed and not there"));
            listed += 1;
            Ok(())
        })?;
        let wanted = self.listed_events;
        self.expect(Table::ConversationEvents, listed == wanted, || format!("{listed} events are listed, {wanted} should be"));
        self.expect(Table::Conversations, used.len() == numbers.len(), || {
            format!("{} conversations, {} have a transcript or an event", numbers.len(), used.len())
        });
        Ok(())
    }

    pub(super) fn audit(&mut self) -> CheckResult {
        let (mut next, mut of_runs) = (None, 0);
        let listed = self.reader.table(Table::AuditRuns)?;
        self.each(Table::Audit, |check, key, value| {
            // The first records may have been pruned.
            let mut wanted = match next {
                Some(next) => next,
                None => schema::read_number(key).ok_or_else(|| malformed(Table::Audit))?,
            };
            let first = check.follows(Table::Audit, key, &mut wanted)?;
            for record in stored_audit(first, value)? {
                let (audit_no, stored) = record?;
                next = Some(audit_no + 1);
                let record = stored.record();
                let run_id = stored.run_id();
                let is_its_run = record.is_ok_and(|record| record.run_id == run_id);
                check.expect(Table::Audit, is_its_run, || format!("record {audit_no} has the wrong content"));
                let Some(id) = run_id else { continue };
                of_runs += 1;
                let is_listed = listed.get(&schema::audit_run(id, audit_no))?.is_some();
                check.expect(Table::AuditRuns, is_listed, || format!("record {audit_no} is not listed under run {id}"));
            }
            Ok(())
        })?;
        let listed = listed.len()?;
        self.expect(Table::AuditRuns, listed == of_runs, || format!("{listed} records are listed, {of_runs} have a run"));
        Ok(())
    }

    pub(super) fn idempotency(&mut self) -> CheckResult {
        self.each(Table::Idempotency, |check, key, value| {
            if let Some(row) = check.parses::<IdempotencyRow>(Table::Idempotency, value) {
                let age = check.reader.get(Table::IdempotencyAge, &number(row.event_no), |bytes| {
                    Ok(json::<IdempotencyAgeRow<'_>>(Table::IdempotencyAge, bytes).is_ok_and(|age| age.key.as_bytes() == key))
                })?;
                check
                    .expect(Table::IdempotencyAge, age == Some(true), || format!("the key of event {} has no age", row.event_no));
                let event = check.reader.number(Table::EventIds, &row.event_id.to_bytes())?;
                check.expect(Table::Idempotency, event == Some(row.event_no), || format!("event {} is another", row.event_no));
            }
            Ok(())
        })
    }
}
