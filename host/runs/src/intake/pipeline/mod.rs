//! The pipeline adapter: a query of a chat pipeline, with the configuration of its pipeline, as an event and a binding that is
//! there for the one run.
//!
//! An entry for platforms that still send queries. The protocol has no queries: fields of a query that the protocol knows
//! are mapped, the window of `max-round` becomes a bounded tail of the transcript, and fields that only a query has are in
//! `adapter`, for runners that read it.

mod read;

use agent_host_config::{BindingConfig, Bootstrap, Names, ResourcePolicy, RunnerAliases, is_name};
use agent_host_ledger::Idempotency;
use agent_host_protocol::{
    Principal, RunnerId, Scope, Timestamp,
    context::{Actor, Conversation, Delivery, Input, Subject},
    event::{Envelope, MAX_FOREIGN_ID_LEN},
    limits::is_shallow,
    manifest::BootstrapMode,
    message::ContentPart,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::read::{id, is_secret, object, take, text, texts, without_payload, without_rounds, without_secrets};
use super::{
    Intake,
    accept::{AcceptedEvent, RunPlan, no_entries},
    create::in_workspace,
};
use crate::{policy::binding::Binding, record::HostError};

/// The source of events that were made from queries.
pub const PIPELINE_ADAPTER: &str = "pipeline_adapter";
/// The binding id of runs of pipelines without an id, and the prefix of the others.
const BINDING: &str = "pipeline";
/// Messages of a round: what the user says, and what is answered.
const OF_A_ROUND: u64 = 2;
/// Messages of a transcript that a context may bring along.
const MAX_TAIL: u64 = 100;
/// Bytes of them.
const TAIL_BYTES: u32 = 64 * 1024;
/// Types of parts that have their bytes within, each in a member of the same name.
const INLINE: [&str; 2] = ["image_base64", "file_base64"];
/// Times that are smaller are in seconds: as milliseconds they would be in 1970.
const FIRST_MS: f64 = 100_000_000_000.0;

/// A query of a pipeline.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PipelineQuery {
    /// The query, in the form of the pipeline.
    #[schema(value_type = Object)]
    pub query: Map<String, Value>,
    /// The configuration of the pipeline. The query may contain it, as `pipeline_config`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub pipeline_config: Option<Map<String, Value>>,
    /// The runner that answers. Without it, the one that the configuration names.
    #[serde(default)]
    pub runner_id: Option<RunnerId>,
}

/// An adapted query.
#[derive(Debug, Clone, PartialEq)]
pub struct AdaptedQuery {
    /// The event.
    pub envelope: Envelope,
    /// The binding of the run. The configuration of the host does not contain it.
    pub binding: BindingConfig,
}

impl Intake {
    /// Creates a run for a query. The event and the run are durable when this function returns.
    pub(crate) async fn run_pipeline_query(
        &self,
        adapted: AdaptedQuery,
        caller: &Principal,
        idempotency: Option<Idempotency>,
    ) -> Result<AcceptedEvent, HostError> {
        if !caller.may(Scope::Admin) {
            let why = "a query of a pipeline brings its own binding, which needs the scope `admin`";
            return Err(HostError::Forbidden(why.to_owned()));
        }
        let AdaptedQuery { mut envelope, mut binding } = adapted;
        // Bytes inside an event are refused.
        if let Some(place) = envelope.input.contents.iter().position(|part| inline_bytes(part).is_some()) {
            let what = "has its bytes within: upload them, and send a part of type `artifact`";
            return Err(HostError::Invalid(format!("`query.user_message.content[{place}]` {what}")));
        }
        let installed = match self.shared.setup().config.runner_aliases.runner(binding.runner.as_str()) {
            Some(other) if self.shared.serving(&binding.runner).is_none() => other.clone(),
            _ => binding.runner.clone(),
        };
        self.await_runner(&installed, self.runner_deadline()).await?;
        // The id of a runner that is not installed here may be another name of one that is.
        let serving = match self.shared.serving(&binding.runner) {
            Some(serving) => Some(serving),
            None => match self.shared.setup().config.runner_aliases.runner(binding.runner.as_str()) {
                Some(other) => {
                    binding.runner = other.clone();
                    self.shared.serving(&binding.runner)
                }
                None => None,
            },
        };
        let Some(serving) = serving else {
            let known = self.shared.runner_ids();
            let hint = format!("Name one as `runner_id`. There are: {}", known.join(", "));
            return Err(HostError::RunnerNotFound { id: binding.runner, hint });
        };
        let form = &serving.manifest().config_schema;
        if !form.is_empty() {
            settings_of_langbot(&mut binding.config, envelope.adapter.as_ref(), |key| form.iter().any(|item| item.name == key));
            let unknown = unknown_to(&mut binding.config, |key| form.iter().any(|item| item.name == key));
            if let (Some(Value::Object(adapter)), false) = (&mut envelope.adapter, unknown.is_empty()) {
                adapter.insert("config".to_owned(), Value::Object(unknown));
            }
        }
        in_workspace(&mut envelope, caller)?;
        let binding = Binding::new(binding).map_err(HostError::Invalid)?;
        if let Some(problem) = binding.report(Some(&serving)).problem {
            return Err(HostError::InvalidConfig(problem));
        }
        let charged_key = self.shared.keys.charged(caller)?;
        let plan = RunPlan { serving: Some(serving), ad_hoc: true, charged_key, ..RunPlan::of(std::sync::Arc::new(binding)) };
        self.accept_with_plans(envelope, idempotency, vec![plan], &no_entries).await
    }
}

