//! The counts equal those of a simple count over all runs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::collections::BTreeMap;

use crate::common::*;
use agent_host_ledger::{Group, GroupBy, Ledger, NewEvent, Percentiles, RunChange, RunCounts, RunWrite, StatisticsQuery, Tokens};
use agent_host_protocol::{
    Run, RunStatus,
    message::TokenUsage,
    run::{QueueEntry, RunCompletion, Terminal},
};
use proptest::prelude::*;
use serde_json::json;

#[derive(Debug, Clone)]
struct Spec {
    runner: u8,
    binding: u8,
    workspace: Option<u8>,
    queue: Option<u8>,
    /// After the one before it.
    after: u64,
    waits: Option<u64>,
    lasts: Option<u64>,
    completes: bool,
    usage: Option<u64>,
}

fn spec() -> impl Strategy<Value = Spec> {
    let time = || prop_oneof![0u64..50, 0u64..100_000];
    (
        (0u8..3, 0u8..3, prop::option::of(0u8..2), prop::option::of(0u8..2)),
        (0u64..1_000, prop::option::weighted(0.8, time()), prop::option::weighted(0.8, time())),
        any::<bool>(),
        prop::option::of(0u64..1_000),
    )
        .prop_map(|((runner, binding, workspace, queue), (after, waits, lasts), completes, usage)| Spec {
            runner,
            binding,
            workspace,
            queue,
            after,
            waits,
            lasts,
            completes,
            usage,
        })
}

fn query() -> impl Strategy<Value = StatisticsQuery> {
    (
        (prop::option::of(1_000u64..15_000), prop::option::of(1_000u64..15_000)),
        (prop::option::weighted(0.3, 0u8..3), prop::option::weighted(0.3, 0u8..3)),
        (prop::option::weighted(0.3, 0u8..2), prop::option::weighted(0.3, 0u8..2)),
        prop::option::of(any::<bool>()),
    )
        .prop_map(|((since, until), (runner, binding), (workspace, queue), group)| StatisticsQuery {
            since,
            until,
            runner_id: runner.map(runner_id),
            binding_id: binding.map(|n| format!("b{n}")),
            workspace_id: workspace.map(|n| format!("w{n}")),
            queue: queue.map(|n| format!("q{n}")),
            group_by: group.map(|runner| if runner { GroupBy::Runner } else { GroupBy::Binding }),
        })
}

fn runner_id(n: u8) -> String {
    format!("plugin:demo/echo/r{n}")
}

async fn build(ledger: &Ledger, specs: &[Spec]) -> Vec<Run> {
    let (mut at, mut runs) = (1_000, Vec::new());
    for spec in specs {
        at += spec.after;
        let event = event();
        let mut run = run_of(&event);
        run.created_at = at;
        run.runner_id = runner_id(spec.runner).parse().unwrap();
        run.binding_id = format!("b{}", spec.binding);
        run.workspace_id = spec.workspace.map(|n| format!("w{n}"));
        run.queue = spec.queue.map(|n| {
            let queued_at = Some(at + u64::from(n) * 10);
            Box::new(QueueEntry { queued_at, ..QueueEntry::new(format!("q{n}"), 0) })
        });
        let id = run.run_id;
        ledger.accept(accept(event, vec![run])).await.unwrap();
        let run_no = ledger.run(id).unwrap().unwrap().run_no;
        if let Some(waits) = spec.waits {
            let started = at + waits;
            let mut changes = vec![RunChange::Start { at: started, deadline_at: None }];
            let mut events = Vec::new();
            if let Some(lasts) = spec.lasts {
                let usage =
                    spec.usage.map(|n| TokenUsage { input: n, output: n / 2, cached_input: Some(n / 3), reasoning: None });
                if let Some(usage) = &usage {
                    let call = json!({ "model_id": "m", "usage": usage, "cost_micros": usage.input, "operation": "invoke" });
                    events.push(NewEvent { data: raw(&call), ..new_event(1, "model.call.completed") });
                }
                let last = events.len() as u64 + 1;
                let end = if spec.completes {
                    events.push(new_event(last, "run.completed"));
                    Terminal::Completed(RunCompletion { finish_reason: "stop".into(), message: None, usage, metadata: None })
                } else {
                    events.push(new_event(last, "run.failed"));
                    let RunChange::End { terminal, .. } = failed() else { panic!("not an end") };
                    terminal
                };
                changes.push(RunChange::End { at: started + lasts, terminal: end });
            }
            drop(ledger.submit(RunWrite { changes, events, ..write(run_no) }).await.unwrap().await.unwrap());
        }
        runs.push((*ledger.run(id).unwrap().unwrap().run).clone());
    }
    runs
}

