//! Sixty jobs and eight claimers, some of whom are killed, or sleep past their lease and come back: no job is held twice at a
//! time, none is lost, and what comes late is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;

use crate::queue::{
    desk::{Desk, Executor, HeldRun, host, results_from, texts},
    support::Random,
};

const JOBS: usize = 60;
const CLAIMERS: u64 = 8;
const ROUNDS: u64 = 3;

#[derive(Default)]
struct Tally {
    done: AtomicUsize,
    abandoned: AtomicUsize,
    refused: AtomicUsize,
}

/// The message of a claim: its number and a count, so that the record shows the author of each message.
fn line(held: &HeldRun, n: u64) -> String {
    format!("{} {n}", held.claim)
}

/// Works on a run, and may die, sleep too long, or give it back on the way.
async fn work(held: &HeldRun, random: &mut Random, tally: &Tally) {
    let lines = 1 + random.below(4);
    for n in 1..=lines {
        match random.below(20) {
            // Killed.
            0 | 1 => {
                tally.abandoned.fetch_add(1, Ordering::Relaxed);
                return;
            }
            // The executor sleeps past its lease, and continues without knowing.
            2 | 3 => {
                tally.abandoned.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1_700)).await;
                let (status, answer) = held.post("append", results_from(n, &[&line(held, n)])).await;
                assert_eq!((status, answer["code"].as_str()), (409, Some("claim_lost")), "{answer:#}");
                let (status, answer) = held.post("finalize", json!({ "status": "completed" })).await;
                assert_eq!((status, answer["code"].as_str()), (409, Some("claim_lost")), "{answer:#}");
                tally.refused.fetch_add(2, Ordering::Relaxed);
                return;
            }
            4 => {
                drop(held.post("release", json!({ "reason": "another day" })).await);
                return;
            }
            5 => drop(held.post("renew", json!({ "lease_ms": 1_000 })).await),
            _ => {}
        }
        let (status, answer) = held.post("append", results_from(n, &[&line(held, n)])).await;
        if status == 409 {
            // The machine was so busy that the lease was over.
            assert_eq!(answer["code"], "claim_lost", "{answer:#}");
            tally.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        assert_eq!(status, 200, "{answer:#}");
    }
    let (status, answer) = held.post("finalize", json!({ "status": "completed" })).await;
    match status {
        200 => drop(tally.done.fetch_add(1, Ordering::Relaxed)),
        409 => assert_eq!(answer["code"], "claim_lost", "{answer:#}"),
        other => panic!("{other}: {answer:#}"),
    }
}

async fn claimer(executor: Executor, seed: u64, tally: Arc<Tally>, jobs: usize) {
    let mut random = Random(seed);
    while tally.done.load(Ordering::Relaxed) < jobs {
        let wish = json!({ "wait_ms": 300, "lease_ms": 1_000, "start": true });
        if let Some(held) = executor.claims(wish).await {
            work(&held, &mut random, &tally).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_job_is_held_twice_and_none_is_lost() {
    let host = host("lease_ms = 1000", "").into_patient();
    let desk = Desk::of(&host);
    for round in 0..ROUNDS {
        let tally = Arc::new(Tally::default());
        let desk_of_jobs = &desk;
        let make = |n: usize| async move { desk_of_jobs.job(&format!("job {n}"), json!({ "priority": n % 3 })).await };
        let jobs: Vec<String> = futures_util::future::join_all((0..JOBS).map(make)).await;
        let mut claimers = Vec::new();
        for n in 0..CLAIMERS {
            let executor = desk.executor(&format!("claimer {n}")).await;
            claimers.push(tokio::spawn(claimer(executor, round * 100 + n, Arc::clone(&tally), JOBS)));
        }
        for claimer in claimers {
            tokio::time::timeout(agent_host_tests::world::PATIENCE * 3, claimer).await.expect("the jobs are done").unwrap();
        }
        let mut claims = BTreeMap::new();
        for job in &jobs {
            let run = host.run(job).await;
            assert_eq!(run["status"], "completed", "{run:#}");
            *claims.entry(run["queue"]["claims"].as_u64().unwrap()).or_insert(0) += 1;
            // The lines of one claim stand together and in order, those of a later claim behind those of an earlier one.
            let lines: Vec<(u64, u64)> = texts(&host.events(job).await)
                .iter()
                .map(|line| line.split_once(' ').map(|(claim, n)| (claim.parse().unwrap(), n.parse().unwrap())).unwrap())
                .collect();
            assert!(lines.is_sorted(), "{job}: {lines:?}");
            assert_eq!(lines.iter().collect::<BTreeSet<_>>().len(), lines.len(), "{job}: {lines:?}");
            for (claim, n) in &lines {
                assert!(*n == 1 || lines.contains(&(*claim, n - 1)), "{job}: {lines:?}");
            }
        }
        println!(
            "round {round}: {} jobs done, {} claims abandoned, {} late writes refused, claims of a job: {claims:?}",
            tally.done.load(Ordering::Relaxed),
            tally.abandoned.load(Ordering::Relaxed),
            tally.refused.load(Ordering::Relaxed),
        );
        assert_eq!(tally.done.load(Ordering::Relaxed), JOBS);
        assert!(tally.refused.load(Ordering::Relaxed) > 0 && claims.len() > 1, "too little went wrong to prove anything");
    }
    host.check();
}

trait Patient {
    /// As many attempts as it takes.
    fn into_patient(self) -> Self;
}

impl Patient for crate::queue::support::Host {
    fn into_patient(mut self) -> Self {
        self.terminate();
        self.reconfigure(|config| config.replace("max_attempts = 3", "max_attempts = 100"));
        self.revive();
        self
    }
}
