//! Reading documents of nested formats in a process of its own: a small PDF or HTML file can ask its parser for any amount of
//! time and memory, and a thread can neither be stopped nor be bounded. The process has bounds on both, and little priority.

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    path::Path,
    process::{Command, ExitCode, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use serde::{Deserialize, Serialize};

use super::{
    extract::{Kind, MAX_FILE_BYTES, extract},
    guard,
    passages::{self, Passage, PassageSize},
};

/// The first argument of a process that reads a document.
pub const DOCUMENT_READER: &str = "read-document";

/// CPU time of the process, in seconds. A book takes a few.
const CPU_SECONDS: u64 = 60;
/// Memory of the process, in bytes: the largest HTML file as a tree, and the unpacked streams of a PDF, with room to spare.
const MEMORY_BYTES: u64 = 2 << 30;
/// Largest answer of the process, in bytes: the largest text as JSON, with its overlaps.
const MAX_ANSWER_BYTES: u64 = 256 * 1024 * 1024;
/// Nice value of the process.
const NICE: i32 = 5;
/// Time for a thread of the process, which its CPU time ends before.
const PATIENCE: Duration = Duration::from_secs(CPU_SECONDS * 10);

/// A document as it was read: the format, the title, and the passages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReadDocument {
    pub(crate) kind: Kind,
    /// Title of the file, or its first heading.
    pub(crate) title: Option<String>,
    pub(crate) passages: Vec<Passage>,
}

/// The argument of the process after its first one.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Order {
    /// The format that the name of the file shows.
    kind: Option<Kind>,
    size: PassageSize,
}

/// Reads a document on this thread. It may panic or never end.
fn read_here(bytes: &[u8], order: Order) -> Result<ReadDocument, String> {
    let extracted = extract(bytes, order.kind)?;
    let (passages, heading) = passages::split(&extracted.text, extracted.headings, order.size)?;
    Ok(ReadDocument { kind: extracted.kind, title: extracted.title.or(heading), passages })
}

/// Reads the document on standard input, and writes its passages to standard output: the whole work of a process whose first
/// argument is [`DOCUMENT_READER`]. `args` are the others.
#[must_use]
pub fn read_document(args: &[OsString]) -> ExitCode {
    match answer(args).and_then(|answer| io::stdout().write_all(&answer).map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // The host reads standard error; nobody is there to be told otherwise.
            let _ = writeln!(io::stderr(), "{reason}");
            ExitCode::FAILURE
        }
    }
}

fn answer(args: &[OsString]) -> Result<Vec<u8>, String> {
    let order = args.first().and_then(|order| order.to_str()).ok_or("the host starts this command")?;
    let order: Order = serde_json::from_str(order).map_err(|error| error.to_string())?;
    bound().map_err(|error| format!("limits cannot be set: {error}"))?;
    let mut bytes = Vec::new();
    io::stdin().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    let read = guard::run(PATIENCE, move || read_here(&bytes, order));
    serde_json::to_vec(&read).map_err(|error| error.to_string())
}

/// Sets the bounds of this process.
fn bound() -> io::Result<()> {
    setpriority_process(None, NICE)?;
    for (resource, limit) in [(Resource::As, MEMORY_BYTES), (Resource::Cpu, CPU_SECONDS), (Resource::Core, 0)] {
        let maximum = getrlimit(resource).maximum;
        let limit = maximum.map_or(limit, |maximum| limit.min(maximum));
        setrlimit(resource, Rlimit { current: Some(limit), maximum })?;
    }
    Ok(())
}

/// The passages of a document, or the reason why there are none. A document of a nested format is read by a process of `program`
/// where there is one, and all others on a thread.
pub(crate) fn read(
    program: Option<&Path>,
    bytes: Vec<u8>,
    kind: Option<Kind>,
    size: PassageSize,
    limit: Duration,
) -> Result<ReadDocument, String> {
    let order = Order { kind, size };
    let is_nested = bytes.starts_with(b"%PDF-") || matches!(kind, Some(Kind::Pdf | Kind::Html));
    match program.filter(|_| is_nested) {
        Some(program) => read_apart(program, &bytes, order),
        None => guard::run(limit, move || read_here(&bytes, order)),
    }
}

