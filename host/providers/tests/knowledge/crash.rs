//! After a kill at any moment, adding documents again completes the work.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test"
)]

use std::{
    collections::HashSet,
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use agent_host_providers::knowledge::{AddOptions, AddProgress, Knowledge, KnowledgeBaseConfig, Services};

const DIR: &str = "KNOWLEDGE_CRASH_DIR";
const FILES: u64 = 600;

fn open(dir: &Path) -> Knowledge {
    Knowledge::open(&dir.join("knowledge"), &[KnowledgeBaseConfig::new("kb")], |_| Services::default()).unwrap()
}

/// The child process of `a_second_addition_completes_the_first`, not a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as a child process of another test"]
async fn adds_until_it_is_killed() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let dir = Path::new(&dir);
    let mut say = |progress| {
        if let AddProgress::Committed { done } = progress {
            std::io::stderr().lock().write_all(format!("committed {done}\n").as_bytes()).unwrap();
        }
    };
    open(dir).add("kb", &[dir.join("docs")], AddOptions::default(), &mut say).await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_second_addition_completes_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    for n in 0..FILES {
        fs::write(docs.join(format!("{n:04}.md")), format!("# Document {n}\n\nunique{n} {}\n", "shared words ".repeat(200)))
            .unwrap();
    }
    // At the start, right after a commit, in the middle, and during the final merge.
    for round in 0_u64..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::adds_until_it_is_killed", "--ignored", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        if round % 2 == 0 {
            lines.find(|line| line.starts_with("committed "));
        }
        std::thread::sleep(Duration::from_millis(round * 13));
        child.kill().unwrap();
        child.wait().unwrap();
        let knowledge = open(dir.path());
        let documents = knowledge.documents("kb").unwrap();
        let ids: HashSet<_> = documents.iter().map(|document| &document.id).collect();
        assert_eq!(ids.len(), documents.len(), "no document twice");
        assert_eq!(knowledge.list()[0].problem, None);
        // Every document that is in has all its passages.
        if let Some(last) = documents.last() {
            let word = last.path.trim_end_matches(".md").trim_start_matches('0');
            let word = format!("unique{}", if word.is_empty() { "0" } else { word });
            let deadline = Instant::now() + Duration::from_secs(60);
            assert_eq!(knowledge.retrieve("kb", &word, 5, None, deadline).await.unwrap().len(), 1, "{word}");
        }
        if round == 3 {
            fs::remove_dir_all(dir.path().join("knowledge")).unwrap();
        }
    }
    let knowledge = open(dir.path());
    let before = knowledge.documents("kb").unwrap().len() as u64;
    let report = knowledge.add("kb", &[docs], AddOptions::default(), &mut |_| {}).await.unwrap();
    assert_eq!((report.added, report.unchanged, report.updated), (FILES - before, before, 0));
    let documents = knowledge.documents("kb").unwrap();
    assert_eq!(documents.len() as u64, FILES);
    let deadline = Instant::now() + Duration::from_secs(60);
    for n in [0, 1, 99, 100, 101, 599] {
        let hits = knowledge.retrieve("kb", &format!("unique{n}"), 50, None, deadline).await.unwrap();
        assert_eq!(hits.len(), 1, "unique{n}");
    }
}
