//! `[[mcp_servers]]` of agent-host.toml.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use http::header::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::secret::SecretRef;

/// The longest id of a server. With `__`, at least half of a tool's full name stays for the tool itself.
const MAX_ID: usize = 32;
/// Largest output of one call, in bytes, whatever the configuration says: a whole answer is held in memory while it is
/// read.
const MAX_OUTPUT: usize = 64 << 20;
/// Calls at the same time to one server, whatever the configuration says.
const MAX_CONCURRENT: usize = 1024;
/// The longest time that a configuration may set, in ms.
const MAX_TIMEOUT_MS: u64 = 24 * 60 * 60 * 1000;
/// Headers that belong to the protocol.
const RESERVED_HEADERS: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

/// A value of the configuration that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum EnvValue {
    /// No secret; it may be shown.
    Plain(String),
    /// The reference to the secret.
    Secret(SecretRef),
}

/// A tool server that speaks MCP: a program that the host starts (`command`), or a service (`url`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpServerConfig {
    /// 1 to 32 of `A-Za-z0-9_-`, without `__` and without `_` at its end: what stands before `__` in the names of its
    /// tools.
    pub id: String,
    /// The program: a path, or a name that is looked up in `PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Arguments of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The program's environment, besides `PATH`, `HOME`, `LANG` and `TMPDIR`. The program sees no other variable of the
    /// host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvValue>,
    /// Working directory of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// The address of a service (streamable HTTP).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Headers of every request to the service, such as `Authorization`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, EnvValue>,
    /// Tools that are offered, by the names that the server gives them; `*` at the end matches any rest. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Time limit for starting, the handshake and listing the tools together, in ms.
    #[serde(default = "start_timeout_ms")]
    pub start_timeout_ms: u64,
    /// Time limit of one call, in ms. The deadline of the run holds too.
    #[serde(default = "call_timeout_ms")]
    pub call_timeout_ms: u64,
    /// Largest answer of one call, decoded, in bytes.
    #[serde(default = "max_output_bytes")]
    pub max_output_bytes: usize,
    /// Calls at the same time; more wait.
    #[serde(default = "max_concurrent")]
    pub max_concurrent: usize,
}

const fn start_timeout_ms() -> u64 {
    10_000
}

const fn call_timeout_ms() -> u64 {
    60_000
}

const fn max_output_bytes() -> usize {
    1 << 20
}

const fn max_concurrent() -> usize {
    16
}

impl Default for McpServerConfig {
    /// The defaults of the file. The value has neither a program nor a service, so [`check`](Self::check) refuses it.
    fn default() -> Self {
        Self {
            id: String::new(),
            command: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            url: None,
            headers: BTreeMap::new(),
            tools: None,
            start_timeout_ms: start_timeout_ms(),
            call_timeout_ms: call_timeout_ms(),
            max_output_bytes: max_output_bytes(),
            max_concurrent: max_concurrent(),
        }
    }
}

impl McpServerConfig {
    /// Checks the values. Reads no secret and starts no program.
    ///
    /// # Errors
    /// Fails with the problem and the server, for the author of the file.
    pub fn check(&self) -> Result<(), String> {
        self.problem().map_or(Ok(()), |problem| Err(format!("the MCP server `{}`: {problem}", self.id)))
    }

    fn problem(&self) -> Option<String> {
        check_id(&self.id)
            .or_else(|| match (&self.command, &self.url) {
                (Some(command), None) => self.stdio_problem(command),
                (None, Some(url)) => self.http_problem(url),
                _ => Some("give it either a `command` or a `url`".into()),
            })
            .or_else(|| self.limit_problem())
            .or_else(|| {
                let broken = self.tools.iter().flatten().find(|name| name.is_empty() || name.trim_end_matches('*').contains('*'));
                broken.map(|name| format!("`tools` has \"{name}\": name a tool; `*` is allowed at the end"))
            })
    }

