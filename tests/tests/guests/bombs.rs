//! Components that are made to keep a compiler busy: they are refused, and stop nobody else.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use agent_host_tests::{process, support::Host};
use serde_json::Value;
use wasm_encoder::{
    CodeSection, Component, ComponentExportKind, ComponentExportSection, ComponentInstanceSection, Function, FunctionSection,
    Instruction, MemArg, MemorySection, MemoryType, Module, ModuleSection, TypeSection, ValType,
};

const LOCALS: u32 = 60;

/// A file that looks like a runner from the outside, with a module of so many functions that take long to compile.
fn bomb(functions: u32) -> Vec<u8> {
    let (mut types, mut declared, mut code) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([ValType::I32, ValType::I32], [ValType::I32]);
    for seed in 0..functions {
        declared.function(0);
        let mut function = Function::new([(LOCALS, ValType::I32)]);
        let mut state = seed.wrapping_add(1);
        let mut local = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % LOCALS
        };
        for _ in 0..30_000 {
            // What is stored cannot be left out.
            function.instruction(&Instruction::I32Const(0));
            function.instruction(&Instruction::LocalGet(local()));
            function.instruction(&Instruction::LocalGet(local()));
            function.instruction(&Instruction::I32Mul);
            function.instruction(&Instruction::LocalTee(local()));
            function.instruction(&Instruction::I32Store(MemArg { offset: 0, align: 2, memory_index: 0 }));
        }
        function.instruction(&Instruction::LocalGet(0));
        function.instruction(&Instruction::End);
        code.function(&function);
    }
    let mut memories = MemorySection::new();
    memories.memory(MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None });
    let mut module = Module::new();
    module.section(&types).section(&declared).section(&memories).section(&code);
    let mut instances = ComponentInstanceSection::new();
    instances.export_items([] as [(&str, ComponentExportKind, u32); 0]);
    let mut exports = ComponentExportSection::new();
    exports.export("agent-host:runner/runner@1.0.0", ComponentExportKind::Instance, 0, None);
    let mut component = Component::new();
    component.section(&ModuleSection(&module)).section(&instances).section(&exports);
    component.finish()
}

/// The report on a file, once there is one.
async fn report(host: &Host, file: &str) -> Value {
    let began = Instant::now();
    loop {
        let plugins = host.get("/api/v1/runners").await["plugins"].clone();
        if let Some(report) = plugins.as_array().unwrap().iter().find(|report| report["file"] == file) {
            return report.clone();
        }
        assert!(began.elapsed() < Duration::from_secs(240), "there is no report on {file}: {plugins}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn drop_in(dir: &Path, file: &str, bytes: &[u8]) {
    let plugins = dir.join("plugins");
    std::fs::write(plugins.join(".new"), bytes).unwrap();
    std::fs::rename(plugins.join(".new"), plugins.join(file)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_is_too_much_for_the_compiler_stops_nobody() {
    let config = |limits: &str| {
        format!(
            "[[bindings]]\nid = \"echo\"\nrunner = \"plugin:agent-host/echo/default\"\n[limits]\nmax_live_runs = 50\n{limits}"
        )
    };
    let mut host = Host::limited(&["echo"], &config("compile_ms = 4000\nplugins_wait_ms = 2000\n"));
    assert_eq!(report(&host, "echo.wasm").await["status"], "ready");
    host.terminate();

    // The host serves while a compiler is busy.
    drop_in(host.dir(), "bomb.wasm", &bomb(240));
    let began = Instant::now();
    host.revive();
    let ready: Value = reqwest::get(format!("{}/readyz", *host.urls().borrow())).await.unwrap().json().await.unwrap();
    assert_eq!(ready["ready"], false, "{ready}");
    assert!(ready["problems"].to_string().contains("plugins are still being compiled"), "{ready}");
    assert_eq!(host.take("hi").await.run["status"], "completed");
    let refused = report(&host, "bomb.wasm").await;
    assert_eq!(refused["refusal"]["code"], "compile_timeout", "{refused} after {:?}", began.elapsed());
    assert!(refused["refusal"]["fix"].as_str().unwrap().contains("limits.compile_ms"), "{refused}");

    // It is not tried again: the host is ready at once.
    host.terminate();
    host.revive();
    assert_eq!(host.get("/readyz").await["ready"], true);
    let refused = report(&host, "bomb.wasm").await;
    assert!(refused["refusal"]["message"].as_str().unwrap().ends_with("as the host has seen before"), "{refused}");

    // Neither time nor memory is without bounds.
    host.terminate();
    host.reconfigure(|_| config("compile_memory_bytes = 67108864\n"));
    drop_in(host.dir(), "bomb.wasm", &bomb(241));
    host.revive();
    let refused = report(&host, "bomb.wasm").await;
    assert_eq!(refused["refusal"]["code"], "compile_memory", "{refused}");
    assert_eq!(host.take("hi").await.run["status"], "completed");
    host.check();
}

#[test]
fn the_command_of_the_compiler_is_of_no_use_to_people() {
    let dir = tempfile::tempdir().unwrap();
    let output = process::command(dir.path()).arg("compile-component").output().unwrap();
    assert!(!output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr).trim(), "the host starts this command");
    assert!(output.stdout.is_empty());
}
