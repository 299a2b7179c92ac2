//! Manifests.

use agent_host_protocol as p;
use p::ApiError;

use super::{
    area, artifact_op, bootstrap_mode, event_op, history_op, json, json_option, kb_op, localized, model_op, ownership, run_op,
    scope, tool_op,
};
use crate::bindings::manifest as wm;

/// Permissions that the record of the contract has no member for: `permissions` of the metadata.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MorePermissions {
    conversations: Vec<p::manifest::ConversationReach>,
}

/// Reads `permissions` of the metadata of a manifest.
fn more_permissions(metadata: &serde_json::Value) -> Result<MorePermissions, String> {
    match metadata.get("permissions") {
        None => Ok(MorePermissions::default()),
        Some(more) => serde::Deserialize::deserialize(more).map_err(|error| {
            format!("`permissions` of the metadata has `conversations`, a list of `threads` and `workspace`, and nothing else: {error}")
        }),
    }
}

pub(crate) fn permissions(permissions: wm::Permissions) -> p::manifest::Permissions {
    fn all<A, B>(list: Vec<A>, f: impl Fn(A) -> B) -> Vec<B> {
        list.into_iter().map(f).collect()
    }
    p::manifest::Permissions {
        models: all(permissions.models, model_op),
        tools: all(permissions.tools, tool_op),
        knowledge_bases: all(permissions.knowledge_bases, kb_op),
        history: all(permissions.history, history_op),
        events: all(permissions.events, event_op),
        // From the metadata: see `more_permissions`.
        conversations: Vec::new(),
        artifacts: all(permissions.artifacts, artifact_op),
        state: all(permissions.state, scope),
        storage: all(permissions.storage, area),
        runs: all(permissions.runs, run_op),
        platform_api: permissions.platform_actions,
        interactions: permissions.interactions,
        http_hosts: permissions.http_hosts,
    }
}

fn form_item(item: wm::FormItem) -> Result<p::manifest::FormItem, ApiError> {
    Ok(p::manifest::FormItem {
        default: json_option(&format!("the default of `{}`", item.name), item.default)?,
        name: item.name,
        kind: item.kind,
        label: localized(item.label),
        description: item.description.map(localized),
        required: item.required,
        options: item
            .options
            .into_iter()
            .map(|(name, label)| p::manifest::FormOption { name, label: localized(label) })
            .collect(),
    })
}

/// A manifest of the contract; what is wrong with it is said in words for its author.
pub(crate) fn manifest(manifest: wm::RunnerManifest) -> Result<p::RunnerManifest, String> {
    let id = p::RunnerId::new(&manifest.author, &manifest.plugin, &manifest.name).map_err(|error| error.to_string())?;
    let version = manifest
        .version
        .parse()
        .map_err(|error| format!("the version of {id} is not a semantic version such as 1.0.0: {error}"))?;
    let c = manifest.capabilities;
    let x = manifest.context;
    let metadata = json(&format!("the metadata of {id}"), &manifest.metadata).map_err(|error| error.message)?;
    let more = more_permissions(&metadata).map_err(|problem| format!("the manifest of {id}: {problem}"))?;
    Ok(p::RunnerManifest {
        name: manifest.name,
        author: manifest.author,
        plugin: manifest.plugin,
        version,
        label: localized(manifest.label),
        description: manifest.description.map(localized),
        capabilities: p::manifest::Capabilities {
            streaming: c.streaming,
            tool_calling: c.tool_calling,
            knowledge_retrieval: c.knowledge_retrieval,
            multimodal_input: c.multimodal_input,
            event_context: c.event_context,
            platform_api: c.platform_api,
            interrupt: c.interrupt,
            steering: c.steering,
            stateful_session: c.stateful_session,
            self_managed_context: c.self_managed_context,
        },
        permissions: p::manifest::Permissions { conversations: more.conversations, ..permissions(manifest.permissions) },
        context: p::manifest::ContextPolicy {
            ownership: ownership(x.ownership),
            bootstrap: bootstrap_mode(x.bootstrap),
            max_inline_events: x.max_inline_events,
            max_inline_bytes: x.max_inline_bytes,
            supports_history_pull: x.supports_history_pull,
            supports_history_search: x.supports_history_search,
            supports_artifact_pull: x.supports_artifact_pull,
            owns_compaction: x.owns_compaction,
            wants_static_context_refs: x.wants_static_context_refs,
        },
        config_schema: manifest
            .config_schema
            .into_iter()
            .map(|item| form_item(item).map_err(|error| format!("the form of {id}: {}", error.message)))
            .collect::<Result<_, _>>()?,
        metadata,
        id,
    })
}
