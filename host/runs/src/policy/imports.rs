//! The runners of captures of other frameworks.

use agent_host_protocol::{
    RunnerId, RunnerManifest,
    import::Form,
    manifest::{Capabilities, ContextPolicy, Permissions},
    message::LocalizedText,
};
use semver::Version;
use serde_json::Value;

/// The manifest of the runner of captures of a form; `None` for another runner. It asks for nothing.
pub(crate) fn manifest(id: &RunnerId) -> Option<RunnerManifest> {
    let form = Form::of_runner(id)?;
    Some(RunnerManifest {
        id: id.clone(),
        name: id.name().to_owned(),
        author: id.author().to_owned(),
        plugin: id.plugin().to_owned(),
        version: Version::new(1, 0, 0),
        label: LocalizedText::from_pairs([("en".to_owned(), format!("Import ({})", form.as_str()))]),
        description: None,
        capabilities: Capabilities::default(),
        permissions: Permissions::default(),
        context: ContextPolicy::default(),
        config_schema: Vec::new(),
        metadata: Value::Null,
    })
}
