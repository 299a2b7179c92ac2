//! Requests of guests to the outside.

use super::{calls::UNLIMITED, people::RUNNER, session::Session, site::Site};

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [(&str, &str); 4] = [
        ("egress.requests_per_second", "get_per_second"),
        ("egress.post.requests_per_second", "post_per_second"),
        ("egress.direct.requests_per_second", "direct_per_second"),
        ("egress.ratio", "ratio"),
    ];
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let site = Site::configured(session, "egress", &session.people, &config())?;
    let report = session.load(&["egress", "--config", &site.config()])?;
    for (figure, name) in FIGURES {
        session.record(figure, report.number(name)?)?;
    }
    Ok(())
}

/// The server is on this machine, which egress rules have to allow.
fn config() -> String {
    format!(
        r#"
{UNLIMITED}
[egress]
allow_addresses = ["127.0.0.1/32"]

[[bindings]]
id = "bench"
runner = "{RUNNER}"
[bindings.resources]
http_hosts = ["127.0.0.1:*"]
"#
    )
}
