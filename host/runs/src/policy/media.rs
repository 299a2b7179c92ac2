//! Media types: the declared type of bytes, compared with the bytes.
//!
//! The check reads the first kilobytes and proves nothing: a file can have two formats at once. Code that shows content to
//! a browser also asks [`may_show`] and sends `nosniff`.

/// Longest media type that is taken: RFC 6838 allows 127 characters on each side.
const MAX_BYTES: usize = 255;

/// The media type of unknown content.
pub const UNKNOWN: &str = "application/octet-stream";

/// The media type to keep for content that begins with `head` (8 KiB say enough) and is declared as `declared`; an
/// empty declaration is answered from the content alone.
///
/// The returned type is in lower case and without parameters, except `charset` of a text. Content of a type with a known
/// signature must have that signature; a text must be text; for other types the declaration is accepted.
///
/// # Errors
/// Fails with the problem and the correct type.
pub fn judge(declared: &str, head: &[u8]) -> Result<String, String> {
    let declared = declared.trim();
    if declared.is_empty() {
        return Ok(guess(head).to_owned());
    }
    let (essence, charset) = parse(declared).ok_or_else(malformed)?;
    if essence == UNKNOWN || essence.starts_with("multipart/") {
        return Ok(essence);
    }
    if is_textual(&essence) {
        let unicode = charset.as_deref().is_none_or(|charset| matches!(charset, "utf-8" | "utf8" | "us-ascii"));
        if unicode && !looks_textual(head) {
            return Err(differs(&essence, found(head).unwrap_or("no text in UTF-8")));
        }
        return Ok(match charset.filter(|_| essence.starts_with("text/")) {
            Some(charset) => format!("{essence}; charset={charset}"),
            None => essence,
        });
    }
    let expected = family(&essence);
    match found(head) {
        Some(found) if family(found) == expected || is_package(&essence, found) => Ok(essence),
        Some(found) if has_signature(&essence) => Err(differs(&essence, found)),
        None if has_signature(&essence) => Err(differs(&essence, "something else")),
        _ => Ok(essence),
    }
}

/// Checks that content which begins with `head` is a picture, and not the mark of one alone: it says how large it is. `media_type`
/// is what [`judge`] has found. Other types pass.
///
/// # Errors
/// Fails with the problem and the remedy.
pub fn check_picture(media_type: &str, head: &[u8]) -> Result<(), String> {
    let at = |place: usize, bytes: usize| head.get(place..place + bytes).unwrap_or_default();
    let sized = |place: usize, bytes: usize| {
        let side = at(place, bytes);
        side.len() == bytes && side.iter().any(|byte| *byte != 0)
    };
    let is_whole = match media_type {
        // The chunk IHDR is the first, and has 13 bytes.
        "image/png" => at(8, 8) == b"\0\0\0\x0dIHDR" && sized(16, 4) && sized(20, 4) && at(24, 5).len() == 5,
        // A segment follows the mark of the beginning.
        "image/jpeg" => at(2, 1) == [0xff] && at(4, 2).len() == 2 && at(4, 2) > [0, 2].as_slice(),
        // The logical screen.
        "image/gif" => sized(6, 2) && sized(8, 2),
        "image/webp" => matches!(at(12, 4), b"VP8 " | b"VP8L" | b"VP8X"),
        _ => true,
    };
    if is_whole {
        return Ok(());
    }
    Err(format!("it begins as {media_type} and is no picture: send the whole file"))
}

/// Checks the syntax of a media type.
///
/// # Errors
/// Fails with an example of the syntax.
pub fn check_type(declared: &str) -> Result<(), String> {
    parse(declared.trim()).map(drop).ok_or_else(malformed)
}

fn malformed() -> String {
    "the media type is malformed: it is a type and a subtype, such as `image/png`".to_owned()
}

/// True if a browser may show content of this type inline: pictures and plain text, which contain no scripts. Other content
/// is downloaded.
#[must_use]
pub fn may_show(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    matches!(essence, "image/png" | "image/jpeg" | "image/gif" | "image/webp" | "image/avif" | "text/plain")
}

fn differs(declared: &str, found: &str) -> String {
    format!("the content is declared as `{declared}`, but it is {found}: correct the declaration, or send other content")
}

