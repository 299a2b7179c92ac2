//! Arguments of the contract as the requests that [`HostCalls`](crate::HostCalls) take.

use crate::{
    bindings::{history as wh, interactions as wi, log as wl, runs as wr, types as wt},
    calls::{AskedQuestion, LogSource, PageRequest, StartInput, StartRequest, ToolRequest},
    convert,
};

pub(super) fn log_level(level: wl::Level) -> LogSource {
    match level {
        wl::Level::Trace => LogSource::Trace,
        wl::Level::Debug => LogSource::Debug,
        wl::Level::Info => LogSource::Info,
        wl::Level::Warn => LogSource::Warn,
        wl::Level::Error => LogSource::Error,
    }
}

pub(super) fn tool_request(call: wt::ToolCall) -> ToolRequest {
    ToolRequest { call_id: call.call_id, tool_name: call.tool_name, parameters: call.parameters }
}

pub(super) fn page_request(request: wh::PageRequest) -> PageRequest {
    PageRequest {
        conversation_id: request.conversation_id,
        before: request.before,
        after: request.after,
        limit: request.limit,
        direction: convert::direction(request.direction),
        include_artifacts: request.include_artifacts,
    }
}

pub(super) fn question(question: wi::Question) -> AskedQuestion {
    let wi::Question { kind: asked, title, description, answer_schema, expires_at } = question;
    AskedQuestion { kind: convert::question_kind(asked), title, description, answer_schema, expires_at }
}

pub(super) fn start_request(request: wr::StartRequest) -> StartRequest {
    let wr::StartRequest { runner_id, input, objective, config } = request;
    StartRequest { runner_id, input: StartInput::new(input), objective, config }
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::ErrorCode;
    use serde_json::json;

    use super::*;
    use crate::bindings::context as wc;

    fn request(message_chain: Option<&str>) -> StartRequest {
        let input = wc::Input {
            text: Some("four".to_owned()),
            contents: Vec::new(),
            attachments: Vec::new(),
            message_chain: message_chain.map(str::to_owned),
        };
        let (runner_id, objective) = ("runner".to_owned(), "goal".to_owned());
        start_request(wr::StartRequest { runner_id, input, objective, config: Some("{}".to_owned()) })
    }

    #[test]
    fn the_input_of_a_child_is_measured_before_it_is_parsed() {
        let malformed = request(Some("[1"));
        assert_eq!(malformed.bytes(), "runner".len() + "goal".len() + "{}".len() + "four".len() + "[1".len());
        assert_eq!(malformed.input.parse().unwrap_err().code, ErrorCode::InvalidArgument);
        let input = request(Some("[1]")).input.parse().unwrap();
        assert_eq!((input.text.as_deref(), input.message_chain), (Some("four"), Some(json!([1]))));
    }
}
