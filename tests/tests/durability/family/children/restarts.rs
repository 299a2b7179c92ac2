//! Families whose host is killed, and parents that end or are tried again meanwhile.

use super::*;

/// The plug is pulled while parents start children and wait for them: none is started twice, and none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_parent_does_not_notice_that_its_host_was_killed() {
    const ROUNDS: u64 = 60;
    let world = tempfile::tempdir().unwrap();
    let counted = world.path().join("counted");
    fs::write(&counted, "").unwrap();
    let tools = format!(
        "tool_names = [\"t__*\"]\n[[mcp_servers]]\nid = \"t\"\ncommand = {:?}\nenv = {{ COUNT_FILE = {counted:?} }}\n\
         start_timeout_ms = 60000\n",
        env!("CARGO_BIN_EXE_mcp-server"),
    );
    let mut host = family("park_after_ms = 60", "", &tools);
    let mut random = Random(20_260_202);
    let mut parents = Vec::new();
    for round in 0..ROUNDS {
        let children = format!("fan 3 default [count r{round}-#; sleep 150; say done #]");
        // Some wait in memory, some are parked.
        let waits = if round % 2 == 0 { "any 250; any 250; all 120000" } else { "all 120000" };
        parents.push((round, host.send_in(&format!("c{}", round % 7), &format!("{children}; {waits}; say over")).await));
        tokio::time::sleep(Duration::from_millis(random.below(600))).await;
        host.kill();
        if random.below(5) == 0 {
            host.stillborn(Duration::from_millis(random.below(400))).await;
        }
        host.revive();
    }
    let mut times = BTreeMap::<String, usize>::new();
    let (mut resumes, mut of_children, mut parked, mut in_doubt) = (0, 0, 0, 0);
    let mut all = Vec::new();
    for (round, parent) in &parents {
        all.push((round, host.ended(parent).await.completed()));
    }
    for line in fs::read_to_string(&counted).unwrap().lines() {
        *times.entry(line.to_owned()).or_default() += 1;
    }
    for (round, parent) in &all {
        resumes += parent.resumes();
        parked += parent.statuses("runs").len();
        let outcomes = parent.outcomes();
        let named: Vec<_> = list(&outcomes[0]).into_iter().map(|id| id.as_str().unwrap_or_default()).collect();
        let found = children_of(&host, text(&parent.run, "run_id")).await;
        assert_eq!(named, ids(&found), "{parent}");
        assert_eq!((named.len(), &named), (3, &started(parent)), "{parent}");
        assert_eq!(outcomes[outcomes.len() - 2], json!(["completed", "completed", "completed"]), "{parent}");
        for (n, id) in named.iter().enumerate() {
            let child = host.ended(id).await.completed();
            of_children += child.resumes();
            let came = child.outcomes()[0].clone();
            let times = times.get(&format!("count r{round}-{n}")).copied().unwrap_or(0);
            match refused(&came) {
                "" => assert_eq!(times, 1, "{child}"),
                _ => {
                    assert!(times <= 1 && came["code"] == "effect_in_doubt", "{times}: {child}");
                    in_doubt += 1;
                }
            }
        }
    }
    println!(
        "{ROUNDS} kills: parents resumed {resumes} times and parked {parked} times, children resumed {of_children} times, \
         {in_doubt} of their calls in doubt"
    );
    assert!(resumes >= 5 && of_children >= 10 && parked >= 20, "they were hardly disturbed");
    host.until_ready(|ready| ready["live_runs"] == 0 && ready["parked_runs"] == 0 && ready["waiting_runs"] == 0).await;
    host.check();
}

