//! Media of a message: they become artifacts, because events never contain binary content.
//!
//! A part contains its bytes, names an artifact of this host, or names an address that the host fetches if its
//! configuration allows it. In each case the bytes must match the declared type. Artifacts of a message that is refused
//! later are collected like unused uploads.

use std::time::Instant;

use agent_host_protocol::{ApiError, grant::ConversationKey, message::ContentPart, time};
use agent_host_runs::{ArtifactRecord, ArtifactScope, BlobWriter, egress::Response};
use axum::http::{HeaderMap, header};

use self::read::{Flaw, Kind, Media, Origin};
use super::{
    read::{SpooledData, SpooledFile},
    sign::{self, SignatureCheck},
};
use crate::{
    access::caller::Caller,
    agui::{
        event::{Content, MessageBody, Part, Source},
        input::RunAgentInput,
        strict,
    },
    app::App,
    artifacts::{
        names::plain_name,
        upload::{NewUpload, Spool, WRITE_BYTES, create_artifact},
    },
    http::{Problem, ProblemCode},
};

mod read;

/// Parts of one message that are more than text.
const MAX_MEDIA: usize = 64;

/// The content of a message in the form of an event.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StoredContent {
    /// The texts, one per line; `None` without a text.
    pub(crate) text: Option<String>,
    /// All its parts in their order; none where the message is but a text.
    pub(crate) contents: Vec<ContentPart>,
}

/// Stores the content of a user's message. `place` is the path of the message in the request: refusals name the part
/// (`messages[3].content[1]`).
///
/// # Errors
/// `media_invalid` for what is not what it is said to be, `media_too_large`, `media_unavailable` for what cannot be had, and
/// what the host fails with.
pub(crate) async fn stored(
    app: &App,
    caller: &Caller,
    thread: &ConversationKey,
    place: usize,
    content: &Content,
    spooled: &SpooledFile,
) -> Result<StoredContent, Problem> {
    let parts = match content {
        Content::Text(text) => return Ok(StoredContent { text: Some(text.clone()), contents: Vec::new() }),
        Content::Parts(parts) => parts,
    };
    // All are looked at before any is kept.
    let part_contents = contents_of(place, parts, spooled)?;
    let workspace = caller.0.workspace.clone().unwrap_or_default();
    let scope = ArtifactScope { workspace, conversation: Some(thread.clone()), run_id: None, binding_id: None };
    let by_id = if caller.0.end_user.is_some() { Reach::Thread } else { Reach::Workspace };
    let keeper = Keeper { app, scope, by_id, deadline: app.host.fetch_deadline() };
    let (mut texts, mut contents) = (Vec::new(), Vec::with_capacity(part_contents.len()));
    for content in part_contents {
        contents.push(match content {
            PartContent::Text(text) => {
                texts.push(text);
                ContentPart::Text(text.to_owned())
            }
            PartContent::Media(media, at) => ContentPart::Artifact(keeper.keep(media, &at).await?.reference()),
            PartContent::Spooled(kind, declared, data, at) => {
                ContentPart::Artifact(keeper.written(kind, declared.as_deref(), *data, &at).await?.reference())
            }
        });
    }
    let text = Some(texts.join("\n")).filter(|_| !texts.is_empty());
    Ok(StoredContent { text, contents })
}

/// Checks the images of an input of the strict profile: each is an address that this host has signed, at the name under which
/// the client reaches it, and that is still good.
pub(crate) fn check_signed(app: &App, headers: &HeaderMap, input: &RunAgentInput) -> Result<(), Problem> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    for (place, message) in input.messages.iter().enumerate() {
        let MessageBody::User { content: Content::Parts(parts), .. } = &message.body else { continue };
        for (index, part) in parts.iter().enumerate() {
            let (Part::Image { source } | Part::Audio { source } | Part::Video { source } | Part::Document { source }) = part
            else {
                continue;
            };
            let signed = match source {
                Source::Url { value, .. } => read::signed_at(value, host),
                _ => None,
            };
            let is_good = |(id, expires, signature): (String, String, String)| {
                sign::check(app, &id, &expires, &signature) == SignatureCheck::Good
            };
            if !signed.is_some_and(is_good) {
                return Err(strict::not_signed(place, index));
            }
        }
    }
    Ok(())
}

/// A part of a message.
#[derive(Debug)]
enum PartContent<'a> {
    Text(&'a str),
    /// A part with media, and its path in the request.
    Media(Media, String),
    /// Likewise, whose bytes are on disk already.
    Spooled(Kind, Option<String>, Box<SpooledData>, String),
}

