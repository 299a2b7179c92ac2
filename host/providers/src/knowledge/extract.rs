//! Files into text.

use std::{io::Read, path::Path};

use html2text::{
    config,
    render::{TaggedLine, TextDecorator},
};
use serde::{Deserialize, Serialize};

/// A file has so many bytes at most: a book has 1 MiB of text.
pub(crate) const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// Largest text of a file, in bytes.
const MAX_TEXT_BYTES: usize = 32 * 1024 * 1024;
/// HTML is a tree in memory, of many times its size.
const MAX_HTML_BYTES: usize = 16 * 1024 * 1024;
/// Elements nest so deep at most; the time to read them grows with the square of it. Browsers stop at 512.
const MAX_HTML_DEPTH: usize = 5_000;
/// The streams of a PDF have so many bytes at most when they are unpacked.
const MAX_PDF_UNPACKED_BYTES: u64 = 512 * 1024 * 1024;
/// Of a hundred characters so many may be unreadable before a file is not text.
const MAX_UNREADABLE_PERCENT: usize = 10;
/// A title is for a list.
const MAX_TITLE_CHARS: usize = 200;

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Text,
    Markdown,
    Html,
    Pdf,
}

impl Kind {
    /// The format by the name of a file, if the name shows it.
    pub(crate) fn of_name(path: &Path) -> Option<Self> {
        let Some(extension) = path.extension() else {
            let name = path.file_name()?.to_str()?;
            return matches!(name, "README" | "LICENSE" | "CHANGELOG" | "NOTICE" | "AUTHORS" | "CONTRIBUTING")
                .then_some(Self::Text);
        };
        match extension.to_str()?.to_ascii_lowercase().as_str() {
            "md" | "markdown" | "mdown" | "mkd" | "mdx" => Some(Self::Markdown),
            "html" | "htm" | "xhtml" => Some(Self::Html),
            "pdf" => Some(Self::Pdf),
            "txt" | "text" | "rst" | "adoc" | "asciidoc" | "org" | "tex" | "log" | "csv" | "tsv" | "srt" | "vtt" => {
                Some(Self::Text)
            }
            _ => None,
        }
    }

    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain",
            Self::Markdown => "text/markdown",
            Self::Html => "text/html",
            Self::Pdf => "application/pdf",
        }
    }
}

/// The text of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExtractedText {
    pub(crate) kind: Kind,
    /// Title of the file, apart from its headings.
    pub(crate) title: Option<String>,
    pub(crate) text: String,
    /// True if lines with `#` are headings.
    pub(crate) headings: bool,
}

/// Reads a file that may be anything. Call it through [`super::guard`]: it may panic or never end.
///
/// `kind` is what the name says, if it says something.
pub(crate) fn extract(bytes: &[u8], kind: Option<Kind>) -> Result<ExtractedText, String> {
    let kind = if bytes.starts_with(b"%PDF-") { Kind::Pdf } else { kind.unwrap_or(Kind::Text) };
    let (title, text) = match kind {
        Kind::Text | Kind::Markdown => (None, decode(bytes)?),
        Kind::Html => {
            if bytes.len() > MAX_HTML_BYTES {
                return Err(too_large("the HTML", bytes.len() as u64, MAX_HTML_BYTES as u64));
            }
            let html = decode(bytes)?;
            if nests_too_deep(&html) {
                return Err(format!("its elements nest deeper than {MAX_HTML_DEPTH}"));
            }
            (html_title(&html), render(&html)?)
        }
        Kind::Pdf => (None, pdf(bytes)?),
    };
    if text.len() > MAX_TEXT_BYTES {
        return Err(too_large("its text", text.len() as u64, MAX_TEXT_BYTES as u64));
    }
    if !text.chars().any(char::is_alphanumeric) {
        return Err(match kind {
            Kind::Pdf => "it has no text: pages that are pictures need text recognition first".into(),
            _ => "it has no text".into(),
        });
    }
    Ok(ExtractedText { kind, title, text, headings: matches!(kind, Kind::Markdown | Kind::Html) })
}