/// Settings of LangBot's local agent under the names and in the form of a runner that has them otherwise: `model` with `primary`
/// becomes its id, and the system messages of `prompt` become `system_prompt`. The prompt that the pipeline has prepared comes before
/// that of the configuration.
fn settings_of_langbot(config: &mut Map<String, Value>, adapter: Option<&Value>, is_known: impl Fn(&str) -> bool) {
    let model = config.get("model").filter(|model| model.is_object());
    if let Some(primary) = model.map(|model| model.get("primary").and_then(Value::as_str).unwrap_or_default().to_owned()) {
        config.remove("model");
        if !primary.is_empty() {
            config.insert("model".to_owned(), primary.into());
        }
    }
    if config.get("model").and_then(Value::as_str) == Some("") {
        config.remove("model");
    }
    if !is_known("system_prompt") || config.contains_key("system_prompt") {
        return;
    }
    let prepared = adapter.and_then(|adapter| adapter.get("prompt")).filter(|prompt| prompt.is_array());
    let messages = prepared.or_else(|| config.get("prompt")).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let is_system = |message: &&Value| message.get("role").and_then(Value::as_str) == Some("system");
    let texts: Vec<&str> = messages
        .iter()
        .filter(is_system)
        .filter_map(|message| message.get("content")?.as_str())
        .filter(|text| !text.is_empty())
        .collect();
    if !texts.is_empty() {
        let prompt = texts.join("\n\n");
        config.insert("system_prompt".to_owned(), prompt.into());
    }
    if !is_known("prompt") {
        config.remove("prompt");
    }
}

/// Takes out of a configuration what its form does not have. In a pipeline one section served several runners.
fn unknown_to(config: &mut Map<String, Value>, is_known: impl Fn(&str) -> bool) -> Map<String, Value> {
    let all = std::mem::take(config);
    let (known, mut unknown): (Map<_, _>, Map<_, _>) = all.into_iter().partition(|(key, _)| is_known(key));
    *config = known;
    unknown.retain(|key, _| !is_secret(key));
    unknown
}

impl PipelineQuery {
    /// The query as an event and a binding. Names of runners are looked up among the aliases.
    ///
    /// # Errors
    /// Fails with the malformed value, its path first in backticks, or if no runner is named.
    pub fn adapt(self, aliases: &RunnerAliases) -> Result<AdaptedQuery, String> {
        let Self { mut query, pipeline_config, runner_id } = self;
        let within = take(&mut query, "pipeline_config");
        let config = match (pipeline_config, within) {
            (Some(config), _) => config,
            (None, within) => object(within, "query.pipeline_config")?,
        };
        if !config.values().chain(query.values()).all(is_shallow) {
            return Err("`query` nests deeper than 64 levels".to_owned());
        }
        let settings = Settings::read(config, runner_id, aliases)?;
        adapt(query, settings)
    }
}

/// The settings of a pipeline.
struct Settings {
    runner: RunnerId,
    /// Of the runner.
    config: Map<String, Value>,
    bootstrap: Option<Bootstrap>,
    max_message_size: Option<u32>,
    /// Instructions for the client that shows the answer.
    output: Map<String, Value>,
    /// Values that were used before the query existed.
    rest: Map<String, Value>,
}

