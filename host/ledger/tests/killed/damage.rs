//! A store with damage of any kind: to open, to check and to salvage it gives what is right or one error, and no panic.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test; clippy.toml covers only the test functions themselves"
)]

use std::{
    collections::HashMap,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use crate::common::*;
use agent_host_ledger::{Options, check, salvage};

/// Seeds of the damages of a child process, as `FIRST..END`.
const SEEDS: &str = "LEDGER_DAMAGE_SEEDS";
/// Damages of the test.
const DAMAGES: u64 = 240;
const PAGE: usize = 4096;

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut random = Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..5 {
            random.below(2);
        }
        random
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

/// The files of a ledger after a crash, with rows in the store and in the log, and its export.
async fn crashed() -> (tempfile::TempDir, String) {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ledger = open(dir.path());
    for n in 0..80 {
        let run_no = new_run(&ledger).await.run_no;
        if n % 3 != 0 {
            finish(&ledger, run_no, 5).await;
        }
    }
    ledger.close().await.unwrap();
    let slow = Options { checkpoint_interval: Duration::from_secs(3_600), checkpoint_wal_bytes: 1 << 20, ..options(dir.path()) };
    let ledger = slow.open().unwrap();
    for _ in 0..10 {
        finish(&ledger, new_run(&ledger).await.run_no, 2).await;
    }
    let text = exported(&ledger);
    crash(dir.path(), copy.path());
    let identity = |dir: &Path| dir.join("ledger/ledger.identity");
    fs::copy(identity(dir.path()), identity(copy.path())).unwrap();
    (copy, text)
}

fn damaged(whole: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = whole.to_vec();
    let used = whole.chunks(PAGE).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    let used: Vec<usize> = used.map(|(page, _)| page * PAGE).collect();
    let page = used[random.below(used.len())];
    let at = page + random.below(PAGE);
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[random.below(320)] ^= 1 << random.below(8),
        2 => bytes[page..page + PAGE].fill(0),
        3 => (page..page + 64).for_each(|at| bytes[at] = u8::try_from(random.below(256)).unwrap()),
        4 => bytes.truncate(at),
        5 => {
            let other = used[random.below(used.len())];
            bytes.copy_within(other..other + PAGE, page);
        }
        6 => (0..40).for_each(|_| bytes[used[random.below(used.len())] + random.below(PAGE)] = 0xff),
        _ => bytes[page..page + 8].fill(0xff),
    }
    bytes
}

/// The child process of `a_damaged_store_is_right_or_one_error`, not a test of its own: it prints one line for each opening,
/// check and salvage.
#[tokio::test]
#[ignore = "runs as a child process of another test"]
async fn opens_damaged_stores() {
    let Ok(seeds) = std::env::var(SEEDS) else { return };
    let (first, end) = seeds.split_once("..").unwrap();
    let (files, text) = crashed().await;
    let whole = fs::read(files.path().join("ledger/ledger.redb")).unwrap();
    for seed in first.parse::<u64>().unwrap()..end.parse().unwrap() {
        let bytes = damaged(&whole, seed);
        let copy = |with: &[u8]| {
            let copy = tempfile::tempdir().unwrap();
            crash(files.path(), copy.path());
            fs::copy(files.path().join("ledger/ledger.identity"), copy.path().join("ledger/ledger.identity")).unwrap();
            fs::write(copy.path().join("ledger/ledger.redb"), with).unwrap();
            copy
        };
        let dir = copy(&bytes);
        match small(&dir.path().join("ledger")).open() {
            Ok(ledger) => {
                let read = ledger.export(std::io::sink(), |_| ());
                let closed = ledger.close().await;
                println!(
                    "{seed} open: {:?} {:?}",
                    read.map_err(|error| error.to_string()),
                    closed.map_err(|error| error.to_string())
                );
            }
            Err(error) => println!("{seed} open: {error}"),
        }
        let dir = copy(&bytes);
        match check(dir.path().join("ledger"), |_| ()) {
            Ok(report) => {
                let is_right = text_of(&dir.path().join("ledger")).await == Some(text.clone());
                assert!(is_right || !report.is_ok(), "{seed}: a check finds nothing, and the rows are others");
                println!("{seed} check: sound {}", report.is_ok());
            }
            Err(error) => println!("{seed} check: {error}"),
        }
        let dir = copy(&bytes);
        let to = dir.path().join("to");
        let report = salvage(dir.path().join("ledger"), &to, |_| ()).unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert!(fs::read(dir.path().join("ledger/ledger.redb")).unwrap() == bytes, "{seed}");
        let salvaged = text_of(&to).await;
        assert!(!report.is_complete() || salvaged.as_ref() == Some(&text), "{seed}: {report:?}");
        let kept = salvaged.map_or(0, |salvaged| salvaged.lines().filter(|line| text.contains(line)).count());
        println!("{seed} salvage: {} missing, {kept} lines", report.missing_count);
    }
    // Where redb has panicked twice, the harness would wait for the hook of panics (`agent_host_ledger::boundary`).
    std::process::exit(0);
}

fn small(dir: &Path) -> Options {
    Options { checkpoint_wal_bytes: 64 * 1024, ..Options::new(dir) }
}

/// The export of a ledger, where all of it can be read.
async fn text_of(dir: &Path) -> Option<String> {
    let ledger = small(dir).open().ok()?;
    let mut out = Vec::new();
    let read = ledger.export(&mut out, |_| ());
    let closed = ledger.close().await;
    read.ok().zip(closed.ok()).and_then(|_| String::from_utf8(out).ok())
}

#[test]
fn a_damaged_store_is_right_or_one_error() {
    let children: Vec<_> = (0..2)
        .map(|child| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "damage::opens_damaged_stores", "--ignored", "--nocapture"])
                .env(SEEDS, format!("{}..{}", child * DAMAGES / 2, (child + 1) * DAMAGES / 2))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut kept = HashMap::new();
    let mut lines = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && !stderr.contains("panicked"), "{stderr}\n{stdout}");
        for line in stdout.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())) {
            lines += 1;
            if let Some(count) = line.split("missing, ").nth(1) {
                *kept.entry(count == "0 lines").or_insert(0) += 1;
            }
        }
    }
    assert_eq!(lines, DAMAGES * 3);
    // Nearly every damage leaves some rows, and the log.
    assert!(kept[&false] > DAMAGES * 9 / 10, "{kept:?}");
}
