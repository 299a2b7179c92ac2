//! An identity provider of a test: keys made in the test, tokens signed with them, and a server on loopback that publishes the keys.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use agent_host_tests::support::now;
use aws_lc_rs::{
    encoding::AsDer,
    rsa::{KeyPair, KeySize},
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use axum::{Router, http::StatusCode, response::IntoResponse, routing::get};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, jwk::Jwk};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

/// Bytes before the key itself in PKCS #8 of an RSA key of 2048 bits.
const PKCS8_HEAD: usize = 26;

/// A pair of keys.
pub struct Pair {
    pub kid: String,
    pub algorithm: Algorithm,
    secret: EncodingKey,
}

impl Pair {
    pub fn rsa(kid: &str) -> Self {
        let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
        let der = AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&pair).unwrap();
        Self { kid: kid.to_owned(), algorithm: Algorithm::RS256, secret: EncodingKey::from_rsa_der(&der.as_ref()[PKCS8_HEAD..]) }
    }

    pub fn ec(kid: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let secret = EncodingKey::from_ec_der(pair.to_pkcs8v1().unwrap().as_ref());
        Self { kid: kid.to_owned(), algorithm: Algorithm::ES256, secret }
    }

    /// The public key, as a set has it.
    pub fn public(&self) -> Value {
        let mut jwk = serde_json::to_value(Jwk::from_encoding_key(&self.secret, self.algorithm).unwrap()).unwrap();
        jwk["kid"] = json!(self.kid);
        jwk["use"] = json!("sig");
        jwk
    }

    /// A token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        self.signed(self.algorithm, &json!({ "kid": self.kid, "typ": "JWT" }), claims)
    }

    /// A token with these members of the header beside `alg`.
    pub fn signed(&self, algorithm: Algorithm, header: &Value, claims: &Value) -> String {
        let mut whole = json!({ "alg": algorithm });
        whole.as_object_mut().unwrap().extend(header.as_object().unwrap().clone());
        let text = format!("{}.{}", part(&whole), part(claims));
        let signature = jsonwebtoken::crypto::sign(text.as_bytes(), &self.secret, algorithm).unwrap();
        format!("{text}.{signature}")
    }

    /// A token by the library alone, as other issuers make it.
    pub fn by_library(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.kid.clone()), ..Header::new(self.algorithm) };
        jsonwebtoken::encode(&header, claims, &self.secret).unwrap()
    }
}

/// A part of a token.
pub fn part(value: &Value) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(value.to_string())
}

/// Seconds since 1970.
pub fn seconds() -> u64 {
    now() / 1000
}

/// The claims of a good token.
pub fn claims(provider: &str, user: &str) -> Value {
    json!({ "iss": issuer(provider), "aud": ["agents", "others"], "sub": user, "iat": seconds(), "exp": seconds() + 600 })
}

/// The same claims with others.
pub fn with(mut claims: Value, others: Value) -> Value {
    claims.as_object_mut().unwrap().extend(others.as_object().unwrap().clone());
    claims
}

pub fn issuer(provider: &str) -> String {
    format!("https://{provider}.example/realms/main")
}

/// The entry of the configuration.
pub fn entry(provider: &str, more: &str) -> String {
    format!(
        r#"
[[identity_providers]]
name = "{provider}"
issuer = "{}"
audiences = ["agents"]
workspace = "w"
scopes = ["events:write", "runs:read", "runs:control", "actions:respond"]
leeway_ms = 1000
refetch_ms = 500
fetch_ms = 2000
{more}
"#,
        issuer(provider)
    )
}

/// The answer of a server of keys.
#[derive(Clone)]
struct Published {
    status: StatusCode,
    body: String,
    delay: Duration,
    fetches: Arc<AtomicUsize>,
}

/// A server of keys that can go away and come back.
pub struct KeyServer {
    port: u16,
    published: Arc<Mutex<Published>>,
    serving: Option<JoinHandle<()>>,
}

impl KeyServer {
    /// A server that publishes these keys.
    pub async fn start(keys: &[&Pair]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let published = Published { status: StatusCode::OK, body: String::new(), delay: Duration::ZERO, fetches: Arc::default() };
        let port = listener.local_addr().unwrap().port();
        let mut this = Self { port, published: Arc::new(Mutex::new(published)), serving: None };
        this.publish(keys);
        this.serve(listener);
        this
    }

    fn serve(&mut self, listener: TcpListener) {
        let published = Arc::clone(&self.published);
        let answer = async move || {
            let Published { status, body, delay, fetches } = published.lock().unwrap().clone();
            fetches.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(delay).await;
            (status, [("location", "/elsewhere")], body).into_response()
        };
        let elsewhere = Arc::clone(&self.published);
        let moved = async move || elsewhere.lock().unwrap().body.clone();
        let routes = Router::new().route("/keys", get(answer)).route("/elsewhere", get(moved));
        self.serving = Some(tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() }));
    }

    /// Publishes these keys instead.
    pub fn publish(&self, keys: &[&Pair]) {
        self.publish_text(&json!({ "keys": keys.iter().map(|pair| pair.public()).collect::<Vec<_>>() }).to_string());
    }

    pub fn publish_text(&self, body: &str) {
        self.published.lock().unwrap().body = body.to_owned();
    }

    pub fn answer_with(&self, status: u16) {
        self.published.lock().unwrap().status = StatusCode::from_u16(status).unwrap();
    }

    pub fn delay(&self, delay: Duration) {
        self.published.lock().unwrap().delay = delay;
    }

    /// The number of requests for keys.
    pub fn fetches(&self) -> usize {
        self.published.lock().unwrap().fetches.load(Ordering::SeqCst)
    }

    /// The server listens no more.
    pub async fn go_away(&mut self) {
        let serving = self.serving.take().expect("it serves");
        serving.abort();
        let _ = serving.await;
        // A connection that was kept still has its own task: it answers with an error.
        self.answer_with(500);
    }

    /// Listens again, at the same port.
    pub async fn come_back(&mut self) {
        self.answer_with(200);
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        self.serve(listener);
    }

    /// The line of the configuration.
    pub fn url(&self) -> String {
        format!("jwks_url = \"http://127.0.0.1:{}/keys\"", self.port)
    }
}

impl Drop for KeyServer {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}
