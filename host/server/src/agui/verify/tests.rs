//! Tests of `verify`.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::agui::{
    event::{Function, Interrupt, PatchOp, ToolCall, Usage},
    fold::View,
    sample::{assistant_message, event, events},
};

fn check(words: &str) -> Result<(), Violation> {
    let mut verifier = Verifier::new();
    events(words).iter().try_for_each(|event| verifier.admit(event))
}

/// Streams that clients accept, measured with `@ag-ui/client` 1.0.0 where the reference says so.
#[test]
fn legal_streams_are_admitted() {
    for words in [
        "run end",
        "err",
        "run err",
        "run end err",
        "run end run end",
        "run err run end",
        "err run end",
        "run t[a t.a t]a end",
        "run t[a t]a t[a t]a end",
        "run t[a t[b t.a t.b t]a t]b end",
        "run u[a t.a t]a end",
        "run t[a c[b<a t.a c.b c]b x.b t]a end",
        "run c[a c[b c.a c.b c]b c]a x.a x.b end",
        "run c[a x.a c]a end",
        "run c[a c]a end=a",
        "run c[a c]a cancel",
        "run t[a err",
        "run m[a m.a m]a end",
        "run r[a m[a m.a m]a r]a end",
        "run r[a m[b m]b m[c m]c r]a end",
        "run s[a s[a@g s]a@g s]a end",
        "run g[a t[b@a t.b t]b g]a end",
        "run t[b@ghost t.b@ghost t]b@ghost end",
        "run g[a g[b<a g]b g]a end",
        "run g[a g]a g[b<a g!b end",
        "run g[a g]a end run g[a g]a end",
        "run t[a@g t]a end run t[a t]a end",
        "run a=i a.i a?i a=i@g a.i@g end",
        "run c[a@g c]a e.none f.a@g x.a end",
        "run t[a@g c[b<a c.b@g c]b x.b t]a end",
        "run set add add end",
        "run snap=a,b t[a t.a t]a end",
        "run snap=old c[a c]a x.a end",
        "run x.unknown end",
        "run a.unknown end",
    ] {
        assert_eq!(check(words), Ok(()), "{words}");
    }
}

