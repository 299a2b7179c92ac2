//! Files beside the store: blobs, and what the disk has left.

mod blobs;
mod disk;

pub use blobs::{Blob, BlobReader, BlobWriter};
pub(crate) use blobs::{BlobCopies, Blobs, Pin, blob_totals, blobs_path, each_blob, path_of, size_of, unreadable};
pub(crate) use disk::{Disk, DiskNeed, free_in};
