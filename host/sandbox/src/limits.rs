//! Resource limits of one guest. A store is dropped with its run, so every leak ends there.

use wasmtime::ResourceLimiter;

use crate::world::World;

/// Counts what a guest grows, over all of its memories and tables, and says no at the limit.
///
/// A refused `memory.grow` returns -1, and a guest may cope. Most guests trap; `exceeded` then has the reason.
#[derive(Debug)]
pub(crate) struct GuestLimits {
    memory_bytes: usize,
    memory_limit: usize,
    table_limit: usize,
    exceeded: Option<ExceededLimit>,
}

/// The limit that a guest exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExceededLimit {
    Memory,
    Table,
}

impl GuestLimits {
    pub(crate) fn new(world: &World) -> Self {
        Self { memory_bytes: 0, memory_limit: world.memory_bytes, table_limit: world.table_elements, exceeded: None }
    }

    /// The limit that was met, if one was.
    pub(crate) fn exceeded(&self) -> Option<ExceededLimit> {
        self.exceeded
    }
}

/// The host could not give a guest what its limits allow.
#[derive(Debug, thiserror::Error)]
#[error("the host has no memory left for its guests: {0}")]
pub(crate) struct HostMemory(String);

/// Core instances in one store. A component of a language with a big runtime has about ten.
const MAX_INSTANCES: usize = 32;
/// Tables in one store.
const MAX_TABLES: usize = 32;
/// Memories in one store. A component has one, seldom two.
pub(crate) const MAX_MEMORIES: usize = 2;

impl ResourceLimiter for GuestLimits {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.memory_bytes.saturating_sub(current).saturating_add(desired);
        if total > self.memory_limit {
            self.exceeded = Some(ExceededLimit::Memory);
            return Ok(false);
        }
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.memory_bytes = total;
        Ok(true)
    }

    /// The system has no memory. A guest that could see this would differ from one execution to the next, so it ends.
    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(HostMemory(format!("{error:#}"))))
    }

    /// As for memory.
    fn table_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(HostMemory(format!("{error:#}"))))
    }

    fn table_growing(&mut self, _current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if desired > self.table_limit {
            self.exceeded = Some(ExceededLimit::Table);
            return Ok(false);
        }
        Ok(maximum.is_none_or(|maximum| desired <= maximum))
    }

    fn instances(&self) -> usize {
        MAX_INSTANCES
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_are_counted_together() {
        let world = World::new(&agent_host_protocol::Limits::default(), crate::GuestClock::new(0), [0; 32]);
        let mut limits = GuestLimits::new(&World { memory_bytes: 100, ..world });
        assert!(limits.memory_growing(0, 60, None).unwrap());
        assert!(!limits.memory_growing(0, 60, None).unwrap(), "the second memory takes the guest over the limit");
        assert_eq!(limits.exceeded(), Some(ExceededLimit::Memory));
        assert!(limits.memory_growing(60, 100, None).unwrap());
        assert!(!limits.memory_growing(100, 101, None).unwrap());
    }
}
