//! Admission: from a file to a component, or to a reason.
//!
//! A file is read once, with a bound; looked at without executing it; compiled (or fetched from the cache) off
//! the serving threads; linked with nothing granted; asked for its manifests with nothing granted; and held
//! against what those declare.

use std::{
    fs,
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_protocol::{
    ImportReport, InterfaceSet, Limits, PluginReport, PluginStatus, Refusal, RefusalCode, RunnerManifest, hex, time,
};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::{
    cache::{CodeCache, RefusedCompile},
    compiler,
    component::{Component, link},
    components::Components,
    engine::{ADMISSIONS_AT_ONCE, GuestEngine},
    imports::{self, ImportRefusal},
    manifests, structure,
    threads::GuestThreads,
    toolchain::{self, Toolchain},
};

/// Admits components, a bounded number at one time.
pub(crate) struct Admissions {
    pub(crate) components: Components,
    pub(crate) limits: Limits,
    engine: Arc<GuestEngine>,
    pub(crate) cache: Option<CodeCache>,
    /// The program whose processes compile.
    compiler: Option<PathBuf>,
    threads: Arc<GuestThreads>,
    /// One permit for each admission, compilation included.
    permits: Arc<Semaphore>,
}

impl Admissions {
    pub(crate) fn new(
        engine: Arc<GuestEngine>,
        (cache, compiler): (Option<CodeCache>, Option<PathBuf>),
        components: Components,
        threads: Arc<GuestThreads>,
        limits: Limits,
    ) -> Self {
        Self { components, limits, engine, cache, compiler, threads, permits: Arc::new(Semaphore::new(ADMISSIONS_AT_ONCE)) }
    }
}

/// The outcome of an admission.
pub(crate) struct Admission {
    pub(crate) report: PluginReport,
    pub(crate) component: Option<Arc<Component>>,
}

/// The facts that a refusal reports too.
#[derive(Default)]
struct Findings {
    size_bytes: u64,
    digest: Option<String>,
    imports: Vec<ImportReport>,
    runners: Vec<RunnerManifest>,
    from_cache: bool,
    tool: Option<Toolchain>,
}

/// Admits the file at `path`, or says why not.
pub(crate) async fn admit(admissions: &Arc<Admissions>, path: &Path) -> Admission {
    let began = Instant::now();
    let mut findings = Findings::default();
    let result = try_admit(admissions, path, &mut findings).await;
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (status, component, refusal) = match result {
        Ok(component) => {
            let component = Arc::new(component);
            admissions.components.note(&component);
            (PluginStatus::Ready, Some(component), None)
        }
        Err(refusal) => {
            let (code, message, fix) = toolchain::explain(refusal, findings.tool);
            (PluginStatus::Refused, None, Some(Refusal { code, message, fix }))
        }
    };
    let report = PluginReport {
        file,
        status,
        size_bytes: findings.size_bytes,
        digest: findings.digest,
        imports: findings.imports,
        runners: findings.runners,
        refusal,
        serves_previous: false,
        from_cache: findings.from_cache,
        loaded_at: Some(time::now()),
        load_ms: Some(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)),
    };
    Admission { report, component }
}

async fn try_admit(admissions: &Arc<Admissions>, path: &Path, findings: &mut Findings) -> Result<Component, ImportRefusal> {
    let permit = Arc::clone(&admissions.permits).acquire_owned().await.ok();

    let limit = admissions.limits.component_bytes;
    let owned = path.to_owned();
    let (bytes, digest) = off_thread(move || {
        let bytes = Arc::new(read(&owned, limit)?);
        let digest = format!("sha256:{}", hex::encode(&Sha256::digest(bytes.as_slice())));
        Ok((bytes, digest))
    })
    .await?;
    findings.size_bytes = bytes.len() as u64;
    findings.digest = Some(digest.clone());

    let surface = imports::surface(&bytes)?;
    structure::check(&bytes)?;
    findings.tool = Toolchain::of(&bytes);
    findings.imports = imports::judge(&surface.imports, None);
    imports::check_exports(&surface.exports)?;
    if let Some(refused) = imports::refusal(&findings.imports, findings.tool) {
        return Err(refused);
    }

    let cached = {
        let (admissions, digest) = (Arc::clone(admissions), digest.clone());
        off_thread(move || {
            let Some(cache) = &admissions.cache else { return Ok(None) };
            let loaded = cache.load(&admissions.engine.wasmtime, &digest);
            Ok(loaded.unwrap_or_else(|error| {
                tracing::warn!(digest, %error, "cached code does not load: compiling again");
                None
            }))
        })
        .await?
    };
    findings.from_cache = cached.is_some();
    let code = match cached {
        Some(code) => code,
        None => compile(admissions, Arc::clone(&bytes), digest.clone(), permit).await?,
    };

    let pre = link(&admissions.engine, &code, InterfaceSet::default()).map_err(|error| {
        let problem = format!("{error:#}");
        imports::mark_mismatch(&mut findings.imports, &problem);
        imports::refusal(&findings.imports, findings.tool).unwrap_or_else(|| {
            (
                RefusalCode::ImportMismatch,
                format!("the component does not fit the contract: {problem}"),
                "build it against the contract of this host (wit/), unchanged".to_owned(),
            )
        })
    })?;
    let runners = manifests::ask(pre, &admissions.limits, &admissions.threads).await?;
    findings.imports = imports::judge(&surface.imports, Some(manifests::declared(&runners)));
    findings.runners.clone_from(&runners);
    if let Some(refused) = imports::refusal(&findings.imports, findings.tool) {
        return Err(refused);
    }
    if admissions.components.keeps_files() {
        let (admissions, digest) = (Arc::clone(admissions), digest.clone());
        let stored = tokio::task::spawn_blocking(move || admissions.components.keep(&digest, &bytes)).await;
        if let Ok(Err(error)) = stored {
            tracing::warn!(%error, "a component could not be kept: runs of it cannot be resumed once its file is gone");
        }
    }
    let uses_wasi_http = imports::uses_wasi_http(&surface.imports);
    Ok(Component::new(Arc::clone(&admissions.engine), code, digest, runners, uses_wasi_http))
}

