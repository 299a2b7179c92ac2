//! The declaration of a part: the kind of its bytes, and their source.
//!
//! The module makes no request and stores nothing, so a malformed message is refused before it costs anything.

use agent_host_runs::media;
use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::super::sign;
use crate::{agui::event::Source, http::percent};

/// Encoders differ in whether they fill up the end.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent));
/// Types that models read and browsers show.
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// The path prefix by which a message names an artifact.
const ARTIFACTS: &str = "/api/v1/artifacts/";
/// The only provider of files here.
const PROVIDER: &str = "agent-host";

/// A part that refers to bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Media {
    pub(super) kind: Kind,
    /// The media type that the client says.
    pub(super) declared: Option<String>,
    pub(super) origin: Origin,
}

/// The source of the bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Inline(Vec<u8>),
    Artifact(String),
    Signed {
        id: String,
        expires: String,
        signature: String,
    },
    /// Somewhere else, unless the artifact with this id is here: an address of this host looks no different.
    Url {
        url: String,
        artifact: Option<String>,
    },
}

/// The problem of a part.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    Invalid(String),
    Unavailable(String),
}

impl Media {
    /// The source of a part of this kind.
    pub(super) fn of(kind: Kind, source: &Source) -> Result<Self, Flaw> {
        let media = match source {
            Source::Data { value, mime_type } => {
                // The result of `FileReader` in a browser is accepted, as the text after its comma.
                let origin = match data_url(value)? {
                    Some((_, bytes)) => bytes,
                    None => base64(value)?,
                };
                Self { kind, declared: Some(mime_type.clone()), origin: Origin::Inline(origin) }
            }
            Source::Url { value, mime_type } => match data_url(value)? {
                Some((within, bytes)) => Self { kind, declared: mime_type.clone().or(within), origin: Origin::Inline(bytes) },
                None => Self { kind, declared: mime_type.clone(), origin: address(value)? },
            },
            Source::File { value, provider, mime_type } => {
                if provider.as_deref().is_some_and(|provider| provider != PROVIDER) {
                    return Err(Flaw::Unavailable(format!("its provider is another than `{PROVIDER}`, so it is not here")));
                }
                Self { kind, declared: mime_type.clone(), origin: Origin::Artifact(value.clone()) }
            }
        };
        if let Some(declared) = &media.declared {
            media::check_type(declared).map_err(Flaw::Invalid)?;
        }
        Ok(media)
    }
}

fn base64(text: &str) -> Result<Vec<u8>, Flaw> {
    BASE64.decode(text).map_err(|error| Flaw::Invalid(format!("its data is no base64: {error}")))
}

/// A media type, where one is said, and content.
type DataUrl = (Option<String>, Vec<u8>);

/// The content of a `data:` URL (RFC 2397); `None` for other URLs.
fn data_url(url: &str) -> Result<Option<DataUrl>, Flaw> {
    let is_data = url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    let Some(rest) = url.get(5..).filter(|_| is_data) else { return Ok(None) };
    let malformed = || Flaw::Invalid("its data URL is malformed: it is `data:TYPE;base64,DATA`".to_owned());
    let (head, data) = rest.split_once(',').ok_or_else(malformed)?;
    let bytes = percent::decode(data).ok_or_else(malformed)?;
    let (media_type, bytes) = match head.rsplit_once(';') {
        Some((media_type, encoding)) if encoding.trim().eq_ignore_ascii_case("base64") => {
            (media_type, base64(std::str::from_utf8(&bytes).map_err(|_| malformed())?)?)
        }
        _ => (head, bytes),
    };
    Ok(Some((Some(media_type.trim().to_owned()).filter(|media_type| !media_type.is_empty()), bytes)))
}

/// The target of an address: an artifact of this host, or another server.
fn address(url: &str) -> Result<Origin, Flaw> {
    let whole = url.split('#').next().unwrap_or_default();
    let (is_path, local) = match whole.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (false, rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default()),
        _ => (whole.starts_with('/') && !whole.starts_with("//"), whole),
    };
    let (path, query) = local.split_once('?').unwrap_or((local, ""));
    // The host may be reached below some other path.
    if let Some(id) = id_after(path, sign::PATH)
        && let (Some(expires), Some(signature)) = (parameter(query, "expires"), parameter(query, "signature"))
    {
        return Ok(Origin::Signed { id, expires, signature });
    }
    match id_after(path.strip_suffix("/content").unwrap_or(path), ARTIFACTS) {
        Some(id) if is_path => Ok(Origin::Artifact(id)),
        _ if is_path => {
            let detail = "its address is a path, and this host has nothing there that a message may name";
            Err(Flaw::Invalid(detail.to_owned()))
        }
        artifact => Ok(Origin::Url { url: url.to_owned(), artifact }),
    }
}

