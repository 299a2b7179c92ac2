//! `[[models]]` of the configuration.

use std::path::{Path, PathBuf};

use agent_host_protocol::{message::TokenUsage, model::ModelType};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use crate::{access_key::AccessKey, secret::SecretRef};

/// The provider of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// Any server that speaks the chat completions and embeddings of OpenAI, and `/rerank` in the form of Jina.
    Openai,
    /// Responses of OpenAI, or of a compatible server.
    OpenaiResponses,
    /// Messages of Anthropic, or of a compatible server.
    Anthropic,
    /// `generateContent` and embeddings of Google's Gemini API.
    Gemini,
    /// Converse of Amazon Bedrock, for the models of all makers there.
    Bedrock,
    /// Rerank of Cohere, version 2.
    Cohere,
    /// Rerank of Jina.
    Jina,
    /// A file of replies, for demonstrations and tests. No network.
    Scripted,
}

impl ProviderKind {
    /// The name, as the configuration and runners see it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::OpenaiResponses => "openai_responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Bedrock => "bedrock",
            Self::Cohere => "cohere",
            Self::Jina => "jina",
            Self::Scripted => "scripted",
        }
    }

    /// Address without a setting.
    const fn default_url(self) -> Option<&'static str> {
        match self {
            Self::Openai | Self::OpenaiResponses => Some("https://api.openai.com/v1"),
            Self::Anthropic => Some("https://api.anthropic.com/v1"),
            Self::Gemini => Some("https://generativelanguage.googleapis.com/v1beta"),
            Self::Cohere => Some("https://api.cohere.com/v2"),
            Self::Jina => Some("https://api.jina.ai/v1"),
            // The region is a part of the address.
            Self::Bedrock | Self::Scripted => None,
        }
    }
}

/// Extra arguments that a runner may set without a setting: sampling and the form of the answer. None of them stores,
/// fetches or bills (`store`, `metadata`, `user`, `service_tier`, `n`).
pub const DEFAULT_EXTRA_ARGS: [&str; 19] = [
    "frequency_penalty",
    "logit_bias",
    "max_completion_tokens",
    "max_tokens",
    "min_p",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "reasoning_effort",
    "repetition_penalty",
    "response_format",
    "seed",
    "stop",
    "temperature",
    "tool_choice",
    "top_k",
    "top_p",
    "verbosity",
];

/// Arguments that the host sets in a request, closed to runners and operators. `n` because a response has one message.
const RESERVED_ARGS: [&str; 14] = [
    "contents",
    "documents",
    "encoding_format",
    "function_call",
    "functions",
    "input",
    "messages",
    "model",
    "n",
    "query",
    "stream",
    "stream_options",
    "tools",
    "top_n",
];

/// Models that are asked in place of another.
const MAX_FALLBACKS: usize = 8;

/// Encodings for counting tokens.
pub const TOKENIZERS: [&str; 5] = ["o200k_base", "o200k_harmony", "cl100k_base", "p50k_base", "r50k_base"];

/// An entry of `[[models]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Name for bindings and runners: 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub id: String,
    /// The kind of the model.
    #[serde(rename = "type", default = "llm")]
    pub r#type: ModelType,
    /// The provider of the model.
    pub provider: ProviderKind,
    /// The provider's name for it; the id where absent. Runners do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Address of the provider, up to the version (`https://api.openai.com/v1`). Runners do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The key, by reference. Sent as `Authorization: Bearer` (`x-api-key` to Anthropic, `x-goog-api-key` to Gemini), and nowhere
    /// else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Only for Amazon Bedrock, in place of `api_key`: the access key with which requests are signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_key: Option<AccessKey>,
    /// The file of replies of a scripted model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<PathBuf>,
    /// Ids of other models of type `llm`, which are asked in this order where the model fails before it has begun to answer. Their
    /// own `fallback` does not count. A run that is granted this model needs no grant of those.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<String>,
    /// Price of its tokens. With it, the host computes the cost of each call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<ModelPrice>,
    /// Extra arguments that a runner may set; others are refused, not dropped.
    #[serde(default = "default_extra_args")]
    pub extra_args: Vec<String>,
    /// Arguments that are always sent; a runner may replace those that it may give.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub defaults: Map<String, Value>,
    /// If true, requests have `prompt_cache_key`, the session of the run, so that the provider finds the prompt of the turn before
    /// in its cache; those to Anthropic and Bedrock have marks (`cache_control`, `cachePoint`) in its place. Default: true for addresses
    /// of OpenAI, Azure and Anthropic, false for others, which may refuse members that they do not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_cache_key: Option<bool>,
    /// Encoding for counting tokens, such as `o200k_base`; by the name of the model where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Calls at the same time; more wait for their turn within their deadline.
    #[serde(default = "max_concurrent")]
    pub max_concurrent: usize,
    /// Largest number of retries while the provider is busy or failing and has not begun to answer.
    #[serde(default = "max_retries")]
    pub max_retries: u32,
    /// Time limit for connecting, in ms.
    #[serde(default = "connect_timeout_ms")]
    pub connect_timeout_ms: u64,
    /// Longest silence of a provider, before its answer and within it, in ms.
    #[serde(default = "idle_timeout_ms")]
    pub idle_timeout_ms: u64,
    /// Bytes of one response: of its content where it is a stream, of the body where it is not.
    #[serde(default = "max_response_bytes")]
    pub max_response_bytes: usize,
    /// Bytes that all images of one request have together.
    #[serde(default = "max_image_bytes")]
    pub max_image_bytes: usize,
}

