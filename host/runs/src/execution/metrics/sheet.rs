//! Storage of metrics, and their text format for Prometheus.
//!
//! No operation blocks: a count is one atomic, a duration two. Callers that count often look up the place of a labelled
//! metric once ([`Table::row`]).

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

/// Rows of one table. Further rows are counted as [`OTHER`], so that clients that choose labels cannot make the page large.
const MAX_ROWS: usize = 1_000;
/// The label of what has no row of its own.
pub const OTHER: &str = "other";
/// Separates the labels of a row.
const SEPARATOR: char = '\u{1f}';

/// A count.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds one.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `count`.
    pub fn add_many(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// As many as this now: for what goes up and down.
    pub fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// Subtracts one.
    pub fn take(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the count.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bounds of what takes microseconds to seconds.
pub(crate) const SHORT: &[f64] =
    &[0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Bounds of what takes milliseconds to hours.
pub(crate) const LONG: &[f64] =
    &[0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0];

/// A histogram of durations.
#[derive(Debug)]
pub struct Timing {
    bounds: &'static [f64],
    /// A count for each bound, and one for values above the last bound.
    buckets: Box<[AtomicU64]>,
    nanoseconds: AtomicU64,
}

impl Timing {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), nanoseconds: AtomicU64::new(0) }
    }

    /// Of what takes microseconds to seconds.
    #[must_use]
    pub fn short() -> Self {
        Self::new(SHORT)
    }

    /// Of what takes milliseconds to hours.
    #[must_use]
    pub fn long() -> Self {
        Self::new(LONG)
    }

    /// Records one duration.
    pub fn took(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let place = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(bucket) = self.buckets.get(place) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn write(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed))).collect();
        #[allow(clippy::cast_precision_loss, reason = "nanoseconds of more than a hundred days lose some")]
        let sum = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum, buckets.iter().map(|(_, count)| count).sum(), &buckets, None)
    }
}

/// Numbers with labels.
#[derive(Debug)]
pub struct Table<V>(RwLock<BTreeMap<String, Arc<V>>>);

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<V> Table<V> {
    /// The metrics of a row, made by `new` at the first call. Callers that count often keep the returned value.
    pub fn row(&self, labels: &[&str], new: impl FnOnce() -> V) -> Arc<V> {
        if let Some(row) = with_key(labels, |key| self.0.read().get(key).cloned()) {
            return row;
        }
        let key = with_key(labels, str::to_owned);
        let mut rows = self.0.write();
        let is_full = rows.len() >= MAX_ROWS && !rows.contains_key(&key);
        let key = if is_full { with_key(&vec![OTHER; labels.len()], str::to_owned) } else { key };
        Arc::clone(rows.entry(key).or_insert_with(|| Arc::new(new())))
    }

    /// Every row, with its labels.
    #[must_use]
    pub fn rows(&self) -> Vec<(Vec<String>, Arc<V>)> {
        let rows = self.0.read();
        rows.iter().map(|(key, row)| (key.split(SEPARATOR).map(str::to_owned).collect(), Arc::clone(row))).collect()
    }
}

thread_local! {
    /// The key that is looked up. A row that exists is found without an allocation.
    static KEY: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Calls `read` with the key of a row; `read` must not look up another row.
fn with_key<T>(labels: &[&str], read: impl FnOnce(&str) -> T) -> T {
    KEY.with_borrow_mut(|key| {
        key.clear();
        for (place, label) in labels.iter().enumerate() {
            if place > 0 {
                key.push(SEPARATOR);
            }
            let start = key.len();
            key.push_str(label);
            if label.contains(SEPARATOR) {
                let clean = label.replace(SEPARATOR, " ");
                key.truncate(start);
                key.push_str(&clean);
            }
        }
        read(key)
    })
}

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// The page as it is written, family by family.
pub struct Sheet<'a>(DescriptorEncoder<'a>);

impl fmt::Debug for Sheet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sheet")
    }
}

impl<'a> Sheet<'a> {
    /// To write with this.
    #[must_use]
    pub fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// Something that only grows.
    ///
    /// # Errors
    /// Fails if the output cannot be written, as all these functions do.
    pub fn counts(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (Labels, u64)>) -> fmt::Result {
        let family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        each(family, rows, |value, encoder| ConstCounter::new(value).encode(encoder))
    }

    /// Seconds that only grow.
    ///
    /// # Errors
    /// See [`Sheet::counts`].
    pub fn counts_seconds(&mut self, name: &str, help: &str, seconds: f64) -> fmt::Result {
        let family = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(seconds).encode(family)
    }

    /// Something that goes up and down.
    ///
    /// # Errors
    /// See [`Sheet::counts`].
    pub fn gauges(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (Labels, f64)>) -> fmt::Result {
        self.gauges_of(name, help, None, rows)
    }

    /// Something that goes up and down, in this unit.
    ///
    /// # Errors
    /// See [`Sheet::counts`].
    pub fn gauges_of(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        rows: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let family = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        each(family, rows, |value, encoder| ConstGauge::new(value).encode(encoder))
    }

    /// Writes histograms.
    ///
    /// # Errors
    /// See [`Sheet::counts`].
    pub fn timings<T: AsRef<Timing>>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, T)>,
    ) -> fmt::Result {
        let family = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        each(family, rows, |timing, encoder| timing.as_ref().write(encoder))
    }
}

impl AsRef<Self> for Timing {
    fn as_ref(&self) -> &Self {
        self
    }
}

fn each<V>(
    mut family: MetricEncoder<'_>,
    rows: impl IntoIterator<Item = (Labels, V)>,
    write: impl Fn(V, MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    for (labels, value) in rows {
        if labels.is_empty() {
            // Such a family has one row.
            return write(value, family);
        }
        write(value, family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_its_bucket() {
        let timing = Timing::new(&[0.1, 1.0]);
        for ms in [50, 100, 101, 5_000] {
            timing.took(Duration::from_millis(ms));
        }
        let buckets: Vec<_> = timing.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        assert_eq!(buckets, [2, 1, 1]);
        assert_eq!(timing.nanoseconds.load(Ordering::Relaxed), 5_251_000_000);
    }

    #[test]
    fn a_table_stays_small_for_any_labels() {
        let table = Table::<Count>::default();
        for row in 0..2 * MAX_ROWS {
            table.row(&[&row.to_string(), "a\u{1f}b"], Count::default).add();
        }
        let rows = table.rows();
        assert_eq!(rows.len(), MAX_ROWS + 1);
        assert!(rows.iter().all(|(labels, _)| labels.len() == 2), "a label cannot make another");
        assert_eq!(table.row(&[OTHER, OTHER], Count::default).get(), MAX_ROWS as u64);
        assert_eq!(table.row(&["7", "a\u{1f}b"], Count::default).get(), 1);
    }
}
