//! The chat page: a client of AG-UI for trying an agent.
//!
//! A runner may be hostile, so its answers are Markdown that passes a parser and a sanitizer (`chat/markdown.js`), and the policy of
//! the page forbids all other ways of making elements of text. The two scripts of others are part of the binary as npm has them.

use std::sync::LazyLock;

use axum::{
    http::{HeaderMap, HeaderValue},
    response::Response,
};

use super::page::{self, HTML, PageFile};
use crate::{
    http::{Path, Problem},
    openapi::refusals,
};

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// The policy of the page: that of every page, and HTML is made by the sanitizer alone.
const POLICY: HeaderValue =
    HeaderValue::from_static(page::policy!("; require-trusted-types-for 'script'; trusted-types dompurify"));

struct File {
    name: &'static str,
    media_type: &'static str,
    text: &'static str,
}

macro_rules! file {
    ($name:literal, $media_type:expr $(, $folder:literal)?) => {
        File { name: $name, media_type: $media_type, text: include_str!(concat!("chat/", $($folder,)? $name)) }
    };
}

const INDEX: File = file!("index.html", HTML);

/// The files of the page that this project has written.
const OWN: &[File] = &[
    file!("asks.js", SCRIPT),
    file!("base.css", CSS),
    file!("composer.js", SCRIPT),
    file!("conversation.css", CSS),
    file!("dom.js", SCRIPT),
    file!("host.js", SCRIPT),
    file!("interface.js", SCRIPT),
    file!("layout.css", CSS),
    file!("markdown.css", CSS),
    file!("markdown.js", SCRIPT),
    file!("media.js", SCRIPT),
    file!("page.js", SCRIPT),
    file!("patch.js", SCRIPT),
    file!("session.js", SCRIPT),
    file!("stream.js", SCRIPT),
    file!("thread.js", SCRIPT),
    file!("threads.js", SCRIPT),
    file!("view.js", SCRIPT),
];

/// Scripts from npm, with their versions and licenses in `licenses.txt`.
const VENDORED: &[File] = &[
    file!("licenses.txt", TEXT, "vendor/"),
    file!("markdown-it.umd.min.js", SCRIPT, "vendor/"),
    file!("purify.min.js", SCRIPT, "vendor/"),
];

fn files() -> impl Iterator<Item = &'static File> {
    OWN.iter().chain(VENDORED)
}

/// The tag of all files together.
static ETAG: LazyLock<String> = LazyLock::new(|| page::etag(files().chain([&INDEX]).map(|file| file.text.as_bytes().into())));

/// The chat page
///
/// A page for trying an agent in a browser. The page asks for a key if the API needs one.
#[utoipa::path(get, path = "/", tag = "chat", security(()), responses(
    (status = 200, description = "The page.", content_type = "text/html", body = String),
    (status = 304, description = "The page has not changed (`If-None-Match`).")))]
pub(crate) async fn page(headers: HeaderMap) -> Response {
    serve(&INDEX, &headers)
}

/// A script or style sheet of the chat page
#[utoipa::path(get, path = "/chat/{file}", tag = "chat", security(()),
    params(("file" = String, Path, description = "Its name, such as `page.js`.")),
    responses(
        (status = 200, description = "The file.", content(
            (String = "text/javascript"), (String = "text/css"), (String = "text/plain"))),
        (status = 304, description = "The file has not changed (`If-None-Match`)."),
        FileRefusals))]
pub(crate) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    let file = files().find(|file| file.name == name);
    file.map(|file| serve(file, &headers)).ok_or_else(|| Problem::not_found("the chat page has no such file"))
}

refusals!(FileRefusals = [NotFound]);

fn serve(file: &File, headers: &HeaderMap) -> Response {
    let (media_type, bytes) = (file.media_type, file.text.as_bytes().into());
    page::respond(&PageFile { media_type, bytes, etag: &ETAG, policy: POLICY }, headers)
}

#[cfg(test)]
mod tests {
    use axum::http::{StatusCode, header};

    use super::*;

    fn if_none_match(etag: &str) -> HeaderMap {
        [(header::IF_NONE_MATCH, etag.parse().unwrap())].into_iter().collect()
    }

    #[tokio::test]
    async fn every_file_that_the_page_names_is_there_and_may_run_nothing_else() {
        let text: String = OWN.iter().chain([&INDEX]).map(|file| file.text).collect();
        let mut named: Vec<&str> = text.split("\"/chat/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        named.extend(text.split(" from './").skip(1).filter_map(|rest| rest.split('\'').next()));
        assert!(named.contains(&"page.js") && named.contains(&"view.js") && named.contains(&"purify.min.js"), "{named:?}");
        for name in named {
            let response = file(Path(name.to_owned()), HeaderMap::new()).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{name}");
            assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        }
        // The policy forbids these, so none may be needed.
        for inline in ["<style", " style=", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", " onclick=\"", "https://"] {
            assert!(!text.contains(inline), "{inline}");
        }
        let policy = POLICY.to_str().unwrap().to_owned();
        assert!(
            policy.contains("script-src 'self'; ") && !policy.contains("unsafe") && policy.contains("require-trusted-types-for")
        );
    }

    #[test]
    fn every_script_of_others_has_its_version_and_license() {
        let licenses = VENDORED.iter().find(|file| file.name == "licenses.txt").unwrap().text;
        for file in VENDORED.iter().filter(|file| file.media_type == SCRIPT) {
            assert!(licenses.contains(&format!(": {}, from dist", file.name)), "{}", file.name);
        }
        // The script says which version it is.
        let purify = VENDORED.iter().find(|file| file.name == "purify.min.js").unwrap().text;
        let version = purify.split("DOMPurify ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        assert!(licenses.contains(&format!("dompurify {version} ")), "{version}");
    }

    #[tokio::test]
    async fn missing_artifacts_are_problems_and_unchanged_ones_are_not_sent() {
        for name in ["../chat.rs", "index.html", "", "page.js/"] {
            let problem = file(Path(name.to_owned()), HeaderMap::new()).await.unwrap_err();
            assert_eq!(problem.code().status(), StatusCode::NOT_FOUND, "{name}");
        }
        let first = page(HeaderMap::new()).await;
        assert_eq!(first.headers()[header::CONTENT_TYPE], HTML);
        let etag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        assert_eq!(page(if_none_match(&etag)).await.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(page(if_none_match("\"another\"")).await.status(), StatusCode::OK);
    }
}
