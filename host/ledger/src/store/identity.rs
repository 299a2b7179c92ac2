//! A small file beside the ledger that says which one it is and how far it had come: `ledger.identity`.
//!
//! The file has the key of the log, which `ledger.redb` has too, so that the log can be read where `ledger.redb` is lost; and
//! the last batch at the last clean stop, so that an older copy of the files, or an empty file in their place, is not taken for
//! the ledger. A host that has the ledger open leaves the file as it is: the ledger only grows, so what the file says stays
//! true. A ledger without the file is opened as before, and a damaged file is replaced: it guards, and holds nothing else.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::store::Files;

/// First line of the file.
const TITLE: &str = "agent-host ledger, identity 1";
/// Longest file that is read.
const MAX_BYTES: u64 = 4096;

pub(crate) fn identity_path(dir: &Path) -> PathBuf {
    dir.join("ledger.identity")
}

/// The content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Key of the checksums in the log.
    pub(crate) seed: u64,
    /// The last batch that redb had at the last clean stop.
    pub(crate) last: u64,
}

impl Identity {
    fn fields(self) -> String {
        let Self { seed, last } = self;
        format!("{TITLE}\nkey {seed:016x}\nlast {last}\n")
    }

    fn text(self) -> String {
        let fields = self.fields();
        let checksum = xxh3_64_with_seed(fields.as_bytes(), self.seed);
        format!("{fields}checksum {checksum:016x}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().skip(1);
        let seed = u64::from_str_radix(lines.next()?.strip_prefix("key ")?, 16).ok()?;
        let last = lines.next()?.strip_prefix("last ")?.parse().ok()?;
        let identity = Self { seed, last };
        (identity.text() == text).then_some(identity)
    }

    /// The identity of the ledger in a directory. `None` without the file, or where it is damaged.
    pub(crate) fn read(dir: &Path) -> io::Result<Option<Self>> {
        let path = identity_path(dir);
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(metadata) if metadata.len() > MAX_BYTES => return Ok(None),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let text = fs::read(&path)?;
        Ok(std::str::from_utf8(&text).ok().and_then(Self::parse))
    }

    /// Writes the file durably; there is the old one, or the whole new one.
    pub(crate) fn write(self, dir: &Path, files: &Files) -> io::Result<()> {
        let path = identity_path(dir);
        let unfinished = path.with_extension("identity.new");
        let mut file = files.create(&unfinished)?;
        file.write_at(self.text().as_bytes(), 0)?;
        file.sync()?;
        files.rename(&unfinished, &path)?;
        files.sync_directory(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::real_files;

    #[test]
    fn an_identity_reads_back_and_a_damaged_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Identity::read(dir.path()).unwrap(), None);
        let identity = Identity { seed: 0xfeed, last: 12 };
        identity.write(dir.path(), &real_files()).unwrap();
        assert_eq!(Identity::read(dir.path()).unwrap(), Some(identity));
        let whole = fs::read(identity_path(dir.path())).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(identity_path(dir.path()), bytes).unwrap();
            assert_eq!(Identity::read(dir.path()).unwrap(), None, "damaged at {at}");
        }
        for other in [vec![], vec![b'x'; 5_000]] {
            fs::write(identity_path(dir.path()), other).unwrap();
            assert_eq!(Identity::read(dir.path()).unwrap(), None);
        }
    }
}
