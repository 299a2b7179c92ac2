//! Evidence is verified as it was made, and every change of it is found at its line.

use agent_host_protocol::{EventSource, RecordDigest, Run, RunEvent, RunId};
use proptest::prelude::*;
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use super::*;

const RUN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

fn verify(file: &str) -> Verdict {
    let mut verifier = Verifier::default();
    verifier.push(file.as_bytes());
    verifier.finish()
}

/// The events of the sample. The second has a doubled key and a number that no double has.
fn events(run_id: RunId) -> Vec<RunEvent> {
    let data = [
        r#"{"chunk": {"role":"assistant","content":"hi"}}"#,
        r#"{"a":1,"a":12345678901234567891,"z":0.10}"#,
        r#"{"artifact":{"artifact_id":"art_1","media_type":"text/plain","size":5}}"#,
        r#"{"finish_reason":"stop"}"#,
    ];
    let kinds = ["message.delta", "acme.odd", "artifact.created", "run.completed"];
    (1..)
        .zip(data.into_iter().zip(kinds))
        .map(|(sequence, (data, kind))| RunEvent {
            run_id,
            kind: kind.to_owned(),
            data: RawValue::from_string(data.to_owned()).unwrap(),
            sequence,
            timestamp: 1_700_000_000_000 + sequence,
            source: EventSource::Runner,
            metadata: (sequence == 2).then(|| to_raw_value(&json!({ "m": 1 })).unwrap()),
        })
        .collect()
}

/// A file, with changes of what goes into it.
fn file(change: impl FnOnce(&mut Header, &mut Run, &mut Vec<RunEvent>)) -> String {
    lines_of(&mut Chain::default(), RUN.parse().unwrap(), change)
}

/// The file of a thread that says it has these turns, and has those.
fn thread(announced: &[RunId], turns: &[RunId]) -> String {
    let mut chain = Chain::default();
    let header = ThreadHeader {
        version: VERSION.to_owned(),
        session_id: "c1".into(),
        thread_id: "c1".into(),
        workspace_id: None,
        turns: announced.to_vec(),
    };
    let mut file = chain.line(&Part::Thread(&header)).unwrap();
    turns.iter().for_each(|turn| file.push_str(&lines_of(&mut chain, *turn, |_, _, _| ())));
    file
}

