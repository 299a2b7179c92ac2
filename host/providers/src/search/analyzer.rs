//! Text into terms.
//!
//! | script | terms |
//! |---|---|
//! | Chinese, Japanese | the words of a dictionary, each two neighbouring characters, each single ideograph |
//! | Korean | what stands between spaces, each two neighbouring syllables (so that particles do no harm), each syllable |
//! | Thai, Lao, Khmer, Burmese | the words of a dictionary |
//! | all others | words, of English form without their ending |
//!
//! Before that: compatibility forms folded (full width, ligatures), lower case, accents taken off where they are marks on
//! a Latin, Greek or Cyrillic letter. Pairs and single characters make sure that a word is found although the dictionary
//! cut the sentence around it in another way.

use std::{borrow::Cow, sync::LazyLock};

use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};
use icu_segmenter::{WordSegmenter, WordSegmenterBorrowed, options::WordBreakInvariantOptions};
use tantivy::tokenizer::{Token, TokenStream, Tokenizer};

/// The name of the analyzer in the schema of an index. The name changes with the terms.
pub const ANALYZER: &str = "agent-host-1";

/// A term is cut after so many bytes: nobody types more, and encoded blobs would fill the dictionary of an index.
pub const MAX_TERM_BYTES: usize = 64;

const NFKC: ComposingNormalizerBorrowed<'static> = ComposingNormalizerBorrowed::new_nfkc();
const NFD: DecomposingNormalizerBorrowed<'static> = DecomposingNormalizerBorrowed::new_nfd();
static WORDS: LazyLock<WordSegmenterBorrowed<'static>> =
    LazyLock::new(|| WordSegmenter::new_dictionary(WordBreakInvariantOptions::default()));

/// The reason for a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TermKind {
    /// A word.
    Word,
    /// Two neighbours of a script without spaces, which may be a word or not.
    Pair,
    /// A word of one character, in scripts with longer words.
    Letter,
    /// A character within a word. Indexed so that a query for it alone finds it; otherwise never part of a query.
    Inner,
}

/// A term at its place. Several terms may have the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) text: String,
    pub(crate) position: usize,
    pub(crate) kind: TermKind,
}

/// Cuts text into terms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Analyzer;

impl Analyzer {
    /// The terms under which `text` is kept, in their order.
    #[must_use]
    pub fn terms(&self, text: &str) -> Vec<String> {
        analyze(text).into_iter().map(|term| term.text).collect()
    }
}

impl Tokenizer for Analyzer {
    type TokenStream<'a> = Terms;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Terms {
        Terms { terms: analyze(text).into_iter(), token: Token::default() }
    }
}

/// The terms of a text, as tantivy takes them.
#[derive(Debug)]
pub struct Terms {
    terms: std::vec::IntoIter<Term>,
    token: Token,
}

impl TokenStream for Terms {
    fn advance(&mut self) -> bool {
        let Some(term) = self.terms.next() else { return false };
        // Offsets would be those of the folded text, which nobody has; nothing here asks for them.
        self.token = Token { position: term.position, text: term.text, ..Token::default() };
        true
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}

/// Scripts, by how they are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Ideographic,
    Hangul,
    Southeast,
    Spaced,
    None,
}

fn class(c: char) -> Class {
    match c {
        'a'..='z' | '0'..='9' => Class::Spaced,
        '\0'..='\u{7f}' => Class::None,
        // The middle dot and the double hyphen stand between words.
        '\u{30fb}' | '\u{30a0}' => Class::None,
        '\u{3005}'..='\u{3007}'
        | '\u{3041}'..='\u{3096}'
        | '\u{309d}'..='\u{30ff}'
        | '\u{3105}'..='\u{312f}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{323af}' => Class::Ideographic,
        '\u{ac00}'..='\u{d7a3}' | '\u{1100}'..='\u{11ff}' | '\u{a960}'..='\u{a97f}' | '\u{d7b0}'..='\u{d7ff}' => Class::Hangul,
        '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' => Class::Southeast,
        // Marks between Indian letters are part of the word; the danda is a full stop.
        '\u{0900}'..='\u{0dff}' if !matches!(c, '\u{0964}' | '\u{0965}') => Class::Spaced,
        c if c.is_alphanumeric() => Class::Spaced,
        _ => Class::None,
    }
}

/// All terms of a text.
pub(crate) fn analyze(text: &str) -> Vec<Term> {
    let folded = fold(text);
    let mut terms = Vec::with_capacity(folded.len() / 4);
    let mut position = 0;
    let mut rest = folded.as_ref();
    while let Some(first) = rest.chars().next() {
        let class_of_run = class(first);
        let end = rest.char_indices().find(|(_, c)| class(*c) != class_of_run).map_or(rest.len(), |(at, _)| at);
        let (run, behind) = rest.split_at(end);
        rest = behind;
        match class_of_run {
            Class::Ideographic => position = ideographic(run, position, &mut terms),
            Class::Hangul => position = hangul(run, position, &mut terms),
            Class::Southeast => position = southeast(run, position, &mut terms),
            Class::Spaced => {
                let possessive =
                    run == "s" && terms.last().is_some_and(|t| t.position + 1 == position) && after_apostrophe(&folded, rest);
                if !possessive {
                    terms.push(Term { text: stem(cut(run)), position, kind: TermKind::Word });
                    position += 1;
                }
            }
            Class::None => {}
        }
    }
    terms
}

