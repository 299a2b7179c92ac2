//! `agent-host knowledge`.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use agent_host_config::Config;
use agent_host_protocol::knowledge::KnowledgeHit;
use agent_host_runs::knowledge_bases::{
    AddOptions, AddProgress, AddReport, DocumentInfo, Knowledge, KnowledgeBaseInfo, RemoveReport,
};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::{output::Output, progress::Progress, styled::StyledText, table::Table, text};

/// A search that takes longer than this has a model that does not answer.
const SEARCH_LIMIT: Duration = Duration::from_secs(60);
/// Of a passage so much is shown; `--json` has all of it.
const SHOWN_CHARS: usize = 400;

/// Add documents to knowledge bases, find and remove them
///
/// Knowledge bases are configured under [[knowledge_bases]]. A server may be running: it finds what is added here as soon
/// as that is committed.
#[derive(Debug, Subcommand)]
pub(crate) enum KnowledgeCommand {
    Add(Add),
    List(List),
    Search(Search),
    Remove(Remove),
}

/// Add files, and folders of text, Markdown, HTML and PDF
///
/// Unchanged files are skipped, changed ones replaced. After an interruption, the same command adds the rest. Exits with 1
/// if a file could not be read; all other files are added.
#[derive(Debug, Args)]
pub(crate) struct Add {
    /// The knowledge base
    #[arg(value_name = "ID")]
    id: String,
    /// Files and folders to add
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Metadata of these documents, for filters: numbers and true or false as such, all else as text; a key that
    /// is given several times has a list
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = metadata)]
    metadata: Vec<(String, Value)>,
    /// Remove documents whose files have gone from the folders
    #[arg(long)]
    prune: bool,
}

/// List knowledge bases, or the documents of one
#[derive(Debug, Args)]
pub(crate) struct List {
    /// The knowledge base whose documents are listed
    #[arg(value_name = "ID")]
    id: Option<String>,
}

/// Find passages, as a runner does
#[derive(Debug, Args)]
pub(crate) struct Search {
    /// The knowledge base
    #[arg(value_name = "ID")]
    id: String,
    /// Query, in plain words
    #[arg(value_name = "QUERY")]
    query: String,
    /// Largest number of passages
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    top_k: u32,
    /// Restrict the metadata, such as '{"path": {"prefix": "guide/"}, "year": {"gte": 2024}}'
    #[arg(long, value_name = "JSON", value_parser = filters)]
    filters: Option<Value>,
}

/// Remove documents
#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The knowledge base
    #[arg(value_name = "ID")]
    id: String,
    /// Documents by id or path, files, or folders with all that is below them
    #[arg(value_name = "DOCUMENT", required = true)]
    documents: Vec<String>,
}

fn metadata(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("it must be KEY=VALUE")?;
    let plain = serde_json::from_str(value).ok().filter(|value: &Value| value.is_number() || value.is_boolean());
    Ok((key.to_owned(), plain.unwrap_or_else(|| value.into())))
}

fn filters(text: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if value.is_object() { Ok(value) } else { Err("it must be a JSON object".to_owned()) }
}

/// Metadata by key; a list where a key comes more than once.
fn metadata_of(pairs: Vec<(String, Value)>) -> Map<String, Value> {
    let mut map = Map::new();
    for (key, value) in pairs {
        match map.get_mut(&key) {
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = json!([first.take(), value]),
            None => drop(map.insert(key, value)),
        }
    }
    map
}

impl KnowledgeCommand {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let knowledge = agent_host_runs::knowledge(config)?.with_reader(super::compiler());
        match self {
            Self::Add(add) => add.execute(&knowledge, output).await,
            Self::List(list) => list.execute(&knowledge, output),
            Self::Search(search) => search.execute(&knowledge, output).await,
            Self::Remove(remove) => remove.execute(&knowledge, output),
        }
    }
}

