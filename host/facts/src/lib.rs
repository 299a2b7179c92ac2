//! Runtime facts: the one ordered stream of a thread, as a front end reads it.
//!
//! A *turn* is a run, a *thread* a conversation. The facts of a turn are a pure function of its run, its terms, its event and
//! its record; the crate reads no file, no socket and no clock, and stores nothing.
//!
//! - [`fact`]: the envelope of a fact, its scope ids and its references;
//! - [`kind`]: the closed list of types;
//! - [`failure`]: the closed list of failure categories, and a hint for each code of the host;
//! - [`safe`]: what may stand in a payload;
//! - [`record`]: the data of recorded events, for the host that writes them and for everybody who reads them;
//! - [`project`]: the record of a run, as facts;
//! - [`thread`], [`task`]: read models, each a fold of the stream; [`model`]: references in them;
//! - [`open`]: open elements at a place of a record, for every projection of records;
//! - [`shape`]: other shapes of a fact;
//! - [`json`]: strict JSON of one line, for files from outside;
//! - [`rules`]: the rules for logs of such facts, from whichever runtime;
//! - [`import`]: native events of other agent frameworks, as results;
//! - [`evidence`]: a run as lines that are chained by hashes, made and verified.

pub mod evidence;
pub mod fact;
pub mod failure;
pub mod import;
pub mod json;
pub mod kind;
pub mod model;
pub mod open;
pub mod project;
pub mod record;
pub mod rules;
pub mod safe;
pub mod shape;
pub mod task;
pub mod thread;

pub use fact::{Fact, RefKind, Refs};
pub use failure::{FailureCategory, recovery_hint};
pub use kind::FactType;
pub use project::{Children, PROJECTION, Projector, ThreadIds, Turn, TurnTerms};
pub use shape::Shape;
pub use task::{TaskFold, TaskSnapshot};
pub use thread::{QueuedTurn, ThreadReadModel, ThreadStatus};