/// The parts of a signed address of this host, which the client reaches as `host`: a path, or a whole address with that name.
pub(super) fn signed_at(url: &str, host: &str) -> Option<(String, String, String)> {
    let is_ours = match url.split_once("://") {
        Some((scheme, rest)) => {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")) && authority.eq_ignore_ascii_case(host)
        }
        None => url.starts_with('/') && !url.starts_with("//"),
    };
    match address(url).ok().filter(|_| is_ours && !host.is_empty())? {
        Origin::Signed { id, expires, signature } => Some((id, expires, signature)),
        _ => None,
    }
}

fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn id_after(path: &str, prefix: &str) -> Option<String> {
    let (_, id) = path.rsplit_once(prefix)?;
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_id.then(|| id.to_owned())
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

/// The kind of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Image,
    Audio,
    Video,
    Document,
}

impl Kind {
    /// The media type of content that begins with `head`. The declaration of the client must match; without one, the
    /// declaration of the server (`served`) must match. The type of an image comes from its bytes alone, and must be one
    /// that models read.
    pub(super) fn judge(self, declared: Option<&str>, served: Option<&str>, head: &[u8]) -> Result<String, String> {
        if head.is_empty() {
            return Err("it has no bytes".to_owned());
        }
        if self == Self::Image {
            let found = media::judge("", head)?;
            if !IMAGES.contains(&found.as_str()) {
                return Err(format!("an image is one of {}, and this is {found}", IMAGES.join(", ")));
            }
            if let Some(declared) = declared {
                self.holds(declared)?;
                media::judge(declared, head)?;
            }
            media::check_picture(&found, head)?;
            return Ok(found);
        }
        let media_type = media::judge(declared.or(served).unwrap_or_default(), head)?;
        self.holds(&media_type)?;
        Ok(media_type)
    }

    /// Checks that the type of an artifact matches the declaration of a part.
    pub(super) fn admit(self, media_type: &str, declared: Option<&str>) -> Result<(), String> {
        let its = canonical(media_type);
        if self == Self::Image && !IMAGES.contains(&its.as_str()) {
            return Err(format!("an image is one of {}, and this is {its}", IMAGES.join(", ")));
        }
        self.holds(&its)?;
        match declared.map(canonical) {
            Some(declared) if declared != its => {
                Err(format!("it is declared as `{declared}`, and it is {its}: correct the declaration"))
            }
            _ => Ok(()),
        }
    }

    fn holds(self, media_type: &str) -> Result<(), String> {
        let (prefix, what) = match self {
            Self::Image => ("image/", "an image"),
            Self::Audio => ("audio/", "audio"),
            Self::Video => ("video/", "a video"),
            Self::Document => return Ok(()),
        };
        if canonical(media_type).starts_with(prefix) {
            return Ok(());
        }
        Err(format!("its part is {what}, and its media type is `{}`: one of the two is wrong", canonical(media_type)))
    }
}