impl Settings {
    fn read(mut config: Map<String, Value>, named: Option<RunnerId>, aliases: &RunnerAliases) -> Result<Self, String> {
        let mut ai = object(take(&mut config, "ai"), "pipeline_config.ai")?;
        let mut runner = object(take(&mut ai, "runner"), "pipeline_config.ai.runner")?;
        let given = match text(take(&mut runner, "id"), "pipeline_config.ai.runner.id")? {
            Some(id) => Some(id),
            None => text(take(&mut runner, "runner"), "pipeline_config.ai.runner.runner")?,
        };
        let id = match (named, &given) {
            (Some(id), _) => id,
            (None, Some(given)) => runner_id(given, aliases)?,
            (None, None) => {
                return Err(
                    "`pipeline_config.ai.runner.runner` is missing: it names the runner, and so does `runner_id`".to_owned()
                );
            }
        };
        let mut own = section(&mut ai, &id, given.as_deref(), aliases)?;
        let bootstrap = bootstrap(&mut own, given.as_deref())?;
        let mut output = object(take(&mut config, "output"), "pipeline_config.output")?;
        let max_message_size = longest(&output)?;
        without_secrets(&mut output);
        without_secrets(&mut config);
        Ok(Self { runner: id, config: own, bootstrap, max_message_size, output, rest: config })
    }
}

/// The runner of a name that a configuration has for it.
fn runner_id(given: &str, aliases: &RunnerAliases) -> Result<RunnerId, String> {
    // An id is an alias only where no runner has it, which is found out later.
    given.parse().or_else(|error| aliases.runner(given).cloned().ok_or(error)).map_err(|error| {
        let given: String = given.chars().filter(|c| !c.is_control()).take(64).collect();
        format!("`pipeline_config.ai.runner` names {given:?}, which is no runner ({error}): give `runner_id`")
    })
}

/// The configuration of a runner: by its id, else by the name in the configuration. Sections of other runners are ignored,
/// because they may contain keys.
fn section(
    ai: &mut Map<String, Value>,
    id: &RunnerId,
    given: Option<&str>,
    aliases: &RunnerAliases,
) -> Result<Map<String, Value>, String> {
    let mut by_id = object(take(ai, "runner_config"), "pipeline_config.ai.runner_config")?;
    let by_alias: Vec<&str> = aliases.names(id).collect();
    // A section of an id that is itself an alias is named as the runner that it stands for is.
    let other = aliases.runner(id.as_str());
    let by_alias = by_alias.into_iter().chain(other.into_iter().flat_map(|other| aliases.names(other)));
    let by_alias: Vec<&str> = by_alias.collect();
    let keys = [id.as_str()].into_iter().chain(given).chain(by_alias.iter().copied());
    for key in keys {
        if let Some(found) = by_id.remove(key) {
            return object(Some(found), &format!("pipeline_config.ai.runner_config.{key}"));
        }
    }
    for key in given.into_iter().chain(by_alias) {
        if let Some(found) = ai.remove(key) {
            return object(Some(found), &format!("pipeline_config.ai.{key}"));
        }
    }
    Ok(Map::new())
}

/// The tail of the transcript that replaces rounds. The keys of rounds are removed from the configuration, because the
/// protocol does not have them.
fn bootstrap(config: &mut Map<String, Value>, given: Option<&str>) -> Result<Option<Bootstrap>, String> {
    let rounds = [config.remove("max-round"), config.remove("max_round")].into_iter().flatten().find(|value| !value.is_null());
    let Some(rounds) = rounds else { return Ok(None) };
    let refused =
        || format!("`pipeline_config.ai.{}.max-round` must be a whole number from 0 on", given.unwrap_or("runner_config"));
    let rounds = rounds.as_u64().ok_or_else(refused)?;
    if rounds == 0 {
        return Ok(None);
    }
    let max_events = u32::try_from(rounds.saturating_mul(OF_A_ROUND).min(MAX_TAIL)).unwrap_or(u32::MAX);
    Ok(Some(Bootstrap { mode: BootstrapMode::RecentTail, max_events, max_bytes: TAIL_BYTES }))
}