/// The price of a model, for a million tokens, in the one currency of all prices.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    /// Price of a million tokens read.
    pub input: f64,
    /// Price of a million tokens written.
    #[serde(default)]
    pub output: f64,
    /// Price of a million tokens read from a cache. Default: the price of `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
}

impl ModelPrice {
    /// Largest price of a million tokens.
    const MAX: f64 = 1e6;

    /// The cost of a call, in millionths of the currency, rounded up.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "prices are not negative, and a sum beyond 2^53 is cut"
    )]
    pub fn cost_micros(&self, usage: &TokenUsage) -> u64 {
        let cached = usage.cached_input.unwrap_or(0).min(usage.input);
        let cost = (usage.input - cached) as f64 * self.input
            + cached as f64 * self.cached_input.unwrap_or(self.input)
            + usage.output as f64 * self.output;
        // A fraction that comes from the binary form of a price is no cost.
        (cost - 1e-6).ceil().max(0.0) as u64
    }

    fn check(&self) -> Result<(), String> {
        for (name, price) in [("input", Some(self.input)), ("output", Some(self.output)), ("cached_input", self.cached_input)] {
            if price.is_some_and(|price| !(0.0..=Self::MAX).contains(&price)) {
                return Err(format!("`price.{name}` must be from 0 to {} for a million tokens", Self::MAX));
            }
        }
        Ok(())
    }
}

const fn llm() -> ModelType {
    ModelType::Llm
}
fn default_extra_args() -> Vec<String> {
    DEFAULT_EXTRA_ARGS.map(str::to_owned).to_vec()
}
/// The concurrency that common providers allow for one key without throttling.
const fn max_concurrent() -> usize {
    64
}
const fn max_retries() -> u32 {
    3
}
const fn connect_timeout_ms() -> u64 {
    10_000
}
/// Longer than a large model reads a long prompt before its first token.
const fn idle_timeout_ms() -> u64 {
    60_000
}
/// 128 texts of 4096 dimensions as JSON have 11 MiB.
const fn max_response_bytes() -> usize {
    16 << 20
}
/// As bytes; in a request they are a third more.
const fn max_image_bytes() -> usize {
    16 << 20
}

impl ModelConfig {
    /// An entry with nothing but what it must have.
    #[must_use]
    pub fn new(id: impl Into<String>, r#type: ModelType, provider: ProviderKind) -> Self {
        Self {
            id: id.into(),
            r#type,
            provider,
            model: None,
            base_url: None,
            api_key: None,
            access_key: None,
            script: None,
            fallback: Vec::new(),
            price: None,
            extra_args: default_extra_args(),
            defaults: Map::new(),
            prompt_cache_key: None,
            tokenizer: None,
            max_concurrent: max_concurrent(),
            max_retries: max_retries(),
            connect_timeout_ms: connect_timeout_ms(),
            idle_timeout_ms: idle_timeout_ms(),
            max_response_bytes: max_response_bytes(),
            max_image_bytes: max_image_bytes(),
        }
    }

