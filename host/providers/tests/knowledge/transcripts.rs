//! The index of transcripts, and search in any language.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what fails here fails the test"
)]

use std::{fs, sync::Arc};

use agent_host_providers::search::{SearchError, TranscriptDoc, TranscriptFilter, TranscriptIndex};

fn doc(seq: u64, text: &str) -> TranscriptDoc {
    TranscriptDoc { seq, text: text.into(), role: "user".into(), event_type: "message".into(), created_at: seq * 1_000 }
}

fn index() -> (tempfile::TempDir, TranscriptIndex) {
    let dir = tempfile::tempdir().unwrap();
    let index = TranscriptIndex::open(dir.path()).unwrap();
    (dir, index)
}

fn found(index: &TranscriptIndex, query: &str) -> Vec<u64> {
    let hits = index.search("c", query, &TranscriptFilter::default(), 50).unwrap();
    hits.into_iter().map(|(seq, _)| seq).collect()
}

#[test]
fn words_are_found_in_every_language() {
    let (_dir, index) = index();
    let texts = [
        "The runners were running through the deployment pipeline.",
        "我们使用大数据技术构建知识库，并且支持全文检索。",
        "東京都庁で人工知能に関する国際会議が開催されました。",
        "이 시스템은 데이터베이스를 사용해서 문서를 검색합니다.",
        "Die Straße führt über die Brücke nach Köln; naïve Café-Besucher.",
        "新版iPhone手机在Linux服务器上的测试，2024年完成。",
        "Система полнотекстового поиска для всех языков. Ёлка.",
        "ภาษาไทยเป็นภาษาที่ไม่มีช่องว่างระหว่างคำ",
        "ﾃﾞｰﾀﾍﾞｰｽの設計と運用",
        "Ｆｕｌｌ ｗｉｄｔｈ ＡＢＣ",
    ];
    let items: Vec<_> = (1..).zip(texts).map(|(seq, text)| doc(seq, text)).collect();
    index.add("c", &items).unwrap();
    for (query, expect) in [
        ("runner", 1),
        ("deployments", 1),
        ("知识库", 2),
        ("数据", 2),
        ("检索", 2),
        ("全文检索", 2),
        ("人工知能", 3),
        ("知能", 3),
        ("会議", 3),
        ("国際会議の予定", 3),
        ("데이터베이스", 4),
        ("데이터베이스가", 4),
        ("문서", 4),
        ("strasse", 5),
        ("bruecke brucke", 5),
        ("NAIVE cafe", 5),
        ("iphone", 6),
        ("手机", 6),
        ("服务器测试", 6),
        ("поиска", 7),
        ("елка", 7),
        ("ช่องว่าง", 8),
        ("データベース", 9),
        ("full abc", 10),
    ] {
        assert_eq!(found(&index, query).first(), Some(&expect), "{query}");
    }
    for nothing in ["猫", "кот", "zebra", "고양이"] {
        assert_eq!(found(&index, nothing), [0_u64; 0], "{nothing}");
    }
}

#[test]
fn a_single_character_is_found_within_words() {
    let (_dir, index) = index();
    index.add("c", &[doc(1, "我家的小猫很可爱"), doc(2, "물을 마신다"), doc(3, "狗")]).unwrap();
    assert_eq!(found(&index, "猫"), [1]);
    assert_eq!(found(&index, "물"), [2]);
}

#[test]
fn no_query_is_a_wrong_one() {
    let (_dir, index) = index();
    index.add("c", &[doc(1, "a plain sentence about AND gates")]).unwrap();
    let long = "word ".repeat(200_000);
    for query in [
        "",
        " ",
        "!!! ???",
        "AND (",
        "(((",
        "\"",
        "field:value",
        "text:[* TO",
        "a^-1",
        "*",
        "~",
        "\\",
        "+-&&||",
        "\0\u{7f}\u{202e}",
        "🙂🙂",
        "\u{fffd}",
        &long,
        &"知".repeat(10_000),
        &"x".repeat(100_000),
        &"한".repeat(10_000),
        &"アイウ".repeat(10_000),
    ] {
        let filter = TranscriptFilter::default();
        assert!(index.search("c", query, &filter, 50).is_ok(), "{:?}", query.chars().take(20).collect::<String>());
    }
    assert_eq!(found(&index, "AND ("), [1]);
    assert_eq!(found(&index, "gates:value OR NOT"), [1]);
    assert!(index.search("c", "gates", &TranscriptFilter::default(), 0).unwrap().is_empty());
}

#[test]
fn the_same_words_in_order_score_higher() {
    let (_dir, index) = index();
    index.add("c", &[doc(1, "pipeline of the deployment"), doc(2, "the deployment pipeline of"), doc(3, "deployment")]).unwrap();
    assert_eq!(found(&index, "deployment pipeline"), [2, 1, 3]);
}

#[test]
fn adding_twice_does_no_harm_and_replaces() {
    let (_dir, index) = index();
    assert_eq!(index.indexed("c").unwrap(), 0);
    index.add("c", &[doc(1, "first"), doc(2, "second"), doc(2, "second again")]).unwrap();
    index.add("c", &[doc(1, "first"), doc(2, "second changed"), doc(3, "third")]).unwrap();
    index.add("other", &[doc(9, "first elsewhere")]).unwrap();
    index.add("c", &[]).unwrap();
    assert_eq!((index.indexed("c").unwrap(), index.indexed("other").unwrap(), index.indexed("none").unwrap()), (3, 9, 0));
    assert_eq!(found(&index, "first"), [1]);
    assert_eq!(found(&index, "second"), [2]);
    assert_eq!(found(&index, "again"), [0_u64; 0]);
}

