//! Paths whose answers are those of a workspace, and the others.

/// Keys belong to the host as a whole, and so do its configuration and its runners.
const OF_THE_HOST: [&str; 4] = ["/api/v1/keys", "/api/v1/config/", "/api/v1/webhook-sources", "/api/v1/runners"];

/// True for a path of the host as a whole, of those that need a sender.
pub(crate) fn is_of_the_host(path: &str) -> bool {
    OF_THE_HOST.iter().any(|start| path.starts_with(start))
}

/// True for a path whose answers are those of a workspace.
pub(crate) fn is_of_workspaces(path: &str) -> bool {
    ["/api/", "/agents", "/mcp"].iter().any(|start| path.starts_with(start)) && !is_of_the_host(path)
}