/// The message length above which the pipeline converts a message.
fn longest(output: &Map<String, Value>) -> Result<Option<u32>, String> {
    let Some(processing) = output.get("long-text-processing") else { return Ok(None) };
    if processing.get("strategy").and_then(Value::as_str) == Some("none") {
        return Ok(None);
    }
    match processing.get("threshold") {
        None | Some(Value::Null) => Ok(None),
        Some(threshold) => {
            let size = threshold.as_u64().and_then(|size| u32::try_from(size).ok());
            size.map(|size| Some(size).filter(|size| *size > 0))
                .ok_or_else(|| "`pipeline_config.output.long-text-processing.threshold` must be a whole number".to_owned())
        }
    }
}

fn adapt(mut query: Map<String, Value>, settings: Settings) -> Result<AdaptedQuery, String> {
    let Settings { runner, config, bootstrap, max_message_size, output, rest } = settings;
    let mut event = object(take(&mut query, "message_event"), "query.message_event")?;
    let chain = take(&mut query, "message_chain").or_else(|| take(&mut event, "message_chain")).map(without_payload);
    let mut variables = object(take(&mut query, "variables"), "query.variables")?;
    let query_id = id(take(&mut query, "query_id"), "query.query_id")?;
    let message_id = message_id(chain.as_ref());
    let launcher_type = id(take(&mut query, "launcher_type"), "query.launcher_type")?;
    let launcher_id = id(take(&mut query, "launcher_id"), "query.launcher_id")?;
    let sender_id = id(take(&mut query, "sender_id"), "query.sender_id")?;
    let bot_id = id(take(&mut query, "bot_uuid"), "query.bot_uuid")?;
    let pipeline = id(take(&mut query, "pipeline_uuid"), "query.pipeline_uuid")?;
    let streams = take(&mut query, "is_stream").or_else(|| take(&mut query, "supports_streaming"));
    let conversation = Conversation {
        conversation_id: conversation_id(&mut query, &variables, launcher_type.as_deref(), launcher_id.as_deref())?,
        thread_id: id(take(&mut query, "thread_id"), "query.thread_id")?,
        launcher_type: launcher_type.clone(),
        launcher_id: launcher_id.clone(),
        bot_id: bot_id.clone(),
        workspace_id: None,
    };
    let resources = resources(&mut query, &mut variables)?;
    let actor = actor(&event, sender_id)?;
    let envelope = Envelope {
        event_time: event.get("time").and_then(milliseconds),
        source_event_type: text(take(&mut event, "type"), "query.message_event.type")?,
        data: facts(event),
        conversation: Some(conversation).filter(|conversation| *conversation != Conversation::default()),
        actor,
        subject: Some(Subject {
            subject_type: "message".to_owned(),
            subject_id: message_id.clone().or_else(|| query_id.clone()),
            data: Map::new(),
        }),
        input: input(take(&mut query, "user_message"), chain)?,
        delivery: Some(Delivery {
            surface: "platform".to_owned(),
            reply_target: message_id.map(|id| Value::Object(Map::from_iter([("message_id".to_owned(), id.into())]))),
            supports_streaming: streams.as_ref().and_then(Value::as_bool).unwrap_or(true),
            supports_edit: false,
            supports_reaction: false,
            max_message_size,
            platform_capabilities: Map::from_iter([("output".to_owned(), Value::Object(output))])
                .into_iter()
                .filter(|(_, output)| output.as_object().is_some_and(|output| !output.is_empty()))
                .collect(),
        }),
        adapter: Some(Value::Object(adapter(query, variables, query_id, pipeline.clone(), rest))),
        ..Envelope::message(String::new(), PIPELINE_ADAPTER)
    };
    let id = pipeline.map(|pipeline| format!("{BINDING}.{pipeline}")).filter(|id| is_name(id));
    let binding = BindingConfig {
        id: id.unwrap_or_else(|| BINDING.to_owned()),
        config,
        bootstrap,
        resources,
        ..BindingConfig::for_runner(runner)
    };
    Ok(AdaptedQuery { envelope, binding })
}

