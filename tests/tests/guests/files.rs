//! Files that were made to hurt whoever reads, compiles or holds them: each is refused, by name, and within its time.

use std::{
    fs,
    os::unix::ffi::OsStrExt,
    time::{Duration, Instant},
};

use agent_host_protocol::{PluginStatus, RefusalCode, RunStatus};
use agent_host_tests::{
    World,
    world::{PATIENCE, limits},
};

/// A component with these parts, that looks like a runner from the outside.
fn component(parts: &str) -> Vec<u8> {
    let text = format!("(component {parts} (instance $runner) (export \"agent-host:runner/runner@1.0.0\" (instance $runner)))");
    wat::parse_str(text).unwrap()
}

/// The refusal of a file, and its message.
async fn refusal(name: &str, bytes: &[u8]) -> (RefusalCode, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("odd.wasm");
    fs::write(&file, bytes).unwrap();
    let began = Instant::now();
    let report = agent_host_runs::inspect(&file, &limits()).await.unwrap();
    assert!(began.elapsed() < PATIENCE, "{name} took {:?}", began.elapsed());
    assert_eq!(report.status, PluginStatus::Refused, "{name}: {report:#?}");
    let refusal = report.refusal.unwrap();
    assert!(!refusal.fix.is_empty(), "{name}");
    (refusal.code, refusal.message)
}

#[tokio::test]
async fn features_that_are_off_are_refused_one_by_one() {
    for (feature, parts) in [
        ("64-bit memory", "(core module (memory i64 1))"),
        ("64-bit tables", "(core module (table i64 1 funcref))"),
        ("shared memory", "(core module (memory 1 1 shared))"),
        ("atomics", "(core module (memory 1) (func i32.const 0 i32.atomic.load drop))"),
        ("exceptions", "(core module (type (func)) (tag (type 0)))"),
        ("GC", "(core module (type (struct (field i32))))"),
        ("page sizes", "(core module (memory 1 (pagesize 1)))"),
        ("stack switching", "(core module (type (func)) (type (cont 0)))"),
        ("streams", "(type (stream u8))"),
        ("futures", "(type (future u8))"),
        ("error contexts", "(core func (canon error-context.drop))"),
        ("async functions", "(core func (canon task.cancel))"),
        (
            "async lifts",
            "(core module $m (func (export \"f\"))) (core instance $i (instantiate $m)) (func (canon lift (core func $i \"f\") async))",
        ),
        (
            "callbacks of another type",
            "(core module $m (func (export \"f\")) (func (export \"g\") (param i64))) (core instance $i (instantiate $m)) \
             (func (canon lift (core func $i \"f\") async (callback (core func $i \"g\"))))",
        ),
        ("threads of components", "(core func (canon thread.yield))"),
    ] {
        let (code, message) = refusal(feature, &component(parts)).await;
        assert_eq!(code, RefusalCode::Invalid, "{feature}: {message}");
    }
}

#[tokio::test]
async fn what_an_instance_would_take_is_judged_before_there_is_one() {
    let tables = "(table 1 funcref)".repeat(11);
    let memories = "(memory 1)".repeat(3);
    for (name, module) in [
        ("a memory of 128 MiB at its start", "(memory 2048)"),
        ("a table of a million elements", "(table 1000000 funcref)"),
        ("eleven tables", &tables),
        ("three memories", &memories),
    ] {
        let (code, message) = refusal(name, &component(&format!("(core module {module})"))).await;
        assert_eq!(code, RefusalCode::Invalid, "{name}: {message}");
    }
}

#[tokio::test]
async fn names_and_numbers_without_end_are_refused() {
    let imports: String = (0..1_100).map(|n| format!("(import \"a:b/c{n}\" (instance))")).collect();
    let (code, message) = refusal("imports", &component(&imports)).await;
    assert_eq!(code, RefusalCode::Invalid, "{message}");
    assert!(message.contains("1000 imports"), "{message}");

    let targets = "0 ".repeat(3_000_000);
    let branches = format!("(core module (func (block i32.const 0 br_table {targets})))");
    assert_eq!(refusal("branches", &component(&branches)).await.0, RefusalCode::TooComplex);

    // Validation ends this one: types of types have a size in all.
    let mut types = "(type $t0 (tuple u8 u8))".to_owned();
    for n in 1..40 {
        let before = n - 1;
        types.push_str(&format!("(type $t{n} (tuple $t{before} $t{before}))"));
    }
    assert_eq!(refusal("types", &component(&types)).await.0, RefusalCode::Invalid);

    let functions = format!("(core module {})", "(func)".repeat(1_000_001));
    assert_eq!(refusal("functions", &component(&functions)).await.0, RefusalCode::Invalid);

    for parts in ["(core module (import \"\\1b[31m\" \"\\07\" (func)))", "(import \"a:b/\\1b[31m\" (instance))"] {
        let (code, message) = refusal("control characters", &component(parts)).await;
        assert!(matches!(code, RefusalCode::UnknownImport | RefusalCode::ImportMismatch), "{code:?}: {message}");
    }

    let twice = "(instance $a) (export \"x:y/z\" (instance $a)) (export \"x:y/z\" (instance $a))";
    let (code, message) = refusal("exports", &component(twice)).await;
    assert_eq!(code, RefusalCode::Invalid, "{message}");
}