fn contents_of<'a>(place: usize, parts: &'a [Part], spooled: &SpooledFile) -> Result<Vec<PartContent<'a>>, Problem> {
    let mut count = 0;
    let read = parts.iter().enumerate().map(|(index, part)| {
        let (kind, source) = match part {
            Part::Text { text } => return Ok(PartContent::Text(text)),
            Part::Image { source } => (Kind::Image, source),
            Part::Audio { source } => (Kind::Audio, source),
            Part::Video { source } => (Kind::Video, source),
            Part::Document { source } => (Kind::Document, source),
        };
        let at = format!("messages[{place}].content[{index}]");
        count += 1;
        if count > MAX_MEDIA {
            return Err(refuse(ProblemCode::MediaTooLarge, &at, format!("a message has at most {MAX_MEDIA} parts beside texts")));
        }
        let on_disk = match source {
            Source::Data { value, mime_type } => spooled.take(value).map(|data| (data, Some(mime_type))),
            Source::Url { value, mime_type } => spooled.take(value).map(|data| (data, mime_type.as_ref())),
            Source::File { .. } => None,
        };
        if let Some((data, declared)) = on_disk {
            let declared = declared.or(data.media_type.as_ref()).cloned();
            if let Some(declared) = &declared {
                agent_host_runs::media::check_type(declared).map_err(|why| invalid(&at, why))?;
            }
            return Ok(PartContent::Spooled(kind, declared, Box::new(data), at));
        }
        match Media::of(kind, source) {
            Ok(media) => Ok(PartContent::Media(media, at)),
            Err(Flaw::Invalid(why)) => Err(invalid(&at, why)),
            Err(Flaw::Unavailable(why)) => Err(unavailable(&at, why)),
        }
    });
    read.collect()
}

/// The uploads that a part may name, beside the artifacts of its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Uploads of the workspace.
    Workspace,
    /// No uploads: each may be of another end user.
    Thread,
}

/// Keeps the parts of one message.
struct Keeper<'a> {
    app: &'a App,
    /// Scope of new artifacts: the thread.
    scope: ArtifactScope,
    /// Artifacts that a part may name by their id.
    by_id: Reach,
    /// Until when all that is fetched must have come: somebody waits for it.
    deadline: Instant,
}

