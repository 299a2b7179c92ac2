//! The log in two files.
//!
//! The space of each file is allocated when the file is made, so that a sync writes data and no file metadata, and the head
//! of the file contains its length, so that a truncated file is noticed. A turn to a file begins at its front again; frames
//! of the round before differ from live frames by their batch numbers, which redb has.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    error::OpenError,
    store::{
        Files,
        filesystem::OpenFile,
        io_error,
        log::{
            AppendError, Log,
            frame::{FRAMES, HEAD, HEADER, Header, read_head, write_head},
        },
    },
};

/// Numbers of the parts, which are in the names of their files.
pub(crate) const PARTS: [u8; 2] = [1, 2];

/// The path of a file of the log.
pub(crate) fn part_path(dir: &Path, part: u8) -> PathBuf {
    dir.join(format!("ledger-{part}.wal"))
}

/// One file of the log.
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) file: Box<dyn OpenFile>,
    /// Bytes that are set aside.
    pub(super) size: u64,
    /// Offset of the next frame.
    pub(super) end: u64,
    /// A frame that failed may stand at the end.
    torn: bool,
    /// Another file may have the name of this one: it was to be replaced, and that failed.
    replaced: bool,
}

impl Part {
    /// A frame that was written but not synced must not be found after a crash: its batch was answered as failed.
    pub(super) fn retract(&mut self) -> io::Result<()> {
        self.torn = true;
        self.file.write_at(&[0; HEADER], self.end)?;
        self.file.sync()?;
        self.torn = false;
        Ok(())
    }

    fn fits(&self, bytes: u64) -> bool {
        self.end.saturating_add(bytes) <= self.size
    }
}

/// See [`Log`].
pub(crate) struct FileLog {
    pub(super) seed: u64,
    files: Files,
    /// The part that is being written.
    pub(super) active: Part,
    pub(super) spare: Part,
    /// Number of the next batch.
    pub(super) next: u64,
}

impl FileLog {
    /// Opens the files of a ledger that has them.
    ///
    /// # Errors
    /// [`OpenError::LogDamaged`] where one is missing, shorter than it was, or of another ledger.
    pub(crate) fn open(dir: &Path, seed: u64, files: &Files) -> Result<Self, OpenError> {
        let [first, second] = PARTS;
        let active = open_part(&part_path(dir, first), seed, files)?;
        let spare = open_part(&part_path(dir, second), seed, files)?;
        Ok(Self { seed, files: Files::clone(files), active, spare, next: 1 })
    }

    /// Makes the files anew, with room for `bytes` of frames in each. redb must durably have the batches up to `last`,
    /// and the files that may be there nothing else.
    pub(crate) fn create(dir: &Path, seed: u64, bytes: u64, last: u64, files: &Files) -> Result<Self, OpenError> {
        let [first, second] = PARTS;
        let size = FRAMES.saturating_add(bytes);
        let make = |part| {
            let path = part_path(dir, part);
            make_part(&path, seed, size, files).map_err(io_error("prepare", &path))
        };
        let (active, spare) = (make(first)?, make(second)?);
        Ok(Self { seed, files: Files::clone(files), active, spare, next: last + 1 })
    }

    /// Makes one file that is empty and of no size, so that [`Self::open`] finds it.
    pub(crate) fn create_part(path: &Path, seed: u64, files: &Files) -> io::Result<()> {
        make_part(path, seed, FRAMES, files).map(drop)
    }

    /// True if a file has batches after `applied`.
    ///
    /// # Errors
    /// [`OpenError::LogDamaged`] as in [`Self::open`] and [`Log::recover`].
    pub(crate) fn has_batches(path: &Path, seed: u64, applied: u64, files: &Files) -> Result<bool, OpenError> {
        open_part(path, seed, files)?.has_live(seed, applied)
    }

    /// True if both files have room for exactly this many bytes of frames.
    pub(crate) fn has_size(&self, bytes: u64) -> bool {
        let size = FRAMES.saturating_add(bytes);
        self.active.size == size && self.spare.size == size
    }

