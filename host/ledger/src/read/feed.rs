//! Feeds: what the whole host has accepted or recorded, in one order.
//!
//! A feed is read backward as pages (newest first) and forward by followers (oldest first). One read examines a bounded number
//! of rows, so a rare selection can have empty steps that still have more after them.

use agent_host_protocol::{Timestamp, limits::MAX_PAGE, page::Direction};

use crate::{
    error::LedgerError,
    handle::Ledger,
    read::Sequence,
    record::{AuditRecord, EventRecord},
    rows::{Reader, Table, json, malformed, schema, stored_audit, stored_event},
};

/// Runs that are looked at for the time of the newest change.
const NEWEST_RUNS: usize = 1_000;

/// A sequence of the whole host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feed {
    /// The accepted events.
    Events,
    /// The audit records.
    Audit,
}

/// A bounded read of a feed.
#[derive(Debug)]
pub struct FeedStep<T> {
    /// Items that the selection has, with their numbers, in the order of reading.
    pub items: Vec<(u64, T)>,
    /// Number of the last examined item: the next read continues there.
    pub position: u64,
    /// True if there are items that this read has not examined.
    pub has_more: bool,
}

/// The bounds of a read: the direction, the number to continue from, the number of items, and the number of examined items.
#[derive(Debug, Clone, Copy)]
pub struct FeedBounds {
    /// Backward: below `from`, newest first. Forward: above `from`, oldest first.
    pub direction: Direction,
    /// The `position` of the read before, or a place in the feed.
    pub from: u64,
    /// Largest number of items.
    pub limit: u32,
    /// Largest number of examined items.
    pub examined: usize,
}

impl Feed {
    fn sequence(self) -> Sequence {
        match self {
            Self::Events => Sequence::events(),
            Self::Audit => Sequence::audit(None),
        }
    }

    /// The cursor of an item: pages and followers continue from it.
    #[must_use]
    pub fn cursor(self, number: u64) -> String {
        self.sequence().at(number)
    }

    /// The number of an item.
    ///
    /// # Errors
    /// [`LedgerError::InvalidCursor`] where the text is not a cursor of this feed.
    pub fn number(self, cursor: &str) -> Result<u64, LedgerError> {
        self.sequence().position(cursor)
    }

    const fn table(self) -> Table {
        match self {
            Self::Events => Table::Events,
            Self::Audit => Table::Audit,
        }
    }
}

impl Ledger {
    /// The accepted events that the selection has.
    ///
    /// # Errors
    /// [`LedgerError::InvalidLimit`]; fails if the ledger is damaged or not available.
    pub fn events_feed(
        &self,
        bounds: FeedBounds,
        filter: impl Fn(&EventRecord) -> bool,
    ) -> Result<FeedStep<EventRecord>, LedgerError> {
        self.reader()?.feed(Feed::Events, bounds, filter, |number, value, items| {
            items.push((number, stored_event(number, value)?));
            Ok(())
        })
    }

    /// The audit records that the selection has.
    ///
    /// # Errors
    /// [`LedgerError::InvalidLimit`]; fails if the ledger is damaged or not available.
    pub fn audit_feed(
        &self,
        bounds: FeedBounds,
        filter: impl Fn(&AuditRecord) -> bool,
    ) -> Result<FeedStep<AuditRecord>, LedgerError> {
        self.reader()?.feed(Feed::Audit, bounds, filter, |first, value, items| {
            for record in stored_audit(first, value)? {
                let (number, record) = record?;
                items.push((number, record.record()?));
            }
            Ok(())
        })
    }

