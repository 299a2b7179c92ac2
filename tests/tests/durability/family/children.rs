//! A child has what its parent gives it, and ends with its parent.

mod restarts;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use serde_json::{Value, json};

use crate::family::{
    RUNS, children_of, family, has_ended, ids, message, post, runs, statuses,
    support::{EndedRun, Host, Random},
    text, until_children,
};

/// Soon, on a machine that has much else to do: far less than a deadline.
const SOON: Duration = Duration::from_secs(30);

fn refused(outcome: &Value) -> &str {
    text(outcome, "error")
}

/// Ids of the children whose start is in the record of a run.
fn started(parent: &EndedRun) -> Vec<&str> {
    parent.of("run.child.started").into_iter().map(|data| text(data, "run_id")).collect()
}

/// Waits until all runs have ended, and gives them.
async fn all_ended(host: &Host, runs: &[String]) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let mut found = Vec::new();
        for run in runs {
            found.push(host.run(run).await);
        }
        if found.iter().all(has_ended) {
            return found;
        }
        let alive: Vec<_> = found.iter().filter(|run| !has_ended(run)).collect();
        assert!(began.elapsed() < SOON, "{} of {} live on: {alive:#?}", alive.len(), runs.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn owned(ids: Vec<&str>) -> Vec<String> {
    ids.into_iter().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_child_answers_and_everybody_can_see_whose_it_is() {
    let host = family("", "", "");
    let steps = "say to people; start default [say for my parent; parent; id; try history] {\"objective\": \"to say it\"}; \
                 all 60000; get 0; list-until 2 10; events 0; id";
    let run = host.send_in("c", steps).await;
    // Others wait behind it meanwhile, and it does not wait behind its child.
    let behind = host.send_in("c", "history").await;
    let parent = host.ended(&run).await.completed();
    let outcomes = parent.outcomes();
    let child = outcomes[1].as_str().unwrap_or_else(|| panic!("{parent}")).to_owned();
    assert_eq!(outcomes[2], json!(["completed"]), "{parent}");
    let summary = json!({ "run_id": child, "parent": run, "runner": "plugin:test/family/default", "status": "completed" });
    assert_eq!(outcomes[3], summary, "{parent}");
    // The list has its children and the other runs of its conversation, whichever of the two was created first.
    let listed = outcomes[4].as_array().unwrap();
    let (children, others): (Vec<&Value>, Vec<&Value>) = listed.iter().partition(|run| run["run_id"] == child.as_str());
    let [next] = *others else { panic!("{parent}") };
    assert_eq!((children, &next["run_id"], &next["parent"]), (vec![&summary], &json!(behind), &json!(null)), "{parent}");
    // It may be listed before it waits.
    assert!(["created", "queued"].contains(&next["status"].as_str().unwrap()), "{parent}");
    assert_eq!(outcomes[6], run.as_str());
    let seen = &outcomes[5];
    assert_eq!(seen["outcomes"][0], "for my parent", "{seen}");
    assert_eq!(
        (&seen["outcomes"][1], &seen["outcomes"][2]),
        (&json!(run), &json!(child)),
        "its context names its parent: {seen}"
    );
    assert_eq!(refused(&seen["outcomes"][3]), "unauthorized", "it has no conversation: {seen}");

    // The record of the parent.
    let [fact] = &*parent.of("run.child.started") else { panic!("{parent}") };
    assert_eq!(fact["run_id"], child.as_str());
    assert_eq!((text(fact, "runner_id"), text(fact, "objective")), ("plugin:test/family/default", "to say it"), "{parent}");
    let [end] = &*parent.of("run.child.ended") else { panic!("{parent}") };
    assert_eq!((text(end, "run_id"), text(end, "status")), (child.as_str(), "completed"), "{parent}");
    // The end of the child.
    let found = children_of(&host, &run).await;
    assert_eq!(ids(&found), [&child]);
    let ended = host.ended(&child).await.completed();
    assert_eq!(ended.run["parent_run_id"], run.as_str(), "{ended}");
    assert_eq!(ended.run["metadata"]["objective"], "to say it", "{ended}");
    assert_eq!(ended.run["binding_id"], "family", "{ended}");
    assert!(ended.run["conversation_id"].is_null(), "{ended}");
    assert_eq!(seen["kinds"], json!(ended.events.iter().map(|event| &event["type"]).collect::<Vec<_>>()));
    let context = host.get(&format!("/api/v1/runs/{child}/context")).await;
    assert_eq!(context["parent_run_id"], run.as_str(), "{context:#}");
    assert_eq!(context["runtime"]["trace_id"], run.as_str(), "{context:#}");
    let event = host.get(&format!("/api/v1/events/{}", text(&ended.run, "event_id"))).await;
    assert_eq!((text(&event, "event_type"), text(&event, "source")), ("run.requested", "run"), "{event:#}");
    assert!(children_of(&host, &child).await.is_empty());
    // The child's message went to its parent.
    let behind = host.ended(&behind).await.completed();
    let transcript = behind.outcomes()[0].to_string();
    assert!(transcript.contains("to people") && !transcript.contains("\"for my parent\""), "{transcript}");
    let none = host.get(&format!("/api/v1/runs?parent_run_id={}", behind.run["run_id"].as_str().unwrap())).await;
    assert_eq!(none["items"], json!([]));
    let url = format!("{}/api/v1/runs?parent_run_id=garbage", *host.urls().borrow());
    assert_eq!(reqwest::get(url).await.unwrap().status(), 400);
    host.check();
}

fn list(value: &Value) -> Vec<&Value> {
    value.as_array().into_iter().flatten().collect()
}

/// No list of a child's grant has what its parent's has not.
fn is_within(child: &Value, parent: &Value) {
    for (name, value) in child["permissions"].as_object().unwrap() {
        let has = &parent["permissions"][name];
        match value {
            Value::Array(items) => assert!(items.iter().all(|item| list(has).contains(&item)), "{name}: {value} of {has}"),
            other => assert!(*other == json!(false) || other == has, "{name}: {other} of {has}"),
        }
    }
    for name in ["models", "tools", "knowledge_bases", "runners", "http_secrets", "skills", "skill_files"] {
        assert!(list(&child[name]).iter().all(|item| list(&parent[name]).contains(item)), "{name}: {child:#} of {parent:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_child_has_no_more_than_its_parent() {
    let world = tempfile::tempdir().unwrap();
    fs::write(world.path().join("secret"), "canary").unwrap();
    let model = |id: &str| {
        format!("[[models]]\nid = \"{id}\"\nprovider = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\nmax_retries = 0\n")
    };
    let secret = |name: &str| {
        let file = world.path().join("secret");
        format!(
            "[[http_secrets]]\nname = \"{name}\"\nvalue = {{ file = {file:?} }}\nhosts = [\"a.example:443\", \"b.example:443\"]\n"
        )
    };
    let resources = format!(
        r#"
model_ids = ["m-one"]
tool_names = ["t__look"]
runner_ids = ["plugin:test/family/default", "plugin:test/family/narrow"]
http_hosts = ["a.example:443"]
http_secrets = ["one"]
platform_api = ["message.edit"]
interactions = false
[[mcp_servers]]
id = "t"
command = {:?}
env = {{ COUNT_FILE = {:?} }}
start_timeout_ms = 60000
{}{}{}{}"#,
        env!("CARGO_BIN_EXE_mcp-server"),
        world.path().join("counted"),
        model("m-one"),
        model("m-two"),
        secret("one"),
        secret("two"),
    );
    let host = family("", "", &resources);
    let tried = [
        "conversation-state",
        "history",
        "storage",
        "model m-two",
        "tool t__count",
        "http https://b.example/",
        "secret https://a.example/ two",
        "platform message.delete",
        "ask",
    ];
    let tries: String = tried.iter().map(|what| format!("try {what}; ")).collect();
    let steps = format!("start default [{tries} try tool t__look]; start narrow [{tries}]; all 60000; events 0; events 1");
    let run = host.send_in("c", &steps).await;
    let parent = host.ended(&run).await.completed();
    let outcomes = parent.outcomes();
    assert_eq!(outcomes[2], json!(["completed", "completed"]), "{parent}");
    for (who, outcome) in [("default", &outcomes[3]), ("narrow", &outcomes[4])] {
        for (what, outcome) in tried.iter().zip(list(&outcome["outcomes"])) {
            assert_eq!(refused(outcome), "unauthorized", "{who}: {what}: {outcome}");
        }
    }
    assert_eq!(outcomes[3]["outcomes"][tried.len()], "ok", "what its parent has, it may: {parent}");
    assert_eq!(fs::read_to_string(world.path().join("counted")).unwrap(), "look tried\n");

    let grant = async |run: &str| host.get(&format!("/api/v1/runs/{run}/grant")).await;
    let (own, child, narrow) =
        (grant(&run).await, grant(outcomes[0].as_str().unwrap()).await, grant(outcomes[1].as_str().unwrap()).await);
    is_within(&child, &own);
    is_within(&narrow, &own);
    assert_eq!((&child["models"], &child["tools"]), (&json!(["m-one"]), &json!(["t__look"])), "{child:#}");
    assert_eq!((&child["http_secrets"], &child["permissions"]["http_hosts"]), (&json!(["one"]), &json!(["a.example:443"])));
    assert_eq!(child["permissions"]["platform_api"], json!(["message.edit"]), "{child:#}");
    assert_eq!(child["runners"], own["runners"], "{child:#}");
    assert_eq!(list(&child["runners"]).len(), 2, "{child:#}");
    assert_eq!(list(&child["permissions"]["state"]), ["runner"], "{child:#}");
    assert!(own["conversation"].is_object() && child["conversation"].is_null() && own["steering"] == true, "{own:#}");
    assert!(child["steering"] == false && narrow["steering"] == false, "{child:#}");
    for name in ["models", "tools", "runners", "http_secrets"] {
        assert!(list(&narrow[name]).is_empty(), "its manifest asks for none: {narrow:#}");
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn artifacts_go_from_parent_to_child_and_back_and_nowhere_else() {
    let host = family("", "", "");
    // In a conversation, and in none.
    for conversation in [Some("c"), None] {
        let key = conversation.unwrap_or("none");
        let steps = format!(
            "create from above; start default [read given; create from below; await never] {{\"attach\": \"made\"}}; \
             await made-{key}; events 0; read-child 0; await never"
        );
        let [run] = &*runs(&host, &message(conversation, &steps)).await else { panic!("one run") };
        let child = until_children(&host, run, |found| found.len() == 1).await[0]["run_id"].as_str().unwrap().to_owned();
        host.until_step(&child, "create from below").await;
        host.take(&format!("set made-{key} yes")).await;
        host.until_step(run, "read-child 0").await;
        let seen: Vec<Value> = host.events(run).await.into_iter().filter(|event| event["type"] == "x.step").collect();
        let outcome = |n: usize| &seen[n]["data"]["outcome"];
        let above = outcome(0).as_str().unwrap().to_owned();
        let below = outcome(3)["outcomes"][1].as_str().unwrap_or_else(|| panic!("{seen:#?}")).to_owned();
        assert_eq!(outcome(3)["outcomes"][0], "from above", "it reads what it was given: {seen:#?}");
        assert_eq!(*outcome(4), "from below", "its parent reads what it has made ({conversation:?}): {seen:#?}");
        assert_eq!(host.bytes(&format!("/api/v1/artifacts/{below}")).await, b"from below");

        // Strangers: in another conversation, and children of strangers.
        let tries = format!("read {above}; read {below}");
        let other = host.send_in("other", &format!("{tries}; start default [{tries}]; all 60000; events 0")).await;
        let other = host.ended(&other).await.completed().outcomes();
        let all = [&other[0], &other[1], &other[4]["outcomes"][0], &other[4]["outcomes"][1]];
        for (n, outcome) in all.into_iter().enumerate() {
            assert_eq!(refused(outcome), "not_found", "{n}, {conversation:?}: {other:?}");
        }
        // A run without a conversation has no family, whatever its binding.
        let alone = host.take(&format!("read {below}")).await;
        assert_eq!(refused(&alone.outcomes()[0]), "not_found", "{conversation:?}: {alone}");
        // A run cannot attach a foreign artifact.
        let thief = host.take(&format!("start default [read given] {{\"attach\": \"{below}\"}}; list 10")).await;
        assert_eq!((refused(&thief.outcomes()[0]), &thief.outcomes()[1]), ("not_found", &json!([])), "{thief}");
        host.cancel(run).await;
        assert_eq!(host.ended(run).await.run["status"], "cancelled");
    }
    // Nor do sisters share.
    let parent = host.send("start default [create of mine]; all 60000; events 0; await seen").await;
    host.until_step(&parent, "events 0").await;
    let child = children_of(&host, &parent).await[0]["run_id"].as_str().unwrap().to_owned();
    let of_mine = host.events(&child).await.iter().find(|event| event["type"] == "artifact.created").unwrap()["data"].clone();
    let id = text(&of_mine["artifact"], "artifact_id");
    let sisters = host.take(&format!("start default [read {id}]; all 60000; events 0")).await;
    assert_eq!(refused(&sisters.outcomes()[2]["outcomes"][0]), "not_found", "{sisters}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_circle_of_supervisors_has_an_end() {
    let host = family("child_depth = 3", "", "");
    let mut run = host.send_in("c", "circle").await;
    let top = host.ended(&run).await.completed();
    // Each run reports the outcomes below it: three start a child, the fourth may not.
    let mut depth = 0;
    loop {
        let ended = host.ended(&run).await.completed();
        let children = children_of(&host, &run).await;
        if let [child] = &*children {
            assert_eq!(ended.outcomes()[0][1], json!(["completed"]), "{ended}");
            run = text(child, "run_id").to_owned();
            depth += 1;
            continue;
        }
        assert!(children.is_empty(), "{children:#?}");
        let outcome = ended.outcomes()[0].clone();
        assert_eq!(outcome, json!({ "error": "unauthorized", "code": "child_depth", "retryable": false }), "{ended}");
        break;
    }
    assert_eq!(depth, 3, "{top}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_runs_below_one_event_are_counted_together_also_after_a_kill() {
    let mut host = family("tree_runs = 4", "", "");
    let one = |letter: char| format!("start default [say {letter}]");
    let below = format!("start default [{}; {}; all 60000]; all 60000", one('a'), one('b'));
    let parent = host.send(&format!("{below}; await go; {}; {}; {}; all 60000", one('c'), one('d'), one('e'))).await;
    host.until_step(&parent, "all 60000").await;
    host.kill_and_revive();
    host.take("set go yes").await;
    // One child and two below it were there before the host died: one more is left.
    let ended = host.ended(&parent).await.completed();
    let outcomes = ended.outcomes();
    assert!(outcomes[3].is_string(), "{ended}");
    let refused = json!({ "error": "unauthorized", "code": "tree_runs", "retryable": false });
    assert_eq!((&outcomes[4], &outcomes[5]), (&refused, &refused), "{ended}");
    assert_eq!(children_of(&host, &parent).await.len(), 2);
    // The next event has its own.
    assert!(host.take(&one('f')).await.outcomes()[0].is_string());
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_has_so_many_children_and_no_more() {
    let host = family("child_runs = 5\nchild_runs_at_once = 2", "", "");
    let one = "start default [await never]";
    let run = host
        .send(&format!(
            "{one}; {one}; {one}; cancel 0 enough; wait 60000 0; {one}; {one}; cancel 1; wait 60000 1; {one}; cancel 2; \
             wait 60000 2; {one}; cancel 3; wait 60000 3; {one}; list 2"
        ))
        .await;
    let parent = host.ended(&run).await.completed();
    let outcomes = parent.outcomes();
    let at_once = json!({ "error": "rate_limited", "code": "child_runs_at_once", "retryable": true });
    let at_all = json!({ "error": "unauthorized", "code": "child_runs", "retryable": false });
    assert!(outcomes[0].is_string() && outcomes[1].is_string(), "{parent}");
    assert_eq!((&outcomes[2], &outcomes[6]), (&at_once, &at_once), "{parent}");
    assert_eq!((text(&outcomes[4], "status"), &outcomes[3]), ("cancelled", &json!("ok")), "{parent}");
    assert!(outcomes[5].is_string() && outcomes[9].is_string() && outcomes[12].is_string(), "{parent}");
    assert_eq!(outcomes[15], at_all, "{parent}");
    assert_eq!(outcomes[16].as_array().unwrap().len(), 2, "{parent}");
    assert_eq!(outcomes[16][0]["run_id"], outcomes[12], "newest first: {parent}");
    let all = children_of(&host, &run).await;
    assert_eq!(started(&parent), ids(&all));
    assert_eq!(all.len(), 5);
    let reason = all_ended(&host, &owned(ids(&all))).await[0]["cancel_reason"].clone();
    assert_eq!(reason, "enough");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn other_runs_are_none_of_its_business() {
    let host = family("", "", "");
    let stranger = host.send("await never").await;
    let parent = host.send("start default [start default [await never]; say up; await never]; await never").await;
    let [child] = &*until_children(&host, &parent, |found| found.len() == 1).await else { panic!("one") };
    let child = text(child, "run_id").to_owned();
    let [grandchild] = &*until_children(&host, &child, |found| found.len() == 1).await else { panic!("one") };
    let grandchild = text(grandchild, "run_id").to_owned();
    let long = "x".repeat(300);
    let foreign = [stranger.as_str(), &parent, &child, &grandchild, "garbage", "..", "0", &long];
    let tries: String = foreign
        .iter()
        .map(|id| format!("get {id}; wait 0 {id}; events {id}; cancel {id} no reason; list 10 {id}; wait 100 0 {id}; "))
        .collect();
    // A child, and a run without a parent: neither has started these runs, nor has a run started itself.
    let own = format!("id; {tries} start default [{tries}]; all 60000; events 0");
    let run = host.send(&own).await;
    let ended = host.ended(&run).await.completed();
    let outcomes = ended.outcomes();
    let count = foreign.len() * 6;
    for outcome in outcomes[1..=count].iter().chain(list(&outcomes[count + 3]["outcomes"])) {
        assert_eq!(refused(outcome), "not_found", "{ended}");
    }
    assert_eq!(list(&outcomes[count + 3]["outcomes"]).len(), count, "{ended}");
    // A parent sees that its child has a child, and no more of it; nor has it started itself.
    let middle = "start default [await never]; await never";
    let above = host.send(&format!("start default [{middle}]; await there; reach 0; list 0; list 101; list 100; wait 0")).await;
    let [below] = &*until_children(&host, &above, |found| found.len() == 1).await else { panic!("one") };
    let below = text(below, "run_id").to_owned();
    host.until_step(&below, "start default [await never]").await;
    let last = children_of(&host, &below).await[0]["run_id"].clone();
    host.take("set there yes").await;
    let ended = host.ended(&above).await.completed();
    let outcomes = ended.outcomes();
    assert_eq!(outcomes[2][0], last, "{ended}");
    assert_eq!(list(&outcomes[2]).len(), 13, "{ended}");
    assert!(list(&outcomes[2])[1..].iter().all(|outcome| refused(outcome) == "not_found"), "{ended}");
    assert_eq!((refused(&outcomes[3]), refused(&outcomes[4])), ("invalid_argument", "invalid_argument"), "{ended}");
    assert_eq!(outcomes[5].as_array().unwrap().len(), 1, "own children only: {ended}");
    assert_eq!(refused(&outcomes[6]), "invalid_argument", "nothing to wait for: {ended}");
    // The other runs are unaffected.
    for run in [&stranger, &parent, &child, &grandchild] {
        assert!(host.run(run).await["cancel_requested_at"].is_null(), "{run}");
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_invalid_start_is_refused_with_a_typed_error() {
    let more = r#"runner_ids = ["plugin:test/family/default", "plugin:test/family/configured"]
[[bindings]]
id = "starts"
runner = "plugin:test/family/default"
match = { event_type = "test.starts" }
resources = { runs = ["start"] }
[[bindings]]
id = "nothing"
runner = "plugin:test/family/default"
match = { event_type = "test.nothing" }
"#;
    let host = family("", "match = { event_type = \"message.received\" }", more);
    let objective = "x".repeat(1025);
    let steps = [
        ("start plugin:test/family/narrow [say x]", "unauthorized"),
        ("start plugin:not/there/default [say x]", "unauthorized"),
        ("start : [say x]", "unauthorized"),
        ("start configured [say x]", "invalid_argument"),
        ("start configured [say x] {\"config\": {\"n\": \"many\"}}", "invalid_argument"),
        ("start configured [say x] {\"config\": \"not json\"}", "invalid_argument"),
        ("start configured [say x] {\"config\": 7}", "invalid_argument"),
        (&format!("start default [say x] {{\"objective\": \"{objective}\"}}"), "payload_too_large"),
        ("start default [say x] {\"pad\": 262144}", "payload_too_large"),
        ("start default [say x] {\"attach\": \"not-there\"}", "not_found"),
        ("list 10", ""),
    ];
    let ended = host.take(&steps.map(|(step, _)| step).join("; ")).await;
    for ((step, code), outcome) in steps.iter().zip(ended.outcomes()) {
        assert_eq!(refused(&outcome), *code, "{step}: {outcome}\n{ended}");
    }
    assert_eq!(*ended.outcomes().last().unwrap(), json!([]), "nothing was started: {ended}");
    assert!(children_of(&host, text(&ended.run, "run_id")).await.is_empty());
    let fits = host.take("start configured [say fits] {\"config\": {\"n\": 3}}; all 60000").await;
    assert_eq!(fits.outcomes()[1], json!(["completed"]), "{fits}");

    let mut event = message(None, "start default [say x]; get 0; list 10; events 0; cancel 0; wait 0 0");
    event["event_type"] = "test.starts".into();
    let ended = host.ended(&runs(&host, &event).await[0]).await.completed();
    let outcomes = ended.outcomes();
    assert!(outcomes[0].is_string() && outcomes[1..].iter().all(|outcome| refused(outcome) == "unauthorized"), "{ended}");
    event["event_type"] = "test.nothing".into();
    let ended = host.ended(&runs(&host, &event).await[0]).await.completed();
    assert!(ended.outcomes().iter().all(|outcome| refused(outcome) == "unauthorized"), "{ended}");
    assert_eq!(post(&host, &message(None, "")).await.0, 202);
    host.check();
}

/// For any end of a parent, and any place of its children.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_child_outlives_its_parent() {
    let more = format!(
        "[[bindings]]\nid = \"hurried\"\nrunner = \"plugin:test/family/default\"\ndeadline_ms = 20000\n\
         match = {{ event_type = \"test.hurried\" }}\nresources = {{ {RUNS} }}\n"
    );
    let host = family("park_after_ms = 300", "match = { event_type = \"message.received\" }", &more);
    let below = "start default [sleep 600000]; start default [spin]; \
                 start default [start default [spin]; start default [sleep 600000]; all 600000]";
    let ends = [
        ("completed", "say done"),
        ("failed", "fail"),
        ("failed", "trap"),
        ("cancelled", "await never"),
        ("cancelled", "all 600000"),
        ("timeout", "spin"),
        ("timeout", "all 600000"),
    ];
    for (n, (status, last)) in ends.into_iter().enumerate() {
        let mut event = message(None, &format!("{below}; say up; await go-{n}; {last}"));
        if status == "timeout" {
            event["event_type"] = "test.hurried".into();
        }
        let parent = runs(&host, &event).await.remove(0);
        let children = until_children(&host, &parent, |found| statuses(found) == ["waiting", "running", "waiting"]).await;
        let middle = text(&children[2], "run_id");
        let grandchildren = until_children(&host, middle, |found| statuses(found) == ["running", "waiting"]).await;
        host.take(&format!("set go-{n} yes")).await;
        if status == "cancelled" {
            if last == "all 600000" {
                host.until_status(&parent, "waiting").await;
            }
            host.cancel(&parent).await;
        }
        let ended = host.ended(&parent).await;
        assert_eq!(ended.run["status"], status, "{ended}");
        let family = owned(ids(&children).into_iter().chain(ids(&grandchildren)).collect());
        for (child, id) in all_ended(&host, &family).await.iter().zip(&family) {
            let ended = host.ended(id).await;
            let in_time = child["status"] == "timeout" && status == "timeout";
            assert!(child["status"] == "cancelled" || in_time, "{status}: {last}: {ended}");
            let above = text(child, "parent_run_id");
            assert!(in_time || text(child, "cancel_reason").contains(above), "who ended it: {ended}");
        }
    }
    host.until_ready(|ready| ready["live_runs"] == 0 && ready["parked_runs"] == 0).await;
    host.check();
}

/// The child's turn may come at the moment at which its parent frees a place; the child does not get far.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_child_that_waits_for_a_place_ends_with_its_parent() {
    let host = Host::limited(
        &["family"],
        &format!(
            "[limits]\nmax_live_runs = 2\npark_after_ms = 3000\n[[bindings]]\nid = \"family\"\n\
             runner = \"plugin:test/family/default\"\n[bindings.resources]\n{RUNS}\n"
        ),
    );
    let late = "start default [sleep 2500; say too late]";
    for (steps, waits) in [("start default [spin]", "sleep 1500"), ("start default [spin]; start default [spin]", "all 600000")] {
        let parent = host.send(&format!("{steps}; {late}; {waits}")).await;
        if waits == "all 600000" {
            host.until_status(&parent, "waiting").await;
            until_children(&host, &parent, |found| statuses(found)[..2] == ["running", "running"]).await;
            host.cancel(&parent).await;
        }
        let parent = host.ended(&parent).await;
        let family = owned(started(&parent));
        assert!(family.len() >= 2, "{parent}");
        assert!(all_ended(&host, &family).await.iter().all(|run| run["status"] == "cancelled"), "{parent}");
        let late = host.ended(family.last().unwrap()).await;
        assert!(late.message_texts().is_empty(), "{late}");
        host.until_ready(|ready| ready["live_runs"] == 0).await;
    }
    host.check();
}

/// A parent that waits long leaves its place to its children.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_place_is_enough_for_a_family() {
    let host = Host::limited(
        &["family"],
        &format!(
            "[limits]\nmax_live_runs = 1\npark_after_ms = 300\n[[bindings]]\nid = \"family\"\n\
             runner = \"plugin:test/family/default\"\n[bindings.resources]\n{RUNS}\n"
        ),
    );
    let parent = host.take("fan 3 default [start default [say #]; all 60000; say above]; all 60000").await;
    assert_eq!(parent.outcomes()[1], json!(["completed", "completed", "completed"]), "{parent}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_wait_ends_when_one_has_ended_or_the_time_is_over() {
    let mut host = family("park_after_ms = 400", "", "");
    // In memory: it has ended already, it ends later, it does not end.
    let ended = host
        .take(
            "start default [say at once]; sleep 350; any 300; start default [sleep 200]; any 390; start default [await never]; \
             wait 0 2; wait 300 2; wait 0 2 0; wait 0 1 1 1",
        )
        .await;
    let outcomes = ended.outcomes();
    assert_eq!((&outcomes[7], &outcomes[6]), (&Value::Null, &Value::Null), "{ended}");
    assert_eq!(text(&outcomes[8], "run_id"), outcomes[0].as_str().unwrap(), "{ended}");
    assert_eq!(ended.statuses("runs").len(), 0, "it was not parked: {ended}");

    // Parked: by the end of the wait, and by the end of a child, also of one that is parked itself, and of a host that
    // dies meanwhile.
    let over = host.take("start default [await never]; wait 1500 0").await;
    assert_eq!((&over.outcomes()[1], over.statuses("runs").len()), (&Value::Null, 1), "{over}");
    for dies in [false, true] {
        let parent =
            host.send(&format!("start default [await go-{dies}]; start default [sleep 600000]; any 600000; any 600000")).await;
        let waits = host.until_status(&parent, "waiting").await;
        assert_eq!(waits["status_reason"], "runs");
        host.until_ready(|ready| ready["parked_runs"] == 2).await;
        if dies {
            host.kill_and_revive();
            host.until_ready(|ready| ready["parked_runs"] == 2).await;
        }
        let began = Instant::now();
        host.take(&format!("set go-{dies} yes")).await;
        host.until(&parent, |event| event["type"] == "x.step" && event["data"]["outcome"] == json!([0, "completed"])).await;
        host.until_status(&parent, "waiting").await;
        let children = children_of(&host, &parent).await;
        host.cancel(text(&children[1], "run_id")).await;
        let ended = host.ended(&parent).await.completed();
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        assert_eq!(ended.outcomes()[2..], [json!([0, "completed"]), json!([1, "cancelled"])], "{ended}");
        assert_eq!((ended.statuses("runs").len(), ended.statuses("woken").len()), (2, 2), "{ended}");
    }
    host.check();
}
