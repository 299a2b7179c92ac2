//! Knowledge bases: files in, passages out.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test"
)]

mod models;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_protocol::{ApiError, ErrorCode, knowledge::KnowledgeHit, model::RerankHit};
use agent_host_providers::knowledge::{
    AddOptions, AddProgress, AddReport, Embedder, FileOutcome, Knowledge, KnowledgeBaseConfig, KnowledgeError, Reranker, Services,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

struct Fixture {
    dir: tempfile::TempDir,
    knowledge: Knowledge,
}

impl Fixture {
    fn new() -> Self {
        Self::with(Services::default())
    }

    fn with(services: Services) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("docs")).unwrap();
        let knowledge = open(dir.path(), services);
        Self { dir, knowledge }
    }

    fn docs(&self) -> PathBuf {
        self.dir.path().join("docs")
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.docs().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    async fn add(&self) -> AddReport {
        self.add_with(AddOptions::default()).await
    }

    async fn add_with(&self, options: AddOptions) -> AddReport {
        self.knowledge.add("kb", &[self.docs()], options, &mut |_| {}).await.unwrap()
    }

    async fn find(&self, query: &str) -> Vec<KnowledgeHit> {
        self.find_with(query, 10, None).await.unwrap()
    }

    async fn find_with(&self, query: &str, top_k: u32, filters: Option<Value>) -> Result<Vec<KnowledgeHit>, ApiError> {
        self.knowledge.retrieve("kb", query, top_k, filters.as_ref(), soon()).await
    }

    async fn paths(&self, query: &str, filters: Value) -> Vec<String> {
        let hits = self.find_with(query, 50, Some(filters)).await.unwrap();
        let mut paths: Vec<_> = hits.iter().map(path).collect();
        paths.sort();
        paths.dedup();
        paths
    }
}

