//! Readers of what services and files say.

use std::{
    cell::Cell,
    panic::{self, catch_unwind},
    sync::Once,
};

use agent_host_config::ProviderKind;
use agent_host_providers::fuzz;

use super::RUNTIME;

/// Bound of what a server or a model may say.
const MAX_BYTES: usize = 16 * 1024;

/// The standard output of an MCP server.
pub(crate) fn mcp_output(data: &[u8]) {
    let results = RUNTIME.block_on(fuzz::tool_results(data, MAX_BYTES));
    for result in results {
        match result {
            Ok(result) => assert!(format!("{:?}", result.structured).len() <= 16 * MAX_BYTES, "a result beyond its bound"),
            Err(error) => assert!(!error.message.is_empty(), "a refusal without a reason"),
        }
    }
}

/// The stream of a model of each provider: the places at which it is cut do not change the answer.
pub(crate) fn model_stream(data: &[u8]) {
    let [cut, stream @ ..] = data else { return };
    let providers = [
        ProviderKind::Openai,
        ProviderKind::OpenaiResponses,
        ProviderKind::Anthropic,
        ProviderKind::Gemini,
        ProviderKind::Bedrock,
    ];
    for provider in providers {
        let whole = fuzz::model_chunks(provider, &[stream], MAX_BYTES);
        let pieces: Vec<_> = stream.chunks(usize::from(*cut) + 1).collect();
        match (whole, fuzz::model_chunks(provider, &pieces, MAX_BYTES)) {
            (Ok(whole), Ok(cut)) => assert_eq!(whole, cut, "cut into pieces, the answer reads otherwise"),
            (Err(whole), Err(cut)) => assert_eq!(whole.code, cut.code, "{} / {}", whole.message, cut.message),
            (whole, cut) => panic!("cut into pieces, the answer reads otherwise: {whole:?} / {cut:?}"),
        }
    }
}

/// An HTML document.
pub(crate) fn html(data: &[u8]) {
    is_text_or_reason(&fuzz::document_text(data, "page.html"));
}

thread_local! {
    /// True while this thread reads a document.
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// A PDF document. A panic of its parser is a refusal of the host, which reads documents behind a boundary. An abort, and a
/// document that takes all memory or never ends, are findings.
pub(crate) fn pdf(data: &[u8]) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !READING.get() {
                before(info);
            }
        }));
    });
    READING.set(true);
    let read = catch_unwind(|| fuzz::document_text(data, "paper.pdf"));
    READING.set(false);
    if let Ok(read) = read {
        is_text_or_reason(&read);
    }
}

fn is_text_or_reason(read: &Result<String, String>) {
    match read {
        Ok(text) => assert!(text.chars().any(char::is_alphanumeric), "a document without a text"),
        Err(reason) => assert!(!reason.is_empty(), "a refusal without a reason"),
    }
}
