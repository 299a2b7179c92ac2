//! Mutations of inputs, by a seed.

/// Values at which sizes and numbers change their meaning.
const NUMBERS: [u64; 12] = [0, 1, 2, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
/// Pieces of text that many readers look at.
const WORDS: [&[u8]; 20] = [
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\n",
    b"\r\n",
    b"\r",
    b"\0",
    b"null",
    b"1e999",
    b"-0",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\xef\xbb\xbf",
    b"<!--",
];
/// Mutations of one input.
const MOST: usize = 8;

/// Makes inputs of a corpus. Equal seeds make equal inputs.
#[derive(Debug)]
pub struct Mutator {
    state: u64,
    max_bytes: usize,
}

impl Mutator {
    /// A mutator of inputs of at most `max_bytes`.
    #[must_use]
    pub fn new(seed: u64, max_bytes: usize) -> Self {
        let mut this = Self { state: (seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15), max_bytes };
        for _ in 0..5 {
            this.below(2);
        }
        this
    }

    /// The next input: an input of the corpus, changed in up to eight places; rarely one of random bytes.
    pub fn next(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = match corpus {
            [] => self.noise(64),
            _ if self.below(64) == 0 => self.noise(512),
            corpus => corpus[self.below(corpus.len())].clone(),
        };
        for _ in 0..=self.below(MOST) {
            self.change(&mut bytes, corpus);
        }
        bytes.truncate(self.max_bytes);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(bytes.len() + 1);
        match self.below(10) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.byte(),
            2 => {
                let (width, number) = (1 << self.below(4), NUMBERS[self.below(NUMBERS.len())]);
                let number = number.to_be_bytes();
                let mut number = number[8 - width..].to_vec();
                if self.below(2) == 0 {
                    number.reverse();
                }
                let end = (at + width).min(bytes.len());
                bytes.splice(at..end, number);
            }
            3 => drop(bytes.splice(at..at, WORDS[self.below(WORDS.len())].iter().copied())),
            4 => {
                let end = (at + 1 + self.below(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            5 => bytes.truncate(at),
            6 => {
                // A part of the input once more, somewhere else.
                let end = (at + 1 + self.below(256)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = self.below(bytes.len() + 1);
                let times = 1 + if self.below(16) == 0 { self.below(100) } else { 0 };
                bytes.splice(to..to, part.repeat(times));
            }
            7 if !corpus.is_empty() => {
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len() + 1);
                let to = (from + 1 + self.below(256)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            8 => {
                let noise = self.noise(16);
                bytes.splice(at..at, noise);
            }
            _ => {
                // Two parts change places.
                let (middle, end) = (at / 2, at);
                bytes[..end].rotate_left(middle);
            }
        }
    }

    fn noise(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.byte()).collect()
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap_or_default()
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from((self.state >> 8) % end as u64).unwrap_or_default()
    }
}