fn read_apart(program: &Path, bytes: &[u8], order: Order) -> Result<ReadDocument, String> {
    let not_started = |error: &dyn std::fmt::Display| format!("a process to read it could not be started: {error}");
    let text = serde_json::to_string(&order).map_err(|error| not_started(&error))?;
    let mut reader = Command::new(program)
        .arg(DOCUMENT_READER)
        .arg(text)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| not_started(&error))?;
    let mut answer = Vec::new();
    let read = thread::scope(|scope| {
        if let Some(mut stdin) = reader.stdin.take() {
            // A reader that has ended reads no further; its status says why.
            scope.spawn(move || stdin.write_all(bytes));
        }
        reader.stdout.take().map_or(Ok(0), |stdout| stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut answer))
    });
    // A process whose answer is too long is not waited for.
    let killed = (answer.len() as u64 >= MAX_ANSWER_BYTES).then(|| reader.kill());
    let status = reader.wait().map_err(|error| not_started(&error))?;
    read.and_then(|_| killed.unwrap_or(Ok(()))).map_err(|error| format!("it could not be read: {error}"))?;
    if !status.success() {
        return Err(reason(status));
    }
    serde_json::from_slice::<Result<ReadDocument, String>>(&answer)
        .map_err(|_| "its text is too long for a document".to_owned())?
}

/// The reason of a process that has ended without an answer.
fn reason(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::Signal;
    match status.signal().and_then(Signal::from_named_raw) {
        Some(Signal::XCPU) => format!("reading it takes longer than {CPU_SECONDS} s: it is corrupt or made to be so"),
        // An allocation that fails ends a process so, and a stack that cannot grow.
        Some(Signal::ABORT | Signal::SEGV | Signal::BUS) => {
            format!("reading it takes more than {} MiB of memory: it is corrupt or made to be so", MEMORY_BYTES >> 20)
        }
        _ => format!("the process that read it has ended with {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: PassageSize = PassageSize { chars: 1_000, overlap: 0 };

    /// A program that ignores its arguments. Its standard input is read to the end.
    fn program(dir: &Path, script: &str) -> std::path::PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.join("reader");
        std::fs::write(&path, format!("#!/bin/sh\n/bin/cat >/dev/null\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    #[test]
    fn a_document_of_a_nested_format_is_read_by_a_process_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let answer = r#"{"Ok":{"kind":"html","title":"t","passages":[{"text":"p","heading":""}]}}"#;
        let program = program(dir.path(), &format!("echo '{answer}'"));
        let read = |bytes: &[u8], kind| read(Some(&program), bytes.to_vec(), kind, SIZE, PATIENCE).unwrap();
        assert_eq!(read(b"<p>x</p>", Some(Kind::Html)).title.as_deref(), Some("t"));
        assert_eq!(read(b"%PDF-1.7", None).passages[0].text, "p");
        let text = read(b"# Title\n\nwords", Some(Kind::Markdown));
        assert_eq!((text.kind, text.title.as_deref()), (Kind::Markdown, Some("Title")));
    }

    #[test]
    fn a_process_that_ends_early_is_one_reason() {
        for (script, reason) in [
            ("kill -XCPU $$", "longer than 60 s"),
            ("kill -ABRT $$", "more than 2048 MiB"),
            ("kill -SEGV $$", "more than 2048 MiB"),
            ("exit 7", "exit status: 7"),
            ("echo nothing", "too long"),
            (r#"echo '{"Err":"it has no text"}'"#, "it has no text"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let program = program(dir.path(), script);
            let error = read(Some(&program), vec![b' '; 1 << 20], Some(Kind::Html), SIZE, PATIENCE).unwrap_err();
            assert!(error.contains(reason), "{script}: {error}");
        }
        let error = read(Some(Path::new("/nowhere/reader")), Vec::new(), Some(Kind::Pdf), SIZE, PATIENCE).unwrap_err();
        assert!(error.contains("could not be started"), "{error}");
    }
}
