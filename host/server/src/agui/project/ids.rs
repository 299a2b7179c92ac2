//! Names on the wire: made of the id of the host run and of what the guest calls the thing, the same each time.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use agent_host_protocol::RunId;

/// Clients send ids back, and the host takes none that is longer than 256 bytes: a guest's own part has room for the rest
/// of it (run, attempt, suffixes) beside it.
const MAX_NAME_BYTES: usize = 160;

/// Length of an id of a run.
const RUN_CHARS: usize = 36;

/// The host run that a message or a call belongs to, by its id on the wire.
pub(crate) fn run_of(wire_id: &str) -> Option<RunId> {
    let (run, rest) = wire_id.split_at_checked(RUN_CHARS)?;
    rest.strip_prefix(':').filter(|name| !name.is_empty())?;
    run.parse().ok()
}

/// The id on the wire of the first call with this call id in an attempt of a run. If a guest gives one id to several calls,
/// the later ones have other ids: [`super::Projector::client_calls`].
pub(crate) fn tool_call_id(run: RunId, attempt: u32, call_id: &str) -> String {
    let name = name(call_id);
    if attempt > 1 { format!("{run}:{attempt}:{name}") } else { format!("{run}:{name}") }
}

/// A name of a guest, made safe for an id: clients and their stores fail on control characters.
fn name(given: &str) -> Cow<'_, str> {
    if !given.is_empty() && given.len() <= MAX_NAME_BYTES && !given.chars().any(char::is_control) {
        return Cow::Borrowed(given);
    }
    let short = given.get(..given.floor_char_boundary(MAX_NAME_BYTES)).unwrap_or_default();
    let clean: String = short.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    Cow::Owned(if clean.is_empty() { "_".to_owned() } else { clean })
}

/// Makes the ids of one run. No two things of a kind have the same.
#[derive(Debug)]
pub(super) struct Ids {
    run: RunId,
    attempt: u32,
    /// Of everything that is a message to clients.
    messages: Names,
    calls: Names,
    subagents: Names,
}

#[derive(Debug, Default)]
struct Names {
    taken: HashSet<String>,
    /// The number of the last one, where a guest has named several alike.
    last: HashMap<String, u32>,
}

impl Names {
    fn has(&self, id: &str) -> bool {
        self.taken.contains(id)
    }

    /// The id itself, or with the first number behind it that makes it one of its own.
    fn fresh(&mut self, id: String, is_taken: impl Fn(&str) -> bool) -> String {
        let mut fresh = id.clone();
        while self.taken.contains(&fresh) || is_taken(&fresh) {
            let number = self.last.entry(id.clone()).or_insert(1);
            *number += 1;
            fresh = format!("{id}:{number}");
        }
        self.taken.insert(fresh.clone());
        fresh
    }
}

impl Ids {
    pub(super) fn new(run: RunId) -> Self {
        Self { run, attempt: 1, messages: Names::default(), calls: Names::default(), subagents: Names::default() }
    }

    pub(super) const fn run(&self) -> RunId {
        self.run
    }

    pub(super) const fn attempt(&self) -> u32 {
        self.attempt
    }

    pub(super) const fn begin_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
    }

    fn base(&self, given: &str) -> String {
        tool_call_id(self.run, self.attempt, given)
    }

    pub(super) fn message(&mut self, given: &str) -> String {
        self.message_like(self.base(given))
    }

    pub(super) fn reasoning(&mut self, given: &str) -> String {
        self.message_like(format!("{}:reasoning", self.base(given)))
    }

    pub(super) fn activity(&mut self, given: &str) -> String {
        self.message_like(format!("{}:activity", self.base(given)))
    }

    pub(super) fn call(&mut self, given: &str) -> String {
        let base = self.base(given);
        self.calls.fresh(base, |_| false)
    }

    /// The message with the result of a call.
    pub(super) fn result(&mut self, call: &str) -> String {
        self.message_like(format!("{call}:result"))
    }

    /// The id of an activity beside a message or a call.
    pub(super) fn beside(&mut self, id: &str) -> String {
        self.message_like(format!("{id}:ui"))
    }

    /// The message that carries a call which belongs to none. Clients make one with the id of the call; where that is the id
    /// of another message, it needs one of its own.
    pub(super) fn carrier(&mut self, call: &str) -> Option<String> {
        self.messages.has(call).then(|| self.message_like(format!("{call}:call")))
    }

    pub(super) fn child(&mut self, run: String) -> String {
        self.subagents.fresh(name(&run).into_owned(), |_| false)
    }

    pub(super) fn subagent(&mut self, given: &str) -> String {
        let base = self.base(given);
        self.subagents.fresh(base, |_| false)
    }

    fn message_like(&mut self, id: String) -> String {
        // A call without a message of its own is one, to clients.
        self.messages.fresh(id, |id| self.calls.has(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_tells_its_run() {
        let run = RunId::new();
        let mut ids = Ids::new(run);
        for id in [ids.message("m:1"), ids.call("c"), ids.reasoning("m"), ids.activity("a"), tool_call_id(run, 3, "c")] {
            assert_eq!(run_of(&id), Some(run), "{id}");
        }
        for other in ["", "m1", &run.to_string(), &format!("{run}:"), &format!("{run}x"), &format!("{}:m", "x".repeat(36))] {
            assert_eq!(run_of(other), None, "{other}");
        }
    }

    #[test]
    fn ids_are_what_clients_take_and_no_two_are_the_same() {
        let run = RunId::new();
        let mut ids = Ids::new(run);
        let given =
            ["", "\n", "\t", "_", "é".repeat(400).as_str(), "é".repeat(401).as_str(), "m", "m", "m:2", "m"].map(str::to_owned);
        // Calls have a space of their own; one without a message is a message, too, and has a carrier where that is taken.
        let (mut calls, mut messages) = (HashSet::new(), HashSet::new());
        for given in &given {
            let call = ids.call(given);
            assert!(call.len() <= 256 && !call.chars().any(char::is_control), "{call}");
            assert!(calls.insert(call.clone()), "{call}");
            let carrier = ids.carrier(&call).unwrap_or_else(|| call.clone());
            for id in [carrier, ids.message(given), ids.reasoning(given), ids.result(&call), ids.beside(&call)] {
                assert!(id.len() <= 256 && !id.chars().any(char::is_control), "{id}");
                assert!(messages.insert(id.clone()), "{id}");
            }
        }
    }

    #[test]
    fn attempts_have_ids_of_their_own() {
        let run = RunId::new();
        let mut ids = Ids::new(run);
        assert_eq!(ids.message("m"), format!("{run}:m"));
        ids.begin_attempt(2);
        assert_eq!(ids.message("m"), format!("{run}:2:m"));
        assert_eq!(ids.call("c"), tool_call_id(run, 2, "c"));
    }
}
