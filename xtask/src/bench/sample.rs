//! Stretches, and the figures that they make.

use super::figures::FIGURES;

/// The figures of one stretch.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Stretch {
    /// Names and values, in the order in which they were measured.
    pub(crate) values: Vec<(&'static str, f64)>,
    /// Cores that other processes took meanwhile.
    pub(crate) others: f64,
}

/// The stretches of some figures.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Stretch>);

/// A figure: the median of its stretches.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) median: f64,
    pub(crate) smallest: f64,
    pub(crate) largest: f64,
    /// Cores that other processes took, in the stretch in which they took the most.
    pub(crate) others: f64,
}

impl Samples {
    pub(crate) fn add(&mut self, stretch: Stretch) {
        self.0.push(stretch);
    }

    /// The figures, in the order of the table.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        FIGURES.iter().filter_map(|(name, unit)| self.figure(name, unit)).collect()
    }

    fn figure(&self, name: &'static str, unit: &'static str) -> Option<Figure> {
        let measured = self.0.iter().filter_map(|stretch| Some((value(stretch, name)?, stretch.others)));
        let (mut values, others): (Vec<_>, Vec<_>) = measured.unzip();
        values.sort_by(f64::total_cmp);
        Some(Figure {
            name,
            unit,
            median: median(&values)?,
            smallest: *values.first()?,
            largest: *values.last()?,
            others: others.into_iter().fold(0.0, f64::max),
        })
    }
}

/// The value of a figure in a stretch.
pub(crate) fn value(stretch: &Stretch, name: &str) -> Option<f64> {
    stretch.values.iter().find(|(measured, _)| *measured == name).map(|(_, value)| *value)
}

/// The middle of sorted values; of two in the middle, half of their sum.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.get(sorted.len() / 2)?;
    match sorted.len() % 2 {
        0 => sorted.get(sorted.len() / 2 - 1).map(|below| f64::midpoint(*below, *middle)),
        _ => Some(*middle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_of_its_stretches() {
        let mut samples = Samples::default();
        for (value, others) in [(5.0, 0.1), (1.0, 0.4), (3.0, 0.0)] {
            samples.add(Stretch { values: vec![("echo.cpu_us_per_run", value)], others });
        }
        samples.add(Stretch { values: vec![("disk.commit.p50_ms", 2.0)], others: 0.9 });
        let [cpu, disk] = samples.figures().try_into().unwrap();
        let expected = Figure { name: "echo.cpu_us_per_run", unit: "us", median: 3.0, smallest: 1.0, largest: 5.0, others: 0.4 };
        assert_eq!(cpu, expected);
        assert_eq!((disk.name, disk.smallest, disk.largest, disk.others), ("disk.commit.p50_ms", 2.0, 2.0, 0.9));
    }

    #[test]
    fn an_even_number_of_stretches_has_a_median_too() {
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }
}
