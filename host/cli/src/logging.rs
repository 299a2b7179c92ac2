//! The log of the process: to standard error, so that standard output stays what was asked for.

use std::{
    fmt,
    io::{self, IsTerminal},
};

use agent_host_config::{LogFormat, TelemetryConfig};
use agent_host_protocol::time;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    filter::LevelFilter,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::{JsonFields, Writer},
    },
    registry::LookupSpan,
};

use crate::args::Global;

/// Filters, in the form of `tracing-subscriber`: `warn,agent_host_runs=debug`.
const VARIABLE: &str = "AGENT_HOST_LOG";

/// What holds whatever is asked for.
const ALWAYS: [&str; 2] = [
    // Whose a line is: of which run, of which request. These are no lines.
    "agent_host::context=error",
    // It writes whole messages, at some levels with the headers of requests, and what is in them is between a tool and
    // who calls it. What goes wrong, `agent_host_providers` says.
    "rmcp=off",
];

/// Starts logging. What the command line says comes first, then the environment, then what fits the command: a
/// server says what it does, everything else only what goes wrong.
pub(crate) fn start(global: &Global, is_server: bool, telemetry: &TelemetryConfig) {
    // A plugin that is refused is news to an operator; to who runs another one it is noise.
    let usual = if is_server { "info" } else { "warn,agent_host_sandbox=error" };
    let asked = match (global.log, global.verbose) {
        (Some(level), _) => Some(level.as_str()),
        (None, 0) => None,
        (None, 1) => Some("info"),
        (None, 2) => Some("debug"),
        (None, _) => Some("trace"),
    };
    let filter = match asked {
        Some(level) => EnvFilter::new(level),
        None => EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(usual)),
    };
    // Without a log there is nothing to name.
    let is_off = filter.max_level_hint() == Some(LevelFilter::OFF);
    let always = ALWAYS.iter().filter(|_| !is_off).filter_map(|directive| directive.parse().ok());
    let filter = always.fold(filter, EnvFilter::add_directive);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let format = match global.log_format {
        Some(format) => format.into(),
        None if global.json => LogFormat::Json,
        None => telemetry.log_format,
    };
    // A second subscriber cannot be there: this runs once. Without a log the command still works.
    let _ = match format {
        LogFormat::Json => builder.with_ansi(false).fmt_fields(JsonFields::new()).event_format(JsonLines).try_init(),
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
    };
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
