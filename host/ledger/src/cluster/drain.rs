//! Draining: a host gives the ledger to another one, and takes it again only where no other would.

use std::time::{Duration, Instant};

use crate::{
    cluster::{
        schema::{TIMEOUT, check_cluster, first},
        session::Session,
    },
    cluster_error::ClusterError,
    postgres::{Param, PostgresServer},
};

/// Pause between looks at the owner.
const PAUSE: Duration = Duration::from_millis(50);
/// A host that is asked has so long: its runs may take some seconds to their ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// The host, the partitions that it owns, and whether another host could have them.
const LOOK: &str = "select h.host_id, coalesce((select string_agg(p.p::text, ',') from agent_host.partitions p where p.owner = h.host_id \
    and p.incarnation = h.incarnation), ''), exists (select 1 from agent_host.hosts o where o.host_id <> h.host_id \
    and not o.drained and o.lease_until > clock_timestamp()) from agent_host.hosts h \
    where h.advertise = $1::text and h.lease_until > clock_timestamp()";

const DRAIN: &str = "update agent_host.hosts set drained = true where host_id = $1::text returning 1::int8";

/// The number of the partitions `$2` that another host than `$1` owns.
const MOVED: &str = "select count(*) from agent_host.partitions p where p.p = any(string_to_array($2::text, ',')::int8[]) \
    and p.owner <> $1::text";

/// The addresses of the owners.
const OWNERS: &str = "select distinct h.advertise from agent_host.partitions p join agent_host.hosts h on h.host_id = p.owner \
    and h.incarnation = p.incarnation order by h.advertise";

/// The outcome of draining a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Addresses of the hosts that own partitions now.
    pub active: Vec<String>,
    /// The number of partitions that the drained host owned before.
    pub owned: usize,
    /// Time from the request until other hosts owned them.
    pub took: Duration,
}

/// Asks the host at an address to give its partitions away, and waits until others have them. A host that owns none is marked alone.
/// The mark ends when the host is started again, or takes a partition.
///
/// # Errors
/// [`ClusterError::NoSuchHost`], [`ClusterError::NobodyToTakeOver`] and [`ClusterError::NotDrained`], besides those of the database.
pub fn drain_host(server: &PostgresServer, advertise: &str) -> Result<Drain, ClusterError> {
    let mut session = Session::new(server, "agent-host drain", TIMEOUT);
    check_cluster(&mut session, server)?;
    let rows = session.query_again(LOOK, &[Param::Text(advertise)])?;
    let Some(row) = rows.first() else {
        return Err(ClusterError::NoSuchHost { server: server.to_string(), advertise: advertise.to_owned() });
    };
    let (host, owned) = (row.text(0)?.unwrap_or_default(), row.text(1)?.unwrap_or_default());
    let count = owned.split(',').filter(|partition| !partition.is_empty()).count();
    if count > 0 && !row.flag(2)? {
        return Err(ClusterError::NobodyToTakeOver { server: server.to_string(), advertise: advertise.to_owned() });
    }
    let began = Instant::now();
    session.query_again(DRAIN, &[Param::Text(&host)])?;
    loop {
        let rows = session.query_again(MOVED, &[Param::Text(&host), Param::Text(&owned)])?;
        if first(&rows, server)?.number(0)? == count as u64 {
            let took = began.elapsed();
            let owners = session.query_again(OWNERS, &[])?;
            let owners = owners.iter().map(|row| row.text(0)).collect::<Result<Vec<_>, _>>()?;
            return Ok(Drain { active: owners.into_iter().flatten().collect(), owned: count, took });
        }
        if began.elapsed() > PATIENCE {
            return Err(ClusterError::NotDrained { advertise: advertise.to_owned(), waited_s: PATIENCE.as_secs() });
        }
        std::thread::sleep(PAUSE);
    }
}
