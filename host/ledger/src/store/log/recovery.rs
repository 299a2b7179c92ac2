//! Reading the frames of both parts after the host has died.
//!
//! One frame is written and synced before the next one begins, in either part, and a frame whose sync failed is overwritten
//! durably before the next one begins. So the number of a frame says what was durable when it was written: all smaller
//! numbers, whatever order the disk gives to the writes between two syncs. A frame that cannot be read is therefore
//!
//! - *damage*, if a later one can be read: it was durable, and its batch may have been acknowledged;
//! - *damage*, if it is whole but for one byte of its header: a write that a power failure interrupts leaves whole sectors of
//!   what was there before, never one wrong byte before a payload that is right;
//! - *damage*, if its number is larger than the next one after all that can be read: the frames between were durable before it;
//! - else the frame that was being written at the crash, which nobody was told of. It is cut off.
//!
//! A batch of the last frame whose payload was damaged after it was acknowledged cannot be told from the last case; it is in
//! danger only until the next merge, which takes a few seconds, and the cut is a warning.
//!
//! Frames of the round before lie behind the last frame of a part. Their numbers are those of batches that redb has, so they
//! prove nothing.

use memchr::memmem;

use crate::{
    error::OpenError,
    store::{
        io_error,
        log::{
            FileLog,
            file::Part,
            frame::{FRAME_MAGIC, FRAMES, HEADER, Header},
        },
    },
};

/// Bytes that the search for later frames reads at once.
const SEARCH_BYTES: usize = 1024 * 1024;

/// Frames of one part that redb does not have.
struct Live {
    first: u64,
    last: u64,
    /// Offset of the first frame.
    at: u64,
}

/// The frames of one part.
struct Frames {
    live: Option<Live>,
    /// Offset behind the last frame.
    end: u64,
    /// Batch of the frame at the end, as its header says, which the host was writing when it died.
    torn: Option<u64>,
}

/// Frames behind one that cannot be read.
struct Later {
    /// Batch of the first one.
    first: u64,
    /// Offset of that one.
    at: u64,
    /// Number of those whose payload is right.
    readable: u64,
}

impl FileLog {
    /// Hands every batch after `applied` to `each`, oldest first; gives the number of the last batch. The caller makes
    /// redb durable up to that batch before it appends one.
    ///
    /// A batch that was being written when the host died, and was never acknowledged, is cut off. Damage to one that
    /// was acknowledged is an error.
    pub(crate) fn recover(
        &mut self,
        applied: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<(), OpenError>,
    ) -> Result<u64, OpenError> {
        let active = self.active.live(self.seed, applied)?;
        let spare = self.spare.live(self.seed, applied)?;
        let ends = [(active.end, active.torn), (spare.end, spare.torn)];
        let torn = [(self.active.path.clone(), active.torn), (self.spare.path.clone(), spare.torn)];
        let mut parts: Vec<_> = [(active, &mut self.active), (spare, &mut self.spare)]
            .into_iter()
            .filter_map(|(frames, part)| frames.live.map(|live| (live, part)))
            .collect();
        parts.sort_by_key(|(live, _)| live.first);
        let mut last = applied;
        for (live, part) in &parts {
            if live.first != last + 1 {
                let reason = format!("it begins with batch {}, but what is before it ends with batch {last}", live.first);
                return Err(part.damaged(reason));
            }
            last = live.last;
        }
        for (path, torn) in torn {
            if let Some(batch) = torn.filter(|batch| *batch > last + 1) {
                let reason = format!("it has the beginning of batch {batch}, but what is before it ends with batch {last}");
                return Err(OpenError::LogDamaged { path, reason });
            }
        }
        for (live, part) in parts {
            part.each(self.seed, &live, each)?;
        }
        // Only now, so that a log that is refused stays as it is.
        for (part, (end, torn)) in [&mut self.active, &mut self.spare].into_iter().zip(ends) {
            part.cut_off(end, torn)?;
            part.end = FRAMES;
        }
        self.next = last + 1;
        Ok(last)
    }
}

impl Part {
    fn damaged(&self, reason: String) -> OpenError {
        OpenError::LogDamaged { path: self.path.clone(), reason }
    }