impl Keeper<'_> {
    async fn keep(&self, media: Media, at: &str) -> Result<ArtifactRecord, Problem> {
        let Media { kind, declared, origin } = media;
        let declared = declared.as_deref();
        match origin {
            Origin::Inline(bytes) => self.add(kind, declared, bytes, at).await,
            Origin::Artifact(id) => self.artifact_of_id(kind, declared, id, self.by_id, at).await,
            Origin::Signed { id, expires, signature } => match sign::check(self.app, &id, &expires, &signature) {
                // Who has the signed address was given it.
                SignatureCheck::Good => self.artifact_of_id(kind, declared, id, Reach::Workspace, at).await,
                SignatureCheck::Changed => {
                    Err(invalid(at, "its address differs from the one that this host signed: use it unchanged"))
                }
                SignatureCheck::Expired => Err(unavailable(at, "the time of its signed address is over: ask for a new one")),
            },
            Origin::Url { url, artifact } => {
                if let Some(id) = artifact
                    && let Some(record) = self.find(id, self.by_id).await?
                {
                    return check_kind(kind, declared, record, at);
                }
                self.fetch(kind, declared, &url, at).await
            }
        }
    }

    /// Stores the bytes of a part.
    async fn add(&self, kind: Kind, declared: Option<&str>, bytes: Vec<u8>, at: &str) -> Result<ArtifactRecord, Problem> {
        let config = self.app.host.config();
        let limit = config.limits.upload_bytes.min(config.limits.artifact_bytes);
        if bytes.len() as u64 > limit {
            return Err(too_large(at, limit));
        }
        let media_type = kind.judge(declared, None, &bytes).map_err(|why| invalid(at, why))?;
        let spool = Spool::open(self.app, limit).await?.push(&bytes).await?;
        self.record(spool.end().await?, media_type, None).await
    }

    /// Makes an artifact of bytes that are on disk.
    async fn written(&self, kind: Kind, declared: Option<&str>, data: SpooledData, at: &str) -> Result<ArtifactRecord, Problem> {
        let media_type = kind.judge(declared, None, data.writer.head()).map_err(|why| invalid(at, why))?;
        self.record(data.writer, media_type, None).await
    }

    /// Finds an existing artifact.
    async fn artifact_of_id(
        &self,
        kind: Kind,
        declared: Option<&str>,
        id: String,
        reach: Reach,
        at: &str,
    ) -> Result<ArtifactRecord, Problem> {
        let missing = || unavailable(at, "it names an artifact that is not there for this thread: upload it, then name it");
        let record = self.find(id, reach).await?.ok_or_else(missing)?;
        check_kind(kind, declared, record, at)
    }

    /// An artifact that messages of the thread may name: of its workspace, and of no other conversation.
    async fn find(&self, id: String, reach: Reach) -> Result<Option<ArtifactRecord>, Problem> {
        let record = self.app.read(move |records| records.artifact(&id)).await?;
        let is_reached = |record: &ArtifactRecord| reach == Reach::Workspace || record.scope.conversation.is_some();
        let is_there = |record: &ArtifactRecord| !record.is_expired(time::now()) && is_for(&self.scope, &record.scope);
        Ok(record.filter(|record| is_there(record) && is_reached(record)))
    }

    /// Fetches from another address.
    async fn fetch(&self, kind: Kind, declared: Option<&str>, url: &str, at: &str) -> Result<ArtifactRecord, Problem> {
        let host = &self.app.host;
        let limit = host.fetch_limit();
        let failed = |error: ApiError| not_fetched(&error, limit, at);
        let mut response = host.fetch(url, self.deadline).await.map_err(failed)?;
        if response.head().status != 200 {
            return Err(unavailable(at, format!("its host answers with status {}", response.head().status)));
        }
        let served = content_type(&response);
        let mut spool = Spool::open(self.app, limit).await?;
        loop {
            let piece = response.read(WRITE_BYTES).await.map_err(failed)?;
            if piece.is_empty() {
                break;
            }
            spool = spool.push(&piece).await?;
        }
        let writer = spool.end().await?;
        let media_type = kind.judge(declared, served.as_deref(), writer.head()).map_err(|why| invalid(at, why))?;
        self.record(writer, media_type, name(url)).await
    }

    /// Makes an artifact of what was written.
    async fn record(&self, writer: BlobWriter, media_type: String, name: Option<String>) -> Result<ArtifactRecord, Problem> {
        let new = NewUpload { media_type, name, expires_in_ms: None, scope: self.scope.clone() };
        create_artifact(self.app, writer, new).await
    }
}

/// True if an artifact of one scope may be named in a thread.
fn is_for(thread: &ArtifactScope, its: &ArtifactScope) -> bool {
    its.workspace == thread.workspace && (its.conversation.is_none() || its.conversation == thread.conversation)
}

fn check_kind(kind: Kind, declared: Option<&str>, record: ArtifactRecord, at: &str) -> Result<ArtifactRecord, Problem> {
    kind.admit(&record.media_type, declared).map_err(|why| invalid(at, why))?;
    Ok(record)
}

/// The media type that a server says, where it says one.
fn content_type(response: &Response) -> Option<String> {
    let mut headers = response.head().headers.iter();
    let (_, value) = headers.find(|(name, _)| name == "content-type")?;
    agent_host_runs::media::check_type(value).is_ok().then(|| value.clone())
}

/// The name of the file behind a URL, where it looks like one.
fn name(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let (_, path) = rest.split(['?', '#']).next()?.split_once('/')?;
    let last = path.rsplit('/').next()?;
    // Encoded names are kept: people recognize them.
    plain_name(last).filter(|name| name.contains('.'))
}

/// The error for a failed fetch. The messages of egress speak of runs and grants, which mean nothing to a client.
fn not_fetched(error: &ApiError, limit: u64, at: &str) -> Problem {
    let category = error.details.as_ref().and_then(|details| details.get("code")).and_then(|code| code.as_str());
    match category.unwrap_or_default() {
        "response_too_large" => too_large(at, limit),
        "invalid_request" => invalid(at, format!("its address cannot be fetched: {}", error.message)),
        "host_not_allowed" => unavailable(
            at,
            "its address is of no host that this one fetches from (`agui.fetch_hosts`): send the data, or upload it",
        ),
        "address_not_allowed" => unavailable(at, "its host has no public address"),
        "redirect_not_allowed" | "too_many_redirects" => {
            unavailable(at, "its address leads on to where this host does not follow")
        }
        "http_timeout" => unavailable(at, "its host did not give it in time"),
        _ => unavailable(at, error.message.clone()),
    }
}

