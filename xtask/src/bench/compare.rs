//! `cargo xtask bench compare`: another revision and this one, stretch by stretch in turn (A, B, A, B), since machines change
//! from minute to minute. Both are measured with the guests, the configuration and the clients of this revision.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::{
    GROUPS, Group,
    figures::FIGURES,
    revision,
    sample::{Stretch, median, value},
    session::{Binaries, Session},
    table::number,
};
use crate::workspace::Workspace;

/// Measures, and prints a line for each figure that both have.
pub(crate) fn measure(
    session: &mut Session,
    workspace: &Workspace,
    revision: &str,
    binaries: Option<&Path>,
    pairs: usize,
) -> anyhow::Result<ExitCode> {
    let dir = match binaries {
        Some(dir) => PathBuf::from(dir),
        None => revision::binaries(workspace, revision)?,
    };
    anyhow::ensure!(revision::is_built(&dir), "{} does not hold {} and {}", dir.display(), revision::HOST, revision::LOAD);
    let other = Binaries { host: dir.join(revision::HOST), load: dir.join(revision::LOAD) };
    let this = session.binaries();
    println!(
        "figure: {revision}, {}, ratio of the second to the first (smallest to largest of {pairs} pairs)",
        revision::here(workspace)?
    );
    for group in GROUPS {
        match in_turn(session, *group, [&other, &this], pairs) {
            Ok(compared) => compared.iter().for_each(|figure| println!("{}", line(figure))),
            // A revision may lack what another measures; the rest is still worth a comparison.
            Err(error) => eprintln!("warning: figures are left out that cannot be measured for both: {error:#}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn in_turn(session: &mut Session, group: Group, sides: [&Binaries; 2], pairs: usize) -> anyhow::Result<Vec<Comparison>> {
    let mut stretches = Vec::with_capacity(pairs);
    for _ in 0..pairs {
        let [mut first, mut second] = [Stretch::default(), Stretch::default()];
        for (side, stretch) in sides.into_iter().zip([&mut first, &mut second]) {
            session.use_binaries(side);
            *stretch = session.stretch(group)?;
        }
        stretches.push([first, second]);
    }
    Ok(compare(&stretches))
}

/// A figure of two revisions.
#[derive(Debug, PartialEq)]
struct Comparison {
    name: &'static str,
    unit: &'static str,
    medians: [f64; 2],
    /// Of the pairs: the median, the smallest and the largest.
    ratio: f64,
    ratios: [f64; 2],
    /// Cores that others took in the stretch in which they took the most.
    others: f64,
}

/// The figures that both stretches of a pair have, over all pairs.
fn compare(pairs: &[[Stretch; 2]]) -> Vec<Comparison> {
    let figure = |name: &'static str, unit: &'static str| {
        let (mut first, mut second, mut ratios, mut others) = (Vec::new(), Vec::new(), Vec::new(), 0.0_f64);
        for [a, b] in pairs {
            let (Some(of_a), Some(of_b)) = (value(a, name), value(b, name)) else { continue };
            first.push(of_a);
            second.push(of_b);
            ratios.push(of_b / of_a);
            others = others.max(a.others).max(b.others);
        }
        for values in [&mut first, &mut second, &mut ratios] {
            values.sort_by(f64::total_cmp);
        }
        let ends = [*ratios.first()?, *ratios.last()?];
        Some(Comparison {
            name,
            unit,
            medians: [median(&first)?, median(&second)?],
            ratio: median(&ratios)?,
            ratios: ends,
            others,
        })
    };
    FIGURES.iter().filter_map(|(name, unit)| figure(name, unit)).collect()
}

fn line(figure: &Comparison) -> String {
    let Comparison { name, unit, medians: [first, second], ratio, ratios: [smallest, largest], others } = figure;
    let (first, second) = (number(*first), number(*second));
    format!("{name} {first} {second} {unit} {ratio:.3} ({smallest:.3} to {largest:.3}), others {others:.2} cores")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(value: f64, others: f64) -> Stretch {
        Stretch { values: vec![("echo.cpu_us_per_run", value)], others }
    }

    #[test]
    fn ratios_are_those_of_pairs() {
        // The machine became twice as slow in the second pair; the ratio of each pair is the same.
        let pairs = [[stretch(100.0, 0.0), stretch(80.0, 0.2)], [stretch(200.0, 0.1), stretch(160.0, 0.0)]];
        let [figure] = compare(&pairs).try_into().unwrap();
        assert_eq!(line(&figure), "echo.cpu_us_per_run 150 120 us 0.800 (0.800 to 0.800), others 0.20 cores");
    }

    #[test]
    fn a_figure_that_only_one_has_is_left_out() {
        assert_eq!(compare(&[[stretch(1.0, 0.0), Stretch::default()]]), []);
    }
}
