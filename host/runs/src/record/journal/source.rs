//! Reading a journal from the ledger, page by page.

use std::collections::VecDeque;

use agent_host_ledger::{Ledger, LedgerError};

use super::{
    Stop,
    entry::{self, Entry, Unreadable},
};

/// Bytes of a journal that are read from the ledger at one time.
const PAGE_BYTES: usize = 1 << 20;

/// Entries of earlier executions that this one has not come to.
#[derive(Default)]
pub(super) struct Past {
    read: VecDeque<Entry>,
    /// `None` where the ledger has no more.
    source: Option<Source>,
}

/// A place in the journal of a run.
#[derive(Clone)]
pub(crate) struct Source {
    ledger: Ledger,
    run_no: u64,
    from: u64,
}

impl Past {
    /// `read`, and then what the ledger has from `source` on.
    pub(super) fn new(read: VecDeque<Entry>, source: Source) -> Self {
        Self { read, source: Some(source) }
    }

    /// The next entry that says something of a call.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, Stop> {
        loop {
            match self.pop()? {
                Some(Entry::Resumed { .. } | Entry::Suspended) => {}
                Some(Entry::Full) | None => return Ok(None),
                Some(Entry::Begun { .. }) => return Err(Stop::Lost("the journal begins twice".to_owned())),
                Some(entry) => return Ok(Some(entry)),
            }
        }
    }

    fn pop(&mut self) -> Result<Option<Entry>, Stop> {
        while self.read.is_empty() {
            let Some(source) = &mut self.source else { return Ok(None) };
            let entries = source.more().map_err(|error| Stop::Lost(error.to_string()))?;
            match entries {
                Some(page) => self.read.extend(page.entries),
                None => self.source = None,
            }
        }
        Ok(self.read.pop_front())
    }
}

/// A piece of a journal.
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    pub(crate) bytes: u64,
    /// Number of the last entry.
    pub(crate) last: u64,
}

/// The reason why a journal cannot be read further.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Source {
    pub(crate) fn new(ledger: &Ledger, run_no: u64) -> Self {
        Self { ledger: ledger.clone(), run_no, from: 0 }
    }

    /// The next entries; nothing at the end.
    pub(crate) fn more(&mut self) -> Result<Option<Page>, SourceError> {
        let rows = self.ledger.journal_page(self.run_no, self.from, PAGE_BYTES)?;
        let Some(last) = rows.last() else { return Ok(None) };
        self.from = last.first + 1;
        let mut page = Page { entries: Vec::new(), bytes: 0, last: 0 };
        for row in &rows {
            let entries = entry::read(&row.bytes)?;
            page.bytes += row.bytes.len() as u64;
            page.last = (row.first + entries.len() as u64).saturating_sub(1);
            page.entries.extend(entries);
        }
        Ok(Some(page))
    }
}
