//! Lines of text, in the form of `tracing-subscriber`: when, how grave, whose, where, what.

use std::fmt;

use agent_host_runs::log_context::{LogContext, LogIds, LogValue};
use anstyle::{AnsiColor, Style};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// The lines of `tracing_subscriber::fmt::format::Full`, with the scopes of the [`LogContext`] where that has its spans.
pub(super) struct TextLines;

/// Text in a style.
struct Painted<T>(Style, T);

impl<T: fmt::Display> fmt::Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(style, text) = self;
        write!(f, "{style}{text}{style:#}")
    }
}

/// The styles of a line. All are empty where the log is no terminal.
struct Styles {
    level: Style,
    bold: Style,
    dimmed: Style,
    italic: Style,
}

impl Styles {
    fn of(level: Level, is_ansi: bool) -> Self {
        if !is_ansi {
            let plain = Style::new();
            return Self { level: plain, bold: plain, dimmed: plain, italic: plain };
        }
        let color = match level {
            Level::TRACE => AnsiColor::Magenta,
            Level::DEBUG => AnsiColor::Blue,
            Level::INFO => AnsiColor::Green,
            Level::WARN => AnsiColor::Yellow,
            Level::ERROR => AnsiColor::Red,
        };
        Self {
            level: color.on_default(),
            bold: Style::new().bold(),
            dimmed: Style::new().dimmed(),
            italic: Style::new().italic(),
        }
    }

    /// Writes a scope: `run{run_id=… binding_id="…"}:`.
    fn scope(&self, writer: &mut Writer<'_>, ids: &dyn LogIds) -> fmt::Result {
        write!(writer, "{}{}", Painted(self.bold, ids.name()), Painted(self.bold, "{"))?;
        let (mut written, mut is_first) = (Ok(()), true);
        ids.visit(&mut |name, value| {
            if written.is_err() {
                return;
            }
            let space = if std::mem::take(&mut is_first) { "" } else { " " };
            let (name, equals) = (Painted(self.italic, name), Painted(self.dimmed, "="));
            written = match value {
                LogValue::Id(id) => write!(writer, "{space}{name}{equals}{id}"),
                LogValue::Text(text) => write!(writer, "{space}{name}{equals}{text:?}"),
            };
        });
        written?;
        write!(writer, "{}{}", Painted(self.bold, "}"), Painted(self.dimmed, ":"))
    }
}

impl<S, N> FormatEvent<S, N> for TextLines
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let styles = Styles::of(*metadata.level(), writer.has_ansi_escapes());
        write!(writer, "{}", styles.dimmed)?;
        if SystemTime.format_time(&mut writer).is_err() {
            writer.write_str("<unknown time>")?;
        }
        let level = format!("{:>5}", metadata.level().as_str());
        write!(writer, "{:#} {} ", styles.dimmed, Painted(styles.level, level))?;
        let (mut written, mut is_inside) = (Ok(()), false);
        LogContext::current().visit(&mut |ids| {
            is_inside = true;
            if written.is_ok() {
                written = styles.scope(&mut writer, ids);
            }
        });
        written?;
        // Spans of other crates.
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            is_inside = true;
            write!(writer, "{}", Painted(styles.bold, span.metadata().name()))?;
            let extensions = span.extensions();
            if let Some(fields) = extensions.get::<FormattedFields<N>>().filter(|fields| !fields.is_empty()) {
                write!(writer, "{}{fields}{}", Painted(styles.bold, "{"), Painted(styles.bold, "}"))?;
            }
            write!(writer, "{}", Painted(styles.dimmed, ":"))?;
        }
        if is_inside {
            writer.write_char(' ')?;
        }
        write!(writer, "{}{} ", Painted(styles.dimmed, metadata.target()), Painted(styles.dimmed, ":"))?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