    /// The part that is written next has no live frame, and a frame does not fit into it: a larger file takes its place.
    fn grow(&mut self, bytes: u64) -> io::Result<()> {
        self.active.replaced = true;
        self.active = make_part(&self.active.path, self.seed, FRAMES.saturating_add(bytes), &self.files)?;
        Ok(())
    }

    /// Continues with the file that durably has the name of the part: batches in another one would be lost with it.
    fn find_replaced(&mut self) -> io::Result<()> {
        let path = self.active.path.clone();
        path.parent().map_or(Ok(()), |dir| self.files.sync_directory(dir))?;
        self.active = open_part(&path, self.seed, &self.files).map_err(io::Error::other)?;
        Ok(())
    }
}

fn damaged(path: &Path, reason: impl Into<String>) -> OpenError {
    OpenError::LogDamaged { path: path.to_owned(), reason: reason.into() }
}

fn open_part(path: &Path, seed: u64, files: &Files) -> Result<Part, OpenError> {
    let mut file = match files.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged(path, "it is not there")),
        file => file.map_err(io_error("open", path))?,
    };
    let len = file.len().map_err(io_error("read", path))?;
    let mut head = [0; HEAD];
    if len >= HEAD as u64 {
        file.read_at(&mut head, 0).map_err(io_error("read", path))?;
    }
    match read_head(seed, &head) {
        None => Err(damaged(path, "it belongs to another ledger, or its first bytes are damaged")),
        Some(size) if len < size => Err(damaged(path, format!("it has {len} bytes and had {size}"))),
        Some(size) => Ok(Part { path: path.to_owned(), file, size, end: FRAMES, torn: false, replaced: false }),
    }
}

/// Makes a file under another name first, so that there is a whole one or none.
fn make_part(path: &Path, seed: u64, size: u64, files: &Files) -> io::Result<Part> {
    let unfinished = path.with_extension("wal.new");
    let mut file = files.create(&unfinished)?;
    file.reserve(size)?;
    file.write_at(&write_head(seed, size), 0)?;
    file.sync()?;
    files.rename(&unfinished, path)?;
    path.parent().map_or(Ok(()), |dir| files.sync_directory(dir))?;
    Ok(Part { path: path.to_owned(), file, size, end: FRAMES, torn: false, replaced: false })
}

impl Log for FileLog {
    fn has_room(&self, bytes: usize) -> bool {
        self.active.end == FRAMES || self.active.fits((HEADER + bytes) as u64)
    }

    fn append(&mut self, payload: &[u8]) -> Result<u64, AppendError> {
        let header = Header::of(self.seed, self.next, payload).ok_or_else(|| io::Error::other("a batch is larger than 4 GiB"))?;
        let bytes = header.frame_bytes();
        if self.active.replaced {
            self.find_replaced()?;
        }
        if self.active.torn {
            self.active.retract()?;
        }
        if !self.active.fits(bytes) {
            if self.active.end != FRAMES {
                return Err(io::Error::other("the log has no room for a batch").into());
            }
            self.grow(bytes)?;
        }
        let (end, part) = (self.active.end, &mut self.active);
        let written = part
            .file
            .write_at(&header.write(self.seed), end)
            .and_then(|()| part.file.write_at(payload, end + HEADER as u64))
            .and_then(|()| part.file.sync());
        if let Err(error) = written {
            if let Err(error) = part.retract() {
                tracing::warn!(%error, "a batch that could not be made durable may be found after a crash");
            }
            return Err(error.into());
        }
        part.end += bytes;
        self.next += 1;
        Ok(bytes)
    }

    fn turn(&mut self) -> io::Result<()> {
        // Otherwise a failed frame could be found before its number is assigned again, in the other part.
        if self.active.torn {
            self.active.retract()?;
        }
        std::mem::swap(&mut self.active, &mut self.spare);
        self.active.end = FRAMES;
        Ok(())
    }

    fn last(&self) -> u64 {
        self.next - 1
    }

