//! Operations, applied to a batch one after the other: each whole or not at all.

mod accept;
mod artifact;
mod batch;
mod conversation;
mod expired_keys;
mod ids;
mod journal;
mod memory;
mod recent;
#[cfg(test)]
mod tests;
mod value;
mod write;

pub(crate) use batch::{Batch, Outcome};
pub(crate) use expired_keys::forget_expired_keys;
pub(crate) use memory::Memory;

use crate::{
    apply::{accept::New, batch::Answer},
    operation::{AcceptAnswer, ArtifactOperation, Operation, RowsOperation, ValueRow, ValuesOperation},
};

/// Applies one operation, or keeps why it is refused.
pub(crate) fn apply(batch: &mut Batch<'_>, operation: Operation) {
    match operation {
        Operation::Audit(records) => batch.put_audit(records),
        Operation::Accept(mut operation) => {
            batch.outcome.admitted.extend(operation.state.take());
            let answer = batch.check_accept(&operation).map(|checked| match checked {
                New::Repeated(row) => AcceptAnswer::Repeated { event_id: row.event_id },
                New::Allowed(plan, branches) => batch.put_accept(&mut operation, plan, branches),
            });
            batch.outcome.answers.push(Answer::Accept(operation.reply, answer));
        }
        Operation::Write(mut operation) => {
            batch.outcome.admitted.extend(operation.state.take());
            match batch.check_write(&operation) {
                Ok(checked) => batch.put_write(*operation, checked),
                Err(error) => batch.outcome.answers.push(Answer::Write(operation.reply, Err(error))),
            }
        }
        Operation::Artifact(operation) => {
            let ArtifactOperation { artifact, reply } = *operation;
            let answer = batch.check_artifacts(std::slice::from_ref(&artifact));
            let answer = answer.map(|()| {
                batch.put_artifact(artifact);
                1
            });
            batch.outcome.answers.push(Answer::Count(reply, answer));
        }
        Operation::Forget(operation) => {
            let answer = batch.forget(&operation);
            batch.outcome.answers.push(Answer::Count(operation.reply, answer));
        }
        Operation::ForgetConversation(mut operation) => {
            batch.outcome.admitted.extend(operation.state.take());
            let answer = batch.forget_conversation(&operation);
            batch.outcome.answers.push(Answer::Count(operation.reply, answer));
        }
        Operation::AddRun(mut operation) => {
            let answer = batch.add_run(&mut operation);
            batch.outcome.answers.push(Answer::Count(operation.reply, answer));
        }
        Operation::Rows(RowsOperation { rows, reply }) => {
            batch.rows.append(&rows);
            batch.outcome.answers.push(Answer::Count(reply, Ok(rows.count())));
        }
        Operation::Values(ValuesOperation { mut values, reply }) => {
            let answer = batch.plan(&values).map(|plan| {
                batch.carry_out(plan);
                batch.outcome.pins.extend(values.iter_mut().filter_map(ValueRow::take_pin));
                values.len() as u64
            });
            batch.outcome.answers.push(Answer::Count(reply, answer));
        }
        Operation::Prune(operation) => {
            let answer = batch.prune(&operation);
            batch.outcome.answers.push(Answer::Pruned(operation.reply, answer));
        }
    }
}
