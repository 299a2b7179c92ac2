//! The partition that a request is for.
//!
//! Everything of a workspace is in one partition, so the sender decides: the workspace of its key, of its executor, or of the identity provider
//! that has signed its token. A sender of no workspace, such as an operator, names one in the header `X-Workspace` or the parameter `workspace_id`,
//! or names something by its id, which ends with the hash slot of its workspace.

use std::sync::{Arc, OnceLock};

use agent_host_config::Config;
use agent_host_protocol::{
    HashSlot, Principal, RunId,
    auth::{KEY_PREFIX, LEASE_PREFIX, MCP_PREFIX, WORKSPACE_HEADER, executor_of},
};
use agent_host_runs::{HostProcess, Partition};
use axum::{
    extract::Request,
    http::{HeaderName, Method, Uri, header},
};

use super::{
    executors::ExecutorRequest,
    feeds::is_feed,
    listeners::ClusterPartition,
    lists::{Order, order_of},
    owner::Owner,
    statistics::Counted,
};
use crate::{
    access::{identity::issuer_of, stream_token},
    http::{
        Problem, ProblemCode,
        accept::{Form, negotiate},
        headers, percent,
        query::ACCESS_TOKEN,
        workspaces::{is_of_the_host, is_of_workspaces},
    },
};

/// Names the workspace of a request whose sender is of none.
const WORKSPACE: HeaderName = HeaderName::from_static(WORKSPACE_HEADER);

/// A file of one partition, which nobody merges: without a workspace it would be that of a part of the cluster.
const BACKUP: &str = "/api/v1/backup";

/// Paths whose next segment begins with an id that the host has made.
const NAMES: [&str; 9] = [
    "/api/v1/actions/",
    "/api/v1/agent/attachments/",
    "/api/v1/artifacts/",
    "/api/v1/dead-letters/",
    "/api/v1/deliveries/",
    "/api/v1/events/",
    EXECUTORS,
    "/api/v1/runs/",
    "/mcp/runs/",
];
const EXECUTORS: &str = "/api/v1/executors/";
/// Threads have ids of clients, and their turns, tasks and actions those of runs.
const THREADS: &str = "/api/v1/threads/";
/// Characters of the id of a run, with which that of an action begins.
const ID_LEN: usize = 36;