#[test]
fn violations_that_clients_refuse_change_nothing() {
    for (words, says) in [
        ("end", "RUN_FINISHED before RUN_STARTED"),
        ("t[a", "TEXT_MESSAGE_START before RUN_STARTED"),
        ("run run", "RUN_STARTED while a run is active"),
        ("run end t[a", "TEXT_MESSAGE_START after RUN_FINISHED"),
        ("run end end", "RUN_FINISHED after RUN_FINISHED"),
        ("run err end", "RUN_FINISHED after RUN_ERROR"),
        ("run err err", "RUN_ERROR after RUN_ERROR"),
        ("run end err end", "RUN_FINISHED after RUN_ERROR"),
        ("run t.a", "TEXT_MESSAGE_CONTENT: text message `a` is not open"),
        ("run t]a", "TEXT_MESSAGE_END: text message `a` is not open"),
        ("run t[a t]a t.a", "TEXT_MESSAGE_CONTENT: text message `a` is not open"),
        ("run t[a t[a", "TEXT_MESSAGE_START: text message `a` is open already"),
        ("run c.a", "TOOL_CALL_ARGS: tool call `a` is not open"),
        ("run c]a", "TOOL_CALL_END: tool call `a` is not open"),
        ("run c[a c[a", "TOOL_CALL_START: tool call `a` is open already"),
        ("run r[a r[a", "REASONING_START: reasoning span `a` is open already"),
        ("run r]a", "REASONING_END: reasoning span `a` is not open"),
        ("run r[a m.a", "REASONING_MESSAGE_CONTENT: reasoning message `a` is not open"),
        ("run m[a r]a", "REASONING_END: reasoning span `a` is not open"),
        ("run m[a m[a", "REASONING_MESSAGE_START: reasoning message `a` is open already"),
        ("run s[a s[a", "STEP_STARTED: step `a` is open already"),
        ("run s]a", "STEP_FINISHED: step `a` is not open"),
        ("run s[a s]a@g", "STEP_FINISHED: step `a` of subagent `g` is not open"),
        ("run t[a end", "RUN_FINISHED while these are open: text message `a`"),
        ("run c[a cancel", "RUN_FINISHED while these are open: tool call `a`"),
        (
            "run g[g s[a r[b m[c end",
            "RUN_FINISHED while these are open: step `a`, reasoning span `b`, reasoning message `c`, subagent `g`",
        ),
        ("run t[a@g t.a@h", "TEXT_MESSAGE_CONTENT: tagged with subagent `h`, but text message `a` belongs to subagent `g`"),
        ("run t[a t.a@g", "TEXT_MESSAGE_CONTENT: tagged with subagent `g`, but text message `a` belongs to the agent itself"),
        ("run t[a@g t]a t[a@h", "TEXT_MESSAGE_START: tagged with subagent `h`, but text message `a` belongs to subagent `g`"),
        ("run t[a@g c[b<a@h", "TOOL_CALL_START: tagged with subagent `h`, but text message `a` belongs to subagent `g`"),
        ("run t[a@g c[b<a c.b@h", "TOOL_CALL_ARGS: tagged with subagent `h`, but tool call `b` belongs to subagent `g`"),
        (
            "run t[a@g c[b c]b c[b<a",
            "TOOL_CALL_START: tagged with the agent itself, but text message `a` belongs to subagent `g`",
        ),
        ("run c[a@g c]a f.a@h", "REASONING_ENCRYPTED_VALUE: tagged with subagent `h`, but tool call `a` belongs to subagent `g`"),
        (
            "run m[a@g m]a e.a@h",
            "REASONING_ENCRYPTED_VALUE: tagged with subagent `h`, but reasoning message `a` belongs to subagent `g`",
        ),
        (
            "run r[a@g m[a@h",
            "REASONING_MESSAGE_START: tagged with subagent `h`, but reasoning message `a` belongs to subagent `g`",
        ),
        ("run a=i@g a.i@h", "ACTIVITY_DELTA: tagged with subagent `h`, but activity `i` belongs to subagent `g`"),
        ("run snap=a t[a@g", "TEXT_MESSAGE_START: tagged with subagent `g`, but text message `a` belongs to the agent itself"),
        ("run g[a g[a", "SUBAGENT_STARTED: subagent `a` is open already"),
        ("run g[a g]a g[a", "SUBAGENT_STARTED: `a` has ended in this run, and an id is of one invocation"),
        ("run g[a<b", "SUBAGENT_STARTED: its parent `b` was not started in this run"),
        ("run g]a", "SUBAGENT_FINISHED: subagent `a` is not open"),
        ("run g[a g]a g!a", "SUBAGENT_ERROR: subagent `a` is not open"),
        ("run g[a@b", "SUBAGENT_STARTED: it has its own id, and takes no tag"),
    ] {
        let mut all = events(words);
        let last = all.pop().unwrap();
        let mut verifier = Verifier::new();
        for event in &all {
            assert_eq!(verifier.admit(event), Ok(()), "{words}");
        }
        let before = format!("{verifier:?}");
        let violation = verifier.admit(&last).expect_err(words);
        assert_eq!(violation.to_string(), says, "{words}");
        assert!(violation.throws(), "{words}");
        assert_eq!(format!("{verifier:?}"), before, "{words}");
    }
}

