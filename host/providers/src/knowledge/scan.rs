//! The files of an addition.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use agent_host_protocol::hex;
use sha2::{Digest, Sha256};
use walkdir::WalkDir;

use super::{error::KnowledgeError, extract::Kind, report::FileFailure};

/// Folders nest so deep at most.
const MAX_DEPTH: usize = 64;
/// Paths are in answers and records, which are JSON.
const NO_TEXT: &str = "its name is not valid UTF-8: rename it";

/// A file that is to be taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The one name of the file on this machine.
    pub(crate) source: PathBuf,
    /// Below the folder that was named, with `/`.
    pub(crate) path: String,
    /// Format by the name of the file.
    pub(crate) kind: Option<Kind>,
    /// True if the file was named directly.
    pub(crate) named: bool,
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// By source.
    pub(crate) files: BTreeMap<PathBuf, Candidate>,
    /// The folders that were named.
    pub(crate) roots: Vec<PathBuf>,
    /// Unreadable folders. Files below them are neither found nor missing.
    pub(crate) failed: Vec<FileFailure>,
}

/// Finds the files of paths. Hidden files and links below a folder do not count; what links lead to within the folder is
/// found without them.
pub(crate) fn scan(paths: &[PathBuf]) -> Result<Scan, KnowledgeError> {
    let mut scan = Scan::default();
    for path in paths {
        let wrong = |reason: String| KnowledgeError::Path { path: path.clone(), reason };
        let root = fs::canonicalize(path).map_err(|error| wrong(error.to_string()))?;
        if root.to_str().is_none() {
            return Err(wrong(NO_TEXT.into()));
        }
        let kind = fs::metadata(&root).map_err(|error| wrong(error.to_string()))?;
        if kind.is_file() {
            let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let candidate = Candidate { kind: Kind::of_name(&root), path: name, source: root.clone(), named: true };
            // The path below a folder says more, and being named counts.
            scan.files.entry(root).and_modify(|known| known.named = true).or_insert(candidate);
        } else if kind.is_dir() {
            scan.folder(&root);
            scan.roots.push(root);
        } else {
            return Err(wrong("it is neither a file nor a folder".into()));
        }
    }
    Ok(scan)
}

impl Scan {
    fn folder(&mut self, root: &Path) {
        let walk = WalkDir::new(root).follow_links(false).max_depth(MAX_DEPTH).sort_by_file_name().into_iter();
        for entry in walk.filter_entry(|entry| entry.depth() == 0 || !entry.file_name().as_encoded_bytes().starts_with(b".")) {
            match entry {
                Ok(entry) if entry.file_type().is_file() => {
                    let source = entry.into_path();
                    if source.to_str().is_none() {
                        let path = PathBuf::from(source.to_string_lossy().into_owned());
                        self.failed.push(FileFailure { path, reason: NO_TEXT.into() });
                        continue;
                    }
                    let below = source.strip_prefix(root).unwrap_or(&source);
                    let path = below.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
                    let named = self.files.get(&source).is_some_and(|known| known.named);
                    let candidate = Candidate { kind: Kind::of_name(&source), path, source: source.clone(), named };
                    self.files.insert(source, candidate);
                }
                Ok(_) => {}
                Err(error) => {
                    let path = PathBuf::from(error.path().unwrap_or(root).to_string_lossy().into_owned());
                    let reason = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
                    self.failed.push(FileFailure { path, reason });
                }
            }
        }
    }

    /// True if a file that was not found has gone from one of the folders.
    pub(crate) fn misses(&self, source: &Path) -> bool {
        self.roots.iter().any(|root| source.starts_with(root))
            && !self.files.contains_key(source)
            && !self.failed.iter().any(|failure| source.starts_with(&failure.path))
    }
}

/// The id of a document: 32 hexadecimal digits, of the knowledge base and the one name of the file.
pub(crate) fn document_id(kb_id: &str, source: &Path) -> String {
    let mut digest = Sha256::new();
    digest.update(kb_id.as_bytes());
    digest.update([0]);
    digest.update(source.as_os_str().as_encoded_bytes());
    hex::encode(digest.finalize().get(..16).unwrap_or_default())
}
