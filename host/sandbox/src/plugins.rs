//! The plugins directory: scanned at start and watched, published as a whole.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use agent_host_protocol::{PluginReport, PluginStatus, Refusal, RefusalCode, RunnerId, RunnerManifest};
use notify::Watcher;
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
};

use crate::{Sandbox, admission, component::Component};

/// Time without changes before a directory is read: a file that is being copied changes many times.
const QUIET: Duration = Duration::from_millis(50);
/// Interval between scans without a notification: some file systems do not notify.
const RESCAN: Duration = Duration::from_secs(2);

/// The reason why a plugins directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the plugins directory {path} cannot be read: {source}. Make it, or name another as `server.plugins_dir`", path = path.display())]
pub struct PluginsError {
    path: PathBuf,
    source: io::Error,
}

/// A runner that answers events.
#[derive(Debug, Clone)]
pub struct Runner {
    /// The manifest of the runner.
    pub manifest: Arc<RunnerManifest>,
    /// The component that holds it.
    pub component: Arc<Component>,
}

/// The plugins of one directory. Cheap to clone; the last to go ends the watching.
#[derive(Clone)]
pub struct Plugins(Arc<Shared>);

struct Shared {
    directory: Arc<Directory>,
    watcher: JoinHandle<()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

struct Directory {
    path: PathBuf,
    sandbox: Sandbox,
    files: Mutex<BTreeMap<String, File>>,
    /// The published state, replaced as a whole, so that no reader sees half of a change.
    published: RwLock<Arc<PublishedPlugins>>,
    /// Held during a scan, so that scans are serialized.
    scanning: tokio::sync::Mutex<u64>,
    /// True once the files that were there at the start have been admitted or refused.
    settled: watch::Sender<bool>,
}

#[derive(Default)]
struct PublishedPlugins {
    reports: Vec<PluginReport>,
    runners: HashMap<RunnerId, Runner>,
}

/// The state of one file.
struct File {
    stamp: Stamp,
    /// The newest admitted version, which stays in service while a newer one is refused.
    admitted: Option<(u64, PluginReport, Arc<Component>)>,
    /// The refusal of the newest version, if it was refused.
    refused: Option<PluginReport>,
}

/// Tells versions of a file apart without reading it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified_ns: i128,
    changed_ns: i128,
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let meta = std::fs::symlink_metadata(path)?;
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Ok(Self {
            len: meta.len(),
            modified_ns: ns(meta.mtime(), meta.mtime_nsec()),
            changed_ns: ns(meta.ctime(), meta.ctime_nsec()),
            inode: meta.ino(),
        })
    }
}

impl Plugins {
    /// Reads the directory, admits what is in it, and watches it from then on. Files that take longer than
    /// `limits.plugins_wait_ms` are admitted afterwards.
    ///
    /// # Errors
    /// Fails if the directory cannot be read. A file that cannot be admitted is no error: its report has the reason.
    pub async fn open(path: &Path, sandbox: Sandbox) -> Result<Self, PluginsError> {
        std::fs::read_dir(path).map_err(|source| PluginsError { path: path.to_owned(), source })?;
        let wait = Duration::from_millis(sandbox.admissions.limits.plugins_wait_ms);
        let (settled, mut is_settled) = watch::channel(false);
        let directory = Arc::new(Directory {
            path: path.to_owned(),
            sandbox,
            files: Mutex::default(),
            published: RwLock::default(),
            scanning: tokio::sync::Mutex::new(0),
            settled,
        });
        // Watch first, then read: what changes in between is seen twice, not missed.
        let (changed, changes) = mpsc::channel(1);
        let watch = watch(path, changed);
        let watcher = tokio::spawn(Arc::clone(&directory).keep(watch, changes));
        if tokio::time::timeout(wait, is_settled.wait_for(|settled| *settled)).await.is_err() {
            tracing::warn!("the host serves now; plugins that are still being compiled follow");
        }
        Ok(Self(Arc::new(Shared { directory, watcher })))
    }

