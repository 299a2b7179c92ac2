//! The files of a run: what the agent is told of its event and of what it may use, in a directory that only this user sees.
//!
//! | file | |
//! |---|---|
//! | `agent-context.json` | the event and the authorized resources, for programs |
//! | `AGENT_CONTEXT.md` (`LANGBOT_CONTEXT.md`) | the same for a reader |
//! | `attachments/` | files of the message, up to a size |
//! | `skills/` | granted skills, where the agent has no place of its own for them |
//! | `mcp.json` | the MCP endpoint of the run, for programs that read such a file |
//!
//! Skills of an agent that has a place for them are put there, below the home that it has for this workspace. Nothing is written into
//! the workspace.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use agent_host_config::{HarnessConfig, HarnessDialect};
use agent_host_protocol::{
    context::{Input, RunContext, SkillResource},
    message::{ArtifactRef, ContentPart},
};
use serde_json::{Map, Value, json};

use crate::{
    folder::Folder,
    host_client::HeldRun,
    workspace::{make_private, safe_name},
};

/// Largest file of a skill that is copied, in bytes.
const MAX_SKILL_FILE: u64 = 4 << 20;
/// Files of skills that are copied for one run.
const MAX_SKILL_FILES: usize = 500;
/// Attachments that are copied for one run.
const MAX_ATTACHMENTS: usize = 50;
/// Longest name of an attachment, in bytes.
const MAX_FILE_NAME: usize = 120;
/// The name of the run's MCP server at the agent.
pub(crate) const MCP_SERVER: &str = "agent-host";
/// The variable of the token of the run's MCP server, for agents that take tokens from variables.
pub(crate) const MCP_TOKEN: &str = "AGENT_HOST_MCP_TOKEN";
/// The file with the facts of the run, for programs.
const CONTEXT: &str = "agent-context.json";
/// The MCP endpoint of the run, for programs that read such a file.
const MCP: &str = "mcp.json";
/// The file that marks the directory of an ended run.
const ENDED: &str = "ended";
/// A directory without the mark is of a run that works, or of a host that was killed: it is kept for at least so long.
const UNMARKED: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The members of the context that the files have.
const MEMBERS: [&str; 10] =
    ["run_id", "event", "actor", "subject", "input", "delivery", "resources", "context", "state", "runtime"];

/// The files of a run.
pub(crate) struct Projection {
    /// The directory of the run.
    pub(crate) dir: Folder,
    /// `agent-context.json`.
    pub(crate) context_file: PathBuf,
    /// `mcp.json`, where the run has an MCP endpoint.
    pub(crate) mcp_file: Option<PathBuf>,
    /// More files about the MCP endpoint, which go with the end of the run.
    pub(crate) mcp_settings: Vec<PutFile>,
    /// The page for readers.
    page: PathBuf,
    attachments: Vec<Attachment>,
}

/// The MCP endpoint of the run, as the agent reaches it.
#[derive(Debug, Clone)]
pub(crate) struct McpServer {
    pub(crate) url: String,
    /// Bearer token, for this run.
    pub(crate) token: String,
}

/// A file that the host has put into a folder.
pub(crate) type PutFile = (Folder, PathBuf);

/// A file of the message.
struct Attachment {
    artifact: ArtifactRef,
    /// Path of the copy; `None` where it is too large, or may not be read.
    path: Option<PathBuf>,
}