pub(crate) fn too_large(what: &str, size: u64, limit: u64) -> String {
    format!("{what} has {size} bytes; the limit is {limit}")
}

/// The text as one line, short enough for a list.
pub(crate) fn one_line(text: &str) -> Option<String> {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|c| !c.is_control()).take(MAX_TITLE_CHARS).collect();
    (!line.is_empty()).then_some(line)
}

/// Bytes as text: UTF-8, or UTF-16 with its mark, or UTF-8 with some bytes that are not.
fn decode(bytes: &[u8]) -> Result<String, String> {
    let utf16 = |units: &dyn Fn([u8; 2]) -> u16| {
        let (units_of, _) = bytes.get(2..).unwrap_or_default().as_chunks::<2>();
        String::from_utf16(&units_of.iter().map(|unit| units(*unit)).collect::<Vec<_>>())
            .map_err(|_| "it is not valid UTF-16".to_owned())
    };
    let text = match bytes {
        [0xff, 0xfe, ..] => utf16(&u16::from_le_bytes)?,
        [0xfe, 0xff, ..] => utf16(&u16::from_be_bytes)?,
        _ => {
            if bytes.contains(&0) {
                return Err("it is binary, not text".into());
            }
            let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            String::from_utf8_lossy(bytes).into_owned()
        }
    };
    let (mut all, mut unreadable) = (0_usize, 0_usize);
    for c in text.chars() {
        all += 1;
        unreadable += usize::from(c == char::REPLACEMENT_CHARACTER || (c.is_control() && !c.is_whitespace() && c != '\u{1b}'));
    }
    if unreadable * 100 > all * MAX_UNREADABLE_PERCENT {
        return Err("it is binary, or text that is not UTF-8: convert it first, with `iconv` for example".into());
    }
    Ok(if unreadable > 0 { text.chars().filter(|c| c.is_whitespace() || !c.is_control()).collect() } else { text })
}

fn html_title(html: &str) -> Option<String> {
    // Offsets stay the same where only ASCII letters change.
    let head: String = html.get(..html.len().min(64 * 1024)).unwrap_or(html).to_ascii_lowercase();
    let from = head.find("<title")?;
    let from = from + head.get(from..)?.find('>')? + 1;
    let to = from + head.get(from..)?.find("</title")?;
    let raw = html.get(from..to)?.replace('<', "&lt;");
    one_line(&render(&raw).ok()?)
}

/// True if more elements are nested than in real pages. Void elements do not count.
fn nests_too_deep(html: &str) -> bool {
    let mut depth = 0_usize;
    for part in html.split('<').skip(1) {
        let (closes, part) = part.strip_prefix('/').map_or((false, part), |part| (true, part));
        let name = part.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        let ends_by_itself = [
            "", "p", "li", "td", "th", "tr", "dt", "dd", "option", "tbody", "thead", "br", "hr", "img", "input", "meta", "link",
            "area", "base", "col", "embed", "source", "track", "wbr", "path",
        ];
        if ends_by_itself.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            continue;
        }
        depth = if closes { depth.saturating_sub(1) } else { depth + 1 };
        if depth > MAX_HTML_DEPTH {
            return true;
        }
    }
    false
}

/// The text of HTML: a line for a line, headings with `#`, lists with `-`; nothing for links, pictures, scripts.
fn render(html: &str) -> Result<String, String> {
    config::with_decorator(Plain)
        .raw_mode(true)
        .allow_width_overflow()
        .no_link_wrapping()
        .link_footnotes(false)
        .unicode_strikeout(false)
        .string_from_read(html.as_bytes(), 1_000)
        .map_err(|error| format!("its HTML cannot be read: {error}"))
}

/// Marks headings and lists, and nothing else.
#[derive(Debug, Clone)]
struct Plain;

