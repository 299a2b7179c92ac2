//! Unsolicited messages of a server: progress, a changed list of tools, requests. Their rate and size are bounded.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rmcp::model::{
    ClientJsonRpcMessage, CustomRequest, GetExtensions, GetMeta, JsonRpcMessage, ProgressNotificationParam, ProgressToken,
    RequestId, ServerJsonRpcMessage, ServerNotification, ServerRequest,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Replies to a server's own requests that may be under way. A server that asks faster than it reads gets no more.
const MAX_REPLIES: usize = 32;
/// The longest id that a server may give its own request.
const MAX_ID: usize = 128;
/// A question to a person, which is declined instead of refused.
pub(super) const ELICIT: &str = "elicitation/create";
/// Unsolicited messages of a server in one `WINDOW`; with more, the host stops reading until the window ends.
const MAX_IN_WINDOW: u32 = 500;
/// See [`MAX_IN_WINDOW`].
const WINDOW: Duration = Duration::from_millis(100);

/// The progress of a call, in the server's words.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Grows with every report.
    pub progress: f64,
    /// Total at the end, if known.
    pub total: Option<f64>,
    /// Description of the present work.
    pub message: Option<String>,
}

/// The latest progress of a call. The transport puts it there, the call takes it out; what nobody took is overwritten.
#[derive(Debug, Default)]
pub(super) struct ProgressSlot {
    latest: Mutex<Option<ProgressNotificationParam>>,
    arrived: Notify,
}

impl ProgressSlot {
    pub(super) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    pub(super) fn take(&self) -> Option<ProgressNotificationParam> {
        self.latest.lock().take()
    }
}

/// Travels with a `tools/call` to the transport, which learns there under which token progress will come.
#[derive(Debug, Clone)]
pub(super) struct WantsProgress(pub(super) Weak<ProgressSlot>);

/// The values that the transport of one connection and its supervisor share.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    slots: Mutex<HashMap<ProgressToken, Weak<ProgressSlot>>>,
    tools_changed: Notify,
    replies: AtomicUsize,
    window: Mutex<Option<(Instant, u32)>>,
    fault: Mutex<Option<String>>,
}

impl Inbox {
    /// Waits until the server has said that its tools changed. Several times are once.
    pub(super) async fn tools_changed(&self) {
        self.tools_changed.notified().await;
    }

    /// The reason why the transport gave up, if known.
    pub(super) fn fault(&self) -> Option<String> {
        self.fault.lock().clone()
    }

    /// The first reason counts; what follows is its consequence.
    pub(super) fn set_fault(&self, why: impl Into<String>) {
        self.fault.lock().get_or_insert_with(|| why.into());
    }

    /// Looks at a message before it is sent.
    pub(super) fn outgoing(self: &Arc<Self>, message: &ClientJsonRpcMessage) -> Option<Reply> {
        match message {
            JsonRpcMessage::Request(request) => {
                let wants = request.request.extensions().get::<WantsProgress>();
                if let (Some(wants), Some(token)) = (wants, request.request.get_meta().get_progress_token()) {
                    let mut slots = self.slots.lock();
                    if wants.0.strong_count() > 0 {
                        slots.insert(token, wants.0.clone());
                    }
                }
                None
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => Some(Reply(self.clone())),
            JsonRpcMessage::Notification(_) => None,
        }
    }

    /// A call has ended.
    pub(super) fn forget(&self, token: &ProgressToken) {
        self.slots.lock().remove(token);
    }

    /// Sorts out what has arrived: `None` where nobody waits for it.
    pub(super) fn incoming(&self, message: ServerJsonRpcMessage) -> Option<ServerJsonRpcMessage> {
        match message {
            JsonRpcMessage::Notification(notification) => match notification.notification {
                ServerNotification::ProgressNotification(progress) => {
                    let slot = self.slots.lock().get(&progress.params.progress_token).and_then(Weak::upgrade);
                    if let Some(slot) = slot {
                        *slot.latest.lock() = Some(progress.params);
                        slot.arrived.notify_one();
                    }
                    None
                }
                ServerNotification::ToolListChangedNotification(_) => {
                    self.tools_changed.notify_one();
                    None
                }
                ServerNotification::SubscriptionsAcknowledgedNotification(_) => Some(JsonRpcMessage::Notification(notification)),
                _ => None,
            },
            JsonRpcMessage::Request(request) => {
                if matches!(&request.id, RequestId::String(id) if id.len() > MAX_ID) {
                    return None;
                }
                let free =
                    self.replies.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < MAX_REPLIES).then_some(n + 1));
                free.is_ok().then(|| JsonRpcMessage::request(without_content(&request.request), request.id))
            }
            answer => Some(answer),
        }
    }

    /// Counts one thing that was said unasked. Until when not to listen, if it was one too many.
    pub(super) fn unasked(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut window = self.window.lock();
        let (began, count) = window.get_or_insert((now, 0));
        if now.duration_since(*began) >= WINDOW {
            (*began, *count) = (now, 0);
        }
        *count += 1;
        (*count > MAX_IN_WINDOW).then(|| *began + WINDOW)
    }

    /// Counts one thing that was said unasked, and waits where it was one too many.
    pub(super) async fn slow_down(&self) {
        if let Some(until) = self.unasked() {
            sleep_until(until).await;
        }
    }
}

/// The request without its content: every request except a ping is refused, and rmcp must not write the content to the log.
fn without_content(request: &ServerRequest) -> ServerRequest {
    let method = match request {
        ServerRequest::PingRequest(ping) => return ServerRequest::PingRequest(ping.clone()),
        ServerRequest::ElicitRequest(_) => ELICIT,
        ServerRequest::CreateMessageRequest(_) => "sampling/createMessage",
        ServerRequest::ListRootsRequest(_) => "roots/list",
        _ => "this",
    };
    ServerRequest::CustomRequest(CustomRequest::new(method, None))
}

/// A reply to a request of the server, until it is sent or given up.
#[derive(Debug)]
pub(super) struct Reply(Arc<Inbox>);

impl Drop for Reply {
    fn drop(&mut self) {
        // A reply that rmcp makes by itself, such as to a request that it could not read, was not counted.
        let _ = self.0.replies.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}
