//! Rows of [`Table::RunLists`](crate::rows::Table::RunLists): the runs of a conversation, of a parent, of a binding, and those that
//! ended in a status, in the order of their numbers.
//!
//! A key is the kind of the list (one byte), the value of the list, and the number of the run. Texts end with a zero, which no id
//! has.

use std::borrow::Cow;

use agent_host_protocol::{RunId, RunStatus, grant::ConversationKey};
use serde::Deserialize;

use crate::{
    error::LedgerError,
    record::RunFilter,
    rows::{Reader, Table, json, number},
};

/// The members of a run that lists have.
#[derive(Deserialize)]
pub(crate) struct ListedRun<'a> {
    status: RunStatus,
    #[serde(borrow)]
    binding_id: Cow<'a, str>,
    #[serde(default, borrow)]
    conversation_id: Option<Cow<'a, str>>,
    #[serde(default)]
    parent_run_id: Option<RunId>,
}

impl ListedRun<'_> {
    /// The keys of the run in its lists, each made in the same memory.
    pub(crate) fn each_key(&self, run_no: u64, mut each: impl FnMut(&[u8])) {
        let lists = [
            self.conversation_id.as_deref().map(RunList::Conversation),
            self.parent_run_id.map(RunList::Parent),
            Some(RunList::Binding(&self.binding_id)),
            self.status.is_terminal().then_some(RunList::Ended(self.status)),
        ];
        let mut key = Vec::with_capacity(64);
        for list in lists.into_iter().flatten() {
            key.clear();
            list.write_key(run_no, &mut key);
            each(&key);
        }
    }
}

/// A list of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunList<'a> {
    Conversation(&'a str),
    Parent(RunId),
    Binding(&'a str),
    /// The runs that ended in this status.
    Ended(RunStatus),
}

impl<'a> RunList<'a> {
    /// The list that has fewest runs beside those of the filter; `None` for a filter that no list serves.
    pub(crate) fn of(filter: &'a RunFilter) -> Option<Self> {
        let parent = filter.parent_run_id.map(Self::Parent);
        let conversation = filter.conversation_id.as_deref().map(Self::Conversation);
        let ended = filter.status.filter(|status| status.is_terminal()).map(Self::Ended);
        let binding = filter.binding_id.as_deref().map(Self::Binding);
        let rare = ended.filter(|_| filter.status != Some(RunStatus::Completed));
        parent.or(conversation).or(rare).or(binding).or(ended)
    }

    /// The key of a run in the list.
    pub(crate) fn key(self, run_no: u64) -> Vec<u8> {
        let mut key = Vec::new();
        self.write_key(run_no, &mut key);
        key
    }

    fn write_key(self, run_no: u64, key: &mut Vec<u8>) {
        match self {
            Self::Conversation(id) => put_text(key, 1, id),
            Self::Parent(id) => {
                key.push(2);
                key.extend_from_slice(&id.to_bytes());
            }
            Self::Binding(id) => put_text(key, 3, id),
            Self::Ended(status) => put_text(key, 4, status.as_str()),
        }
        key.extend_from_slice(&number(run_no));
    }
}

/// The runs that a reader of lists looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListedRuns {
    /// All runs. The lists of those in memory are derived from their rows, which takes milliseconds.
    All,
    /// The runs that redb has.
    Merged,
}

/// The members of a run that say which turn of its conversation it is.
#[derive(Deserialize)]
struct TurnOfRun<'a> {
    #[serde(default, borrow)]
    thread_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    workspace_id: Option<Cow<'a, str>>,
    #[serde(default)]
    turn: Option<u64>,
    #[serde(default)]
    started_at: Option<u64>,
    #[serde(default)]
    finished_at: Option<u64>,
}

impl Reader {
    /// The number of the last turn of a conversation among these runs; 0 where it has none. Runs of hosts before turns were numbered
    /// come first.
    pub(crate) fn last_turn(&self, key: &ConversationKey, among: ListedRuns) -> Result<u64, LedgerError> {
        let list = RunList::Conversation(key.conversation());
        let (start, end) = (list.key(0), list.key(u64::MAX));
        let (runs, lists) = match among {
            ListedRuns::All => (self.table(Table::Runs)?, self.table(Table::RunLists)?),
            ListedRuns::Merged => (self.merged(Table::Runs)?, self.merged(Table::RunLists)?),
        };
        let (mut last, mut unnumbered) = (0, 0);
        for row in lists.range(start.as_slice()..=end.as_slice())? {
            let run_no = listed_run_no(row?.0.value())?;
            let Some(row) = runs.get(number(run_no).as_slice())? else { continue };
            let run: TurnOfRun<'_> = json(Table::Runs, row.value())?;
            let same = |id: &Option<Cow<'_, str>>, wanted: &str| id.as_deref().unwrap_or_default() == wanted;
            if !same(&run.thread_id, key.thread()) || !same(&run.workspace_id, key.workspace()) {
                continue;
            }
            match run.turn {
                Some(turn) => last = last.max(turn),
                None => unnumbered += u64::from(run.started_at.is_some() || run.finished_at.is_some()),
            }
        }
        Ok(last.max(unnumbered))
    }
}

fn put_text(key: &mut Vec<u8>, kind: u8, text: &str) {
    key.push(kind);
    key.extend_from_slice(text.as_bytes());
    key.push(0);
}

/// The number of the run in a key of the table.
pub(crate) fn listed_run_no(key: &[u8]) -> Result<u64, LedgerError> {
    let number = key.last_chunk().ok_or_else(|| LedgerError::damaged("a key of `run_lists` is too short"))?;
    Ok(u64::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_takes_the_list_with_the_fewest_runs() {
        let all = RunFilter {
            status: Some(RunStatus::Completed),
            binding_id: Some("b".into()),
            conversation_id: Some("c".into()),
            parent_run_id: Some(RunId::new()),
            ..RunFilter::default()
        };
        assert!(matches!(RunList::of(&all), Some(RunList::Parent(_))));
        let no_parent = RunFilter { parent_run_id: None, ..all };
        assert_eq!(RunList::of(&no_parent), Some(RunList::Conversation("c")));
        let of_binding = RunFilter { conversation_id: None, ..no_parent };
        assert_eq!(RunList::of(&of_binding), Some(RunList::Binding("b")), "most runs complete");
        let failed = RunFilter { status: Some(RunStatus::Failed), ..of_binding };
        assert_eq!(RunList::of(&failed), Some(RunList::Ended(RunStatus::Failed)));
        let running = RunFilter { status: Some(RunStatus::Running), ..RunFilter::default() };
        assert_eq!(RunList::of(&running), None, "the table of active runs has these");
    }

    #[test]
    fn the_keys_of_a_list_are_together_and_in_order() {
        let keys = [RunList::Binding("a").key(7), RunList::Binding("a").key(300), RunList::Binding("ab").key(1)];
        assert!(keys.is_sorted());
        assert_eq!(keys.map(|key| listed_run_no(&key).unwrap()), [7, 300, 1]);
        assert!(listed_run_no(b"short").is_err());
    }
}