/// The smallest value that at least `percent` of 100 do not exceed, by its definition.
fn percentile(times: &[u64], percent: u64) -> u64 {
    let enough = |value: u64| times.iter().filter(|time| **time <= value).count() as u64 * 100 >= percent * times.len() as u64;
    times.iter().copied().filter(|value| enough(*value)).min().unwrap()
}

fn percentiles(times: &[u64]) -> Option<Percentiles> {
    let max = *times.iter().max()?;
    let at = |percent| percentile(times, percent);
    Some(Percentiles { count: times.len() as u64, p50: at(50), p90: at(90), p95: at(95), p99: at(99), max })
}

fn naive(key: Option<String>, runs: &[&Run]) -> Group {
    let mut by_status = BTreeMap::new();
    let (mut tokens, mut claimed_tokens, mut cost_micros) = (Tokens::default(), Tokens::default(), None);
    let (mut durations, mut waits) = (Vec::new(), Vec::new());
    for run in runs {
        *by_status.entry(run.status.as_str().to_owned()).or_insert(0) += 1;
        if let Some(usage) = &run.usage {
            tokens.input += usage.input;
            tokens.output += usage.output;
            tokens.cached_input += usage.cached_input;
            tokens.reasoning += usage.reasoning;
            cost_micros = Some(cost_micros.unwrap_or(0) + usage.input);
        }
        if let Some(usage) = &run.claimed_usage {
            claimed_tokens.input += usage.input;
            claimed_tokens.output += usage.output;
            claimed_tokens.cached_input += usage.cached_input.unwrap_or(0);
        }
        if let Some(started) = run.started_at {
            let queued_at = run.queue.as_ref().and_then(|queue| queue.queued_at).filter(|at| *at <= started);
            waits.push(started - queued_at.unwrap_or(run.created_at));
            if let Some(finished) = run.finished_at {
                durations.push(finished - started);
            }
        }
    }
    let ended = runs.iter().filter(|run| run.status.is_terminal()).count();
    let completed = runs.iter().filter(|run| run.status == RunStatus::Completed).count();
    Group {
        key,
        runs: runs.len() as u64,
        by_status,
        ended: ended as u64,
        success_rate: (ended > 0).then(|| completed as f64 / ended as f64),
        duration_ms: percentiles(&durations),
        queue_wait_ms: percentiles(&waits),
        tokens,
        cost_micros,
        claimed_tokens,
    }
}

