//! The engine: one for the host, shared by all guests.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use agent_host_protocol::{Interface, InterfaceSet, Limits, hex};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use wasmtime::{Config, Engine, EngineWeak, InstanceAllocationStrategy, PoolingAllocationConfig, component::Linker};

use crate::{
    bindings,
    guest::{Guest, LinkGranted, LinkRefused},
    limits::MAX_MEMORIES,
    threads::SLICE,
    wasi_http::OutgoingHttp,
};

/// Components that are admitted at one time. Compiling takes a core each, and the host has others to serve.
pub(crate) const ADMISSIONS_AT_ONCE: usize = 2;

/// Core instances in one component. A Rust guest has four, Python and JavaScript about ten.
const MAX_CORE_INSTANCES: u32 = 20;
/// Tables in one component.
const MAX_TABLES: u32 = 10;
/// A fiber's stack: the guest's share, and below it what a host call needs.
const HOST_STACK_BYTES: usize = 1024 * 1024 + 512 * 1024;
/// Memory of a finished guest that is wiped in place instead of given back to the system. Wiping more than a
/// small guest touches costs more than the page faults that it saves (ARCHITECTURE.md, "Facts").
const MEMORY_KEPT_BYTES: usize = 128 * 1024;
/// Likewise of its stack.
const STACK_KEPT_BYTES: usize = 32 * 1024;
/// Likewise of its tables.
const TABLE_KEPT_BYTES: usize = 16 * 1024;

/// The reason why the engine could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the WebAssembly engine could not be started: {0}. Lower `limits.max_live_runs` if address space is short")]
pub struct EngineError(pub(crate) wasmtime::Error);

/// The engine of all guests, and the linkers that were made for it, by grant.
pub(crate) struct GuestEngine {
    pub(crate) wasmtime: Engine,
    linkers: Mutex<Vec<(InterfaceSet, Arc<Linker<Guest>>)>>,
}

impl GuestEngine {
    pub(crate) fn new(limits: &Limits) -> Result<Arc<Self>, EngineError> {
        let wasmtime = Engine::new(&config(limits)).map_err(EngineError)?;
        tick(wasmtime.weak());
        Ok(Arc::new(Self { wasmtime, linkers: Mutex::new(Vec::new()) }))
    }

    /// The version of this engine's compiled code. Code of another version must not be loaded.
    pub(crate) fn code_version(&self) -> String {
        struct Sink(Sha256);
        impl Hasher for Sink {
            fn write(&mut self, bytes: &[u8]) {
                self.0.update(bytes);
            }
            fn finish(&self) -> u64 {
                0
            }
        }
        let mut sink = Sink(Sha256::new());
        self.wasmtime.precompile_compatibility_hash().hash(&mut sink);
        // Half of the digest distinguishes engines as well and keeps file names short.
        hex::encode(sink.0.finalize().get(..16).unwrap_or_default())
    }

    /// The linker for a set of granted interfaces. Few different sets exist, so all linkers are kept.
    pub(crate) fn linker(&self, granted: InterfaceSet) -> wasmtime::Result<Arc<Linker<Guest>>> {
        let mut linkers = self.linkers.lock();
        if let Some((_, linker)) = linkers.iter().find(|(set, _)| *set == granted) {
            return Ok(Arc::clone(linker));
        }
        let linker = Arc::new(linker(&self.wasmtime, granted)?);
        linkers.push((granted, Arc::clone(&linker)));
        Ok(linker)
    }
}

/// The features of the engine, for a process that only compiles: its code is that of [`config`]. Settings that change compiled
/// code are part of [`GuestEngine::code_version`].
pub(crate) fn without_pool(limits: &Limits) -> Config {
    let mut config = Config::new();

    // Guests run on fibers and host functions are async; the component-model async ABI stays off (D2).
    config.concurrency_support(false);
    config.epoch_interruption(true);
    config.max_wasm_stack(limits.guest_stack_bytes);
    config.async_stack_size(limits.guest_stack_bytes + HOST_STACK_BYTES);

    // Features that no guest needs are off (D12). Threads, exceptions, typed function references and component async are
    // not in the build: their crate features are off (Cargo.toml).
    config.wasm_shared_everything_threads(false);
    config.shared_memory(false);
    config.wasm_memory64(false);
    config.wasm_gc(false);
    config.wasm_stack_switching(false);
    config.wasm_custom_page_sizes(false);
    config.wasm_wide_arithmetic(false);
    config.wasm_component_model_error_context(false);
    config.wasm_component_model_map(false);
    config.wasm_component_model_gc(false);
    // Two executions of one run must not differ (D13).
    config.wasm_relaxed_simd(false);
    config.cranelift_nan_canonicalization(true);

    config.memory_init_cow(true);
    config.parallel_compilation(false);
    config
}

