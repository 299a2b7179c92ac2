//! The thread of a log: its ids, the order of its events, and its turns one after the other.

use serde_json::{Map, Value};

use super::{
    event::{Event, text},
    finding::{Findings, Place, short},
    models::{ReadModelCheck, TaskCheck},
    rule::Rule,
    seen::{Repetition, Seen},
    turn::Turn,
};

/// The names of the ids that all events of a log have alike.
const THREAD_IDS: [&str; 3] = ["runtimeId", "sessionId", "threadId"];

/// The thread so far.
#[derive(Debug)]
pub(crate) struct Thread {
    ids: [String; 3],
    last: Option<u64>,
    seen: Seen,
    turn: Option<Turn>,
    turns: u64,
    has_session: bool,
    has_thread: bool,
    read_model: Option<ReadModelCheck>,
    task: Option<TaskCheck>,
}

impl Thread {
    pub(crate) fn new(read_model: Option<Map<String, Value>>, task: Option<Map<String, Value>>) -> Self {
        Self {
            ids: Default::default(),
            last: None,
            seen: Seen::default(),
            turn: None,
            turns: 0,
            has_session: false,
            has_thread: false,
            read_model: read_model.map(ReadModelCheck::new),
            task: task.map(TaskCheck::new),
        }
    }

    /// Number of turns so far.
    pub(crate) const fn turns(&self) -> u64 {
        self.turns
    }

    /// Follows an event. `event` is `None` where its type or payload cannot be read.
    pub(crate) fn follow(&mut self, top: &Map<String, Value>, event: Option<&Event<'_>>, line: u64, findings: &mut Findings) {
        let place = Place { line: Some(line), event_id: text(top, "eventId") };
        if let Some(id) = place.event_id {
            match self.seen.add_event(id, top, place, findings) {
                Repetition::New => {}
                Repetition::Same => {
                    findings.add(Rule::IdDuplicate, place, "the event stands in the log twice");
                    return;
                }
                Repetition::Other => findings.add(Rule::IdConflict, place, "another event has this `eventId`"),
            }
        }
        self.check_ids(top, place, findings);
        let sequence = top.get("sequence").and_then(Value::as_u64).filter(|sequence| *sequence > 0);
        match sequence {
            Some(sequence) => self.check_order(sequence, event, place, findings),
            None => {
                findings.add(Rule::EnvelopeSequence, place, "`sequence` is missing, or is no whole number from 1 on");
                // The events after it are not numbered from the wrong one.
                self.last = self.last.map(|last| last + 1);
            }
        }
        let Some(event) = event else { return };
        self.place_in_turn(event, findings);
        if let Some(sequence) = sequence {
            if let Some(check) = &mut self.read_model {
                check.follow(event, sequence, self.turn.as_ref());
            }
            if let Some(check) = &mut self.task {
                check.follow(event, sequence);
            }
        }
    }

    fn check_ids(&mut self, top: &Map<String, Value>, place: Place<'_>, findings: &mut Findings) {
        for (name, own) in THREAD_IDS.into_iter().zip(&mut self.ids) {
            match text(top, name) {
                Some(id) if own.is_empty() => id.clone_into(own),
                Some(id) if id != own => {
                    findings.add(
                        Rule::ScopeThread,
                        place,
                        format!("`{name}` is `{}`; that of the log is `{}`", short(id), short(own)),
                    );
                }
                _ => {}
            }
        }
    }

    fn check_order(&mut self, sequence: u64, event: Option<&Event<'_>>, place: Place<'_>, findings: &mut Findings) {
        match self.last {
            None if sequence != 1 => findings.add(Rule::OrderStart, place, format!("the first `sequence` is {sequence}")),
            Some(last) if sequence <= last => {
                findings.add(Rule::OrderBackwards, place, format!("`sequence` {sequence} follows {last}"));
                return;
            }
            Some(last) if sequence - last > 1 => {
                let repairs = event.is_some_and(|event| {
                    matches!(event.kind, "snapshot.updated" | "snapshot.repaired" | "stream.repaired")
                        && event.says(&["repairReason"])
                });
                if repairs {
                    if let Some(turn) = &mut self.turn {
                        turn.repair();
                    }
                } else {
                    let message = format!("`sequence` {sequence} follows {last}: {} missing", sequence - last - 1);
                    findings.add(Rule::OrderGap, place, message);
                }
            }
            _ => {}
        }
        self.last = Some(sequence);
    }