fn guess(head: &[u8]) -> &'static str {
    match found(head) {
        Some(found) if !found.starts_with("text/") && !looks_textual(head) => found,
        Some(found) if found.starts_with("text/") && looks_textual(head) => found,
        _ if looks_textual(head) && !head.is_empty() => "text/plain",
        _ => UNKNOWN,
    }
}

fn found(head: &[u8]) -> Option<&'static str> {
    infer::get(head).map(|kind| kind.mime_type())
}

/// Type and subtype in lower case, and the charset where one is named.
fn parse(declared: &str) -> Option<(String, Option<String>)> {
    if declared.len() > MAX_BYTES {
        return None;
    }
    let mut parts = declared.split(';');
    let essence = parts.next()?.trim().to_ascii_lowercase();
    let (kind, subtype) = essence.split_once('/')?;
    if !is_name(kind) || !is_name(subtype) {
        return None;
    }
    let charset = parts.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches('"').to_ascii_lowercase();
        (name.trim().eq_ignore_ascii_case("charset") && is_name(&value)).then_some(value)
    });
    Some((essence, charset))
}

/// A restricted name of RFC 6838.
fn is_name(text: &str) -> bool {
    let rest = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
    text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) && text.bytes().all(rest)
}

fn is_textual(essence: &str) -> bool {
    essence.starts_with("text/")
        || essence.ends_with("+xml")
        || essence.ends_with("+json")
        || matches!(
            essence,
            "application/json"
                | "application/xml"
                | "application/javascript"
                | "application/yaml"
                | "application/toml"
                | "application/x-ndjson"
        )
}

/// UTF-8 (cut at the end at most) without bytes that no text has.
fn looks_textual(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => Some(text),
        // Only the last character may be incomplete.
        Err(error) if error.error_len().is_none() => {
            head.get(..error.valid_up_to()).and_then(|valid| std::str::from_utf8(valid).ok())
        }
        Err(_) => None,
    };
    // ESC is in logs with colours.
    text.is_some_and(|text| !text.chars().any(|c| c.is_ascii_control() && !matches!(c, '\t' | '\n' | '\r' | '\x0c' | '\x1b')))
}

/// True if content of this type is recognized by its first bytes.
fn has_signature(essence: &str) -> bool {
    infer::is_mime_supported(essence) || infer::is_mime_supported(family(essence)) || is_package(essence, "application/zip")
}

/// One name for types that are equal, or that share a container whose beginning does not distinguish them.
fn family(essence: &str) -> &str {
    match essence {
        "image/jpg" | "image/pjpeg" => "image/jpeg",
        "image/x-icon" | "image/ico" => "image/vnd.microsoft.icon",
        "image/x-ms-bmp" | "image/x-bmp" => "image/bmp",
        "image/heic" | "image/heic-sequence" | "image/heif-sequence" => "image/heif",
        "audio/mp3" | "audio/x-mp3" | "audio/mpeg3" => "audio/mpeg",
        "audio/wav" | "audio/wave" | "audio/vnd.wave" => "audio/x-wav",
        "audio/flac" => "audio/x-flac",
        "audio/aiff" => "audio/x-aiff",
        "audio/x-aac" | "audio/aacp" => "audio/aac",
        "audio/mp4" | "audio/m4a" | "audio/x-m4a" | "video/x-m4v" | "video/quicktime" => "video/mp4",
        "audio/webm" | "video/x-matroska" | "audio/x-matroska" => "video/webm",
        "audio/opus" | "video/ogg" | "application/ogg" => "audio/ogg",
        "video/avi" | "video/msvideo" => "video/x-msvideo",
        "application/x-gzip" => "application/gzip",
        "application/x-pdf" => "application/pdf",
        "application/x-zip-compressed" | "application/x-zip" => "application/zip",
        "application/x-rar-compressed" => "application/vnd.rar",
        "application/msword" | "application/vnd.ms-excel" | "application/vnd.ms-powerpoint" => "application/x-ole-storage",
        "application/x-msdownload" | "application/x-dosexec" | "application/x-msdos-program" => {
            "application/vnd.microsoft.portable-executable"
        }
        other => other,
    }
}

