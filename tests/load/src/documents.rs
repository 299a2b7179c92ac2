//! Documents that are like real ones to a search: words as frequent as those of a language, most of them rare, in Latin
//! letters and in Chinese characters. The same at every call.

use std::{fs, path::Path};

/// Different words of each of the two languages.
const VOCABULARY: usize = 20_000;
/// A paragraph has up to this many characters and more than half of that, so each becomes one passage of a knowledge
/// base with `passage_chars` of [`PASSAGE_CHARS`].
const PARAGRAPH_CHARS: usize = PASSAGE_CHARS - 20;
pub(crate) const PASSAGE_CHARS: usize = 400;
/// Paragraphs of a document.
const PARAGRAPHS: usize = 100;

const SYLLABLES: [&str; 40] = [
    "ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va", "we", "xi", "yo", "zu",
    "bra", "cle", "dri", "flo", "gru", "sta", "ple", "tri", "slo", "pru", "an", "el", "in", "or", "un", "ast", "ent", "ing",
    "ost", "ure",
];

/// Characters that are frequent in Chinese, the most frequent first.
const CHARACTERS: &str = "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里所去行过家十用发天如然作方成者多日都三小军二无同么经法当起与好看学进种将还分此心前面又定见只主没公从";

/// A source of numbers: xorshift, by G. Marsaglia.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or_default()
    }

    /// A rank below `end`, each as probable as one over it: Zipf's law.
    fn rank(&mut self, end: usize) -> usize {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = ((end as f64 + 1.0).ln() * unit).exp() - 1.0;
        (rank as usize).min(end.saturating_sub(1))
    }
}

/// A language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    Latin,
    Chinese,
}

/// Writes text.
pub(crate) struct Author {
    numbers: Numbers,
    latin: Vec<String>,
    chinese: Vec<String>,
}

impl Author {
    pub(crate) fn new() -> Self {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        let characters: Vec<char> = CHARACTERS.chars().collect();
        let mut latin = Vec::with_capacity(VOCABULARY);
        let mut chinese = Vec::with_capacity(VOCABULARY);
        for rank in 0..VOCABULARY {
            // Frequent words are short.
            let length = match rank {
                0..100 => 1,
                100..2_000 => 2,
                _ => 2 + numbers.below(3),
            };
            let mut word = String::new();
            for _ in 0..length {
                word.push_str(SYLLABLES.get(numbers.below(SYLLABLES.len())).copied().unwrap_or_default());
            }
            latin.push(word);
            let length = if rank < 80 { 1 } else { 2 };
            chinese.push((0..length).filter_map(|_| characters.get(numbers.rank(characters.len())).copied()).collect());
        }
        Self { numbers, latin, chinese }
    }

    /// Words that somebody asks for: seldom the most frequent ones.
    pub(crate) fn question(&mut self) -> String {
        let script = self.script();
        let words: Vec<_> = (0..2 + self.numbers.below(4)).map(|_| self.word(script)).collect();
        words.join(if script == Script::Latin { " " } else { "" })
    }

    /// Writes documents with so many paragraphs in all into a new directory.
    pub(crate) fn write(&mut self, dir: &Path, paragraphs: usize) -> anyhow::Result<()> {
        fs::create_dir(dir)?;
        for (number, first) in (0..paragraphs).step_by(PARAGRAPHS).enumerate() {
            let script = self.script();
            let count = PARAGRAPHS.min(paragraphs - first);
            let text: Vec<_> = (0..count).map(|_| self.paragraph(script)).collect();
            fs::write(dir.join(format!("document-{number:05}.txt")), text.join("\n\n"))?;
        }
        Ok(())
    }

    /// Two of three are Latin.
    fn script(&mut self) -> Script {
        if self.numbers.below(3) == 0 { Script::Chinese } else { Script::Latin }
    }

    fn paragraph(&mut self, script: Script) -> String {
        let (mut text, mut chars) = (String::new(), 0);
        loop {
            let sentence = self.sentence(script);
            chars += sentence.chars().count();
            if chars > PARAGRAPH_CHARS {
                return text;
            }
            text.push_str(&sentence);
        }
    }

    fn sentence(&mut self, script: Script) -> String {
        let words: Vec<_> = (0..6 + self.numbers.below(8)).map(|_| self.word(script)).collect();
        match script {
            Script::Latin => format!("{}. ", words.join(" ")),
            Script::Chinese => format!("{}。", words.concat()),
        }
    }

    fn word(&mut self, script: Script) -> String {
        let words = match script {
            Script::Latin => &self.latin,
            Script::Chinese => &self.chinese,
        };
        words.get(self.numbers.rank(words.len())).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_fill_a_passage_more_than_half() {
        let dir = tempfile::tempdir().unwrap();
        let documents = dir.path().join("documents");
        Author::new().write(&documents, 250).unwrap();
        let mut paragraphs = 0;
        for document in fs::read_dir(&documents).unwrap() {
            for paragraph in fs::read_to_string(document.unwrap().path()).unwrap().split("\n\n") {
                let chars = paragraph.trim().chars().count();
                assert!(chars > PASSAGE_CHARS / 2 && chars <= PASSAGE_CHARS, "{chars}: {paragraph}");
                paragraphs += 1;
            }
        }
        assert_eq!((paragraphs, fs::read_dir(&documents).unwrap().count()), (250, 3));
    }

    #[test]
    fn words_follow_their_rank_and_nothing_depends_on_the_day() {
        let (mut author, mut again) = (Author::new(), Author::new());
        let words: Vec<_> = (0..10_000).map(|_| author.word(Script::Latin)).collect();
        assert_eq!(author.latin, again.latin);
        assert_eq!(words[0], again.word(Script::Latin));
        let often = words.iter().filter(|word| author.latin[..100].contains(word)).count();
        assert!((2_000..8_000).contains(&often), "{often} of 10,000 words are of the first hundred");
        assert!((0..50).map(|_| author.question()).any(|question| !question.is_ascii()));
    }
}
