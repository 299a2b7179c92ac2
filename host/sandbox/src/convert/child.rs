//! Other runs, and what arrives while a run is active.

use agent_host_protocol::{Page, RunEvent, RunStatus, child::RunSummary, context::SteeringInput};

use super::context::{event_out, input_out};
use crate::bindings::{runs as wr, steering as ws};

fn status_out(status: RunStatus) -> wr::RunStatus {
    match status {
        RunStatus::Created => wr::RunStatus::Created,
        RunStatus::Queued => wr::RunStatus::Queued,
        // The contract has one status for both.
        RunStatus::Dispatching | RunStatus::Claimed => wr::RunStatus::Claimed,
        RunStatus::Running => wr::RunStatus::Running,
        RunStatus::Waiting => wr::RunStatus::Waiting,
        RunStatus::Completed => wr::RunStatus::Completed,
        RunStatus::Failed => wr::RunStatus::Failed,
        RunStatus::Cancelled => wr::RunStatus::Cancelled,
        RunStatus::Timeout => wr::RunStatus::Timeout,
    }
}

pub(crate) fn run_summary_out(run: RunSummary) -> wr::RunSummary {
    wr::RunSummary {
        run_id: run.run_id.to_string(),
        parent_run_id: run.parent_run_id.map(|id| id.to_string()),
        runner_id: run.runner_id.to_string(),
        status: status_out(run.status),
        status_reason: run.status_reason,
        created_at: run.created_at,
        finished_at: run.finished_at,
    }
}

pub(crate) fn run_event_page_out(page: Page<RunEvent>) -> wr::RunEventPage {
    let event_out = |event: RunEvent| wr::RunEvent {
        run_id: event.run_id.to_string(),
        sequence: event.sequence,
        type_: event.kind,
        data: event.data.get().to_owned(),
        created_at: event.timestamp,
    };
    wr::RunEventPage { items: page.items.into_iter().map(event_out).collect(), next: page.next_cursor, has_more: page.has_more }
}

pub(crate) fn steering_out(steering: SteeringInput) -> ws::SteeringInput {
    ws::SteeringInput { event: event_out(steering.event), input: input_out(steering.input) }
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::{context::Input, message::ContentPart};
    use serde_json::json;

    use super::*;
    use crate::convert;

    #[test]
    fn an_input_reads_back_as_it_was_given() {
        let input = Input {
            text: Some("see this".to_owned()),
            contents: vec![ContentPart::Text("a".to_owned()), ContentPart::Other(json!({ "type": "place", "at": [1, 2] }))],
            attachments: vec![serde_json::from_value(json!({ "artifact_id": "a1", "media_type": "text/plain" })).unwrap()],
            message_chain: Some(json!([{ "type": "Plain" }])),
        };
        assert_eq!(convert::input(input_out(input.clone())).unwrap(), input);
    }

    #[test]
    fn statuses_keep_their_names() {
        for status in RunStatus::ALL {
            let name = format!("{:?}", status_out(status));
            // The contract has no name for a run that is offered to an executor.
            let expected = if status == RunStatus::Dispatching { RunStatus::Claimed } else { status };
            assert_eq!(name.rsplit("::").next().unwrap().to_lowercase(), expected.as_str());
        }
    }
}
