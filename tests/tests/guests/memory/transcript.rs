//! Transcript and events of a conversation.

use super::*;

#[tokio::test]
async fn the_transcript_is_paged_in_both_directions() {
    let world = world("").await;
    // Messages that no binding answers are in the transcript all the same.
    for n in 1..=7 {
        let mut message = in_conversation("c");
        message["event_type"] = "message.received".into();
        message["input"] = json!({ "text": format!("m{n}") });
        assert!(world.host.accept(serde_json::from_value(message).unwrap(), None).await.unwrap().runs.is_empty());
    }
    let texts = |page: &Value| -> Vec<String> {
        page["items"].as_array().unwrap().iter().map(|item| item["text"].as_str().unwrap().to_owned()).collect()
    };
    let page = |more: Value| {
        let mut page = json!({ "call": "history.page", "limit": 3 });
        page.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        page
    };
    let did = play(
        &world,
        "main",
        in_conversation("c"),
        json!([
            page(json!({ "as": "b1" })),
            page(json!({ "as": "b2", "before": "$b1" })),
            page(json!({ "before": "$b2" })),
            page(json!({ "as": "f1", "direction": "forward" })),
            page(json!({ "as": "f2", "direction": "forward", "after": "$f1" })),
            page(json!({ "direction": "forward", "after": "$f2" })),
            page(json!({ "limit": 0 })),
            page(json!({ "limit": 101 })),
            page(json!({ "before": "nonsense" })),
            page(json!({ "conversation": "d" })),
        ]),
    )
    .await;
    let walk: Vec<_> = did[..3].iter().flat_map(texts).collect();
    // The order within a page is either the same for both directions or that of the walk.
    let mut sorted = walk.clone();
    sorted.sort();
    assert_eq!(sorted, ["m1", "m2", "m3", "m4", "m5", "m6", "m7"]);
    let mut newest = texts(&did[0]);
    newest.sort();
    assert_eq!(newest, ["m5", "m6", "m7"]);
    assert_eq!(did[3..6].iter().flat_map(texts).collect::<Vec<_>>(), sorted);
    let more: Vec<_> = did[..6].iter().map(|page| page["has_more"].as_bool().unwrap()).collect();
    assert_eq!(more, [true, true, false, true, true, false]);
    for place in 6..9 {
        refused(&did[place], "invalid_argument");
    }
    refused(&did[9], "unauthorized");

    // A cursor is of its own conversation.
    let cursor = did[0]["next"].clone();
    let elsewhere = play(&world, "main", in_conversation("d"), json!([page(json!({ "before": cursor }))])).await;
    refused(&elsewhere[0], "invalid_argument");
    let nowhere = play(&world, "main", json!({}), json!([page(json!({})), { "call": "history.search", "query": "m1" }])).await;
    nowhere.iter().for_each(|outcome| refused(outcome, "unauthorized"));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn the_transcript_is_searched_in_every_language() {
    let world = world("").await;
    let say = async |conversation: &str, kind: &str, text: &str| {
        let mut message = in_conversation(conversation);
        message["event_type"] = kind.into();
        message["input"] = json!({ "text": text });
        world.host.accept(serde_json::from_value(message).unwrap(), None).await.unwrap();
    };
    let texts = [
        ("message.received", "今天北京的天气非常好,我们去公园散步"),
        ("message.received", "明日は東京で会議があります"),
        ("message.edited", "오늘 서울에서 커피를 마셨습니다"),
        ("message.received", "The invoices were paid on Thursday"),
        ("message.received", "Nothing of interest"),
    ];
    for (kind, text) in texts {
        say("c", kind, text).await;
    }
    say("d", "message.received", "Their invoice is in another conversation").await;
    play(&world, "main", in_conversation("c"), json!([{ "call": "emit", "message": "I have seen the invoice" }])).await;

    let search = |query: &str| json!({ "call": "history.search", "query": query });
    let filtered = |query: &str, filters: Value| json!({ "call": "history.search", "query": query, "filters": filters });
    let top = |top_k: u32| json!({ "call": "history.search", "query": "invoice", "top_k": top_k });
    let did = play(
        &world,
        "main",
        in_conversation("c"),
        json!([
            search("天气"),
            search("公园"),
            search("会議"),
            search("커피"),
            search("invoice"),
            search("absent"),
            filtered("invoice", json!({ "roles": ["assistant"] })),
            filtered("invoice", json!({ "roles": ["user"] })),
            filtered("서울", json!({ "event_types": ["message.received"] })),
            filtered("서울", json!({ "event_types": ["message.edited"] })),
            filtered("invoice", json!({ "since": time::now() + A_DAY })),
            filtered("invoice", json!({ "until": time::now() - A_DAY })),
            filtered("invoice", json!({ "since": time::now() - A_DAY, "until": time::now() + A_DAY })),
            filtered("invoice", json!({ "conversation_id": "c" })),
            top(1),
            top(50),
            top(0),
            top(51),
            filtered("invoice", json!({ "conversation_id": "d" })),
            filtered("invoice", json!({ "role": ["user"] })),
            filtered("invoice", json!(["user"])),
            { "call": "history.search", "query": "invoice", "filters_text": "{" },
            // Operators of query languages are ordinary words.
            search("\"invoice AND (NOT"),
        ]),
    )
    .await;
    let found = |place: usize| -> Vec<&str> {
        let items = did[place].as_array().unwrap_or_else(|| panic!("{place}: {}", did[place]));
        items.iter().map(|item| item["text"].as_str().unwrap()).collect()
    };
    assert_eq!((found(0), found(1)), (vec![texts[0].1], vec![texts[0].1]));
    assert_eq!((found(2), found(3)), (vec![texts[1].1], vec![texts[2].1]));
    for place in [4, 12, 13, 15] {
        let mut found = found(place);
        found.sort_unstable();
        assert_eq!(found, ["I have seen the invoice", texts[3].1], "of its own conversation only");
    }
    assert!(found(5).is_empty());
    assert_eq!(found(6), ["I have seen the invoice"]);
    assert_eq!(found(7), [texts[3].1]);
    assert!(found(8).is_empty());
    assert_eq!(found(9), [texts[2].1]);
    assert!(found(10).is_empty() && found(11).is_empty());
    assert_eq!(found(14).len(), 1);
    refused(&did[16], "invalid_argument");
    refused(&did[17], "invalid_argument");
    refused(&did[18], "unauthorized");
    for place in 19..22 {
        refused(&did[place], "invalid_argument");
    }
    assert!(!found(22).is_empty());

    // Later messages are found as well, also after a restart.
    say("c", "message.received", "a later thought about kangaroos").await;
    let later = play(&world, "main", in_conversation("c"), json!([search("kangaroo")])).await;
    assert_eq!(later[0][0]["text"], "a later thought about kangaroos");
    let (limits, bindings) = (world.host.config().limits.clone(), world.host.config().bindings.clone());
    let world = world.restarted(limits, bindings).await;
    let later = play(&world, "main", in_conversation("c"), json!([search("kangaroo"), search("天气")])).await;
    assert_eq!((&later[0][0]["text"], &later[1][0]["text"]), (&json!("a later thought about kangaroos"), &json!(texts[0].1)));
    world.host.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn the_events_of_a_conversation_are_paged_by_type_and_never_show_the_adapter() {
    let world = world("").await;
    let mut ids = Vec::new();
    for n in 0..6 {
        let mut message = in_conversation("c");
        message["event_type"] = if n % 2 == 0 { "message.received" } else { "reaction.added" }.into();
        message["input"] = json!({ "text": format!("m{n}") });
        message["adapter"] = json!({ "raw": "ADAPTER-PAYLOAD" });
        ids.push(world.host.accept(serde_json::from_value(message).unwrap(), None).await.unwrap().event_id.to_string());
    }
    let mut elsewhere = in_conversation("d");
    elsewhere["event_type"] = "message.received".into();
    let foreign = world.host.accept(serde_json::from_value(elsewhere).unwrap(), None).await.unwrap().event_id.to_string();
    let mut more = in_conversation("c");
    more["adapter"] = json!({ "raw": "ADAPTER-PAYLOAD" });
    let did = play(
        &world,
        "main",
        more,
        json!([
            { "call": "events.page", "limit": 4, "as": "one" },
            { "call": "events.page", "limit": 4, "before": "$one" },
            { "call": "events.page", "types": ["reaction.added"], "limit": 2, "as": "reactions" },
            { "call": "events.page", "types": ["reaction.added"], "limit": 2, "before": "$reactions" },
            { "call": "events.page", "types": ["never.was"] },
            { "call": "events.get", "id": ids[0] },
            { "call": "context", "as": "context" },
            { "call": "events.get", "id": foreign },
            { "call": "events.get", "id": "not an id" },
            { "call": "events.page", "limit": 0 },
            { "call": "events.page", "limit": 101 },
            { "call": "events.page", "before": "nonsense" },
            { "call": "events.page", "types": vec!["a.b"; 51] },
        ]),
    )
    .await;
    let of = |page: &Value| -> Vec<String> {
        page["items"].as_array().unwrap().iter().map(|event| event["event_id"].as_str().unwrap().to_owned()).collect()
    };
    let all: Vec<_> = did[..2].iter().flat_map(of).collect();
    assert_eq!(all.len(), 7, "the six, and the event of this run: {all:?}");
    assert!(ids.iter().all(|id| all.contains(id)) && !all.contains(&foreign));
    let reactions: Vec<_> = did[2..4].iter().flat_map(of).collect();
    assert_eq!(reactions, [ids[5].clone(), ids[3].clone(), ids[1].clone()]);
    assert_eq!((&did[2]["has_more"], &did[3]["has_more"]), (&json!(true), &json!(false)));
    assert_eq!(did[4]["items"], json!([]));
    assert_eq!(did[5]["event_type"], "message.received");
    refused(&did[7], "not_found");
    refused(&did[8], "not_found");
    for place in 9..13 {
        refused(&did[place], "invalid_argument");
    }
    assert!(!json!(did).to_string().contains("ADAPTER-PAYLOAD"), "{did:#?}");
    world.host.shutdown(PATIENCE).await;
}