/// The lines of a run, behind those of the chain.
fn lines_of(chain: &mut Chain, run_id: RunId, change: impl FnOnce(&mut Header, &mut Run, &mut Vec<RunEvent>)) -> String {
    let input = RawValue::from_string(format!(r#"{{"event_id":"{RUN}","text":"hello",  "n": 18446744073709551615}}"#)).unwrap();
    let mut events = events(run_id);
    let begun = RecordDigest::begin(run_id, input.get().as_bytes());
    let digest = events.iter().fold(begun, |digest, event| digest.and(event.into()));
    let mut run: Run = serde_json::from_value(json!({
        "run_id": run_id, "event_id": RUN, "binding_id": "main", "runner_id": "plugin:a/b/c", "runner_version": "1", "status": "completed",
        "attempt": 1, "created_at": 1, "updated_at": 9, "last_sequence": 4, "record_digest": digest, "metadata": { "big": u64::MAX },
    }))
    .unwrap();
    let mut header = Header {
        version: VERSION.to_owned(),
        run_id,
        event_id: run.event_id,
        parent_run_id: None,
        retry_of: None,
        conversation_id: Some("c1".into()),
        thread_id: None,
        workspace_id: None,
        bot_id: None,
        agent_id: "main".into(),
        binding_id: "main".into(),
        runner_id: "plugin:a/b/c".into(),
        runner_version: "1".into(),
        component: Some("sha256:00".into()),
        trace_id: None,
        status: "completed".into(),
        record_digest: Some(digest),
        completeness: Completeness {
            ended: true,
            record: RecordState::Whole,
            events: events.len() as u64,
            facts: false,
            missing_artifacts: 0,
        },
    };
    change(&mut header, &mut run, &mut events);
    let grant = to_raw_value(&json!({ "models": ["m"] })).unwrap();
    let mut file = String::new();
    let mut add = |part: &Part<'_>| file.push_str(&chain.line(part).unwrap());
    add(&Part::Header(&header));
    add(&Part::Run(&run));
    add(&Part::Grant(Some(&grant)));
    add(&Part::Event(Some(&input)));
    let mut digest = begun;
    for event in &events {
        digest = digest.and(event.into());
        add(&Part::Record { event, link: Some(digest) });
    }
    add(&Part::Artifact(json!({ "artifact_id": "art_1", "sha256": "00" })));
    add(&Part::Audit(json!({ "run_id": run_id, "action": "log.write" })));
    add(&Part::End);
    file
}

fn good() -> String {
    file(|_, _, _| ())
}

/// The line and the code of the fault.
fn fault(file: &str) -> (u64, &'static str) {
    let verdict = verify(file);
    let fault = verdict.fault.unwrap_or_else(|| panic!("nothing is wrong with\n{file}"));
    assert_eq!(verdict.lines + 1, fault.line, "{fault:?}");
    (fault.line, fault.code)
}

#[test]
fn a_file_is_verified_as_it_was_made_and_made_the_same_again() {
    let file = good();
    let verdict = verify(&file);
    assert_eq!((verdict.verified, verdict.lines, verdict.fault), (true, 11, None));
    assert_eq!(file, good());
    assert!(file.ends_with(&format!("\"hash\":\"{}\"}}\n", verdict.head)));
    let run: Value = serde_json::from_str(file.lines().nth(1).unwrap()).unwrap();
    assert_eq!(
        (&run["run"]["metadata"]["big"], &run["numbers_as_text"]),
        (&json!(u64::MAX.to_string()), &json!(["/run/metadata/big"]))
    );
    assert!(file.contains(r#""data":{"a":1,"a":12345678901234567891,"z":0.10}"#), "data is byte for byte as it is stored");
    // In pieces.
    let mut verifier = Verifier::default();
    file.as_bytes().chunks(7).for_each(|piece| verifier.push(piece));
    assert!(verifier.finish().verified);
}

#[test]
fn the_hash_of_a_line_is_that_of_the_page() {
    let file = good();
    let mut head = [0; 32];
    for line in file.lines().take(3) {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let hash = line.as_object_mut().unwrap().remove("hash").unwrap();
        let canonical = serde_json_canonicalizer::to_vec(&line).unwrap();
        head = Sha256::digest([&head[..], &canonical].concat()).into();
        assert_eq!(hash, json!(agent_host_protocol::hex::encode(&head)));
    }
    // Another order of members and other spaces are the same line.
    let reordered = file.replacen("{\"type\":\"audit\",", "{ ", 1).replacen("\"hash\"", "\"type\":\"audit\",\"hash\"", 1);
    assert_eq!(fault(&reordered), (1, "json"), "the first hash is of the header");
    let lines: Vec<&str> = file.lines().collect();
    let audit = lines[9].replacen("{\"type\":\"audit\",", "{  ", 1).replacen(",\"hash\"", ", \"type\" : \"audit\",\"hash\"", 1);
    assert!(verify(&file.replace(lines[9], &audit)).verified);
}

#[test]
fn each_change_is_found_at_its_line() {
    let file = good();
    let lines: Vec<&str> = file.lines().collect();
    let joined = |lines: &[&str]| lines.join("\n") + "\n";
    let cases: Vec<(&str, String, (u64, &str))> = vec![
        ("a changed text", file.replace("hello", "hallo"), (4, "hash")),
        ("a changed event", file.replace("\"content\":\"hi\"", "\"content\":\"ho\""), (5, "hash")),
        ("a changed number of the first double key", file.replace("\"a\":1,", "\"a\":2,"), (6, "record")),
        ("a digit beyond doubles", file.replace("12345678901234567891", "12345678901234567892"), (6, "record")),
        ("a space in stored data", file.replace("{\"chunk\": {", "{\"chunk\":{"), (5, "record")),
        ("a digit of the input beyond doubles", file.replace("18446744073709551615}", "18446744073709551614}"), (5, "record")),
        ("a missing line", joined(&[&lines[..5], &lines[6..]].concat()), (6, "hash")),
        ("a line twice", joined(&[&lines[..6], &lines[5..]].concat()), (7, "hash")),
        ("two lines in the other order", joined(&[&lines[..8], &[lines[9], lines[8]], &lines[10..]].concat()), (9, "hash")),
        ("no end", joined(&lines[..10]), (11, "torn")),
        ("a torn end", file[..file.len() - 9].to_owned(), (11, "torn")),
        ("more behind the end", file.clone() + lines[10] + "\n", (12, "hash")),
        ("an empty file", String::new(), (1, "torn")),
        ("no evidence", "{}\n".to_owned(), (1, "json")),
        ("a hash of letters", file.replacen("\"hash\":\"", "\"hash\":\"zz", 1), (1, "json")),
        ("a doubled key", file.replacen("{\"type\":\"header\"", "{\"type\":\"header\",\"type\":\"header\"", 1), (1, "json")),
        ("an empty line", file.replacen('\n', "\n\n", 1), (2, "json")),
    ];
    for (name, changed, found) in cases {
        assert_eq!(fault(&changed), found, "{name}");
    }
}

#[test]
fn a_file_that_is_chained_again_does_not_hide_a_changed_record() {
    let changed = |change: fn(&mut Header, &mut Run, &mut Vec<RunEvent>)| fault(&file(change));
    let data = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    // The exporter links what it finds: the stored digest differs at the end of the record.
    let other = file(|_, _, events| events[0].data = data("{}"));
    assert_eq!(fault(&other), (9, "record"));
    assert_eq!(changed(|_, _, events| drop(events.remove(1))), (6, "record"));
    assert_eq!(changed(|_, _, events| drop(events.pop())), (8, "record"));
    assert_eq!(changed(|header, _, _| header.completeness.record = RecordState::Changed), (9, "record"));
    assert_eq!(changed(|header, _, _| header.completeness.events = 3), (9, "record"));
    assert_eq!(changed(|_, run, _| run.last_sequence = 5), (9, "record"));
    assert_eq!(changed(|_, run, _| run.record_digest = None), (2, "ids"));
    assert_eq!(changed(|header, _, _| header.status = "failed".into()), (2, "ids"));
    assert_eq!(changed(|header, _, _| header.version = "v9".into()), (1, "version"));
    assert_eq!(changed(|header, _, _| header.run_id = RunId::new()), (2, "ids"));
    assert_eq!(changed(|_, _, events| events[3].run_id = RunId::new()), (8, "ids"));
    assert_eq!(changed(|header, _, _| header.completeness.missing_artifacts = 1), (10, "artifact"));
}

#[test]
fn a_thread_is_all_of_its_turns_in_their_order() {
    let [first, second, other] = [RunId::new(), RunId::new(), RunId::new()];
    let file = thread(&[first, second], &[first, second]);
    let verdict = verify(&file);
    assert_eq!((verdict.verified, verdict.lines, verdict.fault), (true, 23, None));
    assert_eq!(verdict.thread.unwrap().turns, [first, second]);
    // A turn that is missing, another one, one too many, and turns in another order.
    assert_eq!(fault(&thread(&[first, second], &[first])), (13, "torn"));
    assert_eq!(fault(&thread(&[first, second], &[first, other])), (13, "order"));
    assert_eq!(fault(&thread(&[first], &[first, second])), (13, "order"));
    assert_eq!(fault(&thread(&[first, second], &[second, first])), (2, "order"));
    // The whole first turn taken out of a file.
    let lines: Vec<&str> = file.lines().collect();
    assert_eq!(fault(&([&lines[..1], &lines[12..]].concat().join("\n") + "\n")), (2, "hash"));
    // Two runs are no thread.
    let mut chain = Chain::default();
    let two = lines_of(&mut chain, first, |_, _, _| ()) + &lines_of(&mut chain, second, |_, _, _| ());
    assert_eq!(fault(&two), (12, "order"));
}

proptest! {
    #[test]
    fn arbitrary_lines_never_panic(lines in prop::collection::vec(prop_oneof![any::<String>().prop_map(String::into_bytes), prop::collection::vec(any::<u8>(), 0..60)], 0..6)) {
        let mut verifier = Verifier::default();
        verifier.push(&lines.join(&b'\n'));
        prop_assert!(!verifier.finish().verified);
    }

    #[test]
    fn any_changed_byte_is_found(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let file = good();
        let mut bytes = file.clone().into_bytes();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != byte);
        // Spaces between members, and hexadecimal digits in capitals, are the same line.
        prop_assume!(!bytes[at].eq_ignore_ascii_case(&byte) && byte != b'\r');
        bytes[at] = byte;
        let mut verifier = Verifier::default();
        verifier.push(&bytes);
        prop_assert!(!verifier.finish().verified, "{}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn members_of_lines_that_are_chained_again_never_panic(line in 0_usize..11, value in prop_oneof![Just(json!(null)), Just(json!(7)), Just(json!([])), Just(json!({}))], pick in any::<prop::sample::Index>()) {
        let mut head = [0; 32];
        let mut out = String::new();
        for (number, text) in good().lines().enumerate() {
            let mut object: Value = serde_json::from_str(text).unwrap();
            let members = object.as_object_mut().unwrap();
            members.remove("hash");
            if number == line {
                let keys: Vec<String> = members.keys().cloned().collect();
                members.insert(pick.get(&keys).clone(), value.clone());
            }
            head = hash_after(&head, &serde_json_canonicalizer::to_vec(&object).unwrap());
            object["hash"] = json!(agent_host_protocol::hex::encode(&head));
            out.push_str(&object.to_string());
            out.push('\n');
        }
        let _ = verify(&out);
    }
}