fn refuse(code: ProblemCode, at: &str, why: impl AsRef<str>) -> Problem {
    Problem::at(code, at, format!("`{at}`: {}", why.as_ref()))
}

fn invalid(at: &str, why: impl AsRef<str>) -> Problem {
    refuse(ProblemCode::MediaInvalid, at, why)
}

fn unavailable(at: &str, why: impl AsRef<str>) -> Problem {
    refuse(ProblemCode::MediaUnavailable, at, why)
}

fn too_large(at: &str, limit: u64) -> Problem {
    refuse(ProblemCode::MediaTooLarge, at, format!("it has more than {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use agent_host_config::Config;
    use agent_host_protocol::{Principal, PrincipalKind, Scope};
    use agent_host_runs::{Host, UPLOAD};
    use base64::{Engine, engine::general_purpose::STANDARD};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tokio_util::sync::CancellationToken;

    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";
    const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\x10JFIF\0";

    struct World {
        app: App,
        caller: Caller,
        _dir: tempfile::TempDir,
    }

    impl World {
        /// A host that fetches from these hosts, also on this machine.
        async fn new(fetch_hosts: &[&str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let mut config = Config::default_in(dir.path());
            config.egress.allow_addresses = vec!["127.0.0.0/8".to_owned()];
            config.agui.fetch_hosts = fetch_hosts.iter().map(|host| (*host).to_owned()).collect();
            config.agui.fetch_bytes = 1_000;
            config.agui.fetch_ms = 1_500;
            config.limits.upload_bytes = 2_000;
            let host = Host::start(config).await.unwrap();
            let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
            let shares = crate::app::ProcessShares::new(&host.config());
            let app = App::new(host, address, CancellationToken::new(), shares);
            Self { app, caller: caller(Some("w")), _dir: dir }
        }

        async fn declared(&self, parts: Vec<Part>) -> Result<StoredContent, Problem> {
            stored(&self.app, &self.caller, &key(&self.caller, "t"), 3, &Content::Parts(parts), &SpooledFile::default()).await
        }

        async fn one(&self, part: Part) -> Result<StoredContent, Problem> {
            self.declared(vec![Part::Text { text: "look".into() }, part]).await
        }

        async fn expect_refusal(&self, part: Part, code: ProblemCode, says: &str) {
            let text = format!("{part:?}");
            let problem = self.one(part).await.expect_err(&text);
            assert_eq!((problem.code(), problem.field()), (code, Some("messages[3].content[1]")), "{text}");
            assert_eq!(code.status().as_u16(), 422);
            assert!(problem.detail().starts_with("`messages[3].content[1]`: "), "{problem:?}");
            assert!(problem.detail().contains(says), "{text}: {problem:?}");
        }

        /// The artifact that a message has beside its text, and its content.
        async fn expect_record(&self, part: Part) -> (ArtifactRecord, Vec<u8>) {
            let stored = self.one(part).await.unwrap();
            let [ContentPart::Text(_), ContentPart::Artifact(artifact)] = stored.contents.as_slice() else {
                panic!("{stored:?}")
            };
            let record = self.app.host.ledger().artifact(&artifact.artifact_id).unwrap().unwrap();
            assert_eq!(&record.reference(), artifact);
            let blob = self.app.host.ledger().blob(&record.sha256).unwrap().unwrap();
            let bytes = blob.read_at(0, 1 << 20).unwrap();
            (record, bytes)
        }
    }

    fn caller(workspace: Option<&str>) -> Caller {
        Caller(Principal {
            kind: PrincipalKind::Loopback,
            name: "loopback".to_owned(),
            scopes: [Scope::EventsWrite].into(),
            workspace: workspace.map(str::to_owned),
            end_user: None,
        })
    }

    fn key(caller: &Caller, thread: &str) -> ConversationKey {
        ConversationKey::new(caller.0.workspace.as_deref().unwrap_or_default(), thread, "")
    }

    fn data(bytes: &[u8], mime_type: &str) -> Part {
        Part::Image { source: Source::Data { value: STANDARD.encode(bytes), mime_type: mime_type.into() } }
    }

    fn at(url: impl Into<String>) -> Part {
        Part::Image { source: Source::Url { value: url.into(), mime_type: None } }
    }

    fn file(id: &str) -> Part {
        Part::Image { source: Source::File { value: id.into(), provider: None, mime_type: None } }
    }

    /// A server that knows a few files.
    async fn server() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut request = vec![0; 4096];
                    let read = stream.read(&mut request).await.unwrap();
                    let request = String::from_utf8_lossy(&request[..read]).into_owned();
                    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                    let large = vec![b'x'; 1_001];
                    let (head, body): (&str, &[u8]) = match path.as_str() {
                        "/a.png" => ("200 OK\r\ncontent-type: image/png", PNG),
                        "/odd" => ("200 OK\r\ncontent-type: nonsense", PNG),
                        "/text" => ("200 OK\r\ncontent-type: text/plain", b"hello"),
                        "/page" => ("200 OK\r\ncontent-type: image/png", b"<html></html>"),
                        "/moved" => ("302 Found\r\nlocation: /a.png", b""),
                        "/inside" => ("302 Found\r\nlocation: http://169.254.169.254/latest", b""),
                        "/away" => ("302 Found\r\nlocation: http://localhost:9/a.png", b""),
                        "/large" => ("200 OK\r\ncontent-type: image/png", &large),
                        "/slow" => {
                            tokio::time::sleep(std::time::Duration::from_secs(10)).await;
                            return;
                        }
                        _ => ("404 Not Found", b""),
                    };
                    let head = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                    let _ = stream.write_all(head.as_bytes()).await;
                    let _ = stream.write_all(body).await;
                });
            }
        });
        port
    }

    #[tokio::test]
    async fn texts_stay_and_bytes_become_artifacts_of_the_thread() {
        let world = World::new(&[]).await;
        let plain = Content::Text("hi".into());
        let stored =
            stored(&world.app, &world.caller, &key(&world.caller, "t"), 0, &plain, &SpooledFile::default()).await.unwrap();
        assert_eq!(stored, StoredContent { text: Some("hi".into()), contents: Vec::new() });
        let text = |text: &str| Part::Text { text: text.into() };
        let stored = world.declared(vec![text("a"), data(PNG, "image/png"), text("b")]).await.unwrap();
        assert_eq!(stored.text.as_deref(), Some("a\nb"));
        assert!(matches!(stored.contents.as_slice(), [
            ContentPart::Text(a), ContentPart::Artifact(_), ContentPart::Text(b),
        ] if a == "a" && b == "b"));
        assert_eq!(world.declared(Vec::new()).await.unwrap(), StoredContent { text: None, contents: Vec::new() });

        let (record, bytes) = world.expect_record(data(PNG, "IMAGE/png")).await;
        assert_eq!((record.media_type.as_str(), bytes.as_slice(), record.size), ("image/png", PNG, PNG.len() as u64));
        assert_eq!((record.source.as_str(), record.scope.workspace.as_str()), (UPLOAD, "w"));
        let conversation = record.scope.conversation.clone().unwrap();
        assert_eq!((conversation.workspace(), conversation.conversation()), ("w", "t"));
        let url = format!("data:image/png;base64,{}", STANDARD.encode(PNG));
        assert_eq!(world.expect_record(at(url)).await.1, PNG);
    }

    #[tokio::test]
    async fn content_of_a_wrong_type_is_refused_with_its_path() {
        use ProblemCode::{MediaInvalid, MediaTooLarge, MediaUnavailable};
        let world = World::new(&[]).await;
        let broken = Source::Data { value: "AA=A".into(), mime_type: "image/png".into() };
        world.expect_refusal(Part::Image { source: broken }, MediaInvalid, "base64").await;
        world.expect_refusal(data(b"hello", "image/png"), MediaInvalid, "text/plain").await;
        world.expect_refusal(data(JPEG, "image/png"), MediaInvalid, "image/jpeg").await;
        world.expect_refusal(data(PNG, "png"), MediaInvalid, "malformed").await;
        world.expect_refusal(data(b"", "image/png"), MediaInvalid, "no bytes").await;
        let large = [PNG, &[0; 2_000]].concat();
        world.expect_refusal(data(&large, "image/png"), MediaTooLarge, "2000 bytes").await;
        world.expect_refusal(file("0198c2f1-aaaa-7bbb-8ccc-0123456789ab"), MediaUnavailable, "not there").await;
        world.expect_refusal(file("no id at all"), MediaUnavailable, "not there").await;
        world.expect_refusal(at("https://a.example/x.png"), MediaUnavailable, "agui.fetch_hosts").await;
        world.expect_refusal(at("file:///etc/passwd"), MediaInvalid, "http://").await;
        world.expect_refusal(at("/etc/passwd"), MediaInvalid, "nothing there").await;
        let many = vec![data(PNG, "image/png"); MAX_MEDIA + 1];
        let problem = world.declared(many).await.unwrap_err();
        assert_eq!((problem.code(), problem.field()), (MediaTooLarge, Some("messages[3].content[64]")));
    }

    #[tokio::test]
    async fn existing_artifacts_are_named_and_not_stored_again() {
        use ProblemCode::{MediaInvalid, MediaUnavailable};
        let world = World::new(&[]).await;
        let (record, _) = world.expect_record(data(PNG, "image/png")).await;
        let id = record.artifact_id.clone();
        let expires = time::now() + 60_000;
        let signed = sign::url(&world.app, &id, expires);
        for part in [
            file(&id),
            at(&*signed),
            at(format!("https://proxy.example/below{signed}")),
            at(format!("/api/v1/artifacts/{id}/content")),
            at(format!("https://proxy.example/api/v1/artifacts/{id}")),
        ] {
            assert_eq!(world.expect_record(part).await.0.artifact_id, id);
        }
        let later = signed.replace(&format!("expires={expires}"), &format!("expires={}", expires + 1));
        world.expect_refusal(at(later), MediaInvalid, "signed").await;
        let old = sign::url(&world.app, &id, time::now() - 1);
        world.expect_refusal(at(old), MediaUnavailable, "over").await;
        let audio = Part::Audio { source: Source::File { value: id.clone(), provider: None, mime_type: None } };
        world.expect_refusal(audio, MediaInvalid, "image/png").await;

        // The artifact belongs to its thread and to its workspace.
        let content = Content::Parts(vec![file(&id)]);
        let elsewhere = stored(&world.app, &world.caller, &key(&world.caller, "other"), 0, &content, &SpooledFile::default())
            .await
            .unwrap_err();
        assert_eq!((elsewhere.code(), elsewhere.field()), (MediaUnavailable, Some("messages[0].content[0]")));
        for workspace in [Some("v"), None] {
            let content = Content::Parts(vec![at(&*signed)]);
            let foreign =
                stored(&world.app, &caller(workspace), &key(&caller(workspace), "t"), 0, &content, &SpooledFile::default())
                    .await
                    .unwrap_err();
            assert_eq!(foreign.code(), MediaUnavailable);
        }
    }

    #[tokio::test]
    async fn media_of_allowed_hosts_are_fetched() {
        use ProblemCode::{MediaInvalid, MediaTooLarge, MediaUnavailable};
        let port = server().await;
        let world = World::new(&[&format!("127.0.0.1:{port}"), "169.254.169.254:80"]).await;
        let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
        let (record, bytes) = world.expect_record(at(url("/a.png"))).await;
        assert_eq!((record.name.as_deref(), record.media_type.as_str(), bytes.as_slice()), (Some("a.png"), "image/png", PNG));
        for path in ["/moved", "/odd"] {
            assert_eq!(world.expect_record(at(url(path))).await.1, PNG);
        }
        let document = Part::Document { source: Source::Url { value: url("/text"), mime_type: None } };
        assert_eq!(world.expect_record(document).await.0.media_type, "text/plain");
        world.expect_refusal(at(url("/text")), MediaInvalid, "text/plain").await;
        world.expect_refusal(at(url("/page")), MediaInvalid, "text/html").await;
        let declared = Part::Image { source: Source::Url { value: url("/a.png"), mime_type: Some("image/gif".into()) } };
        world.expect_refusal(declared, MediaInvalid, "image/gif").await;
        world.expect_refusal(at(url("/gone")), MediaUnavailable, "404").await;
        world.expect_refusal(at(url("/large")), MediaTooLarge, "1000 bytes").await;
        world.expect_refusal(at(url("/away")), MediaUnavailable, "leads on").await;
        world.expect_refusal(at(url("/inside")), MediaUnavailable, "public").await;
        world.expect_refusal(at("http://169.254.169.254/latest"), MediaUnavailable, "public").await;
        world.expect_refusal(at("http://localhost:1/a.png"), MediaUnavailable, "agui.fetch_hosts").await;
        world.expect_refusal(at(url("/slow")), MediaUnavailable, "in time").await;
    }

    #[test]
    fn a_name_is_the_last_of_a_path() {
        for (url, expect) in [
            ("https://a.example/x/a.png?b=c.d", Some("a.png")),
            ("https://a.example/a%2Fb.png#x", Some("a%2Fb.png")),
            ("https://a.example", None),
            ("https://a.example/", None),
            ("https://a.example/x", None),
            ("https://a.example/../..", None),
        ] {
            assert_eq!(name(url).as_deref(), expect, "{url}");
        }
    }
}