    fn lost(&self, at: u64, batch: u64, later: u64) -> OpenError {
        OpenError::BatchLost { path: self.path.clone(), at, batch, later }
    }

    pub(super) fn has_live(&mut self, seed: u64, applied: u64) -> Result<bool, OpenError> {
        Ok(self.live(seed, applied)?.live.is_some())
    }

    fn header(&mut self, seed: u64, offset: u64) -> Result<Option<Header>, OpenError> {
        if offset.saturating_add(HEADER as u64) > self.size {
            return Ok(None);
        }
        let mut bytes = [0; HEADER];
        self.file.read_at(&mut bytes, offset).map_err(io_error("read", &self.path))?;
        Ok(Header::read(seed, &bytes).filter(|header| offset.saturating_add(header.frame_bytes()) <= self.size))
    }

    /// Reads the payload of a frame; false where it is not the one that the frame was written with.
    fn payload(&mut self, seed: u64, offset: u64, header: &Header, payload: &mut Vec<u8>) -> Result<bool, OpenError> {
        payload.resize(usize::try_from(header.len).unwrap_or(usize::MAX), 0);
        self.file.read_at(payload, offset + HEADER as u64).map_err(io_error("read", &self.path))?;
        Ok(header.is_of(seed, payload))
    }

    /// The frames after batch `applied`.
    fn live(&mut self, seed: u64, applied: u64) -> Result<Frames, OpenError> {
        let mut live: Option<Live> = None;
        let (mut offset, mut before, mut payload) = (FRAMES, None, Vec::new());
        loop {
            let mut torn = None;
            while let Some(header) = self.header(seed, offset)? {
                if before.is_some_and(|before| header.batch != before + 1) {
                    break;
                }
                if !self.payload(seed, offset, &header, &mut payload)? {
                    torn = Some(header.batch).filter(|batch| *batch > applied);
                    break;
                }
                if header.batch > applied {
                    match &mut live {
                        Some(live) => live.last = header.batch,
                        None => live = Some(Live { first: header.batch, last: header.batch, at: offset }),
                    }
                }
                before = Some(header.batch);
                offset += header.frame_bytes();
            }
            let known = before.unwrap_or(0).max(applied);
            // The frame that was being written is no proof of itself.
            let from = if torn.is_some() { offset + 1 } else { offset };
            match self.later(seed, from, known)? {
                // What cannot be read before it is in redb.
                Some(later) if live.is_none() && later.first == applied + 1 && later.at > offset => {
                    (offset, before) = (later.at, None);
                }
                Some(later) => return Err(self.lost(offset, known + 1, later.readable)),
                None if self.is_damaged_header(seed, offset, known)? => return Err(self.lost(offset, known + 1, 0)),
                None => return Ok(Frames { live, end: offset, torn }),
            }
        }
    }

    /// Removes what may stand behind the last frame, also where nothing is seen. There, a host that died may have removed a batch
    /// whose sync had failed, and the sync of the removal may have failed, too. The kernel then shows the removal and does not
    /// write it again, while the disk may have the batch; after a power failure that batch would be found beside the one that has
    /// its number by then.
    fn cut_off(&mut self, end: u64, torn: Option<u64>) -> Result<(), OpenError> {
        if let Some(batch) = torn {
            tracing::warn!(
                path = %self.path.display(),
                at = end,
                batch,
                "the last batch of the log was not written to its end, and is cut off: nobody was told that it was accepted"
            );
        }
        if end.saturating_add(HEADER as u64) > self.size {
            return Ok(());
        }
        self.end = end;
        self.retract().map_err(io_error("write", &self.path))
    }