    fn stdio_problem(&self, command: &str) -> Option<String> {
        if command.trim().is_empty() || command.contains('\0') {
            return Some("its `command` is empty".into());
        }
        if !self.headers.is_empty() {
            return Some("`headers` belong to a `url`; a `command` has `env`".into());
        }
        if self.args.iter().any(|arg| arg.contains('\0')) {
            return Some("an argument has a NUL character".into());
        }
        let broken = self.env.iter().find(|(name, value)| {
            name.is_empty() || name.contains(['=', '\0']) || matches!(value, EnvValue::Plain(text) if text.contains('\0'))
        });
        broken.map(|(name, _)| format!("`env` has \"{name}\", which no program can be given"))
    }

    fn http_problem(&self, text: &str) -> Option<String> {
        if !(self.args.is_empty() && self.env.is_empty() && self.cwd.is_none()) {
            return Some("`args`, `env` and `cwd` belong to a `command`; a `url` has `headers`".into());
        }
        let url = match Url::parse(text) {
            Ok(url) => url,
            Err(error) => return Some(format!("its `url` cannot be read: {error}")),
        };
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Some("its `url` must begin with http:// or https://".into());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Some("its `url` has a password: put it into `headers`, as a reference".into());
        }
        for (name, value) in &self.headers {
            if HeaderName::try_from(name).is_err() {
                return Some(format!("\"{name}\" is no name of a header"));
            }
            if RESERVED_HEADERS.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
                return Some(format!("the header `{name}` belongs to the protocol"));
            }
            if matches!(value, EnvValue::Plain(text) if HeaderValue::from_str(text).is_err()) {
                return Some(format!("the value of the header `{name}` has characters that no header may have"));
            }
        }
        None
    }

    fn limit_problem(&self) -> Option<String> {
        for (name, value) in [("start_timeout_ms", self.start_timeout_ms), ("call_timeout_ms", self.call_timeout_ms)] {
            if !(1..=MAX_TIMEOUT_MS).contains(&value) {
                return Some(format!("`{name}` must be 1 to {MAX_TIMEOUT_MS}"));
            }
        }
        if !(1..=MAX_OUTPUT).contains(&self.max_output_bytes) {
            return Some(format!("`max_output_bytes` must be 1 to {MAX_OUTPUT}"));
        }
        (!(1..=MAX_CONCURRENT).contains(&self.max_concurrent)).then(|| format!("`max_concurrent` must be 1 to {MAX_CONCURRENT}"))
    }

    /// Paths in it count from `base`, the folder of the file: the working directory, a program that is given as a path
    /// and not as a name, and files with secrets.
    pub fn relative_to(&mut self, base: &Path) {
        if let Some(cwd) = &mut self.cwd {
            *cwd = base.join(&*cwd);
        }
        if let Some(command) = &mut self.command
            && Path::new(command).components().nth(1).is_some()
        {
            let path: PathBuf = base.join(&*command).components().filter(|part| *part != Component::CurDir).collect();
            if let Some(text) = path.to_str() {
                text.clone_into(command);
            }
        }
        for value in self.env.values_mut().chain(self.headers.values_mut()) {
            if let EnvValue::Secret(SecretRef::File(path)) = value {
                *path = base.join(&*path);
            }
        }
    }

    /// True if the tool that the server calls `name` is offered.
    #[must_use]
    pub fn offers(&self, name: &str) -> bool {
        self.tools.as_ref().is_none_or(|allowed| {
            allowed.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => name.starts_with(start.trim_end_matches('*')),
                None => name == pattern,
            })
        })
    }

    /// Time limit for starting.
    #[must_use]
    pub const fn start_timeout(&self) -> Duration {
        Duration::from_millis(self.start_timeout_ms)
    }

    /// Time limit of one call.
    #[must_use]
    pub const fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.call_timeout_ms)
    }
}

