//! Writer for one streamed message: deltas during writing, the whole message at the end.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use crate::contract::{Message, RunResult};
use crate::error::ApiError;
use crate::limits::{DELTA_BYTES, FLUSH_BYTES, MESSAGE_BYTES, STREAM_BYTES, json_len, split_at_json_len};
use crate::outcome::Completion;
use crate::results::{Batch, Host, Sink, message_completed, message_delta, reasoning_delta};

/// The messages of one run: the generator of their ids (`m1`, `m2` and so on; a resumed run generates the same ids), and those that were
/// written and not finished.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunMessages(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    last_id: Cell<u32>,
    unfinished: RefCell<Vec<UnfinishedMessage>>,
}

/// A message whose writer was dropped.
#[derive(Debug)]
struct UnfinishedMessage {
    text: String,
    /// The results that finish the message.
    results: Vec<RunResult>,
    /// Sends the results. A pointer, so that a component without messages does not import what this calls.
    send: fn(Vec<RunResult>) -> Result<(), ApiError>,
}

impl RunMessages {
    pub(crate) fn next_id(&self) -> String {
        let number = self.0.last_id.get() + 1;
        self.0.last_id.set(number);
        format!("m{number}")
    }

    /// The messages that a run with this end has written and not finished, except one that is the message of the end.
    fn take_unfinished(&self, completion: &Completion) -> impl Iterator<Item = UnfinishedMessage> {
        let last = completion.contract().message.as_ref().map(Message::text);
        self.0.unfinished.take().into_iter().filter(move |message| last.as_ref() != Some(&message.text))
    }

    /// Finishes the messages that a successful run has left, in the order in which their writers were dropped.
    pub(crate) fn finish(&self, completion: &Completion) -> Result<(), ApiError> {
        self.take_unfinished(completion).try_for_each(|message| (message.send)(message.results))
    }

    /// The texts of the messages that a successful run has left.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn unfinished_texts(&self, completion: &Completion) -> Vec<String> {
        self.take_unfinished(completion).map(|message| message.text).collect()
    }
}

/// Sends the results that finish a message, with a warning in the log of the run.
fn send_unfinished(results: Vec<RunResult>) -> Result<(), ApiError> {
    crate::log::warn!(
        "the runner wrote a message and did not finish it; the SDK has finished it: call `finish` on the `MessageWriter`"
    );
    let mut batch = Batch::new();
    for result in results {
        batch.push(result)?;
    }
    batch.flush()
}

/// Streams one message of the assistant: deltas during writing, and the whole text at the end.
///
/// - [`write`](Self::write) collects small pieces and emits a delta per few hundred bytes; [`flush`](Self::flush) emits
///   immediately. `write!(out, "{x}")?` works too.
/// - [`delta`](Self::delta) emits its text as one delta.
/// - [`finish`](Self::finish) emits the rest and `message.completed` in one host call. A message without `finish` is finished at the
///   end of a run that completes, with a warning in the log, and fails a test with [`testing`](crate::testing). If the run fails, the
///   message stays as it is, and text that was not flushed is not sent.
/// - [`abandon`](Self::abandon) leaves the message as it is.
///
/// A text longer than [`MESSAGE_BYTES`] becomes several complete messages. A message without text is not sent.
///
/// ```
/// use agent_host_sdk::{Completion, Context, Failure};
///
/// fn run(ctx: Context) -> Result<Completion, Failure> {
///     let mut out = ctx.message();
///     for word in ctx.text().split_whitespace() {
///         write!(out, "{word} ")?;
///     }
///     out.finish()?;
///     Ok(Completion::stop())
/// }
/// ```
#[must_use = "a message is complete only after `finish`"]
#[derive(Debug)]
pub struct MessageWriter<S: Sink = Host> {
    batch: Batch<S>,
    messages: RunMessages,
    /// Assigned with the first delta, so that an empty message uses no id.
    id: Option<String>,
    text: String,
    /// Length of `text` as JSON, in bytes.
    bytes: usize,
    /// Start of the next delta in `text`.
    sent: usize,
    /// Reasoning that is in no delta yet.
    reasoning: String,
    /// True after the first flush.
    has_started: bool,
    /// True after [`MessageWriter::finish`] and [`MessageWriter::abandon`].
    has_ended: bool,
}

