//! Bounds on what a component is built of, read before anything is compiled: a small file can ask for a number of instances that
//! grows with two to the power of its nesting, and one function can keep a compiler busy for minutes.

use agent_host_protocol::RefusalCode;
use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentExternalKind, ComponentInstance, ComponentOuterAliasKind, ComponentTypeRef,
    Encoding, FunctionBody, Instance, Parser, Payload,
};

use crate::imports::{self, ImportRefusal};

/// Instances of components and modules, all levels counted. Components of Rust and JavaScript have some ten, of Python 65.
const MAX_INSTANCES: u64 = 1_000;
/// The cost of a component that is named from elsewhere: nothing that people build makes instances of one.
const UNKNOWN: u64 = MAX_INSTANCES + 1;
/// Components within components.
const MAX_DEPTH: usize = 32;
/// Code of one function. The largest of a component with CPython relocates its libraries and has 427 KB, of Rust a tenth of that.
const MAX_FUNCTION_BYTES: usize = 2 * 1024 * 1024;
/// Locals of one function.
const MAX_LOCALS: u64 = 20_000;

/// The instances of a component, and of each component that it can name: one instance of it costs so many.
#[derive(Default)]
struct Scope {
    is_component: bool,
    instances: u64,
    components: Vec<u64>,
}

impl Scope {
    fn cost(&self, component: u32) -> u64 {
        self.components.get(component as usize).copied().unwrap_or(0)
    }

    fn add(&mut self, instances: u64) {
        self.instances = self.instances.saturating_add(instances);
    }
}

/// Checks that what the component is built of is within bounds.
pub(crate) fn check(bytes: &[u8]) -> Result<(), ImportRefusal> {
    let mut scopes: Vec<Scope> = Vec::new();
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(|error| imports::damaged(&error))?;
        step(&mut scopes, payload).map_err(|error| imports::damaged(&error))?.map_or(Ok(()), Err)?;
        if scopes.len() > MAX_DEPTH {
            return Err(too_much(format!("components are nested more than {MAX_DEPTH} deep")));
        }
        if scopes.last().is_some_and(|scope| scope.instances > MAX_INSTANCES) {
            return Err(too_much(format!("the component has more than {MAX_INSTANCES} instances")));
        }
    }
    Ok(())
}

/// Takes one part of the file.
fn step(scopes: &mut Vec<Scope>, payload: Payload<'_>) -> Result<Option<ImportRefusal>, BinaryReaderError> {
    if let Payload::Version { encoding, .. } = payload {
        scopes.push(Scope { is_component: encoding == Encoding::Component, ..Scope::default() });
        return Ok(None);
    }
    if let Payload::End(_) = payload {
        let ended = scopes.pop();
        if let (Some(ended), Some(outer)) = (ended.filter(|scope| scope.is_component), scopes.last_mut()) {
            outer.components.push(ended.instances.saturating_add(1));
        }
        return Ok(None);
    }
    if let Payload::ComponentAliasSection(section) = payload {
        for alias in section {
            let cost = match alias? {
                ComponentAlias::Outer { kind: ComponentOuterAliasKind::Component, count, index } => {
                    let place = scopes.len().checked_sub(1 + count as usize);
                    place.and_then(|place| scopes.get(place)).map_or(0, |scope| scope.cost(index))
                }
                ComponentAlias::InstanceExport { kind: ComponentExternalKind::Component, .. } => UNKNOWN,
                _ => continue,
            };
            if let Some(scope) = scopes.last_mut() {
                scope.components.push(cost);
            }
        }
        return Ok(None);
    }
    let Some(scope) = scopes.last_mut() else { return Ok(None) };
    match payload {
        Payload::CodeSectionEntry(body) => return function(&body),
        Payload::ComponentImportSection(section) => {
            for import in section {
                if let ComponentTypeRef::Component(_) = import?.ty {
                    scope.components.push(UNKNOWN);
                }
            }
        }
        Payload::ComponentExportSection(section) => {
            for export in section {
                let export = export?;
                if export.kind == ComponentExternalKind::Component {
                    scope.components.push(scope.cost(export.index));
                }
            }
        }
        Payload::InstanceSection(section) => {
            for instance in section {
                if let Instance::Instantiate { .. } = instance? {
                    scope.add(1);
                }
            }
        }
        Payload::ComponentInstanceSection(section) => {
            for instance in section {
                if let ComponentInstance::Instantiate { component_index, .. } = instance? {
                    scope.add(scope.cost(component_index));
                }
            }
        }
        _ => {}
    }
    Ok(None)
}