    fn part_bytes(&self) -> u64 {
        self.active.end - FRAMES
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::real_files;

    const SEED: u64 = 42;

    fn recovered(dir: &Path, applied: u64) -> Result<Vec<Vec<u8>>, OpenError> {
        let mut payloads = Vec::new();
        let last = FileLog::open(dir, SEED, &real_files())?.recover(applied, &mut |payload| {
            payloads.push(payload.to_vec());
            Ok(())
        })?;
        assert_eq!(last, applied + payloads.len() as u64);
        Ok(payloads)
    }

    fn new_log(dir: &Path) -> FileLog {
        FileLog::create(dir, SEED, 500, 0, &real_files()).unwrap()
    }

    #[test]
    fn both_parts_are_read_in_the_order_in_which_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = new_log(dir.path());
        for n in 1..=9u8 {
            if !log.has_room(100) {
                log.turn().unwrap();
            }
            assert_eq!(log.append(&[n; 100]).unwrap(), 132);
            assert_eq!(log.last(), u64::from(n));
            // Up to two parts of three frames each.
            for applied in (0..=u64::from(n)).rev().take(4) {
                let payloads = recovered(dir.path(), applied).unwrap();
                assert_eq!(payloads, (applied + 1..=u64::from(n)).map(|n| vec![n as u8; 100]).collect::<Vec<_>>(), "after {n}");
            }
        }
        // The frames that are gone are missed where redb does not have them.
        let error = recovered(dir.path(), 2).unwrap_err().to_string();
        assert!(error.contains("begins with batch 4") && error.contains("batch 2"), "{error}");
    }

    #[test]
    fn a_batch_that_is_larger_than_a_part_makes_the_part_larger() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = new_log(dir.path());
        log.append(b"one").unwrap();
        assert!(!log.has_room(2_000) && log.append(&[2; 2_000]).is_err());
        log.turn().unwrap();
        assert!(log.has_room(2_000));
        log.append(&[2; 2_000]).unwrap();
        assert_eq!(log.part_bytes(), 2_032);
        drop(log);
        assert_eq!(recovered(dir.path(), 0).unwrap(), [b"one".to_vec(), vec![2; 2_000]]);
        assert!(!FileLog::open(dir.path(), SEED, &real_files()).unwrap().has_size(500));
    }

    #[test]
    fn a_missing_a_shorter_and_a_foreign_log_are_refused() {
        for part in PARTS {
            let dir = tempfile::tempdir().unwrap();
            let mut log = new_log(dir.path());
            log.append(b"one").unwrap();
            let path = part_path(dir.path(), part);
            let whole = fs::read(&path).unwrap();
            let refused = |wanted: &str| {
                let error = recovered(dir.path(), 0).unwrap_err();
                assert!(matches!(&error, OpenError::LogDamaged { path: named, .. } if *named == path), "{error}");
                assert!(error.to_string().contains(wanted), "{error}");
            };
            fs::write(&path, &whole[..whole.len() - 1]).unwrap();
            refused("it has 4595 bytes and had 4596");
            fs::write(&path, b"").unwrap();
            refused("another ledger");
            fs::write(&path, vec![0; whole.len()]).unwrap();
            refused("another ledger");
            fs::remove_file(&path).unwrap();
            refused("not there");
            fs::write(&path, &whole).unwrap();
            assert_eq!(recovered(dir.path(), 0).unwrap(), [b"one"]);
            assert!(FileLog::open(dir.path(), SEED + 1, &real_files()).is_err());
        }
    }

    #[test]
    fn a_log_that_is_made_anew_goes_on_with_the_numbers() {
        let dir = tempfile::tempdir().unwrap();
        new_log(dir.path()).append(b"one").unwrap();
        let mut log = FileLog::create(dir.path(), SEED, 100, 1, &real_files()).unwrap();
        assert!(log.has_size(100));
        log.append(b"two").unwrap();
        assert_eq!((log.last(), recovered(dir.path(), 1).unwrap()), (2, vec![b"two".to_vec()]));
    }
}
