//! The audit of HTTP requests: their targets and outcomes, without their content.

use agent_host_ledger::AuditRecord;
use agent_host_tests::{
    OutsideServer, World,
    world::{EndedRun, PATIENCE},
};

use crate::outside::{LOCAL, world_of};

fn audit(world: &World, ended: &EndedRun) -> Vec<AuditRecord> {
    world.host.ledger().audit_page(ended.run.run_id, None, 100).unwrap().items
}

#[tokio::test]
async fn each_request_is_recorded_by_its_origin_and_outcome() {
    let (outside, other) = (OutsideServer::start().await, OutsideServer::start().await);
    let world = world_of("outside/default", &[&outside.authority], LOCAL).await;
    let steps = [
        format!("get {}; rest", outside.url("ok/hidden-path?token=hidden-query#hidden-part")),
        format!("post {} hidden-body", outside.url("status/500/hidden-path")),
        format!("get {}", other.url("hidden-path?hidden-query")),
        format!("get {}", outside.url("silent/hidden-path")),
        format!("get http://hidden-user:hidden-password@{}/hidden-path", outside.authority),
        format!(r"get http://{}\hidden-path", other.authority),
        format!("send GET {} x-key: {{{{secret:hidden-name}}}}", outside.url("hidden-path")),
    ];
    let ended = world.say(&steps.join("; ")).await;
    let records: Vec<_> = audit(&world, &ended).into_iter().filter(|record| record.action == "http.send").collect();
    let seen: Vec<_> = records.iter().map(|record| (record.resource.as_deref().unwrap(), &*record.outcome)).collect();
    let (here, there) = (format!("http://{}", outside.authority), format!("http://{}", other.authority));
    let expected = [
        (&*here, "ok"),
        (&*here, "ok"),
        (&*there, "unauthorized"),
        (&*here, "runtime_error"),
        (&*here, "invalid_argument"),
        (&*here, "unauthorized"),
        // A refusal that comes again is counted, and written at the end.
        (&*there, "unauthorized"),
    ];
    assert_eq!(seen, expected);
    let (counted, observed) = records.split_last().unwrap();
    assert!(observed.iter().all(|record| record.duration_us.is_some() && record.bytes > Some(0)), "{records:#?}");
    assert_eq!(counted.details.as_ref().unwrap()["count"], 1, "{records:#?}");
    let all = serde_json::to_string(&audit(&world, &ended)).unwrap();
    assert!(!all.contains("hidden"), "{all}");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn wasi_http_is_recorded_likewise() {
    let (outside, other) = (OutsideServer::start().await, OutsideServer::start().await);
    let world = world_of("wasi-http/default", &[&outside.authority], LOCAL).await;
    let steps = format!("get {}; rest; get {}", outside.url("ok/hidden?hidden"), other.url("hidden?hidden"));
    let ended = world.say(&steps).await;
    let records: Vec<_> = audit(&world, &ended).into_iter().filter(|record| record.action == "wasi.http").collect();
    let seen: Vec<_> = records.iter().map(|record| (record.resource.clone().unwrap(), &*record.outcome)).collect();
    assert_eq!(seen, [(format!("http://{}", outside.authority), "ok"), (format!("http://{}", other.authority), "unauthorized")]);
    assert!(!serde_json::to_string(&audit(&world, &ended)).unwrap().contains("hidden"));
    world.host.shutdown(PATIENCE).await;

    let world = world_of("wasi-http/default", &[], LOCAL).await;
    let ended = world.say(&format!("get {}", outside.url("hidden"))).await;
    let denied: Vec<_> = audit(&world, &ended).into_iter().filter(|record| record.outcome == "unauthorized").collect();
    assert_eq!(denied.len(), 1, "{denied:#?}");
    assert!(denied[0].action.starts_with("http.wasi"), "{denied:#?}");
    world.host.shutdown(PATIENCE).await;
}
