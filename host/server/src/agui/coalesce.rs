//! Fewer, larger deltas: models say a few letters at a time, and clients pay for each event by the length of the thread.

use std::{collections::VecDeque, pin::Pin, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use tokio::time::{self, Instant};

use super::{
    cursor::StampedEvent,
    event::{Event, Kind},
};

/// A delta of this length is sent without waiting: what waits for more is short.
const ENOUGH_BYTES: usize = 256;

/// Joins adjacent deltas of the same text, reasoning or arguments. The first delta is sent at once, later ones after at
/// most `window` or when they are long enough. Any other event is sent at once after the held deltas, so the order stays. A
/// joined event has the position and the time of its last part. A window of zero joins nothing.
pub(crate) fn coalesce(
    events: impl Stream<Item = StampedEvent> + Send + 'static,
    window: Duration,
) -> impl Stream<Item = StampedEvent> + Send + 'static {
    let joiner = Joiner { events: Box::pin(events), window, waiting: None, sent: None, ready: VecDeque::new(), ended: false };
    stream::unfold(joiner, |mut joiner| async move { joiner.next().await.map(|event| (event, joiner)) })
}

struct Joiner {
    events: Pin<Box<dyn Stream<Item = StampedEvent> + Send>>,
    window: Duration,
    waiting: Option<WaitingDelta>,
    /// The last delta that was sent, and when: what follows it may wait.
    sent: Option<(Source, Instant)>,
    ready: VecDeque<StampedEvent>,
    ended: bool,
}

/// A delta that waits for more, until then.
struct WaitingDelta {
    stamped: StampedEvent,
    until: Instant,
}

/// The source of deltas: only those of one source are joined.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    kind: &'static str,
    id: String,
    subagent: Option<String>,
}

impl Joiner {
    async fn next(&mut self) -> Option<StampedEvent> {
        loop {
            if let Some(stamped) = self.ready.pop_front() {
                return Some(stamped);
            }
            if self.ended {
                return None;
            }
            let next = match &self.waiting {
                None => self.events.next().await,
                Some(waiting) => match time::timeout_at(waiting.until, self.events.next()).await {
                    Ok(next) => next,
                    Err(_) => {
                        self.release();
                        continue;
                    }
                },
            };
            match next {
                Some(stamped) => self.take(stamped),
                None => {
                    self.release();
                    self.ended = true;
                }
            }
        }
    }

    fn take(&mut self, stamped: StampedEvent) {
        let Some(waiting) = &mut self.waiting else { return self.begin(stamped) };
        match join(&mut waiting.stamped, &stamped) {
            // A stream that is always ready gives the clock no turn.
            Some(length) if length >= ENOUGH_BYTES || waiting.until <= Instant::now() => self.release(),
            Some(_) => {}
            None => {
                self.release();
                self.begin(stamped);
            }
        }
    }

    /// Takes an event when nothing is held.
    fn begin(&mut self, stamped: StampedEvent) {
        let of = delta(&stamped.event).map(|(of, _)| of);
        let until = match (&of, &self.sent) {
            (Some(of), Some((before, at))) if of == before => Some(*at + self.window),
            _ => None,
        };
        let is_short = delta(&stamped.event).is_some_and(|(_, length)| length < ENOUGH_BYTES);
        match until {
            Some(until) if is_short && until > Instant::now() => self.waiting = Some(WaitingDelta { stamped, until }),
            _ => {
                self.sent = of.map(|of| (of, Instant::now()));
                self.ready.push_back(stamped);
            }
        }
    }

    fn release(&mut self) {
        if let Some(WaitingDelta { stamped, .. }) = self.waiting.take() {
            self.sent = delta(&stamped.event).map(|(of, _)| (of, Instant::now()));
            self.ready.push_back(stamped);
        }
    }
}

/// The source of a delta, and its length.
fn delta(event: &Event) -> Option<(Source, usize)> {
    let (id, delta) = parts(&event.kind)?;
    let of = Source { kind: event.kind.name(), id: id.to_owned(), subagent: event.subagent.clone() };
    Some((of, delta.len()))
}

const fn parts(kind: &Kind) -> Option<(&String, &String)> {
    match kind {
        Kind::TextMessageContent { message_id: id, delta }
        | Kind::ReasoningMessageContent { message_id: id, delta }
        | Kind::ToolCallArgs { tool_call_id: id, delta } => Some((id, delta)),
        _ => None,
    }
}

