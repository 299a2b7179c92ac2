//! `/docs`: the description of the API as a page, by Swagger UI. Its files are part of the binary, and the page asks no other host.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use axum::{http::HeaderMap, response::Response};
use utoipa_swagger_ui::Config;

use super::page::{self, PageFile};
use crate::{
    http::{Path, Problem},
    openapi::refusals,
};

const INDEX: &str = include_str!("docs/index.html");
/// The files that the page names. The rest of Swagger UI is for other ways of serving it.
const FILES: [&str; 5] =
    ["swagger-ui.css", "favicon-32x32.png", "swagger-ui-bundle.js", "swagger-ui-standalone-preset.js", "swagger-initializer.js"];

/// The tag of all files together.
static ETAG: LazyLock<String> = LazyLock::new(|| {
    page::etag([INDEX.as_bytes().into()].into_iter().chain(FILES.into_iter().filter_map(|name| Some(read(name)?.1))))
});

/// A file of Swagger UI: its media type and its bytes.
fn read(name: &str) -> Option<(String, Cow<'static, [u8]>)> {
    // No validator of another host, and the codes of each refusal (`x-problem-codes`).
    let config = Config::from("/api/v1/openapi.json").use_base_layout().validator_url("none").show_extensions(true);
    let file = utoipa_swagger_ui::serve(name, Arc::new(config)).ok()??;
    Some((file.content_type, file.bytes))
}

/// The description of this API, as a page
///
/// The page shows the operations and sends requests with the key that it is given.
#[utoipa::path(get, path = "/docs", tag = "host", security(()), responses(
    (status = 200, description = "The page.", content_type = "text/html", body = String),
    (status = 304, description = "The page has not changed (`If-None-Match`).")))]
pub(crate) async fn docs(headers: HeaderMap) -> Response {
    page::respond(
        &PageFile { media_type: page::HTML, bytes: INDEX.as_bytes().into(), etag: &ETAG, policy: page::POLICY },
        &headers,
    )
}

/// A script or style sheet of the page that describes this API
#[utoipa::path(get, path = "/docs/{file}", tag = "host", security(()),
    params(("file" = String, Path, description = "Its name, such as `swagger-ui.css`.")),
    responses(
        (status = 200, description = "The file.", content(
            (String = "text/javascript"), (String = "text/css"), (crate::openapi::Bytes = "image/png"))),
        (status = 304, description = "The file has not changed (`If-None-Match`)."),
        FileRefusals))]
pub(crate) async fn docs_file(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    let file = FILES.iter().find(|file| **file == name).and_then(|name| read(name));
    let (media_type, bytes) = file.ok_or_else(|| Problem::not_found("the page of the API has no such file"))?;
    Ok(page::respond(&PageFile { media_type: &media_type, bytes, etag: &ETAG, policy: page::POLICY }, &headers))
}

refusals!(FileRefusals = [NotFound]);

#[cfg(test)]
mod tests {
    use axum::{
        body::to_bytes,
        http::{StatusCode, header},
    };

    use super::*;

    #[tokio::test]
    async fn every_file_that_the_page_names_is_there() {
        let named: Vec<&str> = INDEX.split("\"/docs/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(named.len(), FILES.len());
        for name in named {
            let response = docs_file(Path(name.to_owned()), HeaderMap::new()).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{name}");
            assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], page::POLICY);
            assert!(!to_bytes(response.into_body(), 10_000_000).await.unwrap().is_empty(), "{name}");
        }
        let problem = docs_file(Path("index.html".to_owned()), HeaderMap::new()).await.unwrap_err();
        assert_eq!(problem.code().status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn the_page_asks_this_host_alone() {
        let (_, script) = read("swagger-initializer.js").unwrap();
        let script = String::from_utf8(script.into_owned()).unwrap();
        assert!(script.contains("\"/api/v1/openapi.json\"") && script.contains("\"validatorUrl\": \"none\""), "{script}");
        assert!(!script.contains("http") && !INDEX.contains("http"), "{script}");
    }
}