/// True if the declared type is a package format and the content is a ZIP file.
fn is_package(declared: &str, found: &str) -> bool {
    let package = |essence: &str| {
        essence.ends_with("+zip")
            || essence.starts_with("application/vnd.openxmlformats-officedocument.")
            || essence.starts_with("application/vnd.oasis.opendocument.")
            || matches!(essence, "application/zip" | "application/java-archive" | "image/openraster")
    };
    // The beginning of a file does not always show the kind of package.
    package(declared) && (found == "application/zip" || declared == "application/zip" && package(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\x10JFIF\0";
    const PDF: &[u8] = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n";
    const ZIP: &[u8] = b"PK\x03\x04\x14\0\0\0\x08\0";
    const ELF: &[u8] = &{
        let mut head = [0; 64];
        (head[0], head[1], head[2], head[3], head[4], head[16]) = (0x7f, b'E', b'L', b'F', 2, 2);
        head
    };

    fn check(declared: &str, head: &[u8], expect: Option<&str>) {
        let judged = judge(declared, head);
        assert_eq!(judged.as_deref().ok(), expect, "{declared}: {judged:?}");
    }

    #[test]
    fn content_that_is_what_it_is_called_is_kept() {
        check("image/png", PNG, Some("image/png"));
        check("Image/PNG ; x=y", PNG, Some("image/png"));
        check("image/jpg", JPEG, Some("image/jpg"));
        check("application/pdf", PDF, Some("application/pdf"));
        check(
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
            ZIP,
            Some("application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        );
        check("text/plain; charset=UTF-8", "grüß".as_bytes(), Some("text/plain; charset=utf-8"));
        check("text/plain", &"ü".as_bytes()[..1], Some("text/plain"));
        check("text/plain; charset=utf-16", b"a\0b\0", Some("text/plain; charset=utf-16"));
        check("text/html", b"<p>hello", Some("text/html"));
        check("application/json", b"{}", Some("application/json"));
        check("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>", Some("image/svg+xml"));
        // A text may begin with what elsewhere is a signature.
        check("text/plain", b"MZ is how a DOS program begins", Some("text/plain"));
        check("text/plain", b"BM", Some("text/plain"));
        check("application/x-own", PNG, Some("application/x-own"));
        check("application/octet-stream", PNG, Some("application/octet-stream"));
    }

    #[test]
    fn content_that_is_something_else_is_refused() {
        check("image/png", JPEG, None);
        check("image/png", b"<script>alert(1)</script>", None);
        check("image/png", b"", None);
        check("image/jpeg", PNG, None);
        check("application/pdf", ELF, None);
        check("application/pdf", b"hello", None);
        check("application/vnd.oasis.opendocument.text", PNG, None);
        check("text/plain", PNG, None);
        check("text/html", b"a\0b", None);
        check("application/json", JPEG, None);
        assert!(judge("image/png", JPEG).unwrap_err().contains("image/jpeg"));
    }

    #[test]
    fn a_malformed_type_is_refused() {
        for wrong in ["png", "image/", "/png", "image/p ng", "image/png\r\nx: y", "a/b/c", "ïmage/png", &"a/".repeat(200)] {
            check(wrong, PNG, None);
        }
        // Parameters other than a plain charset are removed.
        check("text/plain; charset=\"x\r\ny\"", b"a", Some("text/plain"));
    }

    #[test]
    fn undeclared_types_are_detected_from_the_content() {
        check("", PNG, Some("image/png"));
        check("", PDF, Some("application/pdf"));
        check("", "hallo".as_bytes(), Some("text/plain"));
        check("", b"\0\x01\x02", Some("application/octet-stream"));
        check("", b"", Some("application/octet-stream"));
        check("", b"<html><body>", Some("text/html"));
        check("", ELF, Some("application/x-executable"));
    }

    #[test]
    fn only_pictures_and_plain_text_are_shown() {
        assert!(may_show("image/png") && may_show("text/plain; charset=utf-8"));
        for never in ["text/html", "image/svg+xml", "application/xhtml+xml", "text/xml", "application/pdf", "", "text/javascript"]
        {
            assert!(!may_show(never), "{never}");
        }
    }
}
