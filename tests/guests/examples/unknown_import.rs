//! Imports an interface that no host has.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

#[allow(unsafe_code, clippy::allow_attributes_without_reason, reason = "generated")]
mod bindings {
    wit_bindgen::generate!({
        inline: r#"
            package test:unknown-import;

            world unknown-import {
                import example:unknown/thing;
            }

            package example:unknown {
                interface thing {
                    answer: func(question: string) -> string;
                }
            }
        "#,
        world: "test:unknown-import/unknown-import",
        generate_all,
    });
}

struct UnknownImport;

impl Runner for UnknownImport {
    fn manifest() -> Manifest {
        Manifest::new("test", "unknown-import")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        ctx.reply(&bindings::example::unknown::thing::answer(ctx.text()))?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(UnknownImport);