/// The features and the allocation of the engine.
fn config(limits: &Limits) -> Config {
    let mut config = without_pool(limits);
    // Besides the runs, each admission asks one component for its manifests.
    let live = limits.max_live_runs.saturating_add(u32::try_from(ADMISSIONS_AT_ONCE).unwrap_or(1));
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(live);
    pool.max_core_instances_per_component(MAX_CORE_INSTANCES);
    pool.total_core_instances(live.saturating_mul(MAX_CORE_INSTANCES));
    pool.max_memories_per_component(u32::try_from(MAX_MEMORIES).unwrap_or(1));
    pool.total_memories(live.saturating_mul(u32::try_from(MAX_MEMORIES).unwrap_or(1)));
    pool.max_memory_size(limits.guest_memory_bytes);
    pool.max_tables_per_component(MAX_TABLES);
    // As many as all of them may have: an exhausted pool would end runs that are within their limits.
    pool.total_tables(live.saturating_mul(MAX_TABLES));
    pool.table_elements(limits.guest_table_elements);
    pool.total_stacks(live);
    pool.linear_memory_keep_resident(MEMORY_KEPT_BYTES);
    // If the kernel reports written pages (Linux 6.7), only these are wiped: some 30 µs a run.
    pool.pagemap_scan(wasmtime::Enabled::Auto);
    pool.async_stack_keep_resident(STACK_KEPT_BYTES);
    pool.table_keep_resident(TABLE_KEPT_BYTES);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// Advances the epoch as long as the engine lives: a guest that computes keeps it alive, and can be stopped until its end.
fn tick(engine: EngineWeak) {
    let ticking = std::thread::Builder::new().name("epoch".to_owned()).spawn(move || {
        loop {
            std::thread::sleep(SLICE);
            match engine.upgrade() {
                Some(engine) => engine.increment_epoch(),
                None => return,
            }
        }
    });
    if let Err(error) = ticking {
        tracing::error!(%error, "no epoch thread: guests that compute for ever cannot be stopped");
    }
}

/// Links every interface of the contract: granted interfaces to the gate, the others to a refusal.
fn linker(engine: &Engine, granted: InterfaceSet) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    crate::wasi::link(&mut linker)?;
    let outside = if granted.contains(Interface::Http) { OutgoingHttp::Allowed } else { OutgoingHttp::Refused };
    crate::wasi_http::link(&mut linker, outside)?;

    let l = &mut linker;
    bindings::types::add_to_linker::<_, LinkGranted>(l, Guest::open)?;
    bindings::manifest::add_to_linker::<_, LinkGranted>(l, Guest::open)?;
    bindings::context::add_to_linker::<_, LinkGranted>(l, Guest::open)?;
    bindings::results::add_to_linker::<_, LinkGranted>(l, Guest::open)?;
    bindings::log::add_to_linker::<_, LinkGranted>(l, Guest::open)?;

    macro_rules! open {
        ($module:ident, $interface:ident) => {
            if granted.contains(Interface::$interface) {
                bindings::$module::add_to_linker::<_, LinkGranted>(l, Guest::open)?;
            } else {
                bindings::$module::add_to_linker::<_, LinkRefused>(l, Guest::not_granted)?;
            }
        };
    }
    open!(history, History);
    open!(state, State);
    open!(models, Models);
    open!(tools, Tools);
    open!(knowledge, Knowledge);
    open!(events, Events);
    open!(artifacts, Artifacts);
    open!(storage, Storage);
    open!(timers, Timers);
    open!(platform, Platform);
    open!(interactions, Interactions);
    open!(steering, Steering);
    open!(runs, Runs);
    open!(http, Http);
    Ok(linker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_interfaces_can_be_linked() {
        let engine = GuestEngine::new(&Limits { max_live_runs: 2, ..Limits::default() }).unwrap();
        for interface in Interface::ALL {
            engine.linker(InterfaceSet::default().with(*interface)).unwrap();
        }
        engine.linker(Interface::ALL.iter().copied().collect()).unwrap();
    }

    #[test]
    fn a_guest_that_outlives_its_host_can_be_stopped() {
        // (module (func (export "f") (loop br 0)))
        const LOOP: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x05\x01\x01f\0\0\
            \x0a\x09\x01\x07\0\x03\x40\x0c\0\x0b\x0b";
        let engine = GuestEngine::new(&Limits { max_live_runs: 2, ..Limits::default() }).unwrap();
        let module = wasmtime::Module::new(&engine.wasmtime, LOOP).unwrap();
        let mut store = wasmtime::Store::new(&engine.wasmtime, ());
        drop(engine);
        let (ended, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // Whatever ends with the host has ended.
            std::thread::sleep(SLICE * 10);
            store.set_epoch_deadline(2);
            let instance = wasmtime::Instance::new(&mut store, &module, &[]).unwrap();
            let computes = instance.get_typed_func::<(), ()>(&mut store, "f").unwrap();
            ended.send(computes.call(&mut store, ()).is_err()).unwrap();
        });
        assert_eq!(ends.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
    }

    /// The features of this machine's processor are part of the version: code of a machine that has others is compiled again.
    #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
    #[test]
    fn code_for_a_processor_with_other_features_has_another_version() {
        let hash = |config: &Config| {
            let mut hasher = std::hash::DefaultHasher::new();
            Engine::new(config).unwrap().precompile_compatibility_hash().hash(&mut hasher);
            hasher.finish()
        };
        let limits = Limits { max_live_runs: 2, ..Limits::default() };
        // A named target has the features that all of its processors have.
        let mut any = without_pool(&limits);
        any.target("x86_64-unknown-linux-gnu").unwrap();
        assert_eq!(hash(&without_pool(&limits)), hash(&without_pool(&limits)));
        assert_ne!(hash(&any), hash(&without_pool(&limits)));
    }

    #[test]
    fn the_code_version_follows_the_configuration() {
        let version = |limits: &Limits| GuestEngine::new(limits).unwrap().code_version();
        let small = Limits { max_live_runs: 2, ..Limits::default() };
        assert_eq!(version(&small), version(&small));
        assert_eq!(
            version(&small),
            version(&Limits { max_live_runs: 3, ..small.clone() }),
            "the size of the pool is not in the code"
        );
        let hash = |engine: &Engine| {
            let mut hasher = std::hash::DefaultHasher::new();
            engine.precompile_compatibility_hash().hash(&mut hasher);
            hasher.finish()
        };
        let compiler = Engine::new(&without_pool(&small)).unwrap();
        assert_eq!(hash(&compiler), hash(&GuestEngine::new(&small).unwrap().wasmtime), "nor is the pool itself");
    }
}