#[tokio::test]
async fn functions_that_are_missing_or_of_another_type_are_named() {
    for (functions, code, says) in [
        ("(export \"run\" (func $f))", RefusalCode::ImportMismatch, "list-runners"),
        ("(export \"list-runners\" (func $f)) (export \"run\" (func $f))", RefusalCode::ManifestFailed, "broke the contract"),
    ] {
        let text = format!(
            "(component (core module $m (func (export \"f\"))) (core instance $i (instantiate $m)) \
             (func $f (canon lift (core func $i \"f\"))) (instance $runner {functions}) \
             (export \"agent-host:runner/runner@1.0.0\" (instance $runner)))"
        );
        let (found, message) = refusal(functions, &wat::parse_str(text).unwrap()).await;
        assert_eq!(found, code, "{message}");
        assert!(message.contains(says), "{message}");
    }
}

/// A component with these parts, which are executed when it is instantiated, and with the functions of a runner.
fn instantiated(parts: &str) -> Vec<u8> {
    let text = format!(
        "(component {parts} (core module $m (func (export \"f\"))) (core instance $i (instantiate $m)) \
         (func $f (canon lift (core func $i \"f\"))) \
         (instance $runner (export \"list-runners\" (func $f)) (export \"run\" (func $f))) \
         (export \"agent-host:runner/runner@1.0.0\" (instance $runner)))"
    );
    wat::parse_str(text).unwrap()
}

/// A resource of the component's own, whose destructor does this, and which is dropped when the component is instantiated.
fn destructor(does: &str) -> Vec<u8> {
    instantiated(&format!(
        "(core module $d (func (export \"drop\") (param i32) {does})) (core instance $d (instantiate $d)) \
         (type $r (resource (rep i32) (dtor (core func $d \"drop\")))) \
         (core func $new (canon resource.new $r)) (core func $drop (canon resource.drop $r)) \
         (core module $s (import \"\" \"new\" (func $new (param i32) (result i32))) (import \"\" \"drop\" (func $drop (param i32))) \
          (func $start (call $drop (call $new (i32.const 1)))) (start $start)) \
         (core instance (instantiate $s (with \"\" (instance (export \"new\" (func $new)) (export \"drop\" (func $drop))))))"
    ))
}

#[tokio::test]
async fn harm_while_a_component_is_instantiated_is_bounded() {
    let grow = "(table.grow (ref.null func) (i32.const 1000))";
    let start = |does: &str| {
        let module =
            format!("(core module $s (table 1 funcref) (func $start {does}) (start $start)) (core instance (instantiate $s))");
        instantiated(&module)
    };
    let limits = limits();
    for (name, bytes, says) in [
        // A table that may not grow answers -1, and a guest may try for ever.
        ("a loop of table.grow", start(&format!("(loop (drop {grow}) (br 0))")), "did not answer within"),
        (
            "a table as large as it can be",
            start(&format!("(loop (br_if 0 (i32.ne {grow} (i32.const -1))) unreachable)")),
            "larger tables than a run may have",
        ),
        ("a loop in a destructor", destructor("(loop (br 0))"), "did not answer within"),
        ("a trap in a destructor", destructor("unreachable"), "trapped"),
    ] {
        let began = Instant::now();
        let (code, message) = refusal(name, &bytes).await;
        assert_eq!(code, RefusalCode::ManifestFailed, "{name}: {message}");
        assert!(message.contains(says), "{name}: {message}");
        assert!(began.elapsed() < Duration::from_millis(limits.manifest_ms) + PATIENCE / 2, "{name}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_file_that_changes_while_it_is_read_is_refused_or_one_of_its_states() {
    const ECHO: &str = "plugin:agent-host/echo/default";
    let world = World::new(&["echo"], ECHO).await;
    let file = world.plugin("echo.wasm");
    let good = fs::read(&file).unwrap();
    // Written in place, which is not how a plugin is replaced: a reader sees any mixture of both.
    for n in 0..40 {
        let cut = good.len() * n / 40;
        fs::write(&file, &good[..cut]).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        fs::write(&file, &good).unwrap();
        assert_eq!(world.say("hi").await.run.status, RunStatus::Completed, "the previous version serves");
    }
    let began = Instant::now();
    while world.report("echo.wasm").is_none_or(|report| report.status != PluginStatus::Ready || report.refusal.is_some()) {
        assert!(began.elapsed() < PATIENCE, "{:#?}", world.report("echo.wasm"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.say("hi").await.run.status, RunStatus::Completed);
}

#[tokio::test]
async fn files_that_are_no_files_and_names_that_are_no_text_stop_nobody() {
    const ECHO: &str = "plugin:agent-host/echo/default";
    let world = World::new(&["echo"], ECHO).await;
    // Whoever opens a pipe to read it waits for a writer.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        world.plugin("pipe.wasm"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    fs::write(world.plugin("x").with_file_name(std::ffi::OsStr::from_bytes(b"odd\xff.wasm")), "nothing").unwrap();
    for n in 0..2_000 {
        fs::write(world.plugin(&format!("file-{n}.txt")), "nothing").unwrap();
    }
    let began = Instant::now();
    while world.report("pipe.wasm").is_none() {
        assert!(began.elapsed() < PATIENCE, "the pipe is not reported");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.report("pipe.wasm").unwrap().refusal.unwrap().code, RefusalCode::Unreadable);
    assert_eq!(world.host.plugins().len(), 2, "{:#?}", world.host.plugins());
    assert_eq!(world.say("hi").await.run.status, RunStatus::Completed);
}
