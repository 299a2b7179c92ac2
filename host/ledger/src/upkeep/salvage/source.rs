//! The damaged ledger: as much of `ledger.redb` as can be opened, and the batches that the log has.

use std::{collections::BTreeMap, io, path::Path, sync::Arc};

use redb::{Builder, ConcurrencyMode, ReadOnlyDatabase};

use super::Missing;
use crate::{
    boundary::guarded,
    error::{LedgerError, OpenError},
    rows::{FORMAT, Reader, Table, View, meta, read_number},
    store::{
        Identity, PARTS, create, database_path, identity_path, io_error, legacy_batches, legacy_path, part_path, readable_batches,
    },
    upkeep::{backup::BackupError, compact::CACHE_BYTES, damaged_file::DamagedFile},
};

/// Bytes of a file of redb that say where everything is: 64 for what never changes, and two slots of 128 for the last commits.
const HEADER: usize = 320;
/// Bytes of the header that never change.
const GEOMETRY: usize = 64;
/// Byte with the flags of the header.
const FLAGS: usize = 9;
/// The flag that says which slot counts.
const SLOT: u8 = 1;

/// The readable part of a ledger.
pub(super) struct Source {
    pub(super) reader: Option<Reader>,
    /// Version of the rows.
    pub(super) format: u32,
    /// Batches of the log that the reader does not have, by their numbers.
    pub(super) batches: BTreeMap<u64, Vec<u8>>,
    file: Option<DamagedFile>,
}

/// The fields of `meta` of a store, as far as they can be read.
#[derive(Default)]
struct StoreMeta {
    format: Option<u32>,
    seed: Option<u64>,
    applied: Option<u64>,
}

impl Source {
    /// Opens what is in `from`, and lists what is not. `work` is a folder for a new store, which shows how a header begins.
    pub(super) fn open(from: &Path, work: &Path, missing: &mut Vec<Missing>) -> Result<Self, BackupError> {
        let path = database_path(from);
        let identity = Identity::read(from).map_err(io_error("read", &identity_path(from)))?;
        let file = match DamagedFile::open(&path) {
            Ok(file) if file.stored() > 0 => Some(file),
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io_error("open", &path)(error).into()),
        };
        let is_there =
            file.is_some() || PARTS.iter().map(|part| part_path(from, *part)).chain([legacy_path(from)]).any(|log| log.exists());
        if !is_there {
            return Err(OpenError::NoLedger { dir: from.to_owned() }.into());
        }
        let reader = match &file {
            Some(file) => {
                file.not_in_use(from)?;
                open_reader(file, &path, work, missing)?
            }
            None => {
                missing.push(Missing::new("store", "ledger.redb", "it is missing or empty; the log has only the last batches"));
                None
            }
        };
        let meta = reader.as_ref().map(StoreMeta::read).unwrap_or_default();
        if let Some(found) = meta.format.filter(|format| *format > FORMAT) {
            return Err(OpenError::NewerFormat { dir: from.to_owned(), found, supported: FORMAT }.into());
        }
        if reader.is_some() && (meta.format.is_none() || meta.seed.is_none() || meta.applied.is_none()) {
            missing.push(Missing::new("table", "meta", "it cannot be read"));
        }
        let mut source = Self { reader, format: meta.format.unwrap_or(FORMAT), batches: BTreeMap::new(), file };
        match meta.seed.or(identity.map(|identity| identity.seed)) {
            Some(seed) => source.take_batches(from, seed, meta.applied, identity, missing)?,
            None => missing.push(Missing::new(
                "log",
                "ledger-1.wal, ledger-2.wal",
                "their key is in ledger.redb and in ledger.identity, and neither can be read",
            )),
        }
        Ok(source)
    }

    /// Bytes of the store that the disk did not give.
    pub(super) fn unreadable(&self) -> u64 {
        self.file.as_ref().map_or(0, DamagedFile::unreadable)
    }

    /// The batches after `applied`, and the numbers of those that are missing.
    fn take_batches(
        &mut self,
        from: &Path,
        seed: u64,
        applied: Option<u64>,
        identity: Option<Identity>,
        missing: &mut Vec<Missing>,
    ) -> Result<(), BackupError> {
        let known = applied.unwrap_or(0);
        let mut batches = BTreeMap::new();
        let mut keep = |batch: u64, payload: &[u8]| {
            if batch > known {
                batches.insert(batch, payload.to_vec());
            }
        };
        let parts = PARTS.iter().map(|part| (part_path(from, *part), false));
        for (path, is_legacy) in parts.chain([(legacy_path(from), true)]) {
            let file = match DamagedFile::open(&path) {
                Ok(file) => file,
                // Older and newer formats have other files.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(io_error("open", &path)(error).into()),
            };
            let mut bytes = vec![0; usize::try_from(file.stored()).unwrap_or(usize::MAX)];
            file.take(0, &mut bytes);
            if file.unreadable() > 0 {
                missing.push(Missing::new(
                    "log",
                    path.display(),
                    format!("{} bytes cannot be read from the disk", file.unreadable()),
                ));
            }
            if is_legacy {
                legacy_batches(seed, &path, &bytes, &mut keep)?;
            } else {
                readable_batches(seed, &bytes, &mut keep);
            }
        }
        let mut expected = known + 1;
        let mut gap = |expected: u64, next: u64| {
            if next > expected {
                let numbers = if next == expected + 1 { expected.to_string() } else { format!("{expected} to {}", next - 1) };
                missing.push(Missing::new("batch", numbers, "the log does not have it in a state that can be read"));
            }
        };
        for batch in batches.keys() {
            gap(expected, *batch);
            expected = batch + 1;
        }
        // Batches that redb had are not in the log any more.
        gap(expected, identity.map_or(0, |identity| identity.last) + 1);
        self.batches = batches;
        Ok(())
    }
}

