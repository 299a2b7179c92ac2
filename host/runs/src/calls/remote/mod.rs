//! Host calls of a run under a claim: the functions of the contract by name, with arguments and answers as JSON. The calls
//! use the same traits as those of a guest, and so the same gate.
//!
//! The module owns names, shapes and sizes of messages. Grants, size limits and rate limits are checked by the gate, as for
//! a guest.

use std::{borrow::Cow, convert::Infallible, sync::Arc};

use agent_host_ledger::ArtifactRecord;
use agent_host_protocol::{ApiError, ErrorCode, Interface, Limits, RunId, model::ModelChunk};
use agent_host_sandbox::{ArtifactCalls, ArtifactWriter, ChatRequest, ModelCalls, Refusals, ResponseStream};
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;

use super::RunCalls;
use crate::record::HostError;

mod answers;
mod arguments;
mod catalog;
mod dispatch;

use Interface::{
    Artifacts, Events, History, Http, Interactions, Knowledge, Models, Platform, Runs, State, Steering, Storage, Tools,
};

/// The functions that an executor can call. The other functions of a guest have replacements: `results` are appended,
/// artifact content has routes of its own, and an executor has a clock.
const FUNCTIONS: [(Interface, &str); 36] = [
    (Models, "invoke"),
    (Models, "stream"),
    (Models, "rerank"),
    (Models, "embed"),
    (Models, "count-tokens"),
    (Tools, "get-detail"),
    (Tools, "call"),
    (Tools, "call-many"),
    (Knowledge, "list"),
    (Knowledge, "retrieve"),
    (History, "page"),
    (History, "search"),
    (Events, "get"),
    (Events, "page"),
    (Artifacts, "metadata"),
    (Artifacts, "read-range"),
    (Artifacts, "create"),
    (State, "get"),
    (State, "set"),
    (State, "delete"),
    (State, "list-keys"),
    (Storage, "get"),
    (Storage, "set"),
    (Storage, "delete"),
    (Storage, "list"),
    (Platform, "request-action"),
    (Interactions, "ask"),
    (Steering, "pull"),
    (Runs, "start"),
    (Runs, "wait-any"),
    (Runs, "get"),
    (Runs, "list"),
    (Runs, "events-page"),
    (Runs, "cancel"),
    (Http, "send"),
    (Artifacts, "open"),
];

/// Bytes of an argument besides its large part: ids, a query, cursors, punctuation.
const ROOM: usize = 64 * 1024;

/// The functions that an executor can call, as `interface.function`, in the order of the contract.
pub fn call_functions() -> impl Iterator<Item = String> {
    FUNCTIONS.iter().filter(|called| **called != OPEN).map(|(interface, function)| format!("{interface}.{function}"))
}

/// A function that has a route of its own.
const OPEN: (Interface, &str) = (Artifacts, "open");

/// A function that was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Function {
    interface: Interface,
    name: &'static str,
}

impl Function {
    fn named(text: &str) -> Option<Self> {
        let (interface, name) = text.split_once('.')?;
        let interface = Interface::from_name(interface)?;
        // The protocol writes `get_detail`, the contract `get-detail`.
        let name = name.replace('_', "-");
        let found = FUNCTIONS.iter().find(|called| called.0 == interface && called.1 == name && **called != OPEN)?;
        Some(Self { interface, name: found.1 })
    }

    /// The largest JSON body of the arguments, in bytes, checked before parsing. The gate checks the values afterwards.
    fn body_bytes(self, limits: &Limits) -> usize {
        let large = match (self.interface, self.name) {
            (Models, _) => limits.model_request_bytes,
            (Tools, "call") => limits.tool_parameters_bytes,
            (Tools, "call-many") => limits.tool_parameters_bytes.saturating_mul(limits.tool_calls).min(limits.host_call_bytes),
            (Artifacts, "create") => base64_bytes(limits.artifact_read_bytes),
            (State, "set") => limits.state_value_bytes,
            (Storage, "set") => base64_bytes(usize::try_from(limits.storage_value_bytes).unwrap_or(usize::MAX)),
            (Platform | Interactions, _) => limits.ask_bytes,
            (Runs, "start") => limits.http_body_bytes,
            (Http, _) => base64_bytes(limits.http_request_bytes),
            _ => 0,
        };
        large.saturating_add(ROOM)
    }