    fn place_in_turn(&mut self, event: &Event<'_>, findings: &mut Findings) {
        let turn_id = text(event.top, "turnId");
        if matches!(event.kind, "session.created" | "thread.started") {
            if turn_id.is_some() {
                findings.add(Rule::ScopeTurn, event.place, format!("`{}` has a `turnId`", event.kind));
            }
            let is_there = if event.kind == "session.created" { &mut self.has_session } else { &mut self.has_thread };
            if std::mem::replace(is_there, true) || self.turns > 0 {
                findings.add(Rule::ThreadTwice, event.place, format!("`{}` stands twice, or after the first turn", event.kind));
            }
            return;
        }
        if event.kind == "turn.submitted" {
            self.submit(event, turn_id, findings);
        } else if let Some(id) = turn_id
            && self.turn.as_ref().is_none_or(|turn| turn.id != id)
        {
            self.stray(event, id, findings);
            return;
        } else if event.kind == "snapshot.updated" {
            self.snapshot(event, findings);
        }
        // Events of the thread, such as `task.*` without a turn, are followed in the open turn.
        if let Some(turn) = &mut self.turn
            && event.kind != "turn.submitted"
            && (turn_id.is_some() || turn.end.is_none())
        {
            turn.follow(event, &mut self.seen, findings);
        }
    }

    fn submit(&mut self, event: &Event<'_>, turn_id: Option<&str>, findings: &mut Findings) {
        let Some(id) = turn_id else { return };
        if let Some(turn) = self.turn.as_ref().filter(|turn| turn.end.is_none()) {
            if turn.id == id {
                findings.add(Rule::TurnTwice, event.place, "`turn.submitted` stands twice");
                return;
            }
            let message = format!("turn `{}` begins while `{}` is open", short(id), short(&turn.id));
            findings.add(Rule::TurnOverlap, event.place, message);
        }
        self.check_snapshot(event.place, findings);
        self.begin(id, event.place, findings);
        if let Some(turn) = &mut self.turn {
            turn.check_run(event, findings);
        }
    }

    /// An event with the id of a turn that is not the present one.
    fn stray(&mut self, event: &Event<'_>, id: &str, findings: &mut Findings) {
        let is_open = self.turn.as_ref().is_some_and(|turn| turn.end.is_none());
        if is_open || self.seen.has_id("turn", id) {
            let own = self.turn.as_ref().map_or("none", |turn| turn.id.as_str());
            let message = format!("`turnId` is `{}`; the present turn is `{}`", short(id), short(own));
            findings.add(Rule::ScopeTurn, event.place, message);
            return;
        }
        findings.add(Rule::TurnNotSubmitted, event.place, format!("turn `{}` begins with `{}`", short(id), short(event.kind)));
        self.check_snapshot(event.place, findings);
        self.begin(id, event.place, findings);
        if let Some(turn) = &mut self.turn {
            turn.follow(event, &mut self.seen, findings);
        }
    }

    fn begin(&mut self, id: &str, place: Place<'_>, findings: &mut Findings) {
        if !self.seen.add_id("turn", id, place, findings) {
            findings.add(Rule::IdReuse, place, format!("the turn `{}` has been before", short(id)));
        }
        self.turns += 1;
        self.turn = Some(Turn::new(id));
    }

    fn snapshot(&mut self, event: &Event<'_>, findings: &mut Findings) {
        let Some(turn) = &mut self.turn else { return };
        let Some(end) = turn.end else { return };
        if std::mem::replace(&mut turn.has_snapshot, true) {
            return;
        }
        let status = event.payload_text("status").or_else(|| event.payload_text("threadStatus")).unwrap_or_default();
        if status != end.as_str() && !(end.as_str() == "canceled" && status == "cancelled") {
            let message = format!("`snapshot.updated` has the status `{}`; the turn has {}", short(status), end.as_str());
            findings.add(Rule::TurnSnapshot, event.place, message);
        }
    }

    /// An ended turn has its snapshot before the next turn.
    fn check_snapshot(&self, place: Place<'_>, findings: &mut Findings) {
        if let Some(turn) = self.turn.as_ref().filter(|turn| turn.end.is_some() && !turn.has_snapshot) {
            findings.add(
                Rule::TurnSnapshot,
                place,
                format!("no `snapshot.updated` follows the end of turn `{}`", short(&turn.id)),
            );
        }
    }

    pub(crate) fn finish(self, line: u64, open: bool, findings: &mut Findings) {
        let place = Place { line: Some(line), event_id: None };
        match &self.turn {
            Some(turn) if turn.end.is_none() && !open => {
                findings.add(Rule::TurnOpen, place, format!("the log ends before turn `{}` does", short(&turn.id)));
            }
            Some(_) if !open => self.check_snapshot(place, findings),
            _ => {}
        }
        let ids = self.ids.each_ref().map(String::as_str);
        let last = self.last.unwrap_or(0);
        if let Some(check) = self.read_model {
            check.finish(ids, last, findings);
        }
        if let Some(check) = self.task {
            check.finish(last, findings);
        }
    }
}