#[test]
fn flaws_that_clients_accept_are_reported_and_counted() {
    for (words, says) in [
        ("run t[a@g t]a end@g", "RUN_FINISHED: it belongs to the run as a whole, and takes no tag of a subagent"),
        ("run m[a m]a t[a", "TEXT_MESSAGE_START: `a` is a message of another kind, and ids are unique among all"),
        ("run u[a t]a t[a", "TEXT_MESSAGE_START: `a` is a message of another kind, and ids are unique among all"),
        ("run t[a t]a a=a", "ACTIVITY_SNAPSHOT: `a` is a message of another kind, and ids are unique among all"),
        ("run u[a t]a c[b<a", "TOOL_CALL_START: `a` is a message of another kind, and ids are unique among all"),
        ("run t[a t]a c[a", "TOOL_CALL_START: `a` is a message of another kind, and ids are unique among all"),
        (
            "run r[a@g m[a",
            "REASONING_MESSAGE_START: it is of the agent itself, but reasoning message `a` belongs to subagent `g`",
        ),
        (
            "run t[a@g t]a snap=b t[a",
            "TEXT_MESSAGE_START: it is of the agent itself, but text message `a` belongs to subagent `g`",
        ),
        (
            "run c[a@g c]a c[b c]b c[a<b",
            "TOOL_CALL_START: it is of subagent `g`, but text message `b` belongs to the agent itself",
        ),
        (
            "run c[a c]a c[b@g c]b@g c[a<b",
            "TOOL_CALL_START: it is of the agent itself, but text message `b` belongs to subagent `g`",
        ),
        ("run r[a@g r]a r[a", "REASONING_START: it is of the agent itself, but reasoning span `a` belongs to subagent `g`"),
        ("run a=i snap=a a=j a.k", "ACTIVITY_DELTA: there is no activity `k` to change"),
        ("run snap=a x.b", "TOOL_CALL_RESULT: there is no call `b`"),
        ("run c[a c]a x.a x.a", "TOOL_CALL_RESULT: call `a` has a result"),
        ("run t[xa t]xa c[a c]a x.a", "TOOL_CALL_RESULT: `xa` is a message of another kind, and ids are unique among all"),
        ("run t[a snap=b", "MESSAGES_SNAPSHOT without text message `a`, which is open"),
        ("run c[a snap=b", "MESSAGES_SNAPSHOT without tool call `a`, which is open"),
        ("run c[a c]a end", "RUN_FINISHED: call `a` has no result, and is not named as pending: clients take it for theirs"),
        (
            "run c[a c]a c[b c]b end=b",
            "RUN_FINISHED: call `a` has no result, and is not named as pending: clients take it for theirs",
        ),
        ("run c[a c]a x.a end=a", "RUN_FINISHED: `a` is pending, but it is no call without a result, or named twice"),
        ("run c[a c]a end=a,a", "RUN_FINISHED: `a` is pending, but it is no call without a result, or named twice"),
        ("run snap=m end=a", "RUN_FINISHED: `a` is pending, but it is no call without a result, or named twice"),
    ] {
        // Activities are known if a snapshot has some: the client received this one before.
        let mut verifier = Verifier::new();
        if words.contains("a.k") {
            verifier.know(&[]);
        }
        let mut all = events(words);
        let last = all.pop().unwrap();
        for event in &all {
            assert_eq!(verifier.admit(event), Ok(()), "{words}");
        }
        let before = format!("{verifier:?}");
        let violation = verifier.admit(&last).expect_err(words);
        assert_eq!(violation.to_string(), says, "{words}");
        assert!(!violation.throws(), "{words}");
        if !matches!(last.kind, Kind::ActivityDelta { .. }) && words != "run c[a c]a x.a x.a" {
            assert_ne!(format!("{verifier:?}"), before, "{words}");
        }
    }
}

#[test]
fn runs_are_named_and_versioned() {
    let mut verifier = Verifier::new();
    let unversioned =
        Kind::RunStarted { thread_id: "thread".into(), run_id: "other".into(), protocol_version: None, parent_run_id: None };
    assert_eq!(verifier.admit(&unversioned.into()), Err(Violation::NoVersion));
    assert!(verifier.is_started() && !verifier.is_over());
    let finished = verifier.admit(&event("end"));
    assert_eq!(finished, Err(Violation::OtherRun { started: "other".into(), finished: "run".into() }));
    assert!(verifier.is_over());
}