impl Projection {
    /// Writes the files of a run into `dir`.
    pub(crate) async fn write(
        dir: PathBuf,
        home: &Folder,
        config: &HarnessConfig,
        context: &RunContext,
        run: &HeldRun,
        mcp: Option<&McpServer>,
    ) -> io::Result<Self> {
        make_private(&dir)?;
        let dir = Folder::of_host(dir);
        dir.make(Path::new("tmp"))?;
        let (schema, page) = match config.dialect {
            HarnessDialect::AgentHost => ("agent-host.external_harness_context.v1", "AGENT_CONTEXT.md"),
            HarnessDialect::Langbot => ("langbot.agent_runner.external_harness_context.v1", "LANGBOT_CONTEXT.md"),
        };
        let attachments = attachments(&dir, config, context, run).await?;
        let (folder, skills) = match config.preset.skills_dir() {
            Some(below) => (home, below),
            None => (&dir, "skills"),
        };
        for skill in &context.resources.skills {
            if let Err(error) = write_skill(folder, Path::new(skills), skill, context, run).await {
                tracing::debug!(%error, skill = skill.skill_name, "a skill is not there for an agent");
            }
        }
        let projection = Self {
            context_file: dir.path().join(CONTEXT),
            mcp_file: mcp.map(|_| dir.path().join(MCP)),
            mcp_settings: Vec::new(),
            page: dir.path().join(page),
            attachments,
            dir,
        };
        projection.dir.replace(Path::new(CONTEXT), &document(schema, context)?)?;
        projection.dir.replace(Path::new(page), projection.text(context).as_bytes())?;
        if let Some(mcp) = mcp {
            let headers = json!({ "Authorization": format!("Bearer {}", mcp.token) });
            let servers = json!({ "mcpServers": { MCP_SERVER: { "type": "http", "url": mcp.url, "headers": headers } } });
            projection.dir.replace(Path::new(MCP), servers.to_string().as_bytes())?;
        }
        Ok(projection)
    }

    /// Removes the token of the run, and marks the directory as that of an ended run, from which time on its retention counts.
    pub(crate) fn end(&self) {
        let own = self.mcp_file.as_ref().map(|_| (&self.dir, Path::new(MCP)));
        for (folder, file) in own.into_iter().chain(self.mcp_settings.iter().map(|(folder, file)| (folder, file.as_path()))) {
            if let Err(error) = folder.remove(file) {
                tracing::debug!(%error, "the MCP configuration of an ended run is not removed");
            }
        }
        if let Err(error) = self.dir.replace(Path::new(ENDED), b"") {
            tracing::debug!(%error, "the directory of an ended run is not marked");
        }
    }

    /// The page for readers.
    fn text(&self, context: &RunContext) -> String {
        let mut page = String::from("# This run\n\n");
        // Writing to a string does not fail.
        let _ = writeln!(page, "- Run `{}`, attempt {}", context.run_id, context.runtime.attempt);
        let _ = writeln!(page, "- Event `{}` from `{}`", context.event.event_type, context.event.source);
        if let Some(actor) = &context.actor {
            let name = actor.actor_name.as_deref().or(actor.actor_id.as_deref()).unwrap_or("unknown");
            let _ = writeln!(page, "- From {} ({})", line(name), actor.actor_type);
        }
        if let Some(id) = context.conversation.as_ref().and_then(|it| it.conversation_id.as_deref()) {
            let _ = writeln!(page, "- Conversation `{}`", line(id));
        }
        if let Some(subject) = &context.subject {
            let id = subject.subject_id.as_deref().unwrap_or_default();
            let _ = writeln!(page, "- About {} {}", line(&subject.subject_type), line(id));
        }
        let _ = writeln!(page, "- The answer is shown in `{}`", context.delivery.surface);
        let resources = &context.resources;
        let mut list = |title: &str, items: Vec<String>| {
            if !items.is_empty() {
                let _ = writeln!(page, "\n## {title}\n");
                items.iter().for_each(|item| _ = writeln!(page, "- {item}"));
            }
        };
        let described = |name: &str, description: &Option<String>| match description {
            Some(description) => format!("`{}`: {}", line(name), line(description)),
            None => format!("`{}`", line(name)),
        };
        list("Attachments", self.attachments.iter().map(|it| attached(it).replace('\n', " ")).collect());
        list("Tools of the host", resources.tools.iter().map(|tool| described(&tool.tool_name, &tool.description)).collect());
        list("Knowledge bases", resources.knowledge_bases.iter().map(|base| described(&base.kb_id, &base.kb_name)).collect());
        list("Skills", resources.skills.iter().map(|skill| described(&skill.skill_name, &skill.description)).collect());
        page.push_str(
            "\nTools, knowledge, history, state and artifacts of the host are reached by the MCP server `agent-host`, where this run \
             has one. `agent-context.json` beside this page has the same facts for programs.\n",
        );
        page
    }

    /// The prompt of the first turn, with the page for readers within it.
    ///
    /// # Errors
    /// Fails if the page cannot be read.
    pub(crate) fn prompt_with_page(&self, input: &Input) -> io::Result<Vec<Value>> {
        let mut blocks = self.prompt(input);
        let text = fs::read_to_string(&self.page)?;
        let resource = json!({ "uri": uri(&self.page), "mimeType": "text/markdown", "text": text });
        // The last block is the link to the page.
        blocks.pop();
        blocks.push(json!({ "type": "resource", "resource": resource }));
        Ok(blocks)
    }

