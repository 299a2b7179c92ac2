//! The last message of an ended run.

use agent_host_protocol::{ResultKind, Run, RunEvent, RunId, limits::MAX_PAGE};
use agent_host_runs::{LedgerError, Records};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{app::App, http::Problem};

/// Most runs end with their message right before the terminal event, so a look at so few finds it.
const TAIL: u32 = 4;

/// Largest number of pages to search for a message before the end of a run. A run with its last message before that is
/// shown without output; its events have it. The limit bounds the cost of one answer.
const MAX_PAGES: u32 = 10;

/// The last message of a run that has ended: the one that its completion carries, else that of its last
/// `message.completed`. `None` where there is none among its last thousand events.
pub(crate) async fn of(app: &App, run: &Run) -> Result<Option<Box<RawValue>>, Problem> {
    let (id, last) = (run.run_id, run.last_sequence);
    if let Some(message) = within(&app.host.records(), id, last.saturating_sub(TAIL.into()), TAIL)? {
        return Ok(Some(message));
    }
    if last <= TAIL.into() {
        return Ok(None);
    }
    app.read(move |records| {
        let mut end = last;
        for _ in 0..MAX_PAGES {
            let start = end.saturating_sub(MAX_PAGE.into());
            if let Some(message) = within(records, id, start, MAX_PAGE)? {
                return Ok(Some(message));
            }
            if start == 0 {
                break;
            }
            end = start;
        }
        Ok(None)
    })
    .await
}

/// The last message among the `count` events after sequence `start`.
fn within(records: &Records, id: RunId, start: u64, count: u32) -> Result<Option<Box<RawValue>>, LedgerError> {
    let after = (start > 0).then(|| Records::run_cursor(id, start));
    let page = records.run_events(id, after.as_deref(), count)?;
    Ok(page.items.iter().rev().find_map(message))
}

/// The message that an event carries.
fn message(event: &RunEvent) -> Option<Box<RawValue>> {
    #[derive(Deserialize)]
    struct Carrier<'a> {
        #[serde(borrow, default)]
        message: Option<&'a RawValue>,
    }
    match ResultKind::from_name(&event.kind) {
        Some(ResultKind::MessageCompleted | ResultKind::RunCompleted) => {
            serde_json::from_str::<Carrier<'_>>(event.data.get()).ok()?.message.map(ToOwned::to_owned)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: &str, data: &str, expect: Option<&str>) {
        let data = RawValue::from_string(data.to_owned()).unwrap();
        let event = RunEvent {
            run_id: RunId::new(),
            kind: kind.to_owned(),
            data,
            sequence: 1,
            timestamp: 1,
            source: agent_host_protocol::EventSource::Host,
            metadata: None,
        };
        assert_eq!(message(&event).as_deref().map(RawValue::get), expect);
    }

    #[test]
    fn only_whole_messages_are_output() {
        check("message.completed", r#"{"message_id":"m","message":{"role":"assistant"}}"#, Some(r#"{"role":"assistant"}"#));
        check("run.completed", r#"{"finish_reason":"stop","message":{"role":"assistant"}}"#, Some(r#"{"role":"assistant"}"#));
        check("run.completed", r#"{"finish_reason":"stop"}"#, None);
        check("run.completed", r#"{"message":null}"#, None);
        check("run.completed", "7", None);
        check("message.delta", r#"{"message":{}}"#, None);
        check("run.failed", r#"{"code":"runner.error","message":"what happened"}"#, None);
    }
}