impl MessageWriter {
    pub(crate) fn new(messages: RunMessages) -> Self {
        Self::with_sink(Host, messages)
    }
}

impl<S: Sink> MessageWriter<S> {
    fn with_sink(sink: S, messages: RunMessages) -> Self {
        Self {
            batch: Batch::with_sink(sink),
            messages,
            id: None,
            text: String::new(),
            bytes: 0,
            sent: 0,
            reasoning: String::new(),
            has_started: false,
            has_ended: false,
        }
    }

    /// Adds reasoning: shown beside the message, not part of its text. Collected and emitted like [`write`](Self::write).
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn reasoning(&mut self, text: &str) -> Result<(), ApiError> {
        self.cut_text()?;
        self.reasoning.push_str(text);
        if self.reasoning.len() >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Returns the whole text of the message so far, including emitted text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Adds text, and emits a delta when enough text is collected.
    ///
    /// # Errors
    /// Fails with the error of the host. Refused text is still part of the completed message.
    pub fn write(&mut self, text: &str) -> Result<(), ApiError> {
        self.append(text)?;
        if self.text.len() - self.sent >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Adds formatted text. `write!` calls this method, so that the macro returns the error of the host and needs no
    /// trait in scope.
    ///
    /// # Errors
    /// Like [`MessageWriter::write`].
    pub fn write_fmt(&mut self, arguments: fmt::Arguments<'_>) -> Result<(), ApiError> {
        match arguments.as_str() {
            Some(text) => self.write(text),
            None => self.write(&fmt::format(arguments)),
        }
    }

    /// Adds text as one delta. A host call sends up to 64 deltas, or fewer at [`flush`](Self::flush) or
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// Like [`MessageWriter::write`].
    pub fn delta(&mut self, text: &str) -> Result<(), ApiError> {
        self.cut()?;
        self.append(text)?;
        self.cut()
    }

    /// Adds a result of another kind after the text so far. The result is sent together with the text.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn push(&mut self, result: RunResult) -> Result<(), ApiError> {
        self.cut()?;
        self.batch.push(result)
    }

    /// Emits the collected text if it is the first of the message or has a few words. For use before a wait for more
    /// text.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn flush_words(&mut self) -> Result<(), ApiError> {
        let waiting = self.text.len() - self.sent + self.reasoning.len();
        if waiting >= STREAM_BYTES || (waiting > 0 && !self.has_started) { self.flush() } else { Ok(()) }
    }

    /// Emits all collected text.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn flush(&mut self) -> Result<(), ApiError> {
        self.has_started = true;
        self.cut()?;
        self.batch.flush()
    }

    /// Emits the rest and the completed message.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn finish(mut self) -> Result<(), ApiError> {
        self.close()
    }

    /// Leaves the message as it is: it is not completed, and text that was not flushed is not sent.
    pub fn abandon(mut self) {
        self.has_ended = true;
    }

    fn close(&mut self) -> Result<(), ApiError> {
        self.has_ended = true;
        self.complete()?;
        self.batch.flush()
    }

    /// Appends `text` to the message, and to further messages if this message is full.
    fn append(&mut self, text: &str) -> Result<(), ApiError> {
        self.cut_reasoning()?;
        let mut rest = text;
        while !rest.is_empty() {
            let (head, tail) = split_at_json_len(rest, MESSAGE_BYTES - self.bytes);
            self.text.push_str(head);
            self.bytes += json_len(head);
            rest = tail;
            if !rest.is_empty() {
                self.complete()?;
            }
        }
        Ok(())
    }

    /// Moves the collected text and reasoning into deltas. At most one of the two is non-empty.
    fn cut(&mut self) -> Result<(), ApiError> {
        self.cut_text()?;
        self.cut_reasoning()
    }

    fn cut_reasoning(&mut self) -> Result<(), ApiError> {
        if self.reasoning.is_empty() {
            return Ok(());
        }
        let reasoning = std::mem::take(&mut self.reasoning);
        let mut rest = reasoning.as_str();
        while !rest.is_empty() {
            let (head, tail) = split_at_json_len(rest, DELTA_BYTES);
            let id = self.id.get_or_insert_with(|| self.messages.next_id());
            self.batch.push(reasoning_delta(id.as_str(), head))?;
            rest = tail;
        }
        Ok(())
    }

    fn cut_text(&mut self) -> Result<(), ApiError> {
        let mut rest = self.text.get(self.sent..).unwrap_or_default();
        self.sent = self.text.len();
        while !rest.is_empty() {
            let (head, tail) = split_at_json_len(rest, DELTA_BYTES);
            let id = self.id.get_or_insert_with(|| self.messages.next_id());
            self.batch.push(message_delta(id.as_str(), head))?;
            rest = tail;
        }
        Ok(())
    }

    /// Completes the message in the batch; later text starts another message.
    fn complete(&mut self) -> Result<(), ApiError> {
        self.cut()?;
        self.bytes = 0;
        self.sent = 0;
        match self.id.take() {
            // A message with reasoning and no text is not completed.
            Some(id) if !self.text.is_empty() => {
                let message = Message::assistant(std::mem::take(&mut self.text));
                self.batch.push(message_completed(id, message))
            }
            _ => Ok(()),
        }
    }
}