/// The place at which a request is answered.
pub(super) enum Destination<'a> {
    Of(&'a ClusterPartition),
    /// The list of all partitions, in this order.
    All(&'a [ClusterPartition], Order),
    /// The streams of all partitions.
    Feeds(&'a [ClusterPartition]),
    /// The statistics of all partitions.
    Counted(&'a [ClusterPartition], Counted),
    /// All partitions, for an executor of no workspace.
    OfExecutor(&'a [ClusterPartition], &'a HostProcess, ExecutorRequest),
}

/// See the module.
#[derive(Clone)]
pub(super) struct Routing {
    first: ClusterPartition,
    partitions: Arc<[ClusterPartition]>,
    process: Arc<OnceLock<HostProcess>>,
}

/// The sender of a request, as far as it decides on the partition.
enum Sender {
    /// Of a workspace in this slot.
    Of(HashSlot),
    /// Of no workspace.
    Everywhere,
    /// An executor with the slot of what is of no workspace.
    Executor,
    /// A sender that this host does not know: the first partition, which has the keys, refuses the request.
    Unknown,
    /// The holder of a token for one run, which the path names.
    OfRun,
}

impl Routing {
    /// Of all partitions, with the first one.
    pub(super) fn new(first: ClusterPartition, partitions: Arc<[ClusterPartition]>, process: Arc<OnceLock<HostProcess>>) -> Self {
        Self { first, partitions, process }
    }

    /// The partition that a request is for, or all of them. Of what no id names, it is the first one.
    ///
    /// # Errors
    /// [`ProblemCode::PartitionMoving`] before the process has started; [`ProblemCode::InvalidArgument`] for what nobody merges, where the
    /// sender names no workspace.
    pub(super) fn destination_of(&self, request: &Request) -> Result<Destination<'_>, Problem> {
        let path = request.uri().path();
        if self.partitions.len() == 1 || is_of_the_host(path) {
            return Ok(Destination::Of(&self.first));
        }
        if !is_of_workspaces(path) {
            // Pages, their files and the numbers of the host: the same at every one.
            let own = self.partitions.iter().find(|partition| matches!(partition.owner(), Owner::Here(_)));
            return Ok(Destination::Of(own.unwrap_or(&self.first)));
        }
        let Some(process) = self.process.get() else {
            let detail = "this host is starting: send the request again in a moment, or to another host";
            return Err(Problem::new(ProblemCode::PartitionMoving, detail));
        };
        if let Some(name) = path.strip_prefix("/api/v1/hooks/") {
            let config = process.config();
            let source = config.webhook_sources.iter().find(|source| source.name == name);
            let slot = HashSlot::of_workspace(source.and_then(|source| source.workspace_id.as_deref()));
            return Ok(Destination::Of(self.with(slot)));
        }
        let sender = sender(process, request);
        if matches!(sender, Sender::Everywhere | Sender::Executor)
            && let Some(kind) = ExecutorRequest::at(request.method(), path, matches!(sender, Sender::Executor))
        {
            return Ok(Destination::OfExecutor(&self.partitions, process, kind));
        }
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        if matches!(sender, Sender::Everywhere)
            && reads
            && let Some(counted) = Counted::at(path)
            && named_workspace(request).is_none()
        {
            return Ok(Destination::Counted(&self.partitions, counted));
        }
        let slot = match sender {
            Sender::Of(slot) => Some(slot),
            Sender::Executor => Some(HashSlot::of_workspace(None)),
            Sender::OfRun => slot_in(path),
            Sender::Unknown => None,
            Sender::Everywhere => match named_workspace(request) {
                Some(workspace) => Some(HashSlot::of_workspace(Some(&workspace))),
                None if path == BACKUP => return Err(workspace_needed(path)),
                None => match order_of(path).filter(|_| reads) {
                    Some(_) if is_feed(path) && matches!(negotiate(request.headers()), Ok(Form::Stream)) => {
                        return Ok(Destination::Feeds(&self.partitions));
                    }
                    Some(order) => return Ok(Destination::All(&self.partitions, order)),
                    None => slot_in(path),
                },
            },
        };
        Ok(Destination::Of(slot.map_or(&self.first, |slot| self.with(slot))))
    }

    /// True for a path of a run of the first partition.
    pub(super) fn is_of_a_first_run(&self, path: &str) -> bool {
        let is_of_a_run = ["/api/v1/runs/", "/mcp/runs/"].iter().any(|start| path.starts_with(start));
        let first = |slot| self.partition_of(slot).is_first();
        is_of_a_run && slot_in(path).is_some_and(first)
    }

    fn partition_of(&self, slot: HashSlot) -> Partition {
        Partition::of_slot(slot, u32::try_from(self.partitions.len()).unwrap_or(u32::MAX))
    }

    /// The partition with a slot.
    fn with(&self, slot: HashSlot) -> &ClusterPartition {
        let number = self.partition_of(slot).number();
        self.partitions.get(number as usize).unwrap_or(&self.first)
    }
}

/// The slot of what a path names by its id.
fn slot_in(path: &str) -> Option<HashSlot> {
    let ids = match path.strip_prefix(THREADS) {
        Some(rest) => rest.split_once('/')?.1,
        None => NAMES.iter().find_map(|start| path.strip_prefix(start))?,
    };
    let is_ours = |id: &&str| id.parse::<RunId>().is_ok();
    let executor = || path.starts_with(EXECUTORS).then(|| ids.split('/').next()).flatten();
    let id = ids.split('/').filter_map(|part| part.get(..ID_LEN)).find(is_ours).or_else(executor)?;
    HashSlot::of_id(id)
}

fn sender(process: &HostProcess, request: &Request) -> Sender {
    if let Some(token) = parameter(request.uri(), ACCESS_TOKEN) {
        // Its signature is checked by the routes.
        return match stream_token::holder_of(&token) {
            Some(stream_token::Holder::Key(id)) => of_principal(process.keys().holder(&id)),
            Some(stream_token::Holder::User { issuer, .. }) => of_issuer(&process.config(), Some(&issuer)),
            Some(stream_token::Holder::Loopback) | None => Sender::Everywhere,
        };
    }
    let Some(token) = request.headers().get(header::AUTHORIZATION).and_then(headers::bearer) else {
        return Sender::Everywhere;
    };
    if token.starts_with(KEY_PREFIX) {
        return of_principal(process.keys().principal(token));
    }
    if [LEASE_PREFIX, MCP_PREFIX].iter().any(|prefix| token.starts_with(prefix)) {
        return Sender::OfRun;
    }
    match executor_of(token) {
        Some(id) => match HashSlot::of_id(id) {
            Some(slot) if slot == HashSlot::of_workspace(None) => Sender::Executor,
            slot => slot.map_or(Sender::Unknown, Sender::Of),
        },
        None => of_issuer(&process.config(), issuer_of(token).as_deref()),
    }
}

fn of_principal(principal: Option<Principal>) -> Sender {
    let Some(principal) = principal else { return Sender::Unknown };
    principal.workspace.map_or(Sender::Everywhere, |workspace| Sender::Of(HashSlot::of_workspace(Some(&workspace))))
}

/// The sender with a token of an identity provider, which the routes judge.
fn of_issuer(config: &Config, issuer: Option<&str>) -> Sender {
    let provider = config.identity_providers.iter().find(|provider| Some(provider.issuer.as_str()) == issuer);
    provider.map_or(Sender::Everywhere, |provider| Sender::Of(HashSlot::of_workspace(Some(&provider.workspace))))
}

/// The workspace that a request names by its header or its parameter; the empty one is that of what has none.
fn named_workspace(request: &Request) -> Option<String> {
    let header = request.headers().get(&WORKSPACE).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
    header.or_else(|| parameter(request.uri(), "workspace_id"))
}

fn parameter(uri: &Uri, wanted: &str) -> Option<String> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.filter(|(name, _)| *name == wanted).map(|(_, value)| value).next()?;
    String::from_utf8(percent::decode(&value.replace('+', " "))?).ok()
}

fn workspace_needed(what: &str) -> Problem {
    let detail = format!(
        "the cluster has several partitions, and {what} is of one: name a workspace in the header `X-Workspace` (empty for what is of no \
         workspace), or use a key of a workspace"
    );
    Problem::invalid("X-Workspace", detail)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const RUN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
    const OTHER: &str = "01890a5d-ac96-774b-bcce-b302099a8fff";

    #[test]
    fn a_path_has_the_slot_of_what_it_names() {
        for (path, expect) in [
            (format!("/api/v1/runs/{RUN}/events"), Some("057")),
            (format!("/mcp/runs/{RUN}"), Some("057")),
            (format!("/api/v1/actions/{RUN}.3/respond"), Some("057")),
            (format!("/api/v1/threads/{OTHER}/turns/{RUN}/cancel"), Some("057")),
            (format!("/api/v1/threads/{OTHER}/turns"), None),
            (format!("/api/v1/threads/{OTHER}"), None),
            ("/api/v1/executors/0123456789abcdef7/events".to_owned(), Some("ef7")),
            (format!("/agents/chat/threads/{RUN}"), None),
            (format!("/api/v1/agent/runs/{RUN}"), None),
            ("/api/v1/runs".to_owned(), None),
            ("/api/v1/runs/057".to_owned(), None),
            ("/api/v1/artifacts/skill-1".to_owned(), None),
            ("/api/v1/artifacts/skill-0123456789abcdef0123456789abcdef".to_owned(), None),
        ] {
            assert_eq!(slot_in(&path).map(|slot| slot.to_string()).as_deref(), expect, "{path}");
        }
    }

    #[test]
    fn requests_of_executors_of_no_workspace_are_for_all_partitions() {
        let (everywhere, of_one) = ("0123456789abcdef000", "0123456789abcdef001");
        let path = |id: &str, rest: &str| format!("/api/v1/executors/{id}{rest}");
        for (method, path, expect) in [
            (Method::POST, "/api/v1/executors".to_owned(), Some(ExecutorRequest::Register)),
            (Method::GET, "/api/v1/executors".to_owned(), None),
            (Method::POST, "/api/v1/claims".to_owned(), Some(ExecutorRequest::Claim)),
            (Method::GET, path(everywhere, ""), Some(ExecutorRequest::One)),
            (Method::DELETE, path(everywhere, ""), Some(ExecutorRequest::One)),
            (Method::POST, path(everywhere, "/heartbeat"), Some(ExecutorRequest::One)),
            (Method::GET, path(everywhere, "/events"), Some(ExecutorRequest::News)),
            (Method::GET, path(of_one, ""), None),
            (Method::GET, path("statistics", ""), None),
            (Method::GET, path(everywhere, "/other"), None),
            (Method::HEAD, path(everywhere, ""), None),
            (Method::OPTIONS, path(everywhere, "/heartbeat"), None),
            (Method::POST, format!("/api/v1/runs/{RUN}/renew"), None),
        ] {
            assert_eq!(ExecutorRequest::at(&method, &path, true), expect, "{method} {path}");
        }
        // The first partition refuses whoever is no executor.
        assert_eq!(ExecutorRequest::at(&Method::POST, "/api/v1/claims", false), None);
    }

    #[test]
    fn a_request_names_a_workspace_by_header_or_parameter() {
        let named = |uri: &str, header: Option<&str>| {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = uri.parse().unwrap();
            if let Some(value) = header {
                request.headers_mut().insert(WORKSPACE, value.parse().unwrap());
            }
            named_workspace(&request)
        };
        assert_eq!(named("/api/v1/runs", None), None);
        assert_eq!(named("/api/v1/runs?limit=1&workspace_id=a%20b", None).as_deref(), Some("a b"));
        assert_eq!(named("/api/v1/runs?workspace_id=a", Some("b")).as_deref(), Some("b"));
        assert_eq!(named("/api/v1/runs", Some("")).as_deref(), Some(""));
    }
}
