//! The kept log of a run.

use std::time::Duration;

use agent_host_protocol::{RunId, RunLogPage, Scope, limits::MAX_PAGE};
use axum::{
    http::StatusCode,
    response::{Response, sse::Event},
};
use futures_util::{StreamExt, stream};
use serde_json::json;

use crate::{
    access::ApiRequest,
    app::{App, off_thread},
    http::{
        Id, Problem,
        accept::{Form, negotiate},
        headers::last_event_id,
        json as json_answer, sse,
    },
    openapi::{AfterParams, refusals},
};

/// Pause of a stream that has sent all lines. Lines are kept each second, so a shorter pause shows them no earlier by much.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest wait for the last lines of a run that has ended: its execution is over a moment after its end is committed.
const LAST_LINES: u32 = 10;

refusals!(LogRefusals = [NotFound, InvalidCursor, NotAcceptable, TooManyStreams]);

/// The log of a run: a page, or a stream for those who name it in `Accept`
///
/// Lines that its guest wrote to `log` and to its standard streams: the newest lines, within `limits.log_bytes`. The stream has the kept lines,
/// then those that come (`event: line`, the cursor as `id`), and ends after the end of the run with `event: end`, whose `data` has
/// the status of the run. Runs of executors have no log here.
#[utoipa::path(get, path = "/api/v1/runs/{id}/logs", tag = "runs", security(("bearer" = ["runs:read"])),
    params(
        Id<RunId>,
        AfterParams,
        ("Last-Event-ID" = Option<String>, Header, description = "Of a stream: the `id` of the last event that was seen. It wins over `after`."),
    ),
    responses(
        (status = 200, description = "A page of lines, or the stream of them.", content(
            (RunLogPage = "application/json"),
            (String = "text/event-stream"),
        )),
        LogRefusals,
    ))]
pub(crate) async fn logs(Id(id): Id<RunId>, mut request: ApiRequest) -> Result<Response, Problem> {
    request.caller.may(Scope::RunsRead)?;
    let after = request.query.text("after");
    let limit = request.query.limit()?;
    request.query.finish()?;
    let form = negotiate(&request.headers)?;
    request.run(id)?;
    match form {
        Form::Page => Ok(json_answer(StatusCode::OK, &read(&request.app, id, after, limit).await?)),
        Form::Stream => {
            let after = last_event_id(&request.headers)?.or(after);
            // A cursor that is none is refused before the stream begins.
            read(&request.app, id, after.clone(), 1).await?;
            follow(&request.app, id, after)
        }
    }
}

async fn read(app: &App, id: RunId, after: Option<String>, limit: u32) -> Result<RunLogPage, Problem> {
    let host = app.host.clone();
    off_thread(move || host.run_log(id, after.as_deref(), limit)).await
}

/// The state of a stream.
struct Follower {
    app: App,
    id: RunId,
    after: Option<String>,
    /// Reads without a line since the end of the run.
    quiet: u32,
    ended: bool,
}

fn follow(app: &App, id: RunId, after: Option<String>) -> Result<Response, Problem> {
    let place = app.subscribe()?;
    let open = app.http.streaming();
    let follower = Follower { app: app.clone(), id, after, quiet: 0, ended: false };
    let pieces = stream::unfold(follower, |mut follower| async move { Some((follower.next().await?, follower)) });
    let events = sse::with_retry(pieces.flat_map(stream::iter)).take_until(app.closing.clone().cancelled_owned());
    Ok(sse::respond(events, (place, open)))
}

impl Follower {
    /// The next events, one page at most; `None` after the end.
    async fn next(&mut self) -> Option<Vec<Event>> {
        if self.ended {
            return None;
        }
        Some(self.piece().await.unwrap_or_else(|problem| {
            self.ended = true;
            // Without an `id`, so that a client continues from its last position after a reconnect.
            vec![Event::default().event("problem").data(problem.to_json())]
        }))
    }

    async fn piece(&mut self) -> Result<Vec<Event>, Problem> {
        loop {
            // The status before the lines: all lines of a run that has ended are there, but for those that a task still writes.
            let id = self.id;
            let status = self.app.read(move |records| records.run(id)).await?.map(|record| record.run.status);
            let is_over = status.is_none_or(|status| status.is_terminal());
            let is_writing = self.app.host.is_logging(id);
            let page = read(&self.app, id, self.after.clone(), MAX_PAGE).await?;
            if !page.items.is_empty() {
                let lines = page.items.iter().map(|line| {
                    Event::default().id(line.no.to_string()).event("line").json_data(line).map_err(Problem::internal)
                });
                let lines = lines.collect::<Result<Vec<_>, _>>()?;
                self.after = page.next_cursor;
                return Ok(lines);
            }
            if is_over && (!is_writing || self.quiet >= LAST_LINES) {
                self.ended = true;
                let end = json!({ "run_id": id, "status": status });
                return Ok(vec![Event::default().event("end").json_data(end).map_err(Problem::internal)?]);
            }
            self.quiet += u32::from(is_over);
            tokio::time::sleep(PAUSE).await;
        }
    }
}
