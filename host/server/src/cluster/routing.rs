//! The partition that a request is for.
//!
//! Everything of a workspace is in one partition, so the sender decides: the workspace of its key, of its executor, or of the identity provider
//! that has signed its token. A sender of no workspace, such as an operator, names one in the header `X-Workspace` or the parameter `workspace_id`;
//! what it names by an id is looked for in the copies of this host.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use agent_host_config::Config;
use agent_host_protocol::{
    Principal,
    auth::{EXECUTOR_PREFIX, KEY_PREFIX, LEASE_PREFIX, MCP_PREFIX},
};
use agent_host_runs::{HostProcess, Partition};
use axum::{
    extract::Request,
    http::{HeaderName, Method, Uri, header},
};

use super::{listeners::ClusterPartition, owner::Owner};
use crate::{
    access::{identity::issuer_of, stream_token},
    http::{
        Problem, ProblemCode, headers, percent,
        query::ACCESS_TOKEN,
        workspaces::{is_of_the_host, is_of_workspaces},
    },
};

/// Names the workspace of a request whose sender is of none.
const WORKSPACE: HeaderName = HeaderName::from_static("x-workspace");

/// Lists and numbers, each of one partition: without a workspace they would be those of a part of the cluster.
const LISTS: [&str; 11] = [
    "/api/v1/actions",
    "/api/v1/audit",
    "/api/v1/backup",
    "/api/v1/deliveries",
    "/api/v1/dead-letters",
    "/api/v1/events",
    "/api/v1/executors",
    "/api/v1/runs",
    "/api/v1/schedules",
    "/api/v1/statistics",
    "/api/v1/threads",
];

/// Paths whose next segment is an id that the host has made.
const NAMES: [&str; 9] = [
    "/api/v1/actions/",
    "/api/v1/agent/attachments/",
    "/api/v1/artifacts/",
    "/api/v1/dead-letters/",
    "/api/v1/deliveries/",
    "/api/v1/events/",
    "/api/v1/runs/",
    "/api/v1/threads/",
    "/mcp/runs/",
];
/// Characters of an id.
const ID_LEN: usize = 36;

/// See the module.
#[derive(Clone)]
pub(super) struct Routing {
    first: ClusterPartition,
    partitions: Arc<[ClusterPartition]>,
    process: Arc<OnceLock<HostProcess>>,
}

/// The sender of a request, as far as it decides on the partition.
enum Sender {
    /// Of this workspace.
    Of(String),
    /// The executor with this id.
    Executor(String),
    /// Of no workspace.
    Everywhere,
    /// A sender that this host does not know: the first partition, which has the keys, refuses the request.
    Unknown,
    /// The holder of a token for one run, which the path names.
    OfRun,
}

/// The partition of a request, or what says which it is.
pub(super) enum Destination {
    Known(ClusterPartition),
    /// The partition with this executor.
    OfExecutor(String),
    /// The partition with a run, an event or an artifact of one of these ids.
    OfIds(Vec<String>),
}

/// Times that a copy is looked at for what another host may just have written, and the pause between.
const LOOKS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(120);

impl Routing {
    /// Of all partitions, with the first one.
    pub(super) fn new(first: ClusterPartition, partitions: Arc<[ClusterPartition]>, process: Arc<OnceLock<HostProcess>>) -> Self {
        Self { first, partitions, process }
    }

    /// The partition that a request is for, or what says which it is.
    ///
    /// # Errors
    /// [`ProblemCode::PartitionMoving`] before the process has started; [`ProblemCode::InvalidArgument`] for a list of a sender that names no
    /// workspace.
    pub(super) fn destination_of(&self, request: &Request) -> Result<Destination, Problem> {
        let (first, path) = (|| Ok(Destination::Known(self.first.clone())), request.uri().path());
        if self.partitions.len() == 1 || is_of_the_host(path) {
            return first();
        }
        if !is_of_workspaces(path) {
            // Pages, their files and the numbers of the host: the same at every one.
            let own = self.partitions.iter().find(|partition| matches!(partition.owner(), Owner::Here(_)));
            return own.map_or_else(first, |own| Ok(Destination::Known(own.clone())));
        }
        let Some(process) = self.process.get() else {
            let detail = "this host is starting: send the request again in a moment, or to another host";
            return Err(Problem::new(ProblemCode::PartitionMoving, detail));
        };
        if let Some(name) = path.strip_prefix("/api/v1/hooks/") {
            let config = process.config();
            let source = config.webhook_sources.iter().find(|source| source.name == name);
            return Ok(self.of_workspace(source.and_then(|source| source.workspace_id.as_deref())));
        }
        Ok(match sender(process, request) {
            Sender::Of(workspace) => self.of_workspace(Some(&workspace)),
            Sender::Executor(id) => Destination::OfExecutor(id),
            Sender::OfRun => Destination::OfIds(ids_of(path)),
            Sender::Unknown => return first(),
            Sender::Everywhere => match named_workspace(request) {
                Some(workspace) => self.of_workspace(Some(&workspace)),
                None if LISTS.contains(&path) && (request.method() == Method::GET || path == "/api/v1/backup") => {
                    return Err(workspace_needed());
                }
                None => Destination::OfIds(ids_of(path)),
            },
        })
    }

