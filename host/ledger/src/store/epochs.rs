//! The owners that wrote the last batches of a copy.

/// Epochs that a copy remembers. A log that lacks more of them is not known to go on with the copy.
const REMEMBERED: usize = 8;
/// Bytes of an epoch in a row.
const ROW: usize = 16;

/// The last batch that a copy has of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EpochEnd {
    pub(crate) epoch: u64,
    pub(crate) last: u64,
}

/// The last epochs of a copy, the newest first. An epoch has one owner, so a log that ends with a batch of one of them is a beginning of
/// what the copy has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Epochs {
    newest: EpochEnd,
    before: [EpochEnd; REMEMBERED - 1],
}

impl Epochs {
    /// One epoch, up to the batch `last`.
    pub(crate) fn of(last: u64, epoch: u64) -> Self {
        Self { newest: EpochEnd { epoch, last }, ..Self::default() }
    }

    /// The epoch of the last batch.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.epoch
    }

    /// The copy has one more batch.
    pub(crate) fn advance(&mut self, batch: u64, epoch: u64) {
        if epoch != self.newest.epoch {
            self.before.rotate_right(1);
            if let Some(place) = self.before.first_mut() {
                *place = self.newest;
            }
        }
        self.newest = EpochEnd { epoch, last: batch };
    }

    /// The epochs that are known, the newest first.
    pub(crate) fn ends(&self) -> impl Iterator<Item = EpochEnd> + '_ {
        std::iter::once(self.newest).chain(self.before).filter(|end| end.last > 0)
    }

    /// True if a log whose last batch has this number and this epoch is a beginning of what the copy has.
    pub(crate) fn go_on_from(&self, batch: u64, epoch: u64) -> bool {
        batch == 0 || self.ends().any(|end| end.epoch == epoch && batch <= end.last)
    }

    /// The row with them.
    pub(crate) fn row(&self) -> Vec<u8> {
        self.ends().flat_map(|EpochEnd { epoch, last }| [epoch.to_be_bytes(), last.to_be_bytes()]).flatten().collect()
    }

    /// The epochs in a row of a copy that ends with the batch `last` of `epoch`. A row that says otherwise is left from an earlier end.
    pub(crate) fn of_row(row: &[u8], last: u64, epoch: u64) -> Self {
        let mut read = Self::default();
        let (ends, _) = row.as_chunks::<ROW>();
        for end in ends.iter().take(REMEMBERED).rev() {
            let [of, batch] = [end.first_chunk(), end.last_chunk()].map(|bytes| bytes.copied().map_or(0, u64::from_be_bytes));
            read.advance(batch, of);
        }
        if read.newest == (EpochEnd { epoch, last }) { read } else { Self::of(last, epoch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_goes_on_from_a_log_that_ends_with_a_batch_of_an_epoch_it_remembers() {
        let mut epochs = Epochs::of(10, 3);
        for batch in 11..=20 {
            epochs.advance(batch, 70);
        }
        epochs.advance(21, 500);
        assert_eq!(epochs.newest(), 500);
        for (batch, epoch, goes_on) in [
            (21, 500, true),
            (22, 500, false),
            (20, 70, true),
            (15, 70, true),
            (21, 70, false),
            (10, 3, true),
            (11, 3, false),
            (15, 71, false),
            (0, 0, true),
        ] {
            assert_eq!(epochs.go_on_from(batch, epoch), goes_on, "batch {batch} of epoch {epoch}");
        }
        assert_eq!(Epochs::of_row(&epochs.row(), 21, 500), epochs);
        // The oldest is forgotten.
        for epoch in 501..=510 {
            epochs.advance(epoch - 480, epoch);
        }
        assert_eq!(epochs.ends().count(), REMEMBERED);
        assert!(!epochs.go_on_from(15, 70) && epochs.go_on_from(23, 503) && !epochs.go_on_from(22, 502));
        assert_eq!(Epochs::of_row(&epochs.row(), 30, 510), epochs);
    }

    #[test]
    fn a_row_of_another_end_counts_for_nothing() {
        let mut epochs = Epochs::of(10, 3);
        epochs.advance(11, 4);
        assert_eq!(Epochs::of_row(&epochs.row(), 12, 4), Epochs::of(12, 4));
        assert_eq!(Epochs::of_row(b"", 12, 4), Epochs::of(12, 4));
        assert_eq!(Epochs::of_row(&[7; 15], 0, 0), Epochs::default());
    }
}
