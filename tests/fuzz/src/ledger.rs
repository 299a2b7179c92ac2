//! The files of a ledger.

use agent_host_ledger::fuzz::{FramePlace, MemoryLog, is_row_of, read_payload, table_count};
use arbitrary::{Result, Unstructured};

/// Batches of a log.
const MAX_BATCHES: usize = 12;
/// Largest payload of a batch.
const MAX_PAYLOAD: usize = 300;
/// Room of a part of the log.
const PART_BYTES: u64 = 8 * 1024;
/// Changed places of a log.
const MAX_CHANGES: usize = 40;
/// Bytes of a frame before its payload.
const HEADER: usize = 32;

/// A log with some damage: what is recovered is a part of what was written, from its beginning, and no batch is silently lost
/// whose frame is whole.
pub(crate) fn log(data: &[u8]) {
    // An input that is too short is another, shorter log.
    let _ = damaged_log(&mut Unstructured::new(data));
}

fn damaged_log(data: &mut Unstructured<'_>) -> Result<()> {
    let seed = data.arbitrary()?;
    let count = data.int_in_range(0..=MAX_BATCHES)?;
    let mut payloads = Vec::with_capacity(count);
    for _ in 0..count {
        let len = data.int_in_range(0..=MAX_PAYLOAD)?;
        payloads.push(data.bytes(len.min(data.len()))?.to_vec());
    }
    let second = data.int_in_range(0..=count)?;
    let applied = data.int_in_range(0..=count)?;
    let mut log = MemoryLog::write(seed, PART_BYTES, &payloads, second).expect("the parts have room for the payloads");
    let all = log.recover(applied as u64).expect("a log without damage is recovered");
    assert!(all == payloads[applied..], "a log without damage is recovered whole");

    let whole = [log.part(0), log.part(1)];
    let mut damaged = whole.clone();
    for _ in 0..data.int_in_range(1..=MAX_CHANGES)? {
        change(data, &mut damaged, &log.frames)?;
    }
    for (part, bytes) in damaged.iter().enumerate() {
        log.set_part(part, bytes.clone());
    }
    let Ok(found) = log.recover(applied as u64) else { return Ok(()) };
    let expected = &payloads[applied..];
    assert!(found.len() <= expected.len(), "batches are recovered that nobody wrote");
    assert!(found == expected[..found.len()], "a batch is recovered with another content, or in another order");
    let lost: Vec<_> = log.frames[applied + found.len()..].iter().collect();
    let differs = |part: usize, range: std::ops::Range<usize>| whole[part].get(range.clone()) != damaged[part].get(range);
    for (index, frame) in lost.iter().enumerate() {
        let header = frame.bytes.start..frame.bytes.start + HEADER;
        // The payload of the first lost batch may be torn: it was being written. A frame behind it is found by its header.
        let range = if index == 0 { frame.bytes.clone() } else { header };
        assert!(differs(frame.part, range), "a batch whose frame is whole is lost without an error: {index} of {lost:?}");
    }
    // What was recovered is there for the next opening too.
    assert!(log.recover(applied as u64).is_ok_and(|again| again == found), "a second recovery gives something else");
    Ok(())
}

fn change(data: &mut Unstructured<'_>, parts: &mut [Vec<u8>; 2], frames: &[FramePlace]) -> Result<()> {
    let (part, at) = match frames.len().checked_sub(1) {
        Some(last) if data.ratio(7, 8)? => {
            let frame = &frames[data.int_in_range(0..=last)?];
            (frame.part, data.int_in_range(frame.bytes.start..=frame.bytes.end.saturating_sub(1))?)
        }
        _ => {
            let part = data.int_in_range(0..=1)?;
            (part, data.int_in_range(0..=parts[part].len().saturating_sub(1))?)
        }
    };
    let bytes = &mut parts[part];
    match data.int_in_range(0..=9)? {
        0..=5 => {
            let new = data.arbitrary()?;
            bytes.get_mut(at).into_iter().for_each(|byte| *byte = new);
        }
        6 | 7 => {
            let end = at.saturating_add(data.int_in_range(1..=600)?).min(bytes.len());
            bytes.get_mut(at..end).into_iter().for_each(|bytes| bytes.fill(0));
        }
        8 => {
            // A piece of the log in another place, as a disk does it that writes a sector to the wrong one.
            let (from, len) = (data.int_in_range(0..=bytes.len().saturating_sub(1))?, data.int_in_range(1..=600)?);
            if at < bytes.len() {
                let len = len.min(bytes.len() - from.max(at));
                bytes.copy_within(from..from + len, at);
            }
        }
        _ => bytes.truncate(at),
    }
    Ok(())
}

/// The payload of a batch, and rows of each table.
pub(crate) fn rows(data: &[u8]) {
    let found = read_payload(data);
    assert!(found.rows <= found.changes && found.changes <= data.len(), "{found:?}");
    if let [table, key_len, rest @ ..] = data {
        let (key, value) = rest.split_at(usize::from(*key_len).min(rest.len()));
        let table = usize::from(*table) % (table_count() + 1);
        let _ = is_row_of(u8::try_from(table).unwrap_or(u8::MAX), key, value);
    }
}
