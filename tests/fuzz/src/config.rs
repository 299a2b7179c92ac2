//! The configuration file.

use std::path::Path;

use agent_host_config::Config;

/// A file is a configuration or one message; a configuration is read from the same text as the same again.
pub(crate) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Config::parse(text, Path::new("/base")) {
        Ok(config) => {
            assert!(config.check().is_ok(), "a configuration that was read is refused by its check");
            assert!(Config::parse(text, Path::new("/base")).is_ok_and(|again| again == config), "two readings differ");
        }
        Err(error) => assert!(!error.to_string().trim().is_empty(), "a refusal without a reason"),
    }
}
