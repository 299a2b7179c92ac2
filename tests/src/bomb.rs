//! A component that keeps a compiler busy. `xtask` has this file too.

use wasm_encoder::{
    CodeSection, Component, ComponentExportKind, ComponentExportSection, ComponentInstanceSection, Function, FunctionSection,
    Instruction, MemArg, MemorySection, MemoryType, Module, ModuleSection, TypeSection, ValType,
};

/// Locals of a function, all of which are in use all the time.
const LOCALS: u32 = 60;

/// A file that looks like a runner from the outside, with a module of so many functions that take long to compile.
#[must_use]
pub fn bomb(functions: u32) -> Vec<u8> {
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
