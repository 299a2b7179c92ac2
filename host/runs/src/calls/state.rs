//! `state`.

use std::sync::OnceLock;

use agent_host_ledger::RunWrite;
use agent_host_protocol::{ApiError, manifest::StateScope};
use agent_host_sandbox::StateCalls;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::{RunCalls, within};
use crate::{
    execution::call::Call,
    record::{ledger_failed, results, seen},
};

impl RunCalls {
    /// Sets or deletes a value of state. `parse` gives the value once the gate has seen its size.
    async fn put_state<'v>(
        &self,
        action: &'static str,
        scope: StateScope,
        (key, text): (&str, Option<&str>),
        parse: impl Fn() -> Result<Option<&'v Value>, ApiError>,
    ) -> Result<(), ApiError> {
        let run = &*self.run;
        let bytes = text.map_or(0, str::len);
        let digest = run.journal.digest(&(scope, key, text));
        let call = Call::write(action, digest).resource(key).scope(scope.as_str()).bytes(bytes);
        let found = results::state_scope(&run.terms, scope, key, &run.limits);
        let scope_key = found.clone().unwrap_or_default();
        let allowed = || {
            found?;
            within("a state value", bytes, run.limits.state_value_bytes)?;
            // What is deleted makes room.
            if text.is_some() { run.has_quota() } else { Ok(()) }
        };
        let effect = async |ticket| {
            let value = parse()?.map(results::raw).transpose()?;
            let write = seen::state_write(&run.knowledge.seen, &run.limits, scope, scope_key.clone(), key.to_owned(), value)?;
            // The commit is not awaited: the next read already finds the value.
            let make = |_| Ok((RunWrite { state: vec![write], ..RunWrite::default() }, ()));
            run.commit(ticket, make).await.map(drop)
        };
        run.pass(call, allowed, effect).await.outcome?;
        // A call of an earlier execution counts too: the run knows this value.
        run.knowledge.seen.note(&scope_key, key, parse().ok().flatten().map(seen::tag_of));
        Ok(())
    }
}

impl StateCalls for RunCalls {
    fn state_get(&mut self, scope: StateScope, key: String) -> BoxFuture<'_, Result<Option<Value>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let digest = run.journal.digest(&(scope, &key, None::<&str>));
            let found = results::state_scope(&run.terms, scope, &key, &run.limits);
            let scope_key = found.clone().unwrap_or_default();
            let get = async |()| run.ledger.state_get(&scope_key, &key).map_err(ledger_failed);
            let call = Call::read("state.get", digest).resource(key.as_str()).scope(scope.as_str());
            let value = run.pass(call, || found.map(drop), get).await.outcome?;
            // A call of an earlier execution counts too: the run knows this value.
            run.knowledge.seen.note(&scope_key, &key, value.as_ref().map(seen::tag_of));
            Ok(value)
        })
    }

    fn state_set(&mut self, scope: StateScope, key: String, value: String) -> BoxFuture<'_, Result<(), ApiError>> {
        Box::pin(async move {
            // The value is parsed after the gate has checked its size.
            let parsed = OnceLock::new();
            let parse =
                || parsed.get_or_init(|| agent_host_sandbox::parse_json("the value", &value)).as_ref().map_err(Clone::clone);
            self.put_state("state.set", scope, (&key, Some(&value)), || parse().map(Some)).await
        })
    }

    fn state_delete(&mut self, scope: StateScope, key: String) -> BoxFuture<'_, Result<(), ApiError>> {
        Box::pin(async move { self.put_state("state.delete", scope, (&key, None), || Ok(None)).await })
    }

    fn state_list_keys(
        &mut self,
        scope: StateScope,
        prefix: Option<String>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<String>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let digest = run.journal.digest(&(scope, &prefix, limit));
            let call = Call::read("state.list-keys", digest).resource(prefix.as_deref()).scope(scope.as_str());
            let found = results::granted_scope(&run.terms, scope);
            let scope_key = found.clone().unwrap_or_default();
            let effect = async |()| run.ledger.state_keys(&scope_key, prefix.as_deref(), limit).map_err(ledger_failed);
            run.pass(call, || found.map(drop), effect).await.outcome
        })
    }
}
