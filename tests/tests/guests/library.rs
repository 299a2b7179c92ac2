//! Skills and static references: read when the host starts, granted by name, and the same for a run as long as it lives.

use std::{fs, path::Path, time::Duration};

use agent_host_protocol::{RunId, event::Envelope, time};
use agent_host_runs::{Host, StartError};
use agent_host_tests::{World, world::PATIENCE};
use serde_json::{Value, json};

const CONFIG: &str = r#"
[[skills]]
path = "skills/pdf"

[[skills]]
path = "skills/from-the-web"

[[static_refs]]
name = "system-prompt"
path = "prompts/system.md"

[[static_refs]]
name = "house-rules"
path = "prompts/rules.txt"
version = "3"

[[bindings]]
id = "all"
runner = "plugin:test/caller/default"
match = { event_type = "test\\.all" }

[[bindings]]
id = "one"
runner = "plugin:test/caller/default"
match = { event_type = "test\\.one" }
resources = { skill_names = ["pd*"], static_refs = ["house-rules"] }

[[bindings]]
id = "none"
runner = "plugin:test/caller/default"
match = { event_type = "test\\.none" }
resources = { skill_names = [], static_refs = [] }

[[bindings]]
id = "metadata"
runner = "plugin:test/caller/default"
match = { event_type = "test\\.metadata" }
resources = { artifacts = ["metadata"] }
"#;

const PDF: &str = "---\nname: pdf\ndescription: 'PDF: how to read one'\nlicense: MIT\n---\n# PDF\n";
const SCRIPT: &str = "print('reads a page')\n";
const WEB: &str = "---\nname: web\ndescription: Looks things up.\n---\n# Web\n";
const SYSTEM: &str = "You are kind.\n";
const RULES: &str = "No running.\n";
/// The later content of `PDF` and `SYSTEM`.
const WRITES: &str = "---\nname: pdf\ndescription: 'PDF: how to write one'\nlicense: MIT\n---\n# PDF\n";
const BRIEF: &str = "You are brief.\n";