/// The fields that only a query has.
fn adapter(
    mut query: Map<String, Value>,
    mut variables: Map<String, Value>,
    query_id: Option<String>,
    pipeline: Option<String>,
    rest: Map<String, Value>,
) -> Map<String, Value> {
    let mut adapter = Map::new();
    adapter.extend(query_id.map(|id| ("query_id".to_owned(), id.into())));
    adapter.extend(pipeline.map(|id| ("pipeline_uuid".to_owned(), id.into())));
    // Variables of the pipeline itself are permissions of plugins, not parameters.
    variables.retain(|name, _| !name.starts_with('_'));
    without_secrets(&mut variables);
    let prompt = take(&mut query, "prompt").map(|mut prompt| match prompt.get_mut("messages") {
        Some(messages) => messages.take(),
        None => prompt,
    });
    // The history of a run is that of the host; what was answered is none of the question; the pipeline's own objects are
    // nothing outside of it.
    for own in ["messages", "resp_messages", "resp_message_chain", "session", "adapter", "current_stage_name", "current_stage"] {
        query.remove(own);
    }
    query.retain(|name, value| !name.starts_with('_') && !value.is_null());
    let mut query = without_payload(Value::Object(query));
    if let Value::Object(query) = &mut query {
        without_secrets(query);
    }
    for (name, value) in [("params", Value::Object(variables)), ("query", query), ("pipeline", Value::Object(rest))] {
        if value.as_object().is_some_and(|value| !value.is_empty()) {
            adapter.insert(name.to_owned(), value);
        }
    }
    adapter.extend(prompt.map(|prompt| ("prompt".to_owned(), prompt)));
    // Rounds are unknown behind the adapter, under any name.
    without_rounds(&mut adapter);
    adapter
}

/// The conversation that a session uses, else the one that a variable names, else that of the place itself.
fn conversation_id(
    query: &mut Map<String, Value>,
    variables: &Map<String, Value>,
    launcher_type: Option<&str>,
    launcher_id: Option<&str>,
) -> Result<Option<String>, String> {
    let own = id(take(query, "conversation_id"), "query.conversation_id")?;
    let session = query.get("session").and_then(|session| session.pointer("/using_conversation/uuid")).cloned();
    let used = id(session.filter(|id| !id.is_null()), "query.session.using_conversation.uuid")?;
    let named = variables.get("conversation_id").cloned().filter(|id| !id.is_null());
    let named = id(named, "query.variables.conversation_id")?;
    let place = launcher_type.zip(launcher_id).map(|(kind, id)| format!("{kind}_{id}"));
    Ok(own.or(used).or(named).or(place.filter(|place| place.len() <= MAX_FOREIGN_ID_LEN)))
}

/// The resources that were prepared for the query: models, functions, knowledge bases.
fn resources(query: &mut Map<String, Value>, variables: &mut Map<String, Value>) -> Result<ResourcePolicy, String> {
    let model = text(take(query, "use_llm_model_uuid"), "query.use_llm_model_uuid")?;
    let fallbacks = texts(variables.remove("_fallback_model_uuids"), "query.variables._fallback_model_uuids")?;
    let models: Vec<String> = model.into_iter().chain(fallbacks).collect();
    let functions = match take(query, "use_funcs") {
        None => Vec::new(),
        Some(Value::Array(functions)) => functions
            .into_iter()
            .map(|function| match function {
                Value::String(name) => Some(name),
                function => function.get("name").and_then(Value::as_str).map(str::to_owned),
            })
            .collect::<Option<_>>()
            .ok_or("`query.use_funcs` must be a list of functions, each with a `name`")?,
        Some(_) => return Err("`query.use_funcs` must be a list of functions, each with a `name`".to_owned()),
    };
    let bases = texts(variables.remove("_knowledge_base_uuids"), "query.variables._knowledge_base_uuids")?;
    // A name that ends in `*` could match more than the query lists.
    let names = |names: Vec<String>| {
        let exact: Vec<String> = names.into_iter().filter(|name| !name.is_empty() && !name.ends_with('*')).collect();
        (!exact.is_empty()).then_some(Names(exact))
    };
    Ok(ResourcePolicy {
        model_ids: names(models),
        tool_names: names(functions),
        kb_ids: names(bases),
        ..ResourcePolicy::default()
    })
}