#[test]
fn only_what_the_filter_means_is_found() {
    let (_dir, index) = index();
    let items: Vec<_> = (1..=100)
        .map(|seq| TranscriptDoc {
            role: ["user", "assistant", "tool"][seq as usize % 3].into(),
            event_type: if seq % 2 == 0 { "message".into() } else { "tool-call".into() },
            ..doc(seq, "the same text")
        })
        .collect();
    index.add("c", &items).unwrap();
    let search = |filter: &TranscriptFilter| {
        let mut found: Vec<_> = index.search("c", "text", filter, 1_000).unwrap().into_iter().map(|(seq, _)| seq).collect();
        found.sort_unstable();
        found
    };
    let all = TranscriptFilter::default();
    assert_eq!(search(&all).len(), 100);
    let filter =
        TranscriptFilter { roles: vec!["user".into(), "tool".into()], event_types: vec!["message".into()], ..all.clone() };
    assert_eq!(search(&filter), (1..=100).filter(|seq| seq % 3 != 1 && seq % 2 == 0).collect::<Vec<u64>>());
    let filter = TranscriptFilter { since: Some(10_000), until: Some(12_000), ..all.clone() };
    assert_eq!(search(&filter), [10, 11, 12]);
    let filter = TranscriptFilter { since: Some(99_001), ..all.clone() };
    assert_eq!(search(&filter), [100]);
    assert!(search(&TranscriptFilter { since: Some(12_000), until: Some(10_000), ..all.clone() }).is_empty());
    assert!(search(&TranscriptFilter { roles: vec!["nobody".into()], ..all }).is_empty());
    // Of equals, the newest.
    let newest = index.search("c", "text", &TranscriptFilter::default(), 1_000).unwrap();
    assert_eq!(newest.first().map(|(seq, _)| *seq), Some(100));
}

#[test]
fn it_is_there_after_a_restart_and_one_process_writes() {
    let (dir, index) = index();
    index.add("c", &[doc(1, "kept")]).unwrap();
    let second = TranscriptIndex::open(dir.path()).unwrap();
    assert_eq!(found(&second, "kept"), [1]);
    assert!(matches!(second.add("c", &[doc(2, "more")]), Err(SearchError::Busy { .. })));
    drop(index);
    second.add("c", &[doc(2, "more")]).unwrap();
    assert_eq!(TranscriptIndex::open(dir.path()).unwrap().indexed("c").unwrap(), 2);
}

#[test]
fn a_conversation_that_is_forgotten_is_not_found_and_can_begin_again() {
    let (dir, index) = index();
    index.add("c", &[doc(1, "kept word"), doc(2, "another word")]).unwrap();
    index.add("d", &[doc(1, "word")]).unwrap();
    index.forget("c").unwrap();
    index.forget("c").unwrap();
    index.forget("never").unwrap();
    assert_eq!((found(&index, "word"), index.indexed("c").unwrap()), (Vec::new(), 0));
    assert_eq!(index.search("d", "word", &TranscriptFilter::default(), 50).unwrap().len(), 1);
    index.add("c", &[doc(3, "word")]).unwrap();
    assert_eq!((found(&index, "word"), index.indexed("c").unwrap()), (vec![3], 3));
    drop(index);
    let index = TranscriptIndex::open(dir.path()).unwrap();
    assert_eq!((found(&index, "word"), index.indexed("c").unwrap()), (vec![3], 3));
}

#[test]
fn many_may_add_at_once() {
    let (_dir, index) = index();
    let index = Arc::new(index);
    let threads: Vec<_> = (0..8)
        .map(|n| {
            let index = index.clone();
            std::thread::spawn(move || (1..=5).for_each(|seq| index.add(&format!("c{n}"), &[doc(seq, "text")]).unwrap()))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!((0..8).all(|n| index.indexed(&format!("c{n}")).unwrap() == 5));
}

#[test]
fn a_damaged_index_is_built_anew_at_opening() {
    for damage in ["meta", "segment", "truncated", "garbage"] {
        let (dir, index) = index();
        index.add("c", &[doc(1, "lost")]).unwrap();
        drop(index);
        for entry in fs::read_dir(dir.path()).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            match damage {
                "meta" if name == "meta.json" => fs::write(entry.path(), "{").unwrap(),
                "segment" if name.ends_with(".term") => fs::remove_file(entry.path()).unwrap(),
                "truncated" if name.len() > 32 => fs::write(entry.path(), b"x").unwrap(),
                "garbage" if name.len() > 32 => fs::write(entry.path(), vec![0xa5; 4_096]).unwrap(),
                _ => {}
            }
        }
        let index = TranscriptIndex::open(dir.path()).unwrap();
        // The first use notices the damage, if opening did not.
        let indexed = index.indexed("c").or_else(|_| index.indexed("c")).unwrap();
        if indexed == 0 {
            index.add("c", &[doc(1, "found again")]).or_else(|_| index.add("c", &[doc(1, "found again")])).unwrap();
        }
        let found = index.search("c", "found lost", &TranscriptFilter::default(), 5);
        assert!(found.is_ok_and(|found| found.len() == 1), "{damage}");
    }
}

#[test]
fn an_index_of_another_version_is_built_anew() {
    let (dir, index) = index();
    index.add("c", &[doc(1, "old")]).unwrap();
    drop(index);
    let meta = dir.path().join("meta.json");
    let text = fs::read_to_string(&meta).unwrap();
    fs::write(&meta, text.replace("agent-host-1", "agent-host-0")).unwrap();
    assert_eq!(TranscriptIndex::open(dir.path()).unwrap().indexed("c").unwrap(), 0);
}