/// A media type without parameters, in lower case, under the name that is registered for images.
fn canonical(media_type: &str) -> String {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "image/jpg" | "image/pjpeg" => "image/jpeg".to_owned(),
        _ => essence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";
    const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\x10JFIF\0";
    const GIF: &[u8] = b"GIF89a\x01\0\x01\0";
    const WEBP: &[u8] = b"RIFF\x24\0\0\0WEBPVP8 ";
    const PDF: &[u8] = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n";
    const WAV: &[u8] = b"RIFF\x24\0\0\0WAVEfmt ";
    const MP4: &[u8] = b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom";
    const ID: &str = "0198c2f1-aaaa-7bbb-8ccc-0123456789ab";

    fn data(value: &str) -> Result<Media, Flaw> {
        let source = Source::Data { value: value.into(), mime_type: "image/png".into() };
        Media::of(Kind::Image, &source)
    }

    fn url(value: &str) -> Result<Media, Flaw> {
        let source = Source::Url { value: value.into(), mime_type: None };
        Media::of(Kind::Document, &source)
    }

    #[test]
    fn data_is_base64_with_or_without_its_end() {
        for (value, expect) in [
            ("AAEC", &[0, 1, 2][..]),
            ("AAE=", &[0, 1]),
            ("AAE", &[0, 1]),
            ("AA==", &[0]),
            ("AA", &[0]),
            ("+/+/", &[0xfb, 0xff, 0xbf]),
            ("", &[]),
            ("data:image/png;base64,AAE=", &[0, 1]),
            ("DATA:;base64,AAE", &[0, 1]),
        ] {
            assert_eq!(data(value).unwrap().origin, Origin::Inline(expect.to_vec()), "{value}");
        }
        for wrong in
            ["A", "AAE==", "AA=A", "A A=", "AAE=\n", "-_-_", "ä", "AAF", "data:image/png;base64", "data:x;base64,A", "data:,%4"]
        {
            assert!(matches!(data(wrong), Err(Flaw::Invalid(_))), "{wrong}: {:?}", data(wrong));
        }
    }

    #[test]
    fn a_data_url_says_its_type_and_its_bytes() {
        let check = |value: &str, declared: Option<&str>, bytes: &[u8]| {
            let media = url(value).unwrap();
            assert_eq!((media.declared.as_deref(), media.origin), (declared, Origin::Inline(bytes.to_vec())), "{value}");
        };
        check("data:image/png;base64,AAE%3D", Some("image/png"), &[0, 1]);
        check("data:text/plain;charset=utf-8;base64,aGk", Some("text/plain;charset=utf-8"), b"hi");
        check("data:text/plain,a%20b,c+d", Some("text/plain"), b"a b,c+d");
        check("data:,", None, b"");
        for wrong in ["data:text/plain", "data:,%zz", "data:;base64,%ff%fe", "data:no type;base64,AAAA"] {
            assert!(matches!(url(wrong), Err(Flaw::Invalid(_))), "{wrong}");
        }
        // The declaration of the part overrides that of the URL.
        let source = Source::Url { value: "data:text/plain,x".into(), mime_type: Some("text/html".into()) };
        assert_eq!(Media::of(Kind::Document, &source).unwrap().declared.as_deref(), Some("text/html"));
    }

    #[test]
    fn an_address_is_this_hosts_or_another() {
        let check = |value: &str, expect: Origin| assert_eq!(url(value).unwrap().origin, expect, "{value}");
        let artifact = || Origin::Artifact(ID.to_owned());
        check(&format!("/api/v1/artifacts/{ID}"), artifact());
        check(&format!("/api/v1/artifacts/{ID}/content?x=1#y"), artifact());
        check(&format!("/below/api/v1/artifacts/{ID}"), artifact());
        let signed = || Origin::Signed { id: ID.to_owned(), expires: "100".to_owned(), signature: "a_b-c".to_owned() };
        check(&format!("/api/v1/agent/attachments/{ID}?expires=100&signature=a_b-c"), signed());
        check(&format!("https://a.example:8/x/api/v1/agent/attachments/{ID}?signature=a_b-c&expires=100#f"), signed());
        let other = |value: &str, id: Option<&str>| {
            check(value, Origin::Url { url: value.to_owned(), artifact: id.map(str::to_owned) });
        };
        other(&format!("http://a.example/api/v1/artifacts/{ID}/content"), Some(ID));
        other(&format!("https://a.example/api/v1/agent/attachments/{ID}?expires=100"), None);
        other("https://a.example/x.png?signature=xxx&expires=1", None);
        other("https://a.example", None);
        other("https://a.example/api/v1/artifacts/../x", None);
        other("https://a.example/api/v1/artifacts/", None);
        other(&format!("//a.example/api/v1/artifacts/{ID}"), Some(ID));
        // Addresses that are not HTTP; the fetch refuses them.
        other("file:///etc/passwd", None);
        other("not a url", None);
        for wrong in ["/etc/passwd", "/api/v1/runs", "/", "/api/v1/artifacts/a%2fb", &format!("/api/v1/agent/attachments/{ID}")] {
            assert!(matches!(url(wrong), Err(Flaw::Invalid(_))), "{wrong}");
        }
    }

    #[test]
    fn a_file_is_an_artifact_of_this_host() {
        let file = |provider: Option<&str>| {
            let source = Source::File { value: ID.into(), provider: provider.map(str::to_owned), mime_type: None };
            Media::of(Kind::Video, &source)
        };
        for provider in [None, Some("agent-host")] {
            let media = file(provider).unwrap();
            assert_eq!((media.kind, media.origin), (Kind::Video, Origin::Artifact(ID.into())));
        }
        assert!(matches!(file(Some("openai")), Err(Flaw::Unavailable(_))));
    }

    #[test]
    fn a_type_is_one() {
        for wrong in ["png", "image/*", "image/", "a b/c", ""] {
            let source = Source::Data { value: "AA==".into(), mime_type: wrong.into() };
            assert!(matches!(Media::of(Kind::Image, &source), Err(Flaw::Invalid(_))), "{wrong}");
        }
    }

    #[test]
    fn content_is_what_its_part_says() {
        use Kind::{Audio, Document, Image, Video};
        let check = |kind: Kind, declared: Option<&str>, served: Option<&str>, head: &[u8], expect: Option<&str>| {
            let judged = kind.judge(declared, served, head);
            assert_eq!(judged.as_deref().ok(), expect, "{kind:?} {declared:?} {served:?}: {judged:?}");
        };
        for (head, media_type) in [(PNG, "image/png"), (JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp")] {
            check(Image, None, None, head, Some(media_type));
            check(Image, Some(media_type), None, head, Some(media_type));
            check(Image, Some(&media_type.to_uppercase()), None, head, Some(media_type));
            // Servers say all kinds of things.
            check(Image, None, Some("application/octet-stream"), head, Some(media_type));
            check(Image, None, Some("text/html"), head, Some(media_type));
            check(Image, Some("application/octet-stream"), None, head, None);
            check(Image, Some("image/svg+xml"), None, head, None);
            check(Audio, Some(media_type), None, head, None);
        }
        // The mark of a format is no picture of it.
        for head in [&PNG[..8], &PNG[..16], &PNG[..28], &JPEG[..3], &JPEG[..5], &GIF[..6], &WEBP[..12]] {
            check(Image, None, None, head, None);
        }
        check(Image, None, None, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\0\0\0\0\x01\x08\x06\0\0\0", None);
        check(Image, Some("image/jpg"), None, JPEG, Some("image/jpeg"));
        check(Image, Some("image/png"), None, JPEG, None);
        check(Image, Some("image/gif"), Some("image/png"), PNG, None);
        for head in [PDF, &b""[..], b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"<script>", WAV, b"BM\x36\0\0\0"] {
            check(Image, None, None, head, None);
            check(Image, Some("image/png"), None, head, None);
        }
        check(Audio, Some("audio/wav"), None, WAV, Some("audio/wav"));
        check(Audio, None, Some("audio/wav"), WAV, Some("audio/wav"));
        check(Audio, None, None, WAV, Some("audio/x-wav"));
        check(Audio, Some("audio/mpeg"), Some("audio/wav"), WAV, None);
        check(Audio, Some("text/plain"), None, b"hello", None);
        check(Audio, None, None, MP4, None);
        check(Audio, Some("audio/mp4"), None, MP4, Some("audio/mp4"));
        check(Video, Some("video/mp4"), None, MP4, Some("video/mp4"));
        check(Video, None, None, MP4, Some("video/mp4"));
        check(Video, Some("video/mp4"), None, PNG, None);
        check(Document, Some("application/pdf"), None, PDF, Some("application/pdf"));
        check(Document, None, None, PDF, Some("application/pdf"));
        check(Document, Some("application/pdf"), None, PNG, None);
        check(Document, None, Some("text/html; charset=utf-8"), b"<p>hi", Some("text/html; charset=utf-8"));
        check(Document, Some("text/plain"), None, b"hi", Some("text/plain"));
        check(Document, Some("text/plain"), None, PNG, None);
        check(Document, Some("application/pdf"), None, b"", None);
    }

    #[test]
    fn an_artifact_is_what_its_part_says() {
        use Kind::{Audio, Document, Image, Video};
        for (kind, media_type, declared, expect) in [
            (Image, "image/png", None, true),
            (Image, "image/jpg", Some("image/jpeg"), true),
            (Image, "image/jpeg", Some("image/JPG; x=y"), true),
            (Image, "image/png", Some("image/jpeg"), false),
            (Image, "image/svg+xml", None, false),
            (Image, "application/pdf", None, false),
            (Audio, "audio/mpeg", None, true),
            (Audio, "video/mp4", None, false),
            (Video, "video/mp4", Some("video/mp4"), true),
            (Video, "image/gif", None, false),
            (Document, "text/plain; charset=utf-8", Some("text/plain"), true),
            (Document, "application/pdf", Some("text/plain"), false),
            (Document, "image/png", None, true),
        ] {
            assert_eq!(kind.admit(media_type, declared).is_ok(), expect, "{kind:?} {media_type} {declared:?}");
        }
    }
}
