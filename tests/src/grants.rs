//! The widest and the narrowest `resources` of a binding.

/// Grants every operation of every interface.
pub const EVERYTHING: &str = r#"
storage = ["plugin", "workspace", "binding"]
runs = ["start", "get", "list", "events", "cancel"]
platform_api = ["message.edit"]
http_hosts = ["127.0.0.1:*"]
"#;

/// Grants no operation of any interface. State is granted outside of `resources`, by `state` of the binding.
pub const NOTHING: &str = r#"
models = []
tools = []
knowledge_bases = []
history = []
events = []
artifacts = []
storage = []
interactions = false
steering = false
"#;
