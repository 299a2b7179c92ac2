//! Builder for a request with a stable prefix.

use super::{Window, client};
use crate::client::ClientInput;
use crate::contract::{ContentPart, Message, Role, ToolDefinition};
use crate::models::ModelRequest;

/// Builds a request with stable parts first and new parts last: tools and system prompt, summary, history, then the input
/// with its material.
///
/// ```
/// use agent_host_sdk::Message;
/// use agent_host_sdk::memory::Prompt;
///
/// let request = Prompt::new("Answer with a source.")
///     .aside("handbook.md: The office opens at nine.")
///     .request(Message::user("When does the office open?"));
/// assert_eq!(request.contract().messages.len(), 2);
/// ```
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    system: String,
    tools: Vec<ToolDefinition>,
    summary: Option<String>,
    history: Vec<Message>,
    asides: Vec<String>,
    client: String,
}

impl Prompt {
    /// Creates a prompt with a system prompt; none if empty. Text that changes from run to run, such as the time, belongs
    /// into an [`aside`](Self::aside).
    pub fn new(system: impl Into<String>) -> Self {
        Self { system: system.into(), ..Self::default() }
    }

    /// Adds tools that the model may call.
    pub fn tools(mut self, tools: impl IntoIterator<Item = ToolDefinition>) -> Self {
        self.tools.extend(tools);
        self
    }

    /// Sets the summary and the messages that fit.
    pub fn window(mut self, window: &Window) -> Self {
        self.summary = window.summary().map(str::to_owned);
        self.history = window.messages();
        self
    }

    /// Adds material for this input only, such as retrieved passages. The request has the material right before the
    /// input, marked as material.
    pub fn aside(mut self, text: impl Into<String>) -> Self {
        self.asides.push(text.into());
        self
    }

    /// Adds the input of the client: its context, state and properties as data, and its instructions where the binding offers
    /// them. The request has it in the message of the input, so that the messages before stay as they are; 16 KiB of each kind
    /// at most, marked as coming from the client.
    pub fn client(mut self, client: &ClientInput) -> Self {
        self.client = client::text_of(client);
        self
    }

    /// Builds the request, which ends with the input.
    pub fn request(self, mut input: Message) -> ModelRequest {
        let mut request = ModelRequest::new().tools(self.tools);
        if !self.system.trim().is_empty() {
            request.push(Message::system(self.system));
        }
        // The summary is not a system message, since it repeats text of users, who must not speak for the system.
        if let Some(summary) = self.summary {
            let text = format!("[Summary of the conversation so far, for background:]\n{summary}");
            request.push(Message::of(Role::User, text));
        }
        let mut request = request.messages(self.history);
        let asides = self.asides.iter().filter(|text| !text.trim().is_empty());
        // A document with the closing tag could otherwise continue as text of the user.
        let material: Vec<_> =
            asides.map(|text| format!("<material>\n{}\n</material>\n\n", text.replace("</material", "< /material"))).collect();
        let beside = material.concat() + &self.client;
        if !beside.is_empty() {
            input.content.insert(0, ContentPart::Text(beside));
        }
        request.push(input);
        request
    }
}