    /// True once the files that were there at the start have been admitted or refused.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        *self.0.directory.settled.borrow()
    }

    /// Waits until `is_there`, which is asked again whenever a plugin was admitted, or until the files that were there at the start have all
    /// been admitted or refused; at most so long.
    pub async fn settled_or(&self, is_there: impl Fn() -> bool, at_most: Duration) {
        let mut settled = self.0.directory.settled.subscribe();
        // Both outcomes of the wait, and its end, are for the caller to look at.
        let _ = tokio::time::timeout(at_most, settled.wait_for(|settled| *settled || is_there())).await;
    }

    /// The reports on all files, by name.
    #[must_use]
    pub fn reports(&self) -> Vec<PluginReport> {
        self.0.directory.published.read().reports.clone()
    }

    /// The runner with this id, if one answers to it now.
    #[must_use]
    pub fn runner(&self, id: &RunnerId) -> Option<Runner> {
        self.0.directory.published.read().runners.get(id).cloned()
    }

    /// Every runner that answers events, by id.
    #[must_use]
    pub fn runners(&self) -> Vec<Runner> {
        let mut runners: Vec<_> = self.0.directory.published.read().runners.values().cloned().collect();
        runners.sort_by(|a, b| a.manifest.id.cmp(&b.manifest.id));
        runners
    }

    /// Looks at the directory now instead of when it is next noticed.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub async fn rescan(&self) -> Result<(), PluginsError> {
        let directory = &self.0.directory;
        directory.scan().await.map_err(|source| PluginsError { path: directory.path.clone(), source })
    }
}

/// Tells of changes. A directory that cannot be watched is still looked at from time to time.
fn watch(path: &Path, changed: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !matches!(event.kind, notify::EventKind::Access(_))) {
            // A full channel already says that something changed.
            let _ = changed.try_send(());
        }
    })
    .inspect_err(|error| tracing::warn!(%error, "the plugins directory cannot be watched and is scanned every {RESCAN:?}"))
    .ok()?;
    let watching = watcher.watch(path, notify::RecursiveMode::NonRecursive);
    watching
        .inspect_err(|error| tracing::warn!(%error, "the plugins directory cannot be watched and is scanned every {RESCAN:?}"))
        .ok()?;
    Some(watcher)
}

impl Directory {
    async fn keep(self: Arc<Self>, _watch: Option<notify::RecommendedWatcher>, mut changes: mpsc::Receiver<()>) {
        loop {
            if let Err(error) = self.scan().await {
                tracing::error!(path = %self.path.display(), %error, "the plugins directory cannot be read; its plugins stay as they are");
            }
            self.settled.send_replace(true);
            match tokio::time::timeout(RESCAN, changes.recv()).await {
                // Without a watcher the channel is closed: wait for the next look.
                Ok(None) => tokio::time::sleep(RESCAN).await,
                Ok(Some(())) => {
                    tokio::time::sleep(QUIET).await;
                    while changes.try_recv().is_ok() {}
                }
                Err(_) => {}
            }
        }
    }

    /// Brings what is published to what is in the directory.
    async fn scan(&self) -> io::Result<()> {
        let mut order = self.scanning.lock().await;
        let found = list(&self.path)?;
        let (removed, changed) = {
            let files = self.files.lock();
            let removed: Vec<_> = files.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
            let changed: Vec<_> =
                found.into_iter().filter(|(name, stamp)| files.get(name).is_none_or(|file| file.stamp != *stamp)).collect();
            (removed, changed)
        };
        if removed.is_empty() && changed.is_empty() {
            return Ok(());
        }
        self.files.lock().retain(|name, _| !removed.contains(name));
        for name in &removed {
            tracing::info!(file = %name, "plugin removed");
        }
        let mut admissions = JoinSet::new();
        for (name, stamp) in changed {
            // Of two files with one runner id, the first by name serves, whichever is compiled first.
            *order += 1;
            let (admitting, path, order) = (Arc::clone(&self.sandbox.admissions), self.path.join(&name), *order);
            admissions.spawn(async move { (name, stamp, order, admission::admit(&admitting, &path).await) });
        }
        while let Some(admitted) = admissions.join_next().await {
            let Ok((name, stamp, order, admission)) = admitted else { continue };
            self.file(name, stamp, admission, order);
            self.publish();
        }
        self.publish();
        Ok(())
    }

