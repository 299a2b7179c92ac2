//! Compiled code on disk, so that a host starts without a compiler.
//!
//! Compiled code runs outside of the sandbox, so the host loads only files that it wrote: the directory belongs to the user
//! alone (0700), and each file has a keyed checksum whose key was made here and is as private. A file that was changed,
//! truncated, copied from elsewhere or made by another engine is not loaded; the component is compiled again and the file
//! overwritten.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use agent_host_protocol::{Limits, RefusalCode};
use serde::{Deserialize, Serialize};
use wasmtime::{Engine, component::Component};

/// A component that was too much for the compiler.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RefusedCompile {
    pub(crate) code: RefusalCode,
    pub(crate) message: String,
    pub(crate) fix: String,
    /// The limits that it met.
    pub(crate) compile_ms: u64,
    pub(crate) compile_memory_bytes: u64,
}

/// The cache of one data directory for one engine.
#[derive(Debug)]
pub(crate) struct CodeCache {
    dir: PathBuf,
    key: [u8; 32],
    code_version: String,
}

impl CodeCache {
    /// Opens the cache in `dir`, making it where it is not.
    pub(crate) fn open(dir: &Path, code_version: String) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        // A directory that was there may have been made with other rights.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        Ok(Self { key: key(&dir.join("key"))?, dir: dir.to_owned(), code_version })
    }

    /// The compiled code of the component with this digest, if this host wrote it for this engine.
    ///
    /// # Errors
    /// Fails if the engine does not take the code, for instance because a component has more instances than its pool.
    pub(crate) fn load(&self, engine: &Engine, digest: &str) -> wasmtime::Result<Option<Component>> {
        let path = self.path(digest);
        if !self.is_sealed(&path, digest) {
            return Ok(None);
        }
        // SAFETY: the file has the seal of this host, made with a key that only its user can read, over these bytes, this
        // component and this engine's code version, and was read from a directory that only its user can write. An attacker
        // who could change the file between the check and the mapping could as well change the host.
        #[allow(unsafe_code, reason = "loading compiled code is trusting it; see the module's documentation and SAFETY")]
        unsafe { Component::deserialize_file(engine, &path) }.map(Some)
    }

    /// True if a file of code is there and has the seal of this host.
    fn is_sealed(&self, path: &Path, digest: &str) -> bool {
        let (Ok(code), Ok(seal)) = (fs::read(path), fs::read(path.with_extension("seal"))) else { return false };
        // blake3's comparison takes the same time wherever the difference is.
        if blake3::Hash::from_slice(&seal).is_ok_and(|seal| seal == self.seal(digest, &code)) {
            return true;
        }
        tracing::warn!(path = %path.display(), "a file of the code cache was not written by this host, or was changed: compiling again");
        false
    }

    /// Keeps compiled code. A cache that cannot be written costs time, nothing else.
    pub(crate) fn store(&self, digest: &str, code: &[u8]) {
        if let Err(error) = self.try_store(digest, code) {
            tracing::warn!(dir = %self.dir.display(), %error, "compiled code could not be cached");
        }
    }

    fn try_store(&self, digest: &str, code: &[u8]) -> io::Result<()> {
        let path = self.path(digest);
        write_atomically(&path, code)?;
        write_atomically(&path.with_extension("seal"), self.seal(digest, code).as_bytes())
    }

    /// Remembers that a component was too much for the compiler, so that no later start of the host tries it again.
    pub(crate) fn refuse(&self, digest: &str, refused: &RefusedCompile) {
        let stored = serde_json::to_vec(refused)
            .map_err(io::Error::other)
            .and_then(|text| write_atomically(&self.path(digest).with_extension("refused"), &text));
        if let Err(error) = stored {
            tracing::warn!(dir = %self.dir.display(), %error, "a component that is too large to compile will be tried again");
        }
    }

    /// The refusal of a component that was too much for the compiler, unless it may take more now.
    pub(crate) fn refused(&self, digest: &str, limits: &Limits) -> Option<RefusedCompile> {
        let text = fs::read(self.path(digest).with_extension("refused")).ok()?;
        let refused: RefusedCompile = serde_json::from_slice(&text).ok()?;
        let has_more = limits.compile_ms > refused.compile_ms || limits.compile_memory_bytes > refused.compile_memory_bytes;
        (!has_more).then_some(refused)
    }

    /// Removes files of components that are not `kept` and were not for so long, and files of other engines that are as old.
    pub(crate) fn forget(&self, kept: impl Fn(&str) -> bool, unused_for: Duration) -> io::Result<usize> {
        let mut removed = 0;
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.split_once('-'));
            let Some((hex, code_version)) = name else { continue };
            if code_version == self.code_version && kept(&format!("sha256:{hex}")) {
                // The time without use begins at the end of this one.
                fs::File::options().write(true).open(&path)?.set_modified(SystemTime::now())?;
            } else if fs::metadata(&path)?.modified()?.elapsed().unwrap_or_default() >= unused_for {
                fs::remove_file(&path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn path(&self, digest: &str) -> PathBuf {
        let name = digest.rsplit_once(':').map_or(digest, |(_, hex)| hex);
        self.dir.join(format!("{name}-{}.code", self.code_version))
    }

    fn seal(&self, digest: &str, code: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for part in [digest.as_bytes(), self.code_version.as_bytes(), code] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize()
    }
}

/// The key of the seals: drawn once, readable by the user alone.
fn key(path: &Path) -> io::Result<[u8; 32]> {
    let mut key = [0; 32];
    match fs::read(path) {
        Ok(bytes) if bytes.len() == key.len() => {
            key.copy_from_slice(&bytes);
            return Ok(key);
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    write_atomically(path, &key)?;
    Ok(key)
}

/// Writes a file whole or not at all.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_data()).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty component: it compiles to something, and that something loads.
    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    struct CacheFolder {
        dir: tempfile::TempDir,
        engine: Engine,
    }

    impl CacheFolder {
        fn new() -> Self {
            let this = Self { dir: tempfile::tempdir().unwrap(), engine: Engine::default() };
            this.cache().store("sha256:00", &this.engine.precompile_component(EMPTY).unwrap());
            this
        }

        fn cache(&self) -> CodeCache {
            CodeCache::open(self.dir.path(), "v1".into()).unwrap()
        }

        fn loads(&self) -> bool {
            matches!(self.cache().load(&self.engine, "sha256:00"), Ok(Some(_)))
        }
    }

    #[test]
    fn code_that_this_host_wrote_is_loaded() {
        assert!(CacheFolder::new().loads());
    }

    #[test]
    fn code_that_nobody_needs_is_removed_in_time() {
        let cached = CacheFolder::new();
        let cache = cached.cache();
        let other = CodeCache::open(cached.dir.path(), "v2".into()).unwrap();
        other.store("sha256:00", b"of another engine");
        cache.store("sha256:01", b"of another component");
        assert_eq!(cache.forget(|_| false, Duration::from_secs(60)).unwrap(), 0, "all of it is new");
        assert_eq!(cache.forget(|digest| digest == "sha256:00", Duration::ZERO).unwrap(), 4, "code and seal of two");
        assert!(cached.loads() && !cache.path("sha256:01").exists() && !other.path("sha256:00").exists());
    }

    #[test]
    fn code_that_was_changed_is_not() {
        let cached = CacheFolder::new();
        let path = cached.cache().path("sha256:00");
        let code = fs::read(&path).unwrap();
        for place in [0, code.len() / 2, code.len() - 1] {
            let mut changed = code.clone();
            changed[place] ^= 1;
            fs::write(&path, changed).unwrap();
            assert!(!cached.loads(), "byte {place} was changed and nobody saw it");
        }
        fs::write(&path, &code[..code.len() - 1]).unwrap();
        assert!(!cached.loads());
        fs::write(&path, &code).unwrap();
        assert!(cached.loads());
    }

    #[test]
    fn code_from_another_host_component_or_engine_is_not() {
        let cached = CacheFolder::new();
        let path = cached.cache().path("sha256:00");
        let cache = cached.cache();
        fs::copy(&path, cache.path("sha256:01")).unwrap();
        fs::copy(path.with_extension("seal"), cache.path("sha256:01").with_extension("seal")).unwrap();
        assert!(matches!(cache.load(&cached.engine, "sha256:01"), Ok(None)), "another component's code");

        let other = CodeCache::open(cached.dir.path(), "v2".into()).unwrap();
        fs::copy(&path, other.path("sha256:00")).unwrap();
        fs::copy(path.with_extension("seal"), other.path("sha256:00").with_extension("seal")).unwrap();
        assert!(matches!(other.load(&cached.engine, "sha256:00"), Ok(None)), "another engine's code");

        fs::write(cached.dir.path().join("key"), [7; 32]).unwrap();
        assert!(!cached.loads(), "another host's code");
    }

    #[test]
    fn the_directory_and_its_key_are_private() {
        let cached = CacheFolder::new();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(cached.dir.path()), 0o700);
        assert_eq!(mode(&cached.dir.path().join("key")), 0o600);
    }
}
