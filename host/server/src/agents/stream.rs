//! A run as a response: read as fast as the client takes it.

use std::{convert::Infallible, time::Duration};

use agent_host_protocol::{RunId, run::Execution};
use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::{
    session::{JoinPoint, Marks, Session, Viewer},
    store::{RunEntry, Thread},
    thread::{self, OpenActions},
};
use crate::{
    agui::{
        coalesce::coalesce,
        cursor::{Cursor, Place, StampedEvent},
        event::Kind,
        legacy,
        project::End,
        wire::{self, Wire},
    },
    app::{App, off_thread},
    http::{
        Problem,
        sse::{KEEP_ALIVE, NO_BUFFERING},
    },
};

const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Events that are written at one time, where so many are there.
const AT_ONCE: usize = 64;

/// Opens the stream of a run.
pub(crate) async fn open(
    app: &App,
    thread: Thread,
    run: RunEntry,
    joining: JoinPoint,
    viewer: Viewer,
) -> Result<Response, Problem> {
    let host_run = run.host_run;
    let record = app.host.records().run(host_run)?.ok_or_else(|| Problem::not_found("the run is gone"))?;
    let delivered = Session::delivered(&joining, &run, &record)?;
    let is_plain = run.from == 0 && matches!(joining, JoinPoint::Begins { contradicted: false, .. });
    let follow = Box::pin(app.host.follow(host_run, delivered)?);
    let external = record.run.execution == Execution::External;
    let mut session = Session::new(app, thread, run, joining, viewer, external, follow);
    let session = if is_plain {
        // Two reads of the ledger: not worth another thread.
        session.join(&record, delivered)?;
        session
    } else {
        off_thread(move || session.join(&record, delivered).map(|()| session)).await?
    };
    if session.is_empty() {
        // No event is left, and a client that uses `EventSource` does not reconnect.
        return Ok((StatusCode::NO_CONTENT, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))]).into_response());
    }
    respond(session, Some(host_run))
}

/// Answers with a thread in which no run is under way: what it is, and that there is nothing to wait for but what is asked.
pub(crate) async fn rest(
    app: &App,
    thread: Thread,
    last: Option<RunId>,
    open_actions: OpenActions,
    viewer: Viewer,
) -> Result<Response, Problem> {
    let run = RunEntry::whole("", viewer.run_id.as_str(), last.unwrap_or_else(RunId::new));
    let mut session = Session::new(app, thread, run, JoinPoint::Attaches, viewer, false, Box::pin(stream::empty()));
    let session = off_thread(move || {
        if let Some(last) = last {
            session.state = thread::state(&session.app, last)?.map(Value::Object);
        }
        let mut prelude = vec![session.started(), session.snapshot(None)?];
        prelude.extend(session.state.clone().map(|snapshot| Kind::StateSnapshot { snapshot }.into()));
        session.say(prelude, 0);
        let (pending, interrupts) = (open_actions.pending(), open_actions.interrupts());
        let end = if interrupts.is_empty() {
            End::Success { result: None, pending, usage: Vec::new() }
        } else {
            End::Interrupt { interrupts, usage: Vec::new() }
        };
        session.end(end, Cursor { sequence: 0, part: u32::MAX }.into());
        Ok::<_, Problem>(session)
    });
    respond(session.await?, None)
}

/// The response, which is read as fast as the client takes it.
fn respond(session: Session, watched: Option<RunId>) -> Result<Response, Problem> {
    let app = session.app.clone();
    let place = app.subscribe()?;
    let open = app.http.streaming();
    let viewer = session.viewer.clone();
    let window = app.host.config().agui.coalesce();
    let mut watching = watched.map(|run| app.host.watch(run)).map(|watch| if viewer.named { watch.looking() } else { watch });
    let events = stream::unfold(session, |mut session| async move { session.next().await.map(|event| (event, session)) });
    let wire = viewer.wire;
    let idle = viewer.idle;
    let encoded = coalesce(events, window).map(move |stamped| {
        if stamped.event.kind.is_terminal()
            && let Some(watching) = &mut watching
        {
            watching.stream_ended();
        }
        encode(&viewer, stamped)
    });
    let pieces = Box::pin(encoded.ready_chunks(AT_ONCE).map(joined));
    let body = stream::unfold((pieces, place, open, Duration::ZERO), move |(mut pieces, place, open, mut silent)| async move {
        loop {
            let wait = idle.map_or(KEEP_ALIVE, |idle| KEEP_ALIVE.min(idle.saturating_sub(silent)));
            match tokio::time::timeout(wait, pieces.next()).await {
                Ok(piece) => {
                    return piece.map(|piece| (Ok::<_, Infallible>(piece), (pieces, place, open, Duration::ZERO)));
                }
                Err(_) => {
                    silent += wait;
                    if idle.is_some_and(|idle| silent >= idle) {
                        return None;
                    }
                    if wire == Wire::Sse {
                        return Some((Ok(COMMENT), (pieces, place, open, silent)));
                    }
                }
            }
        }
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(wire.media_type())),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        NO_BUFFERING,
    ];
    Ok((StatusCode::OK, headers, Body::from_stream(body)).into_response())
}

fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.pop().unwrap_or_default();
    }
    pieces.concat().into()
}

fn encode(viewer: &Viewer, stamped: StampedEvent) -> Bytes {
    let StampedEvent { mut event, at } = stamped;
    // Events at a break of the host have no position; a client that has them continues from its last position.
    let placed = Some(at).filter(|at| *at != Place::default());
    match (viewer.marks, &placed) {
        (Marks::Cursors, Some(at)) => {
            let mark = event.metadata.entry("agentHost").or_insert_with(|| json!({}));
            if let Some(mark) = mark.as_object_mut() {
                mark.insert("cursor".to_owned(), format!("{}:{at}", viewer.run_id).into());
            }
        }
        (Marks::Agno, Some(at)) => {
            event
                .metadata
                .insert("agnoBackground".to_owned(), json!({ "eventIndex": at.cursor.sequence, "subIndex": at.cursor.part }));
        }
        _ => {}
    }
    let event = if viewer.is_old { legacy::down(event) } else { event };
    match viewer.wire {
        Wire::Sse if viewer.named => {
            let id = placed.map(|at| format!("{}:{at}", viewer.run_id));
            wire::sse_named(&event, id.as_deref())
        }
        Wire::Sse => wire::sse_placed(&event, placed.map(|at| format!("{}:{at}", viewer.run_id)).as_deref()),
        Wire::Protobuf => wire::protobuf(&event),
    }
}
