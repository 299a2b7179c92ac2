//! The ledger of a host without a cluster, imported into a cluster with several partitions.

use agent_host_ledger::Partition;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::{
    cluster::{Member, World, cluster_command, command_line_of, lay_out},
    forwarding::{ForwardingHost, client},
    partition_executors::{Executor, JOBS, job},
    partitions::{PARTITIONS, Workspace, answer, are_shared, is_ready},
    postgres::free_port,
};

/// Conversations, a run that waits, one that an executor holds, its credential, and keys go on, each workspace in its partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_workspaces_of_a_host_go_on_in_their_partitions() {
    let mut world = World::with_partitions(PARTITIONS).await;
    world.config.push_str(JOBS);
    let alone = [ForwardingHost { host: Member::start_as(lay_out(), free_port(), &[], &world.config), port: 0 }];
    alone[0].host.is_active();
    let (mut workspaces, mut runs) = (Vec::new(), Vec::new());
    for partition in 0..PARTITIONS {
        let mut names = (0..).map(|n| format!("workspace-{n}"));
        let name = names.find(|name| Partition::new(partition, PARTITIONS).has(Some(name))).unwrap();
        let workspace = Workspace::make(&alone[0], name).await;
        let run = workspace.send(&alone[0], "task:before").await;
        workspace.is_completed(&alone[0], &run).await;
        runs.push((run.clone(), alone[0].host.events(&run).await));
        workspaces.push(workspace);
    }
    let executor = Executor::register(&alone, 0, 2).await;
    let waiting = [job(&workspaces[1], &alone[0]).await, job(&workspaces[3], &alone[0]).await];
    let held = executor.claimed(0, 0).await;
    assert_eq!(held.run, waiting[0]);
    let (id, credential) = executor.parts();
    let [ForwardingHost { host, .. }] = alone;
    let dir = host.terminate();

    let commands = tempfile::tempdir().unwrap();
    command_line_of(&world.url, commands.path());
    let imported = cluster_command(commands.path(), &["import", dir.path().join("data").to_str().unwrap()]).unwrap();
    assert_eq!((&imported["other_ids"], imported["rows"].as_u64() > Some(20)), (&json!(0), true), "{imported}");
    let hosts = [world.member(), world.member()];
    for host in &hosts {
        is_ready(host).await;
    }
    are_shared(commands.path(), hosts.len()).await;

    for (at, host) in hosts.iter().enumerate() {
        for (workspace, (run, events)) in workspaces.iter().zip(&runs) {
            // An operator finds a run by its id, a key of the workspace has its list.
            assert_eq!(host.host.events(run).await, *events, "{} at {at}", workspace.id);
            let next = workspace.send(host, &format!("task:after-{at}")).await;
            workspace.is_completed(host, &next).await;
            let (status, list) = answer(workspace.request(Method::GET, host, "/api/v1/runs?status=completed")).await;
            let listed: Vec<_> = list["items"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap()).collect();
            assert_eq!((status, listed.len(), listed.last()), (StatusCode::OK, at + 2, Some(&run.as_str())), "{list}");
        }
    }
    let executor = Executor::of(&hosts, id, credential);
    executor.finish(0, &held).await;
    let next = executor.claimed(1, 5_000).await;
    assert_eq!((&next.run, &next.workspace), (&waiting[1], &workspaces[3].id));
    executor.finish(1, &next).await;
    let (status, list) = answer(client().get(hosts[0].url("/api/v1/runs?limit=100"))).await;
    assert_eq!((status, list["items"].as_array().map(Vec::len)), (StatusCode::OK, Some(3 * workspaces.len() + 2)), "{list}");
}
