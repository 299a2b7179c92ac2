//! Asking a component for its manifests: the first time that its code runs, so it runs with as little as there is.

use std::{sync::Arc, time::Duration};

use agent_host_protocol::{InterfaceSet, Limits, RefusalCode, RunnerManifest, hosts};

use crate::{
    bindings::AgentRunnerPre,
    calls::NoRun,
    convert,
    cpu::CpuBudget,
    guest::{Guest, PollWait},
    imports::ImportRefusal,
    run::{self, Breakage},
    slots::ComputeShare,
    threads::GuestThreads,
    world::{GuestClock, World},
};

/// Asks for the manifests, in an instance that can only refuse, for a short time.
pub(crate) async fn ask(
    pre: AgentRunnerPre<Guest>,
    limits: &Limits,
    threads: &GuestThreads,
) -> Result<Vec<RunnerManifest>, ImportRefusal> {
    let deadline = Duration::from_millis(limits.manifest_ms);
    // The same for every component and every time: a manifest that depends on a clock or on chance is none.
    let world = World::new(limits, GuestClock::new(0), [0; 32]);
    let guest = Guest::new(limits, PollWait::ForTimers, world, Box::new(NoRun), Arc::new(NoRun));
    let mut store = run::store(pre.engine(), guest, limits);
    let manifests_call = async move {
        let guest = pre.instantiate_async(&mut store).await;
        match guest {
            Ok(guest) => {
                let answer = guest.agent_host_runner_runner().call_list_runners(&mut store).await;
                answer.map_err(|error| run::breakage(&error, store.data()))
            }
            Err(error) => Err(run::breakage(&error, store.data())),
        }
    };
    let fix = "list-runners must return the manifests and do nothing else";
    // The time bounds it.
    let cpu = Arc::new(CpuBudget::new(Duration::ZERO));
    let computed = threads.compute(ComputeShare::default(), cpu, Box::pin(manifests_call));
    let manifests = match tokio::time::timeout(deadline, computed).await {
        Ok(Ok(manifests)) => manifests,
        Ok(Err(Breakage { message, .. })) => {
            return Err((
                RefusalCode::ManifestFailed,
                format!("asked for its manifests, the component failed: {message}"),
                fix.to_owned(),
            ));
        }
        Err(_) => {
            return Err((
                RefusalCode::ManifestFailed,
                format!("asked for its manifests, the component did not answer within {} ms", limits.manifest_ms),
                fix.to_owned(),
            ));
        }
    };
    check(manifests, limits)
}

/// A text of a manifest that people read. More is not read by anyone.
const MAX_TEXT: usize = 4 * 1024;
/// Hosts, and platform actions, of one manifest. Each call compares with them.
const MAX_NAMES: usize = 100;
/// One of these: a host name has 253 characters at most.
const MAX_NAME: usize = 260;

fn check(
    manifests: Vec<crate::bindings::manifest::RunnerManifest>,
    limits: &Limits,
) -> Result<Vec<RunnerManifest>, ImportRefusal> {
    let refused = |message: String| {
        (RefusalCode::ManifestInvalid, message, "correct the manifest and build the component again".to_owned())
    };
    if manifests.is_empty() {
        return Err(refused("the component holds no runner".to_owned()));
    }
    if manifests.len() > limits.component_runners {
        return Err(refused(format!(
            "the component holds {} runners; the limit is {}",
            manifests.len(),
            limits.component_runners
        )));
    }
    let mut runners: Vec<RunnerManifest> = Vec::with_capacity(manifests.len());
    for manifest in manifests {
        let texts: usize =
            manifest.label.iter().chain(manifest.description.iter().flatten()).map(|(tag, text)| tag.len() + text.len()).sum();
        if texts + manifest.metadata.len() > MAX_TEXT {
            return Err(refused(format!("label, description and metadata of a manifest may have {MAX_TEXT} bytes together")));
        }
        let manifest = convert::manifest(manifest).map_err(refused)?;
        let permissions = &manifest.permissions;
        for (list, names) in [("http_hosts", &permissions.http_hosts), ("platform_api", &permissions.platform_api)] {
            if names.len() > MAX_NAMES || names.iter().any(|name| name.len() > MAX_NAME) {
                return Err(refused(format!(
                    "`{list}` of {} has more than {MAX_NAMES} names, or one of more than {MAX_NAME} bytes",
                    manifest.id
                )));
            }
        }
        for host in &permissions.http_hosts {
            hosts::check(host).map_err(|problem| refused(format!("`http_hosts` of {}: {problem}", manifest.id)))?;
        }
        if runners.iter().any(|other| other.id == manifest.id) {
            return Err(refused(format!("the component holds {} twice", manifest.id)));
        }
        let mut names: Vec<_> = manifest.config_schema.iter().map(|item| item.name.as_str()).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair.first() == pair.last()) || names.contains(&"") {
            return Err(refused(format!("the form of {} has an item twice, or one without a name", manifest.id)));
        }
        runners.push(manifest);
    }
    Ok(runners)
}

/// The interfaces that any runner of a component declares.
pub(crate) fn declared(runners: &[RunnerManifest]) -> InterfaceSet {
    runners.iter().fold(InterfaceSet::default(), |all, runner| all.union(runner.interfaces()))
}
