//! The runners of captures of other frameworks. The host itself executes their runs, and nothing configures them.

use agent_host_facts::import::Form;
use agent_host_protocol::{
    RunnerId, RunnerManifest,
    manifest::{Capabilities, ContextPolicy, Permissions},
    message::LocalizedText,
};
use semver::Version;
use serde_json::Value;

const AUTHOR: &str = "agent-host";
const PLUGIN: &str = "import";

/// The runner of captures of this form: `plugin:agent-host/import/FORM`.
pub(crate) fn runner_of(form: Form) -> Option<RunnerId> {
    RunnerId::new(AUTHOR, PLUGIN, form.as_str()).ok()
}

/// The form of the captures whose runs this runner has; `None` for another runner.
pub(crate) fn form_of(id: &RunnerId) -> Option<Form> {
    Form::ALL.iter().copied().find(|form| runner_of(*form).as_ref() == Some(id))
}

/// The manifest of such a runner: it asks for nothing.
pub(crate) fn manifest(id: &RunnerId) -> Option<RunnerManifest> {
    let form = form_of(id)?;
    Some(RunnerManifest {
        id: id.clone(),
        name: id.name().to_owned(),
        author: AUTHOR.to_owned(),
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
