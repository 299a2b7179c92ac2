//! Draining: a host gives the ledger to another one, and takes it again only where no other would.

use std::time::{Duration, Instant};

use crate::{
    cluster::{
        schema::{PARTITION, TIMEOUT, check_cluster},
        session::Session,
    },
    cluster_error::ClusterError,
    postgres::{Param, PostgresServer},
};

/// Pause between looks at the owner.
const PAUSE: Duration = Duration::from_millis(50);
/// A host that is asked has so long: its runs may take some seconds to their ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// The host, whether it owns the ledger, and whether another could.
const LOOK: &str = "select h.host_id, p.owner is not null, exists (select 1 from agent_host.hosts o where o.host_id <> h.host_id \
    and not o.drained and o.lease_until > clock_timestamp()) from agent_host.hosts h left join agent_host.partitions p \
    on p.p = $2::int8 and p.owner = h.host_id and p.incarnation = h.incarnation \
    where h.advertise = $1::text and h.lease_until > clock_timestamp()";

const DRAIN: &str = "update agent_host.hosts set drained = true where host_id = $1::text returning 1::int8";

/// The address of the owner, where that is another host than `$1`.
const OWNER: &str = "select h.advertise from agent_host.partitions p join agent_host.hosts h on h.host_id = p.owner \
    and h.incarnation = p.incarnation where p.p = $2::int8 and p.owner <> $1::text";

/// The outcome of draining a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Address of the host that owns the ledger now; `None` where the drained one was warm and nobody else owns it.
    pub active: Option<String>,
    /// True if the drained host owned the ledger before.
    pub was_active: bool,
    /// Time from the request until another host owned the ledger.
    pub took: Duration,
}

/// Asks the host at an address to give the ledger away, and waits until another one has it. A host that does not own it is marked alone.
/// The mark ends when the host is started again, or takes the ledger.
///
/// # Errors
/// [`ClusterError::NoSuchHost`], [`ClusterError::NobodyToTakeOver`] and [`ClusterError::NotDrained`], besides those of the database.
pub fn drain_host(server: &PostgresServer, advertise: &str) -> Result<Drain, ClusterError> {
    let mut session = Session::new(server, "agent-host drain", TIMEOUT);
    check_cluster(&mut session, server)?;
    let rows = session.query_again(LOOK, &[Param::Text(advertise), Param::Int(PARTITION)])?;
    let Some(row) = rows.first() else {
        return Err(ClusterError::NoSuchHost { server: server.to_string(), advertise: advertise.to_owned() });
    };
    let (host, was_active, has_successor) = (row.text(0)?.unwrap_or_default(), row.flag(1)?, row.flag(2)?);
    if was_active && !has_successor {
        return Err(ClusterError::NobodyToTakeOver { server: server.to_string(), advertise: advertise.to_owned() });
    }
    let began = Instant::now();
    session.query_again(DRAIN, &[Param::Text(&host)])?;
    loop {
        let rows = session.query_again(OWNER, &[Param::Text(&host), Param::Int(PARTITION)])?;
        let active = match rows.first() {
            Some(row) => row.text(0)?,
            None => None,
        };
        if active.is_some() || !was_active {
            return Ok(Drain { active, was_active, took: began.elapsed() });
        }
        if began.elapsed() > PATIENCE {
            return Err(ClusterError::NotDrained { advertise: advertise.to_owned(), waited_s: PATIENCE.as_secs() });
        }
        std::thread::sleep(PAUSE);
    }
}