    /// True if the call may take long, so that its caller may go away before the end. Such a call is cancelled then; every
    /// other call is completed.
    fn may_last(self) -> bool {
        match self.interface {
            Models | Tools | Knowledge | Platform | Interactions | Steering | Http => true,
            Runs => self.name == "wait-any",
            _ => false,
        }
    }
}

/// Bytes of that much, as Base64.
const fn base64_bytes(bytes: usize) -> usize {
    bytes.div_ceil(3).saturating_mul(4)
}

/// The reason why a call has no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The contract has no such function.
    Unknown(String),
    /// The gate, or what is behind it, has refused it.
    Refused(ApiError),
    /// The claim under which it was made does not count any more.
    Lost(HostError),
}

impl From<ApiError> for CallError {
    fn from(refusal: ApiError) -> Self {
        Self::Refused(refusal)
    }
}

/// The answer of a call.
pub enum Answer {
    /// A JSON object, as text.
    Json(Vec<u8>),
    /// The answer of a model, piece by piece.
    Stream(Chunks),
}

impl Answer {
    fn of(answer: &impl Serialize) -> Result<Self, CallError> {
        json(answer).map(Self::Json)
    }
}

fn json(answer: &impl Serialize) -> Result<Vec<u8>, CallError> {
    serde_json::to_vec(answer).map_err(|error| {
        tracing::error!(%error, "the answer of a host call cannot be written as JSON");
        ApiError::new(ErrorCode::RuntimeError, "the host could not write the answer; its log has the reason").into()
    })
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Json(json) => f.debug_tuple("Json").field(&String::from_utf8_lossy(json)).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// The scope of a claim: its open calls. The calls stop when the claim ends.
pub(crate) struct ClaimScope {
    run_id: RunId,
    /// The number of the claim.
    claim: u32,
    /// Cancelled when the claim ends.
    closing: CancellationToken,
    /// Read by each call that is under way.
    under_way: RwLock<()>,
}

impl ClaimScope {
    pub(crate) fn new(run_id: RunId, claim: u32) -> Self {
        Self { run_id, claim, closing: CancellationToken::new(), under_way: RwLock::new(()) }
    }

    /// Does something for the run, as long as the claim counts.
    pub(crate) async fn call<T>(&self, work: impl Future<Output = T>) -> Result<T, HostError> {
        let _under_way = self.under_way.read().await;
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(self.lost()),
            done = work => Ok(done),
        }
    }

    /// Ends the scope. No call of the claim is open when this function returns.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        drop(self.under_way.write().await);
    }

    pub(crate) fn lost(&self) -> HostError {
        HostError::ClaimLost(format!(
            "this claim no longer holds run {}: the run has ended, or the claim has expired or was released. Stop working on the run",
            self.run_id
        ))
    }
}

/// The answer of a model, piece by piece. Dropping it ends the call.
pub struct Chunks {
    stream: Box<dyn ResponseStream>,
    scope: Arc<ClaimScope>,
}

impl Chunks {
    /// Waits for the next pieces and gives all that have come; none is the end.
    ///
    /// # Errors
    /// As for any call. After an error there is nothing more.
    pub async fn next(&mut self) -> Result<Vec<ModelChunk>, CallError> {
        Ok(within(&self.scope, self.stream.next()).await??)
    }
}

/// Does something as long as the claim counts.
async fn within<T>(scope: &ClaimScope, work: impl Future<Output = T>) -> Result<T, CallError> {
    scope.call(work).await.map_err(CallError::Lost)
}

/// The host calls of one external run, for the holder of its claim. Calls may be concurrent.
#[derive(Clone)]
pub struct Calls {
    run: RunCalls,
    scope: Arc<ClaimScope>,
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Calls").field(&self.run.run.run_id).finish()
    }
}

impl Calls {
    pub(crate) fn new(run: RunCalls, scope: Arc<ClaimScope>) -> Self {
        Self { run, scope }
    }