/// Leaves what a message lacks to the end of the run: whether it completes is not known before.
impl<S: Sink> Drop for MessageWriter<S> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let text = self.text.clone();
        let mut results = self.batch.take();
        // The batch is empty, and has room for the rest of one message: nothing is sent, so nothing fails.
        let _ = self.complete();
        results.extend(self.batch.take());
        if !results.is_empty() {
            self.messages.0.unfinished.borrow_mut().push(UnfinishedMessage { text, results, send: send_unfinished });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ContentPart;
    use crate::limits::RESULT_BYTES;
    use crate::results::{other, tests::RecordingSink};

    type Writer = MessageWriter<RecordingSink>;

    fn writer() -> Writer {
        Writer::with_sink(RecordingSink::default(), RunMessages::default())
    }

    fn end(mut writer: Writer) -> Vec<Vec<RunResult>> {
        writer.close().unwrap();
        writer.batch.sink().batches.clone()
    }

    /// Id and text of a message.
    type MessageText = (String, String);

    /// Returns the joined deltas and the completed messages.
    fn messages(batches: &[Vec<RunResult>]) -> (Vec<MessageText>, Vec<MessageText>) {
        let mut deltas: Vec<MessageText> = Vec::new();
        let mut completed = Vec::new();
        for result in batches.iter().flatten() {
            match result {
                RunResult::MessageDelta(chunk) => match deltas.last_mut() {
                    Some((id, text)) if *id == chunk.message_id => text.push_str(&chunk.text),
                    _ => deltas.push((chunk.message_id.clone(), chunk.text.clone())),
                },
                RunResult::MessageCompleted(completion) => {
                    let [ContentPart::Text(text)] = completion.message.content.as_slice() else {
                        panic!("one text expected: {completion:?}")
                    };
                    completed.push((completion.message_id.clone(), text.clone()));
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        (deltas, completed)
    }

    #[test]
    fn a_short_message_is_one_host_call() {
        let mut out = writer();
        out.write("hello ").unwrap();
        let whom = "world";
        write!(out, "{whom}").unwrap();
        let batches = end(out);
        assert_eq!(batches, [[message_delta("m1", "hello world"), message_completed("m1", Message::assistant("hello world")),]]);
    }

    #[test]
    fn small_writes_are_collected() {
        let mut out = writer();
        for _ in 0..1000 {
            out.write("token ").unwrap();
        }
        let batches = end(out);
        assert_eq!(batches.len(), 6000 / FLUSH_BYTES + 1);
        let (deltas, completed) = messages(&batches);
        assert_eq!(deltas, completed);
        assert_eq!(completed, [("m1".to_owned(), "token ".repeat(1000))]);
    }

    #[test]
    fn every_delta_stays_apart_and_they_travel_together() {
        let mut out = writer();
        out.write("so: ").unwrap();
        for word in ["a ", "b ", "c"] {
            out.delta(word).unwrap();
        }
        let batches = end(out);
        assert_eq!(
            batches,
            [[
                message_delta("m1", "so: "),
                message_delta("m1", "a "),
                message_delta("m1", "b "),
                message_delta("m1", "c"),
                message_completed("m1", Message::assistant("so: a b c")),
            ]]
        );
    }

    #[test]
    fn another_result_keeps_its_place() {
        let mut out = writer();
        out.write("before").unwrap();
        out.push(other("x.note", 1)).unwrap();
        out.write("after").unwrap();
        let batches = end(out);
        assert_eq!(
            batches,
            [[
                message_delta("m1", "before"),
                other("x.note", 1),
                message_delta("m1", "after"),
                message_completed("m1", Message::assistant("beforeafter")),
            ]]
        );
    }

    #[test]
    fn a_long_text_becomes_messages_within_the_limits() {
        for piece in ["x", "é🦀\"\n", "\u{1}", "\u{1}x"] {
            let text = piece.repeat(150_000 / piece.len());
            let mut out = writer();
            out.write(&text).unwrap();
            let batches = end(out);
            for result in batches.iter().flatten() {
                match result {
                    RunResult::MessageDelta(chunk) => {
                        assert!(json_len(&chunk.text) <= DELTA_BYTES);
                    }
                    RunResult::MessageCompleted(completion) => {
                        let ContentPart::Text(text) = &completion.message.content[0] else { panic!() };
                        assert!(json_len(text) + 200 < RESULT_BYTES);
                    }
                    other => panic!("unexpected {other:?}"),
                }
            }
            let (deltas, completed) = messages(&batches);
            assert_eq!(deltas, completed);
            assert!(completed.len() > 1);
            assert_eq!(completed[1].0, "m2");
            assert_eq!(completed.into_iter().map(|(_, text)| text).collect::<String>(), text);
        }
    }

    #[test]
    fn reasoning_keeps_its_place_and_completes_nothing() {
        let mut out = writer();
        out.reasoning("hm, ").unwrap();
        out.reasoning("yes").unwrap();
        out.write("so").unwrap();
        out.reasoning("wait").unwrap();
        out.write(" it is").unwrap();
        let batches = end(out);
        assert_eq!(
            batches,
            [[
                reasoning_delta("m1", "hm, yes"),
                message_delta("m1", "so"),
                reasoning_delta("m1", "wait"),
                message_delta("m1", " it is"),
                message_completed("m1", Message::assistant("so it is")),
            ]]
        );
        let mut out = writer();
        out.reasoning("only thoughts").unwrap();
        assert_eq!(end(out), [[reasoning_delta("m1", "only thoughts")]]);
    }

    #[test]
    fn a_message_without_text_is_not_sent_and_takes_no_id() {
        let ids = RunMessages::default();
        let mut empty = Writer::with_sink(RecordingSink::default(), ids.clone());
        empty.write("").unwrap();
        empty.delta("").unwrap();
        empty.flush().unwrap();
        assert!(end(empty).is_empty());
        assert_eq!(ids.next_id(), "m1");
    }

    #[test]
    fn a_refusal_is_reported_and_the_message_goes_on() {
        let sink = RecordingSink { refuse: Some(0), ..RecordingSink::default() };
        let mut out = Writer::with_sink(sink, RunMessages::default());
        out.write("a").unwrap();
        assert!(out.flush().is_err());
        out.write("b").unwrap();
        let (deltas, completed) = messages(&end(out));
        assert_eq!(deltas, [("m1".to_owned(), "b".to_owned())]);
        assert_eq!(completed, [("m1".to_owned(), "ab".to_owned())]);
    }

    #[test]
    fn a_dropped_message_is_left_to_the_end_of_the_run() {
        let messages = RunMessages::default();
        let new = || Writer::with_sink(RecordingSink::default(), messages.clone());
        new().finish().unwrap();
        drop(new());
        let mut finished = new();
        finished.write("whole").unwrap();
        finished.finish().unwrap();
        let mut abandoned = new();
        abandoned.write("half").unwrap();
        abandoned.abandon();
        let mut flushed = new();
        flushed.write("seen ").unwrap();
        flushed.flush().unwrap();
        flushed.write("unseen").unwrap();
        drop(flushed);
        let mut thoughts = new();
        thoughts.reasoning("hm").unwrap();
        drop(thoughts);
        let mut last = new();
        last.write("the end").unwrap();
        drop(last);
        let left: Vec<_> = messages.take_unfinished(&Completion::stop().message("the end")).collect();
        let results: Vec<_> = left.into_iter().map(|message| message.results).collect();
        let completed = message_completed("m2", Message::assistant("seen unseen"));
        assert_eq!(results, [vec![message_delta("m2", "unseen"), completed], vec![reasoning_delta("m3", "hm")]]);
        assert!(messages.unfinished_texts(&Completion::stop()).is_empty());
    }
}
