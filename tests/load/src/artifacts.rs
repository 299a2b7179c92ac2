//! Artifacts over HTTP, beside copies of a file on the same disk.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use crate::connection::Connection;

/// The largest that the host takes by default.
const BYTES: usize = 64 * 1024 * 1024;
/// Turns; each measures all four, one right after the other, since disks change from minute to minute. Odd, so that there
/// is one in the middle.
const TURNS: u64 = 7;
/// Turns before those that count.
const WARM_UP: u64 = 1;

/// The measured values; medians.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    write_mb_per_second: f64,
    /// An upload, over a copy of a file that is then synced.
    write_ratio: f64,
    read_mb_per_second: f64,
    /// A download, over a copy of a file that is not synced.
    read_ratio: f64,
}

/// The duration of each step.
struct Turn {
    write: Duration,
    synced_copy: Duration,
    read: Duration,
    copy: Duration,
}

/// Uploads and downloads; `dir` is on the disk of the host's data.
pub(crate) async fn measure(address: SocketAddr, dir: &Path) -> anyhow::Result<Report> {
    let mut connection = Connection::open(address).await?;
    let mut content: Vec<u8> = (0..BYTES).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    let source = dir.join("source.bench");
    fs::write(&source, &content)?;
    let mut turns = Vec::new();
    for number in 0..WARM_UP + TURNS {
        // The host keeps the same content only once.
        if let Some(start) = content.get_mut(..8) {
            start.copy_from_slice(&number.to_le_bytes());
        }
        let turn = turn(&mut connection, &content, &source).await?;
        if number >= WARM_UP {
            turns.push(turn);
        }
    }
    let median = |value: fn(&Turn) -> f64| {
        let mut values: Vec<_> = turns.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Ok(Report {
        write_mb_per_second: median(|turn| mb_per_second(turn.write)),
        write_ratio: median(|turn| turn.write.as_secs_f64() / turn.synced_copy.as_secs_f64()),
        read_mb_per_second: median(|turn| mb_per_second(turn.read)),
        read_ratio: median(|turn| turn.read.as_secs_f64() / turn.copy.as_secs_f64()),
    })
}

fn mb_per_second(time: Duration) -> f64 {
    BYTES as f64 / 1e6 / time.as_secs_f64()
}

async fn turn(connection: &mut Connection, content: &[u8], source: &Path) -> anyhow::Result<Turn> {
    let started = Instant::now();
    let answer: Value = serde_json::from_str(connection.upload("/api/v1/artifacts?name=bench.bin", content).await?)?;
    let write = started.elapsed();
    let synced_copy = copied(source, |copy| copy.sync_all())?;
    let copy = copied(source, |_| Ok(()))?;

    let id = answer.get("artifact_id").and_then(Value::as_str).context("the upload has no id")?;
    let started = Instant::now();
    let bytes = connection.download(&format!("/api/v1/artifacts/{id}")).await?;
    let read = started.elapsed();
    anyhow::ensure!(bytes == content.len(), "{} bytes were uploaded, and {bytes} came back", content.len());
    Ok(Turn { write, synced_copy, read, copy })
}

/// The duration of a file copy and the following action.
fn copied(source: &Path, then: impl FnOnce(&File) -> std::io::Result<()>) -> anyhow::Result<Duration> {
    let target = source.with_extension("copy");
    let started = Instant::now();
    fs::copy(source, &target)?;
    then(&File::open(&target)?)?;
    let took = started.elapsed();
    fs::remove_file(&target)?;
    Ok(took)
}
