//! Made for a host that is one minor version ahead: its `log` has a function more.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

#[allow(unsafe_code, clippy::allow_attributes_without_reason, reason = "generated")]
mod bindings {
    wit_bindgen::generate!({
        inline: r#"
            package agent-host:runner@1.1.0;

            interface log {
                enum level { trace, debug, info, warn, error }
                write: func(level: level, message: string);
                /// A function that 1.0.0 does not have.
                write-fields: func(level: level, message: string, fields: list<tuple<string, string>>);
            }

            world newer-minor {
                import log;
            }
        "#,
        world: "newer-minor",
        generate_all,
    });
}

use bindings::agent_host::runner::log::{Level, write, write_fields};

struct NewerMinor;

impl Runner for NewerMinor {
    fn manifest() -> Manifest {
        Manifest::new("test", "newer-minor")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        write(Level::Info, "a line");
        write_fields(Level::Info, "a line", &[("key".to_owned(), "value".to_owned())]);
        ctx.reply("ok")?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(NewerMinor);
