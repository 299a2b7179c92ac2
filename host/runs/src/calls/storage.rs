//! `storage`.

use agent_host_ledger::{Quota, RunWrite, STORAGE_INLINE_BYTES, StorageContent, StorageValue, StorageWrite};
use agent_host_protocol::{ApiError, ErrorCode, manifest::StorageArea};
use agent_host_sandbox::StorageCalls;
use futures_util::future::BoxFuture;

use super::{RunCalls, granted, within};
use crate::{
    execution::{
        answer::Content,
        blocking,
        call::{Call, WriteTicket},
    },
    record::{journal::request_digest, ledger_failed, results},
};

/// Tries to read a value that others replace.
const READ_AGAIN: usize = 10;

impl RunCalls {
    /// Steps 3 and 4 of the gate, for an area of storage: gives where it is kept.
    fn area(&self, area: StorageArea, action: &str) -> Result<String, ApiError> {
        let grant = &self.run.terms.grant;
        granted(&grant.permissions.storage, &area, &format!("{action} of area `{}`", area.as_str()))?;
        Ok(grant.storage_key(area))
    }

    /// As [`RunCalls::area`], for one key in it.
    fn stored(&self, area: StorageArea, key: &str, action: &str) -> Result<String, ApiError> {
        let area = self.area(area, action)?;
        results::check_key("a storage key", key, &self.run.limits)?;
        Ok(area)
    }

    async fn put_storage(&self, ticket: WriteTicket, area_key: &str, key: &str, value: Option<Vec<u8>>) -> Result<(), ApiError> {
        let run = &*self.run;
        let quota = Quota { max_bytes: run.limits.storage_area_bytes, max_keys: run.limits.storage_area_keys };
        let value = match value {
            None => None,
            Some(bytes) if bytes.len() <= STORAGE_INLINE_BYTES => Some(StorageValue::Inline(bytes)),
            // A large value is a file beside the ledger, as an artifact is.
            Some(bytes) => {
                let mut writer = run.ledger.blob_writer(bytes.len() as u64).map_err(ledger_failed)?;
                let written = blocking(move || {
                    writer.write(&bytes)?;
                    writer.finish()
                });
                Some(StorageValue::Blob(written.await?))
            }
        };
        let write = StorageWrite { area_key: area_key.to_owned(), key: key.to_owned(), value, quota: Some(quota) };
        // The next read finds it.
        let make = |_| Ok((RunWrite { storage: vec![write], ..RunWrite::default() }, ()));
        let ((), written) = run.commit(ticket, make).await?;
        written.durable().await
    }
}

impl StorageCalls for RunCalls {
    fn storage_get(&mut self, area: StorageArea, key: String) -> BoxFuture<'_, Result<Option<Vec<u8>>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let found = self.stored(area, &key, "storage.get");
            let call = Call::read("storage.get", run.journal.digest(&(area, &key))).resource(key.as_str()).scope(area.as_str());
            let effect = async |()| {
                let area_key = found.clone()?;
                // A value that is replaced in this moment may lose its file before it is open; then there is a newer one.
                for _ in 0..READ_AGAIN {
                    match run.ledger.storage_get(&area_key, &key).map_err(ledger_failed)? {
                        None => return Ok(Content::new(None)),
                        Some(StorageContent::Inline(bytes)) => return Ok(Content::new(Some(bytes))),
                        Some(StorageContent::Blob { sha256, size }) => {
                            let Some(blob) = run.ledger.blob(&sha256).map_err(ledger_failed)? else { continue };
                            let size = usize::try_from(size).unwrap_or(usize::MAX);
                            let bytes = blocking(move || blob.read_at(0, size)).await?;
                            return Ok(Content::of_blob(bytes, sha256, 0));
                        }
                    }
                }
                tracing::error!(area_key, key, "the content of a storage value is missing: run `agent-host ledger check`");
                Err(ApiError::new(ErrorCode::RuntimeError, "this value is lost; the host's log has details"))
            };
            run.pass(call, || found.clone().map(drop), effect).await.outcome.map(|content| content.bytes)
        })
    }

    fn storage_set(&mut self, area: StorageArea, key: String, value: Vec<u8>) -> BoxFuture<'_, Result<(), ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let (bytes, limit) = (value.len(), usize::try_from(run.limits.storage_value_bytes).unwrap_or(usize::MAX));
            let found = self.stored(area, &key, "storage.set");
            let allowed = || {
                found.clone()?;
                within("a storage value", bytes, limit)?;
                run.has_quota()
            };
            let digest = run.journal.digest(&(area, &key, request_digest::bytes(&value)));
            let effect = async |ticket| self.put_storage(ticket, &found.clone()?, &key, Some(value)).await;
            let call = Call::write("storage.set", digest).resource(key.as_str()).scope(area.as_str()).bytes(bytes);
            run.pass(call, allowed, effect).await.outcome
        })
    }

    fn storage_delete(&mut self, area: StorageArea, key: String) -> BoxFuture<'_, Result<(), ApiError>> {
        Box::pin(async move {
            let found = self.stored(area, &key, "storage.delete");
            let digest = self.run.journal.digest(&(area, &key));
            let effect = async |ticket| self.put_storage(ticket, &found.clone()?, &key, None).await;
            let call = Call::write("storage.delete", digest).resource(key.as_str()).scope(area.as_str());
            self.run.pass(call, || found.clone().map(drop), effect).await.outcome
        })
    }

    fn storage_list(
        &mut self,
        area: StorageArea,
        prefix: Option<String>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<String>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let found = self.area(area, "storage.list");
            let effect = async |()| run.ledger.storage_keys(&found.clone()?, prefix.as_deref(), limit).map_err(ledger_failed);
            let digest = run.journal.digest(&(area, &prefix, limit));
            let call = Call::read("storage.list", digest).resource(prefix.as_deref()).scope(area.as_str());
            run.pass(call, || found.clone().map(drop), effect).await.outcome
        })
    }
}