    fn of_workspace(&self, workspace: Option<&str>) -> Destination {
        let of = u32::try_from(self.partitions.len()).unwrap_or(u32::MAX);
        let number = Partition::of_workspace(workspace, of).number();
        Destination::Known(self.partitions.get(number as usize).unwrap_or(&self.first).clone())
    }

    /// The partition itself. What no copy has within half a second is left to the first partition, which says that it is not there.
    pub(super) async fn find(&self, destination: Destination) -> ClusterPartition {
        for look in 0..LOOKS {
            let found = match &destination {
                Destination::Known(partition) => Some(partition),
                Destination::OfIds(ids) if ids.is_empty() => break,
                Destination::OfIds(ids) => self.partitions.iter().find(|partition| has(partition, ids)),
                Destination::OfExecutor(id) => self.partitions.iter().find(|partition| has_executor(partition, id)),
            };
            if let Some(partition) = found {
                return partition.clone();
            }
            if look + 1 < LOOKS {
                tokio::time::sleep(PAUSE).await;
            }
        }
        self.first.clone()
    }
}

/// The ids in a path that name something of the host. Threads of AG-UI have ids of clients. The id of an action begins with that of its run.
fn ids_of(path: &str) -> Vec<String> {
    if !NAMES.iter().any(|start| path.starts_with(start)) {
        return Vec::new();
    }
    let ids = path.split('/').filter(|part| part.len() >= ID_LEN).flat_map(|part| [Some(part), part.get(..ID_LEN)]);
    ids.flatten().map(ToOwned::to_owned).collect()
}

fn has(partition: &ClusterPartition, ids: &[String]) -> bool {
    partition.copy().is_some_and(|copy| ids.iter().any(|id| copy.has(id).unwrap_or_default()))
}

fn has_executor(partition: &ClusterPartition, id: &str) -> bool {
    partition.copy().is_some_and(|copy| copy.entry(&format!("executor/{id}")).is_ok_and(|entry| entry.is_some()))
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
    match token.strip_prefix(EXECUTOR_PREFIX).and_then(|rest| rest.split_once('_')) {
        Some((id, _)) => Sender::Executor(id.to_owned()),
        None => of_issuer(&process.config(), issuer_of(token).as_deref()),
    }
}

fn of_principal(principal: Option<Principal>) -> Sender {
    principal.map_or(Sender::Unknown, |principal| principal.workspace.map_or(Sender::Everywhere, Sender::Of))
}

/// The sender with a token of an identity provider, which the routes judge.
fn of_issuer(config: &Config, issuer: Option<&str>) -> Sender {
    let provider = config.identity_providers.iter().find(|provider| Some(provider.issuer.as_str()) == issuer);
    provider.map_or(Sender::Everywhere, |provider| Sender::Of(provider.workspace.clone()))
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

fn workspace_needed() -> Problem {
    let detail = "the cluster has several partitions, and each has lists and numbers of its own: name a workspace in the header \
                  `X-Workspace` (empty for what is of no workspace), or use a key of a workspace";
    Problem::invalid("X-Workspace", detail)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const RUN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    #[test]
    fn a_path_names_what_the_host_has_made() {
        for (path, expect) in [
            (format!("/api/v1/runs/{RUN}/events"), &[RUN, RUN][..]),
            (format!("/mcp/runs/{RUN}"), &[RUN, RUN]),
            (format!("/agents/chat/threads/{RUN}"), &[]),
            (format!("/api/v1/agent/runs/{RUN}"), &[]),
            ("/api/v1/runs".to_owned(), &[]),
            ("/api/v1/artifacts/skill-1".to_owned(), &[]),
        ] {
            assert_eq!(ids_of(&path), expect, "{path}");
        }
        assert_eq!(ids_of(&format!("/api/v1/actions/{RUN}.3/respond")), [format!("{RUN}.3"), RUN.to_owned()]);
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
