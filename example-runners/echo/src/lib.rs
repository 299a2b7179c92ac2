//! `plugin:agent-host/echo/default` repeats its input in small pieces, and adds the number of turns. A template for new
//! runners: it streams, keeps state, reads history and has a form.
//!
//! The benchmarks use this runner, so it makes few host calls: for a short text one page of history and one emit, which
//! carries the deltas, the whole message and the new state.

use agent_host_sdk::{
    ApiError, Capabilities, Completion, Context, Failure, FormItem, HistoryOperation, Manifest, MessageWriter, Runner,
    StateScope, results,
};
use serde::Deserialize;

/// Number of transcript items to read: one page.
const EARLIER_MESSAGES: u32 = 20;

/// Configuration of a binding: the fields of the form below. Missing fields have their defaults.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    prefix: String,
    chunk: usize,
}

struct Echo;

impl Runner for Echo {
    fn manifest() -> Manifest {
        Manifest::new("agent-host", "echo")
            .label("en", "Echo")
            .label("zh-Hans", "回声")
            .description("en", "Says back what it hears, and counts the turns.")
            .capabilities(Capabilities { streaming: true, stateful_session: true, ..Capabilities::default() })
            // Maximum permissions. The binding and the run can only narrow them.
            .state([StateScope::Conversation])
            .history([HistoryOperation::Page])
            .form(FormItem::string("prefix").label("en", "Said before each echo"))
            .form(
                FormItem::integer("chunk")
                    .label("en", "Characters of a delta")
                    .description("en", "0 makes every word a delta.")
                    .default(0),
            )
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let config: Config = ctx.config()?;
        let mut out = ctx.message();

        // Every `delta` is a separate result; up to 64 are sent in one host call.
        if !config.prefix.is_empty() {
            out.delta(&config.prefix)?;
        }
        match config.chunk {
            0 => by_word(ctx.text(), &mut out)?,
            length => by_length(ctx.text(), length, &mut out)?,
        }

        // Some events belong to no conversation, and some runs are not granted all permissions of the manifest:
        // `available_apis` lists the calls of this run.
        if ctx.conversation_id().is_some() && ctx.available_apis().state {
            let state = ctx.state(StateScope::Conversation);
            let turns = state.snapshot::<u64>("turns")?.unwrap_or(0) + 1;
            out.push(results::state_updated(StateScope::Conversation, "turns", turns))?;
            write!(out, "\n\nturn {turns}")?;
            if let Some(earlier) = earlier_messages(&ctx)? {
                write!(out, ", earlier messages: {earlier}")?;
            }
        }

        out.finish()?;
        Ok(Completion::stop())
    }
}

/// Returns the number of messages of the conversation before this event: `20+` if there are more than one page, `None` if
/// the run may not read the history.
fn earlier_messages(ctx: &Context) -> Result<Option<String>, ApiError> {
    if !ctx.available_apis().history_page {
        return Ok(None);
    }
    let Some(page) = ctx.history().backward().limit(EARLIER_MESSAGES).next().transpose()? else {
        return Ok(None);
    };
    // The transcript already contains the present event.
    let now = &ctx.event().event_id;
    let earlier = page.items.iter().filter(|item| item.item_type == "message" && item.event_id != *now);
    let more = if page.has_more { "+" } else { "" };
    Ok(Some(format!("{}{more}", earlier.count())))
}

/// Writes one delta per word, including the following space.
fn by_word(text: &str, out: &mut MessageWriter) -> Result<(), ApiError> {
    text.split_inclusive(char::is_whitespace).try_for_each(|word| out.delta(word))
}

/// Writes one delta per `length` characters.
fn by_length(text: &str, length: usize, out: &mut MessageWriter) -> Result<(), ApiError> {
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.char_indices().nth(length).map_or(rest.len(), |(at, _)| at);
        let (head, tail) = rest.split_at(end);
        out.delta(head)?;
        rest = tail;
    }
    Ok(())
}

agent_host_sdk::export!(Echo);