    /// True if one wrong byte keeps the header of a batch after `known` from being read, and the payload is right. A frame
    /// without a payload proves nothing: a sector may end before the last byte of its header.
    fn is_damaged_header(&mut self, seed: u64, offset: u64, known: u64) -> Result<bool, OpenError> {
        if offset.saturating_add(HEADER as u64) > self.size {
            return Ok(false);
        }
        let mut bytes = [0; HEADER];
        self.file.read_at(&mut bytes, offset).map_err(io_error("read", &self.path))?;
        if Header::read(seed, &bytes).is_some() {
            return Ok(false);
        }
        let Some(header) = Header::read_mended(seed, &bytes) else { return Ok(false) };
        let fits = offset.saturating_add(header.frame_bytes()) <= self.size;
        Ok(header.batch > known && header.len > 0 && fits && self.payload(seed, offset, &header, &mut Vec::new())?)
    }

    /// The frames from `from` on that are of later batches than `known`. The fields of one are proof enough.
    fn later(&mut self, seed: u64, mut from: u64, known: u64) -> Result<Option<Later>, OpenError> {
        let magic = memmem::Finder::new(&FRAME_MAGIC);
        let (mut bytes, mut payload) = (Vec::new(), Vec::new());
        let mut later: Option<Later> = None;
        while from + HEADER as u64 <= self.size {
            let len = usize::try_from(self.size - from).unwrap_or(usize::MAX).min(SEARCH_BYTES);
            bytes.resize(len, 0);
            self.file.read_at(&mut bytes, from).map_err(io_error("read", &self.path))?;
            for at in magic.find_iter(&bytes) {
                let at = from + at as u64;
                // The key of the checksum keeps the bytes of guests from passing for a frame, so payloads are read once at most.
                if let Some(header) = self.header(seed, at)?.filter(|header| header.batch > known) {
                    let later = later.get_or_insert(Later { first: header.batch, at, readable: 0 });
                    later.readable += u64::from(self.payload(seed, at, &header, &mut payload)?);
                }
            }
            // A magic may stand across the end of what was read.
            from += (len - (FRAME_MAGIC.len() - 1)) as u64;
        }
        Ok(later)
    }

