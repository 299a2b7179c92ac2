//! Kept logs: what guests wrote to `log` and to their standard streams, in files beside the ledger.
//!
//! `run-logs/ab/RUN_ID.log` has the newest lines of the log of one run, `RUN_ID.old.log` the lines before: each takes half of
//! `limits.log_bytes`. When the first is full, it takes the place of the second. A line is a [`RunLogLine`] as JSON. Lines are numbered when
//! they are written, so the number of the oldest kept line says how many are gone.
//!
//! A guest never waits for the disk: its lines go into memory, and one task writes them, each second and at the end of the
//! execution. A run that logs nothing costs nothing here. Logs are diagnostics: nothing is synced, a crash of the host loses the last second
//! at most, a crash of the machine what the system had not written, and a disk that refuses a write costs lines and no run.

use std::{
    collections::{HashMap, VecDeque},
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    mem,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use agent_host_ledger::Partition;
use agent_host_protocol::{RunId, RunLogLine, RunLogPage, RunLogSource, Timestamp};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Pause between two writes of the lines that have come meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
/// Largest part of a file that a reader reads: many times what a file has, as a bound for files that others changed.
const MAX_READ: u64 = 256 << 20;

/// The folder of kept logs in a data directory.
pub(crate) fn logs_path(data_dir: &Path) -> PathBuf {
    data_dir.join("run-logs")
}

/// The kept logs of the runs of one ledger.
pub(crate) struct RunLogs {
    dir: PathBuf,
    /// Logs that an execution writes, or whose last lines are not on disk yet.
    live: Mutex<HashMap<RunId, Arc<LiveLog>>>,
    /// Held for writing while a file takes the place of another, so that a reader sees both files of one moment.
    files: RwLock<()>,
    /// Notified when the first log becomes live.
    begun: Notify,
}

/// The log of a run that is being written.
pub(crate) struct LiveLog {
    run_id: RunId,
    max_bytes: usize,
    pending: Mutex<Pending>,
    /// The end of the file; `None` before the first write. Held during a write.
    end: Mutex<Option<FileEnd>>,
}

/// Lines that are not written yet.
#[derive(Default)]
struct Pending {
    lines: VecDeque<PendingLine>,
    bytes: usize,
    /// Lines that had no room here: their numbers are left out.
    skipped: u64,
}

struct PendingLine {
    at: Timestamp,
    source: RunLogSource,
    text: String,
    dropped_bytes: Option<u64>,
}

/// The place where the next line goes.
struct FileEnd {
    next_no: u64,
    bytes: u64,
}

impl LiveLog {
    /// Takes a line. Memory is bounded by `limits.log_bytes`; older lines go first.
    pub(crate) fn push(&self, at: Timestamp, source: RunLogSource, text: String, dropped_bytes: Option<u64>) {
        let mut pending = self.pending.lock();
        pending.bytes += text.len();
        pending.lines.push_back(PendingLine { at, source, text, dropped_bytes });
        while pending.bytes > self.max_bytes {
            let Some(oldest) = pending.lines.pop_front() else { break };
            pending.bytes -= oldest.text.len();
            pending.skipped += 1;
        }
    }
}

impl RunLogs {
    pub(crate) fn new(data_dir: &Path, partition: Partition) -> Self {
        let dir = logs_path(data_dir);
        // A partition removes what it has no runs of.
        let dir = if partition.is_first() { dir } else { dir.join(format!("partition-{}", partition.number())) };
        Self { dir, live: Mutex::default(), files: RwLock::default(), begun: Notify::new() }
    }

    /// The log of a run, for one execution. The log stays live as long as the handle is held.
    pub(crate) fn open(&self, run_id: RunId, max_bytes: usize) -> Arc<LiveLog> {
        let mut live = self.live.lock();
        let log = live
            .entry(run_id)
            .or_insert_with(|| Arc::new(LiveLog { run_id, max_bytes, pending: Mutex::default(), end: Mutex::default() }));
        self.begun.notify_one();
        Arc::clone(log)
    }

    /// True while an execution may write to the log of this run.
    pub(crate) fn is_open(&self, run_id: RunId) -> bool {
        self.live.lock().get(&run_id).is_some_and(|log| Arc::strong_count(log) > 1)
    }

    /// Writes the lines of live logs from time to time, until the token is cancelled. [`RunLogs::write_all`] writes the rest.
    pub(crate) async fn keep_writing(self: Arc<Self>, stopping: CancellationToken) {
        loop {
            let pause = async {
                if self.live.lock().is_empty() {
                    self.begun.notified().await;
                }
                tokio::time::sleep(PAUSE).await;
            };
            tokio::select! {
                () = stopping.cancelled() => return,
                () = pause => {}
            }
            let logs = Arc::clone(&self);
            if tokio::task::spawn_blocking(move || logs.write_all()).await.is_err() {
                return;
            }
        }
    }

    /// Writes all lines that have come, and drops the logs whose executions are over. Blocks.
    pub(crate) fn write_all(&self) {
        let live: Vec<_> = self.live.lock().values().cloned().collect();
        let mut problem = None;
        for log in live {
            if let Err(error) = self.write(&log) {
                problem = Some(error);
            }
            let mut live = self.live.lock();
            // The map and this loop hold it, and nobody else: no execution is left that could write.
            if Arc::strong_count(&log) == 2 && log.pending.lock().lines.is_empty() {
                live.remove(&log.run_id);
            }
        }
        if let Some(error) = problem {
            tracing::warn!(%error, "lines of the logs of runs could not be kept");
        }
    }

    /// Writes the pending lines of one log. Lines that cannot be written are lost; their numbers are left out.
    fn write(&self, log: &LiveLog) -> io::Result<()> {
        let mut end = log.end.lock();
        let pending = mem::take(&mut *log.pending.lock());
        if pending.lines.is_empty() {
            return Ok(());
        }
        let path = path_of(&self.dir, log.run_id);
        let mut at = match end.take() {
            Some(end) => end,
            None => FileEnd::read(&path)?,
        };
        let after = at.next_no + pending.skipped + pending.lines.len() as u64;
        at.next_no += pending.skipped;
        let written = self.append(&path, log.max_bytes as u64 / 2, &mut at, pending.lines);
        at.next_no = after;
        // After an error, the length of the file is not known.
        *end = match &written {
            Ok(()) => Some(at),
            Err(_) => Some(FileEnd { bytes: fs::metadata(&path).map_or(0, |file| file.len()), ..at }),
        };
        written
    }

    fn append(&self, path: &Path, half: u64, end: &mut FileEnd, lines: VecDeque<PendingLine>) -> io::Result<()> {
        let mut batch = Vec::new();
        for PendingLine { at, source, text, dropped_bytes } in lines {
            let line = RunLogLine { no: end.next_no, at, source, text, dropped_bytes };
            let start = batch.len();
            serde_json::to_writer(&mut batch, &line)?;
            batch.push(b'\n');
            end.next_no += 1;
            if end.bytes + batch.len() as u64 > half && end.bytes + start as u64 > 0 {
                let rest = batch.split_off(start);
                append_to(path, &batch)?;
                batch = rest;
                let _alone = self.files.write();
                fs::rename(path, old(path))?;
                end.bytes = 0;
            }
        }
        append_to(path, &batch)?;
        end.bytes += batch.len() as u64;
        Ok(())
    }

    /// At most `limit` lines after the number `after`, those of a running execution included. Blocks.
    pub(crate) fn page(&self, run_id: RunId, after: u64, limit: usize) -> io::Result<RunLogPage> {
        let live = self.live.lock().get(&run_id).cloned();
        if let Some(live) = live {
            self.write(&live)?;
        }
        let _moment = self.files.read();
        kept_log(&self.dir, run_id, after, limit)
    }

    /// Removes the logs of these runs, which have ended. Blocks.
    pub(crate) fn forget(&self, runs: impl IntoIterator<Item = RunId>) -> io::Result<()> {
        for run_id in runs {
            let live = self.live.lock().remove(&run_id);
            if let Some(live) = live {
                *live.pending.lock() = Pending::default();
                // A write that has begun ends first.
                drop(live.end.lock());
            }
            let path = path_of(&self.dir, run_id);
            remove(&old(&path))?;
            remove(&path)?;
        }
        Ok(())
    }

    /// Removes logs that were last written before `before`, of runs that `may_go`; gives how many files. Blocks.
    pub(crate) fn prune(&self, before: SystemTime, may_go: impl Fn(RunId) -> bool) -> io::Result<u64> {
        let mut removed = 0;
        for shard in entries(&self.dir)? {
            for file in entries(&shard)? {
                let name = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.split('.').next());
                let Some(run_id) = name.and_then(|name| name.parse::<RunId>().ok()) else { continue };
                let written = fs::metadata(&file).and_then(|file| file.modified());
                let is_live = self.live.lock().contains_key(&run_id);
                if written.is_ok_and(|written| written < before) && !is_live && may_go(run_id) {
                    remove(&file)?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}

/// The kept log of a run, read from its files: at most `limit` lines after the number `after`. Blocks.
///
/// # Errors
/// Fails if a file cannot be read. A run without a log has an empty page.
pub(crate) fn kept_log(dir: &Path, run_id: RunId, after: u64, limit: usize) -> io::Result<RunLogPage> {
    let path = path_of(dir, run_id);
    let mut page = RunLogPage { next_cursor: (after > 0).then(|| after.to_string()), ..RunLogPage::default() };
    let mut oldest = None;
    for file in [old(&path), path] {
        // The last line is incomplete if the host died while it was written.
        for line in read(&file)?.split(|byte| *byte == b'\n') {
            let Ok(line) = serde_json::from_slice::<RunLogLine>(line) else { continue };
            oldest.get_or_insert(line.no);
            if line.no <= after {
                continue;
            }
            if page.items.len() == limit {
                page.has_more = true;
                break;
            }
            page.next_cursor = Some(line.no.to_string());
            page.items.push(line);
        }
    }
    page.dropped_lines = oldest.map_or(0, |oldest| oldest - 1);
    Ok(page)
}

impl FileEnd {
    /// The end of a log that an earlier execution has written.
    fn read(path: &Path) -> io::Result<Self> {
        let newest = read(path)?;
        let last = last_no(&newest).or(last_no(&read(&old(path))?)).unwrap_or(0);
        if newest.last().is_some_and(|byte| *byte != b'\n') {
            append_to(path, b"\n")?;
        }
        Ok(Self { next_no: last + 1, bytes: newest.len() as u64 })
    }
}

fn last_no(file: &[u8]) -> Option<u64> {
    let mut lines = file.rsplit(|byte| *byte == b'\n');
    lines.find_map(|line| serde_json::from_slice::<RunLogLine>(line).ok()).map(|line| line.no)
}

fn path_of(dir: &Path, run_id: RunId) -> PathBuf {
    let name = run_id.to_string();
    // The end of an id is random.
    let shard = name.len().checked_sub(2).and_then(|start| name.get(start..)).unwrap_or("00");
    dir.join(shard).join(format!("{name}.log"))
}

fn old(path: &Path) -> PathBuf {
    path.with_extension("old.log")
}

/// The content of a file; nothing if there is no file.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_READ).read_to_end(&mut content).map(|_| content),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(content),
        Err(error) => Err(error),
    }
}

fn append_to(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    let opened = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(dir) = path.parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            }
            options.open(path)
        }
        opened => opened,
    };
    opened?.write_all(bytes)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The paths in a folder; none if there is no folder.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(log: &LiveLog, text: &str) {
        log.push(7, RunLogSource::Info, text.to_owned(), None);
    }

    fn texts(page: &RunLogPage) -> Vec<&str> {
        page.items.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn lines_are_numbered_paged_and_continued_by_the_next_execution() {
        let dir = tempfile::tempdir().unwrap();
        let run_id = RunId::new();
        let logs = RunLogs::new(dir.path(), Partition::ONLY);
        let log = logs.open(run_id, 4096);
        ["a", "b", "c"].iter().for_each(|text| say(&log, text));
        let page = logs.page(run_id, 0, 2).unwrap();
        assert_eq!((texts(&page), page.has_more, page.dropped_lines), (vec!["a", "b"], true, 0));
        assert!(logs.is_open(run_id));
        drop(log);
        logs.write_all();
        assert!(!logs.is_open(run_id) && logs.live.lock().is_empty());
        // Another host, after one that died within a line.
        append_to(&path_of(&logs_path(dir.path()), run_id), b"{\"no\":4,\"at\"").unwrap();
        let logs = RunLogs::new(dir.path(), Partition::ONLY);
        say(&logs.open(run_id, 4096), "d");
        let page = logs.page(run_id, 2, 10).unwrap();
        assert_eq!((texts(&page), page.has_more), (vec!["c", "d"], false));
        assert_eq!((page.items[1].no, page.next_cursor.as_deref()), (4, Some("4")));
        logs.forget([run_id]).unwrap();
        assert_eq!(logs.page(run_id, 0, 10).unwrap(), RunLogPage::default());
        assert_eq!(logs.page(RunId::new(), 0, 10).unwrap(), RunLogPage::default());
    }

    #[test]
    fn the_newest_lines_are_kept_within_the_bound_and_the_others_counted() {
        let dir = tempfile::tempdir().unwrap();
        let run_id = RunId::new();
        let logs = RunLogs::new(dir.path(), Partition::ONLY);
        let log = logs.open(run_id, 4096);
        for batch in 0..20 {
            (0..50).for_each(|line| say(&log, &format!("line {}", batch * 50 + line)));
            logs.write_all();
        }
        let page = logs.page(run_id, 0, 10_000).unwrap();
        assert_eq!((page.items.last().unwrap().no, texts(&page).last()), (1_000, Some(&"line 999")));
        assert_eq!(page.dropped_lines + page.items.len() as u64, 1_000, "each line is there or counted");
        let bytes: usize = page.items.iter().map(|line| serde_json::to_vec(line).unwrap().len() + 1).sum();
        assert!((2048 - 100..=4096).contains(&bytes), "{bytes}");
        // More than the bound at once leaves out numbers.
        (0..1_000).for_each(|_| say(&log, "0123456789"));
        let page = logs.page(run_id, 0, 10_000).unwrap();
        assert_eq!(page.items.last().unwrap().no, 2_000);
    }

    #[test]
    fn old_logs_are_removed_unless_their_runs_need_them() {
        let dir = tempfile::tempdir().unwrap();
        let (gone, active) = (RunId::new(), RunId::new());
        let logs = RunLogs::new(dir.path(), Partition::ONLY);
        [gone, active].iter().for_each(|run| say(&logs.open(*run, 4096), "x"));
        logs.write_all();
        assert_eq!(logs.prune(SystemTime::now() - Duration::from_secs(3600), |_| true).unwrap(), 0);
        assert_eq!(logs.prune(SystemTime::now() + Duration::from_secs(3600), |run| run != active).unwrap(), 1);
        assert!(texts(&logs.page(gone, 0, 9).unwrap()).is_empty());
        assert_eq!(texts(&logs.page(active, 0, 9).unwrap()), ["x"]);
    }
}
