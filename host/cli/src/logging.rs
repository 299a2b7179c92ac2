//! The log of the process: to standard error, so that standard output stays what was asked for.

mod text;

use std::{fmt, io};

use agent_host_config::{LogFormat, TelemetryConfig};
use agent_host_protocol::time;
use agent_host_runs::log_context::{LogContext, LogValue};
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::{JsonFields, Writer},
    },
    registry::LookupSpan,
};

use self::text::TextLines;
use crate::{args::Global, styled, terminal};

/// Filters, in the form of `tracing-subscriber`: `warn,agent_host_runs=debug`.
const VARIABLE: &str = "AGENT_HOST_LOG";

/// Holds whatever is asked for: `rmcp` writes whole messages, at some levels with the headers of requests, and what is in
/// them is between a tool and its caller. Failures are in the log of `agent_host_providers`.
const ALWAYS: &str = "rmcp=off";

/// Starts logging. The level comes from the command line, then the environment, then the command: a server logs its work,
/// every other command only problems.
pub(crate) fn start(global: &Global, is_server: bool, telemetry: &TelemetryConfig) {
    // A plugin that is refused is news to an operator; to who runs another one it is noise.
    let usual = if is_server { "info" } else { "warn,agent_host_sandbox=error" };
    let requested = match (global.log, global.verbose) {
        (Some(level), _) => Some(level.as_str()),
        (None, 0) => None,
        (None, 1) => Some("info"),
        (None, 2) => Some("debug"),
        (None, _) => Some("trace"),
    };
    let filter = match requested {
        Some(level) => EnvFilter::new(level),
        None => EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(usual)),
    };
    let filter = ALWAYS.parse().into_iter().fold(filter, EnvFilter::add_directive);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| StandardError);
    let format = match global.log_format {
        Some(format) => format.into(),
        None if global.json => LogFormat::Json,
        None => telemetry.log_format,
    };
    // A second subscriber cannot be there: this runs once. Without a log the command still works.
    let _ = match format {
        LogFormat::Json => builder.with_ansi(false).fmt_fields(JsonFields::new()).event_format(JsonLines).try_init(),
        LogFormat::Text => builder.with_ansi(styled::has_colors(&io::stderr())).event_format(TextLines).try_init(),
    };
}

/// Standard error. A line and a progress bar do not mix.
struct StandardError;

impl io::Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        terminal::suspend(|| io::stderr().lock().write_all(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A JSON object on each line: when, how grave, where, what, and all fields of the line and of what it happened in, side
/// by side, so that the lines of a run are those with its `run_id`.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let mut line = Map::new();
        line.insert("timestamp".to_owned(), time::display(time::now()).into());
        line.insert("level".to_owned(), metadata.level().as_str().into());
        line.insert("target".to_owned(), metadata.target().into());
        LogContext::current().visit(&mut |ids| {
            ids.visit(&mut |name, value| {
                let value = match value {
                    LogValue::Id(id) => id.to_string(),
                    LogValue::Text(text) => text.to_owned(),
                };
                line.insert(name.to_owned(), value.into());
            });
        });
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>().map(|fields| serde_json::from_str(&fields.fields));
            if let Some(Ok(Value::Object(fields))) = fields {
                line.extend(fields);
            }
        }
        event.record(&mut Fields(&mut line));
        writeln!(writer, "{}", Value::Object(line))
    }
}

/// The fields of a line.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use agent_host_runs::log_context::LogIds;
    use serde_json::json;
    use tracing::Level;
    use tracing_subscriber::fmt::{MakeWriter, format::DefaultFields};

    use super::*;

    struct RunIds;

    impl LogIds for RunIds {
        fn name(&self) -> &'static str {
            "run"
        }

        fn visit(&self, field: &mut dyn FnMut(&'static str, LogValue<'_>)) {
            field("run_id", LogValue::Id(&7));
            field("binding_id", LogValue::Text("a \"b\""));
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Log {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    impl Log {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }

        /// The lines without their times.
        fn untimed(&self) -> Vec<String> {
            self.text().lines().map(|line| line.split_once("Z").unwrap().1.to_owned()).collect()
        }
    }

    fn lines() {
        tracing::info!(count = 3, name = "x y", "a line");
        tracing::error_span!("other", number = 1).in_scope(|| tracing::warn!(target: "elsewhere", "inside"));
        tracing::error!("bad");
        tracing::debug!("small");
        tracing::trace!("smaller");
    }

    /// The lines of `tracing-subscriber` for ids of a span, for comparison.
    fn with_a_span(is_ansi: bool, work: fn()) -> Vec<String> {
        let log = Log::default();
        let builder = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(log.clone()).with_ansi(is_ansi);
        tracing::subscriber::with_default(builder.finish(), || {
            tracing::error_span!("run", run_id = %7, binding_id = "a \"b\"").in_scope(work);
        });
        log.untimed()
    }

    fn text(is_ansi: bool, context: LogContext, work: fn()) -> Vec<String> {
        let log = Log::default();
        let builder = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(log.clone()).with_ansi(is_ansi);
        let builder = builder.fmt_fields(DefaultFields::new()).event_format(TextLines);
        tracing::subscriber::with_default(builder.finish(), || context.enter(work));
        log.untimed()
    }

    #[test]
    fn a_text_line_shows_ids_as_a_span_would() {
        for is_ansi in [false, true] {
            let written = text(is_ansi, LogContext::default().with(RunIds), lines);
            assert_eq!(written, with_a_span(is_ansi, lines), "{written:#?}");
            assert_eq!(written.len(), 5);
        }
        let written = text(false, LogContext::default().with(RunIds), lines);
        assert_eq!(
            written[0],
            "  INFO run{run_id=7 binding_id=\"a \\\"b\\\"\"}: agent_host::logging::tests: a line count=3 name=\"x y\""
        );
        assert_eq!(
            text(false, LogContext::default(), lines)[0],
            "  INFO agent_host::logging::tests: a line count=3 name=\"x y\""
        );
    }

    #[test]
    fn a_json_line_has_ids_beside_its_own_fields() {
        let log = Log::default();
        let builder = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(log.clone()).with_ansi(false);
        let builder = builder.fmt_fields(JsonFields::new()).event_format(JsonLines);
        tracing::subscriber::with_default(builder.finish(), || LogContext::default().with(RunIds).enter(lines));
        let lines: Vec<Value> = log.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.iter().all(|line| (&line["run_id"], &line["binding_id"]) == (&json!("7"), &json!("a \"b\""))));
        assert_eq!((&lines[0]["message"], &lines[0]["count"]), (&json!("a line"), &json!(3)));
        assert_eq!((&lines[1]["number"], &lines[1]["target"]), (&json!(1), &json!("elsewhere")));
    }
}
