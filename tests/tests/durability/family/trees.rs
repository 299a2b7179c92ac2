//! Trees of runs: a cancelled root ends all of them soon, and they have so much CPU time together.

use std::time::Instant;

use agent_host_tests::world::PATIENCE;
use serde_json::{Value, json};

use crate::family::{children_of, family, ids, statuses, support::Host, text, until_children};

/// A root that is cancelled ends its tree sooner than this, in ms, on a machine that has much else to do.
const SOON_MS: u64 = 20_000;

fn time(run: &Value, name: &str) -> u64 {
    run[name].as_u64().unwrap_or_else(|| panic!("no {name}: {run:#}"))
}

/// Waits until these runs have ended, and gives them.
async fn all_ended(host: &Host, runs: &[String]) -> Vec<Value> {
    let mut ended = Vec::with_capacity(runs.len());
    for run in runs {
        ended.push(host.ended(run).await.run);
    }
    ended
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancelled_root_ends_its_whole_tree_soon() {
    let host = family("child_runs_at_once = 60", "", "");
    let two_levels = "fan 2 default [start default [spin]; await never]";
    let root = host.send(&format!("fan 22 default [spin]; fan 22 default [await never]; {two_levels}; await never")).await;
    let is_under_way = |found: &[Value]| found.len() == 46 && statuses(found).iter().all(|status| *status == "running");
    let children = until_children(&host, &root, is_under_way).await;
    let mut below: Vec<String> = ids(&children).into_iter().map(str::to_owned).collect();
    for parent in below.split_off(0) {
        let own = if children.iter().rev().take(2).any(|child| text(child, "run_id") == parent) {
            until_children(&host, &parent, |found| statuses(found) == ["running"]).await
        } else {
            Vec::new()
        };
        below.extend(ids(&own).into_iter().map(str::to_owned));
        below.push(parent);
    }
    assert_eq!(below.len(), 48);

    host.cancel(&root).await;
    let asked = time(&host.ended(&root).await.cancelled().run, "cancel_requested_at");
    let ended = all_ended(&host, &below).await;
    for run in &ended {
        assert_eq!(text(run, "status"), "cancelled", "{run:#}");
        let took = time(run, "finished_at").saturating_sub(asked);
        assert!(took < SOON_MS, "{took} ms: {run:#}");
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_runs_of_a_tree_have_so_much_cpu_time_together_and_no_more() {
    let host = family("tree_cpu_ms = 1000", "", "");
    let began = Instant::now();
    let root = host.send("start default [spin]; start default [spin]; all 600000; say done").await;
    let ended = host.ended(&root).await.failed("cpu_exceeded");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    let [reached] = &*ended.of("limit.reached") else { panic!("{ended}") };
    assert_eq!((text(reached, "limit"), &reached["value"]), ("tree_cpu_ms", &json!(1000)), "{ended}");
    let children: Vec<String> = ids(&children_of(&host, &root).await).into_iter().map(str::to_owned).collect();
    assert_eq!(children.len(), 2);
    for child in all_ended(&host, &children).await {
        // Its own end, or that of its parent: whichever was first.
        let is_over = text(&child, "status") == "cancelled" || text(&child["failure"], "code") == "cpu_exceeded";
        assert!(is_over, "{child:#}");
    }
    // The next event has its own, and to wait costs none.
    let patient = host.take("start default [sleep 1500; say slept]; all 60000; say done").await.completed();
    assert_eq!(patient.outcomes()[1], json!(["completed"]), "{patient}");
    host.check();
}