    /// The prompt of the first turn.
    pub(crate) fn prompt(&self, input: &Input) -> Vec<Value> {
        let mut blocks = self.text_blocks(input);
        for attachment in &self.attachments {
            match &attachment.path {
                Some(path) => blocks.push(json!({
                    "type": "resource_link",
                    "name": attachment.artifact.name.as_deref().unwrap_or("attachment"),
                    "uri": uri(path),
                    "mimeType": attachment.artifact.media_type,
                })),
                None => blocks.push(json!({ "type": "text", "text": attached(attachment) })),
            }
        }
        let name = self.page.file_name().unwrap_or_default().to_string_lossy();
        blocks.push(json!({ "type": "resource_link", "name": name, "uri": uri(&self.page), "mimeType": "text/markdown" }));
        blocks
    }

    /// The text of a message, as blocks.
    pub(crate) fn text_blocks(&self, input: &Input) -> Vec<Value> {
        vec![json!({ "type": "text", "text": text_of(input) })]
    }
}

/// The blocks of a prompt as one text, for agents that take no links.
pub(crate) fn plain_text(blocks: &[Value]) -> String {
    let member = |block: &Value, name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let texts = blocks.iter().map(|block| match block.get("uri") {
        Some(_) => format!("[{}]({})", member(block, "name"), member(block, "uri")),
        None => member(block, "text"),
    });
    texts.collect::<Vec<_>>().join("\n\n")
}