/// At any moment of a kill: a cancelled parent cancels its children.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_children_of_a_cancelled_parent_do_not_survive_a_kill() {
    let mut host = family("park_after_ms = 300", "", "");
    let mut random = Random(3);
    let mut families = BTreeSet::new();
    for round in 0..12 {
        let waits = if round % 2 == 0 { "await never" } else { "all 600000" };
        let parent = host
            .send(&format!("fan 3 default [start default [await never]; sleep 600000]; start default [await never]; {waits}"))
            .await;
        let children =
            until_children(&host, &parent, |found| statuses(found) == ["waiting", "waiting", "waiting", "running"]).await;
        host.cancel(&parent).await;
        tokio::time::sleep(Duration::from_millis(random.below(8))).await;
        host.kill_and_revive();
        let ended = host.ended(&parent).await;
        assert_eq!(ended.run["status"], "cancelled", "{ended}");
        for child in ids(&children) {
            families.insert(child.to_owned());
            families.extend(owned(ids(&children_of(&host, child).await)));
        }
    }
    let families: Vec<_> = families.into_iter().collect();
    assert_eq!(families.len(), 12 * 7);
    assert!(all_ended(&host, &families).await.iter().all(|run| run["status"] == "cancelled"));
    host.check();
}

/// The end of a parent that is starting children leaves none behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_child_that_is_being_started_while_its_parent_ends_ends_too() {
    let mut host = family("", "", "");
    let mut random = Random(4);
    let mut parents = Vec::new();
    for _ in 0..60 {
        let parent = host.send("fan 16 default [await never]; await never").await;
        host.until_status(&parent, "running").await;
        tokio::time::sleep(Duration::from_millis(random.below(60))).await;
        host.cancel(&parent).await;
        assert_eq!(host.ended(&parent).await.run["status"], "cancelled");
        parents.push(parent);
    }
    let mut children = Vec::new();
    for parent in &parents {
        children.extend(owned(ids(&children_of(&host, parent).await)));
    }
    println!("{} parents had started {} children", parents.len(), children.len());
    assert!(children.len() > parents.len(), "they were hardly caught in it");
    assert!(all_ended(&host, &children).await.iter().all(|run| run["status"] == "cancelled"));
    host.kill_and_revive();
    host.until_ready(|ready| ready["live_runs"] == 0).await;
    host.check();
}

/// The children of an attempt that is over are not those of the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_retried_parent_starts_children_of_its_own_and_those_before_end() {
    let mut host = family("child_runs_at_once = 2\npark_after_ms = 300", "durability = \"retry\"", "");
    let parent = host.send("attempt; fan 2 default [sleep 600000]; say up; await go; all 0").await;
    host.until_step(&parent, "say up").await;
    let before = owned(ids(&children_of(&host, &parent).await));
    assert_eq!(before.len(), 2);
    host.kill_and_revive();
    let up = |event: &Value| event["type"] == "x.step" && event["data"]["outcome"] == 2;
    host.until(&parent, up).await;
    let found = until_children(&host, &parent, |found| found.len() == 4).await;
    let after: Vec<String> = owned(ids(&found)).into_iter().filter(|id| !before.contains(id)).collect();
    assert!(all_ended(&host, &before).await.iter().all(|run| run["status"] == "cancelled"));
    assert!(after.len() == 2 && !has_ended(&host.run(&after[0]).await));
    host.take("set go yes").await;
    let ended = host.ended(&parent).await.completed();
    assert_eq!(ended.run["attempt"], 2, "{ended}");
    all_ended(&host, &after).await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_parent_that_fails_with_its_host_takes_its_children_along() {
    let mut host = family("", "durability = \"fail\"", "");
    let parent = host.send("fan 2 default [start default [await never]; await never]; say up; await never").await;
    host.until_step(&parent, "say up").await;
    let children = until_children(&host, &parent, |found| statuses(found) == ["running", "running"]).await;
    let mut family = owned(ids(&children));
    for child in ids(&children) {
        family.extend(owned(ids(&until_children(&host, child, |found| statuses(found) == ["running"]).await)));
    }
    host.kill_and_revive();
    host.ended(&parent).await.failed("host_restarted");
    for run in all_ended(&host, &family).await {
        assert!(["failed", "cancelled"].contains(&text(&run, "status")), "{run:#}");
    }
    host.check();
}
