//! The corpus of a target: small files that are in the tree.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The folder of the corpus of a target.
#[must_use]
pub fn corpus_dir(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// The inputs of a target, in the order of their names. Files that end with `.wat` are components as text.
///
/// # Panics
/// If the folder cannot be read.
#[must_use]
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = corpus_dir(target);
    let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| input(path, fs::read(path).unwrap())).collect()
}

#[cfg(feature = "host")]
fn input(path: &Path, bytes: Vec<u8>) -> Vec<u8> {
    if path.extension().is_some_and(|extension| extension == "wat") {
        return wat::parse_bytes(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into_owned();
    }
    bytes
}

#[cfg(not(feature = "host"))]
fn input(_: &Path, bytes: Vec<u8>) -> Vec<u8> {
    bytes
}
