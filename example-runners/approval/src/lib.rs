//! `plugin:agent-host/approval/default` requests approval before an action. For the message "delete 42", it requests this
//! platform action. The operator's policy allows it, denies it, or lets a person decide; the run waits for the decision,
//! also across restarts of the host. If the message is unclear, the runner first asks the user.
//!
//! Worth copying: the four outcomes of an action (done, denied, expired, refused), none of which fails the run.

use agent_host_sdk::interactions::{Answer, Confirmation, Question};
use agent_host_sdk::serde_json::json;
use agent_host_sdk::{ActionOutcome, ApiError, Completion, Context, ErrorCode, Failure, FormItem, Manifest, Runner};
use serde::Deserialize;

#[cfg(test)]
mod tests;

/// All actions that the runner can request. The binding grants some of them and has a policy for each.
const ACTIONS: [&str; 3] = ["item.delete", "item.archive", "item.publish"];

/// Maximum length of a message in a question, in characters, since requests are limited in size.
const SHOWN_CHARS: usize = 1_000;

/// Configuration of a binding.
#[derive(Deserialize)]
#[serde(default)]
struct Config {
    action: String,
}

impl Default for Config {
    fn default() -> Self {
        Self { action: "item.delete".to_owned() }
    }
}

struct Approval;

impl Runner for Approval {
    fn manifest() -> Manifest {
        let mut action = FormItem::select("action").label("en", "What it asks the platform for").default("item.delete");
        for name in ACTIONS {
            action = action.option(name, name);
        }
        Manifest::new("agent-host", "approval")
            .label("en", "Approval")
            .label("zh-Hans", "审批")
            .description("en", "Asks before it acts, and goes on with the answer.")
            .platform_actions(ACTIONS)
            .interactions()
            .form(action)
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let config: Config = ctx.config()?;
        // The last part of the name is the verb in messages: `delete` of `item.delete`.
        let verb = config.action.rsplit('.').next().unwrap_or_default().to_owned();

        let id = match Intent::by(ctx.text(), &verb) {
            Intent::Clearly(id) => Ok(id),
            Intent::Perhaps(ids) => ask_which(&ctx, &verb, &ids)?,
            Intent::Nothing => Err(format!("Say which item, such as `{verb} 42`.")),
        };
        let (outcome, text) = match id {
            Ok(id) => act(&ctx, &config.action, id)?,
            Err(why) => ("not_asked", why),
        };
        ctx.reply(&text)?;
        Ok(Completion::stop().metadata(json!({"outcome": outcome})))
    }
}

/// Requests the action. Returns the outcome as a word for the record, and a text for the user.
fn act(ctx: &Context, action: &str, id: u64) -> Result<(&'static str, String), Failure> {
    // The person who decides and the operator's webhook receive target and payload.
    let (target, payload) = (json!({"item_id": id}), json!({"message": excerpt(ctx.text())}));
    Ok(match ctx.platform().request_action(action, target, payload) {
        Ok(ActionOutcome::Executed(answer)) => ("executed", format!("Done: {action} of item {id}. The platform says: {answer}")),
        Ok(ActionOutcome::Denied(why)) => ("denied", format!("Item {id} stays as it is: {action} was denied. {why}")),
        // The host never executes an expired action later.
        Ok(ActionOutcome::Expired) => ("expired", format!("Item {id} stays as it is: nobody decided in time.")),
        Err(error) if error.code == ErrorCode::Unauthorized => ("refused", format!("I may not ask for {action} here.")),
        // Cancelled, past the deadline, or failed on the platform: the run fails with the code of the host.
        Err(error) => return Err(error.into()),
    })
}

/// Meaning of a message.
#[derive(Debug, PartialEq)]
enum Intent {
    /// Exactly the verb and one number.
    Clearly(u64),
    /// Numbers among other words.
    Perhaps(Vec<u64>),
    Nothing,
}

impl Intent {
    fn by(text: &str, verb: &str) -> Self {
        let words: Vec<_> = text.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_alphanumeric())).collect();
        let ids: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
        match (words.as_slice(), ids.as_slice()) {
            ([first, _], [id]) if first.eq_ignore_ascii_case(verb) => Self::Clearly(*id),
            (_, []) => Self::Nothing,
            _ => Self::Perhaps(ids),
        }
    }
}

fn excerpt(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

/// Asks the user for the meant item. Returns the item, or a text for the user.
fn ask_which(ctx: &Context, verb: &str, ids: &[u64]) -> Result<Result<u64, String>, ApiError> {
    // Some runs may not ask, since nobody could answer.
    if !ctx.available_apis().interactions {
        return Ok(Err(format!("I am not sure what you mean. Say it as `{verb} 42`.")));
    }
    if let [id] = ids {
        return Ok(match ctx.ask(Question::confirm(format!("{verb} item {id}?")).describe(excerpt(ctx.text())))? {
            Confirmation::Yes => Ok(*id),
            Confirmation::No(why) => Err(format!("Then nothing is done. {}", why.unwrap_or_default()).trim().to_owned()),
            Confirmation::Expired => Err("Nobody answered, so nothing is done.".to_owned()),
        });
    }
    let choices = ids.iter().map(u64::to_string);
    Ok(match ctx.ask(Question::choice(format!("{verb} which item?"), choices).describe(excerpt(ctx.text())))? {
        // The host checks that the answer is one of the choices.
        Answer::Submitted(id) => id.parse().map_err(|_| format!("`{id}` is no item.")),
        Answer::Declined(_) => Err("Then nothing is done.".to_owned()),
        Answer::Expired => Err("Nobody answered, so nothing is done.".to_owned()),
    })
}

agent_host_sdk::export!(Approval);
