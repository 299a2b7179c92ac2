//! Limits, each with its reason. `agent-host.toml` can change them under `[limits]`.

use serde::{Deserialize, Serialize};

/// The largest run, request and file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// A run that answers a chat message and takes longer than this has lost its reader.
    pub run_deadline_ms: u64,
    /// After a cancel or deadline a guest has this long to return by itself. Host calls answer `cancelled`
    /// meanwhile, so an honest guest needs a few microseconds.
    pub cancel_grace_ms: u64,
    /// Guests that are in memory at one time. Each holds a slot of the pool (address space, not memory);
    /// further runs wait for a slot, none is refused.
    pub max_live_runs: u32,
    /// Linear memory of a guest, all memories together. A Rust guest starts with about 1 MiB; Python and
    /// JavaScript engines need some 30.
    pub guest_memory_bytes: usize,
    /// Elements of each table. A JavaScript engine has about 10,000.
    pub guest_table_elements: usize,
    /// Stack of a guest. wasmtime's own default.
    pub guest_stack_bytes: usize,
    /// Bytes that a guest may pass in one host call, before anything is parsed. Larger than the largest
    /// argument that any interface accepts (a storage value of 10 MiB).
    pub host_call_bytes: usize,
    /// Handles that a guest may hold: open readers, writers, streams, pollables.
    pub guest_handles: usize,
    /// Log of a run in one second, its standard output and error included; more is dropped and counted.
    pub log_bytes_per_second: u32,
    /// Log of one run that is kept with the run, in bytes on the disk: the newest lines, at least the newer half of the limit. 0 keeps
    /// none.
    pub log_bytes: usize,
    /// `data` of one result event; more must be an artifact.
    pub result_bytes: usize,
    /// Results in one `emit`.
    pub emit_results: usize,
    /// Bytes in one `emit`.
    pub emit_bytes: usize,
    /// A state value, as JSON text.
    pub state_value_bytes: usize,
    /// A state key.
    pub state_key_bytes: usize,
    /// State that a context brings along; what is over it must be read by the state interface.
    pub state_snapshot_bytes: usize,
    /// Journal of one run, in bytes. A run with a longer journal continues and cannot be resumed any more.
    pub journal_bytes: u64,
    /// A run that waits longer than this leaves memory and comes back when its time has come. Coming back costs some
    /// milliseconds and what the guest computed until then, so a shorter wait is waited in memory.
    pub park_after_ms: u64,
    /// Host calls of a run in one second, besides `results.emit` and the pieces of a model's stream; more are refused.
    pub host_calls_per_second: u32,
    /// Host calls of a run at once.
    pub host_calls_burst: u32,
    /// Results that a run may emit in one second, and pieces of streams that it may read: a faster run waits. The limit keeps
    /// one run from filling a disk.
    pub results_per_second: u32,
    /// Results at once.
    pub results_burst: u32,
    /// Events of one run, so that a run cannot fill the disk within its deadline.
    pub run_events: u64,
    /// Results of one execution of a run, in bytes of their data, so that a run cannot fill the disk. What is larger is an
    /// artifact.
    pub run_record_bytes: u64,
    /// Body of an HTTP request.
    pub http_body_bytes: usize,
    /// Connections that are open at one time. Each costs some kilobytes and a file descriptor; more are answered `503`
    /// and closed, so that those that are there go on.
    pub http_connections: usize,
    /// A client has so long to send the head of a request, and so long a connection may stand idle between two. A head
    /// is sent in one piece; who needs longer holds a connection for nothing.
    pub http_header_ms: u64,
    /// Concurrent streams of events; more are refused. The limit leaves connections for other requests.
    pub http_subscribers: usize,
    /// Time without progress, in ms, after which a reading client is dropped to free its memory. A stream of events
    /// continues when the client reconnects with `Last-Event-ID`.
    pub http_slow_reader_ms: u64,
    /// `Prefer: wait` waits at most so long.
    pub http_wait_ms: u64,
    /// Runs that wait behind the active one of their conversation; more is refused.
    pub conversation_queue: usize,
    /// A component file.
    pub component_bytes: u64,
    /// CPU time of the process that compiles a component, in whole seconds; ten times as long in all.
    pub compile_ms: u64,
    /// Memory of the process that compiles one, in bytes. A component with a Python interpreter takes some hundred MiB.
    pub compile_memory_bytes: u64,
    /// Longest wait of the start for plugins; then the host serves, and the rest follow.
    pub plugins_wait_ms: u64,
    /// A request for a runner whose plugin may still be compiled at the start of the host waits so long, then it is refused with
    /// `runner_compiling`. Clients and proxies give up after 30 seconds and more.
    pub runner_wait_ms: u64,
    /// Asking a component for its manifests.
    pub manifest_ms: u64,
    /// Runners in one component.
    pub component_runners: usize,
    /// An artifact. Larger ones belong into a store of their own, with a link in the conversation.
    pub artifact_bytes: u64,
    /// Bytes of an artifact in one read of a guest: a page of it, small beside the guest's memory.
    pub artifact_read_bytes: usize,
    /// Artifacts that one run writes, together: its own, and those that the host makes of what its tools answer.
    pub run_artifact_bytes: u64,
    /// An upload that no event, message or run has referred to for so long is collected: clients upload, then send,
    /// within minutes; a day forgives a long pause.
    pub artifact_unreferenced_ms: u64,
    /// Garbage (expired artifacts, files that nothing refers to) is collected so often.
    pub gc_interval_ms: u64,
    /// Body of an upload of an artifact.
    pub upload_bytes: u64,
    /// Raw payload of an event that is kept in the event itself; a larger one becomes an artifact.
    pub event_inline_bytes: usize,
    /// A storage value: what a guest with 64 MiB can hold a few times over.
    pub storage_value_bytes: u64,
    /// Keys and values of one storage area together, so that one plugin cannot fill the disk.
    pub storage_area_bytes: u64,
    /// Keys of one storage area.
    pub storage_area_keys: u64,
    /// Keys and values of one scope of state together. State is small by intent; what is large belongs into
    /// storage.
    pub state_scope_bytes: u64,
    /// Keys of one scope of state.
    pub state_scope_keys: u64,
    /// A request to a model as JSON, without the artifacts that it names: more than any context window takes.
    pub model_request_bytes: usize,
    /// Parameters of one tool call. Pass larger ones as an artifact.
    pub tool_parameters_bytes: usize,
    /// Characters of the output of a tool that a guest gets (some 2,000 tokens); more becomes an artifact with a
    /// preview.
    pub tool_output_chars: usize,
    /// Characters of that preview: enough to decide whether to read the rest.
    pub tool_preview_chars: usize,
    /// Tool calls in one `call-many`: more than any model asks for at once.
    pub tool_calls: usize,
    /// Tool calls of one `call-many` that run at the same time; the others wait.
    pub tool_calls_at_once: u32,
    /// Tools that a client may bring for one run: more than a model can tell apart.
    pub client_tools: usize,
    /// JSON Schema and description of one client tool together, in bytes. Both are part of the grant and are read with the
    /// run.
    pub client_tool_bytes: usize,
    /// Passages of one retrieval.
    pub retrieve_top_k: u32,
    /// Items of one search in the history: what a prompt has room for.
    pub search_top_k: u32,
    /// Texts of one embedding request; providers take some hundred to 2,048.
    pub embed_texts: usize,
    /// Documents of one rerank request; providers take some hundred to 1,000.
    pub rerank_documents: usize,
    /// Body of one HTTP request of a guest, in bytes.
    pub http_request_bytes: usize,
    /// Body of one response to a guest, however it is read.
    pub http_response_bytes: u64,
    /// A request of a guest to the outside, until its last byte is read, unless the guest wants less. Streams of other
    /// agents last as long as an answer of theirs.
    pub http_timeout_ms: u64,
    /// Requests of one run that are open at one time.
    pub http_requests_at_once: usize,
    /// One question or action for a person, in bytes: its title, description, schema, target and payload.
    pub ask_bytes: usize,
    /// An answer of a person.
    pub answer_bytes: usize,
    /// A person has so long to answer, where neither the runner nor the binding says less.
    pub ask_expires_ms: u64,
    /// Runs that one run may start.
    pub child_runs: usize,
    /// Runs that one run has started and that have not ended.
    pub child_runs_at_once: usize,
    /// Largest number of ancestors of a run: a run without a parent has depth 0. The limit ends cycles of runs that start
    /// each other.
    pub child_depth: u32,
    /// Runs that one event leads to, besides the first: those that its run starts, that these start, and so on.
    pub tree_runs: usize,
    /// CPU time of the guests of a run and of all runs below it together, in ms, counted from the start of the host; 0 bounds
    /// nothing. The limit keeps one event from occupying the processors with many runs until their deadlines.
    pub tree_cpu_ms: u64,
    /// Inputs that wait for an active run which takes them; more is refused.
    pub steering_queue: usize,
    /// Runs that wait in one queue for executors; more is refused. Each takes some kilobytes of memory.
    pub queue_length: usize,
    /// An executor that is silent for so long is shown as stale.
    pub executor_stale_ms: u64,
    /// Time of silence, in ms, after which an executor is gone and loses its claims. Every request counts, and an executor
    /// that polls for runs makes one at least once a minute.
    pub executor_gone_ms: u64,
    /// A claim that finds nothing waits at most so long.
    pub claim_wait_ms: u64,
    /// New events are refused while the disk of the ledger has less than this left, so that what was
    /// accepted before can still end.
    pub min_free_disk_bytes: u64,
}

