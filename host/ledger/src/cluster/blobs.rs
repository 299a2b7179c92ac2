//! Contents of blobs in the database, so that a host has those of the owner before it.
//!
//! A blob is in the database before it has its name on this host, so before a batch can name it. A host that lacks a file fetches it
//! when it is read.

use std::{
    fs::File,
    io::{self, Read, Write},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{
    cluster::{
        session::Session,
        storage::{ObjectStorage, StoredBlobs},
    },
    digest::Digest,
    files::BlobCopies,
    postgres::{Param, PostgresError},
};

/// Bytes of a piece.
const PIECE: usize = 1024 * 1024;

/// See the module.
struct PostgresBlobs {
    session: Mutex<Session>,
    partition: i64,
}

fn failed(error: PostgresError) -> io::Error {
    io::Error::other(error)
}

/// Reads until the piece is full or the file ends.
fn read_piece(file: &mut File, piece: &mut Vec<u8>) -> io::Result<usize> {
    piece.clear();
    file.take(PIECE as u64).read_to_end(piece)
}

impl PostgresBlobs {
    fn new(session: Session, partition: i64) -> Self {
        Self { session: Mutex::new(session), partition }
    }
}

/// The contents of the blobs of a partition: in the object store of its cluster, else in the database. No partition removes those of another.
pub(crate) fn blobs_of(
    storage: Option<&Arc<ObjectStorage>>,
    partition: i64,
    session: impl FnOnce() -> Session,
) -> Box<dyn BlobCopies> {
    match storage {
        Some(storage) => Box::new(StoredBlobs::new(Arc::clone(storage), partition)),
        None => Box::new(PostgresBlobs::new(session(), partition)),
    }
}

impl BlobCopies for PostgresBlobs {
    fn has(&self, digest: &Digest) -> io::Result<bool> {
        let look = "select bytes from agent_host.blobs where sha256 = $1::bytea and p = $2::int8";
        Ok(!self
            .session
            .lock()
            .query_again(look, &[Param::Bytes(digest), Param::Int(self.partition)])
            .map_err(failed)?
            .is_empty())
    }

    fn put(&self, digest: &Digest, mut file: File) -> io::Result<()> {
        if self.has(digest)? {
            return Ok(());
        }
        let mut session = self.session.lock();
        let (mut piece, mut number, mut bytes) = (Vec::with_capacity(PIECE), 0, 0u64);
        while read_piece(&mut file, &mut piece)? > 0 {
            let put = "insert into agent_host.blob_pieces (sha256, piece, content, p) values ($1::bytea, $2::int8, $3::bytea, \
                       $4::int8) on conflict do nothing";
            let params = [Param::Bytes(digest), Param::Int(number), Param::Bytes(&piece), Param::Int(self.partition)];
            session.query_again(put, &params).map_err(failed)?;
            number += 1;
            bytes += piece.len() as u64;
        }
        // Last: a blob with this row is whole.
        let put = "insert into agent_host.blobs (sha256, bytes, written_at, p) values ($1::bytea, $2::int8, clock_timestamp(), \
                   $3::int8) on conflict do nothing";
        let params = [Param::Bytes(digest), Param::number(bytes), Param::Int(self.partition)];
        session.query_again(put, &params).map_err(failed)?;
        Ok(())
    }

    fn get(&self, digest: &Digest, mut to: &File) -> io::Result<Option<u64>> {
        let mut session = self.session.lock();
        let look = "select bytes from agent_host.blobs where sha256 = $1::bytea and p = $2::int8";
        let there = session.query_again(look, &[Param::Bytes(digest), Param::Int(self.partition)]);
        let there = there.map_err(failed)?;
        let Some(row) = there.first() else { return Ok(None) };
        let bytes = row.number(0).map_err(failed)?;
        let (mut written, mut number) = (0u64, 0);
        while written < bytes {
            let read =
                "select content from agent_host.blob_pieces where sha256 = $1::bytea and piece = $2::int8 and p = $3::int8";
            let params = [Param::Bytes(digest), Param::Int(number), Param::Int(self.partition)];
            let rows = session.query_again(read, &params).map_err(failed)?;
            let piece = rows.first().map(|row| row.bytes(0)).filter(|piece| !piece.is_empty());
            let piece = piece.ok_or_else(|| io::Error::other(format!("piece {number} is not in the database")))?;
            to.write_all(&piece)?;
            written += piece.len() as u64;
            number += 1;
        }
        Ok(Some(written))
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        let remove = "with blob as (delete from agent_host.blobs where sha256 = $1::bytea and p = $2::int8) delete from \
                      agent_host.blob_pieces where sha256 = $1::bytea and p = $2::int8";
        self.session.lock().query_again(remove, &[Param::Bytes(digest), Param::Int(self.partition)]).map_err(failed).map(drop)
    }

    fn list(&self, older_than_ms: u64) -> io::Result<Vec<Digest>> {
        let list = "select sha256 from agent_host.blobs where written_at < clock_timestamp() - $1::int8 * interval '1 millisecond' and p = $2::int8";
        let rows =
            self.session.lock().query_again(list, &[Param::number(older_than_ms), Param::Int(self.partition)]).map_err(failed)?;
        Ok(rows.iter().filter_map(|row| row.bytes(0).as_ref().try_into().ok()).collect())
    }
}
