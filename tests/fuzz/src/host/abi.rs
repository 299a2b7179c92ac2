//! The canonical ABI: a guest whose calls have generated arguments in a generated memory, and which is given a generated context.
//!
//! The input is a program: each call of the guest with its arguments, the way in which the guest allocates, its memory, and members
//! of its context as JSON. All functions of the contract are called, with any pointers, lengths, texts and handles.

use std::{fmt::Write as _, path::Path, sync::LazyLock, time::Duration};

use agent_host_protocol::{FailureCode, context::RunContext};
use agent_host_sandbox::{Outcome, fuzz::AbiHarness};
use arbitrary::{Result, Unstructured};
use serde_json::Value;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::{
    ManglingAndAbi, Resolve, ResourceIntrinsic, TypeDefKind, WasmExport, WasmExportKind, WasmImport, WorldId, WorldItem,
    abi::{AbiVariant, WasmType},
};

use super::{RUNTIME, admission::limits};

const MANGLING: ManglingAndAbi = ManglingAndAbi::Legacy(wit_parser::LiftLowerAbi::Sync);
/// Calls of one guest.
const MAX_CALLS: usize = 12;
/// Bytes of the memory that are generated.
const MAX_MEMORY: usize = 2_048;
/// Time for one guest, which has no loops.
const PATIENCE: Duration = Duration::from_secs(30);

/// The contract, as a core module sees it.
struct Contract {
    resolve: Resolve,
    world: WorldId,
    imports: Vec<Import>,
    exports: Vec<Export>,
}

struct Import {
    module: String,
    name: String,
    params: Vec<WasmType>,
    results: Vec<WasmType>,
}

struct Export {
    name: String,
    params: Vec<WasmType>,
    results: Vec<WasmType>,
}

static CONTRACT: LazyLock<Contract> = LazyLock::new(|| {
    let mut resolve = Resolve::default();
    let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit");
    let (package, _) = resolve.push_dir(&wit).expect("the contract can be read");
    let world = resolve.select_world(&[package], Some("agent-runner")).expect("the contract has its world");
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    for (key, item) in &resolve.worlds[world].imports {
        let WorldItem::Interface { id, .. } = item else { continue };
        for func in resolve.interfaces[*id].functions.values() {
            let signature = resolve.wasm_signature(AbiVariant::GuestImport, func);
            let (module, name) = resolve.wasm_import_name(MANGLING, WasmImport::Func { interface: Some(key), func });
            imports.push(Import { module, name, params: signature.params, results: signature.results });
        }
        for resource in resolve.interfaces[*id].types.values() {
            if matches!(resolve.types[*resource].kind, TypeDefKind::Resource) {
                let intrinsic = ResourceIntrinsic::ImportedDrop;
                let import = WasmImport::ResourceIntrinsic { interface: Some(key), resource: *resource, intrinsic };
                let (module, name) = resolve.wasm_import_name(MANGLING, import);
                imports.push(Import { module, name, params: vec![WasmType::I32], results: Vec::new() });
            }
        }
    }
    for (key, item) in &resolve.worlds[world].exports {
        let WorldItem::Interface { id, .. } = item else { continue };
        for func in resolve.interfaces[*id].functions.values() {
            let signature = resolve.wasm_signature(AbiVariant::GuestExport, func);
            let export = WasmExport::Func { interface: Some(key), func, kind: WasmExportKind::Normal };
            let name = resolve.wasm_export_name(MANGLING, export);
            exports.push(Export { name, params: signature.params, results: signature.results });
        }
    }
    Contract { resolve, world, imports, exports }
});

static HARNESS: LazyLock<AbiHarness> =
    LazyLock::new(|| RUNTIME.block_on(async { AbiHarness::new(limits()) }).expect("an engine can be started"));

/// A guest that breaks the ABI ends as a guest that did: never as a failure of the host.
pub(crate) fn canonical_abi(data: &[u8]) {
    let mut data = Unstructured::new(data);
    let Ok(module) = module(&mut data) else { return };
    let context = context(&data);
    let mut bytes = wat::parse_str(&module).unwrap_or_else(|error| panic!("{error}\n{module}"));
    embed_component_metadata(&mut bytes, &CONTRACT.resolve, CONTRACT.world, StringEncoding::UTF8)
        .expect("a module takes the contract");
    let component = ComponentEncoder::default().module(&bytes).and_then(|encoder| encoder.encode());
    let component = component.unwrap_or_else(|error| panic!("{error:#}\n{module}"));
    // Made before: it needs the runtime itself.
    let harness = &*HARNESS;
    let run = RUNTIME.block_on(async { tokio::time::timeout(PATIENCE, harness.run(&component, context)).await });
    let outcome = run.expect("a guest without loops ends").unwrap_or_else(|error| panic!("{error}\n{module}"));
    if let Outcome::Broken { code, message } = outcome {
        assert!(!message.is_empty() && code != FailureCode::HostError, "{code:?}: {message}\n{module}");
    }
}

