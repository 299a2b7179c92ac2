//! `state`.

use std::sync::OnceLock;

use agent_host_ledger::RunWrite;
use agent_host_protocol::{ApiError, manifest::StateScope};
use agent_host_sandbox::StateCalls;
use async_trait::async_trait;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{RunCalls, within};
use crate::{
    execution::gate::{Call, Entered},
    record::{
        journal::{Outcome, Ticket},
        ledger_failed, results, seen,
    },
};

impl RunCalls {
    /// One call on a value of state: `effect` is given where it is kept.
    async fn on_state<T>(
        &self,
        action: &'static str,
        scope: StateScope,
        key: &str,
        value: Option<&str>,
        effect: impl AsyncFnOnce(&Place<'_>) -> Result<T, ApiError>,
        left: impl FnOnce(&T) -> Option<u64>,
    ) -> Result<T, ApiError>
    where
        T: Serialize + DeserializeOwned,
    {
        let run = &*self.run;
        let bytes = value.map_or(0, str::len);
        let asked = run.journal.asked(&(scope, key, value));
        let call = Call { action, resource: Some(key), scope: Some(scope.as_str()), bytes, asked };
        let found = results::state_scope(&run.terms, scope, key, &run.limits);
        let scope_key = found.clone().unwrap_or_default();
        let allowed = || {
            found?;
            within("a state value", bytes, run.limits.state_value_bytes)
        };
        let outcome = match run.enter(&call).await {
            Entered::Answered(outcome) => outcome,
            Entered::Live(ticket) => {
                let place = Place { ticket: &ticket, scope_key: &scope_key };
                run.pass_live(&ticket, &call, allowed, effect(&place)).await
            }
        };
        // Whichever execution has asked: the run knows now what is there.
        outcome.inspect(|answer| run.knowledge.seen.note(&scope_key, key, left(answer)))
    }

    async fn put_state(&self, place: &Place<'_>, scope: StateScope, key: &str, value: Option<&Value>) -> Result<(), ApiError> {
        let run = &*self.run;
        let value = value.map(results::raw).transpose()?;
        let write = seen::state_write(&run.knowledge.seen, &run.limits, scope, place.scope_key, key, value);
        // Not waited for: whoever reads next finds it already.
        let make = |_| {
            run.journal.settle(place.ticket, Outcome::Answer("null".to_owned()), Vec::new());
            Ok(RunWrite { state: vec![write], ..RunWrite::default() })
        };
        run.writer.append(Some(place.ticket), make).await.map(drop)
    }
}

/// Where a value is kept, for one call.
struct Place<'a> {
    ticket: &'a Ticket,
    scope_key: &'a str,
}

#[async_trait]
impl StateCalls for RunCalls {
    async fn state_get(&mut self, scope: StateScope, key: String) -> Result<Option<Value>, ApiError> {
        let run = &*self.run;
        let get = async |place: &Place<'_>| run.ledger.state_get(place.scope_key, &key).map_err(ledger_failed);
        let left = |found: &Option<Value>| found.as_ref().map(seen::tag_of);
        self.on_state("state.get", scope, &key, None, get, left).await
    }

    async fn state_set(&mut self, scope: StateScope, key: String, value: String) -> Result<(), ApiError> {
        // Not before the gate has seen its size.
        let parsed = OnceLock::new();
        let parse = || parsed.get_or_init(|| agent_host_sandbox::parse_json("the value", &value)).as_ref();
        let set = async |place: &Place<'_>| self.put_state(place, scope, &key, Some(parse().map_err(Clone::clone)?)).await;
        let left = |(): &()| parse().ok().map(seen::tag_of);
        self.on_state("state.set", scope, &key, Some(&value), set, left).await
    }

    async fn state_delete(&mut self, scope: StateScope, key: String) -> Result<(), ApiError> {
        let delete = async |place: &Place<'_>| self.put_state(place, scope, &key, None).await;
        self.on_state("state.delete", scope, &key, None, delete, |(): &()| None).await
    }

    async fn state_list_keys(&mut self, scope: StateScope, prefix: Option<String>, limit: u32) -> Result<Vec<String>, ApiError> {
        let run = &*self.run;
        let asked = run.journal.asked(&(scope, &prefix, limit));
        let call = Call { action: "state.list-keys", resource: prefix.as_deref(), scope: Some(scope.as_str()), bytes: 0, asked };
        let found = results::granted_scope(&run.terms, scope);
        let scope_key = found.clone().unwrap_or_default();
        let effect = async { run.ledger.state_keys(&scope_key, prefix.as_deref(), limit).map_err(ledger_failed) };
        run.pass(call, || found.map(drop), effect).await
    }
}