/// Largest nesting of a JSON value. Parsers stop at 128, and a value is stored inside others: an accepted value must stay
/// readable at its final place.
pub const MAX_JSON_DEPTH: usize = 64;

/// True if a JSON value nests no deeper than [`MAX_JSON_DEPTH`].
#[must_use]
pub fn is_shallow(value: &serde_json::Value) -> bool {
    fn within(value: &serde_json::Value, left: usize) -> bool {
        match value {
            serde_json::Value::Array(items) => left > 0 && items.iter().all(|item| within(item, left - 1)),
            serde_json::Value::Object(map) => left > 0 && map.values().all(|item| within(item, left - 1)),
            _ => true,
        }
    }
    within(value, MAX_JSON_DEPTH)
}

/// Smallest page.
pub const MIN_PAGE: u32 = 1;
/// Largest page: a page is built in memory and read by a guest with 64 MiB.
pub const MAX_PAGE: u32 = 100;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

impl Default for Limits {
    fn default() -> Self {
        Self {
            run_deadline_ms: 300_000,
            cancel_grace_ms: 20,
            max_live_runs: 2_000,
            guest_memory_bytes: 64 * MIB,
            guest_table_elements: 20_000,
            guest_stack_bytes: 512 * KIB,
            host_call_bytes: 16 * MIB,
            guest_handles: 1_000,
            log_bytes_per_second: 64 * 1024,
            log_bytes: 256 * KIB,
            result_bytes: 32 * KIB,
            emit_results: 64,
            emit_bytes: 256 * KIB,
            state_value_bytes: 256 * KIB,
            state_key_bytes: 256,
            state_snapshot_bytes: 64 * KIB,
            journal_bytes: 64 << 20,
            park_after_ms: 5_000,
            host_calls_per_second: 600,
            host_calls_burst: 1_200,
            results_per_second: 20_000,
            results_burst: 20_000,
            run_events: 1_000_000,
            run_record_bytes: 128 * MIB as u64,
            http_body_bytes: 256 * KIB,
            http_connections: 20_000,
            http_header_ms: 30_000,
            http_subscribers: 16_000,
            http_slow_reader_ms: 30_000,
            http_wait_ms: 60_000,
            conversation_queue: 1_000,
            component_bytes: 128 * 1024 * 1024,
            compile_ms: 120_000,
            compile_memory_bytes: 2 << 30,
            plugins_wait_ms: 60_000,
            runner_wait_ms: 10_000,
            manifest_ms: 2_000,
            component_runners: 100,
            artifact_bytes: 64 * MIB as u64,
            artifact_read_bytes: MIB,
            run_artifact_bytes: 512 * MIB as u64,
            artifact_unreferenced_ms: 24 * 60 * 60 * 1000,
            gc_interval_ms: 60 * 60 * 1000,
            upload_bytes: 64 * MIB as u64,
            event_inline_bytes: 32 * KIB,
            storage_value_bytes: 10 * MIB as u64,
            storage_area_bytes: 1024 * MIB as u64,
            storage_area_keys: 100_000,
            state_scope_bytes: 16 * MIB as u64,
            state_scope_keys: 10_000,
            model_request_bytes: 4 * MIB,
            tool_parameters_bytes: 256 * KIB,
            tool_output_chars: 8_000,
            tool_preview_chars: 1_200,
            tool_calls: 64,
            tool_calls_at_once: 16,
            client_tools: 64,
            client_tool_bytes: 16 * KIB,
            retrieve_top_k: 50,
            search_top_k: 50,
            embed_texts: 256,
            rerank_documents: 256,
            http_request_bytes: MIB,
            http_response_bytes: 64 * MIB as u64,
            http_timeout_ms: 120_000,
            http_requests_at_once: 32,
            ask_bytes: 24 * KIB,
            answer_bytes: 24 * KIB,
            ask_expires_ms: 24 * 60 * 60 * 1000,
            child_runs: 256,
            child_runs_at_once: 16,
            child_depth: 4,
            tree_runs: 1_000,
            tree_cpu_ms: 60 * 60 * 1000,
            steering_queue: 100,
            queue_length: 100_000,
            executor_stale_ms: 30_000,
            executor_gone_ms: 90_000,
            claim_wait_ms: 30_000,
            min_free_disk_bytes: 64 * 1024 * 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn depth_is_counted_in_arrays_and_objects() {
        let nested = |depth: usize| {
            (0..depth).fold(Value::Null, |inner, level| {
                if level % 2 == 0 { Value::Array(vec![inner]) } else { serde_json::json!({ "a": inner }) }
            })
        };
        assert!(is_shallow(&nested(MAX_JSON_DEPTH)));
        assert!(!is_shallow(&nested(MAX_JSON_DEPTH + 1)));
    }
}
