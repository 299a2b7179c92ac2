//! `storage`.

use agent_host_ledger::{Quota, RunWrite, STORAGE_INLINE_BYTES, StorageContent, StorageValue, StorageWrite};
use agent_host_protocol::{ApiError, ErrorCode, manifest::StorageArea};
use agent_host_sandbox::StorageCalls;
use async_trait::async_trait;

use super::{RunCalls, granted, kept::Kept, within};
use crate::{
    execution::{
        blocking,
        gate::{Call, Entered},
    },
    record::{
        journal::{Asked, Outcome, Ticket, asked},
        ledger_failed, results,
    },
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

    /// One call that changes storage.
    async fn on_storage(
        &self,
        call: Call<'_>,
        allowed: impl FnOnce() -> Result<(), ApiError>,
        effect: impl AsyncFnOnce(&Ticket) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        match self.run.enter(&call).await {
            Entered::Answered(outcome) => outcome,
            Entered::Live(ticket) => self.run.pass_live(&ticket, &call, allowed, effect(&ticket)).await,
        }
    }

    async fn put_storage(&self, ticket: &Ticket, area_key: &str, key: &str, value: Option<Vec<u8>>) -> Result<(), ApiError> {
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
        // Whoever reads next finds it.
        let make = |_| {
            run.journal.settle(ticket, Outcome::Answer("null".to_owned()), Vec::new());
            Ok(RunWrite { storage: vec![write], ..RunWrite::default() })
        };
        run.writer.append(Some(ticket), make).await?.durable().await
    }
}

fn call<'a>(action: &'a str, area: StorageArea, key: Option<&'a str>, bytes: usize, asked: Asked) -> Call<'a> {
    Call { action, resource: key, scope: Some(area.as_str()), bytes, asked }
}

#[async_trait]
impl StorageCalls for RunCalls {
    async fn storage_get(&mut self, area: StorageArea, key: String) -> Result<Option<Vec<u8>>, ApiError> {
        let run = &*self.run;
        let found = self.stored(area, &key, "storage.get");
        let call = call("storage.get", area, Some(&key), 0, run.journal.asked(&(area, &key)));
        let ticket = match run.enter::<Option<Kept>>(&call).await {
            Entered::Live(ticket) => ticket,
            Entered::Answered(Ok(Some(kept))) => return run.kept(kept).await.map(Some),
            Entered::Answered(outcome) => return outcome.map(|_| None),
        };
        let effect = async {
            let area_key = found.clone()?;
            // A value that is replaced in this moment may lose its file before it is open; then there is a newer one.
            for _ in 0..READ_AGAIN {
                match run.ledger.storage_get(&area_key, &key).map_err(ledger_failed)? {
                    None => return Ok(None),
                    Some(StorageContent::Inline(bytes)) => {
                        run.settle_bytes(&ticket, &bytes, None)?;
                        return Ok(Some(bytes));
                    }
                    Some(StorageContent::Blob { sha256, size }) => {
                        let Some(blob) = run.ledger.blob(&sha256).map_err(ledger_failed)? else { continue };
                        let size = usize::try_from(size).unwrap_or(usize::MAX);
                        let bytes = blocking(move || blob.read_at(0, size)).await?;
                        run.settle_bytes(&ticket, &bytes, Some((&sha256, 0)))?;
                        return Ok(Some(bytes));
                    }
                }
            }
            tracing::error!(area_key, key, "the content of a storage value is missing: run `agent-host ledger check`");
            Err(ApiError::new(ErrorCode::RuntimeError, "the host has lost this value; its log says so"))
        };
        run.pass_live(&ticket, &call, || found.clone().map(drop), effect).await
    }

    async fn storage_set(&mut self, area: StorageArea, key: String, value: Vec<u8>) -> Result<(), ApiError> {
        let run = &*self.run;
        let (bytes, limit) = (value.len(), usize::try_from(run.limits.storage_value_bytes).unwrap_or(usize::MAX));
        let found = self.stored(area, &key, "storage.set");
        let allowed = || found.clone().and_then(|_| within("a storage value", bytes, limit));
        let asked = run.journal.asked(&(area, &key, asked::bytes(&value)));
        let effect = async |ticket: &Ticket| self.put_storage(ticket, &found.clone()?, &key, Some(value)).await;
        self.on_storage(call("storage.set", area, Some(&key), bytes, asked), allowed, effect).await
    }

    async fn storage_delete(&mut self, area: StorageArea, key: String) -> Result<(), ApiError> {
        let found = self.stored(area, &key, "storage.delete");
        let asked = self.run.journal.asked(&(area, &key));
        let effect = async |ticket: &Ticket| self.put_storage(ticket, &found.clone()?, &key, None).await;
        self.on_storage(call("storage.delete", area, Some(&key), 0, asked), || found.clone().map(drop), effect).await
    }

    async fn storage_list(&mut self, area: StorageArea, prefix: Option<String>, limit: u32) -> Result<Vec<String>, ApiError> {
        let run = &*self.run;
        let found = self.area(area, "storage.list");
        let effect = async { run.ledger.storage_keys(&found.clone()?, prefix.as_deref(), limit).map_err(ledger_failed) };
        let asked = run.journal.asked(&(area, &prefix, limit));
        run.pass(call("storage.list", area, prefix.as_deref(), 0, asked), || found.clone().map(drop), effect).await
    }
}
