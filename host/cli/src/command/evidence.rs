//! `agent-host evidence`.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use agent_host_config::Config;
use agent_host_facts::{
    evidence::{MAX_EVIDENCE_LINE_BYTES, Verdict, Verifier},
    rules::{Line, Lines},
};
use agent_host_ledger::Ledger;
use agent_host_protocol::{Run, RunId};
use agent_host_runs::{Evidence, Threads};
use anyhow::Context;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    runs::Server,
    threads::{ThreadName, ThreadPlace},
};
use crate::{
    client::{Client, Download},
    failure::Failure,
    output::Output,
    source::Source,
    text,
};

/// Export a run or a thread as evidence, and verify evidence
#[derive(Debug, Subcommand)]
pub(crate) enum EvidenceCommand {
    Export(Export),
    Verify(Verify),
}

/// Save a run, or all turns of a thread, as lines that are chained by hashes
///
/// Header, run, grant, event, record, facts, artifact digests and audit of a run; of a thread, a line with its turns, and then these of
/// each turn.
///
/// Asks the server of --server. Without it, reads the ledger; if a server holds the ledger, asks
/// that server. Keep the head that is printed: whoever has it can tell a changed file from this one. The file has all that
/// was said, so treat it like the conversation. Exits with 1 if the ledger was changed after a run was written.
#[derive(Debug, Args)]
pub(crate) struct Export {
    #[command(flatten)]
    server: Server,
    /// The run, or the thread
    #[arg(value_name = "RUN|THREAD")]
    id: String,
    #[command(flatten)]
    place: ThreadPlace,
    /// File for the output, instead of standard output; an existing file is not overwritten
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Verify evidence, line by line
///
/// Needs no ledger. Names the first line that is wrong, and exits with 1.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The file that `agent-host evidence export` saved
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Compare the file with the evidence of the run on this server
    #[arg(long = "server", value_name = "URL")]
    server: Option<String>,
}

impl EvidenceCommand {
    pub(crate) async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::Export(args) => args.execute(config, output).await,
            Self::Verify(args) => args.execute(output).await,
        }
    }
}

/// The output, verified while it is written.
struct Sink<W> {
    to: W,
    verifier: Verifier,
    bytes: u64,
}

impl<W: Write> Sink<W> {
    fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        self.verifier.push(piece);
        self.bytes += piece.len() as u64;
        self.to.write_all(piece)
    }
}

/// The subject of evidence.
enum Subject {
    Run(RunId),
    Thread(ThreadName),
}

impl Subject {
    fn of(id: String, place: ThreadPlace) -> Self {
        match id.parse() {
            Ok(run) if place.session.is_none() => Self::Run(run),
            _ => Self::Thread(ThreadName { thread: id, place }),
        }
    }

    /// The subject of a file that was verified.
    fn of_verdict(verdict: &Verdict) -> Option<Self> {
        match &verdict.thread {
            Some(thread) => {
                let session = Some(thread.session_id.clone()).filter(|session| *session != thread.thread_id);
                let place = ThreadPlace { session, workspace: thread.workspace_id.clone() };
                Some(Self::Thread(ThreadName { thread: thread.thread_id.clone(), place }))
            }
            None => verdict.header.as_ref().map(|header| Self::Run(header.run_id)),
        }
    }

    fn read(&self, ledger: &Ledger) -> anyhow::Result<Evidence> {
        Ok(match self {
            Self::Run(id) => Evidence::open(ledger, &Threads::new(ledger.clone()), *id)?,
            Self::Thread(name) => {
                let (threads, thread) = name.load(ledger)?;
                Evidence::of_thread(&threads, &thread)
            }
        })
    }

    async fn download(&self, client: &Client) -> Result<Download, Failure> {
        match self {
            Self::Run(id) => client.evidence(&format!("api/v1/runs/{id}/evidence"), &[]).await,
            Self::Thread(name) => client.evidence(&name.path("/evidence"), &[name.session()]).await,
        }
    }
}

impl Export {
    async fn execute(self, config: &Config, output: Output) -> anyhow::Result<ExitCode> {
        let source = Source::open(config, self.server.url.as_deref()).await?;
        let subject = Subject::of(self.id, self.place);
        let Some(path) = &self.out else {
            let mut sink = Sink { to: io::stdout().lock(), verifier: Verifier::default(), bytes: 0 };
            write(&source, &subject, &mut sink).await?;
            sink.to.flush()?;
            return Ok(code(whole(sink.verifier.finish())?.verified));
        };
        let cannot_write = || format!("{} cannot be written", path.display());
        let file = File::create_new(path).with_context(cannot_write)?;
        let saved = save(&source, &subject, file).await.inspect_err(|_| {
            // Half a file is no evidence. If it cannot be removed, the error still reports the failure.
            let _ = std::fs::remove_file(path);
        });
        let (verdict, bytes) = saved?;
        let value = json!({ "file": path.display().to_string(), "bytes": bytes, "verdict": verdict });
        output.result(&value, || {
            let size = text::bytes(bytes);
            format!("{} lines, {size} in {}\n{}", verdict.lines, path.display(), of_verdict(&verdict))
        })?;
        Ok(code(verdict.verified))
    }
}

async fn save(source: &Source, subject: &Subject, file: File) -> anyhow::Result<(Verdict, u64)> {
    let mut sink = Sink { to: io::BufWriter::new(file), verifier: Verifier::default(), bytes: 0 };
    write(source, subject, &mut sink).await?;
    sink.to.flush()?;
    sink.to.get_ref().sync_all()?;
    Ok((whole(sink.verifier.finish())?, sink.bytes))
}

