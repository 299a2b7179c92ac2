//! A knowledge base of a hundred thousand passages.

use super::{calls::RUNNER, session::Session, site::Site};

const ADD: &str = "knowledge.add.passages_per_second";
const P50: &str = "knowledge.retrieve.100k.p50_ms";
const P99: &str = "knowledge.retrieve.100k.p99_ms";

const PASSAGES: &str = "100000";

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    if !session.wants(&[ADD, P50, P99]) {
        return Ok(());
    }
    // `documents.rs` of the load generator writes one paragraph for each passage of this size.
    let config = format!(
        "[[knowledge_bases]]\nid = \"bench\"\npassage_chars = 400\noverlap_chars = 0\n\n[[bindings]]\nid = \"bench\"\nrunner = \"{RUNNER}\"\n"
    );
    let site = Site::configured(session, "knowledge", &session.calls, &config)?;
    let documents = site.file("documents").display().to_string();
    let report = session.load(&["knowledge", "--config", &site.config(), "--documents", &documents, "--passages", PASSAGES])?;
    session.record(ADD, report.number("passages_per_second")?)?;
    session.record(P50, report.number("p50_ms")?)?;
    session.record(P99, report.number("p99_ms")?)
}
