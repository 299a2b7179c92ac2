//! A ledger from a backup.

use std::{fs, io, path::Path};

use serde::Serialize;

use crate::{
    digest::parse_hex,
    files::blobs_path,
    rows::FORMAT,
    store::database_path,
    upkeep::{
        backup::{
            BACKUP_FORMAT, BackupError, BackupManifest, UnfinishedFolder, copy, digest_of, files_in, io_failed, make_dir,
            manifest_path, sync,
        },
        check::check,
    },
};

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// Manifest of the backup.
    pub backup: BackupManifest,
    /// Files beside the ledger that were put where they belong; those that were there already are not counted.
    pub files: u64,
}

/// Puts the ledger of a backup where there is none, and the folders beside it. The backup is read only: its store and each
/// of its blobs are compared with their digests, and the copy is checked as [`check`] does, before it gets its name. Killed
/// at any moment, there is a whole ledger or none.
///
/// # Errors
/// [`BackupError::LedgerThere`], [`BackupError::NotABackup`], [`BackupError::Damaged`], and those of the file system.
pub fn restore(
    from: impl AsRef<Path>,
    dir: impl AsRef<Path>,
    mut progress: impl FnMut(f64),
) -> Result<RestoreReport, BackupError> {
    let (from, dir) = (from.as_ref(), dir.as_ref());
    let manifest = read_manifest(from)?;
    let is_empty = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(io_failed("read", dir)(error)),
    };
    if !is_empty {
        return Err(BackupError::LedgerThere { dir: dir.to_owned() });
    }
    let damaged = |reason: String| BackupError::Damaged { path: from.to_owned(), reason };
    let unfinished = UnfinishedFolder::begin(dir)?;
    let source = from.join("ledger");
    let store = database_path(&unfinished.path);
    copy(&database_path(&source), &store)?;
    if digest_of(&store)? != (manifest.store_sha256.clone(), manifest.store_bytes) {
        return Err(damaged("ledger.redb is not the file that was written: its digest is another".to_owned()));
    }
    restore_blobs(&blobs_path(&source), &blobs_path(&unfinished.path), &manifest, from)?;
    let report = check(&unfinished.path, &mut progress)?;
    if !report.is_ok() {
        let first = report.findings.first().map_or_else(|| "pages are not intact".to_owned(), ToString::to_string);
        return Err(damaged(format!("{} findings, first: {first}", report.findings_count)));
    }
    // First what runs of the ledger need, then the ledger.
    let mut files = 0;
    for name in &manifest.beside {
        let to = dir.parent().unwrap_or(Path::new(".")).join(name);
        files += add_files(&from.join(name), &to)?;
    }
    unfinished.name(dir)?;
    Ok(RestoreReport { backup: manifest, files })
}

fn read_manifest(from: &Path) -> Result<BackupManifest, BackupError> {
    let not_a_backup = |reason: String| BackupError::NotABackup { path: from.to_owned(), reason };
    let text = fs::read(manifest_path(from)).map_err(|error| not_a_backup(format!("backup.json cannot be read: {error}")))?;
    let manifest: BackupManifest =
        serde_json::from_slice(&text).map_err(|error| not_a_backup(format!("backup.json: {error}")))?;
    if manifest.backup_format > BACKUP_FORMAT || manifest.ledger_format > FORMAT {
        return Err(not_a_backup(format!(
            "agent-host {} made it, in a format that this one does not know: use that one",
            manifest.agent_host
        )));
    }
    // The name becomes the name of a folder.
    let is_name = |name: &String| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase());
    match manifest.beside.iter().find(|name| !is_name(name)) {
        Some(name) => Err(not_a_backup(format!("backup.json names {name:?} as a folder"))),
        None => Ok(manifest),
    }
}

/// Copies blobs, each compared with its name.
fn restore_blobs(from: &Path, to: &Path, manifest: &BackupManifest, backup: &Path) -> Result<(), BackupError> {
    let damaged = |reason: String| BackupError::Damaged { path: backup.to_owned(), reason };
    make_dir(to)?;
    let mut count = 0;
    for shard in fs::read_dir(from).map_err(io_failed("read", from))? {
        let shard = shard.map_err(io_failed("read", from))?.path();
        let Some(folder) = shard.file_name().filter(|_| shard.is_dir()) else { continue };
        let folder = to.join(folder);
        make_dir(&folder)?;
        for file in files_in(&shard)? {
            let Some(name) = file.file_name().and_then(|name| name.to_str()).filter(|name| parse_hex(name).is_some()) else {
                continue;
            };
            let path = folder.join(name);
            copy(&file, &path)?;
            if digest_of(&path)?.0 != name {
                return Err(damaged(format!("the blob {name} has another content")));
            }
            count += 1;
        }
        sync(&folder)?;
    }
    if count != manifest.blobs {
        return Err(damaged(format!("it has {count} blobs, and had {}", manifest.blobs)));
    }
    sync(to)
}

/// Copies the files that are not there yet. Gives how many.
fn add_files(from: &Path, to: &Path) -> Result<u64, BackupError> {
    make_dir(to)?;
    let mut added = 0;
    for file in files_in(from)? {
        let Some(name) = file.file_name() else { continue };
        let path = to.join(name);
        if path.exists() {
            continue;
        }
        let partial = path.with_extension("partial-restore");
        copy(&file, &partial)?;
        fs::rename(&partial, &path).map_err(io_failed("name", &path))?;
        added += 1;
    }
    sync(to)?;
    Ok(added)
}
