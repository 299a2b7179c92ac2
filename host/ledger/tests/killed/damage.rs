//! Damaged files of a ledger: each opening is right, or gives one error and no text of a panic.

use std::process::Command;

use crate::common::*;
use agent_host_ledger::{Options, check};

const SEEDS: &str = "LEDGER_DAMAGE_SEEDS";

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// The child process.
#[tokio::test]
#[ignore = "runs as a child process of another test"]
async fn opens_damaged_files() {
    let Ok(seeds) = std::env::var(SEEDS) else { return };
    let (from, to) = seeds.split_once("..").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    for n in 0..60 {
        let run_no = new_run(&ledger).await.run_no;
        if n % 3 != 0 {
            finish(&ledger, run_no, 5).await;
        }
    }
    ledger.close().await.unwrap();
    let path = dir.path().join("ledger/ledger.redb");
    let whole = std::fs::read(&path).unwrap();
    eprintln!("size {}", whole.len());
    let used: Vec<usize> =
        whole.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)).map(|(page, _)| page).collect();
    for seed in from.parse::<u64>().unwrap()..to.parse().unwrap() {
        let mut random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (0..5).for_each(|_| drop(random.next(2)));
        let mut bytes = whole.clone();
        let kind = random.next(6);
        let page = used[usize::try_from(random.next(used.len() as u64)).unwrap()] * 4096;
        let at = page + usize::try_from(random.next(4096)).unwrap();
        match kind {
            0 => bytes[at] ^= 1 << random.next(8),
            1 => bytes[usize::try_from(random.next(320)).unwrap()] ^= 1 << random.next(8),
            2 => bytes[page..page + 4096].fill(0),
            3 => bytes[page..page + 64].iter_mut().for_each(|byte| *byte = random.next(256) as u8),
            4 => bytes.truncate(at),
            _ => {
                let other = used[usize::try_from(random.next(used.len() as u64)).unwrap()] * 4096;
                bytes.copy_within(other..other + 4096, page);
            }
        }
        let copy = tempfile::tempdir().unwrap();
        crash(dir.path(), copy.path());
        std::fs::write(copy.path().join("ledger/ledger.redb"), &bytes).unwrap();
        eprintln!("begin {seed} kind {kind} at {at} page {page}");
        let opened = Options::new(copy.path().join("ledger")).open();
        match opened {
            Ok(ledger) => match ledger.close().await {
                Ok(()) => println!("case {seed} {kind} opened"),
                Err(error) => println!("case {seed} {kind} close {error}"),
            },
            Err(error) => println!("case {seed} {kind} {error}"),
        }
        std::fs::write(copy.path().join("ledger/ledger.redb"), &bytes).unwrap();
        match check(copy.path().join("ledger"), |_| ()) {
            Ok(report) => println!("check {seed} {kind} {} {}", report.is_ok(), report.findings_count),
            Err(error) => println!("check {seed} {kind} {error}"),
        }
    }
}

#[test]
fn a_damaged_store_is_right_or_one_error() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "damage::opens_damaged_files", "--ignored", "--nocapture"])
        .env(SEEDS, "0..10")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success());
}
