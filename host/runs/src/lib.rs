//! The kernel: from an event to runs, and each run from its creation to its one end.
//!
//! The kernel owns bindings, grants, the gate, the life cycle of a run, the line of a conversation, and recovery. The
//! crate contains no HTTP, no WebAssembly, and no file formats.
//!
//! The rooms of the kernel, lowest first. A room knows only the rooms below it:
//!
//! ```text
//! record     what is written about a run: pure values, facts, wait keys, the journal
//! policy     what a run may do: binding × manifest × event → terms; services opened from the configuration
//! execution  one execution and its gate: writer, waits, family, registry
//! calls      the contract, one file for each interface, for guests and for executors
//! lifecycle  created → end: line, turn, place, claim, park, wake, recover
//! intake     what becomes a run, and the webhooks that receive what it did
//! host       the assembly, and a facade that only delegates
//! ```
//!
//! [`Host`] is the running thing.

mod calls;
mod execution;
mod host;
mod intake;
mod lifecycle;
mod policy;
mod record;

#[doc(hidden)]
pub use crate::record::journal::rewritten as rewritten_journal;
pub use agent_host_config::{
    AgentApiConfig, AgentProfile, AguiConfig, Algorithm, ApprovalPolicy, ApprovalRule, ApproverConfig, BindingConfig, Bootstrap,
    BusyThread, ClientInstructions, Condition, Config, ConfigError, CustomSignature, DeliveryPolicy, Durability, Encoding,
    ExternalRunnerConfig, ForeignHistory, IdentityProviderConfig, InDoubt, LogFormat, Match, MissedTicks, NamedSignature, Names,
    OnDisconnect, OnLost, QueuePolicy, Quotas, ResourcePolicy, Retention, ScheduleConfig, SignatureConfig, SkillConfig,
    StaticRefConfig, TelemetryConfig, TokenAlgorithm, WebhookSourceConfig, config_reference,
};
pub use agent_host_facts as facts;
pub use agent_host_ledger::{
    Bystander, ClusterError, ClusterMember, ClusterOptions, CopyReader, DeletedData, EntryWrite, Idempotency, LeaseEnd, Ledger,
    Partition, Standby, StandbyStatus, StandbyWatch,
};
pub use agent_host_providers::{
    egress, key_set, knowledge as knowledge_bases, log_context, models, secret, tools, trace, webhook,
};

pub use crate::{
    calls::remote::{Answer, CallError, Calls, Chunks, NewArtifact, call_functions},
    execution::metrics::{self, Metrics},
    host::{
        BackupReport, Host, HostProcess, Readiness,
        api::kept_run_log,
        backup_to, cluster_options, cluster_secret,
        evidence::Evidence,
        excerpts::{ListedRun, with_excerpts},
        follow::FollowedFeed,
        inspect, ledger_dir, place_of_entry,
        recording::{Recording, journaled_calls},
        recording_text::{RecordedBlob, RecordedSegment, RecordingText},
        records::{
            ArtifactRecord, ArtifactScope, AuditRecord, BlobReader, BlobWriter, EventRecord, GroupBy, LedgerError, Percentiles,
            RecordWriter, Records, RunCounts, RunFilter, RunRecord, SCAN_RUNS, Statistics, StatisticsQuery, UPLOAD,
            new_artifact_id,
        },
        reload::{ReloadError, ReloadReport, SectionChange},
        replay::{Replay, ReplayEnd, ReplayError, ReplayReport, replay},
        threads::{ListedThread, TURN_ID, Thread, ThreadError, ThreadKey, Threads, turn_id},
    },
    intake::{
        accept::{AcceptedEvent, NewEntries},
        agents::{Agent, AgentRun, ThreadBranch},
        create::{AD_HOC, CreateRun, CreatedRun, QueueRequest, StartMode, in_workspace},
        delivery::{Delivery, DeliveryFilter, DeliveryState},
        fork::Fork,
        hooks::{HookOutcome, WebhookSourceReport},
        import::{ImportedRun, NewImport},
        pipeline::{AdaptedQuery, PIPELINE_ADAPTER, PipelineQuery, inline_bytes},
        scheduler::ScheduleReport,
    },
    lifecycle::{
        claims::{AppendOutcome, ClaimPeek, ClaimRequest, ClaimStart, ClaimedRun as Claimed},
        dead_letters::DeadLetter,
        executors::{Executor, ExecutorNews, ExecutorState},
        queue::waiting::WaitingRun,
        registration::{ExecutorChange, Registration},
        watchers::RunWatch,
    },
    policy::{
        StartError,
        binding::BindingReport,
        key_limits::PartitionUsage,
        keys::{Key, Keys, NewKey, Validity},
        library::LibraryError,
        media,
        registered::SentManifest,
        services::knowledge,
        sources::{HookError, HookRequest},
    },
    record::{
        HostError, RecordingError,
        action::{Action, ActionStatus, AskKind, Response, answer_schema},
        claimed::{ClaimedCall, ClaimedMessage, ClaimedRole, HistoryClaim},
        journal::timeline::{CallOutcome, JournaledCall},
        terms::Terms,
    },
};
