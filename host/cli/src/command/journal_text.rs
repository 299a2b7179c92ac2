//! Host calls as people read them, and what came of executing them again.

use agent_host_runs::{CallOutcome, JournaledCall, ReplayEnd, ReplayReport};
use serde_json::Value;

use crate::text;

/// Of a request, and of an answer, so much is shown in a timeline.
const GIST: usize = 72;
/// Lines and characters of a value that is shown as a whole.
const MAX_LINES: usize = 40;
const MAX_LINE: usize = 160;

/// Every call on a line of its own.
pub(crate) fn timeline(calls: &[JournaledCall]) -> String {
    calls.iter().map(|call| line(call, ' ')).collect()
}

/// The recorded calls that were executed again, and where that came to its end.
pub(crate) fn trace(calls: &[JournaledCall], report: &ReplayReport) -> String {
    let same = |call: &&JournaledCall| call.call <= report.calls;
    let mut output: String = calls.iter().take_while(same).map(|call| line(call, ' ')).collect();
    match &report.ending {
        ReplayEnd::Diverged { call, now, .. } => {
            let of_it = calls.iter().filter(|line| line.call == *call);
            output.extend(of_it.map(|call| line(call, '>')));
            output.push_str(&instead(now));
        }
        ReplayEnd::Longer { now } => output.push_str(&instead(now)),
        ReplayEnd::Same { .. } | ReplayEnd::Until | ReplayEnd::Recorded | ReplayEnd::Otherwise { .. } => {}
    }
    output
}

/// Mark, time since the start, number, function, request, outcome. The parts of a call are below it.
fn line(call: &JournaledCall, mark: char) -> String {
    let at = format!("{}.{:04} s", call.at_us / 1_000_000, call.at_us % 1_000_000 / 100);
    let number = if call.part == 0 { call.call.to_string() } else { format!("{}.{}", call.call, call.part) };
    let indent = if call.part == 0 { "" } else { "  " };
    let request_gist = call.request.as_ref().map(|request| text::one_line(&request.to_string(), GIST)).unwrap_or_default();
    let line = format!("{mark} {at:>11}  {number:>5}  {indent}{:<24}  {request_gist}", call.function);
    format!("{}  -> {}\n", line.trim_end(), text::one_line(&outcome(call), GIST))
}

/// A call that was not recorded, under those that were.
fn instead(now: &Value) -> String {
    let request = Some(&now["request"]).filter(|request| !request.is_null());
    let request_gist = request.map(|request| text::one_line(&request.to_string(), GIST)).unwrap_or_default();
    format!("> {:>11}  {:>5}  {:<24}  {request_gist}", "now", "", function(now)).trim_end().to_owned() + "\n"
}

fn outcome(call: &JournaledCall) -> String {
    match &call.outcome {
        CallOutcome::Answer(Value::Null) => "done".to_owned(),
        CallOutcome::Answer(sequence) if call.function == "results.emit" => format!("up to event {sequence}"),
        CallOutcome::Answer(answer) => answer.to_string(),
        CallOutcome::LongAnswer(sha256) => format!("a long answer, sha256 {sha256}"),
        CallOutcome::Refused(error) => match (error["code"].as_str(), error["message"].as_str()) {
            (Some(code), Some(message)) => format!("refused: {code}: {message}"),
            _ => format!("refused: {error}"),
        },
        CallOutcome::Unknown => "no answer is recorded".to_owned(),
    }
}

/// The verdict on one line.
pub(crate) fn verdict(report: &ReplayReport) -> String {
    let calls = count(report.calls);
    match &report.ending {
        ReplayEnd::Same { end } => format!("the same: {calls}, then {}", kind(end)),
        ReplayEnd::Until => format!("the same as far as it was executed: {calls}"),
        ReplayEnd::Recorded => format!("the same as far as it is recorded: {calls}; the run did not end by itself"),
        ReplayEnd::Diverged { call, recorded, now, .. } if function(recorded) == function(now) => {
            format!("different at call {call}: another request of {}", function(now))
        }
        ReplayEnd::Diverged { call, recorded, now, .. } => {
            format!("different at call {call}: {} instead of {}", function(now), function(recorded))
        }
        ReplayEnd::Longer { now } => format!("different: {} after {calls}, where the recorded run ended", function(now)),
        ReplayEnd::Otherwise { recorded, now } if kind(recorded) == kind(now) => {
            format!("different at the end: another {} after {calls}", kind(now))
        }
        ReplayEnd::Otherwise { recorded, now } => {
            format!("different at the end: {} instead of {} after {calls}", kind(now), kind(recorded))
        }
    }
}

