//! The address of the server that has a data directory: a file in the directory, which the server writes and holds locked.
//!
//! Commands send their API key to this address. The configuration does not say it: the file may have been edited since the server
//! started, and another program may listen where the server would.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Name of the file in the data directory.
const NAME: &str = "server.address";
/// Tries to lock the file, and the pause between them.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);
/// Longest address that is read.
const MAX_BYTES: u64 = 1024;

/// The address file of this server. Removed when dropped; a file that a crash leaves is not locked, and counts for nothing.
#[derive(Debug)]
pub(crate) struct AddressFile {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl AddressFile {
    /// Writes the address of the server that has this directory.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or another server holds it.
    pub(crate) fn write(data_dir: &Path, url: &str) -> io::Result<Self> {
        let path = data_dir.join(NAME);
        let mut file = File::options().create(true).write(true).truncate(false).open(&path)?;
        lock(&file)?;
        file.set_len(0)?;
        writeln!(file, "{url}")?;
        Ok(Self { path, _file: file })
    }
}

/// Locks the file of a server. A command that looks at a file which a crash has left holds it for a moment.
fn lock(file: &File) -> io::Result<()> {
    for _ in 0..LOOKS {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
            locked => return locked.map_err(io::Error::from),
        }
    }
    file.try_lock().map_err(io::Error::from)
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        // A file that stays is not locked, and counts for nothing.
        let _ = fs::remove_file(&self.path);
    }
}

/// The address of the server that has this directory now; `None` if no server has it.
pub(crate) fn find(data_dir: &Path) -> Option<String> {
    let mut file = File::open(data_dir.join(NAME)).ok()?;
    let is_held = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    let mut url = String::new();
    (&mut file).take(MAX_BYTES).read_to_string(&mut url).ok()?;
    let url = url.trim();
    (is_held && !url.is_empty()).then(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_while_its_server_has_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find(dir.path()), None);
        let file = AddressFile::write(dir.path(), "http://127.0.0.1:1").unwrap();
        assert_eq!(find(dir.path()).as_deref(), Some("http://127.0.0.1:1"));
        assert!(AddressFile::write(dir.path(), "http://127.0.0.1:2").is_err(), "one server has the directory");
        drop(file);
        assert_eq!(find(dir.path()), None);
        // A crash leaves the file, and its address may be of another program by now.
        fs::write(dir.path().join(NAME), "http://127.0.0.1:333333\n").unwrap();
        assert_eq!(find(dir.path()), None);
        // A command that looks at it does not keep a server from starting.
        let looking = File::open(dir.path().join(NAME)).unwrap();
        looking.lock_shared().unwrap();
        let looks = thread::spawn(move || {
            thread::sleep(5 * PAUSE);
            drop(looking);
        });
        let _file = AddressFile::write(dir.path(), "http://127.0.0.1:4").unwrap();
        assert_eq!(find(dir.path()).as_deref(), Some("http://127.0.0.1:4"), "nothing of the old address is left");
        looks.join().unwrap();
    }
}