/// Opens the store for reading: as it is, at the commit before, and with the first bytes of a new store.
fn open_reader(file: &DamagedFile, path: &Path, work: &Path, missing: &mut Vec<Missing>) -> Result<Option<Reader>, BackupError> {
    if file.check_pages().is_err() {
        let reason = "some of its pages do not have the checksum that they were written with: rows can be missing or changed";
        missing.push(Missing::new("store", path.display(), reason));
    }
    let mut header = [0; HEADER];
    file.with_start(&[]).take(0, &mut header);
    let mut fresh = [0; GEOMETRY];
    fresh_file(work)?.take(0, &mut fresh);
    let mut first = None;
    for (is_fresh, other_slot) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut start = header;
        let flags = header.get(FLAGS).copied().unwrap_or_default();
        if let Some(place) = start.get_mut(..GEOMETRY).filter(|_| is_fresh) {
            place.copy_from_slice(&fresh);
        }
        // Of the flags only the slot counts: nothing is repaired here.
        if let Some(place) = start.get_mut(FLAGS) {
            *place = (flags & SLOT) ^ u8::from(other_slot);
        }
        let Some(reader) = read_only(file.with_start(&start)) else { continue };
        let is_whole = StoreMeta::read(&reader).seed.is_some();
        if is_whole {
            first = Some((reader, other_slot));
            break;
        }
        first = first.or(Some((reader, other_slot)));
    }
    let Some((reader, other_slot)) = first else {
        missing.push(Missing::new("store", path.display(), "nothing of it can be read: restore a backup if there is one"));
        return Ok(None);
    };
    if other_slot {
        missing.push(Missing::new("store", path.display(), "its last commit cannot be read; the one before is taken"));
    }
    Ok(Some(reader))
}

fn fresh_file(work: &Path) -> Result<DamagedFile, BackupError> {
    let path = work.join("new.redb");
    let database = Builder::new().create(&path).map_err(|error| io_error("make", &path)(io::Error::other(error.to_string())))?;
    create(work, &database)?;
    database.close().map_err(LedgerError::damaged)?;
    let file = DamagedFile::open(&path).map_err(io_error("read", &path))?;
    std::fs::remove_file(&path).map_err(io_error("remove", &path))?;
    Ok(file)
}

fn read_only(file: DamagedFile) -> Option<Reader> {
    // In this mode redb needs neither the state of its allocator nor the length of the file.
    let database: ReadOnlyDatabase = guarded(|| {
        Builder::new()
            .set_cache_size(CACHE_BYTES)
            .set_concurrency_mode(ConcurrencyMode::SingleWriter)
            .open_read_only_with_backend(file)
    })
    .ok()?
    .ok()?;
    let view = View::of(&database).ok()?;
    Table::ALL.iter().any(|table| view.table(*table).is_ok()).then(|| Reader::new(Arc::new(view)))
}

impl StoreMeta {
    fn read(reader: &Reader) -> Self {
        let number = |key: &[u8]| reader.get(Table::Meta, key, |row| Ok(read_number(row))).ok().flatten().flatten();
        Self {
            format: number(meta::FORMAT).map(|format| u32::try_from(format).unwrap_or(u32::MAX)),
            seed: number(meta::LOG_SEED),
            applied: number(meta::APPLIED_BATCH),
        }
    }
}
