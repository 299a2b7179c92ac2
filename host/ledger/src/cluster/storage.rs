//! Contents of blobs and of pieces of snapshots in an object store, so that the database has only their names.
//!
//! | object below the prefix | content |
//! |---|---|
//! | `cluster.json` | the name of the cluster, which tells its objects from those of another one |
//! | `blobs/ab/abcdef…` | a blob, by its SHA-256 |
//! | `pieces/ab/abcdef…` | a piece of snapshots, by its SHA-256 |
//!
//! The ledger is written by threads that wait, and the library of the object stores is asynchronous: it has a small runtime of its own.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::PathBuf,
    sync::{Arc, mpsc},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::{
    ObjectStore, ObjectStoreExt, PutPayload, RetryConfig, aws::AmazonS3Builder, azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder, local::LocalFileSystem, path::Path,
};
use sha2::{Digest as _, Sha256};
use tokio::runtime::{Builder, Runtime};
use url::Url;

use crate::{
    cluster::schema::FIRST_PARTITION,
    cluster_error::ClusterError,
    digest::{Digest, hex, parse_hex},
    files::BlobCopies,
};

/// Bytes of a request that sends a part of a content. Stores take parts from 5 MiB on.
const PART: usize = 8 * 1024 * 1024;
/// Time for one operation, with its retries.
const PATIENCE: Duration = Duration::from_secs(20);
/// Characters of the reason that a store gives.
const REASON: usize = 300;
/// The object that names the cluster.
const MARK: &str = "cluster.json";
const BLOBS: &str = "blobs";
const PIECES: &str = "pieces";

/// The address of an object store and a prefix in it: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, or
/// `file:///FOLDER`. Credentials are no part of it: they are in the environment, or the machine has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageAddress(Url);

impl StorageAddress {
    /// Reads an address.
    ///
    /// # Errors
    /// [`ClusterError::NoStorageAddress`].
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        let error =
            |address: &str, reason: &str| ClusterError::NoStorageAddress { address: address.into(), reason: reason.into() };
        // Not quoted, also where the rest is no URL: a password may be in it.
        if text.contains(['@', '?', '#']) {
            return Err(error("…", "it has credentials or a query, and those belong into the environment"));
        }
        let wrong = |reason: &str| error(text, reason);
        let url = Url::parse(text.trim_end_matches('/')).map_err(|error| wrong(&error.to_string()))?;
        match (url.scheme(), url.host_str()) {
            ("file", None) if url.path().len() < 2 => Err(wrong("the path of the folder is missing")),
            ("s3" | "gs" | "az", None) => Err(wrong("the name of the bucket is missing")),
            ("file", Some(_)) => Err(wrong("the path of a folder begins with a third slash")),
            ("s3" | "gs" | "az", Some(_)) | ("file", None) => Ok(Self(url)),
            _ => Err(wrong("no store has this scheme")),
        }
    }
}

impl std::fmt::Display for StorageAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_str().fmt(f)
    }
}

/// A connection to the object store of a cluster.
pub(crate) struct ObjectStorage {
    address: StorageAddress,
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// `None` only while this is dropped.
    runtime: Option<Runtime>,
}

