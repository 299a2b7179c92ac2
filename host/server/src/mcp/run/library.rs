//! The things that a run can read over MCP besides its tools: artifacts as resources, skills as prompts.

use agent_host_protocol::{ApiError, ErrorCode, context::SkillResource, message::ArtifactRef};
use agent_host_runs::{CallError, Calls};
use rmcp::model::{
    ContentBlock, ErrorData, GetPromptResult, ListResourcesResult, MetaObject, Prompt, PromptMessage, ReadResourceResult,
    ResourceContents, ResourceTemplate, Role,
};
use serde_json::Value;

use super::{
    call::{self, Range},
    shown,
};
use crate::mcp::outcome::{self, SCHEME};

/// Resources on one page of the list.
const PAGE: usize = 100;
/// The template of the address of a range.
const TEMPLATE: &str = "artifact://{artifact_id}{?offset,length}";
/// Largest text of a skill that is given as a prompt; files of skills are at most as large as artifacts.
const MAX_SKILL_BYTES: u64 = 1024 * 1024;

/// A page of the artifacts of a run. A cursor is the number of the artifacts before its page.
pub(super) fn resources(calls: &Calls, cursor: Option<String>) -> Result<ListResourcesResult, ErrorData> {
    let first = match cursor {
        None => 0,
        Some(cursor) => cursor.parse::<usize>().map_err(|_| {
            let message = "the cursor is not one of this list: use `nextCursor` of the page before";
            outcome::protocol_error(&ApiError::invalid_argument(message))
        })?,
    };
    let artifacts = calls.artifacts().map_err(outcome::failed)?;
    let end = first.saturating_add(PAGE);
    let next = (artifacts.len() > end).then(|| end.to_string());
    let page = artifacts.iter().skip(first).take(PAGE).map(outcome::resource).collect();
    let mut result = ListResourcesResult::with_all_items(page);
    result.next_cursor = next;
    Ok(result)
}

pub(super) fn templates() -> Vec<ResourceTemplate> {
    let template = ResourceTemplate::new(TEMPLATE, "artifact");
    vec![template.with_description("An artifact, or a range of its bytes: `offset` and `length` are numbers.")]
}

/// A range of an artifact, by its address.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    artifact_id: String,
    offset: u64,
    length: Option<u32>,
}

impl Address {
    fn parse(uri: &str) -> Result<Self, ApiError> {
        let wrong = || ApiError::invalid_argument(format!("`{}` is no address of the form `{TEMPLATE}`", shown(uri)));
        let rest = uri.strip_prefix(SCHEME).ok_or_else(wrong)?;
        let (id, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut address = Self { artifact_id: id.to_owned(), offset: 0, length: None };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=').ok_or_else(wrong)? {
                ("offset", offset) => address.offset = offset.parse().map_err(|_| wrong())?,
                ("length", length) => address.length = Some(length.parse().map_err(|_| wrong())?),
                _ => return Err(wrong()),
            }
        }
        if id.is_empty() { Err(wrong()) } else { Ok(address) }
    }
}

/// A resource that the run does not see, or that does not exist.
fn not_found(refusal: &ApiError) -> ErrorData {
    ErrorData::resource_not_found(refusal.message.clone(), serde_json::to_value(refusal).ok())
}

fn unread(error: CallError) -> ErrorData {
    match error {
        CallError::Refused(refusal) if refusal.code == ErrorCode::NotFound => not_found(&refusal),
        other => outcome::failed(other),
    }
}

/// Most bytes that one call reads.
fn most(calls: &Calls) -> u32 {
    u32::try_from(calls.limits().artifact_read_bytes).unwrap_or(u32::MAX)
}

/// Reads a resource: what one call takes, where the address has no length. `_meta` says how it goes on.
pub(super) async fn read(calls: &Calls, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let Address { artifact_id, offset, length } = Address::parse(uri).map_err(|refusal| outcome::protocol_error(&refusal))?;
    let range = call::range(calls, &artifact_id, offset, length.unwrap_or_else(|| most(calls))).await.map_err(unread)?;
    let Range { mut contents, about } = range;
    match &mut contents {
        ResourceContents::TextResourceContents { uri: named, .. } | ResourceContents::BlobResourceContents { uri: named, .. } => {
            uri.clone_into(named);
        }
        _ => {}
    }
    let about = about.as_object().into_iter().flatten().filter(|(name, _)| *name != "artifact_id" && *name != "media_type");
    let meta = about.map(|(name, value)| (format!("agent-host/{name}"), value.clone())).collect();
    Ok(ReadResourceResult::new(vec![contents.with_meta(MetaObject(meta))]))
}

/// The skills of a run.
pub(super) fn prompts(calls: &Calls) -> Vec<Prompt> {
    let prompt = |skill: &SkillResource| Prompt::new(&skill.skill_name, skill.description.as_ref(), None);
    calls.grant().skills.iter().map(prompt).collect()
}

/// The text of a skill, with links to its other files.
pub(super) async fn prompt(calls: &Calls, name: &str) -> Result<GetPromptResult, ErrorData> {
    let Some(skill) = calls.grant().skills.iter().find(|skill| skill.skill_name == name) else {
        let refusal = ApiError::new(ErrorCode::NotFound, format!("this run has no skill `{}`", shown(name)));
        return Err(outcome::protocol_error(&refusal));
    };
    let text = whole_text(calls, &skill.content).await?;
    let mut messages = vec![PromptMessage::new_text(Role::User, text)];
    let prefix = format!("{name}/");
    let is_of_skill = |file: &&ArtifactRef| file.name.as_ref().is_some_and(|file| file.starts_with(&prefix));
    let files = calls.grant().skill_files.iter().filter(is_of_skill);
    messages.extend(files.map(|file| PromptMessage::new(Role::User, ContentBlock::resource_link(outcome::resource(file)))));
    let mut result = GetPromptResult::new(messages);
    result.description = skill.description.clone();
    Ok(result)
}

async fn whole_text(calls: &Calls, content: &ArtifactRef) -> Result<String, ErrorData> {
    let size = content.size.unwrap_or_default();
    if size > MAX_SKILL_BYTES {
        let message = format!("the skill has {size} bytes, and a prompt at most {MAX_SKILL_BYTES}: read it as a resource");
        return Err(outcome::protocol_error(&ApiError::new(ErrorCode::PayloadTooLarge, message)));
    }
    let (mut text, mut offset) = (String::new(), 0);
    loop {
        let Range { contents, about } = call::range(calls, &content.artifact_id, offset, most(calls)).await.map_err(unread)?;
        if let ResourceContents::TextResourceContents { text: piece, .. } = contents {
            text.push_str(&piece);
        }
        match about.get("next_offset").and_then(Value::as_u64).filter(|next| *next > offset) {
            Some(next) => offset = next,
            None => return Ok(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_an_artifact_and_a_range() {
        let address = |id: &str, offset, length| Address { artifact_id: id.to_owned(), offset, length };
        assert_eq!(Address::parse("artifact://a1").unwrap(), address("a1", 0, None));
        assert_eq!(Address::parse("artifact://a1?offset=5&length=7").unwrap(), address("a1", 5, Some(7)));
        assert_eq!(Address::parse("artifact://a1?").unwrap(), address("a1", 0, None));
        for wrong in ["", "a1", "file://a1", "artifact://", "artifact://a?offset=-1", "artifact://a?x=1", "artifact://a?offset"] {
            assert!(Address::parse(wrong).unwrap_err().message.contains("no address"), "{wrong}");
        }
    }
}