/// True if the one letter before `rest` follows an apostrophe after a letter: the `s` of `model's`.
fn after_apostrophe(folded: &str, rest: &str) -> bool {
    let before = folded.get(..folded.len() - rest.len()).unwrap_or_default();
    let mut back = before.chars().rev().skip(1);
    matches!(back.next(), Some('\'' | '\u{2019}')) && back.next().is_some_and(char::is_alphabetic)
}

fn ideographic(run: &str, position: usize, terms: &mut Vec<Term>) -> usize {
    let starts: Vec<usize> = run.char_indices().map(|(at, _)| at).chain([run.len()]).collect();
    let mut words = WORDS.segment_str(run).peekable();
    for (index, pair) in starts.windows(2).enumerate() {
        let &[from, to] = pair else { continue };
        let position = position + index;
        while words.peek().is_some_and(|at| *at < from) {
            words.next();
        }
        // The word that begins here, if one does.
        let word = (words.peek() == Some(&from)).then(|| {
            words.next();
            words.peek().and_then(|end| run.get(from..*end))
        });
        let word = word.flatten();
        let letter = run.get(from..to).unwrap_or_default();
        if let Some(word) = word
            && word.len() > letter.len()
        {
            terms.push(Term { text: cut(word).to_owned(), position, kind: TermKind::Word });
        }
        let next = starts.get(index + 2).and_then(|end| run.get(from..*end));
        if let Some(next) = next
            && Some(next) != word
        {
            terms.push(Term { text: next.to_owned(), position, kind: TermKind::Pair });
        }
        let alone = starts.len() == 2;
        let kana = letter.chars().all(|c| matches!(c, '\u{3041}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}'));
        let kind = if alone {
            TermKind::Word
        } else if word == Some(letter) {
            TermKind::Letter
        } else {
            TermKind::Inner
        };
        if alone || !kana {
            terms.push(Term { text: letter.to_owned(), position, kind });
        }
    }
    // A gap, so that no phrase goes across.
    position + starts.len()
}

fn hangul(run: &str, position: usize, terms: &mut Vec<Term>) -> usize {
    let starts: Vec<usize> = run.char_indices().map(|(at, _)| at).chain([run.len()]).collect();
    terms.push(Term { text: cut(run).to_owned(), position, kind: TermKind::Word });
    if starts.len() > 2 {
        for (index, pair) in starts.windows(2).enumerate() {
            let &[from, to] = pair else { continue };
            if let Some(next) = starts.get(index + 2).and_then(|end| run.get(from..*end))
                && next.len() < run.len()
            {
                terms.push(Term { text: next.to_owned(), position: position + index, kind: TermKind::Pair });
            }
            let letter = run.get(from..to).unwrap_or_default();
            terms.push(Term { text: letter.to_owned(), position: position + index, kind: TermKind::Inner });
        }
    }
    position + starts.len()
}

fn southeast(run: &str, mut position: usize, terms: &mut Vec<Term>) -> usize {
    let mut from = 0;
    for to in WORDS.segment_str(run).skip(1) {
        let word = run.get(from..to).unwrap_or_default();
        from = to;
        if word.chars().any(char::is_alphanumeric) {
            terms.push(Term { text: cut(word).to_owned(), position, kind: TermKind::Word });
            position += 1;
        }
    }
    position
}

/// The beginning of a word that is too long.
fn cut(word: &str) -> &str {
    if word.len() <= MAX_TERM_BYTES {
        return word;
    }
    let end = (0..=MAX_TERM_BYTES).rev().find(|at| word.is_char_boundary(*at)).unwrap_or_default();
    word.get(..end).unwrap_or_default()
}

/// English endings off, where all letters are such as English has.
fn stem(word: &str) -> String {
    if word.len() > 2 && word.bytes().all(|b| b.is_ascii_lowercase()) {
        frostem::Stemmer::new(frostem::Algorithm::English).stem(word).into_owned()
    } else {
        word.to_owned()
    }
}

fn fold(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return if text.bytes().any(|b| b.is_ascii_uppercase()) { text.to_ascii_lowercase().into() } else { text.into() };
    }
    let composed = NFKC.normalize(text);
    let mut folded = String::with_capacity(composed.len());
    for c in composed.chars() {
        if c.is_ascii() {
            folded.push(c.to_ascii_lowercase());
        } else {
            c.to_lowercase().for_each(|c| fold_letter(c, &mut folded));
        }
    }
    folded.into()
}

