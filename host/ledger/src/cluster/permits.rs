//! Permits as rows of the database, one for each binding. A row is written only where nobody has written it since it was read, and only by the owner of the
//! partition.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    cluster::session::Session,
    error::LedgerError,
    lease::Lease,
    permits::{BindingPermits, LentPermits, PermitRequest, PermitStore},
    postgres::{Param, PostgresError},
};

/// A row that others write all the time is tried so often.
const TRIES: u32 = 20;

const READ: &str = "select (extract(epoch from clock_timestamp()) * 1000000)::int8, p.version, p.state from (select 1) one \
    left join agent_host.permits p on p.binding = $1::text";

const WRITE: &str = "insert into agent_host.permits as t (binding, version, state) select $1::text, $2::int8 + 1, $3::text \
    from agent_host.partitions o where o.p = $4::int8 and o.epoch = $5::int8 \
    on conflict (binding) do update set version = excluded.version, state = excluded.state where t.version = $2::int8 returning version";

const BINDINGS: &str = "select binding from agent_host.permits";

/// The rows, for the owner of one partition.
pub(super) struct PermitTable {
    session: Mutex<Session>,
    partition: u32,
    lease: Arc<Lease>,
}

impl PermitStore for PermitTable {
    fn give_back_unused(&self, used: &[String]) -> Result<(), LedgerError> {
        let rows = self.session.lock().query_again(BINDINGS, &[]).map_err(unavailable)?;
        for row in rows {
            let binding = row.text(0).map_err(unavailable)?.unwrap_or_default();
            if !used.contains(&binding) {
                self.write(&binding, |permits, _| permits.forget(self.partition))?;
            }
        }
        Ok(())
    }

    fn lend(&self, binding: &str, request: &PermitRequest) -> Result<LentPermits, LedgerError> {
        self.write(binding, |permits, now| permits.lend(self.partition, request, now))
    }
}

impl PermitTable {
    pub(super) const fn new(session: Session, partition: u32, lease: Arc<Lease>) -> Self {
        Self { session: Mutex::new(session), partition, lease }
    }

    /// Changes the permits of a binding.
    fn write<T>(&self, binding: &str, change: impl Fn(&mut BindingPermits, u64) -> T) -> Result<T, LedgerError> {
        let Self { session, partition, lease } = self;
        let mut session = session.lock();
        for _ in 0..TRIES {
            lease.check()?;
            let rows = session.query_again(READ, &[Param::Text(binding)]).map_err(unavailable)?;
            let Some(row) = rows.first() else { break };
            let now = row.number(0).map_err(unavailable)?;
            let version = row.int(1).map_err(unavailable)?.unwrap_or_default();
            let before = row.text(2).map_err(unavailable)?;
            // A permits that no host has written so is begun anew: each owner says what it uses within a second.
            let mut permits =
                before.as_deref().and_then(|state| serde_json::from_str::<BindingPermits>(state).ok()).unwrap_or_default();
            let known = permits.clone();
            let answer = change(&mut permits, now);
            if permits == known {
                return Ok(answer);
            }
            let state = serde_json::to_string(&permits).map_err(|error| LedgerError::unavailable(error.to_string()))?;
            let (partition, epoch) = (Param::Int((*partition).into()), Param::number(lease.epoch()));
            let params = [Param::Text(binding), Param::Int(version), Param::Text(&state), partition, epoch];
            if !session.query_again(WRITE, &params).map_err(unavailable)?.is_empty() {
                return Ok(answer);
            }
        }
        Err(LedgerError::unavailable(format!("the permits of the binding `{binding}` are changed by others all the time")))
    }
}

fn unavailable(error: PostgresError) -> LedgerError {
    LedgerError::unavailable(error.to_string())
}
