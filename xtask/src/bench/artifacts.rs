//! Artifacts that come and go over HTTP.

use super::{echo, session::Session, site::target};

/// Each figure, and its name in the report.
const FIGURES: [(&str, &str); 4] = [
    ("artifact.write.mb_per_second", "write_mb_per_second"),
    ("artifact.write.ratio", "write_ratio"),
    ("artifact.read.mb_per_second", "read_mb_per_second"),
    ("artifact.read.ratio", "read_ratio"),
];

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let site = echo::site(session, "artifacts")?;
    let host = site.start(session)?.host;
    let target = target(&host);
    let target: Vec<_> = target.iter().map(String::as_str).collect();
    let dir = session.dir("artifacts-copies")?.display().to_string();
    let report = session.load(&[&["artifacts"], target.as_slice(), &["--dir", &dir]].concat());
    host.kill();
    let report = report?;
    for (figure, name) in FIGURES {
        session.record(figure, report.number(name)?)?;
    }
    Ok(())
}
