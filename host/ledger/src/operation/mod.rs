//! Operations as they wait in the queue: checked and encoded on the thread that submits them, so that the one
//! writer thread has little left to do.

mod accept;
mod artifact;
mod conversation;
mod journal;
mod measured;
pub(crate) mod run_change;
mod value;
mod write;

pub(crate) use accept::{AcceptAnswer, AcceptOperation, AddRunOperation, ListedEvent};
pub(crate) use artifact::{ArtifactOperation, ForgetOperation, NewArtifact, is_id};
pub(crate) use conversation::{ForgetConversationOperation, ItemRow, Piece, RunPart, audit_bytes};
pub use journal::PrunedSegments;
pub(crate) use journal::{NewSegment, PrunableRun, PrunableSegment, PruneOperation};
pub(crate) use measured::MeasuredUse;
pub(crate) use run_change::{NewPark, ParkChange};
pub(crate) use value::{RowsOperation, ValueRow, ValuesOperation, entry_rows};
pub(crate) use write::WriteOperation;

pub(crate) enum Operation {
    Accept(Box<AcceptOperation>),
    Write(Box<WriteOperation>),
    Audit(Vec<crate::rows::AuditRow>),
    Artifact(Box<ArtifactOperation>),
    Forget(Box<ForgetOperation>),
    ForgetConversation(Box<ForgetConversationOperation>),
    AddRun(Box<AddRunOperation>),
    Prune(Box<PruneOperation>),
    Rows(RowsOperation),
    Values(ValuesOperation),
}