    fn each(&mut self, seed: u64, live: &Live, each: &mut dyn FnMut(&[u8]) -> Result<(), OpenError>) -> Result<(), OpenError> {
        let (mut offset, mut payload) = (live.at, Vec::new());
        for batch in live.first..=live.last {
            let header = self.header(seed, offset)?.filter(|header| header.batch == batch);
            let header = header.ok_or_else(|| self.lost(offset, batch, live.last - batch))?;
            if !self.payload(seed, offset, &header, &mut payload)? {
                return Err(self.lost(offset, batch, live.last - batch));
            }
            each(&payload)?;
            offset += header.frame_bytes();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::store::{
        log::{Log, part_path},
        real_files,
    };

    const SEED: u64 = 42;

    fn recovered(dir: &Path, applied: u64) -> Result<Vec<Vec<u8>>, OpenError> {
        let mut payloads = Vec::new();
        FileLog::open(dir, SEED, &real_files())?.recover(applied, &mut |payload| {
            payloads.push(payload.to_vec());
            Ok(())
        })?;
        Ok(payloads)
    }

    fn written(dir: &Path, payloads: &[&[u8]]) -> FileLog {
        let mut log = FileLog::create(dir, SEED, 300, 0, &real_files()).unwrap();
        for payload in payloads {
            log.append(payload).unwrap();
        }
        log
    }

    #[test]
    fn a_log_cut_at_any_byte_keeps_the_whole_frames_before_the_cut() {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path(), &[b"first", b"second", b"third"]);
        let path = part_path(dir.path(), 1);
        let whole = fs::read(&path).unwrap();
        let frames = FRAMES as usize;
        let ends = [37, 37 + 38, 37 + 38 + 37].map(|end| frames + end);
        for cut in frames..=ends[2] {
            // Behind the end are zeros, or older frames.
            for filler in [0, 0x41] {
                let mut bytes = whole.clone();
                bytes[cut..].fill(filler);
                fs::write(&path, bytes).unwrap();
                let kept = ends.iter().filter(|end| cut >= **end).count();
                assert_eq!(recovered(dir.path(), 0).unwrap().len(), kept, "cut at {cut}");
                // A frame that was cut off does not come back, and its number is free.
                assert_eq!(recovered(dir.path(), 0).unwrap().len(), kept);
            }
        }
    }

    /// The hole of the format before: a damaged magic or length ended the log, and later batches were dropped.
    #[test]
    fn a_damaged_byte_anywhere_before_the_last_frame_is_refused_with_the_place() {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path(), &[b"first", b"second", b"", b"fourth"]);
        let path = part_path(dir.path(), 1);
        let whole = fs::read(&path).unwrap();
        let frames = FRAMES as usize;
        let starts = [frames, frames + 37, frames + 37 + 38, frames + 37 + 38 + 32];
        for at in frames..starts[3] {
            for bit in [1u8, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= bit;
                fs::write(&path, bytes).unwrap();
                let damaged = starts.iter().rposition(|start| at >= *start).unwrap();
                let error = recovered(dir.path(), 0).unwrap_err();
                let OpenError::BatchLost { path: named, at: place, batch, later } = &error else { panic!("{error}") };
                assert_eq!((named, *place, *batch), (&path, starts[damaged] as u64, damaged as u64 + 1), "damaged at {at}");
                assert_eq!(*later, 3 - damaged as u64, "damaged at {at}");
                assert!(error.to_string().contains("agent-host ledger salvage"), "{error}");
            }
        }
        // The header of the last frame.
        for at in starts[3]..starts[3] + HEADER {
            for bit in [1u8, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= bit;
                fs::write(&path, bytes).unwrap();
                let error = recovered(dir.path(), 0).unwrap_err();
                assert!(matches!(&error, OpenError::BatchLost { batch: 4, later: 0, .. }), "damaged at {at}: {error}");
            }
        }
        // Its payload: a write that was interrupted.
        for at in starts[3] + HEADER..starts[3] + HEADER + 6 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert_eq!(recovered(dir.path(), 0).unwrap().len(), 3, "damaged at {at}");
        }
    }

    #[test]
    fn damage_to_what_redb_has_is_no_loss() {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path(), &[b"first", b"second", b"third", b"fourth"]);
        let path = part_path(dir.path(), 1);
        let whole = fs::read(&path).unwrap();
        for at in FRAMES as usize..FRAMES as usize + 37 + 38 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert_eq!(recovered(dir.path(), 2).unwrap(), [b"third".to_vec(), b"fourth".to_vec()], "damaged at {at}");
        }
    }

    #[test]
    fn a_part_that_lost_its_end_is_missed_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = written(dir.path(), &[b"first", b"second"]);
        log.turn().unwrap();
        log.append(b"third").unwrap();
        let path = part_path(dir.path(), 1);
        let mut bytes = fs::read(&path).unwrap();
        bytes[FRAMES as usize + 37 + 32] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = recovered(dir.path(), 0).unwrap_err().to_string();
        assert!(error.contains("ledger-2.wal") && error.contains("begins with batch 3") && error.contains("batch 1"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "a log that is refused stays as it is");
        assert_eq!(recovered(dir.path(), 2).unwrap(), [b"third"]);
    }

    /// The frame that was being written is no batch, but its number says how many were durable before it.
    #[test]
    fn a_part_that_lost_its_end_is_missed_by_the_torn_frame_of_the_next() {
        let torn = |frames: &[(u8, usize)]| {
            let dir = tempfile::tempdir().unwrap();
            let mut log = written(dir.path(), &[b"first", b"second"]);
            log.turn().unwrap();
            log.append(b"third").unwrap();
            for (part, at) in frames {
                let path = part_path(dir.path(), *part);
                let mut bytes = fs::read(&path).unwrap();
                bytes[FRAMES as usize + at + HEADER] ^= 1;
                fs::write(&path, bytes).unwrap();
            }
            dir
        };
        let dir = torn(&[(2, 0)]);
        assert_eq!(recovered(dir.path(), 0).unwrap(), [b"first".to_vec(), b"second".to_vec()]);
        let dir = torn(&[(1, 37), (2, 0)]);
        for _ in 0..2 {
            // A log that is refused stays as it is.
            let error = recovered(dir.path(), 0).unwrap_err().to_string();
            assert!(
                error.contains("ledger-2.wal") && error.contains("beginning of batch 3") && error.contains("batch 1"),
                "{error}"
            );
        }
        assert_eq!(recovered(dir.path(), 2).unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn frames_of_the_rounds_before_are_not_applied() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = FileLog::create(dir.path(), SEED, 600, 0, &real_files()).unwrap();
        let mut merged = 0;
        for n in 1..=40u8 {
            let len = 20 + usize::from(n % 7) * 13;
            if !log.has_room(len) {
                // All but the part that was just written is in redb.
                merged = u64::from(n) - 1;
                log.turn().unwrap();
            }
            log.append(&vec![n; len]).unwrap();
            let payloads = recovered(dir.path(), merged).unwrap();
            assert_eq!(
                payloads.iter().map(|payload| u64::from(payload[0])).collect::<Vec<_>>(),
                (merged + 1..=u64::from(n)).collect::<Vec<_>>()
            );
        }
    }

    /// A power failure during the write of the last frame: the disk has written any of its sectors, in any order.
    #[test]
    fn any_sectors_of_the_frame_that_was_being_written_are_no_damage() {
        const SECTOR: usize = 512;
        for (shift, len) in (0..40).map(|n| n * 13).flat_map(|shift| [(shift, 0), (shift, 1), (shift, 1_300)]) {
            let dir = tempfile::tempdir().unwrap();
            let mut log = FileLog::create(dir.path(), SEED, 4_000, 0, &real_files()).unwrap();
            log.append(&vec![1; shift]).unwrap();
            let path = part_path(dir.path(), 1);
            let before = fs::read(&path).unwrap();
            let end = FRAMES as usize + HEADER + shift;
            log.append(&vec![2; len]).unwrap();
            let after = fs::read(&path).unwrap();
            let sectors: Vec<usize> = (end / SECTOR..(end + HEADER + len).div_ceil(SECTOR)).collect();
            for filler in [0, 0x41] {
                for written in 0..1u32 << sectors.len() {
                    let mut bytes = after.clone();
                    for (no, sector) in sectors.iter().enumerate().filter(|(no, _)| written & (1 << no) == 0) {
                        let (from, to) = ((sector * SECTOR).max(end), ((sector + 1) * SECTOR).min(bytes.len()));
                        assert!(no < sectors.len() && before[from..to].iter().all(|byte| *byte == 0));
                        bytes[from..to].fill(filler);
                    }
                    let is_whole = bytes[..end + HEADER + len] == after[..end + HEADER + len];
                    fs::write(&path, &bytes).unwrap();
                    let found = recovered(dir.path(), 0).unwrap_or_else(|error| panic!("{shift}, {len}, {written:b}: {error}"));
                    assert_eq!(found.len(), 1 + usize::from(is_whole), "{shift}, {len}, {written:b}");
                }
            }
        }
    }

    #[test]
    fn a_removed_frame_is_not_damage_later() {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path(), &[b"first", b"second"]);
        let path = part_path(dir.path(), 1);
        let mut bytes = fs::read(&path).unwrap();
        bytes[FRAMES as usize + 37 + 32] ^= 1;
        fs::write(&path, bytes).unwrap();
        // The payload of batch 2 is torn; its number is given again, in a place before.
        let mut log = FileLog::open(dir.path(), SEED, &real_files()).unwrap();
        assert_eq!(log.recover(0, &mut |_| Ok(())).unwrap(), 1);
        log.append(b"2").unwrap();
        assert_eq!(recovered(dir.path(), 1).unwrap(), [b"2"]);
    }

    /// A guest may write what looks like a frame, as long as it does not know the key.
    #[test]
    fn a_payload_that_looks_like_frames_is_no_frame() {
        let dir = tempfile::tempdir().unwrap();
        let forged = [Header::of(SEED + 1, 3, b"x").unwrap().write(SEED + 1), b"AHL2AHL2".to_vec()].concat();
        written(dir.path(), &[b"first", &forged]);
        let path = part_path(dir.path(), 1);
        let mut bytes = fs::read(&path).unwrap();
        bytes[FRAMES as usize + 37] ^= 1;
        bytes[FRAMES as usize + 40] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(recovered(dir.path(), 0).unwrap(), [b"first"]);
    }
}
