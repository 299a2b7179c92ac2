//! The answer to a request that became an event: the same for events, webhooks and queries of pipelines.

use agent_host_protocol::{EventId, Run, RunId, message::Message};
use agent_host_runs::AcceptedEvent;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// An event that was taken.
#[derive(Serialize, ToSchema)]
#[schema(as = AcceptedEvent)]
pub(super) struct Accepted {
    /// Id of the event.
    event_id: EventId,
    /// Ids of the runs that answer it, in the order of their bindings: none where no binding matches.
    run_ids: Vec<RunId>,
    /// The same runs. Not in the answer to a webhook: the sender has signed a request, and may read nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Vec<AcceptedRun>>,
    /// The one run of a query of a pipeline, once more, under the name that LangBot reads: an `AgentRun` of LangBot, with `dialect=v1` a
    /// `Run`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    run: Option<Run>,
}

/// A run, with what it said in the end where the client waited for that.
#[derive(Serialize, ToSchema)]
pub(super) struct AcceptedRun {
    #[serde(flatten)]
    pub(super) run: Run,
    /// Absent while the run is active; `null` if it ended without a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Message>)]
    pub(super) output: Option<Option<Box<RawValue>>>,
}

impl Accepted {
    /// The answer to who may not read runs.
    pub(super) fn ids(accepted: AcceptedEvent) -> Self {
        Self { event_id: accepted.event_id, run_ids: accepted.runs, runs: None, run: None }
    }

    /// The answer with the runs.
    pub(super) fn runs(accepted: AcceptedEvent, runs: Vec<AcceptedRun>) -> Self {
        Self { runs: Some(runs), ..Self::ids(accepted) }
    }

    /// The answer to a query, which has one run.
    pub(super) fn query(accepted: AcceptedEvent, run: Run) -> Self {
        let again = Some(run.clone());
        Self { run: again, ..Self::runs(accepted, vec![AcceptedRun { run, output: None }]) }
    }
}