fn fold_letter(c: char, out: &mut String) {
    match c {
        'ß' => out.push_str("ss"),
        'æ' => out.push_str("ae"),
        'œ' => out.push_str("oe"),
        'ø' => out.push('o'),
        'đ' | 'ð' => out.push('d'),
        'ł' => out.push('l'),
        'ħ' => out.push('h'),
        'ı' => out.push('i'),
        'þ' => out.push_str("th"),
        'ς' => out.push('σ'),
        // Marks that stand alone, vowel points of Hebrew and Arabic, and what is not seen at all.
        '\u{0300}'..='\u{036f}'
        | '\u{0591}'..='\u{05bd}'
        | '\u{05bf}'
        | '\u{05c1}'..='\u{05c2}'
        | '\u{05c4}'..='\u{05c5}'
        | '\u{05c7}'
        | '\u{0640}'
        | '\u{064b}'..='\u{065f}'
        | '\u{0670}'
        | '\u{00ad}'
        | '\u{200b}'..='\u{200d}'
        | '\u{2060}'
        | '\u{feff}' => {}
        '\u{00c0}'..='\u{024f}' | '\u{0370}'..='\u{052f}' | '\u{1e00}'..='\u{1fff}' => {
            out.extend(NFD.normalize_iter(std::iter::once(c)).filter(|c| !matches!(c, '\u{0300}'..='\u{036f}')));
        }
        c => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expect: &[&str]) {
        assert_eq!(Analyzer.terms(text), expect, "{text}");
    }

    fn words(text: &str) -> Vec<String> {
        analyze(text).into_iter().filter(|t| t.kind == TermKind::Word).map(|t| t.text).collect()
    }

    #[test]
    fn western_words_are_folded_and_english_endings_go() {
        check("The Runners are RUNNING!", &["the", "runner", "are", "run"]);
        check("Ｆｕｌｌ－ｗｉｄｔｈ １２", &["full", "width", "12"]);
        check("naïve Café — Straße Łódź Øre", &["naiv", "cafe", "strass", "lodz", "ore"]);
        check("ﬁne e\u{301}te\u{301} été", &["fine", "ete", "ete"]);
        check("Ёлка Привет ΣΊΣΥΦΟΣ", &["елка", "привет", "σισυφοσ"]);
        check("the model's don't l'eau", &["the", "model", "don", "t", "l", "eau"]);
        check("İstanbul ISTANBUL", &["istanbul", "istanbul"]);
    }

    #[test]
    fn other_scripts_keep_their_letters() {
        check("हिन्दी में।", &["हिन्दी", "में"]);
        check("שָׁלוֹם", &["שלום"]);
        check("كِتَاب", &["كتاب"]);
        assert_eq!(words("ภาษาไทยเป็นภาษา").len(), 4);
    }

    #[test]
    fn chinese_has_words_pairs_and_single_characters() {
        check("知识库", &["知识", "知", "识库", "识", "库"]);
        let found = words("我们使用数据库");
        assert!(["我们", "使用"].iter().all(|word| found.iter().any(|known| known == word)), "{found:?}");
        check("猫", &["猫"]);
    }

    #[test]
    fn japanese_keeps_voiced_marks_and_folds_half_width() {
        assert_eq!(words("ﾃﾞｰﾀﾍﾞｰｽ"), words("データベース"));
        assert!(Analyzer.terms("がぎぐ").iter().any(|t| t.contains('が')));
        assert!(
            words("東京都の人工知能").contains(&"人工".to_owned()) || words("東京都の人工知能").contains(&"人工知能".to_owned())
        );
    }

    #[test]
    fn korean_has_what_stands_between_spaces_and_its_pairs() {
        check("문서를", &["문서를", "문서", "문", "서를", "서", "를"]);
        check("물", &["물"]);
        // Written in parts, it is the same.
        assert_eq!(Analyzer.terms("\u{1106}\u{116e}\u{11af}"), ["물"]);
    }

    #[test]
    fn scripts_side_by_side_are_cut_apart() {
        let terms = Analyzer.terms("iPhone手机2024年Linux");
        for expect in ["iphon", "手机", "2024", "年", "linux"] {
            assert!(terms.iter().any(|t| t == expect), "{expect} in {terms:?}");
        }
    }

    #[test]
    fn overlong_words_are_cut_at_a_character() {
        assert_eq!(Analyzer.terms(&"x1".repeat(5_000)), ["x1".repeat(MAX_TERM_BYTES / 2)]);
        for text in ["é1".repeat(1_000), "한".repeat(1_000), "ア".repeat(1_000), "ж".repeat(1_000)] {
            assert!(Analyzer.terms(&text).iter().all(|t| t.len() <= MAX_TERM_BYTES));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_cut_in_order_and_within_bounds(text in ".{0,200}") {
            let mut last = 0;
            for term in analyze(&text) {
                prop_assert!(!term.text.is_empty() && term.text.len() <= MAX_TERM_BYTES);
                prop_assert!(term.position >= last);
                last = term.position;
            }
        }
    }
}
