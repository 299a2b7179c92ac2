//! Idempotency keys whose time is over.

use crate::{
    error::LedgerError,
    rows::{IDEMPOTENCY_TTL_MS, IdempotencyAgeRow, IdempotencyRow, Reader, Rows, Table, json, number},
};

/// Keys that one batch forgets at most.
const AT_ONCE: usize = 20_000;

/// Adds the removal of idempotency keys that are older than [`IDEMPOTENCY_TTL_MS`].
pub(crate) fn forget_expired_keys(reader: &Reader, now: u64, rows: &mut Rows) -> Result<(), LedgerError> {
    for age in reader.table(Table::IdempotencyAge)?.iter()?.take(AT_ONCE) {
        let (event_no, row) = age?;
        let row: IdempotencyAgeRow<'_> = json(Table::IdempotencyAge, row.value())?;
        if now.saturating_sub(row.at) < IDEMPOTENCY_TTL_MS {
            break;
        }
        rows.delete(Table::IdempotencyAge, event_no.value());
        let of = reader.get(Table::Idempotency, row.key.as_bytes(), |row| {
            json::<IdempotencyRow>(Table::Idempotency, row).map(|row| row.event_no)
        })?;
        // A key may have been used again after its time.
        if of.is_some_and(|of| number(of).as_slice() == event_no.value()) {
            rows.delete(Table::Idempotency, row.key.as_bytes());
        }
    }
    Ok(())
}
