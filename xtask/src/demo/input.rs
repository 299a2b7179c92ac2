//! The message of the demo.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use anyhow::Context;

/// Far below what the host takes (256 KiB as JSON), and as long as a query of a knowledge base may be.
const MAX_BYTES: usize = 32 * 1024;

/// The default question, which the documentation answers.
const QUESTION: &str = "How does Agent Host keep a run from losing its results?";

/// A text, and where it is from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Input {
    pub(crate) text: String,
    pub(crate) description: String,
}

/// The text of the command line, of a file, or of standard input; by default a question about the project.
pub(crate) fn read(text: Option<&str>, file: Option<&Path>) -> anyhow::Result<Input> {
    match (text, file) {
        (Some("-"), _) => take(io::stdin().lock(), "standard input"),
        (Some(text), _) => take(text.as_bytes(), "your text"),
        (None, None) => take(QUESTION.as_bytes(), "a question about the project"),
        (None, Some(file)) => {
            let opened = File::open(file).with_context(|| format!("{} cannot be read", file.display()))?;
            let name = file.file_name().unwrap_or(file.as_os_str());
            take(opened, &name.display().to_string())
        }
    }
}

/// Reads as much as the demo sends.
fn take(from: impl Read, name: &str) -> anyhow::Result<Input> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).with_context(|| format!("{name} cannot be read"))?;
    let cut = bytes.len() > MAX_BYTES;
    bytes.truncate(MAX_BYTES);
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        // The cut may go through a character; nothing else may be amiss.
        Err(error) if cut && error.utf8_error().error_len().is_none() => {
            let whole = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(whole);
            String::from_utf8(bytes)?
        }
        Err(_) => anyhow::bail!("{name} is not UTF-8 text"),
    };
    anyhow::ensure!(!text.trim().is_empty(), "{name} is empty: there is nothing to say");
    let extent = if cut {
        format!("its first {} bytes, which is as much as the demo sends", text.len())
    } else {
        format!("{} bytes", text.len())
    };
    Ok(Input { description: format!("{name}, {extent}"), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_whole_or_said_to_be_cut() {
        assert_eq!(take(&b"hi"[..], "x").unwrap(), Input { text: "hi".into(), description: "x, 2 bytes".into() });
        let long = "ä".repeat(MAX_BYTES);
        let input = take(format!("x{long}").as_bytes(), "x").unwrap();
        assert_eq!(input.text.len(), MAX_BYTES - 1);
        assert!(input.description.contains("its first"), "{}", input.description);
    }

    #[test]
    fn bytes_without_text_are_refused() {
        for bytes in [&b""[..], b" \n", b"\xff\xfe", &[&[b'x'; MAX_BYTES - 1][..], b"\xff\xff"].concat()] {
            assert!(take(bytes, "x").is_err());
        }
    }
}