fn matches(query: &StatisticsQuery, run: &Run) -> bool {
    query.since.is_none_or(|since| run.created_at >= since)
        && query.until.is_none_or(|until| run.created_at < until)
        && query.runner_id.as_deref().is_none_or(|id| run.runner_id.as_str() == id)
        && query.binding_id.as_deref().is_none_or(|id| run.binding_id == id)
        && query.workspace_id.as_deref().is_none_or(|id| run.workspace_id.as_deref() == Some(id))
        && query.queue.as_deref().is_none_or(|name| run.queue.as_ref().is_some_and(|queue| queue.name == name))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn it_counts_as_a_simple_count_does(
        specs in prop::collection::vec(spec(), 0..20),
        queries in prop::collection::vec(query(), 1..24),
        with_another in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let ledger = open(dir.path());
        let mut runs = runtime.block_on(build(&ledger, &specs));
        let other_dir = tempfile::tempdir().unwrap();
        let other = open(other_dir.path());
        if with_another {
            runs.extend(runtime.block_on(build(&other, &specs.iter().rev().take(7).cloned().collect::<Vec<_>>())));
        }
        for query in queries {
            let found = if with_another {
                // As one host sends it to another.
                let counts = [&ledger, &other].map(|ledger| serde_json::to_vec(&ledger.count_runs(&query, 100).unwrap()).unwrap());
                let [mut counts, more]: [RunCounts; 2] = counts.map(|counts| serde_json::from_slice(&counts).unwrap());
                counts.merge(more);
                counts.statistics(query.since, query.until)
            } else {
                ledger.statistics(&query).unwrap()
            };
            let counted: Vec<_> = runs.iter().filter(|run| matches(&query, run)).collect();
            prop_assert!(!found.truncated);
            prop_assert_eq!(found.covered_since, counted.iter().map(|run| run.created_at).min());
            prop_assert_eq!(found.total, naive(None, &counted));
            let mut groups: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
            for run in counted {
                match query.group_by {
                    Some(GroupBy::Runner) => groups.entry(run.runner_id.to_string()).or_default().push(run),
                    Some(GroupBy::Binding) => groups.entry(run.binding_id.clone()).or_default().push(run),
                    None => {}
                }
            }
            let mut expected: Vec<_> = groups.into_iter().map(|(key, runs)| naive(Some(key), &runs)).collect();
            expected.sort_by_key(|group| std::cmp::Reverse(group.runs));
            prop_assert_eq!(found.groups, expected);
        }
    }
}

#[tokio::test]
async fn unread_parts_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let spec = Spec {
        runner: 0,
        binding: 0,
        workspace: None,
        queue: None,
        after: 10,
        waits: Some(1),
        lasts: Some(2),
        completes: true,
        usage: None,
    };
    build(&ledger, &vec![spec; 10]).await;
    let all = StatisticsQuery::default();
    let found = ledger.count_runs(&all, 10).unwrap().statistics(None, None);
    assert_eq!((found.truncated, found.total.runs, found.covered_since), (false, 10, Some(1_010)));
    let found = ledger.count_runs(&all, 4).unwrap().statistics(None, None);
    assert_eq!((found.truncated, found.total.runs, found.covered_since), (true, 4, Some(1_070)));
    // Of several ledgers, all runs are counted from that time on from which each has looked at its own.
    let mut counts = ledger.count_runs(&StatisticsQuery { binding_id: Some("none".to_owned()), ..all.clone() }, 4).unwrap();
    assert_eq!((counts.truncated, counts.looked_at_since), (true, Some(1_070)));
    let more = ledger.count_runs(&all, 7).unwrap();
    assert_eq!(more.looked_at_since, Some(1_040));
    counts.merge(more);
    assert_eq!((counts.truncated, counts.looked_at_since), (true, Some(1_070)));
    counts.merge(ledger.count_runs(&all, 10).unwrap());
    assert_eq!((counts.truncated, counts.looked_at_since), (true, Some(1_070)));
}

#[test]
fn percentiles_are_exact() {
    assert_eq!(Percentiles::of(Vec::new()), None);
    let one = Percentiles::of(vec![7]).unwrap();
    assert_eq!((one.count, one.p50, one.p90, one.p95, one.p99, one.max), (1, 7, 7, 7, 7, 7));
    let hundred = Percentiles::of((1..=100).rev()).unwrap();
    assert_eq!((hundred.p50, hundred.p90, hundred.p95, hundred.p99, hundred.max), (50, 90, 95, 99, 100));
    let two = Percentiles::of(vec![1, 100]).unwrap();
    assert_eq!((two.p50, two.p90), (1, 100));
}