/// The guest, as text.
fn module(data: &mut Unstructured<'_>) -> Result<String> {
    let mut text = "(module\n".to_owned();
    let calls: Vec<usize> =
        (0..data.int_in_range(0..=MAX_CALLS)?).map(|_| data.choose_index(CONTRACT.imports.len())).collect::<Result<_>>()?;
    for (index, Import { module, name, params, results }) in CONTRACT.imports.iter().enumerate() {
        // A component imports only what its module does.
        if calls.contains(&index) {
            let types = types("param", params) + &types("result", results);
            let _ = writeln!(text, "(import {module:?} {name:?} (func $f{index}{types}))");
        }
    }
    let memory = CONTRACT.resolve.wasm_export_name(MANGLING, WasmExport::Memory);
    let realloc = CONTRACT.resolve.wasm_export_name(MANGLING, WasmExport::Realloc);
    let _ = writeln!(text, "(memory (export {memory:?}) 16)\n(global $next (mut i32) (i32.const 4096))");
    let allocation = match data.int_in_range(0..=7)? {
        // Aligned, behind each other, without an end.
        0..=5 => "(global.set $next (i32.and (i32.add (global.get $next) (i32.const 15)) (i32.const -16)))
            (global.get $next) (global.set $next (i32.add (global.get $next) (local.get 3)))"
            .to_owned(),
        6 => format!("(i32.const {})", data.arbitrary::<i32>()?),
        _ => "unreachable".to_owned(),
    };
    let _ = writeln!(text, "(func (export {realloc:?}) (param i32 i32 i32 i32) (result i32) {allocation})");
    for Export { name, params, results } in &CONTRACT.exports {
        let _ = writeln!(text, "(func (export {name:?}){}{}", types("param", params), types("result", results));
        for index in &calls {
            let import = &CONTRACT.imports[*index];
            for param in &import.params {
                let _ = write!(text, " {}", argument(data, *param)?);
            }
            let _ = writeln!(text, " call $f{index}{}", " drop".repeat(import.results.len()));
        }
        for result in results {
            let _ = write!(text, " {}", argument(data, *result)?);
        }
        text.push_str(")\n");
    }
    text.push_str("(data (i32.const 0) \"");
    let len = data.int_in_range(0..=MAX_MEMORY)?;
    for byte in data.bytes(len.min(data.len()))? {
        let _ = write!(text, "\\{byte:02x}");
    }
    text.push_str("\"))\n");
    Ok(text)
}

fn types(kind: &str, types: &[WasmType]) -> String {
    let name = |ty: &WasmType| match ty {
        WasmType::I64 | WasmType::PointerOrI64 => " i64",
        WasmType::F32 => " f32",
        WasmType::F64 => " f64",
        WasmType::I32 | WasmType::Pointer | WasmType::Length => " i32",
    };
    if types.is_empty() { String::new() } else { format!(" ({kind}{})", types.iter().map(name).collect::<String>()) }
}

/// A constant: mostly a small number, which is a pointer into the generated memory, a length, a handle or a case.
fn argument(data: &mut Unstructured<'_>, ty: WasmType) -> Result<String> {
    let number: i64 = match data.int_in_range(0..=7)? {
        0 | 1 => data.int_in_range(0..=3)?,
        2 | 3 => data.int_in_range(0..=255)?,
        4 | 5 => data.int_in_range::<i64>(0..=511)? * 4,
        6 => data.int_in_range(65_500..=1_048_600)?,
        _ => data.arbitrary()?,
    };
    let narrow = i32::from_ne_bytes((u32::try_from(number & 0xffff_ffff).unwrap_or_default()).to_ne_bytes());
    Ok(match ty {
        WasmType::I64 | WasmType::PointerOrI64 => format!("(i64.const {number})"),
        WasmType::F32 => format!("(f32.reinterpret_i32 (i32.const {narrow}))"),
        WasmType::F64 => format!("(f64.reinterpret_i64 (i64.const {number}))"),
        WasmType::I32 | WasmType::Pointer | WasmType::Length => format!("(i32.const {narrow})"),
    })
}

/// A context: the rest of the input, an object, replaces members of a usual one.
fn context(data: &Unstructured<'_>) -> Box<RunContext> {
    let usual: Value = serde_json::from_str(include_str!("context.json")).expect("the usual context is JSON");
    let mut changed = usual.clone();
    if let Ok(Value::Object(members)) = serde_json::from_slice(data.peek_bytes(data.len()).unwrap_or_default()) {
        for (name, value) in members {
            changed[name] = value;
        }
    }
    let context = serde_json::from_value(changed).or_else(|_| serde_json::from_value(usual));
    Box::new(context.expect("the usual context is a context"))
}
