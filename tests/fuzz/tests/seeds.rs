//! Every target with mutations of its corpus, by fixed seeds.
//!
//! `FUZZ_SECONDS` is the time of each target, `FUZZ_SEED` another seed. The input of a crash is written to a file, whose name is
//! printed; it belongs into the corpus, with the fix.

use std::{
    collections::BTreeSet,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use agent_host_fuzz::{Mutator, corpus, corpus_dir, target, targets};

/// Time of a target. The corpus and some inputs are tried in any case.
const SECONDS: u64 = 2;
const AT_LEAST: u64 = 20;
const SEED: u64 = 20_261_127;
/// Bytes of the corpus of all targets: it is in the tree.
const MAX_CORPUS_BYTES: u64 = 512 * 1024;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn fuzz(name: &str) {
    let (target, corpus) = (target(name), corpus(name));
    let (seconds, seed) = (number("FUZZ_SECONDS"), number("FUZZ_SEED").unwrap_or(SEED));
    let last = file(&format!("{name}-last"));
    let run = |input: &[u8]| {
        // An abort leaves no other trace.
        if seconds.is_some() {
            fs::write(&last, input).unwrap();
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
            let crash = file(&format!("{name}-crash"));
            fs::write(&crash, input).unwrap();
            eprintln!("FUZZ_SEED={seed}: the input is in {}: copy it to {}", crash.display(), corpus_dir(name).display());
            resume_unwind(panic);
        }
    };
    corpus.iter().for_each(|input| run(input));
    let (began, time) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(SECONDS)));
    let mut mutator = Mutator::new(seed, target.max_bytes);
    let mut inputs = 0_u64;
    while inputs < AT_LEAST || began.elapsed() < time {
        run(&mutator.next(&corpus));
        inputs += 1;
    }
    println!("{name}: {inputs} inputs in {:.1} s", began.elapsed().as_secs_f64());
}

#[test]
fn ledger_log() {
    fuzz("ledger_log");
}

#[test]
fn ledger_rows() {
    fuzz("ledger_rows");
}

#[test]
fn config() {
    fuzz("config");
}

#[test]
fn event_stream() {
    fuzz("event_stream");
}

#[cfg(feature = "host")]
#[test]
fn journal() {
    fuzz("journal");
}

#[cfg(feature = "host")]
#[test]
fn component() {
    fuzz("component");
}

#[cfg(feature = "host")]
#[test]
fn canonical_abi() {
    fuzz("canonical_abi");
}

#[cfg(feature = "host")]
#[test]
fn agui_input() {
    fuzz("agui_input");
}

#[cfg(feature = "host")]
#[test]
fn event_body() {
    fuzz("event_body");
}

#[cfg(feature = "host")]
#[test]
fn mcp_output() {
    fuzz("mcp_output");
}

#[cfg(feature = "host")]
#[test]
fn model_stream() {
    fuzz("model_stream");
}

#[cfg(feature = "host")]
#[test]
fn html() {
    fuzz("html");
}

#[cfg(feature = "host")]
#[test]
fn pdf() {
    fuzz("pdf");
}

#[test]
fn every_target_is_fuzzed_and_has_a_small_corpus() {
    let source = include_str!("seeds.rs");
    let mut bytes = 0;
    for target in targets() {
        let name = target.name;
        assert!(source.contains(&format!("fn {name}() {{\n    fuzz(\"{name}\");")), "{name} is not fuzzed");
        let files: Vec<_> = fs::read_dir(corpus_dir(name)).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(!files.is_empty(), "{name} has no corpus");
        bytes += files.iter().map(|file| file.metadata().unwrap().len()).sum::<u64>();
    }
    assert!(bytes <= MAX_CORPUS_BYTES, "the corpus has {bytes} bytes");
}

#[test]
fn equal_seeds_make_equal_inputs() {
    let corpus = [b"some input".to_vec(), b"another one".to_vec()];
    let inputs = |seed| {
        let mut mutator = Mutator::new(seed, 100);
        (0..100).map(|_| mutator.next(&corpus)).collect::<Vec<_>>()
    };
    assert_eq!(inputs(1), inputs(1));
    assert_ne!(inputs(1), inputs(3));
    assert!(inputs(1).iter().all(|input| input.len() <= 100));
    assert!(inputs(1).iter().collect::<BTreeSet<_>>().len() > 80);
}

/// The crate for `cargo fuzz` is outside of the workspace, so nothing else looks at it.
#[cfg(feature = "host")]
#[test]
fn the_crate_for_libfuzzer_has_a_program_for_every_target() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("libfuzzer/Cargo.toml")).unwrap();
    let programs: BTreeSet<_> = manifest.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).collect();
    let expected: BTreeSet<_> = targets().map(|target| target.name).chain(["agent-host-libfuzzer"]).collect();
    assert_eq!(programs, expected);
}