fn actor(event: &Map<String, Value>, sender_id: Option<String>) -> Result<Option<Actor>, String> {
    let sender = event.get("sender").and_then(Value::as_object);
    let of = |name: &str| sender.and_then(|sender| sender.get(name)).filter(|value| !value.is_null()).cloned();
    let actor_id = id(of("id"), "query.message_event.sender.id")?.or(sender_id);
    let names = ["nickname", "member_name", "remark", "name"];
    let actor_name = names.into_iter().find_map(|name| of(name)?.as_str().map(str::to_owned)).filter(|name| !name.is_empty());
    let is_known = actor_id.is_some() || actor_name.is_some();
    Ok(is_known.then(|| Actor { actor_type: "user".to_owned(), actor_id, actor_name, metadata: Map::new() }))
}

/// The input of the user: the prepared message, else the texts of the chain.
fn input(message: Option<Value>, chain: Option<Value>) -> Result<Input, String> {
    let content = match message {
        Some(Value::Object(mut message)) => take(&mut message, "content"),
        Some(Value::String(text)) => Some(Value::String(text)),
        None => None,
        Some(_) => return Err("`query.user_message` must be a message".to_owned()),
    };
    let (text, contents) = match content {
        None => (chain.as_ref().map(plain).filter(|text| !text.is_empty()), Vec::new()),
        Some(Value::String(text)) => (Some(text), Vec::new()),
        Some(Value::Array(parts)) => {
            let parts = parts.into_iter().enumerate().map(|(place, part)| content_part(place, part));
            let contents: Vec<ContentPart> = parts.collect::<Result<_, _>>()?;
            let text =
                contents.iter().filter_map(|part| if let ContentPart::Text(text) = part { Some(text.as_str()) } else { None });
            (Some(text.collect::<String>()).filter(|text| !text.is_empty()), contents)
        }
        Some(_) => return Err("`query.user_message.content` must be a text or a list of parts".to_owned()),
    };
    if text.is_none() && contents.is_empty() {
        return Err("`query` has no message: it has neither a `user_message` nor a text in its `message_chain`".to_owned());
    }
    // The protocol has an object there (v1, section 4.6); a chain that came as a list is the `root` of one.
    let message_chain = chain.map(|chain| if chain.is_array() { json!({ "root": chain }) } else { chain });
    Ok(Input { text, contents, attachments: Vec::new(), message_chain })
}

fn content_part(place: usize, part: Value) -> Result<ContentPart, String> {
    let at = |what: &str| format!("`query.user_message.content[{place}]` {what}");
    match part.get("type").and_then(Value::as_str) {
        Some(_) => serde_json::from_value(part).map_err(|error| at(&format!("is malformed: {error}"))),
        None => Err(at("is an object with a `type`")),
    }
}

/// The member of a part that has its bytes within.
#[must_use]
pub fn inline_bytes(part: &ContentPart) -> Option<&str> {
    let ContentPart::Other(part) = part else { return None };
    let kind = part.get("type")?.as_str().filter(|kind| INLINE.contains(kind))?;
    Some(part.get(kind).and_then(Value::as_str).unwrap_or_default())
}

/// The components of a chain, in either form that platforms dump one in.
fn components(chain: &Value) -> &[Value] {
    let list = chain.as_array().or_else(|| chain.get("root").and_then(Value::as_array));
    list.map(Vec::as_slice).unwrap_or_default()
}

fn plain(chain: &Value) -> String {
    let is_plain = |component: &&Value| component.get("type").and_then(Value::as_str) == Some("Plain");
    components(chain).iter().filter(is_plain).filter_map(|component| component.get("text")?.as_str()).collect()
}

/// The id of a message, from its chain. Platforms that have none say -1.
fn message_id(chain: Option<&Value>) -> Option<String> {
    let chain = chain?;
    let source = components(chain).iter().find(|part| part.get("type").and_then(Value::as_str) == Some("Source"));
    let found = chain.get("message_id").or_else(|| source.and_then(|source| source.get("id")))?;
    id(Some(found.clone()), "").ok().flatten().filter(|id| id != "-1")
}

/// The data of the event, without content and without objects of the platform.
fn facts(event: Map<String, Value>) -> Map<String, Value> {
    match without_payload(Value::Object(event)) {
        Value::Object(mut facts) => {
            without_secrets(&mut facts);
            facts
        }
        _ => Map::new(),
    }
}

fn milliseconds(time: &Value) -> Option<Timestamp> {
    let time = time.as_f64().filter(|time| time.is_finite() && *time > 0.0)?;
    let ms = if time < FIRST_MS { time * 1000.0 } else { time };
    Some(ms as u64)
}

#[cfg(test)]
mod tests;
