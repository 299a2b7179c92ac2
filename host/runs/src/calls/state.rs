//! `state`.

use agent_host_ledger::{Ledger, RunWrite};
use agent_host_protocol::{ApiError, manifest::StateScope};
use agent_host_sandbox::StateCalls;
use async_trait::async_trait;
use serde_json::Value;

use super::{RunCalls, within};
use crate::{error::ledger_failed, gate::Call, memory, results};

impl RunCalls {
    /// One call on a value of state: `effect` is given where it is kept.
    async fn on_state<T>(
        &self,
        action: &'static str,
        scope: StateScope,
        key: &str,
        bytes: usize,
        effect: impl AsyncFnOnce(&Ledger, &str) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let run = &*self.run;
        let call = Call { action, resource: Some(key), scope: Some(scope.as_str()), bytes };
        let found = results::state_scope(&run.terms, scope, key, &run.limits);
        let scope_key = found.clone().unwrap_or_default();
        let allowed = || {
            found?;
            within("a state value", bytes, run.limits.state_value_bytes)
        };
        run.pass(call, allowed, effect(&run.ledger, &scope_key)).await
    }

    async fn put_state(&self, scope: StateScope, scope_key: &str, key: &str, value: Option<&Value>) -> Result<(), ApiError> {
        let run = &*self.run;
        let value = value.map(results::raw).transpose()?;
        let write = memory::state_write(&run.seen, &run.limits, scope, scope_key, key, value);
        let left = memory::left_by(&write);
        // Not waited for: whoever reads next finds it already.
        run.write(|_| Ok(RunWrite { state: vec![write], ..RunWrite::default() })).await?;
        run.seen.note(scope_key, key, left);
        Ok(())
    }
}

#[async_trait]
impl StateCalls for RunCalls {
    async fn state_get(&mut self, scope: StateScope, key: String) -> Result<Option<Value>, ApiError> {
        let run = &*self.run;
        let get = async |ledger: &Ledger, scope_key: &str| {
            let found = ledger.state_get_tagged(scope_key, &key).map_err(ledger_failed)?;
            run.seen.note(scope_key, &key, found.as_ref().map(|(_, tag)| *tag));
            Ok(found.map(|(value, _)| value))
        };
        self.on_state("state.get", scope, &key, 0, get).await
    }

    async fn state_set(&mut self, scope: StateScope, key: String, value: String) -> Result<(), ApiError> {
        let set = async |_: &Ledger, scope_key: &str| {
            let value = agent_host_sandbox::parse_json("the value", &value)?;
            self.put_state(scope, scope_key, &key, Some(&value)).await
        };
        self.on_state("state.set", scope, &key, value.len(), set).await
    }

    async fn state_delete(&mut self, scope: StateScope, key: String) -> Result<(), ApiError> {
        let delete = async |_: &Ledger, scope_key: &str| self.put_state(scope, scope_key, &key, None).await;
        self.on_state("state.delete", scope, &key, 0, delete).await
    }

    async fn state_list_keys(&mut self, scope: StateScope, prefix: Option<String>, limit: u32) -> Result<Vec<String>, ApiError> {
        let run = &*self.run;
        let call = Call { action: "state.list-keys", resource: prefix.as_deref(), scope: Some(scope.as_str()), bytes: 0 };
        let found = results::granted_scope(&run.terms, scope);
        let scope_key = found.clone().unwrap_or_default();
        let effect = async { run.ledger.state_keys(&scope_key, prefix.as_deref(), limit).map_err(ledger_failed) };
        run.pass(call, || found.map(drop), effect).await
    }
}