/// The verdict, and both sides where they differ.
pub(crate) fn report(report: &ReplayReport) -> String {
    let mut output = format!("{}\n", verdict(report));
    match &report.ending {
        ReplayEnd::Diverged { recorded, now, difference, .. } => {
            let difference_text = difference.as_ref().and_then(|difference_text| {
                Some((difference_text["at"].as_str()?, &difference_text["recorded"], &difference_text["now"]))
            });
            let found = match difference_text {
                Some((at, recorded, now)) => Some((at.to_owned(), Some(recorded), Some(now))),
                None if comparable(recorded, now) => first_difference(&recorded["request"], &now["request"]),
                None => None,
            };
            output.push_str(&sides(&call(recorded), &call(now), found));
        }
        ReplayEnd::Longer { now } => side(&mut output, "now", &call(now)),
        ReplayEnd::Otherwise { recorded, now } => {
            let difference = first_difference(recorded, now).filter(|_| recorded["type"] == now["type"]);
            output.push_str(&sides(&whole(recorded), &whole(now), difference));
        }
        ReplayEnd::Same { .. } | ReplayEnd::Until | ReplayEnd::Recorded => {}
    }
    output
}

/// True if a place within the requests is meaningful: requests of two functions cannot be compared, nor can results in the
/// form of the contract and of events.
fn comparable(recorded: &Value, now: &Value) -> bool {
    let is_events =
        |side: &Value| side["request"].as_array().is_some_and(|items| items.iter().all(|item| item["type"].is_string()));
    function(recorded) == function(now) && is_events(recorded) == is_events(now)
}

type Difference<'a> = Option<(String, Option<&'a Value>, Option<&'a Value>)>;

fn sides(recorded: &str, now: &str, difference: Difference<'_>) -> String {
    let mut output = String::new();
    side(&mut output, "recorded", recorded);
    side(&mut output, "now", now);
    if let Some((at, recorded, now)) = difference.filter(|(at, ..)| !at.is_empty()) {
        let value = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), whole);
        output.push_str(&format!("they differ first at {at}\n"));
        side(&mut output, "recorded", &value(recorded));
        side(&mut output, "now", &value(now));
    }
    output
}

/// A text under its name: beside it where it is one line.
fn side(output: &mut String, name: &str, text: &str) {
    if text.contains('\n') {
        output.push_str(&format!("  {name}\n"));
        output.extend(text.lines().map(|line| format!("    {line}\n")));
    } else {
        output.push_str(&format!("  {name:<8}  {text}\n"));
    }
}

/// A function and its request.
fn call(side: &Value) -> String {
    match &side["request"] {
        Value::Null => function(side).to_owned(),
        request => format!("{} {}", function(side), whole(request)),
    }
}

/// A value as a whole, as far as it fits.
fn whole(value: &Value) -> String {
    let pretty = serde_json::to_string_pretty(value).unwrap_or_default();
    let mut lines: Vec<_> = pretty.lines().take(MAX_LINES).map(|line| text::one_line(line, MAX_LINE)).collect();
    let more = pretty.lines().count().saturating_sub(lines.len());
    if more > 0 {
        lines.push(format!("… {more} more lines"));
    }
    lines.join("\n")
}

fn function(side: &Value) -> &str {
    side["function"].as_str().unwrap_or("another call")
}

fn kind(end: &Value) -> String {
    let kind = end["type"].as_str().unwrap_or("another end");
    match end.pointer("/data/code").and_then(Value::as_str) {
        Some(code) => format!("{kind} ({code})"),
        None => kind.to_owned(),
    }
}

fn count(calls: u64) -> String {
    if calls == 1 { "1 call".to_owned() } else { format!("{calls} calls") }
}

