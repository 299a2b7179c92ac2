//! The chat page: a client of AG-UI for trying an agent.

use std::sync::LazyLock;

use axum::{http::HeaderMap, response::Response};

use super::page::{self, HTML, PageFile};
use crate::{
    http::{Path, Problem},
    openapi::refusals,
};

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

struct File {
    name: &'static str,
    media_type: &'static str,
    text: &'static str,
}

macro_rules! file {
    ($name:literal, $media_type:expr) => {
        File { name: $name, media_type: $media_type, text: include_str!(concat!("chat/", $name)) }
    };
}

const INDEX: File = file!("index.html", HTML);

/// The files of the page.
const FILES: &[File] = &[
    file!("agui.js", SCRIPT),
    file!("asks.js", SCRIPT),
    file!("chat.css", CSS),
    file!("chat.js", SCRIPT),
    file!("host.js", SCRIPT),
    file!("view.js", SCRIPT),
];

/// The tag of all files together.
static ETAG: LazyLock<String> =
    LazyLock::new(|| page::etag(FILES.iter().chain([&INDEX]).map(|file| file.text.as_bytes().into())));

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
    params(("file" = String, Path, description = "Its name, such as `chat.js`.")),
    responses(
        (status = 200, description = "The file.", content((String = "text/javascript"), (String = "text/css"))),
        (status = 304, description = "The file has not changed (`If-None-Match`)."),
        FileRefusals))]
pub(crate) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    let file = FILES.iter().find(|file| file.name == name);
    file.map(|file| serve(file, &headers)).ok_or_else(|| Problem::not_found("the chat page has no such file"))
}

refusals!(FileRefusals = [NotFound]);

fn serve(file: &File, headers: &HeaderMap) -> Response {
    page::respond(&PageFile { media_type: file.media_type, bytes: file.text.as_bytes().into(), etag: &ETAG }, headers)
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
        let text: String = FILES.iter().chain([&INDEX]).map(|file| file.text).collect();
        let mut named: Vec<&str> = text.split("\"/chat/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        named.extend(text.split(" from './").skip(1).filter_map(|rest| rest.split('\'').next()));
        assert!(named.contains(&"chat.js") && named.contains(&"view.js"), "{named:?}");
        for name in named {
            let response = file(Path(name.to_owned()), HeaderMap::new()).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{name}");
            assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], page::POLICY);
        }
        // The policy forbids both, so neither may be needed.
        for inline in ["<style", " style=", "innerHTML", "eval(", " onclick=\"", "https://"] {
            assert!(!text.contains(inline), "{inline}");
        }
    }

    #[tokio::test]
    async fn missing_artifacts_are_problems_and_unchanged_ones_are_not_sent() {
        for name in ["../chat.rs", "index.html", "", "chat.js/"] {
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
