//! The MCP endpoint of a run in the configuration of an agent that does not take it by its protocol. The token is in the environment of
//! the process only: no file and no argument has it.

use std::{
    io,
    path::{Path, PathBuf},
};

use agent_host_config::HarnessPreset;
use serde_json::{Value, json};

use crate::{
    process::ProcessPlan,
    projection::{MCP_SERVER, MCP_TOKEN, write_private},
};

/// The variable of a configuration file of OpenCode, and that of a configuration in the variable itself.
const OPENCODE: [&str; 2] = ["OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT"];
/// The variable of a file with the defaults of Gemini CLI.
const GEMINI: &str = "GEMINI_CLI_SYSTEM_DEFAULTS_PATH";

/// Puts the endpoint into the arguments, the environment and the files of a process. Returns the files that go with the end of the run.
/// A configuration of the operator or the user stays as it is.
///
/// # Errors
/// Fails if a file cannot be written.
pub(crate) fn put(
    preset: HarnessPreset,
    plan: &mut ProcessPlan,
    dir: &Path,
    (url, token): (&str, &str),
) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    match preset {
        HarnessPreset::Codex => {
            // A string of JSON is one of TOML.
            let keys = [("url", json!(url)), ("bearer_token_env_var", json!(MCP_TOKEN))];
            let settings = keys.map(|(key, value)| format!("mcp_servers.{MCP_SERVER}.{key}={value}"));
            plan.launch.args.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
        }
        HarnessPreset::Gemini => {
            let headers = json!({ "Authorization": format!("Bearer ${MCP_TOKEN}") });
            let settings = json!({ "mcpServers": { MCP_SERVER: { "httpUrl": url, "headers": headers } } });
            if !plan.env.contains_key(GEMINI) {
                let file = dir.join("gemini-settings.json");
                write(&file, &settings)?;
                plan.env.insert(GEMINI.to_owned(), file.to_string_lossy().into_owned());
                files.push(file);
            }
        }
        HarnessPreset::OpenCode => {
            let headers = json!({ "Authorization": format!("Bearer {{env:{MCP_TOKEN}}}") });
            let server = json!({ "type": "remote", "url": url, "enabled": true, "headers": headers });
            let settings = json!({ "mcp": { MCP_SERVER: server } });
            if !plan.env.contains_key(OPENCODE[0]) {
                let file = dir.join("opencode.json");
                write(&file, &settings)?;
                plan.env.insert(OPENCODE[0].to_owned(), file.to_string_lossy().into_owned());
                files.push(file);
            } else if !plan.env.contains_key(OPENCODE[1]) {
                plan.env.insert(OPENCODE[1].to_owned(), settings.to_string());
            }
        }
        HarnessPreset::ClaudeCode | HarnessPreset::Kimi | HarnessPreset::Pi | HarnessPreset::Acp | HarnessPreset::Command => {
            return Ok(files);
        }
    }
    plan.env.insert(MCP_TOKEN.to_owned(), token.to_owned());
    Ok(files)
}

/// Writes a file for this user alone. One of an earlier attempt is replaced.
fn write(path: &Path, content: &Value) -> io::Result<()> {
    write_private(path, content.to_string().as_bytes())
}