impl Drop for ObjectStorage {
    fn drop(&mut self) {
        // Dropping it would wait, which an asynchronous caller may not.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The reason of a store, in one line of bounded length.
fn reason_of(error: &object_store::Error) -> String {
    let text = match error {
        object_store::Error::Unauthenticated { .. } => "it refuses the credentials of this host".to_owned(),
        object_store::Error::PermissionDenied { .. } => "the credentials of this host may not do that there".to_owned(),
        error => error.to_string(),
    };
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(REASON) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// The store of an address, and the prefix in it.
fn store_of(url: &Url) -> object_store::Result<(Arc<dyn ObjectStore>, Path)> {
    let retry = RetryConfig { retry_timeout: PATIENCE, ..RetryConfig::default() };
    let prefix = Path::from_url_path(url.path())?;
    Ok(match url.scheme() {
        "s3" => (Arc::new(AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(retry).build()?), prefix),
        "gs" => (Arc::new(GoogleCloudStorageBuilder::from_env().with_url(url.as_str()).with_retry(retry).build()?), prefix),
        "az" => (Arc::new(MicrosoftAzureBuilder::from_env().with_url(url.as_str()).with_retry(retry).build()?), prefix),
        _ => {
            let folder = url.to_file_path().unwrap_or_else(|()| PathBuf::from(url.path()));
            (Arc::new(LocalFileSystem::new_with_prefix(folder)?.with_fsync(true)), Path::default())
        }
    })
}

impl ObjectStorage {
    /// Opens the store, without a request.
    ///
    /// # Errors
    /// [`ClusterError::Storage`] where an address or a credential is not complete.
    pub(crate) fn open(address: &StorageAddress) -> Result<Self, ClusterError> {
        let failed = |reason: String| ClusterError::Storage { address: address.to_string(), reason };
        let (store, prefix) = store_of(&address.0).map_err(|error| failed(reason_of(&error)))?;
        // Last: what is dropped by an error after it would wait.
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("object-store").enable_all().build();
        let runtime = runtime.map_err(|error| failed(error.to_string()))?;
        Ok(Self { address: address.clone(), store, prefix, runtime: Some(runtime) })
    }

    /// Executes an operation on the runtime of the store and waits for it.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> object_store::Result<T> {
        let ended = |reason: &'static str| object_store::Error::Generic { store: "object store", source: reason.into() };
        let runtime = self.runtime.as_ref().ok_or_else(|| ended("the host ends"))?;
        let (done, result) = mpsc::sync_channel(1);
        runtime.spawn(async move {
            // Nobody waits any more only where the host ends.
            let _ = done.send(work.await);
        });
        result.recv().map_err(|_| ended("the operation was given up"))?
    }

    /// The failure as a client may read it; the operator's log has the address and the words of the store.
    fn failed(&self, error: &object_store::Error) -> io::Error {
        tracing::warn!(address = %self.address, reason = reason_of(error), "the object store of the cluster does not do what it is asked");
        io::Error::other("the object store does not do what it is asked")
    }

    fn path(&self, kind: &str, digest: &Digest) -> Path {
        let name = hex(digest);
        let shard = name.get(..2).unwrap_or_default().to_owned();
        self.prefix.clone().join(kind).join(shard).join(name)
    }

    fn put(&self, path: Path, content: Bytes) -> object_store::Result<()> {
        let store = Arc::clone(&self.store);
        self.wait(async move { store.put(&path, PutPayload::from_bytes(content)).await.map(drop) })
    }

    /// The content of an object. `None` where there is none.
    fn get(&self, path: Path) -> object_store::Result<Option<Bytes>> {
        let store = Arc::clone(&self.store);
        let got = self.wait(async move { store.get(&path).await?.bytes().await });
        found(got)
    }

    fn remove(&self, path: Path) -> object_store::Result<()> {
        let store = Arc::clone(&self.store);
        found(self.wait(async move { store.delete(&path).await })).map(drop)
    }

    /// Bytes of an object. `None` where there is none.
    fn size(&self, path: Path) -> object_store::Result<Option<u64>> {
        let store = Arc::clone(&self.store);
        found(self.wait(async move { store.head(&path).await.map(|meta| meta.size) }))
    }

    /// Sends a file in parts.
    fn put_file(&self, path: Path, mut file: File) -> io::Result<()> {
        let failed = |error: object_store::Error| self.failed(&error);
        let mut part = read_part(&mut file)?;
        if part.len() < PART {
            return self.put(path, part).map_err(failed);
        }
        let store = Arc::clone(&self.store);
        let mut upload = self.wait(async move { store.put_multipart(&path).await }).map_err(failed)?;
        let sent = loop {
            if part.is_empty() {
                break Ok(());
            }
            let sending = upload.put_part(PutPayload::from_bytes(part));
            if let Err(error) = self.wait(sending) {
                break Err(failed(error));
            }
            match read_part(&mut file) {
                Ok(next) => part = next,
                Err(error) => break Err(error),
            }
        };
        match sent {
            Ok(()) => self.wait(async move { upload.complete().await.map(drop) }).map_err(failed),
            Err(error) => {
                // The parts that are there are the store's to remove where this fails too.
                let _ = self.wait(async move { upload.abort().await });
                Err(error)
            }
        }
    }

    /// Writes an object to a file; gives its bytes. `None` where there is none.
    fn get_file(&self, path: Path, to: &File) -> io::Result<Option<u64>> {
        let store = Arc::clone(&self.store);
        let mut to = to.try_clone()?;
        let got = self.wait(async move {
            let mut stream = store.get(&path).await?.into_stream();
            let mut written = 0u64;
            while let Some(bytes) = stream.try_next().await? {
                let put = to.write_all(&bytes);
                put.map_err(|error| object_store::Error::Generic { store: "file", source: error.into() })?;
                written += bytes.len() as u64;
            }
            Ok(written)
        });
        found(got).map_err(|error| self.failed(&error))
    }

    /// The mark of the cluster with this key of its log.
    fn mark(seed: u64) -> Bytes {
        let name = hex(&Sha256::digest([b"agent-host cluster ".as_slice(), &seed.to_be_bytes()].concat()).into());
        format!("{{\"cluster\":\"{name}\"}}\n").into()
    }

    fn storage_error(&self, error: &object_store::Error) -> ClusterError {
        ClusterError::Storage { address: self.address.to_string(), reason: reason_of(error) }
    }

    /// Gives the place to the cluster with this key of its log, which is being made.
    ///
    /// # Errors
    /// [`ClusterError::ForeignStorage`] where it is another's.
    pub(crate) fn claim(&self, seed: u64) -> Result<(), ClusterError> {
        let mark = self.prefix.clone().join(MARK);
        if self.get(mark.clone()).map_err(|error| self.storage_error(&error))?.is_some() {
            return Err(ClusterError::ForeignStorage { address: self.address.to_string() });
        }
        self.put(mark, Self::mark(seed)).map_err(|error| self.storage_error(&error))
    }

    /// Takes back what [`Self::claim`] did.
    pub(crate) fn release(&self) {
        if let Err(error) = self.remove(self.prefix.clone().join(MARK)) {
            tracing::warn!(address = %self.address, reason = reason_of(&error), "an object store keeps the mark of a cluster that was not made");
        }
    }

    /// Checks that the place is that of the cluster.
    ///
    /// # Errors
    /// [`ClusterError::ForeignStorage`], [`ClusterError::NoStorage`].
    pub(crate) fn check(&self, seed: u64) -> Result<(), ClusterError> {
        match self.get(self.prefix.clone().join(MARK)).map_err(|error| self.storage_error(&error))? {
            Some(mark) if mark == Self::mark(seed) => Ok(()),
            Some(_) => Err(ClusterError::ForeignStorage { address: self.address.to_string() }),
            None => Err(ClusterError::NoStorage { address: self.address.to_string() }),
        }
    }

    /// Sends a piece of a snapshot.
    pub(crate) fn put_piece(&self, digest: &Digest, content: Vec<u8>) -> Result<(), ClusterError> {
        self.put(self.path(PIECES, digest), content.into()).map_err(|error| self.storage_error(&error))
    }

    /// Bytes of a piece of a snapshot. `None` where it is not there.
    pub(crate) fn piece_size(&self, digest: &Digest) -> Result<Option<u64>, ClusterError> {
        self.size(self.path(PIECES, digest)).map_err(|error| self.storage_error(&error))
    }

    /// The content of a piece of a snapshot, whatever it is. `None` where it is not there.
    pub(crate) fn piece(&self, digest: &Digest) -> Result<Option<Bytes>, ClusterError> {
        self.get(self.path(PIECES, digest)).map_err(|error| self.storage_error(&error))
    }

    /// Removes a piece of snapshots.
    pub(crate) fn remove_piece(&self, digest: &Digest) -> Result<(), ClusterError> {
        self.remove(self.path(PIECES, digest)).map_err(|error| self.storage_error(&error))
    }
}

/// `None` for an object that is not there.
fn found<T>(result: object_store::Result<T>) -> object_store::Result<Option<T>> {
    match result {
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        result => result.map(Some),
    }
}

/// The next part of a file; empty at its end.
fn read_part(file: &mut File) -> io::Result<Bytes> {
    let mut part = Vec::new();
    file.take(PART as u64).read_to_end(&mut part)?;
    Ok(part.into())
}

/// The contents of the blobs of one partition.
pub(crate) struct StoredBlobs {
    storage: Arc<ObjectStorage>,
    /// The folder below the prefix.
    folder: String,
}

impl StoredBlobs {
    pub(crate) fn new(storage: Arc<ObjectStorage>, partition: i64) -> Self {
        let folder = if partition == FIRST_PARTITION { BLOBS.to_owned() } else { format!("{BLOBS}-{partition}") };
        Self { storage, folder }
    }
}

impl BlobCopies for StoredBlobs {
    fn has(&self, digest: &Digest) -> io::Result<bool> {
        self.storage
            .size(self.storage.path(&self.folder, digest))
            .map(|size| size.is_some())
            .map_err(|error| self.storage.failed(&error))
    }

    fn put(&self, digest: &Digest, file: File) -> io::Result<()> {
        if self.has(digest)? {
            return Ok(());
        }
        self.storage.put_file(self.storage.path(&self.folder, digest), file)
    }

    fn get(&self, digest: &Digest, to: &File) -> io::Result<Option<u64>> {
        self.storage.get_file(self.storage.path(&self.folder, digest), to)
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.storage.remove(self.storage.path(&self.folder, digest)).map_err(|error| self.storage.failed(&error))
    }

    fn list(&self, older_than_ms: u64) -> io::Result<Vec<Digest>> {
        let store = Arc::clone(&self.storage.store);
        let folder = self.storage.prefix.clone().join(self.folder.as_str());
        let before = SystemTime::now().checked_sub(Duration::from_millis(older_than_ms)).unwrap_or(SystemTime::UNIX_EPOCH);
        let list = self.storage.wait(async move {
            let objects = store.list(Some(&folder)).try_filter_map(|object| async move {
                let is_old = SystemTime::from(object.last_modified) < before;
                let name = object.location.filename().filter(|_| is_old);
                Ok(name.and_then(parse_hex))
            });
            objects.boxed().try_collect().await
        });
        list.map_err(|error| self.storage.failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_store_and_no_credentials() {
        for good in ["s3://bucket", "s3://bucket/a/b", "gs://bucket/a", "az://container/a", "file:///mnt/shared/agent-host"] {
            assert_eq!(StorageAddress::parse(good).unwrap().to_string(), good);
        }
        assert_eq!(StorageAddress::parse("s3://bucket/a/").unwrap(), StorageAddress::parse("s3://bucket/a").unwrap());
        for (bad, wanted) in [
            ("bucket/a", "relative URL"),
            ("s3:///a", "name of the bucket"),
            ("https://bucket", "no store has this scheme"),
            ("file://folder/a", "third slash"),
            ("file:///", "path of the folder"),
            ("s3://key:pass-word@bucket/a", "belong into the environment"),
            ("s3://key:pass-word@no bucket", "belong into the environment"),
            ("s3://bucket/a?secret=pass-word", "belong into the environment"),
        ] {
            let error = StorageAddress::parse(bad).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains("s3://BUCKET/PREFIX") && !error.contains("pass-word"), "{error}");
        }
    }

    #[test]
    fn contents_of_many_parts_come_back_and_old_ones_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let address = StorageAddress::parse(&format!("file://{}", dir.path().display())).unwrap();
        let storage = Arc::new(ObjectStorage::open(&address).unwrap());
        let other = StoredBlobs::new(Arc::clone(&storage), 1);
        let storage = StoredBlobs::new(storage, FIRST_PARTITION);
        for bytes in [0, 10, PART - 1, PART, 2 * PART + 5] {
            let content: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
            let digest: Digest = Sha256::digest(&content).into();
            let file = dir.path().join("source");
            std::fs::write(&file, &content).unwrap();
            assert!(!storage.has(&digest).unwrap());
            BlobCopies::put(&storage, &digest, File::open(&file).unwrap()).unwrap();
            assert!(storage.has(&digest).unwrap() && !other.has(&digest).unwrap(), "a partition has its own");
            let mut back = tempfile::tempfile().unwrap();
            assert_eq!(BlobCopies::get(&storage, &digest, &back).unwrap(), Some(bytes as u64));
            let mut read = Vec::new();
            io::Seek::rewind(&mut back).unwrap();
            back.read_to_end(&mut read).unwrap();
            assert!(read == content, "{bytes} bytes");
            assert_eq!(storage.list(3_600_000).unwrap(), Vec::<Digest>::new());
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(storage.list(0).unwrap(), [digest]);
            BlobCopies::remove(&storage, &digest).unwrap();
            BlobCopies::remove(&storage, &digest).unwrap();
            assert_eq!(BlobCopies::get(&storage, &digest, &back).unwrap(), None);
        }
    }

    #[test]
    fn a_place_belongs_to_one_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let address = StorageAddress::parse(&format!("file://{}", dir.path().display())).unwrap();
        let storage = ObjectStorage::open(&address).unwrap();
        assert!(matches!(storage.check(1), Err(ClusterError::NoStorage { .. })));
        storage.claim(1).unwrap();
        storage.check(1).unwrap();
        assert!(matches!(storage.check(2), Err(ClusterError::ForeignStorage { .. })));
        assert!(matches!(storage.claim(2), Err(ClusterError::ForeignStorage { .. })));
        storage.release();
        storage.claim(2).unwrap();
    }
}