/// The text of a message.
pub(crate) fn text_of(input: &Input) -> String {
    if let Some(text) = &input.text {
        return text.clone();
    }
    let texts = input.contents.iter().filter_map(|part| match part {
        ContentPart::Text(text) => Some(text.as_str()),
        ContentPart::Artifact(_) | ContentPart::Other(_) => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// `agent-context.json`.
fn document(schema: &str, context: &RunContext) -> io::Result<Vec<u8>> {
    let mut all = match serde_json::to_value(context)? {
        Value::Object(all) => all,
        _ => Map::new(),
    };
    let mut document = Map::from_iter([("schema".to_owned(), json!(schema))]);
    document.extend(MEMBERS.iter().map(|member| ((*member).to_owned(), all.remove(*member).unwrap_or_default())));
    Ok(serde_json::to_vec_pretty(&document)?)
}

/// The files of the message, as far as they are small enough and may be read.
async fn attachments(dir: &Folder, config: &HarnessConfig, context: &RunContext, run: &HeldRun) -> io::Result<Vec<Attachment>> {
    let parts = context.input.contents.iter().filter_map(|part| match part {
        ContentPart::Artifact(artifact) => Some(artifact),
        ContentPart::Text(_) | ContentPart::Other(_) => None,
    });
    let mut artifacts: Vec<&ArtifactRef> = Vec::new();
    for artifact in context.input.attachments.iter().chain(parts) {
        if !artifacts.iter().any(|other| other.artifact_id == artifact.artifact_id) {
            artifacts.push(artifact);
        }
    }
    let mut all = Vec::new();
    for (place, artifact) in artifacts.into_iter().enumerate() {
        let is_small = artifact.size.is_none_or(|size| size <= config.limits.attachment_bytes);
        let content = if is_small && place < MAX_ATTACHMENTS {
            let most = usize::try_from(config.limits.attachment_bytes).unwrap_or(usize::MAX);
            run.read_artifact(&artifact.artifact_id, most).await.map_err(|error| {
                tracing::debug!(%error, artifact_id = artifact.artifact_id, "an attachment is not there for an agent");
            })
        } else {
            Err(())
        };
        let path = match content {
            Ok(content) => {
                let name = file_name(artifact.name.as_deref().unwrap_or(&artifact.artifact_id));
                // Two attachments may have one name.
                let file = Path::new("attachments").join(format!("{}-{name}", place + 1));
                dir.replace(&file, &content)?;
                Some(dir.path().join(file))
            }
            Err(()) => None,
        };
        all.push(Attachment { artifact: artifact.clone(), path });
    }
    Ok(all)
}

/// The name of a file without folders, and without characters that programs treat in a special way. Its end is kept, which says what it is.
fn file_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let is_safe = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = last.chars().map(|c| if is_safe(c) { c } else { '_' }).collect();
    let start = name.ceil_char_boundary(name.len().saturating_sub(MAX_FILE_NAME));
    name.get(start..).unwrap_or_default().to_owned()
}

fn attached(attachment: &Attachment) -> String {
    let ArtifactRef { artifact_id, media_type, name, .. } = &attachment.artifact;
    let name = line(name.as_deref().unwrap_or("attachment"));
    match &attachment.path {
        Some(path) => format!("{name} ({media_type}): {}", path.display()),
        None => format!("{name} ({media_type}): artifact `{artifact_id}` of the host"),
    }
}

/// Writes the files of a skill below `skills` of a folder, unless they are there from an earlier run.
async fn write_skill(
    folder: &Folder,
    skills: &Path,
    skill: &SkillResource,
    context: &RunContext,
    run: &HeldRun,
) -> io::Result<()> {
    let place = skills.join(safe_name(&skill.skill_name));
    let prefix = format!("{}/", skill.skill_name);
    let others = context.resources.artifacts.iter().filter_map(|artifact| {
        let path = Path::new(artifact.name.as_deref()?.strip_prefix(&prefix)?);
        let is_below = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        is_below.then_some((path.to_owned(), artifact))
    });
    let files: Vec<(PathBuf, &ArtifactRef)> =
        std::iter::once((PathBuf::from("SKILL.md"), &skill.content)).chain(others).take(MAX_SKILL_FILES).collect();
    // The id of an artifact of a skill follows from its content.
    let version: String = files.iter().map(|(_, artifact)| format!("{}\n", artifact.artifact_id)).collect();
    let stamp = place.join(".agent-host");
    if folder.read(&stamp).is_ok_and(|known| known == version) {
        return Ok(());
    }
    for (path, artifact) in files {
        if artifact.size.is_some_and(|size| size > MAX_SKILL_FILE) {
            continue;
        }
        let most = usize::try_from(MAX_SKILL_FILE).unwrap_or(usize::MAX);
        let content = run.read_artifact(&artifact.artifact_id, most).await.map_err(io::Error::other)?;
        folder.replace(&place.join(path), &content)?;
    }
    folder.replace(&stamp, version.as_bytes())
}

/// Removes the directories of runs that ended before `retention`.
pub(crate) fn remove_old(runs: &Path, retention: Duration) {
    let age = |path: &Path| Some(SystemTime::now().duration_since(path.metadata().ok()?.modified().ok()?).unwrap_or_default());
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_over = match age(&path.join(ENDED)) {
            Some(age) => age > retention,
            None => age(&path).is_some_and(|age| age > retention.max(UNMARKED)),
        };
        if is_over && let Err(error) = fs::remove_dir_all(&path) {
            tracing::debug!(%error, path = %path.display(), "the directory of an ended run is not removed");
        }
    }
}

/// `text` as one line.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('`', "'")
}

/// A path as the address of a file.
fn uri(path: &Path) -> String {
    const KEPT: &percent_encoding::AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    format!("file://{}", percent_encoding::percent_encode(path.as_os_str().as_encoded_bytes(), KEPT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attachments_lead_nowhere_and_keep_their_ends() {
        for (name, file) in [("../../notes.txt", "notes.txt"), ("C:\\x\\a b.pdf", "a_b.pdf"), ("", ""), ("报告.md", "报告.md")]
        {
            assert_eq!(file_name(name), file);
        }
        assert!(file_name(&format!("{}.txt", "x".repeat(300))).ends_with("x.txt"));
    }

    #[test]
    fn directories_of_ended_runs_are_removed_and_those_of_others_are_kept() {
        let runs = tempfile::tempdir().unwrap();
        for name in ["ended", "works"] {
            fs::create_dir(runs.path().join(name)).unwrap();
        }
        fs::write(runs.path().join("ended").join(ENDED), "").unwrap();
        std::thread::sleep(Duration::from_millis(5));
        remove_old(runs.path(), Duration::from_secs(60));
        assert!(runs.path().join("ended").exists());
        remove_old(runs.path(), Duration::ZERO);
        assert!(!runs.path().join("ended").exists() && runs.path().join("works").exists());
    }
}
