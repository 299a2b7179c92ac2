//! The files that `agent-host init` writes.

use serde_json::Value;

use super::init::{Access, Choices, FirstAgent, ModelChoice, Provider};

/// The replies of a scripted model: one, whatever it is asked.
pub(super) const SCRIPT_TEXT: &str = r#"# What the scripted model says, in place of a real one. It understands nothing: it quotes.
# `agent-host` reads this file when it starts; more conditions and replies: docs/MODELS.md.

# Once a conversation has become long, the agent asks the model to sum it up.
[[reply]]
system = '\AYou keep the memory of a conversation'
text = "The user tries out the host, and the model is a script."

[[reply]]
text = """
You said: {{last_user:400}}

I am a script, and can only quote. An entry of `[[models]]` in agent-host.toml puts a real model in my place."""
chunk_chars = 16
delay_ms = 10
"#;

/// A model of OpenAI where none is named.
const OPENAI_MODEL: &str = "gpt-4o-mini";
/// A model of Anthropic where none is named.
const ANTHROPIC_MODEL: &str = "claude-sonnet-4-5";
/// A model of Gemini where none is named.
const GEMINI_MODEL: &str = "gemini-flash-latest";
/// A model of a compatible server where none is named.
const COMPATIBLE_MODEL: &str = "llama3.2";
/// The address of Ollama.
const COMPATIBLE_URL: &str = "http://127.0.0.1:11434/v1";

/// The configuration, with a comment on each line that somebody may want to change.
pub(super) fn config_text(choices: &Choices) -> String {
    let access = match choices.access {
        Access::Machine => {
            "# Every user and program of this machine may do everything, without a key. For a machine that is yours alone: take the line out, and\n\
             # make a key with `agent-host keys create --scope admin` while the host does not run.\n\
             loopback_without_key = true\n"
        }
        Access::Key => {
            "# Requests carry a key: `agent-host keys create` makes more of them, with less rights than the first.\n\
             # loopback_without_key = true     # lets every user and program of this machine in without one\n"
        }
    };
    let model = choices.model.as_ref().map(model_text).unwrap_or_default();
    let binding = match choices.agent {
        FirstAgent::LocalAgent => {
            "[[bindings]]\n\
             id = \"agent\"\n\
             label = \"Agent\"                   # its name on the chat page\n\
             runner = \"plugin:agent-host/local-agent/default\"\n\
             match = { event_type = 'message\\..*' }\n\
             config = { system_prompt = \"You are a helpful assistant. Answer briefly.\" }\n\
             # resources = { tool_names = [\"files__*\"] }   # tools are granted by name: docs/TOOLS.md\n\
             # max_tokens = 200000             # of one run and all that it starts\n"
        }
        FirstAgent::Echo => {
            "[[bindings]]\n\
             id = \"agent\"\n\
             label = \"Echo\"                    # its name on the chat page\n\
             runner = \"plugin:agent-host/echo/default\"\n\
             match = { event_type = 'message\\..*' }\n"
        }
    };
    format!(
        "# Made by `agent-host init`. Paths are relative to this file. Every key: `agent-host config reference`.\n\
         # After a change: `agent-host config check`, then `agent-host config reload` where the host runs.\n\
         \n\
         [server]\n\
         listen = \"127.0.0.1:7070\"         # this machine only; put TLS in front of it for others\n\
         {access}\
         data_dir = \"data\"                 # everything that happens is in there\n\
         plugins_dir = \"plugins\"           # drop components here, while the host runs or not\n\
         \n\
         # Front ends bring the history of a thread along (docs/AGUI.md).\n\
         [agui]\n\
         foreign_history = \"accept\"\n\
         \n\
         {model}\
         # The rule that connects events to a runner, and says what its runs may use.\n\
         {binding}"
    )
}

fn model_text(choice: &ModelChoice) -> String {
    let named = |default: &str| quoted(choice.model.as_deref().unwrap_or(default));
    let entry = match choice.provider {
        Provider::Scripted => "provider = \"scripted\"             # no model: replies of a file; docs/MODELS.md has real ones\n\
                               script = \"script.toml\"\n"
            .to_owned(),
        Provider::Openai => format!(
            "provider = \"openai\"\n\
             model = {}\n\
             api_key = {{ env = \"OPENAI_API_KEY\" }}   # the name of the variable, never the key itself\n\
             # price = {{ input = 2.5, output = 10.0 }}   # for a million tokens: runs then show their cost\n",
            named(OPENAI_MODEL)
        ),
        Provider::Anthropic => format!(
            "provider = \"anthropic\"\n\
             model = {}\n\
             api_key = {{ env = \"ANTHROPIC_API_KEY\" }}   # the name of the variable, never the key itself\n",
            named(ANTHROPIC_MODEL)
        ),
        Provider::Gemini => format!(
            "provider = \"gemini\"\n\
             model = {}\n\
             api_key = {{ env = \"GEMINI_API_KEY\" }}   # the name of the variable, never the key itself\n",
            named(GEMINI_MODEL)
        ),
        Provider::Compatible => format!(
            "provider = \"openai\"               # every server that speaks this API\n\
             base_url = {}\n\
             model = {}\n\
             # api_key = {{ env = \"MODEL_API_KEY\" }}\n",
            quoted(choice.base_url.as_deref().unwrap_or(COMPATIBLE_URL)),
            named(COMPATIBLE_MODEL)
        ),
    };
    format!("[[models]]\nid = \"chat\"                       # what bindings and runners call it\n{entry}\n")
}

/// A text as a TOML string, which a JSON string is.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_commented() {
        let model = ModelChoice { provider: Provider::Openai, model: None, base_url: None };
        let choices = Choices { agent: FirstAgent::LocalAgent, model: Some(model), access: Access::Key };
        insta::assert_snapshot!(config_text(&choices), @r#"
        # Made by `agent-host init`. Paths are relative to this file. Every key: `agent-host config reference`.
        # After a change: `agent-host config check`, then `agent-host config reload` where the host runs.

        [server]
        listen = "127.0.0.1:7070"         # this machine only; put TLS in front of it for others
        # Requests carry a key: `agent-host keys create` makes more of them, with less rights than the first.
        # loopback_without_key = true     # lets every user and program of this machine in without one
        data_dir = "data"                 # everything that happens is in there
        plugins_dir = "plugins"           # drop components here, while the host runs or not

        # Front ends bring the history of a thread along (docs/AGUI.md).
        [agui]
        foreign_history = "accept"

        [[models]]
        id = "chat"                       # what bindings and runners call it
        provider = "openai"
        model = "gpt-4o-mini"
        api_key = { env = "OPENAI_API_KEY" }   # the name of the variable, never the key itself
        # price = { input = 2.5, output = 10.0 }   # for a million tokens: runs then show their cost

        # The rule that connects events to a runner, and says what its runs may use.
        [[bindings]]
        id = "agent"
        label = "Agent"                   # its name on the chat page
        runner = "plugin:agent-host/local-agent/default"
        match = { event_type = 'message\..*' }
        config = { system_prompt = "You are a helpful assistant. Answer briefly." }
        # resources = { tool_names = ["files__*"] }   # tools are granted by name: docs/TOOLS.md
        # max_tokens = 200000             # of one run and all that it starts
        "#);
    }
}
