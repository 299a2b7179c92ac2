//! The run that is measured: a short message, each in a conversation of its own.

/// Three words make three deltas; the runner adds its count of turns, the whole message and a state value. With the
/// end that is seven events.
pub(crate) const TEXT: &str = "Hello, agent host!";

/// A conversation that no other run of this process has.
pub(crate) fn conversation(worker: usize, turn: usize) -> String {
    format!("bench-{}-{worker}-{turn}", std::process::id())
}
