//! The components that the tests run: the example runners, and the guests of `tests/guests`.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The component of an example runner (`echo`) or of a test guest (`hostile`).
pub fn component(name: &str) -> PathBuf {
    let dir = built();
    let example_runner = dir.join(format!("{name}_runner.wasm"));
    if example_runner.is_file() {
        return example_runner;
    }
    let guest = dir.join("examples").join(format!("{name}.wasm"));
    assert!(guest.is_file(), "there is no component {name} in {}", dir.display());
    guest
}

/// The folder of the components. `cargo xtask test` has built them; a bare `cargo test` builds them here, once.
fn built() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        if let Some(dir) = std::env::var_os("AGENT_HOST_WASM_DIR") {
            return dir.into();
        }
        let status = Command::new(env!("CARGO")).args(["xtask", "guests"]).status().expect("cargo runs");
        assert!(status.success(), "the components could not be built");
        target_dir().join("wasm32-wasip2").join("guest")
    })
}

/// The host binary.
pub(crate) fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY
        .get_or_init(|| {
            if let Some(binary) = std::env::var_os("AGENT_HOST_BIN") {
                return binary.into();
            }
            let status = Command::new(env!("CARGO")).args(["build", "--package", "agent-host"]).status().expect("cargo runs");
            assert!(status.success(), "the host could not be built");
            target_dir().join("debug").join("agent-host")
        })
        .clone()
}

/// The build folder of cargo.
pub fn target_dir() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the project");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}
