//! Ids in facts: made of the id of the run and of the name that the runner gave the thing, the same each time.

use std::collections::{HashMap, HashSet};

use agent_host_protocol::RunId;

use crate::safe::{MAX_NAME_CHARS, beginning};

/// Makes the ids of one run. No two things of a kind have the same.
#[derive(Debug)]
pub(super) struct Ids {
    run: String,
    attempt: u32,
    taken: HashSet<(Kind, String)>,
    /// The number of the last one, where a runner has named several alike.
    last: HashMap<(Kind, String), u32>,
    steps: u64,
}

/// A kind of thing that has ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Message,
    Tool,
    Action,
    Model,
    Task,
}

impl Ids {
    pub(super) fn new(run: RunId) -> Self {
        Self { run: run.to_string(), attempt: 1, taken: HashSet::new(), last: HashMap::new(), steps: 0 }
    }

    pub(super) fn run(&self) -> &str {
        &self.run
    }

    pub(super) const fn attempt(&self) -> u32 {
        self.attempt
    }

    pub(super) const fn begin_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
    }

    /// A new id for something that the runner or the host names like this.
    pub(super) fn of(&mut self, kind: Kind, given: &str) -> String {
        let name = label(given);
        // The names of the host have the run in them.
        let base = match name.strip_prefix(self.run.as_str()) {
            Some(rest) if rest.starts_with(['.', ':']) => name,
            _ if self.attempt > 1 => format!("{}:{}:{name}", self.run, self.attempt),
            _ => format!("{}:{name}", self.run),
        };
        self.fresh(kind, base)
    }

    /// The id for something that a runner names again and again, such as a task of its own plan.
    pub(super) fn known(&mut self, kind: Kind, given: &str) -> String {
        let id = format!("{}:own:{}", self.run, label(given));
        self.taken.insert((kind, id.clone()));
        id
    }

    /// A new id for something whose name is unique in the host, such as a child run.
    pub(super) fn foreign(&mut self, kind: Kind, given: &str) -> String {
        let base = label(given);
        self.fresh(kind, base)
    }

    fn fresh(&mut self, kind: Kind, base: String) -> String {
        if self.taken.insert((kind, base.clone())) {
            return base;
        }
        loop {
            let number = self.last.entry((kind, base.clone())).or_insert(1);
            *number += 1;
            let fresh = format!("{base}:{number}");
            if self.taken.insert((kind, fresh.clone())) {
                return fresh;
            }
        }
    }

    /// The id of the next step: one for each call of a tool.
    pub(super) fn step(&mut self) -> String {
        self.steps += 1;
        format!("{}:step:{}", self.run, self.steps)
    }

    /// The id of an attempt at the run.
    pub(super) fn attempt_id(&self, attempt: u32) -> String {
        format!("{}:attempt:{attempt}", self.run)
    }
}

/// A name of a runner, made safe for an id.
pub(super) fn label(given: &str) -> String {
    let short = beginning(given, MAX_NAME_CHARS);
    let clean: String = short.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    if clean.is_empty() { "_".to_owned() } else { clean }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_things_of_a_kind_have_the_same_id() {
        let run = RunId::new();
        let mut ids = Ids::new(run);
        let given: Vec<String> =
            ["", "\n", "_", "m", "m", "m:2", "m"].into_iter().map(str::to_owned).chain([format!("{run}.3")]).collect();
        let mut seen = HashSet::new();
        for given in &given {
            let id = ids.of(Kind::Tool, given);
            assert!(id.starts_with(&run.to_string()) && !id.chars().any(char::is_control), "{id}");
            assert!(seen.insert(id.clone()), "{id}");
        }
        ids.begin_attempt(2);
        assert_eq!(ids.of(Kind::Tool, "m"), format!("{run}:2:m"));
        assert_eq!(ids.of(Kind::Action, &format!("{run}.3")), format!("{run}.3"), "an action keeps the id of the host");
    }
}
