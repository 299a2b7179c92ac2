//! Components that were admitted, kept by digest: a run ends on the build that it began with, whatever becomes of the
//! file in the plugins directory.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;

use crate::{cache::write_atomically, component::Component};

/// Files of one directory, named by digest, and the components that are in memory.
#[derive(Debug)]
pub(crate) struct Components {
    dir: Option<PathBuf>,
    loaded: Mutex<HashMap<String, Weak<Component>>>,
    /// Held while a file is being loaded, so that a thousand runs of one component load it once.
    pub(crate) loading: tokio::sync::Mutex<()>,
}

impl Components {
    /// Keeps files in `dir`, making it where it is not; without it nothing is kept beyond memory.
    pub(crate) fn open(dir: Option<PathBuf>) -> io::Result<Self> {
        if let Some(dir) = &dir {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        Ok(Self { dir, loaded: Mutex::default(), loading: tokio::sync::Mutex::default() })
    }

    pub(crate) fn keeps_files(&self) -> bool {
        self.dir.is_some()
    }

    /// Remembers a component that is in memory.
    pub(crate) fn note(&self, component: &Arc<Component>) {
        let mut loaded = self.loaded.lock();
        loaded.retain(|_, component| component.strong_count() > 0);
        loaded.insert(component.digest().to_owned(), Arc::downgrade(component));
    }

    /// A component that is in memory.
    pub(crate) fn loaded(&self, digest: &str) -> Option<Arc<Component>> {
        self.loaded.lock().get(digest)?.upgrade()
    }

    /// The path of the component's file, whether or not the file exists.
    pub(crate) fn path(&self, digest: &str) -> Option<PathBuf> {
        let hex = digest.strip_prefix("sha256:")?;
        // The text comes from the ledger, but it becomes a path.
        let is_digest = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(self.dir.as_ref().filter(|_| is_digest)?.join(format!("{hex}.wasm")))
    }

    /// True if the component is in memory, or has a file.
    pub(crate) fn is_kept(&self, digest: &str) -> bool {
        self.loaded(digest).is_some() || self.path(digest).is_some_and(|path| path.exists())
    }

    /// Keeps the bytes of a component.
    pub(crate) fn keep(&self, digest: &str, bytes: &[u8]) -> io::Result<()> {
        match self.path(digest).filter(|path| path.exists()) {
            Some(path) => touch(&path),
            None => self.restore(digest, bytes),
        }
    }

    /// Keeps the bytes of a component, in place of the file that is there.
    pub(crate) fn restore(&self, digest: &str, bytes: &[u8]) -> io::Result<()> {
        let Some(path) = self.path(digest) else { return Ok(()) };
        write_atomically(&path, bytes)?;
        path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
    }

    /// The components that were not needed for so long, by their files. These are `needed` now, and those in memory are in use.
    pub(crate) fn unused(&self, needed: &HashSet<String>, unused_for: Duration) -> io::Result<Vec<String>> {
        let (Some(dir), mut unused) = (&self.dir, Vec::new()) else { return Ok(Vec::new()) };
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let Some(hex) = path.file_stem().and_then(|name| name.to_str()) else { continue };
            let digest = format!("sha256:{hex}");
            if needed.contains(&digest) || self.loaded(&digest).is_some() {
                // The time without use begins at the end of this one.
                touch(&path)?;
            } else if fs::metadata(&path)?.modified()?.elapsed().unwrap_or_default() >= unused_for {
                unused.push(digest);
            }
        }
        Ok(unused)
    }

    /// Removes the files of these components, except of those that are needed after all.
    pub(crate) fn forget(&self, unused: &[String], needed: &HashSet<String>) -> io::Result<usize> {
        let mut removed = 0;
        for digest in unused {
            let Some(path) = self.path(digest).filter(|path| path.exists()) else { continue };
            if needed.contains(digest) || self.loaded(digest).is_some() {
                touch(&path)?;
                continue;
            }
            fs::remove_file(&path)?;
            removed += 1;
        }
        Ok(removed)
    }
}

fn touch(path: &Path) -> io::Result<()> {
    fs::File::options().write(true).open(path)?.set_modified(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_kept_until_nobody_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let components = Components::open(Some(dir.path().join("components"))).unwrap();
        let digest = format!("sha256:{}", "ab".repeat(32));
        components.keep(&digest, b"bytes").unwrap();
        components.keep(&digest, b"bytes").unwrap();
        let path = components.path(&digest).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"bytes");
        let needed = HashSet::from([digest.clone()]);
        assert!(components.unused(&needed, Duration::ZERO).unwrap().is_empty());
        assert!(components.unused(&HashSet::new(), Duration::from_secs(3600)).unwrap().is_empty());
        let unused = components.unused(&HashSet::new(), Duration::ZERO).unwrap();
        assert_eq!(unused, [digest]);
        assert_eq!(components.forget(&unused, &needed).unwrap(), 0, "it is needed after all");
        assert_eq!(components.forget(&unused, &HashSet::new()).unwrap(), 1);
        assert!(!path.exists());
    }

    #[test]
    fn only_digests_become_paths() {
        let dir = tempfile::tempdir().unwrap();
        let components = Components::open(Some(dir.path().to_owned())).unwrap();
        for digest in ["", "sha256:", "sha256:../../etc/passwd", "md5:00", &format!("sha256:{}", "/".repeat(64))] {
            assert_eq!(components.path(digest), None, "{digest}");
        }
    }
}