impl TextDecorator for Plain {
    type Annotation = ();

    fn decorate_link_start(&mut self, _: &str) -> (String, ()) {
        Default::default()
    }
    fn decorate_link_end(&mut self) -> String {
        String::new()
    }
    fn decorate_em_start(&self) -> (String, ()) {
        Default::default()
    }
    fn decorate_em_end(&self) -> String {
        String::new()
    }
    fn decorate_strong_start(&self) -> (String, ()) {
        Default::default()
    }
    fn decorate_strong_end(&self) -> String {
        String::new()
    }
    fn decorate_strikeout_start(&self) -> (String, ()) {
        Default::default()
    }
    fn decorate_strikeout_end(&self) -> String {
        String::new()
    }
    fn decorate_code_start(&self) -> (String, ()) {
        Default::default()
    }
    fn decorate_code_end(&self) -> String {
        String::new()
    }
    fn decorate_preformat_first(&self) {}
    fn decorate_preformat_cont(&self) {}
    fn decorate_image(&mut self, _: &str, title: &str) -> (String, ()) {
        (title.to_owned(), ())
    }
    fn header_prefix(&self, level: usize) -> String {
        "#".repeat(level.clamp(1, 6)) + " "
    }
    fn quote_prefix(&self) -> String {
        String::new()
    }
    fn unordered_item_prefix(&self) -> String {
        "- ".into()
    }
    fn ordered_item_prefix(&self, number: i64) -> String {
        format!("{number}. ")
    }
    fn make_subblock_decorator(&self) -> Self {
        Self
    }
    fn decorate_superscript_start(&self) -> (String, ()) {
        Default::default()
    }
    fn decorate_superscript_end(&self) -> String {
        String::new()
    }
    fn finalise(&mut self, _: Vec<String>) -> Vec<TaggedLine<()>> {
        Vec::new()
    }
}

fn pdf(bytes: &[u8]) -> Result<String, String> {
    unpacked_size(bytes)?;
    pdf_extract::extract_text_from_mem(bytes).map_err(|error| format!("its PDF cannot be read: {error}"))
}

/// Refuses a PDF whose packed streams would fill the memory. The reader unpacks each whole, without a bound.
fn unpacked_size(bytes: &[u8]) -> Result<(), String> {
    const STREAM: &[u8] = b"stream";
    let mut budget = MAX_PDF_UNPACKED_BYTES;
    let mut rest = bytes;
    while let Some(at) = rest.windows(STREAM.len()).position(|window| window == STREAM) {
        let before = rest.get(..at).unwrap_or_default();
        let dictionary = before.get(before.len().saturating_sub(1_024)..).unwrap_or_default();
        let dictionary = String::from_utf8_lossy(dictionary);
        let dictionary = dictionary.rsplit("obj").next().unwrap_or_default();
        let behind = rest.get(at + STREAM.len()..).unwrap_or_default();
        let body = behind.strip_prefix(b"\r\n").or_else(|| behind.strip_prefix(b"\n")).or_else(|| behind.strip_prefix(b"\r"));
        rest = behind;
        let Some(body) = body else { continue };
        if dictionary.matches("Decode").count() - dictionary.matches("DecodeParms").count() > 1
            && !dictionary.contains("DCTDecode")
            && !dictionary.contains("ASCII")
        {
            return Err("it has streams that are compressed more than once: save it with another program".into());
        }
        // A stream of another packing, or a corrupt one, has what could be unpacked of it.
        let size = readable(&mut flate2::read::ZlibDecoder::new(body).take(budget + 1));
        budget = budget
            .checked_sub(size)
            .ok_or_else(|| too_large("its unpacked content", MAX_PDF_UNPACKED_BYTES + 1, MAX_PDF_UNPACKED_BYTES))?;
    }
    Ok(())
}

/// The number of readable bytes.
fn readable(from: &mut impl Read) -> u64 {
    let mut size = 0;
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        size += read as u64;
    }
    size
}