    /// Takes what came of a file.
    fn file(&self, name: String, stamp: Stamp, admission: admission::Admission, order: u64) {
        let mut files = self.files.lock();
        let file = files.entry(name).or_insert(File { stamp, admitted: None, refused: None });
        file.stamp = stamp;
        match admission.component {
            Some(component) => {
                tracing::info!(file = %admission.report.file, digest = component.digest(), load_ms = admission.report.load_ms, "plugin admitted");
                // A replaced file keeps its place in the line for runner ids.
                let order = file.admitted.as_ref().map_or(order, |(order, ..)| *order);
                file.admitted = Some((order, admission.report, component));
                file.refused = None;
            }
            None => {
                if let Some(refusal) = &admission.report.refusal {
                    tracing::warn!(file = %admission.report.file, code = refusal.code.as_str(), "plugin refused: {} To fix it: {}", refusal.message, refusal.fix);
                }
                file.refused = Some(admission.report);
            }
        }
    }

    /// Shows everyone what is there now. A runner id belongs to the file that had it first.
    fn publish(&self) {
        let files = self.files.lock();
        let mut admitted: Vec<_> = files.values().filter_map(|file| file.admitted.as_ref()).collect();
        admitted.sort_by_key(|(order, ..)| *order);
        let mut runners = HashMap::new();
        let mut owners: HashMap<RunnerId, &str> = HashMap::new();
        let mut doubles: HashMap<&str, Refusal> = HashMap::new();
        for (_, report, component) in admitted {
            if let Some((id, owner)) = component.runners().iter().find_map(|runner| owners.get_key_value(&runner.id)) {
                doubles.insert(
                    &report.file,
                    Refusal {
                        code: RefusalCode::DuplicateRunner,
                        message: format!("{owner} already holds the runner {id}"),
                        fix: format!(
                            "remove one of the two files, or give the plugin another author, name or runner name than {owner} has"
                        ),
                    },
                );
                continue;
            }
            for manifest in component.runners() {
                owners.insert(manifest.id.clone(), &report.file);
                let runner = Runner { manifest: Arc::new(manifest.clone()), component: Arc::clone(component) };
                runners.insert(manifest.id.clone(), runner);
            }
        }
        let reports = files.values().filter_map(|file| file.report(&doubles)).collect();
        *self.published.write() = Arc::new(PublishedPlugins { reports, runners });
        // Those who wait for a plugin look again.
        self.settled.send_modify(|_| ());
    }
}

impl File {
    fn report(&self, doubles: &HashMap<&str, Refusal>) -> Option<PluginReport> {
        match (&self.refused, &self.admitted) {
            (Some(refused), Some((_, admitted, _))) if !doubles.contains_key(admitted.file.as_str()) => {
                Some(PluginReport { serves_previous: true, runners: admitted.runners.clone(), ..refused.clone() })
            }
            (Some(refused), _) => Some(refused.clone()),
            (None, Some((_, admitted, _))) => Some(match doubles.get(admitted.file.as_str()) {
                Some(refusal) => {
                    PluginReport { status: PluginStatus::Refused, refusal: Some(refusal.clone()), ..admitted.clone() }
                }
                None => admitted.clone(),
            }),
            (None, None) => None,
        }
    }
}

/// The component files of a directory. Hidden files are none of ours: they are how files are copied in safely.
fn list(path: &Path) -> io::Result<BTreeMap<String, Stamp>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            tracing::warn!(file = %entry.file_name().display(), "a file whose name is not UTF-8 is ignored");
            continue;
        };
        if name.starts_with('.') || !name.ends_with(".wasm") {
            continue;
        }
        // A file that went away since it was listed is not there.
        if let Ok(stamp) = Stamp::of(&entry.path()) {
            found.insert(name, stamp);
        }
    }
    Ok(found)
}
