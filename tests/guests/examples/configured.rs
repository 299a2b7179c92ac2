//! `plugin:test/configured/default` answers with its configuration.

use agent_host_sdk::serde_json::json;
use agent_host_sdk::{Completion, Context, Failure, FormItem, Manifest, Runner};
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    name: String,
    #[serde(default = "three")]
    count: u32,
    #[serde(default)]
    mode: Mode,
    #[serde(default)]
    loud: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Fast,
    Slow,
}

fn three() -> u32 {
    3
}

struct Configured;

impl Runner for Configured {
    fn manifest() -> Manifest {
        Manifest::new("test", "configured")
            .label("en", "Configured")
            .form(FormItem::string("name").label("en", "Name").required())
            .form(FormItem::integer("count").label("en", "Count").default(3))
            .form(FormItem::select("mode").label("en", "Mode").option("fast", "Fast").option("slow", "Slow").default("fast"))
            .form(FormItem::boolean("loud").label("en", "Loud").default(false))
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let Config { name, count, mode, loud } = ctx.config()?;
        let mode = match mode {
            Mode::Fast => "fast",
            Mode::Slow => "slow",
        };
        let config = json!({ "name": name, "count": count, "mode": mode, "loud": loud });
        ctx.reply(&config.to_string())?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Configured);