/// Runs what takes a core or a disk where nobody is served.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImportRefusal> + Send + 'static,
) -> Result<T, ImportRefusal> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        Err((
            RefusalCode::CompileFailed,
            "the host failed while it checked the file; its log has the reason".to_owned(),
            "report this file to the makers of the host".to_owned(),
        ))
    })
}

/// Compiles a component: in a process of its own where the host can start one, else on a thread, which keeps its permit until it
/// ends. A component that is too much for the compiler is refused, and not tried again until the limits allow for more.
async fn compile(
    admissions: &Arc<Admissions>,
    bytes: Arc<Vec<u8>>,
    digest: String,
    permit: Option<tokio::sync::OwnedSemaphorePermit>,
) -> Result<wasmtime::component::Component, ImportRefusal> {
    let limits = &admissions.limits;
    let (Some(program), Some(cache)) = (&admissions.compiler, &admissions.cache) else {
        return compile_here(admissions, bytes, digest, permit).await;
    };
    if let Some(RefusedCompile { code, message, fix, .. }) = cache.refused(&digest, limits) {
        return Err((code, format!("{message}, as the host has seen before"), fix));
    }
    let code = compiler::compile_apart(program, limits, bytes).await.inspect_err(|(code, message, fix)| {
        if matches!(code, RefusalCode::CompileTimeout | RefusalCode::CompileMemory) {
            let (compile_ms, compile_memory_bytes) = (limits.compile_ms, limits.compile_memory_bytes);
            let (message, fix) = (message.clone(), fix.clone());
            cache.refuse(&digest, &RefusedCompile { code: *code, message, fix, compile_ms, compile_memory_bytes });
        }
    })?;
    let this = Arc::clone(admissions);
    off_thread(move || {
        let _permit = permit;
        let Some(cache) = &this.cache else { return Err(not_stored()) };
        cache.store(&digest, &code);
        let loaded = cache.load(&this.engine.wasmtime, &digest);
        loaded.map_err(|error| compiler::invalid(&format!("{error:#}")))?.ok_or_else(not_stored)
    })
    .await
}

fn not_stored() -> ImportRefusal {
    (
        RefusalCode::CompileFailed,
        "compiled code cannot be stored; the log of the host has the reason".to_owned(),
        "check the disk, and copy the file again".to_owned(),
    )
}

async fn compile_here(
    admissions: &Arc<Admissions>,
    bytes: Arc<Vec<u8>>,
    digest: String,
    permit: Option<tokio::sync::OwnedSemaphorePermit>,
) -> Result<wasmtime::component::Component, ImportRefusal> {
    let this = Arc::clone(admissions);
    let compiling = off_thread(move || {
        let code = wasmtime::component::Component::from_binary(&this.engine.wasmtime, bytes.as_slice())
            .map_err(|error| compiler::invalid(&format!("{error:#}")))?;
        if let Some(cache) = &this.cache {
            match code.serialize() {
                Ok(code) => cache.store(&digest, &code),
                Err(error) => tracing::warn!(%error, "compiled code could not be cached"),
            }
        }
        drop(permit);
        Ok(code)
    });
    let allowed = Duration::from_millis(admissions.limits.compile_ms);
    tokio::time::timeout(allowed, compiling).await.unwrap_or_else(|_| Err(compiler::too_long(&admissions.limits)))
}

/// Reads a plain file, whole or not at all.
fn read(path: &Path, limit: u64) -> Result<Vec<u8>, ImportRefusal> {
    let unreadable = |message: String, fix: &str| (RefusalCode::Unreadable, message, fix.to_owned());
    // A link could lead out of the directory, and a pipe or device would hold the reader for ever.
    let kind = fs::symlink_metadata(path)
        .map_err(|error| unreadable(format!("the file cannot be read: {error}"), "check its rights"))?;
    if !kind.is_file() {
        return Err(unreadable("it is not a plain file".to_owned(), "copy the component itself into the plugins directory"));
    }
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits()).unwrap_or(0))
        .open(path)
        .map_err(|error| unreadable(format!("the file cannot be read: {error}"), "check its rights"))?;
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(format!("the file cannot be read: {error}"), "check the disk"))?;
    if bytes.len() as u64 > limit {
        return Err((
            RefusalCode::TooLarge,
            format!("the file is larger than {limit} bytes"),
            "strip debug information (`strip = true` in the profile), or raise `limits.component_bytes`".to_owned(),
        ));
    }
    Ok(bytes)
}
