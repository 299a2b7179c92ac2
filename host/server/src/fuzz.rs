//! Entry points for fuzzing (`tests/fuzz`): readers of requests, given bytes.
//!
//! The functions make no claim about the bytes. What must hold is asserted by the targets.

use agent_host_protocol::event::Envelope;

use crate::{
    agui::{input, strict},
    http,
};

/// Reads the input of a run of AG-UI, leniently or as the standard says. Gives the number of its messages.
///
/// # Errors
/// Fails for an input that is refused, with the text for the client.
pub fn agui_input(body: &[u8], is_strict: bool) -> Result<usize, String> {
    let parsed = if is_strict { strict::parse(body) } else { input::document(body).and_then(input::read) };
    parsed.map(|input| input.messages.len()).map_err(|problem| problem.to_json())
}

/// Reads the body of a request with an event. Gives the type of the event.
///
/// # Errors
/// Fails for a body that is refused, with the text for the client.
pub fn event(body: &[u8]) -> Result<String, String> {
    http::body::parse::<Envelope>(body).map(|event| event.event_type).map_err(|problem| problem.to_json())
}