fn lay_out(dir: &Path) {
    for (path, content) in [
        ("skills/pdf/SKILL.md", PDF),
        ("skills/pdf/scripts/read.py", SCRIPT),
        ("skills/pdf/.cache/left", "over"),
        ("skills/from-the-web/SKILL.md", WEB),
        ("prompts/system.md", SYSTEM),
        ("prompts/rules.txt", RULES),
    ] {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

async fn world() -> World {
    World::from_text(&["caller"], CONFIG, lay_out).await
}

/// Another host on the same directories, with the same configuration.
async fn restart(world: World, grace: Duration) -> World {
    world.host.shutdown(grace).await;
    let World { host, dir } = world;
    let config = (*host.config()).clone();
    drop(host);
    World { host: Host::start(config).await.unwrap(), dir }
}

fn event(binding: &str, steps: Value) -> Envelope {
    serde_json::from_value(json!({ "event_type": format!("test.{binding}"), "data": { "steps": steps } })).unwrap()
}

async fn outcomes(world: &World, id: RunId) -> Vec<Value> {
    let ended = world.ended(id).await;
    let answer = ended.events.iter().find(|event| event.kind == "test.answer");
    let answer = answer.unwrap_or_else(|| panic!("the script did not come to its end: {ended:#?}"));
    answer.data_value()["outcomes"].as_array().unwrap().clone()
}

async fn play(world: &World, binding: &str, steps: Value) -> Vec<Value> {
    outcomes(world, world.send(event(binding, steps)).await).await
}

/// The context of a new run of this binding.
async fn context(world: &World, binding: &str) -> Value {
    let id = world.send(event(binding, json!([]))).await;
    world.ended(id).await;
    serde_json::from_str(world.host.ledger().context(id).unwrap().unwrap().get()).unwrap()
}

/// Written down, so that the host is not asked what the host says.
fn sha256(text: &str) -> &'static str {
    match text {
        PDF => "83c6d992a143672a5b351f7372f1ede096bb1682a72465a0242e5f16c9d2d0b4",
        SCRIPT => "757d91c06a2e11bbc1f46cbe2add858fef26690a13afd3d48edcb158e877c5eb",
        WEB => "a9b74fdc76936706b5cc0828698d6e62059c16609c6cd7b2a120e72e938579cc",
        SYSTEM => "5378036b31efb6bdcaccd9b89e514d2b6c1961573196b570e9a52b9d07d6faa6",
        RULES => "f46cd2a5398b940ae18a70db49d259f8e49c682ddba917e4f486b097696c57c3",
        BRIEF => "dcf39448da87e4c8a95a5632101e747e0a241ea739704accc26a4cf6ea606db6",
        WRITES => "9a565c42edf005e9ddbb364d9be8a6bdb43f7ea6b08a7d4f60697e572c0a8c39",
        other => panic!("nobody has hashed {other:?}"),
    }
}

#[track_caller]
fn id(artifact: &Value) -> &str {
    artifact["artifact_id"].as_str().unwrap_or_else(|| panic!("no artifact: {artifact:#}"))
}

#[track_caller]
fn refused(outcome: &Value, code: &str) {
    assert_eq!(outcome["error"], code, "{outcome:#}");
}

#[tokio::test]
async fn a_run_finds_what_it_is_granted_in_its_context_and_reads_it() {
    let world = world().await;
    let seen = context(&world, "all").await;
    let skills = seen["resources"]["skills"].as_array().unwrap();
    let skill_summary =
        |skill: &Value| (skill["skill_name"].clone(), skill["description"].clone(), skill["content"]["name"].clone());
    assert_eq!(skill_summary(&skills[0]), (json!("pdf"), json!("PDF: how to read one"), json!("pdf/SKILL.md")));
    assert_eq!(skill_summary(&skills[1]), (json!("web"), json!("Looks things up."), json!("web/SKILL.md")));
    assert_eq!(skills.len(), 2);
    let [file] = seen["resources"]["artifacts"].as_array().unwrap().as_slice() else { panic!("{seen:#}") };
    assert_eq!(file["name"], "pdf/scripts/read.py");
    let (system, rules) = (&seen["runtime"]["static_refs"]["system-prompt"], &seen["runtime"]["static_refs"]["house-rules"]);
    assert_eq!(system["version"], sha256(SYSTEM)[..12]);
    assert_eq!((&rules["version"], &rules["sha256"]), (&json!("3"), &json!(sha256(RULES))));

    let contents = [
        (&skills[0]["content"], PDF, "text/markdown"),
        (&skills[1]["content"], WEB, "text/markdown"),
        (file, SCRIPT, "text/x-python"),
        (&system["content"], SYSTEM, "text/markdown"),
        (&rules["content"], RULES, "text/plain"),
    ];
    for (artifact, text, media_type) in contents {
        let id = id(artifact);
        let did = play(
            &world,
            "all",
            json!([
                { "call": "artifacts.metadata", "id": id },
                { "call": "artifacts.read", "id": id, "offset": 3, "length": 4 },
                { "call": "artifacts.read_all", "id": id, "max": 7 },
            ]),
        )
        .await;
        assert_eq!(did[0]["artifact"], *artifact);
        assert_eq!((&artifact["sha256"], &artifact["media_type"]), (&json!(sha256(text)), &json!(media_type)));
        assert_eq!(did[1]["text"], text[3..7]);
        assert_eq!(did[2]["bytes"], text.len());
        assert_eq!(did[2]["text"], text[..text.len().min(64)]);
    }

    // The guest is shown the files as well.
    let did = play(&world, "all", json!([{ "call": "context" }])).await;
    assert_eq!(did[0]["artifacts"], json!([file]));
    assert_eq!(did[0]["attachments"], json!([]), "they did not come with the event");
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_run_reads_only_what_its_binding_names() {
    let world = world().await;
    let all = context(&world, "all").await;
    let skills = &all["resources"]["skills"];
    let (pdf, web) = (id(&skills[0]["content"]), id(&skills[1]["content"]));
    let file = id(&all["resources"]["artifacts"][0]);
    let refs = &all["runtime"]["static_refs"];
    let (system, rules) = (id(&refs["system-prompt"]["content"]), id(&refs["house-rules"]["content"]));
    let look = json!(
        [pdf, file, rules, web, system]
            .iter()
            .map(|id| json!([
                { "call": "artifacts.metadata", "id": id },
                { "call": "artifacts.read", "id": id },
                { "call": "artifacts.read_all", "id": id },
            ]))
            .flat_map(|steps| steps.as_array().unwrap().clone())
            .collect::<Vec<_>>()
    );

    let one = context(&world, "one").await;
    assert_eq!(one["resources"]["skills"], json!([skills[0]]));
    assert_eq!(one["resources"]["artifacts"], all["resources"]["artifacts"]);
    assert_eq!(one["runtime"]["static_refs"], json!({ "house-rules": refs["house-rules"] }));
    let did = play(&world, "one", look.clone()).await;
    for outcome in &did[..9] {
        assert_eq!(outcome["error"], Value::Null, "{outcome:#}");
    }
    for outcome in &did[9..] {
        refused(outcome, "not_found");
    }

    let none = context(&world, "none").await;
    for empty in [&none["resources"]["skills"], &none["resources"]["artifacts"], &none["runtime"]["static_refs"]] {
        assert!(
            empty.as_array().is_none_or(Vec::is_empty) && empty.as_object().is_none_or(serde_json::Map::is_empty),
            "{none:#}"
        );
    }
    for outcome in play(&world, "none", look.clone()).await {
        refused(&outcome, "not_found");
    }

    // A run without the right to read gets no skill, and only the version of a reference.
    let blind = context(&world, "metadata").await;
    assert!(blind["resources"]["skills"].as_array().is_none_or(Vec::is_empty), "{blind:#}");
    assert!(blind["resources"]["artifacts"].as_array().is_none_or(Vec::is_empty), "{blind:#}");
    assert_eq!(blind["runtime"]["static_refs"]["house-rules"], json!({ "version": "3", "sha256": sha256(RULES) }));
    for steps in play(&world, "metadata", look).await.chunks(3) {
        refused(&steps[0], "not_found");
        refused(&steps[1], "unauthorized");
        refused(&steps[2], "unauthorized");
    }
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn content_keeps_its_artifacts_over_starts_and_other_content_has_others() {
    let world = world().await;
    let first = context(&world, "all").await;
    let world = restart(world, PATIENCE).await;
    let second = context(&world, "all").await;
    assert_eq!(second["resources"], first["resources"]);
    assert_eq!(second["runtime"]["static_refs"], first["runtime"]["static_refs"]);

    // A run that was granted the old content, and still waits when the host stops.
    let skill = &first["resources"]["skills"][0]["content"];
    let system = &first["runtime"]["static_refs"]["system-prompt"]["content"];
    let read = json!([
        { "call": "await", "key": "go" },
        { "call": "artifacts.metadata", "id": id(skill) },
        { "call": "artifacts.read", "id": id(skill) },
        { "call": "artifacts.read", "id": id(system) },
    ]);
    let waits = world.send(event("all", read)).await;
    let begun = tokio::time::Instant::now();
    while world.host.ledger().context(waits).unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "the run does not start");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let dir = world.dir.path().to_owned();
    fs::write(dir.join("skills/pdf/SKILL.md"), WRITES).unwrap();
    fs::remove_file(dir.join("skills/pdf/scripts/read.py")).unwrap();
    fs::write(dir.join("prompts/system.md"), BRIEF).unwrap();
    let world = restart(world, Duration::ZERO).await;

    let third = context(&world, "all").await;
    let changed = &third["resources"]["skills"][0];
    assert_eq!(changed["description"], "PDF: how to write one");
    assert_eq!(changed["content"]["sha256"], sha256(WRITES));
    assert_ne!(id(&changed["content"]), id(skill));
    assert_eq!(third["resources"]["artifacts"].as_array().map_or(0, Vec::len), 0, "the script is gone");
    let (refs, before) = (&third["runtime"]["static_refs"], &first["runtime"]["static_refs"]);
    assert_eq!(refs["house-rules"], before["house-rules"], "it has not changed");
    assert_eq!(refs["system-prompt"]["version"], sha256(BRIEF)[..12]);

    // The grant is the only reference to the old content, which is therefore no garbage.
    let a_year = 365 * 24 * 60 * 60 * 1000;
    world.host.ledger().collect_garbage(time::now() + a_year).await.unwrap();
    let new = json!([
        { "call": "artifacts.read", "id": id(skill) },
        { "call": "artifacts.read", "id": id(&changed["content"]) },
        { "call": "storage.set", "area": "plugin", "key": "go", "text": "go" },
    ]);
    let did = play(&world, "all", new).await;
    refused(&did[0], "not_found");
    assert_eq!(did[1]["text"], WRITES[..64], "{did:#?}");
    let did = outcomes(&world, waits).await;
    assert_eq!(did[1]["artifact"], *skill, "{did:#?}");
    assert_eq!((&did[2]["text"], &did[3]["text"]), (&json!(PDF[..64]), &json!(SYSTEM)));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_host_does_not_start_with_a_library_that_it_cannot_read() {
    let world = world().await;
    world.host.shutdown(PATIENCE).await;
    let World { host, dir } = world;
    let config = (*host.config()).clone();
    drop(host);
    let place = |path: &str| dir.path().join(path).display().to_string();
    let refusal = async || match Host::start(config.clone()).await {
        Ok(_) => panic!("the host has started"),
        Err(StartError::Library(error)) => error.to_string(),
        Err(other) => panic!("{other}"),
    };

    fs::write(dir.path().join("skills/from-the-web/SKILL.md"), PDF).unwrap();
    let error = refusal().await;
    for part in ["`pdf`", &place("skills/pdf"), &place("skills/from-the-web")] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    fs::write(dir.path().join("skills/from-the-web/SKILL.md"), "---\nname: web\ndescription: a: b\n---\n").unwrap();
    let error = refusal().await;
    assert!(error.contains(&place("skills/from-the-web/SKILL.md")) && error.contains("line 3"), "{error}");
    fs::write(dir.path().join("skills/from-the-web/SKILL.md"), WEB).unwrap();
    fs::remove_file(dir.path().join("prompts/rules.txt")).unwrap();
    let error = refusal().await;
    assert!(error.contains(&place("prompts/rules.txt")), "{error}");

    // Put right, it starts: a refusal leaves nothing behind that is in the way.
    fs::write(dir.path().join("prompts/rules.txt"), RULES).unwrap();
    let host = Host::start(config.clone()).await.unwrap();
    host.shutdown(PATIENCE).await;
}