/// Adds the delta to the one before it and says how long it is now, where they belong together.
fn join(before: &mut StampedEvent, after: &StampedEvent) -> Option<usize> {
    // Metadata of a part would become metadata of the whole.
    let alike = before.event.subagent == after.event.subagent && before.event.metadata == after.event.metadata;
    let length = match (&mut before.event.kind, &after.event.kind) {
        (Kind::TextMessageContent { message_id: id, delta }, Kind::TextMessageContent { message_id: other, delta: more })
        | (
            Kind::ReasoningMessageContent { message_id: id, delta },
            Kind::ReasoningMessageContent { message_id: other, delta: more },
        )
        | (Kind::ToolCallArgs { tool_call_id: id, delta }, Kind::ToolCallArgs { tool_call_id: other, delta: more })
            if alike && id == other =>
        {
            delta.push_str(more);
            delta.len()
        }
        _ => return None,
    };
    before.at = after.at.clone();
    before.event.timestamp = after.event.timestamp.or(before.event.timestamp);
    Some(length)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;
    use tokio::sync::mpsc;

    use super::*;
    use crate::agui::{
        cursor::Cursor,
        fold::View,
        sample::{event, events},
    };

    const WINDOW: Duration = Duration::from_millis(25);

    fn stamped(event: Event, sequence: u64) -> StampedEvent {
        StampedEvent { event, at: Cursor { sequence, part: 0 }.into() }
    }

    /// A stream that is fed by hand.
    fn fed() -> (mpsc::UnboundedSender<StampedEvent>, Pin<Box<dyn Stream<Item = StampedEvent> + Send>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let events = stream::unfold(receiver, |mut receiver| async move { receiver.recv().await.map(|event| (event, receiver)) });
        (sender, Box::pin(coalesce(events, WINDOW)))
    }

    fn delta_of(stamped: &StampedEvent) -> &str {
        parts(&stamped.event.kind).map_or("", |(_, delta)| delta)
    }

    async fn wait(milliseconds: u64) {
        time::sleep(Duration::from_millis(milliseconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_delta_is_sent_at_once_and_those_after_it_when_the_window_is_over() {
        let (sender, mut out) = fed();
        for (at, word) in ["t[a", "t.a", "t.a", "t.a"].into_iter().enumerate() {
            sender.send(stamped(event(word), at as u64)).unwrap();
        }
        assert_eq!(out.next().now_or_never().flatten().unwrap().event, event("t[a"));
        assert_eq!(delta_of(&out.next().now_or_never().flatten().unwrap()), "(a)");
        assert!(out.next().now_or_never().is_none());
        wait(24).await;
        assert!(out.next().now_or_never().is_none());
        wait(2).await;
        let joined = out.next().now_or_never().flatten().unwrap();
        assert_eq!((delta_of(&joined), joined.at.cursor), ("(a)(a)", Cursor { sequence: 3, part: 0 }));
        // Another window begins there.
        sender.send(stamped(event("t.a"), 4)).unwrap();
        assert!(out.next().now_or_never().is_none());
        // After a longer silence, an event is sent at once.
        wait(30).await;
        assert_eq!(out.next().await.unwrap().at.cursor.sequence, 4);
        wait(30).await;
        sender.send(stamped(event("t.a"), 5)).unwrap();
        assert_eq!(out.next().now_or_never().flatten().unwrap().at.cursor.sequence, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn held_deltas_are_sent_before_other_events_and_at_the_end() {
        for (words, expected) in [
            ("t.a t.a t]a", vec!["(a)", "(a)", ""]),
            ("t.a t.a t.a", vec!["(a)", "(a)(a)"]),
            ("t.a t.b t.b t.a", vec!["(a)", "(b)", "(b)", "(a)"]),
            ("t.a t.a m.a m.a m.a c.a", vec!["(a)", "(a)", "(a)", "(a)(a)", "(a)"]),
            ("t.a t.a t.a@g t.a@g t.a@g", vec!["(a)", "(a)", "(a)", "(a)(a)"]),
            ("t.a t.a set t.a", vec!["(a)", "(a)", "", "(a)"]),
        ] {
            let (sender, out) = fed();
            for (at, event) in events(words).into_iter().enumerate() {
                sender.send(stamped(event, at as u64)).unwrap();
            }
            drop(sender);
            let out: Vec<_> = out.collect().await;
            assert_eq!(out.iter().map(delta_of).collect::<Vec<_>>(), expected, "{words}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_delta_does_not_wait() {
        let (sender, mut out) = fed();
        let long = |length| Event::from(Kind::TextMessageContent { message_id: "a".into(), delta: "x".repeat(length) });
        for (at, length) in [1, 100, 100, 56, 255, 256].into_iter().enumerate() {
            sender.send(stamped(long(length), at as u64)).unwrap();
        }
        let mut lengths = Vec::new();
        while let Some(Some(stamped)) = out.next().now_or_never() {
            lengths.push(delta_of(&stamped).len());
        }
        assert_eq!(lengths, [1, 256, 511]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_of_zero_joins_nothing_and_other_metadata_does_not_join() {
        let list: Vec<_> = (0..).zip(events("t.a t.a t.a")).map(|(at, event)| stamped(event, at)).collect();
        let out: Vec<_> = coalesce(stream::iter(list.clone()), Duration::ZERO).collect().await;
        assert_eq!(out, list);

        let mut list = list;
        list[2].event.metadata.insert("key".into(), 1.into());
        let out: Vec<_> = coalesce(stream::iter(list.clone()), WINDOW).collect().await;
        assert_eq!(out, list);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// For all splits, the view is the same, no position occurs twice, and the last position is the last.
        #[test]
        fn joining_loses_no_text(words in prop::collection::vec(prop::sample::select(vec![
            "t[a", "t.a", "t.a", "t]a", "t[b", "t.b", "c[c", "c.c", "c.c", "m[d", "m.d", "m.d", "set", "add",
        ]), 0..60), pauses in prop::collection::vec(0..20_u64, 60)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let list: Vec<_> = (1..).zip(&words).map(|(at, word)| stamped(event(word), at)).collect();
                let paced = stream::iter(list.clone().into_iter().zip(pauses)).then(|(stamped, pause)| async move {
                    wait(pause).await;
                    stamped
                });
                let out: Vec<_> = coalesce(paced, WINDOW).collect().await;
                let view = |list: &[StampedEvent]| View::of(list.iter().map(|stamped| &stamped.event));
                prop_assert_eq!(view(&out), view(&list));
                prop_assert!(out.is_sorted_by(|one, next| one.at.cursor < next.at.cursor));
                prop_assert_eq!(out.last().map(|stamped| &stamped.at), list.last().map(|stamped| &stamped.at));
                Ok(())
            })?;
        }
    }
}
