//! Text into passages.

use agent_host_config::KnowledgeBaseConfig;
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use serde::{Deserialize, Serialize};
use text_splitter::{ChunkConfig, MarkdownSplitter, TextSplitter};

use super::extract::one_line;

/// Number of bytes that are split at a time.
const BLOCK_BYTES: usize = 32 * 1024;

/// The size of passages, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PassageSize {
    pub(crate) chars: usize,
    /// Characters that a passage has in common with the one before.
    pub(crate) overlap: usize,
}

impl From<&KnowledgeBaseConfig> for PassageSize {
    fn from(config: &KnowledgeBaseConfig) -> Self {
        Self { chars: config.passage_chars, overlap: config.overlap_chars }
    }
}

/// A passage and the headings above it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Passage {
    pub(crate) text: String,
    /// From the outermost in, with ` > ` between them; empty for none.
    pub(crate) heading: String,
}

/// The passages of a text, and its first heading.
pub(crate) fn split(text: &str, headings: bool, size: PassageSize) -> Result<(Vec<Passage>, Option<String>), String> {
    let size = || {
        ChunkConfig::new(size.chars)
            .with_overlap(size.overlap)
            .map_err(|error| format!("it cannot be cut into passages: {error}"))
    };
    let blocks = blocks(text);
    if !headings {
        let splitter = TextSplitter::new(size()?);
        let chunks = blocks.into_iter().flat_map(|(_, block)| splitter.chunks(block));
        let passages = chunks.map(|chunk| Passage { text: chunk.to_owned(), heading: String::new() });
        return Ok((passages.filter(Passage::says_something).collect(), None));
    }
    let all = outline(text);
    let mut coming = all.iter().peekable();
    let mut path: Vec<&Heading> = Vec::new();
    let mut passages = Vec::new();
    let splitter = MarkdownSplitter::new(size()?);
    let chunks = blocks.iter().flat_map(|(at, block)| splitter.chunk_indices(block).map(move |(from, chunk)| (at + from, chunk)));
    for (from, chunk) in chunks {
        // The headings before the passage, and those at its beginning.
        let mut begins = from;
        while let Some(heading) = coming
            .next_if(|next| next.from <= begins || text.get(begins..next.from).is_some_and(|between| between.trim().is_empty()))
        {
            path.retain(|above| above.level < heading.level);
            path.push(heading);
            begins = begins.max(heading.to);
        }
        let heading = path.iter().map(|heading| heading.text.as_str()).collect::<Vec<_>>().join(" > ");
        passages.push(Passage { text: chunk.to_owned(), heading });
    }
    passages.retain(Passage::says_something);
    Ok((passages, all.first().map(|heading| heading.text.clone())))
}

/// A text in parts of some size, each with its place: the time to cut grows with the square of what has no good place to cut.
/// Between headings if possible, then between paragraphs, lines, words.
fn blocks(text: &str) -> Vec<(usize, &str)> {
    let mut blocks = Vec::new();
    let mut from = 0;
    while let Some(rest) = text.get(from..).filter(|rest| !rest.is_empty()) {
        let limit = (0..=BLOCK_BYTES.min(rest.len())).rev().find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
        let window = rest.get(..limit).unwrap_or(rest);
        let place = |between: &str| window.rfind(between).map(|at| at + between.len() - between.trim_start().len());
        let to = if limit == rest.len() {
            limit
        } else {
            ["\n#", "\n\n", "\n", " "].into_iter().filter_map(place).find(|at| *at > limit / 2).unwrap_or(limit)
        };
        blocks.push((from, rest.get(..to).unwrap_or(rest)));
        from += to;
    }
    blocks
}

impl Passage {
    fn says_something(&self) -> bool {
        self.text.chars().any(char::is_alphanumeric)
    }
}

struct Heading {
    from: usize,
    to: usize,
    level: HeadingLevel,
    text: String,
}

fn outline(text: &str) -> Vec<Heading> {
    let mut headings = Vec::new();
    let mut open: Option<Heading> = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_YAML_STYLE_METADATA_BLOCKS).into_offset_iter() {
        match (event, &mut open) {
            (Event::Start(Tag::Heading { level, .. }), _) => {
                open = Some(Heading { from: range.start, to: range.end, level, text: String::new() });
            }
            (Event::Text(text) | Event::Code(text), Some(heading)) => heading.text.push_str(&text),
            (Event::SoftBreak | Event::HardBreak, Some(heading)) => heading.text.push(' '),
            (Event::End(TagEnd::Heading(_)), _) => {
                if let Some(heading) = open.take()
                    && let Some(text) = one_line(&heading.text)
                {
                    headings.push(Heading { text, ..heading });
                }
            }
            _ => {}
        }
    }
    headings
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn size(chars: usize, overlap: usize) -> PassageSize {
        PassageSize { chars, overlap }
    }

    #[test]
    fn passages_know_their_headings_and_keep_their_size() {
        let body = "One sentence of some length stands here. ".repeat(8);
        let text = format!(
            "# Top\n\n## First\n\n{body}\n\n```\n# no heading\n```\n\n## Second `code`\n\n{body}\n\nAgain\n=====\n\nend {body}"
        );
        let (passages, title) = split(&text, true, size(200, 0)).unwrap();
        assert_eq!(title.as_deref(), Some("Top"));
        assert!(passages.iter().all(|p| p.text.chars().count() <= 200));
        let of = |needle: &str| passages.iter().find(|p| p.text.contains(needle)).unwrap().heading.clone();
        assert_eq!(of("One sentence"), "Top > First");
        assert!(passages.iter().any(|p| p.heading == "Top > Second code"), "{passages:?}");
        assert_eq!(passages.last().unwrap().heading, "Again");
        assert!(passages.iter().all(|p| !p.heading.contains("no heading")));
    }

    #[test]
    fn text_without_spaces_is_cut_too_and_overlaps() {
        let text: String = "知识库里有很多文档。".repeat(100);
        let (passages, title) = split(&text, false, size(100, 20)).unwrap();
        assert!(title.is_none() && passages.len() > 10);
        assert!(passages.iter().all(|p| p.text.chars().count() <= 100 && p.heading.is_empty()));
        let (passages, _) = split(&"x".repeat(10_000), false, size(1_000, 0)).unwrap();
        assert_eq!(passages.len(), 10);
    }

    #[test]
    fn blocks_are_the_whole_text_and_end_where_it_does_least_harm() {
        let section = format!("# Heading\n\n{}\n", "words of a sentence. ".repeat(500));
        for text in [section.repeat(20), "x".repeat(100_000), "知".repeat(50_000), "word ".repeat(30_000), String::new()] {
            let blocks = blocks(&text);
            assert_eq!(blocks.iter().map(|(_, block)| *block).collect::<String>(), text);
            assert!(blocks.iter().all(|(at, block)| block.len() <= BLOCK_BYTES && text[*at..].starts_with(block)));
        }
        assert!(blocks(&section.repeat(20)).iter().all(|(_, block)| block.starts_with("# Heading")));
        assert!(blocks(&"word ".repeat(30_000)).iter().all(|(_, block)| block.starts_with("word") || block.starts_with(" word")));
    }

    #[test]
    fn text_without_letters_is_no_passage() {
        assert_eq!(split("---\n\n***\n", true, size(100, 0)).unwrap(), (vec![], None));
    }
}
