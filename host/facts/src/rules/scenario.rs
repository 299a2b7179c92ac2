//! Scenarios: what a log must have to be a fixture of one.

use std::collections::BTreeSet;

use super::{
    event::Event,
    finding::{Findings, Place},
    rule::Rule,
};

/// Distinct types that are remembered: the list of the standard has 120.
const MAX_TYPES: usize = 1_000;

/// A scenario of the standard, or of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum Scenario {
    TextBasic,
    ToolSuccess,
    ToolFailure,
    HitlAction,
    ArtifactEvidence,
    StreamRepair,
    SubagentHandoff,
    TurnFailure,
    Cancel,
}

/// The needs of a scenario: one type of each line.
type Needs = &'static [&'static [&'static str]];

/// The needs of every scenario.
const TURN: Needs = &[&["turn.submitted"], &["snapshot.updated"]];

/// The needs of scenarios whose turn works.
const WORK: Needs = &[&["turn.started"], &["run.status"]];

impl Scenario {
    /// Every one: the seven of the standard, then failures and cancels.
    pub const ALL: [Self; 9] = [
        Self::TextBasic,
        Self::ToolSuccess,
        Self::ToolFailure,
        Self::HitlAction,
        Self::ArtifactEvidence,
        Self::StreamRepair,
        Self::SubagentHandoff,
        Self::TurnFailure,
        Self::Cancel,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TextBasic => "text-basic",
            Self::ToolSuccess => "tool-success",
            Self::ToolFailure => "tool-failure",
            Self::HitlAction => "hitl-action",
            Self::ArtifactEvidence => "artifact-evidence",
            Self::StreamRepair => "stream-repair",
            Self::SubagentHandoff => "subagent-handoff",
            Self::TurnFailure => "turn-failure",
            Self::Cancel => "cancel",
        }
    }

    /// The scenario with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.as_str() == name)
    }

    const fn needs(self) -> Needs {
        match self {
            Self::TextBasic => &[&["model.requested"], &["model.completed"], &["turn.completed"]],
            Self::ToolSuccess => &[&["tool.started"], &["tool.result"], &["turn.completed"]],
            Self::ToolFailure => &[&["tool.started"], &["tool.failed"]],
            Self::HitlAction => {
                &[&["action.required"], &["action.resolved"], &["turn.completed", "turn.failed", "turn.canceled"]]
            }
            Self::ArtifactEvidence => &[&["artifact.changed"], &["evidence.changed"], &["turn.completed"]],
            Self::StreamRepair => &[&[REPAIR]],
            Self::SubagentHandoff => &[
                &["task.created"],
                &["subagent.started", "subagent.spawned"],
                &["channel.opened", "handoff.requested"],
                &["subagent.completed", "subagent.failed"],
            ],
            Self::TurnFailure => &[&["turn.failed"]],
            Self::Cancel => &[&["turn.canceled"]],
        }
    }
}

/// A snapshot that says what it repairs.
const REPAIR: &str = "snapshot.updated with repairReason";

/// The types that a log has had.
#[derive(Debug, Default)]
pub(crate) struct Types(BTreeSet<String>);

impl Types {
    pub(crate) fn add(&mut self, event: &Event<'_>) {
        if self.0.len() < MAX_TYPES && !self.0.contains(event.kind) {
            self.0.insert(event.kind.to_owned());
        }
        if event.kind.starts_with("snapshot.") && event.says(&["repairReason"]) {
            self.0.insert(REPAIR.to_owned());
        }
    }

    /// Findings for what the scenario needs and the log has not, at its last line.
    pub(crate) fn check(&self, scenario: Scenario, line: u64, findings: &mut Findings) {
        // A turn may fail or be cancelled while it is queued.
        let work = if matches!(scenario, Scenario::TurnFailure | Scenario::Cancel) { &[] } else { WORK };
        for need in TURN.iter().chain(work).chain(scenario.needs()) {
            if !need.iter().any(|kind| self.0.contains(*kind)) {
                let message = format!("`{}` needs `{}`, which the log has not", scenario.as_str(), need.join("` or `"));
                findings.add(Rule::ExpectMissing, Place { line: Some(line), event_id: None }, message);
            }
        }
    }
}