    /// The number of the newest item of a feed; 0 for an empty one.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn feed_end(&self, feed: Feed) -> Result<u64, LedgerError> {
        let bounds = FeedBounds { direction: Direction::Backward, from: u64::MAX, limit: 1, examined: 1 };
        match feed {
            Feed::Events => Ok(self.events_feed(bounds, |_| true)?.items.first().map_or(0, |(number, _)| *number)),
            Feed::Audit => Ok(self.audit_feed(bounds, |_| true)?.items.first().map_or(0, |(number, _)| *number)),
        }
    }

    /// Time of the newest accepted event, audit record or change of a run: of those that are under way, and of the thousand that were made
    /// last.
    ///
    /// # Errors
    /// Fails if the ledger is damaged or not available.
    pub fn newest_at(&self) -> Result<Option<Timestamp>, LedgerError> {
        let bounds = FeedBounds { direction: Direction::Backward, from: u64::MAX, limit: 1, examined: 1 };
        let event = self.events_feed(bounds, |_| true)?.items.first().map(|(_, event)| event.event.received_at);
        let audit = self.audit_feed(bounds, |_| true)?.items.first().map(|(_, audit)| audit.at);
        Ok(event.max(audit).max(self.reader()?.newest_change_of_runs()?))
    }
}

impl Reader {
    /// Time of the newest change of a run: of those that are under way, and of the last ones.
    fn newest_change_of_runs(&self) -> Result<Option<Timestamp>, LedgerError> {
        #[derive(serde::Deserialize)]
        struct Changed {
            updated_at: Timestamp,
        }
        let mut newest = self.active()?.iter().map(|record| record.run.updated_at).max();
        let runs = self.table(Table::Runs)?;
        let mut rows = runs.iter()?;
        for _ in 0..NEWEST_RUNS {
            let Some(row) = rows.next_back() else { break };
            let run: Changed = json(Table::Runs, row?.1.value())?;
            newest = newest.max(Some(run.updated_at));
        }
        Ok(newest)
    }

    /// Reads a feed; `read` adds the items of a row by the number of the first.
    fn feed<T>(
        &self,
        feed: Feed,
        bounds: FeedBounds,
        filter: impl Fn(&T) -> bool,
        read: impl Fn(u64, &[u8], &mut Vec<(u64, T)>) -> Result<(), LedgerError>,
    ) -> Result<FeedStep<T>, LedgerError> {
        let FeedBounds { direction, from, limit, examined } = bounds;
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(LedgerError::InvalidLimit(limit));
        }
        let (limit, mut left) = (limit as usize, examined);
        let (table, mut step) = (feed.table(), FeedStep { items: Vec::new(), position: from, has_more: false });
        let rows = self.table(table)?;
        let mut range = match direction {
            Direction::Backward => rows.range(..schema::number(from).as_slice())?,
            Direction::Forward => rows.range(schema::number(self.first_of_row(feed, from)?).as_slice()..)?,
        };
        let mut of_row = Vec::new();
        loop {
            let row = match direction {
                Direction::Backward => range.next_back(),
                Direction::Forward => range.next(),
            };
            let Some(row) = row else { return Ok(step) };
            let (key, value) = row?;
            let first = schema::read_number(key.value()).ok_or_else(|| malformed(table))?;
            read(first, value.value(), &mut of_row)?;
            if direction == Direction::Backward {
                of_row.reverse();
            }
            for (number, item) in of_row.drain(..) {
                let is_past = match direction {
                    Direction::Backward => number >= from,
                    Direction::Forward => number <= from,
                };
                if is_past {
                    continue;
                }
                if left == 0 || step.items.len() == limit {
                    step.has_more = true;
                    return Ok(step);
                }
                left -= 1;
                step.position = number;
                if filter(&item) {
                    step.items.push((number, item));
                }
            }
        }
    }

    /// The number of the first item of the row that has the item after `from`, or of a row before it.
    fn first_of_row(&self, feed: Feed, from: u64) -> Result<u64, LedgerError> {
        let before = self.table(feed.table())?.range(..=schema::number(from).as_slice())?.next_back().transpose()?;
        let first = before.map(|(key, _)| schema::read_number(key.value()).ok_or_else(|| malformed(feed.table()))).transpose()?;
        Ok(first.unwrap_or(0))
    }
}
