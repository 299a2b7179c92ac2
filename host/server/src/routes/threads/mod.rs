//! `/api/v1/threads`: the facts of a thread, its read models, and what a front end does in it.
//!
//! `read` lists and reads, `events` has the stream, `act` starts and cancels turns and answers actions; this module finds the
//! thread that a caller means.

pub(super) mod act;
pub(super) mod events;
pub(super) mod read;

use agent_host_protocol::grant::{ConversationKey, of_end_user};
use agent_host_runs::{HostError, Thread, ThreadError, Threads};

use crate::{
    access::{ApiRequest, caller::Caller},
    app::{App, off_thread},
    http::{Problem, ProblemCode},
};

/// A thread as a caller names it.
#[derive(Debug, Clone)]
pub(super) struct ThreadName {
    workspace: String,
    session: String,
    /// The thread within the conversation; empty where it is the conversation.
    thread: String,
}

impl ThreadName {
    /// The thread with this id, in the workspace of the caller; of an end user, the one that is the end user's own.
    pub(super) fn of(caller: &Caller, id: &str, session: Option<String>) -> Result<Self, Problem> {
        let is_id = |id: &str| {
            !id.is_empty() && id.len() <= agent_host_protocol::event::MAX_FOREIGN_ID_LEN && !id.chars().any(char::is_control)
        };
        if !is_id(id) || session.as_deref().is_some_and(|session| !is_id(session)) {
            return Err(Problem::not_found("a thread has an id of 1 to 256 bytes without control characters"));
        }
        let workspace = caller.0.workspace.clone().unwrap_or_default();
        let (session, thread) = match (&caller.0.end_user, session) {
            (Some(user), _) => (id.to_owned(), of_end_user(user)),
            (None, Some(session)) if session != id => (session, id.to_owned()),
            (None, _) => (id.to_owned(), String::new()),
        };
        // The threads of end users are theirs.
        if caller.0.end_user.is_none() && thread.starts_with(&of_end_user("")) {
            return Err(Problem::not_found(ThreadError::NotFound(id.to_owned()).to_string()));
        }
        Ok(Self { workspace, session, thread })
    }

    /// The conversation, whether it has turns or not.
    fn conversation(&self) -> ConversationKey {
        ConversationKey::new(&self.workspace, &self.session, &self.thread)
    }

    fn load(&self, threads: &Threads) -> Result<Thread, ThreadError> {
        threads.find(&self.workspace, &self.session, &self.thread)
    }
}

impl ApiRequest {
    /// The thread of a path; takes `sessionId` of the query.
    fn thread(&mut self, id: &str) -> Result<ThreadName, Problem> {
        let session = self.query.text("sessionId");
        ThreadName::of(&self.caller, id, session)
    }
}

impl From<ThreadError> for Problem {
    fn from(error: ThreadError) -> Self {
        match error {
            ThreadError::NotFound(_) => Self::not_found(error.to_string()),
            ThreadError::Forgotten(_) => Self::new(ProblemCode::ThreadForgotten, error.to_string()),
            ThreadError::BehindEnd { .. } => Self::new(ProblemCode::InvalidCursor, error.to_string()),
            ThreadError::Ledger(error) => HostError::from(error).into(),
        }
    }
}

/// Reads a thread, off the threads that serve.
pub(super) async fn read<T: Send + 'static>(
    app: &App,
    name: ThreadName,
    read: impl FnOnce(&Threads, &Thread) -> Result<T, ThreadError> + Send + 'static,
) -> Result<T, Problem> {
    let threads = app.host.threads();
    off_thread(move || {
        let thread = name.load(&threads)?;
        read(&threads, &thread)
    })
    .await
}

/// The number of a fact: `N`, or `N@VERSION` of another version of the projection, whose numbers are others.
fn cursor(text: &str, field: &str) -> Result<u64, Problem> {
    let (number, version) = text.split_once('@').map_or((text, None), |(number, version)| (number, Some(version)));
    let invalid = || {
        let detail = format!("`{}` is no cursor: send the number of a fact, or 0 for the beginning", text.escape_debug());
        Problem::new(ProblemCode::InvalidCursor, detail).in_field(field)
    };
    let number = number.parse().map_err(|_| invalid())?;
    match version.map(str::parse::<u32>) {
        None => Ok(number),
        Some(Ok(version)) if version == agent_host_runs::facts::PROJECTION => Ok(number),
        Some(Ok(_)) => {
            let detail = "this host numbers facts otherwise than the one that gave the cursor: read the thread again";
            Err(Problem::new(ProblemCode::ProjectionChanged, detail).in_field(field))
        }
        Some(Err(_)) => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_a_number_of_this_projection() {
        assert_eq!(cursor("57", "after").unwrap(), 57);
        assert_eq!(cursor("57@1", "after").unwrap(), 57);
        assert_eq!(cursor("57@2", "after").unwrap_err().code(), ProblemCode::ProjectionChanged);
        for bad in ["", "x", "-1", "1@x", "18446744073709551616"] {
            assert_eq!(cursor(bad, "after").unwrap_err().code(), ProblemCode::InvalidCursor, "{bad}");
        }
    }
}