    /// The run of the claim.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.run.run.run_id
    }

    /// Bytes that the arguments of any function may have.
    #[must_use]
    pub fn largest_body_bytes(&self) -> usize {
        let function = |called: &(Interface, &'static str)| Function { interface: called.0, name: called.1 };
        FUNCTIONS.iter().map(|called| function(called).body_bytes(&self.run.run.limits)).max().unwrap_or(ROOM)
    }

    /// Bytes that the arguments of a function may have.
    ///
    /// # Errors
    /// Fails with [`CallError::Unknown`] if the contract has no such function.
    pub fn body_bytes(&self, function: &str) -> Result<usize, CallError> {
        Ok(named(function)?.body_bytes(&self.run.run.limits))
    }

    /// The refusal of arguments whose body is larger than [`Calls::body_bytes`]: that of the gate, in the audit.
    ///
    /// # Errors
    /// Fails with the refusal, or if the contract has no such function.
    pub async fn refuse_body(mut self, function: &str, body: usize) -> Result<Infallible, CallError> {
        let called = named(function)?;
        self.open(called).await?;
        let limits = &self.run.run.limits;
        let refusal = match (called.interface, called.name) {
            (Storage, "set") => {
                let limit = usize::try_from(limits.storage_value_bytes).unwrap_or(usize::MAX);
                ApiError::too_large("a storage value", body / 4 * 3, limit)
            }
            _ => ApiError::too_large(&format!("the arguments of `{function}`"), body, called.body_bytes(limits)),
        };
        let refused = self.run.refused(function.to_owned(), body, refusal);
        Err(within(&self.scope, refused).await?.into())
    }

    /// Calls a function of the contract, `interface.function`, with its arguments as a JSON object.
    ///
    /// A caller that goes away while it waits gives up what may last; what it has asked a person is withdrawn then.
    ///
    /// # Errors
    /// Fails if the function does not exist, the call is refused, or the claim is lost before the answer.
    pub async fn call(mut self, function: &str, body: Bytes) -> Result<Answer, CallError> {
        let function = named(function)?;
        self.open(function).await?;
        if function.may_last() {
            return self.dispatched(function, &body).await;
        }
        let call = tokio::spawn(async move { self.dispatched(function, &body).await });
        call.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a host call failed");
            Err(ApiError::new(ErrorCode::RuntimeError, "the host failed in this call; its log has the reason").into())
        })
    }

    async fn dispatched(&mut self, function: Function, body: &[u8]) -> Result<Answer, CallError> {
        if (function.interface, function.name) == (Models, "stream") {
            let body = arguments::without_run_id(body, self.run.run.run_id)?;
            let (model_id, request) = arguments::read::<arguments::Model>("models.stream", &body)?.request()?;
            let stream = within(&self.scope, self.run.model_stream(model_id, ChatRequest::sent(request))).await??;
            return Ok(Answer::Stream(Chunks { stream, scope: Arc::clone(&self.scope) }));
        }
        // Calls of `runs` name other runs.
        let body = match function.interface {
            Runs => Cow::Borrowed(body),
            _ => arguments::without_run_id(body, self.run.run.run_id)?,
        };
        within(&self.scope, self.run.dispatch(function, &body)).await?
    }

    /// Opens an interface. Fails if the run was not granted the interface, as for a guest.
    async fn open(&mut self, Function { interface, name }: Function) -> Result<(), CallError> {
        if self.run.run.terms.grant.interfaces().contains(interface) {
            return Ok(());
        }
        Err(within(&self.scope, self.run.refuse(interface, name)).await?.into())
    }

    /// An artifact whose content is to be read.
    ///
    /// # Errors
    /// As for `artifacts.open`.
    pub async fn artifact(&mut self, id: &str) -> Result<ArtifactRecord, CallError> {
        self.open(Function { interface: OPEN.0, name: OPEN.1 }).await?;
        within(&self.scope, self.run.artifact_open(id.to_owned())).await??;
        Ok(self.run.artifacts().visible(id)?)
    }

    /// A piece of it, at most `length` bytes and at most as much as one call reads; none is the end.
    ///
    /// # Errors
    /// As for `artifacts.read-range`.
    pub async fn read_artifact(&mut self, id: &str, offset: u64, length: u64) -> Result<Vec<u8>, CallError> {
        let most = self.run.run.limits.artifact_read_bytes.min(u32::MAX as usize);
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(most);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Ok(within(&self.scope, self.run.artifact_read_range(id.to_owned(), offset, length)).await??)
    }

    /// Begins an artifact.
    ///
    /// # Errors
    /// As for `artifacts.create`.
    pub async fn create_artifact(&mut self, media_type: String, name: Option<String>) -> Result<NewArtifact, CallError> {
        self.open(Function { interface: Artifacts, name: "create" }).await?;
        let writer = within(&self.scope, self.run.artifact_create(media_type, name)).await??;
        let most = self.run.run.limits.artifact_read_bytes.max(1);
        Ok(NewArtifact { writer, scope: Arc::clone(&self.scope), most, gathered: Vec::new() })
    }

    /// The largest artifact that can be made.
    #[must_use]
    pub fn artifact_bytes(&self) -> u64 {
        self.run.run.limits.artifact_bytes
    }
}