#[test]
fn values_that_the_schema_refuses_are_malformed() {
    let finished =
        |result, outcome, usage| Kind::RunFinished { thread_id: "thread".into(), run_id: "run".into(), result, outcome, usage };
    let patch = |path: &str| Kind::StateDelta { delta: vec![PatchOp::Copy { from: String::new(), path: path.into() }] };
    let malformed: Vec<Kind> = vec![
        finished(None, Some(Outcome::Interrupt { interrupts: Vec::new() }), Vec::new()),
        finished(Some(Value::Null), None, Vec::new()),
        finished(None, None, vec![Usage { output_tokens: Some(1 << 53), ..Usage::default() }]),
        Kind::ReasoningEncryptedValue { subtype: "text".into(), entity_id: "a".into(), encrypted_value: "?".into() },
        patch("a"),
        patch("/a~2"),
        patch("/a~"),
    ];
    for kind in malformed {
        let mut verifier = Verifier::new();
        verifier.admit(&event("run")).unwrap();
        let violation = verifier.admit(&kind.clone().into()).expect_err(kind.name());
        assert!(matches!(violation, Violation::Malformed { .. }) && violation.throws(), "{kind:?}");
    }
    let interrupt = Interrupt {
        id: "i".into(),
        reason: "confirmation".into(),
        message: None,
        tool_call_id: None,
        response_schema: None,
        expires_at: None,
        metadata: serde_json::Map::new(),
    };
    for kind in [
        finished(Some(Value::Bool(false)), None, vec![Usage { output_tokens: Some((1 << 53) - 1), ..Usage::default() }]),
        finished(None, Some(Outcome::Interrupt { interrupts: vec![interrupt] }), Vec::new()),
        patch("/a~0b~1/"),
    ] {
        let mut verifier = Verifier::new();
        verifier.admit(&event("run")).unwrap();
        assert_eq!(verifier.admit(&kind.clone().into()), Ok(()), "{kind:?}");
    }
}

#[test]
fn refusals_known_before_the_stream_are_problems() {
    let mut known = assistant_message("m", "");
    known.body = MessageBody::Assistant {
        content: None,
        name: None,
        tool_calls: vec![ToolCall {
            id: "a".into(),
            kind: Default::default(),
            function: Function { name: "tool".into(), arguments: "{}".into() },
            encrypted_value: None,
        }],
    };
    let mut verifier = Verifier::new();
    verifier.know(std::slice::from_ref(&known));
    for event in &events("run x.a") {
        assert_eq!(verifier.admit(event), Ok(()));
    }
    assert_eq!(verifier.admit(&event("x.b")), Err(Violation::UnknownCall { id: "b".into() }));
    // The same for an earlier run.
    let mut verifier = Verifier::new();
    for event in &events("run snap=m c[a c]a end=a run x.a end") {
        assert_eq!(verifier.admit(event), Ok(()));
    }
}

