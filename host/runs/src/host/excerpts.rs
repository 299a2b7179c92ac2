//! Runs with the beginnings of what they were asked and answered, for lists that people read.

use agent_host_ledger::{Ledger, LedgerError};
use agent_host_protocol::{
    Page, ResultKind, Run, RunEvent,
    context::Input,
    message::{ContentPart, Message},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Characters of an excerpt.
const CHARS: usize = 120;
/// Most runs end with their message right before the terminal event. Nothing else is looked at, so a row costs two short reads.
const TAIL: u32 = 4;

/// A run of a list, with excerpts.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ListedRun {
    /// The run.
    #[serde(flatten)]
    pub run: Run,
    /// First words of the text that the run answers, at most 120 characters on one line. Only with `excerpts=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// First words of the last message of the run, if the message is among its last four events. Only with `excerpts=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

impl From<Run> for ListedRun {
    fn from(run: Run) -> Self {
        Self { run, question: None, answer: None }
    }
}

/// The runs of a page with their excerpts. Blocks.
///
/// # Errors
/// Fails if the ledger is damaged or not available.
pub fn with_excerpts(ledger: &Ledger, page: Page<Run>) -> Result<Page<ListedRun>, LedgerError> {
    let Page { items, next_cursor, prev_cursor, has_more } = page;
    let listed = |run: Run| Ok(ListedRun { question: question(ledger, &run)?, answer: answer(ledger, &run)?, run });
    let items = items.into_iter().map(listed).collect::<Result<_, LedgerError>>()?;
    Ok(Page { items, next_cursor, prev_cursor, has_more })
}

fn question(ledger: &Ledger, run: &Run) -> Result<Option<String>, LedgerError> {
    /// The part of an event that has the text.
    #[derive(Deserialize)]
    struct Asked {
        #[serde(default)]
        input: Input,
    }
    let Some(event) = ledger.event_json(run.event_id)? else { return Ok(None) };
    let Ok(Asked { input }) = serde_json::from_str(event.get()) else { return Ok(None) };
    let texts = || {
        let texts = input.contents.iter();
        texts.filter_map(|part| if let ContentPart::Text(text) = part { Some(text.as_str()) } else { None }).collect::<String>()
    };
    Ok(excerpt(&input.text.clone().unwrap_or_else(texts)))
}

fn answer(ledger: &Ledger, run: &Run) -> Result<Option<String>, LedgerError> {
    if run.last_sequence == 0 {
        return Ok(None);
    }
    let start = run.last_sequence.saturating_sub(TAIL.into());
    let after = (start > 0).then(|| Ledger::run_cursor(run.run_id, start));
    let page = ledger.run_events(run.run_id, after.as_deref(), TAIL)?;
    Ok(page.items.iter().rev().find_map(message).and_then(|message| excerpt(&message.text())))
}

/// The message that an event carries.
fn message(event: &RunEvent) -> Option<Message> {
    #[derive(Deserialize)]
    struct Carrier {
        message: Option<Message>,
    }
    match ResultKind::from_name(&event.kind) {
        Some(ResultKind::MessageCompleted | ResultKind::RunCompleted) => {
            serde_json::from_str::<Carrier>(event.data.get()).ok()?.message
        }
        _ => None,
    }
}

/// The beginning of a text, on one line; `None` where it has no words.
fn excerpt(text: &str) -> Option<String> {
    let mut short = String::new();
    let mut chars = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    short.extend(chars.by_ref().take(CHARS));
    if chars.next().is_some() {
        short.truncate(short.trim_end().len());
        short.push('…');
    }
    (!short.is_empty()).then_some(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_cut_by_characters_and_has_one_line() {
        assert_eq!(excerpt("  two\nlines\u{1b}[31m \n").as_deref(), Some("two lines [31m"));
        assert_eq!(excerpt(" \n"), None);
        let long = "学习语言 ".repeat(100);
        let cut = excerpt(&long).unwrap();
        assert!(cut.ends_with('…') && cut.chars().count() <= CHARS + 1, "{cut}");
        let exact = "x".repeat(CHARS);
        assert_eq!(excerpt(&exact), Some(exact));
    }
}
