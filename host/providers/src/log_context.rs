//! The ids of log lines: of which request and of which run a line is.
//!
//! A [`LogContext`] belongs to a future, as the trace of OpenTelemetry does ([`crate::trace`]). It holds ids as values,
//! formatted only when a line is written: the formatters of the binary read [`LogContext::current`].

use std::{fmt, future::Future, sync::Arc};

tokio::task_local! {
    static CURRENT: LogContext;
}

/// The value of a field.
#[derive(Clone, Copy)]
pub enum LogValue<'a> {
    /// Text lines show it as it is.
    Id(&'a dyn fmt::Display),
    /// Text lines show it in quotes.
    Text(&'a str),
}

/// The ids of one scope: of a request, or of a run.
pub trait LogIds: Send + Sync + 'static {
    /// The name of the scope in text lines.
    fn name(&self) -> &'static str;

    /// Gives each id with the name of its field, in the order of text lines.
    fn visit(&self, field: &mut dyn FnMut(&'static str, LogValue<'_>));
}

struct Scope<I: ?Sized> {
    outer: LogContext,
    ids: I,
}

/// The scopes of what happens now. Cheap to clone.
#[derive(Clone, Default)]
pub struct LogContext(Option<Arc<Scope<dyn LogIds>>>);

impl fmt::Debug for LogContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Vec::new();
        self.visit(&mut |ids| names.push(ids.name()));
        f.debug_tuple("LogContext").field(&names).finish()
    }
}

impl LogContext {
    /// The context of the caller; without scopes where it has none.
    #[must_use]
    pub fn current() -> Self {
        CURRENT.try_with(Self::clone).unwrap_or_default()
    }

    /// This context with one more scope.
    #[must_use]
    pub fn with(self, ids: impl LogIds) -> Self {
        Self(Some(Arc::new(Scope { outer: self, ids })))
    }

    /// Gives each scope, the outermost first.
    pub fn visit(&self, scope: &mut dyn FnMut(&dyn LogIds)) {
        if let Some(own) = &self.0 {
            own.outer.visit(scope);
            scope(&own.ids);
        }
    }

    /// The future, with this context in each of its polls and in its drop.
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self, future)
    }

    /// Calls a function with this context.
    pub fn enter<T>(self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self, work)
    }
}

/// The future with the context of the caller: for a task that is spawned for it.
pub fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    LogContext::current().scope(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NumberedText(&'static str, u32);

    impl LogIds for NumberedText {
        fn name(&self) -> &'static str {
            self.0
        }

        fn visit(&self, field: &mut dyn FnMut(&'static str, LogValue<'_>)) {
            field("number", LogValue::Id(&self.1));
            field("text", LogValue::Text("a b"));
        }
    }

    fn printed() -> String {
        let mut printed = String::new();
        LogContext::current().visit(&mut |ids| {
            printed += ids.name();
            ids.visit(&mut |name, value| {
                printed += &match value {
                    LogValue::Id(id) => format!(" {name}={id}"),
                    LogValue::Text(text) => format!(" {name}={text:?}"),
                };
            });
            printed += ";";
        });
        printed
    }

    #[tokio::test]
    async fn a_context_travels_with_its_future_and_no_further() {
        assert_eq!(printed(), "");
        let outer = LogContext::default().with(NumberedText("outer", 1));
        let inside = outer.scope(async {
            tokio::task::yield_now().await;
            let inner = LogContext::current().with(NumberedText("inner", 2));
            let both = inner.scope(async { printed() }).await;
            (both, printed(), tokio::spawn(async { printed() }).await.unwrap())
        });
        let (both, outer, foreign) = inside.await;
        assert_eq!(both, "outer number=1 text=\"a b\";inner number=2 text=\"a b\";");
        assert_eq!(outer, "outer number=1 text=\"a b\";");
        assert_eq!((foreign.as_str(), printed().as_str()), ("", ""));
    }

    #[tokio::test]
    async fn a_spawned_task_inherits_it() {
        let context = LogContext::default().with(NumberedText("run", 7));
        let spawned = context.scope(async {
            let task = tokio::spawn(inherit(async {
                tokio::task::yield_now().await;
                printed()
            }));
            let context = LogContext::current();
            let blocking = tokio::task::spawn_blocking(move || context.enter(printed));
            (task.await.unwrap(), blocking.await.unwrap())
        });
        let expected = "run number=7 text=\"a b\";".to_owned();
        assert_eq!(spawned.await, (expected.clone(), expected));
    }

    #[tokio::test]
    async fn a_future_is_dropped_in_its_context() {
        struct Drops(Arc<std::sync::Mutex<String>>);
        impl Drop for Drops {
            fn drop(&mut self) {
                *self.0.lock().unwrap() = printed();
            }
        }
        let seen = Arc::default();
        let drops = Drops(Arc::clone(&seen));
        let future = LogContext::default().with(NumberedText("run", 3)).scope(async move {
            let _drops = drops;
            std::future::pending::<()>().await;
        });
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), future).await.is_err());
        assert_eq!(*seen.lock().unwrap(), "run number=3 text=\"a b\";");
    }
}
