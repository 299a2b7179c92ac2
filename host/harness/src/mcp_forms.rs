//! The MCP endpoint of a run in the configuration of an agent that does not take it by its protocol. The token is in the environment of
//! the process only: no file and no argument has it.

use std::{
    io,
    path::{Path, PathBuf},
};

use agent_host_config::HarnessPreset;
use serde_json::{Value, json};

use crate::{
    folder::Folder,
    process::ProcessPlan,
    projection::{MCP_SERVER, MCP_TOKEN, McpServer, PutFile},
};

/// The variable of a configuration file of OpenCode, and that of a configuration in the variable itself.
const OPENCODE: [&str; 2] = ["OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT"];
/// The variable of the folder in which Pi has its settings, instead of the one in its home.
const PI: &str = "PI_CODING_AGENT_DIR";
/// The servers of Pi, in its home.
const PI_SERVERS: &str = ".pi/agent/mcp.json";
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
    (dir, home): (&Folder, &Folder),
    McpServer { url, token }: &McpServer,
) -> io::Result<Vec<PutFile>> {
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
                let file = put_file(dir, "gemini-settings.json", &settings, &mut files)?;
                plan.env.insert(GEMINI.to_owned(), file);
            }
        }
        HarnessPreset::OpenCode => {
            let headers = json!({ "Authorization": format!("Bearer {{env:{MCP_TOKEN}}}") });
            let server = json!({ "type": "remote", "url": url, "enabled": true, "headers": headers });
            let settings = json!({ "mcp": { MCP_SERVER: server } });
            if !plan.env.contains_key(OPENCODE[0]) {
                let file = put_file(dir, "opencode.json", &settings, &mut files)?;
                plan.env.insert(OPENCODE[0].to_owned(), file);
            } else if !plan.env.contains_key(OPENCODE[1]) {
                plan.env.insert(OPENCODE[1].to_owned(), settings.to_string());
            }
        }
        HarnessPreset::Pi => {
            let headers = json!({ "Authorization": format!("Bearer ${{{MCP_TOKEN}}}") });
            let server = json!({ "type": "http", "url": url, "headers": headers, "exposure": "direct" });
            let settings = json!({ "mcpServers": { MCP_SERVER: server } });
            if !plan.env.contains_key(PI) && is_own(home) {
                put_file(home, PI_SERVERS, &settings, &mut files)?;
            }
        }
        HarnessPreset::ClaudeCode | HarnessPreset::Kimi | HarnessPreset::Acp | HarnessPreset::Command => return Ok(files),
    }
    plan.env.insert(MCP_TOKEN.to_owned(), token.clone());
    Ok(files)
}

/// Puts a file into a folder, in the place of one of an earlier attempt, and gives its path.
fn put_file(folder: &Folder, name: &str, content: &Value, files: &mut Vec<PutFile>) -> io::Result<String> {
    folder.replace(Path::new(name), content.to_string().as_bytes())?;
    files.push((folder.clone(), PathBuf::from(name)));
    Ok(folder.path().join(name).to_string_lossy().into_owned())
}

/// True if the servers of Pi are those of an earlier run, whose host was killed, or none. Others stay.
fn is_own(home: &Folder) -> bool {
    match home.read(Path::new(PI_SERVERS)) {
        Ok(text) => serde_json::from_str::<Value>(&text).is_ok_and(|servers| {
            servers
                .get("mcpServers")
                .and_then(Value::as_object)
                .is_some_and(|servers| servers.keys().all(|name| name == MCP_SERVER))
        }),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}
