//! Reading the frames of both parts after the host has died.
//!
//! If a frame cannot be read, the rest of its file is searched for a later one: a batch begins only after the one before is
//! durable, so a later frame proves that the damaged one was acknowledged, and the log is refused. Without a later frame,
//! the damaged one was being written at the crash, and is removed.

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

impl FileLog {
    pub(super) fn recover_frames(
        &mut self,
        applied: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<(), OpenError>,
    ) -> Result<u64, OpenError> {
        let active = self.active.live(self.seed, applied)?;
        let spare = self.spare.live(self.seed, applied)?;
        let mut parts: Vec<_> = [(active, &mut self.active), (spare, &mut self.spare)]
            .into_iter()
            .filter_map(|(live, part)| live.map(|live| (live, part)))
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
        for (live, part) in parts {
            part.each(self.seed, &live, each)?;
        }
        for part in [&mut self.active, &mut self.spare] {
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

    pub(super) fn has_live(&mut self, seed: u64, applied: u64) -> Result<bool, OpenError> {
        Ok(self.live(seed, applied)?.is_some())
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

    /// The frames after batch `applied`. A frame that the host was writing when it died is cut off.
    fn live(&mut self, seed: u64, applied: u64) -> Result<Option<Live>, OpenError> {
        let mut live: Option<Live> = None;
        let (mut offset, mut before, mut payload) = (FRAMES, None, Vec::new());
        let mut torn = false;
        while let Some(header) = self.header(seed, offset)? {
            if before.is_some_and(|before| header.batch != before + 1) {
                break;
            }
            if !self.payload(seed, offset, &header, &mut payload)? {
                torn = header.batch > applied;
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
        let from = if torn { offset + 1 } else { offset };
        if let Some((batch, at)) = self.later(seed, from, known)? {
            let reason = format!(
                "the bytes at {offset}, where batch {} or a later one is expected, cannot be read, but batch {batch} at byte {at} can",
                known + 1
            );
            return Err(self.damaged(reason));
        }
        if torn {
            self.end = offset;
            self.retract().map_err(io_error("write", &self.path))?;
        }
        Ok(live)
    }

    /// The first frame from `from` on that is of a later batch than `known`, and where it is.
    fn later(&mut self, seed: u64, mut from: u64, known: u64) -> Result<Option<(u64, u64)>, OpenError> {
        let magic = memmem::Finder::new(&FRAME_MAGIC);
        let mut bytes = Vec::new();
        while from + HEADER as u64 <= self.size {
            let len = usize::try_from(self.size - from).unwrap_or(usize::MAX).min(SEARCH_BYTES);
            bytes.resize(len, 0);
            self.file.read_at(&mut bytes, from).map_err(io_error("read", &self.path))?;
            for at in magic.find_iter(&bytes) {
                let at = from + at as u64;
                if let Some(header) = self.header(seed, at)?.filter(|header| header.batch > known) {
                    return Ok(Some((header.batch, at)));
                }
            }
            // A magic may stand across the end of what was read.
            from += (len - (FRAME_MAGIC.len() - 1)) as u64;
        }
        Ok(None)
    }

    fn each(&mut self, seed: u64, live: &Live, each: &mut dyn FnMut(&[u8]) -> Result<(), OpenError>) -> Result<(), OpenError> {
        let (mut offset, mut payload) = (live.at, Vec::new());
        for batch in live.first..=live.last {
            let header = self.header(seed, offset)?.filter(|header| header.batch == batch);
            let header = header.ok_or_else(|| self.damaged(format!("batch {batch} at byte {offset} cannot be read back")))?;
            if !self.payload(seed, offset, &header, &mut payload)? {
                return Err(self.damaged(format!("batch {batch} at byte {offset} cannot be read back")));
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
    use crate::store::log::{Log, part_path};

    const SEED: u64 = 42;

    fn recovered(dir: &Path, applied: u64) -> Result<Vec<Vec<u8>>, OpenError> {
        let mut payloads = Vec::new();
        FileLog::open(dir, SEED, None)?.recover(applied, &mut |payload| {
            payloads.push(payload.to_vec());
            Ok(())
        })?;
        Ok(payloads)
    }

    fn written(dir: &Path, payloads: &[&[u8]]) -> FileLog {
        let mut log = FileLog::create(dir, SEED, 300, 0, None).unwrap();
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
                let error = recovered(dir.path(), 0).unwrap_err().to_string();
                let place = format!("the bytes at {}, where batch {} or", starts[damaged], damaged + 1);
                assert!(error.contains(&place) && error.contains("ledger-1.wal"), "damaged at {at}: {error}");
                let later = format!("batch {} at byte {}", damaged + 2, starts[damaged + 1]);
                assert!(error.contains(&later), "damaged at {at}: {error}");
            }
        }
        for at in starts[3]..starts[3] + 38 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert_eq!(recovered(dir.path(), 0).unwrap().len(), 3, "damaged at {at}");
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
        bytes[FRAMES as usize + 40] ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = recovered(dir.path(), 0).unwrap_err().to_string();
        assert!(error.contains("ledger-2.wal") && error.contains("begins with batch 3") && error.contains("batch 1"), "{error}");
        assert_eq!(recovered(dir.path(), 2).unwrap(), [b"third"]);
    }

    #[test]
    fn frames_of_the_rounds_before_are_not_applied() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = FileLog::create(dir.path(), SEED, 600, 0, None).unwrap();
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

    #[test]
    fn a_removed_frame_is_not_damage_later() {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path(), &[b"first", b"second"]);
        let path = part_path(dir.path(), 1);
        let mut bytes = fs::read(&path).unwrap();
        bytes[FRAMES as usize + 37 + 32] ^= 1;
        fs::write(&path, bytes).unwrap();
        // The payload of batch 2 is torn; its number is given again, in a place before.
        let mut log = FileLog::open(dir.path(), SEED, None).unwrap();
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
        fs::write(&path, bytes).unwrap();
        assert_eq!(recovered(dir.path(), 0).unwrap(), [b"first"]);
    }
}
