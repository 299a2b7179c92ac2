//! Random numbers that a seed determines.

use xxhash_rust::xxh3::xxh3_64;

pub(super) struct Random(u64);

impl Random {
    pub(super) fn of(parts: &[u64]) -> Self {
        Self(parts.iter().fold(0, |sum, part| xxh3_64(&[sum.to_be_bytes(), part.to_be_bytes()].concat())))
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = xxh3_64(&self.0.to_be_bytes());
        usize::try_from(self.0 % end as u64).unwrap()
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
