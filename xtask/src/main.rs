//! The automation of the project. `cargo xtask help` lists what it does; CI calls `cargo xtask test` and nothing else.
//!
//! The crate is not a part of the host: it knows the binary by its command line and HTTP, and runners by their files.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for developers speaks on standard output and error")]

mod bench;
mod build_progress;
mod demo;
mod deny;
mod dist;
mod docs;
mod fuzz;
mod guests;
mod host;
mod hostile;
mod http;
mod messages;
mod mutants;
mod process;
mod screenshots;
mod soak;
mod test;
mod toolchain;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

use crate::workspace::Workspace;

/// The automation of the project.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    after_help = "Build output goes where CARGO_TARGET_DIR says, else to `target`."
)]
enum Command {
    Demo(demo::Demo),
    Test(test::Test),
    /// Build the example runners and the test guests for WebAssembly, and say where they are
    Guests,
    Bench(bench::Bench),
    Hostile(hostile::Hostile),
    Fuzz(fuzz::Fuzz),
    Soak(soak::Soak),
    Mutants(mutants::Mutants),
    Deny(deny::Deny),
    Dist(dist::Dist),
    Docs(docs::Docs),
    Messages(messages::Messages),
    Screenshots(screenshots::Screenshots),
}

fn main() -> ExitCode {
    match execute(Command::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(demo) => demo.execute(&Workspace::find()?),
        Command::Test(test) => test.execute(&Workspace::find()?),
        Command::Guests => {
            let workspace = Workspace::find()?;
            for guest in [guests::runners(&workspace)?, guests::test_guests(&workspace)?].concat() {
                println!("{}", workspace.relative(&guest).display());
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Bench(bench) => bench.execute(&Workspace::find()?),
        Command::Hostile(hostile) => hostile.execute(&Workspace::find()?),
        Command::Fuzz(fuzz) => fuzz.execute(&Workspace::find()?),
        Command::Soak(soak) => soak.execute(&Workspace::find()?),
        Command::Mutants(mutants) => mutants.execute(&Workspace::find()?),
        Command::Deny(deny) => deny.execute(&Workspace::find()?),
        Command::Dist(dist) => dist.execute(&Workspace::find()?),
        Command::Docs(docs) => docs.execute(&Workspace::find()?),
        Command::Messages(messages) => messages.execute(&Workspace::find()?),
        Command::Screenshots(screenshots) => screenshots.execute(&Workspace::find()?),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Command::command().debug_assert();
    }

    #[test]
    fn invalid_command_lines_are_refused() {
        for line in [
            "xtask",
            "xtask demo text --file f",
            "xtask bench a b",
            "xtask bench --stretches 0",
            "xtask bench compare",
            "xtask bench compare HEAD",
            "xtask hostile --host",
            "xtask guests x",
            "xtask fuzz --guided --seed 1",
            "xtask soak --hours 0",
            "xtask soak --kills some",
            "xtask soak --faults 0",
            "xtask dist --binary",
        ] {
            assert!(Command::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
        for line in [
            "xtask demo",
            "xtask demo - --serve",
            "xtask demo --file f",
            "xtask test a b",
            "xtask bench echo.",
            "xtask bench compare HEAD~1 echo",
            "xtask bench echo --stretches 1",
            "xtask messages --write",
            "xtask hostile 20 memory --list",
            "xtask docs",
            "xtask screenshots --write",
            "xtask fuzz --list",
            "xtask fuzz config html --seconds 5 --guided",
            "xtask soak",
            "xtask soak --kills 1000 --faults 8 --hours 0.5 --seed 7",
            "xtask deny",
            "xtask dist --binary target/release/agent-host",
        ] {
            assert!(Command::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }
}