/// The first difference of two values: a JSON pointer (RFC 6901), and the value on each side.
fn first_difference<'a>(recorded: &'a Value, now: &'a Value) -> Difference<'a> {
    let (mut at, mut recorded, mut now) = (String::new(), Some(recorded), Some(now));
    if recorded == now {
        return None;
    }
    loop {
        let step = match (recorded, now) {
            (Some(Value::Object(one)), Some(Value::Object(other))) => {
                let mut keys = one.keys().chain(other.keys());
                let key = keys.find(|key| one.get(*key) != other.get(*key));
                key.map(|key| (key.replace('~', "~0").replace('/', "~1"), one.get(key), other.get(key)))
            }
            (Some(Value::Array(one)), Some(Value::Array(other))) => {
                let place = (0..one.len().max(other.len())).find(|place| one.get(*place) != other.get(*place));
                place.map(|place| (place.to_string(), one.get(place), other.get(place)))
            }
            _ => None,
        };
        let Some((name, one, other)) = step else { return Some((at, recorded, now)) };
        at = format!("{at}/{name}");
        (recorded, now) = (one, other);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn calls() -> Vec<JournaledCall> {
        serde_json::from_value(json!([
            { "call": 1, "function": "state.get", "at_us": 412, "request": { "scope": "conversation", "key": "turns" }, "outcome": { "answer": null } },
            { "call": 2, "function": "tools.call-many", "at_us": 1_250_412, "request": [{ "tool_name": "a" }, { "tool_name": "b" }], "outcome": { "long_answer": "ab12" } },
            { "call": 2, "part": 1, "function": "tools.call", "at_us": 600_000, "request": { "tool_name": "a" }, "outcome": { "answer": ["x"] } },
            { "call": 2, "part": 2, "function": "tools.call", "at_us": 700_000, "request": { "tool_name": "b" }, "outcome": { "refused": { "code": "denied", "message": "not for you" } } },
            { "call": 3, "function": "results.emit", "at_us": 1_300_000, "outcome": { "answer": 7 } },
            { "call": 4, "function": "models.invoke", "at_us": 1_400_000, "request": { "messages": ["long ".repeat(40)] }, "outcome": "unknown" },
        ]))
        .unwrap()
    }

    fn diverged() -> ReplayReport {
        let emitted = |text: &str| json!([{ "type": "message.delta", "data": { "chunk": { "content": text } } }]);
        let ending = ReplayEnd::Diverged {
            call: 3,
            recorded: json!({ "function": "results.emit", "request": emitted("hello") }),
            now: json!({ "function": "results.emit", "request": emitted("good bye") }),
            difference: None,
        };
        ReplayReport { calls: 2, ending }
    }

    #[test]
    fn a_timeline_has_a_line_for_each_call() {
        insta::assert_snapshot!(timeline(&calls()), @r#"
        0.0004 s      1  state.get                 {"key":"turns","scope":"conversation"}  -> done
        1.2504 s      2  tools.call-many           [{"tool_name":"a"},{"tool_name":"b"}]  -> a long answer, sha256 ab12
        0.6000 s    2.1    tools.call                {"tool_name":"a"}  -> ["x"]
        0.7000 s    2.2    tools.call                {"tool_name":"b"}  -> refused: denied: not for you
        1.3000 s      3  results.emit  -> up to event 7
        1.4000 s      4  models.invoke             {"messages":["long long long long long long long long long long long lon…  -> no answer is recorded
        "#);
    }

    #[test]
    fn a_trace_ends_where_the_two_part() {
        insta::assert_snapshot!(trace(&calls(), &diverged()), @r#"
             0.0004 s      1  state.get                 {"key":"turns","scope":"conversation"}  -> done
             1.2504 s      2  tools.call-many           [{"tool_name":"a"},{"tool_name":"b"}]  -> a long answer, sha256 ab12
             0.6000 s    2.1    tools.call                {"tool_name":"a"}  -> ["x"]
             0.7000 s    2.2    tools.call                {"tool_name":"b"}  -> refused: denied: not for you
        >    1.3000 s      3  results.emit  -> up to event 7
        >         now         results.emit              [{"data":{"chunk":{"content":"good bye"}},"type":"message.delta"}]
        "#);
    }

    #[test]
    fn a_report_shows_both_sides_and_where_they_differ() {
        insta::assert_snapshot!(report(&diverged()), @r#"
        different at call 3: another request of results.emit
          recorded
            results.emit [
              {
                "data": {
                  "chunk": {
                    "content": "hello"
                  }
                },
                "type": "message.delta"
              }
            ]
          now
            results.emit [
              {
                "data": {
                  "chunk": {
                    "content": "good bye"
                  }
                },
                "type": "message.delta"
              }
            ]
        they differ first at /0/data/chunk/content
          recorded  "hello"
          now       "good bye"
        "#);
        let difference_text = ReplayEnd::Diverged {
            call: 1,
            recorded: json!({ "function": "state.get", "request": { "key": "a" } }),
            now: json!({ "function": "state.get", "request": { "key": "b" } }),
            difference: Some(json!({ "at": "/key", "recorded": "a", "now": "b" })),
        };
        insta::assert_snapshot!(report(&ReplayReport { calls: 0, ending: difference_text }), @r#"
        different at call 1: another request of state.get
          recorded
            state.get {
              "key": "a"
            }
          now
            state.get {
              "key": "b"
            }
        they differ first at /key
          recorded  "a"
          now       "b"
        "#);
    }

    #[test]
    fn incomparable_requests_have_no_difference() {
        let other = ReplayEnd::Diverged {
            call: 1,
            recorded: json!({ "function": "state.get", "request": { "key": "a" } }),
            now: json!({ "function": "timers.now", "request": null }),
            difference: None,
        };
        insta::assert_snapshot!(report(&ReplayReport { calls: 0, ending: other }), @r#"
        different at call 1: timers.now instead of state.get
          recorded
            state.get {
              "key": "a"
            }
          now       timers.now
        "#);
        let other = ReplayEnd::Diverged {
            call: 1,
            recorded: json!({ "function": "results.emit", "request": [{ "type": "x.y", "data": 1 }] }),
            now: json!({ "function": "results.emit", "request": [{ "Other": { "type": "x.y", "data": "2" } }] }),
            difference: None,
        };
        let output = report(&ReplayReport { calls: 0, ending: other });
        assert!(output.contains("Other") && !output.contains("they differ first"), "{output}");
    }

    #[test]
    fn an_end_that_differs_shows_both() {
        let otherwise = ReplayEnd::Otherwise {
            recorded: json!({ "type": "run.completed", "data": { "finish_reason": "stop" } }),
            now: json!({ "type": "run.failed", "data": { "code": "runner.trapped", "message": "unreachable" } }),
        };
        insta::assert_snapshot!(report(&ReplayReport { calls: 1, ending: otherwise }), @r#"
        different at the end: run.failed (runner.trapped) instead of run.completed after 1 call
          recorded
            {
              "data": {
                "finish_reason": "stop"
              },
              "type": "run.completed"
            }
          now
            {
              "data": {
                "code": "runner.trapped",
                "message": "unreachable"
              },
              "type": "run.failed"
            }
        "#);
        let longer = ReplayEnd::Longer { now: json!({ "function": "state.set", "request": ["runner", "a", "1"] }) };
        insta::assert_snapshot!(report(&ReplayReport { calls: 2, ending: longer }), @r#"
        different: state.set after 2 calls, where the recorded run ended
          now
            state.set [
              "runner",
              "a",
              "1"
            ]
        "#);
    }

    #[test]
    fn verdicts_of_what_is_the_same() {
        let verdict = |calls, ending| verdict(&ReplayReport { calls, ending });
        assert_eq!(
            verdict(3, ReplayEnd::Same { end: json!({ "type": "run.completed" }) }),
            "the same: 3 calls, then run.completed"
        );
        assert_eq!(verdict(1, ReplayEnd::Until), "the same as far as it was executed: 1 call");
        assert!(verdict(0, ReplayEnd::Recorded).contains("did not end by itself"));
        let now = json!({ "function": "state.set", "request": null });
        assert_eq!(verdict(2, ReplayEnd::Longer { now }), "different: state.set after 2 calls, where the recorded run ended");
    }

    #[test]
    fn long_texts_are_cut() {
        let output = whole(&json!((0..500).collect::<Vec<_>>()));
        assert_eq!(output.lines().count(), MAX_LINES + 1);
        assert!(output.ends_with("… 462 more lines"), "{output}");
        assert!(whole(&json!("x".repeat(10_000))).chars().count() <= MAX_LINE + 1);
    }

    #[test]
    fn differences_are_found_where_they_are() {
        let at = |one: Value, other: Value| first_difference(&one, &other).map(|(at, ..)| at);
        assert_eq!(at(json!({ "a/b": [1, { "c~": 2 }] }), json!({ "a/b": [1, { "c~": 3 }] })).as_deref(), Some("/a~1b/1/c~0"));
        assert_eq!(at(json!([1]), json!([1, 2])).as_deref(), Some("/1"));
        assert_eq!(at(json!({ "a": 1 }), json!({ "b": 1 })).as_deref(), Some("/a"));
        assert_eq!(at(json!(1), json!(2)).as_deref(), Some(""));
        assert_eq!(at(json!({ "a": 1 }), json!({ "a": 1 })), None);
    }
}