fn function(body: &FunctionBody<'_>) -> Result<Option<ImportRefusal>, BinaryReaderError> {
    let size = body.range().len();
    if size > MAX_FUNCTION_BYTES {
        return Ok(Some(too_much(format!("a function has {size} bytes of code; the limit is {MAX_FUNCTION_BYTES}"))));
    }
    let mut locals = 0_u64;
    for local in body.get_locals_reader()? {
        locals = locals.saturating_add(u64::from(local?.0));
    }
    if locals > MAX_LOCALS {
        return Ok(Some(too_much(format!("a function has {locals} locals; the limit is {MAX_LOCALS}"))));
    }
    Ok(None)
}

fn too_much(message: String) -> ImportRefusal {
    (
        RefusalCode::TooComplex,
        message,
        "build the component without generated code of this size; if a tool of common use makes it, tell the makers of the host"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{
        CodeSection, Component, ComponentInstanceSection, ComponentSectionId, Function, FunctionSection, Instruction, Module,
        ModuleSection, NestedComponentSection, RawSection, TypeSection, ValType,
    };

    use super::*;

    fn code(component: Component) -> Option<RefusalCode> {
        check(&component.finish()).err().map(|(code, ..)| code)
    }

    /// Components of which each has `width` instances of the one within it.
    fn nested(depth: usize, width: usize) -> Component {
        let mut component = Component::new();
        if depth > 0 {
            component.section(&NestedComponentSection(&nested(depth - 1, width)));
            let mut instances = ComponentInstanceSection::new();
            for _ in 0..width {
                instances.instantiate(0, [] as [(&str, wasm_encoder::ComponentExportKind, u32); 0]);
            }
            component.section(&instances);
        }
        component
    }

    fn with_function(locals: u32, instructions: usize) -> Component {
        let (mut types, mut functions, mut code) = (TypeSection::new(), FunctionSection::new(), CodeSection::new());
        types.ty().function([], []);
        functions.function(0);
        let mut function = Function::new([(locals, ValType::I32)]);
        for _ in 0..instructions {
            function.instruction(&Instruction::Nop);
        }
        function.instruction(&Instruction::End);
        code.function(&function);
        let mut module = Module::new();
        module.section(&types).section(&functions).section(&code);
        let mut component = Component::new();
        component.section(&ModuleSection(&module));
        component
    }

    #[test]
    fn instances_are_counted_through_all_levels() {
        assert_eq!(code(nested(8, 2)), None);
        assert_eq!(code(nested(24, 2)), Some(RefusalCode::TooComplex), "two to the power of 24");
        assert_eq!(code(nested(30, 1)), None);
        assert_eq!(code(nested(40, 1)), Some(RefusalCode::TooComplex), "too deep");
        assert_eq!(code(nested(1, 900)), None);
        assert_eq!(code(nested(1, 1_100)), Some(RefusalCode::TooComplex));
    }

    #[test]
    fn functions_have_a_size_and_so_many_locals() {
        assert_eq!(code(with_function(10, 1_000)), None);
        assert_eq!(code(with_function(10, MAX_FUNCTION_BYTES)), Some(RefusalCode::TooComplex));
        assert_eq!(code(with_function(30_000, 1)), Some(RefusalCode::TooComplex));
    }

    #[test]
    fn a_section_that_names_nothing_is_left_to_the_compiler() {
        let mut component = Component::new();
        component.section(&RawSection { id: ComponentSectionId::Instance.into(), data: &[1, 0, 7, 0] });
        assert_eq!(code(component), None);
    }
}