fn check_id(id: &str) -> Option<String> {
    let fits = (1..=MAX_ID).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        && !id.contains("__")
        && !id.ends_with('_');
    (!fits)
        .then(|| format!("its `id` must be 1 to {MAX_ID} letters, digits, `-` or `_`, without `__` and without `_` at its end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stdio() -> McpServerConfig {
        McpServerConfig { id: "files".into(), command: Some("server".into()), ..McpServerConfig::default() }
    }

    fn http() -> McpServerConfig {
        McpServerConfig { id: "web".into(), url: Some("https://example.com/mcp".into()), ..McpServerConfig::default() }
    }

    #[test]
    fn valid_servers_pass_and_invalid_ones_are_refused_with_the_reason() {
        type Change = fn(&mut McpServerConfig);
        stdio().check().unwrap();
        http().check().unwrap();
        let cases: [(Change, &str); 9] = [
            (|c| c.id = "a__b".into(), "`id`"),
            (|c| c.id = "a_".into(), "`id`"),
            (|c| c.id = "a".repeat(33), "`id`"),
            (|c| c.url = Some("https://example.com".into()), "either"),
            (|c| c.command = None, "either"),
            (|c| c.command = Some(" ".into()), "empty"),
            (|c| c.max_concurrent = 0, "max_concurrent"),
            (|c| c.call_timeout_ms = 0, "call_timeout_ms"),
            (|c| c.tools = Some(vec!["a*b".into()]), "`*`"),
        ];
        for (change, expected) in cases {
            let mut config = stdio();
            change(&mut config);
            let problem = config.check().unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
        let cases: [(Change, &str); 5] = [
            (|c| c.url = Some("file:///etc/passwd".into()), "http://"),
            (|c| c.url = Some("https://u:canary@example.com".into()), "password"),
            (|c| c.cwd = Some("/".into()), "belong to a `command`"),
            (|c| drop(c.headers.insert("Mcp-Session-Id".into(), EnvValue::Plain("1".into()))), "protocol"),
            (|c| drop(c.headers.insert("a b".into(), EnvValue::Plain("1".into()))), "no name"),
        ];
        for (change, expected) in cases {
            let mut config = http();
            change(&mut config);
            let problem = config.check().unwrap_err();
            assert!(problem.contains(expected) && !problem.contains("canary"), "{problem}");
        }
    }

    #[test]
    fn a_file_reads_back() {
        let json = serde_json::json!({ "id": "files", "command": "npx", "args": ["-y"], "env": { "A": "plain", "B": { "env": "KEY" } } });
        let config: McpServerConfig = serde_json::from_value(json).unwrap();
        assert_eq!(config.env["B"], EnvValue::Secret(SecretRef::Env("KEY".into())));
        assert_eq!((config.call_timeout_ms, config.max_output_bytes), (60_000, 1 << 20));
        let again: McpServerConfig = serde_json::from_value(serde_json::to_value(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        assert!(serde_json::from_str::<McpServerConfig>(r#"{"id":"a","comand":"b"}"#).is_err());
    }

    #[test]
    fn paths_count_from_the_folder_of_the_file() {
        let mut config = stdio();
        config.env.insert("KEY".into(), EnvValue::Secret(SecretRef::File("key".into())));
        config.relative_to(Path::new("/etc/agent"));
        assert_eq!(config.command.as_deref(), Some("server"), "a name is looked up in PATH");
        assert_eq!(config.env["KEY"], EnvValue::Secret(SecretRef::File("/etc/agent/key".into())));
        config.command = Some("./bin/server".into());
        config.cwd = Some("data".into());
        config.relative_to(Path::new("/etc/agent"));
        assert_eq!(config.command.as_deref(), Some("/etc/agent/bin/server"));
        assert_eq!(config.cwd.as_deref(), Some(Path::new("/etc/agent/data")));
    }

    #[test]
    fn an_allow_list_may_end_in_a_wildcard() {
        let config = McpServerConfig { tools: Some(vec!["read".into(), "list_*".into()]), ..stdio() };
        assert!(config.offers("read") && config.offers("list_files") && !config.offers("reader") && !config.offers("write"));
        assert!(stdio().offers("anything"));
    }
}