impl Add {
    async fn execute(self, knowledge: &Knowledge, output: Output) -> anyhow::Result<ExitCode> {
        let options = AddOptions { metadata: metadata_of(self.metadata), prune: self.prune };
        let mut progress = Progress::spinner(output, "looking for files");
        let mut show = |step: AddProgress| match step {
            AddProgress::Found { files } => progress = Progress::bar(output, "adding", files),
            AddProgress::File { done, path, .. } => {
                progress.describe(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
                progress.done(done);
            }
            AddProgress::Committed { .. } => {}
        };
        let report = knowledge.add(&self.id, &self.paths, options, &mut show).await?;
        drop(progress);
        output.result(&report, || add_text(&report))?;
        Ok(if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn add_text(report: &AddReport) -> String {
    let AddReport { added, updated, unchanged, ignored, passages, failed, missing, pruned } = report;
    let mut output = format!("{added} added, {updated} updated, {unchanged} unchanged, {passages} new passages\n");
    if *ignored > 0 {
        output.push_str(&format!("{ignored} of other kinds ignored; name a file to add it anyway\n"));
    }
    if *pruned > 0 {
        output.push_str(&format!("{pruned} removed, whose files have gone\n"));
    } else if !missing.is_empty() {
        output.push_str(&format!("{} no longer have a file; --prune removes them:\n", missing.len()));
        output.extend(missing.iter().map(|path| format!("  {path}\n")));
    }
    if !failed.is_empty() {
        output.push_str(&format!("{} could not be read:\n", failed.len()));
        output.extend(failed.iter().map(|failure| format!("  {}: {}\n", failure.path.display(), failure.reason)));
    }
    output
}

impl List {
    fn execute(self, knowledge: &Knowledge, output: Output) -> anyhow::Result<ExitCode> {
        match self.id {
            None => {
                let bases = knowledge.list();
                output.result(&json!({ "knowledge_bases": bases }), || bases_text(&bases))?;
            }
            Some(id) => {
                let documents = knowledge.documents(&id)?;
                output.result(&json!({ "documents": documents }), || documents_text(&documents))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn bases_text(bases: &[KnowledgeBaseInfo]) -> StyledText {
    if bases.is_empty() {
        return "no knowledge base is configured: add one under [[knowledge_bases]]\n".into();
    }
    let mut table = Table::new(["ID", "NAME", "DOCUMENTS", "PASSAGES"]);
    for base in bases {
        table.row([base.id.clone(), base.name.clone(), base.documents.to_string(), base.passages.to_string()]);
    }
    let problems = bases.iter().filter_map(|base| base.problem.as_ref().map(|problem| format!("{}: {problem}\n", base.id)));
    table.render() + problems.collect::<String>()
}

fn documents_text(documents: &[DocumentInfo]) -> StyledText {
    if documents.is_empty() {
        return "it has no documents: agent-host knowledge add ID PATH\n".into();
    }
    let mut table = Table::new(["DOCUMENT", "PATH", "TITLE", "PASSAGES", "SIZE"]);
    for document in documents {
        let DocumentInfo { id, path, title, passages, bytes, .. } = document;
        table.row([id.clone(), path.clone(), title.clone(), passages.to_string(), text::bytes(*bytes)]);
    }
    table.render()
}

impl Search {
    async fn execute(self, knowledge: &Knowledge, output: Output) -> anyhow::Result<ExitCode> {
        let deadline = Instant::now() + SEARCH_LIMIT;
        let hits = knowledge.retrieve(&self.id, &self.query, self.top_k, self.filters.as_ref(), deadline).await?;
        output.result(&json!({ "hits": hits }), || hits_text(&hits))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn hits_text(hits: &[KnowledgeHit]) -> String {
    if hits.is_empty() {
        return "nothing found\n".to_owned();
    }
    let of = |hit: &KnowledgeHit, key: &str| hit.metadata.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut output = String::new();
    for (number, hit) in (1..).zip(hits) {
        let heading = Some(of(hit, "heading")).filter(|heading| !heading.is_empty()).unwrap_or_else(|| of(hit, "title"));
        let passage = text::one_line(&hit.text, SHOWN_CHARS);
        output.push_str(&format!("{number}. {}  {heading}  ({:.3})\n   {passage}\n", of(hit, "path"), hit.score));
    }
    let degraded = hits.first().and_then(|hit| hit.metadata.get("degraded")).and_then(Value::as_array);
    if let Some(models) = degraded {
        let models: Vec<_> = models.iter().filter_map(Value::as_str).collect();
        output.push_str(&format!("found without the {} model, which failed; the log has the reason\n", models.join(" and the ")));
    }
    output
}

impl Remove {
    fn execute(self, knowledge: &Knowledge, output: Output) -> anyhow::Result<ExitCode> {
        let report = knowledge.remove(&self.id, &self.documents)?;
        output.result(&report, || remove_text(&report))?;
        Ok(if report.not_found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn remove_text(report: &RemoveReport) -> String {
    let mut output: String = report.removed.iter().map(|document| format!("removed {}\n", document.path)).collect();
    output.extend(report.not_found.iter().map(|name| format!("not found: {name}\n")));
    output
}

#[cfg(test)]
mod tests {
    use agent_host_runs::knowledge_bases::FileFailure;

    use super::*;

    #[test]
    fn metadata_has_numbers_booleans_text_and_lists() {
        let pairs = ["year=2024", "draft=false", "tag=a", "tag=b", "tag=3", "note=a=b", "quoted=\"x\"", "empty="];
        let map = metadata_of(pairs.map(|pair| metadata(pair).unwrap()).to_vec());
        let expect = json!({
            "year": 2024, "draft": false, "tag": ["a", "b", 3], "note": "a=b", "quoted": "\"x\"", "empty": "",
        });
        assert_eq!(Value::Object(map), expect);
        assert!(metadata("nothing").is_err());
        assert!(filters("[1]").is_err() && filters("{").is_err() && filters("{}").is_ok());
    }

    #[test]
    fn a_report_says_what_was_done_and_what_was_not() {
        let report = AddReport {
            added: 2,
            unchanged: 1,
            passages: 7,
            ignored: 3,
            missing: vec!["old.md".to_owned()],
            failed: vec![FileFailure { path: "a.pdf".into(), reason: "it is corrupt".to_owned() }],
            ..AddReport::default()
        };
        insta::assert_snapshot!(add_text(&report), @r"
        2 added, 0 updated, 1 unchanged, 7 new passages
        3 of other kinds ignored; name a file to add it anyway
        1 no longer have a file; --prune removes them:
          old.md
        1 could not be read:
          a.pdf: it is corrupt
        ");
    }

    #[test]
    fn hits_are_numbered_and_a_failed_model_is_told() {
        let metadata = json!({ "path": "guide/a.md", "title": "A", "heading": "A > B", "degraded": ["embedding"] });
        let hit = KnowledgeHit {
            document_id: "d".to_owned(),
            text: "some\ntext".to_owned(),
            score: 1.5,
            source: None,
            metadata: metadata.as_object().unwrap().clone(),
        };
        insta::assert_snapshot!(hits_text(&[hit]), @r"
        1. guide/a.md  A > B  (1.500)
           some text
        found without the embedding model, which failed; the log has the reason
        ");
        assert_eq!(hits_text(&[]), "nothing found\n");
    }
}