#[test]
fn open_elements_are_closed_inside_out_and_reopened_outside_in() {
    let mut verifier = Verifier::new();
    assert_eq!((verifier.closing(), verifier.reopening()), (Vec::new(), Vec::new()));
    for event in &events("run g[g g[h<g g]g s[s t[a@h c[b<a r[c m[c m.c t[d t]d") {
        assert_eq!(verifier.admit(event), Ok(()));
    }
    let names = |events: Vec<Event>| {
        let name = |event: &Event| {
            let id = match act(event) {
                Act::Open(item) | Act::Close(item) => item.to_string(),
                Act::Continue(_) | Act::None => String::new(),
            };
            format!("{} {id} {}", event.kind.name(), event.subagent.as_deref().unwrap_or("-"))
        };
        events.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(
        names(verifier.closing()),
        [
            "REASONING_MESSAGE_END reasoning message `c` -",
            "REASONING_END reasoning span `c` -",
            "TOOL_CALL_END tool call `b` h",
            "TEXT_MESSAGE_END text message `a` h",
            "STEP_FINISHED step `s` -",
            "SUBAGENT_ERROR subagent `h` -",
        ]
    );
    assert_eq!(
        names(verifier.reopening()),
        [
            "SUBAGENT_STARTED subagent `g` -",
            "SUBAGENT_FINISHED subagent `g` -",
            "SUBAGENT_STARTED subagent `h` -",
            "STEP_STARTED step `s` -",
            "TEXT_MESSAGE_START text message `a` h",
            "TOOL_CALL_START tool call `b` h",
            "REASONING_START reasoning span `c` -",
            "REASONING_MESSAGE_START reasoning message `c` -",
        ]
    );
    verifier.admit(&event("err")).unwrap();
    assert_eq!((verifier.closing(), verifier.reopening()), (Vec::new(), Vec::new()));
}

/// A step of a random stream: a word, or a snapshot of all words.
#[derive(Debug, Clone)]
enum Step {
    Event(Event),
    Snapshot,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let signs = [
        "t[", "t.", "t]", "u[", "c[", "c.", "c]", "r[", "r]", "m[", "m.", "m]", "e.", "f.", "s[", "s]", "g[", "g]", "g!", "x.",
        "a=", "a?", "a.",
    ];
    let id = prop::sample::select(vec!["a", "b", "c", "d"]);
    let tag = prop::option::weighted(0.3, prop::sample::select(vec!["a", "b"]));
    let parent = prop::option::weighted(0.3, prop::sample::select(vec!["a", "b", "c"]));
    let metadata = prop::option::weighted(0.2, 0..3_u32);
    let word = (prop::sample::select(signs.to_vec()), id, tag, parent, metadata).prop_map(|(sign, id, tag, parent, metadata)| {
        let parent = parent.filter(|_| matches!(sign, "c[" | "g[")).map_or_else(String::new, |parent| format!("<{parent}"));
        let tag = tag.map_or_else(String::new, |tag| format!("@{tag}"));
        let mut event = event(&format!("{sign}{id}{parent}{tag}"));
        event.metadata.extend(metadata.map(|value| ("key".to_owned(), value.into())));
        Step::Event(event)
    });
    let other = prop::sample::select(vec!["set", "add"]).prop_map(|word| Step::Event(event(word)));
    let step = prop_oneof![30 => word, 2 => other, 1 => Just(Step::Snapshot)];
    prop::collection::vec(step, 0..120)
}

/// Of the steps, what keeps all rules.
fn legal(steps: Vec<Step>) -> Vec<Event> {
    let mut verifier = of_nothing();
    let mut view = View::default();
    let mut legal = events("run");
    verifier.admit(&event("run")).unwrap();
    for step in steps {
        let event = match step {
            Step::Event(event) => event,
            Step::Snapshot => Kind::MessagesSnapshot { messages: view.messages.clone() }.into(),
        };
        // A flaw is counted, so ask a copy first.
        let mut copy = of_nothing();
        if legal.iter().chain([&event]).all(|event| copy.admit(event).is_ok()) {
            verifier.admit(&event).unwrap();
            view.apply(&event);
            legal.push(event);
        }
    }
    legal
}

/// Of a thread without messages.
fn of_nothing() -> Verifier {
    let mut verifier = Verifier::new();
    verifier.know(&[]);
    verifier
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn closing_makes_a_whole(steps in steps()) {
        let events = legal(steps);
        let mut verifier = of_nothing();
        for event in &events {
            verifier.admit(event).unwrap();
        }
        for end in verifier.closing() {
            prop_assert_eq!(verifier.admit(&end), Ok(()));
        }
        prop_assert!(verifier.closing().is_empty());
        let subagents = |event: &Event| matches!(act(event), Act::Open(Item::Subagent(_)) | Act::Close(Item::Subagent(_)));
        prop_assert!(verifier.reopening().iter().all(subagents));
        prop_assert_eq!(verifier.admit(&event("cancel")), Ok(()));
        prop_assert!(verifier.is_over());
    }

    #[test]
    fn a_late_verifier_reaches_the_same_state(steps in steps(), at in any::<prop::sample::Index>()) {
        let events = legal(steps);
        let (before, rest) = events.split_at(at.index(events.len()) + 1);
        let mut first = of_nothing();
        for event in before {
            first.admit(event).unwrap();
        }
        let seen = View::of(before);
        let mut prelude = vec![
            event("run"),
            Kind::StateSnapshot { snapshot: seen.state.clone() }.into(),
            Kind::MessagesSnapshot { messages: seen.messages.clone() }.into(),
        ];
        prelude.extend(first.reopening());

        let mut late = Verifier::new();
        let mut view = View::default();
        for event in prelude.iter().chain(rest) {
            prop_assert_eq!(late.admit(event), Ok(()), "{:?}", event);
            view.apply(event);
        }
        prop_assert_eq!(view, View::of(&events));
        for event in rest {
            first.admit(event).unwrap();
        }
        // Tags that were left out after an end are excepted: a late client cannot know them.
        let kinds = |events: Vec<Event>| events.into_iter().map(|event| event.kind).collect::<Vec<_>>();
        prop_assert_eq!(kinds(late.closing()), kinds(first.closing()));
    }
}