fn open(dir: &Path, services: Services) -> Knowledge {
    let config = KnowledgeBaseConfig {
        name: Some("Documents".into()),
        passage_chars: 400,
        overlap_chars: 40,
        ..KnowledgeBaseConfig::new("kb")
    };
    Knowledge::open(&dir.join("knowledge"), &[config], |_| services.clone()).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn path(hit: &KnowledgeHit) -> String {
    hit.metadata["path"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn folders_of_all_kinds_of_text_are_found_with_their_metadata() {
    let f = Fixture::new();
    f.write("guide/runner.md", "# Runners\n\n## Sandbox\n\nEvery runner lives in a sandbox of WebAssembly.\n");
    f.write("page.html", "<html><head><title>The &amp; Page</title><style>b{}</style></head><body><h1>Top</h1><h2>Deep</h2><p>Zebras <b>gallop</b>.</p><script>alert('hidden')</script></body></html>");
    f.write("notes.txt", "知识库里有很多文档，可以全文检索。");
    f.write("paper.pdf", pdf("Quarterly albatross report"));
    f.write(".hidden/secret.md", "albatross");
    f.write(".dot.md", "albatross");
    f.write("image.png", [0x89, b'P', b'N', b'G', 0, 1]);
    let report = f.add().await;
    assert_eq!((report.added, report.ignored, report.failed.len()), (4, 1, 0), "{report:?}");

    let hits = f.find("sandbox").await;
    assert_eq!(hits.len(), 1);
    let m = &hits[0].metadata;
    assert_eq!(
        (m["path"].as_str(), m["title"].as_str(), m["heading"].as_str(), m["media_type"].as_str(), m["passage"].as_u64()),
        (Some("guide/runner.md"), Some("Runners"), Some("Runners > Sandbox"), Some("text/markdown"), Some(1))
    );
    assert!(m["modified_at"].as_u64().unwrap() > 1_600_000_000_000 && hits[0].score > 0.0 && m["retrieval"] == "text");
    assert!(!serde_json::to_string(&hits).unwrap().contains(f.dir.path().to_str().unwrap()), "no path of the host is shown");

    let hits = f.find("zebra gallops").await;
    assert_eq!(
        (hits[0].metadata["title"].as_str(), hits[0].metadata["heading"].as_str()),
        (Some("The & Page"), Some("Top > Deep"))
    );
    assert!(f.find("hidden alert").await.is_empty());
    assert_eq!(path(&f.find("检索").await[0]), "notes.txt");
    let hits = f.find("albatross").await;
    assert_eq!((hits.len(), path(&hits[0])), (1, "paper.pdf".to_owned()));
    assert_eq!(hits[0].metadata["media_type"], "application/pdf");

    let info = f.knowledge.list();
    assert_eq!((info[0].id.as_str(), info[0].name.as_str(), info[0].documents, &info[0].problem), ("kb", "Documents", 4, &None));
    assert_eq!(info[0].passages, f.knowledge.documents("kb").unwrap().iter().map(|d| d.passages).sum::<u64>());
}

#[tokio::test]
async fn unchanged_files_are_skipped_and_changed_ones_replaced() {
    let f = Fixture::new();
    f.write("a.md", "# A\n\nalpha beta");
    f.write("b.md", "# B\n\ngamma");
    f.add().await;
    let before = f.knowledge.documents("kb").unwrap();
    let report = f.add().await;
    assert_eq!((report.added, report.updated, report.unchanged), (0, 0, 2));

    f.write("a.md", "# A\n\ndelta only");
    let report = f.add().await;
    assert_eq!((report.added, report.updated, report.unchanged), (0, 1, 1));
    assert!(f.find("alpha").await.is_empty());
    let hits = f.find("delta").await;
    assert_eq!((hits.len(), &hits[0].document_id), (1, &before[0].id));

    // Other settings: read anew. The same metadata twice: not.
    let metadata = AddOptions { metadata: json!({"lang": "en"}).as_object().unwrap().clone(), prune: false };
    assert_eq!(f.add_with(metadata.clone()).await.updated, 2);
    assert_eq!(f.add_with(metadata).await.unchanged, 2);
    assert_eq!(f.find("delta").await[0].metadata["lang"], "en");
    assert_eq!(f.knowledge.list()[0].documents, 2);
}

#[tokio::test]
async fn files_that_have_gone_are_told_and_pruned_on_demand() {
    let f = Fixture::new();
    let gone = f.write("sub/a.md", "alpha");
    f.write("b.md", "beta");
    f.add().await;
    fs::remove_file(gone).unwrap();
    let report = f.add().await;
    assert_eq!((report.missing, report.pruned), (vec!["sub/a.md".to_owned()], 0));
    assert_eq!(f.find("alpha").await.len(), 1);
    // Another folder says nothing about it.
    let other = tempfile::tempdir().unwrap();
    let prune = AddOptions { prune: true, ..AddOptions::default() };
    let report = f.knowledge.add("kb", &[other.path().to_owned()], prune.clone(), &mut |_| {}).await.unwrap();
    assert_eq!((report.missing.len(), report.pruned), (0, 0));
    let report = f.add_with(prune).await;
    assert_eq!((report.missing.len(), report.pruned), (1, 1));
    assert!(f.find("alpha").await.is_empty());
    assert_eq!(f.find("beta").await.len(), 1);
}

#[tokio::test]
async fn documents_are_removed_by_id_path_file_and_folder() {
    let f = Fixture::new();
    for name in ["a.md", "b.md", "c.md", "d/e.md", "d/f.md", "dd.md"] {
        f.write(name, format!("word {name}"));
    }
    f.add().await;
    let id = f.knowledge.documents("kb").unwrap()[0].id.clone();
    let c = f.docs().join("c.md").to_str().unwrap().to_owned();
    let report = f.knowledge.remove("kb", &[id, "b.md".into(), c, "d".into(), "nothing".into(), "b.md".into()]).unwrap();
    let removed: Vec<_> = report.removed.iter().map(|d| d.path.as_str()).collect();
    assert_eq!((removed, report.not_found), (vec!["a.md", "b.md", "c.md", "d/e.md", "d/f.md"], vec!["nothing".to_owned()]));
    assert_eq!(f.paths("word", json!({})).await, ["dd.md"]);
}

#[tokio::test]
async fn files_that_cannot_be_read_are_told_and_do_not_stop_the_rest() {
    let f = Fixture::new();
    let named = |name: &str| f.docs().join(name);
    let good = pdf("A sound document");
    f.write("ok.md", "sound");
    f.write("binary.txt", [b'a', 0, 1, 2, 3]);
    f.write("empty.md", "");
    f.write("punctuation.md", "--- *** !!!");
    f.write("gbk.txt", [0xd6, 0xaa, 0xca, 0xb6, 0xbf, 0xe2].repeat(20));
    f.write("latin1.txt", b"Un texte fran\xe7ais qui est tout de m\xeame lisible, sound");
    f.write(
        "utf16.txt",
        [0xff, 0xfe].into_iter().chain("sound sixteen".encode_utf16().flat_map(u16::to_le_bytes)).collect::<Vec<_>>(),
    );
    f.write("garbage.pdf", b"%PDF-1.7\n\xff\xff garbage");
    f.write("not.pdf", b"this is no pdf");
    f.write("cut.pdf", &good[..good.len() / 2]);
    let mut random = 1_u32;
    for n in 0..30 {
        let mut bytes = good.clone();
        for _ in 0..20 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = random as usize % bytes.len();
            bytes[at] = (random >> 24) as u8;
        }
        f.write(&format!("fuzz/{n}.pdf"), bytes);
    }
    let huge = fs::File::create(named("huge.txt")).unwrap();
    huge.set_len(65 * 1024 * 1024).unwrap();
    let report = f.add().await;
    let why =
        |name: &str| report.failed.iter().find(|failed| failed.path.ends_with(name)).map_or("", |failed| failed.reason.as_str());
    assert!(why("binary.txt").contains("binary"), "{report:?}");
    assert!(why("empty.md").contains("no text") && why("punctuation.md").contains("no text"));
    assert!(why("gbk.txt").contains("UTF-8"));
    assert!(why("huge.txt").contains("limit"));
    for name in ["garbage.pdf", "not.pdf", "cut.pdf"] {
        assert!(!why(name).is_empty(), "{name}: {report:?}");
    }
    assert_eq!(f.find("sound").await.iter().filter(|hit| !path(hit).starts_with("fuzz")).count(), 3);
    assert_eq!(f.find("lisible").await.len(), 1);
    // An unreadable file keeps its earlier document.
    f.write("ok.md", [0_u8; 10]);
    assert!(f.add().await.failed.iter().any(|failed| failed.path.ends_with("ok.md")));
    assert!(f.find("sound").await.iter().any(|hit| path(hit) == "ok.md"));
}

#[tokio::test]
async fn documents_that_are_made_to_harm_do_not() {
    let f = Fixture::new();
    let began = Instant::now();
    f.write("deep.html", format!("{}deepest{}", "<div>".repeat(50_000), "</div>".repeat(50_000)));
    f.write("nested.html", format!("{}deepest{}", "<div>".repeat(4_000), "</div>".repeat(4_000)));
    f.write("lists.html", format!("{}deepest", "<ul><li>".repeat(20_000)));
    f.write("tables.html", format!("{}deepest", "<table><tr><td>".repeat(3_000)));
    f.write("wide.html", "<table><tr><td colspan=4000000000 rowspan=4000000000>wide</td></tr></table>");
    f.write("entities.html", "&amp;".repeat(1_000_000));
    f.write("attributes.html", format!("<p {}>attributes</p>", "a=b ".repeat(200_000)));
    f.write("quotes.md", format!("{} deepest", ">".repeat(100_000)));
    f.write("brackets.md", format!("{} deepest", "[".repeat(100_000)));
    f.write("stars.md", "*a **a ".repeat(50_000));
    f.write("headings.md", "# x\n".repeat(20_000));
    f.write("line.txt", "x".repeat(2_000_000));
    f.write("chinese.txt", "知识库里有很多文档。".repeat(50_000));
    f.write("link.md", "[a](b)".repeat(100_000));
    f.write("table.md", format!("|a|b|\n|-|-|\n{}", "|x|y|\n".repeat(50_000)));
    f.write("bomb.pdf", pdf_bomb());
    f.write("ok.md", "sound");
    let report = f.add().await;
    assert!(began.elapsed() < Duration::from_secs(500), "{:?}", began.elapsed());
    let bomb = report.failed.iter().find(|failed| failed.path.ends_with("bomb.pdf")).unwrap();
    assert!(bomb.reason.contains("unpacked"), "{bomb:?}");
    assert_eq!(path(&f.find("sound").await[0]), "ok.md");
}

#[tokio::test]
async fn a_name_that_is_not_text_is_told() {
    use std::os::unix::ffi::OsStrExt as _;
    let f = Fixture::new();
    f.write("ok.md", "sound");
    fs::write(f.docs().join(std::ffi::OsStr::from_bytes(b"a\xff.md")), "odd").unwrap();
    let report = f.add().await;
    assert_eq!((report.added, report.failed.len()), (1, 1));
    assert!(report.failed[0].reason.contains("rename") && serde_json::to_string(&report).is_ok());
}

#[tokio::test]
async fn links_out_of_the_folder_are_not_followed() {
    let f = Fixture::new();
    let outside = f.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret.md"), "confidential").unwrap();
    f.write("ok.md", "sound");
    std::os::unix::fs::symlink(&outside, f.docs().join("folder")).unwrap();
    std::os::unix::fs::symlink(outside.join("secret.md"), f.docs().join("file.md")).unwrap();
    std::os::unix::fs::symlink(f.docs(), f.docs().join("loop")).unwrap();
    let report = f.add().await;
    assert_eq!((report.added, report.failed.len()), (1, 0), "{report:?}");
    assert!(f.find("confidential").await.is_empty());
}

#[tokio::test]
async fn filters_are_exact() {
    let f = Fixture::new();
    for n in 0..60 {
        f.write(
            &format!("{}/{n}.md", if n % 2 == 0 { "even" } else { "odd" }),
            format!("# Doc {n}\n\nshared words here\n\n## Deep\n\nshared {n}"),
        );
    }
    f.add_with(AddOptions { metadata: json!({"lang": "en", "year": 2024}).as_object().unwrap().clone(), prune: false }).await;
    let single = f.write("other.md", "shared in another language");
    let options = AddOptions { metadata: json!({"lang": "de", "tags": ["x", "y"]}).as_object().unwrap().clone(), prune: false };
    f.knowledge.add("kb", &[single], options, &mut |_| {}).await.unwrap();
    assert_eq!(f.paths("shared", json!({"lang": "de"})).await, ["other.md"]);
    assert_eq!(f.paths("shared", json!({"tags": "y"})).await, ["other.md"]);
    assert_eq!(f.paths("shared", json!({"path": "odd/7.md"})).await, ["odd/7.md"]);
    assert_eq!(f.paths("shared", json!({"path": {"prefix": "even/"}})).await.len(), 30);
    assert_eq!(f.paths("shared", json!({"year": {"gte": 2024}, "title": ["Doc 3", "Doc 4"]})).await, ["even/4.md", "odd/3.md"]);
    assert_eq!(f.paths("shared", json!({"heading": "Doc 5 > Deep"})).await, Vec::<String>::new());
    assert_eq!(f.paths("shared", json!({"heading": "Doc 5"})).await, ["odd/5.md"]);
    assert_eq!(f.paths("shared", json!({"passage": {"gt": 1}})).await, Vec::<String>::new());
    assert!(f.paths("shared", json!({"year": 2025})).await.is_empty());
    let error = f.find_with("shared", 5, Some(json!({"year": null}))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn invalid_questions_are_refused() {
    let f = Fixture::new();
    f.write("a.md", "alpha");
    f.add().await;
    for top_k in [0, 51, u32::MAX] {
        assert_eq!(f.find_with("alpha", top_k, None).await.unwrap_err().code, ErrorCode::InvalidArgument);
    }
    let error = f.knowledge.retrieve("none", "alpha", 1, None, soon()).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::NotFound);
    for query in ["", "!?", "AND (", &"x ".repeat(1_000_000)] {
        assert!(f.find(query).await.is_empty());
    }
    let no_file = f.knowledge.add("kb", &["/no/such/file".into()], AddOptions::default(), &mut |_| {}).await;
    assert!(matches!(no_file, Err(KnowledgeError::Path { .. })));
    for (key, value) in
        [("path", json!("x")), ("", json!("x")), ("k", json!({})), ("k", json!(null)), ("k", json!("x".repeat(20_000)))]
    {
        let options = AddOptions { metadata: serde_json::Map::from_iter([(key.to_owned(), value)]), prune: false };
        assert!(matches!(f.knowledge.add("kb", &[f.docs()], options, &mut |_| {}).await, Err(KnowledgeError::Options(_))));
    }
    let configs = [KnowledgeBaseConfig::new("a"), KnowledgeBaseConfig::new("a")];
    assert!(Knowledge::open(f.dir.path(), &configs, |_| Services::default()).is_err());
}

#[tokio::test]
async fn a_file_that_is_named_is_read_whatever_its_name() {
    let f = Fixture::new();
    let odd = f.write("config.yaml", "key: albatross");
    let report = f.add().await;
    assert_eq!((report.added, report.ignored), (0, 1));
    let report = f.knowledge.add("kb", std::slice::from_ref(&odd), AddOptions::default(), &mut |_| {}).await.unwrap();
    assert_eq!(report.added, 1);
    // Named and below a folder is still one document.
    let report = f.knowledge.add("kb", &[odd, f.docs()], AddOptions::default(), &mut |_| {}).await.unwrap();
    assert_eq!((report.unchanged, report.added), (1, 0));
    assert_eq!(f.find("albatross").await.len(), 1);
}

#[tokio::test]
async fn another_process_sees_commits_and_may_not_write_at_the_same_time() {
    let f = Fixture::new();
    let other = open(f.dir.path(), Services::default());
    f.write("a.md", "alpha");
    f.add().await;
    assert_eq!(other.retrieve("kb", "alpha", 1, None, soon()).await.unwrap().len(), 1);
    for n in 0..300 {
        f.write(&format!("{n}.md"), "beta");
    }
    let mut busy = Vec::new();
    let mut progress = |progress| {
        if matches!(progress, AddProgress::Committed { .. }) {
            let (removed, documents) = (other.remove("kb", &["nothing".into()]), other.list()[0].documents);
            busy.push((removed.err().map(|error| error.to_string()), documents));
        }
    };
    f.knowledge.add("kb", &[f.docs()], AddOptions::default(), &mut progress).await.unwrap();
    // Commits are visible at once; the last one comes when the other writers have finished.
    assert_eq!(busy.iter().map(|(_, documents)| *documents).collect::<Vec<_>>(), [101, 201, 301, 301]);
    let (last, before) = busy.split_last().unwrap();
    assert!(before.iter().all(|(error, _)| error.as_ref().unwrap().contains("another process")) && last.0.is_none(), "{busy:?}");
    // A process that another test starts has the files of this one open for a moment, and their locks with them.
    let mut removed = other.remove("kb", &["a.md".into()]);
    for _ in 0..50 {
        if removed.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        removed = other.remove("kb", &["a.md".into()]);
    }
    removed.unwrap();
    assert_eq!(f.knowledge.list()[0].documents, 300);
}

#[tokio::test]
async fn a_damaged_index_is_a_problem_of_its_own_and_can_be_mended() {
    let f = Fixture::new();
    f.write("a.md", "alpha");
    f.add().await;
    let index = f.dir.path().join("knowledge/kb");
    fs::write(index.join("meta.json"), "{").unwrap();
    let error = f.find_with("alpha", 1, None).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::RuntimeError);
    assert!(!error.message.contains(f.dir.path().to_str().unwrap()), "{error}");
    let knowledge = open(f.dir.path(), Services::default());
    let problem = knowledge.list()[0].problem.clone().unwrap();
    assert!(problem.contains("add the documents again"), "{problem}");
    fs::remove_dir_all(index).unwrap();
    assert_eq!(knowledge.list()[0].problem, None);
    knowledge.add("kb", &[f.docs()], AddOptions::default(), &mut |_| {}).await.unwrap();
    assert_eq!(knowledge.retrieve("kb", "alpha", 1, None, soon()).await.unwrap().len(), 1);
    assert_eq!(f.find("alpha").await.len(), 1);
}

#[tokio::test]
async fn progress_is_told_of_every_file() {
    let f = Fixture::new();
    for n in 0..250 {
        f.write(&format!("{n:03}.md"), format!("text {n}"));
    }
    f.write("bad.txt", [0]);
    let mut reports = Vec::new();
    f.knowledge.add("kb", &[f.docs()], AddOptions::default(), &mut |progress| reports.push(progress)).await.unwrap();
    assert_eq!(reports.first(), Some(&AddProgress::Found { files: 251 }));
    assert_eq!(reports.last(), Some(&AddProgress::Committed { done: 251 }));
    let files: Vec<_> = reports
        .iter()
        .filter_map(|p| if let AddProgress::File { done, outcome, .. } = p { Some((*done, outcome)) } else { None })
        .collect();
    assert!(files.iter().map(|(done, _)| *done).eq(1..=251));
    assert!(files.iter().any(|(_, outcome)| matches!(outcome, FileOutcome::Failed { .. })));
    assert_eq!(reports.iter().filter(|p| matches!(p, AddProgress::Committed { .. })).count(), 3);
}

/// A PDF of one page.
fn pdf(text: &str) -> Vec<u8> {
    let content = format!("BT /F1 12 Tf 72 720 Td ({text}) Tj ET");
    pdf_of(&format!("<< /Length {} >>", content.len()), content.as_bytes())
}

fn pdf_of(dictionary: &str, stream: &[u8]) -> Vec<u8> {
    let mut out = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    let mut object = |out: &mut Vec<u8>, body: &[u8]| {
        offsets.push(out.len());
        out.extend_from_slice(format!("{} 0 obj\n", offsets.len()).as_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(b"\nendobj\n");
    };
    object(&mut out, b"<< /Type /Catalog /Pages 2 0 R >>");
    object(&mut out, b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>");
    object(
        &mut out,
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
    );
    let mut body = format!("{dictionary}\nstream\n").into_bytes();
    body.extend_from_slice(stream);
    body.extend_from_slice(b"\nendstream");
    object(&mut out, &body);
    object(&mut out, b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>");
    let xref = out.len();
    out.extend_from_slice(format!("xref\n0 {}\n0000000000 65535 f \n", offsets.len() + 1).as_bytes());
    for offset in &offsets {
        out.extend_from_slice(format!("{offset:010} 00000 n \n").as_bytes());
    }
    out.extend_from_slice(
        format!("trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{xref}\n%%EOF\n", offsets.len() + 1).as_bytes(),
    );
    out
}

/// A PDF of one megabyte that unpacks to one gigabyte.
fn pdf_bomb() -> Vec<u8> {
    use std::io::Write as _;
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    let block = vec![b' '; 1024 * 1024];
    for _ in 0..1024 {
        packed.write_all(&block).unwrap();
    }
    let packed = packed.finish().unwrap();
    pdf_of(&format!("<< /Length {} /Filter /FlateDecode >>", packed.len()), &packed)
}