    /// True if requests name the session of the run.
    #[must_use]
    pub fn sends_prompt_cache_key(&self) -> bool {
        self.prompt_cache_key.unwrap_or_else(|| {
            let url = self.url().ok().flatten();
            let host = url.as_ref().and_then(|url| url.host_str());
            let keeps = |host| matches!(host, "api.openai.com" | "api.anthropic.com") || host.ends_with(".openai.azure.com");
            host.is_some_and(keeps)
        })
    }

    /// Checks the values. Secrets and files are not read.
    ///
    /// # Errors
    /// Says what is wrong and what to write instead.
    pub fn check(&self) -> Result<(), String> {
        let id = &self.id;
        if id.is_empty() || id.len() > 64 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
            return Err(format!("models: the id `{id}` must be 1 to 64 letters, digits, `.`, `_` or `-` of ASCII"));
        }
        self.check_fields().map_err(|problem| format!("model `{id}`: {problem}"))
    }

    fn check_access_key(&self, key: &AccessKey) -> Result<(), String> {
        if self.provider != ProviderKind::Bedrock {
            return Err("`access_key` belongs to provider `bedrock`: other providers take an `api_key`".into());
        }
        if self.api_key.is_some() {
            return Err("`api_key` and `access_key` are both set: requests have the one or are signed with the other".into());
        }
        match key.region_at(self.url()?.as_ref().and_then(Url::host_str)) {
            Some(_) => Ok(()),
            None => Err("`access_key.region` is missing: `base_url` does not say the region of the requests".into()),
        }
    }

    fn check_fields(&self) -> Result<(), String> {
        let (kind, provider) = (self.r#type, self.provider);
        match provider {
            ProviderKind::Cohere | ProviderKind::Jina if kind != ModelType::Rerank => {
                return Err(format!(
                    "provider `{}` serves only type `rerank`; use provider `openai` with a `base_url` for the others",
                    provider.as_str()
                ));
            }
            ProviderKind::Anthropic | ProviderKind::Bedrock | ProviderKind::OpenaiResponses if kind != ModelType::Llm => {
                return Err(format!("provider `{}` serves only type `llm`", provider.as_str()));
            }
            ProviderKind::Gemini if kind == ModelType::Rerank => {
                return Err("provider `gemini` serves only types `llm` and `embedding`".into());
            }
            ProviderKind::Bedrock if self.base_url.is_none() => {
                return Err(
                    "`base_url` is missing: the address of Bedrock in your region, https://bedrock-runtime.REGION.amazonaws.com"
                        .into(),
                );
            }
            ProviderKind::Bedrock if self.api_key.is_none() && self.access_key.is_none() && self.is_at_amazon() => {
                return Err(
                    "`api_key` is missing: { env = \"AWS_BEARER_TOKEN_BEDROCK\" }, an API key of Amazon Bedrock; or `access_key`, with \
                     which requests are signed: { id = { env = \"AWS_ACCESS_KEY_ID\" }, secret = { env = \"AWS_SECRET_ACCESS_KEY\" } }"
                        .into()
                );
            }
            ProviderKind::Scripted if kind == ModelType::Llm && self.script.is_none() => {
                return Err("a scripted model needs `script`, the file of its replies".into());
            }
            ProviderKind::Scripted if self.api_key.is_some() || self.base_url.is_some() => {
                return Err("a scripted model has neither `api_key` nor `base_url`".into());
            }
            _ => {}
        }
        if let Some(key) = &self.access_key {
            self.check_access_key(key)?;
        }
        if self.script.is_some() && (provider, kind) != (ProviderKind::Scripted, ModelType::Llm) {
            return Err("`script` belongs to provider `scripted` with type `llm`".into());
        }
        if provider != ProviderKind::Scripted && self.base_url.is_none() && self.api_key.is_none() {
            let variable = match provider {
                ProviderKind::Gemini => "GEMINI_API_KEY",
                _ => "OPENAI_API_KEY",
            };
            return Err(format!(
                "`api_key` is missing, such as {{ env = \"{variable}\" }} (a server of your own needs `base_url`)"
            ));
        }
        if let Some(price) = &self.price {
            price.check()?;
        }
        self.check_fallback()?;
        self.url()?;
        if self.model.as_ref().is_some_and(|model| model.is_empty() || model.len() > 256) {
            return Err("`model` must have 1 to 256 bytes".into());
        }
        if let Some(key) = self.extra_args.iter().chain(self.defaults.keys()).find(|key| RESERVED_ARGS.contains(&key.as_str())) {
            return Err(format!("`{key}` is set by the host and cannot be in `extra_args` or `defaults`"));
        }
        if let Some(name) = self.tokenizer.as_deref().filter(|name| !TOKENIZERS.contains(name)) {
            return Err(format!("`tokenizer` = \"{name}\" is not known: use one of {}", TOKENIZERS.join(", ")));
        }
        for (name, value) in [
            ("max_concurrent", self.max_concurrent as u64),
            ("connect_timeout_ms", self.connect_timeout_ms),
            ("idle_timeout_ms", self.idle_timeout_ms),
            ("max_response_bytes", self.max_response_bytes as u64),
            ("max_image_bytes", self.max_image_bytes as u64),
        ] {
            // The upper bound keeps arithmetic with these numbers far from overflow.
            if value == 0 || value > u64::from(u32::MAX) {
                return Err(format!("`{name}` must be at least 1 and at most {}", u32::MAX));
            }
        }
        // More retries than this take longer than any deadline.
        if self.max_retries > 20 {
            return Err("`max_retries` must be at most 20".into());
        }
        Ok(())
    }

    /// True if the address is one of AWS.
    fn is_at_amazon(&self) -> bool {
        let url = self.url().ok().flatten();
        let host = url.as_ref().and_then(|url| url.host_str());
        host.is_some_and(|host| host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn"))
    }

    fn check_fallback(&self) -> Result<(), String> {
        let Self { fallback, .. } = self;
        if !fallback.is_empty() && self.r#type != ModelType::Llm {
            return Err("`fallback` belongs to type `llm`: vectors and ranks of two models do not go together".into());
        }
        if fallback.len() > MAX_FALLBACKS {
            return Err(format!("`fallback` has at most {MAX_FALLBACKS} models"));
        }
        for (at, id) in fallback.iter().enumerate() {
            if *id == self.id || fallback.iter().take(at).any(|other| other == id) {
                return Err(format!("`fallback` names `{id}` twice: each model is asked once"));
            }
        }
        Ok(())
    }

    /// Paths that are relative are so to the folder of the configuration.
    pub fn relative_to(&mut self, base: &Path) {
        if let Some(script) = &mut self.script {
            *script = base.join(&*script);
        }
        if let Some(secret) = &mut self.api_key {
            secret.relative_to(base);
        }
        if let Some(key) = &mut self.access_key {
            key.relative_to(base);
        }
    }

    /// The provider's name for it.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.model.as_deref().unwrap_or(&self.id)
    }

    /// The address of the provider; `None` for one without network. Error messages never contain it: only the operator
    /// should know it.
    ///
    /// # Errors
    /// Fails if the text is no address of a provider.
    pub fn url(&self) -> Result<Option<Url>, String> {
        let Some(text) = self.base_url.as_deref().or(self.provider.default_url()) else { return Ok(None) };
        let example = "`base_url` must look like https://api.openai.com/v1";
        let url = Url::parse(text).map_err(|error| format!("{example}: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(format!("{example}: only http and https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("`base_url` must not have a user or password in it: use `api_key`".into());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(format!("{example}, without `?` and `#`"));
        }
        Ok(Some(url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<ModelConfig, String> {
        let config: ModelConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn a_cost_is_exact_to_the_millionth_and_rounded_up() {
        let price = ModelPrice { input: 2.5, output: 10.0, cached_input: Some(0.1) };
        let cost =
            |input, output, cached| price.cost_micros(&TokenUsage { input, output, cached_input: cached, reasoning: None });
        assert_eq!((cost(1_000_000, 0, None), cost(0, 1_000_000, None)), (2_500_000, 10_000_000));
        assert_eq!((cost(1, 0, None), cost(2, 1, None), cost(0, 0, None)), (3, 15, 0));
        assert_eq!((cost(100, 0, Some(100)), cost(100, 0, Some(500))), (10, 10));
        let mut config = ModelConfig::new("a", ModelType::Embedding, ProviderKind::Scripted);
        config.price = Some(ModelPrice { input: -1.0, output: 0.0, cached_input: None });
        assert!(config.check().unwrap_err().contains("`price.input`"));
    }

    #[test]
    fn three_lines_are_enough_for_a_real_model() {
        let chat = config("id = \"chat\"\nprovider = \"openai\"\nmodel = \"gpt-5\"\napi_key = { env = \"OPENAI_API_KEY\" }");
        let chat = chat.unwrap();
        assert_eq!((chat.r#type, chat.max_concurrent, chat.idle_timeout_ms), (ModelType::Llm, 64, 60_000));
        assert!(chat.extra_args.contains(&"temperature".to_owned()));
        let written = toml::to_string(&chat).unwrap();
        assert_eq!(config(&written).unwrap(), chat);
    }

    #[test]
    fn prompts_are_cached_where_the_provider_is_known_to_take_the_hint() {
        let hints = |provider: &str, more: &str| {
            let text = format!("id = \"a\"\nprovider = \"{provider}\"\napi_key = {{ env = \"KEY\" }}\n{more}");
            config(&text).unwrap().sends_prompt_cache_key()
        };
        for provider in ["openai", "openai_responses", "anthropic"] {
            assert!(hints(provider, ""), "{provider}");
            assert!(!hints(provider, "base_url = \"http://127.0.0.1:1/v1\""), "{provider}");
            assert!(!hints(provider, "prompt_cache_key = false"), "{provider}");
        }
        assert!(hints("openai", "base_url = \"https://x.openai.azure.com/openai/v1\""));
    }

    #[test]
    fn invalid_models_are_refused_with_the_remedy() {
        for (text, expect) in [
            ("id = \"a b\"\nprovider = \"openai\"", "1 to 64"),
            ("id = \"a\"\nprovider = \"openai\"", "`api_key` is missing"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"ftp://x\"", "only http"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://u:p@x/v1\"", "use `api_key`"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://x/v1?key=1\"", "without `?`"),
            ("id = \"a\"\nprovider = \"cohere\"\nbase_url = \"http://x\"", "only type `rerank`"),
            ("id = \"a\"\nprovider = \"anthropic\"\ntype = \"embedding\"\nbase_url = \"http://x\"", "only type `llm`"),
            ("id = \"a\"\nprovider = \"gemini\"", "GEMINI_API_KEY"),
            ("id = \"a\"\nprovider = \"gemini\"\ntype = \"rerank\"\nbase_url = \"http://x\"", "only types `llm` and `embedding`"),
            ("id = \"a\"\nprovider = \"gemini\"\nbase_url = \"http://x\"\n[defaults]\ncontents = []", "set by the host"),
            ("id = \"a\"\nprovider = \"bedrock\"\napi_key = { env = \"K\" }", "bedrock-runtime.REGION.amazonaws.com"),
            (
                "id = \"a\"\nprovider = \"bedrock\"\nbase_url = \"https://bedrock-runtime.eu-west-1.amazonaws.com\"",
                "AWS_BEARER_TOKEN_BEDROCK",
            ),
            ("id = \"a\"\nprovider = \"bedrock\"\ntype = \"embedding\"\nbase_url = \"http://x\"", "only type `llm`"),
            ("id = \"a\"\nprovider = \"scripted\"", "needs `script`"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://x\"\nextra_args = [\"messages\"]", "set by the host"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://x\"\n[defaults]\nn = 2", "set by the host"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://x\"\ntokenizer = \"bpe\"", "o200k_base"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://x\"\nmax_concurrent = 0", "at least 1"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://x\"\napi_key = \"sk-1\"", "api_key"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://x\"\nkey = 1", "unknown field"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://x\"\nfallback = [\"a\"]", "twice"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://x\"\nfallback = [\"b\", \"b\"]", "twice"),
            ("id = \"a\"\nprovider = \"openai\"\nbase_url = \"http://x\"\ntype = \"embedding\"\nfallback = [\"b\"]", "`llm`"),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }

    #[test]
    fn paths_are_relative_to_the_configuration() {
        let mut model = ModelConfig::new("a", ModelType::Llm, ProviderKind::Scripted);
        model.script = Some("replies.toml".into());
        model.api_key = Some(SecretRef::File("/keys/a".into()));
        model.relative_to(Path::new("/etc/agents"));
        assert_eq!(model.script.as_deref(), Some(Path::new("/etc/agents/replies.toml")));
        assert_eq!(model.api_key, Some(SecretRef::File("/keys/a".into())));
    }
}