/// An artifact that is being written. Dropping it forgets what was written.
pub struct NewArtifact {
    writer: Box<dyn ArtifactWriter>,
    scope: Arc<ClaimScope>,
    /// Bytes that one call takes.
    most: usize,
    gathered: Vec<u8>,
}

impl std::fmt::Debug for NewArtifact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewArtifact").finish_non_exhaustive()
    }
}

impl NewArtifact {
    /// Writes more of it, gathered to pieces as large as one call takes.
    ///
    /// # Errors
    /// As for `artifacts.writer.write`.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        self.gathered.extend_from_slice(bytes);
        while self.gathered.len() >= self.most {
            let rest = self.gathered.split_off(self.most);
            let piece = std::mem::replace(&mut self.gathered, rest);
            within(&self.scope, self.writer.write(piece)).await??;
        }
        Ok(())
    }

    /// Keeps it, and gives its reference as JSON.
    ///
    /// # Errors
    /// As for `artifacts.writer.finish`.
    pub async fn finish(mut self) -> Result<Vec<u8>, CallError> {
        if !self.gathered.is_empty() {
            let piece = std::mem::take(&mut self.gathered);
            within(&self.scope, self.writer.write(piece)).await??;
        }
        let Self { writer, scope, .. } = self;
        // Once begun it is done, whether the client waits for it or not.
        let finished = tokio::spawn(async move { within(&scope, writer.finish()).await });
        let reference = finished.await.unwrap_or_else(|error| {
            tracing::error!(%error, "an artifact could not be kept");
            Ok(Err(ApiError::new(ErrorCode::RuntimeError, "the host could not store the content; its log has the reason")))
        });
        json(&reference??)
    }
}

fn named(function: &str) -> Result<Function, CallError> {
    Function::named(function).ok_or_else(|| {
        let shown: String = function.chars().take(64).flat_map(char::escape_debug).collect();
        let more = match function.split('.').next() {
            Some("results") => " Results are appended to the run (`POST /api/v1/runs/{id}/append`).",
            Some("timers") => " A program outside has its own clock.",
            Some("artifacts") => " Content is read and written at `/api/v1/runs/{id}/calls/artifacts`.",
            _ => "",
        };
        let all: Vec<_> = call_functions().collect();
        CallError::Unknown(format!("there is no function `{shown}`.{more} There are: {}", all.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_one_name_and_a_bound() {
        let names: Vec<_> = call_functions().collect();
        assert_eq!(names.len(), FUNCTIONS.len() - 1);
        let limits = Limits::default();
        for name in &names {
            let bytes = Function::named(name).unwrap().body_bytes(&limits);
            assert!((ROOM..=limits.host_call_bytes + ROOM).contains(&bytes), "{name}: {bytes}");
        }
        for other in
            ["", "models", "models.", ".invoke", "models.Invoke", "results.emit", "timers.now", "artifacts.open", "a.b.c"]
        {
            assert!(matches!(named(other), Err(CallError::Unknown(_))), "{other}");
        }
    }
}
