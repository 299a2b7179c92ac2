//! The clock of the machine is set back under a host, and between two lives of one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use crate::support::Host;

/// Gives a process another wall clock: that of the machine, moved by as many seconds as the file says.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    int outcome = syscall(SYS_clock_gettime, clock, at);
    if (outcome == 0 && clock == CLOCK_REALTIME) {
        char text[32] = {0};
        int file = open(getenv("CLOCK_MOVED_BY"), O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            if (read(file, text, sizeof text - 1) > 0) at->tv_sec += atol(text);
            close(file);
        }
    }
    return outcome;
}
"#;

/// Builds the library in the directory, and gives its path.
fn shim(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
    fs::write(&source, SHIM).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
    assert!(built.success(), "cc: {built}");
    library
}

fn move_by(file: &Path, seconds: i64) {
    let new = file.with_extension("new");
    fs::write(&new, seconds.to_string()).unwrap();
    fs::rename(new, file).unwrap();
}

/// The number of runs that a schedule has begun.
async fn ticks(host: &Host) -> usize {
    let runs = host.get("/api/v1/runs?limit=100").await;
    runs["items"].as_array().unwrap().iter().filter(|run| run["binding_id"] == "ticked").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_back_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let moved_by = dir.path().join("moved_by");
    move_by(&moved_by, 0);
    let variables = vec![("LD_PRELOAD", shim(dir.path())), ("CLOCK_MOVED_BY", moved_by.clone())];
    let config = "[limits]\nmax_live_runs = 50\npark_after_ms = 300\n\
        [[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\nevent_types = [\"message.received\"]\n\
        [[bindings]]\nid = \"ticked\"\nrunner = \"plugin:test/steps/default\"\nevent_types = [\"tick\"]\n\
        [[schedules]]\nid = \"often\"\nevery_ms = 1000\nevent = { event_type = \"tick\", input = { text = \"say tick\" } }\n";
    let mut host = Host::with_variables(&["steps"], config, variables);

    // In one life: a run that is parked, and a schedule.
    let run = host.send("say began; sleep 4000; say done").await;
    host.until_ready(|ready| ready["parked_runs"] == 1).await;
    move_by(&moved_by, -7_200);
    let (began, ticked) = (Instant::now(), ticks(&host).await);
    let ended = host.ended(&run).await;
    assert_eq!(ended.run["status"], "completed", "{:#}", ended.run);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    while ticks(&host).await < ticked + 2 {
        assert!(began.elapsed() < Duration::from_secs(60), "the schedule does not tick");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let times: Vec<_> = ended.events.iter().map(|event| event["timestamp"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "the record goes back in time: {times:?}");

    // Between two lives, by two hours more.
    let run = host.send("say began; sleep 6000; say done").await;
    host.until_ready(|ready| ready["parked_runs"] == 1).await;
    host.kill();
    move_by(&moved_by, -14_400);
    let began = Instant::now();
    host.revive();
    assert_eq!(host.ended(&run).await.run["status"], "completed");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}