/// Gives the lines to `sink`.
async fn write(source: &Source, subject: &Subject, sink: &mut Sink<impl Write>) -> anyhow::Result<()> {
    match source {
        Source::Ledger(ledger) => {
            for piece in subject.read(ledger)? {
                sink.take(piece?.as_bytes())?;
            }
        }
        Source::Server(client) => {
            let mut answer = subject.download(client).await?;
            while let Some(piece) = answer.next().await? {
                sink.take(&piece)?;
            }
        }
    }
    Ok(())
}

/// A verdict on lines that were just made. A torn file is no outcome: the server stopped in the middle.
fn whole(verdict: Verdict) -> anyhow::Result<Verdict> {
    match &verdict.fault {
        Some(fault) if fault.code == "torn" => {
            Err(Failure::new("broken_stream", "the evidence ended before its last line: export it again").into())
        }
        _ => Ok(verdict),
    }
}

const fn code(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The file beside the evidence that a server has now.
#[derive(Debug, Serialize)]
struct Comparison {
    /// True if all lines are equal.
    same: bool,
    /// The first line that differs, or is missing on one side.
    line: Option<u64>,
    /// True if the digest that the server stored with the run is that of the file; of a thread, of its last turn.
    same_record: bool,
}

/// The verdict on a file, and the comparison with a server.
#[derive(Serialize)]
struct Verification {
    #[serde(flatten)]
    verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<Comparison>,
}

impl Verify {
    async fn execute(self, output: Output) -> anyhow::Result<ExitCode> {
        let cannot_read = || format!("{} cannot be read", self.file.display());
        let verdict = verify(&self.file).with_context(cannot_read)?;
        let header = verdict.header.as_ref().filter(|_| verdict.verified);
        let server = match (&self.server, header, Subject::of_verdict(&verdict)) {
            (Some(url), Some(header), Some(subject)) => {
                let client = Client::new(url)?;
                let run: Run = client.get(&format!("api/v1/runs/{}", header.run_id), &[]).await?;
                let same_record = run.record_digest.is_some() && run.record_digest == header.record_digest;
                let line = first_difference(&self.file, &client, &subject).await?;
                Some(Comparison { same: line.is_none(), line, same_record })
            }
            _ => None,
        };
        let is_good = verdict.verified && server.as_ref().is_none_or(|server| server.same);
        let verification = Verification { verdict, server };
        output.result(&verification, || {
            let compared = verification.server.as_ref().map(of_comparison).unwrap_or_default();
            of_verdict(&verification.verdict) + &compared
        })?;
        Ok(code(is_good))
    }
}

fn verify(path: &Path) -> io::Result<Verdict> {
    let mut verifier = Verifier::default();
    let mut file = BufReader::new(File::open(path)?);
    let mut chunk = vec![0; 64 * 1024];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(verifier.finish()),
            read => verifier.push(chunk.get(..read).unwrap_or_default()),
        }
    }
}

/// The hashes of the lines of a file that was verified: 64 digits a line, whatever the file is.
fn hashes(path: &Path) -> io::Result<Vec<String>> {
    let mut file = BufReader::new(File::open(path)?);
    let (mut lines, mut hashes) = (Lines::with_limit(MAX_EVIDENCE_LINE_BYTES), Vec::new());
    let mut chunk = vec![0; 64 * 1024];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hashes),
            read => lines.push(chunk.get(..read).unwrap_or_default(), |line| hashes.push(hash_of(line))),
        }
    }
}

/// The hash that a line says it has; empty for a line that says none.
fn hash_of(line: Line<'_>) -> String {
    #[derive(Deserialize)]
    struct Hashed {
        hash: String,
    }
    match line {
        Line::Whole(bytes) => serde_json::from_slice::<Hashed>(bytes).map(|line| line.hash).unwrap_or_default(),
        _ => String::new(),
    }
}

/// The first line whose hash is not that of the server's evidence.
async fn first_difference(path: &Path, client: &Client, subject: &Subject) -> anyhow::Result<Option<u64>> {
    let own = hashes(path)?;
    let (mut lines, mut number, mut found) = (Lines::with_limit(MAX_EVIDENCE_LINE_BYTES), 0_usize, None);
    let mut answer = subject.download(client).await?;
    while let Some(piece) = answer.next().await? {
        lines.push(&piece, |line| {
            if found.is_none() && own.get(number).is_none_or(|own| *own != hash_of(line)) {
                found = Some(number as u64 + 1);
            }
            number += 1;
        });
    }
    // What is only in the file.
    Ok(found.or((number < own.len()).then_some(number as u64 + 1)))
}

fn of_verdict(verdict: &Verdict) -> String {
    match &verdict.fault {
        None => format!("verified: {} lines, head {}\n", verdict.lines, verdict.head),
        Some(fault) => format!("line {}: {}: {}\n", fault.line, fault.code, fault.message),
    }
}

fn of_comparison(comparison: &Comparison) -> String {
    match comparison.line {
        None => "the server has the same evidence\n".to_owned(),
        Some(line) => {
            let record = if comparison.same_record {
                "the server stored the same digest of the record: the run has gone on, was forgotten, or has other audit records"
            } else {
                "the server stored another digest of the record: the file or the ledger was changed"
            };
            format!("line {line} is not that of the server; {record}\n")
        }
    }
}
