//! Tokens that are not good: each is refused with 401, and the refusal says what to do.

use aws_lc_rs::hmac;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::Algorithm;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    Who, World,
    provider::{KeyServer, Pair, claims, entry, issuer, part, seconds, with},
};
use crate::agui::support::{plain, problem};

/// The trick: the public key, which everybody has, as the secret of an HMAC.
fn hmac_with(secret: &[u8], kid: &str) -> String {
    let text = format!("{}.{}", part(&json!({ "alg": "HS256", "kid": kid, "typ": "JWT" })), part(&claims("login", "ada")));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text.as_bytes());
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

/// The public RSA key of a set in DER (PKCS #1), as some programs hand it on.
fn der(jwk: &Value) -> Vec<u8> {
    let number = |name: &str| {
        let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(plain(&jwk[name])).unwrap();
        if bytes[0] >= 0x80 {
            bytes.insert(0, 0);
        }
        [&[2, 0x82, (bytes.len() >> 8) as u8, bytes.len() as u8], &bytes[..]].concat()
    };
    let both = [number("n"), number("e")].concat();
    [&[0x30, 0x82, (both.len() >> 8) as u8, both.len() as u8], &both[..]].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_not_good_is_refused_and_its_sender_learns_why() {
    let (rsa, ec, stranger) = (Pair::rsa("rsa"), Pair::ec("ec"), Pair::rsa("rsa"));
    let (wrong_use, wrong_ops) = (Pair::ec("enc"), Pair::ec("ops"));
    let server = KeyServer::start(&[]).await;
    let changed = |pair: &Pair, member: &str, value: Value| with(pair.public(), json!({ member: value }));
    let keys = json!([
        rsa.public(),
        ec.public(),
        changed(&wrong_use, "use", json!("enc")),
        changed(&wrong_ops, "key_ops", json!(["sign"])),
        { "kty": "oct", "kid": "oct", "alg": "HS256", "k": "AAAA" },
    ]);
    server.publish_text(&json!({ "keys": keys }).to_string());
    let more = format!("{}\ntoken_bytes = 2000\nalgorithms = [\"RS256\", \"PS256\", \"ES256\"]", server.url());
    let world = World::start(&entry("login", &more)).await;
    let good = || claims("login", "ada");
    let rs = |more: Value| rsa.token(&with(good(), more));
    let headed = |header: Value| rsa.signed(Algorithm::RS256, &with(json!({ "kid": "rsa" }), header), &good());
    for token in [rs(json!({})), ec.token(&good()), rs(json!({ "aud": "agents" })), headed(json!({ "typ": "at+jwt" }))] {
        assert_eq!(world.status(&token).await, 200);
    }
    // The leeway of a second, and not more.
    assert_eq!(world.status(&rs(json!({ "exp": seconds(), "nbf": seconds() }))).await, 200);
    let public = rsa.public();
    let whole = rs(json!({}));
    let (signed, signature) = whole.rsplit_once('.').unwrap();
    let other_user = format!("{}.{}.{signature}", signed.split('.').next().unwrap(), part(&claims("login", "bob")));
    let cases = [
        ("expired", rs(json!({ "exp": seconds() - 3 })), "`exp`"),
        ("without an end", rs(json!({ "exp": null })), "`exp`"),
        ("not yet valid", rs(json!({ "nbf": seconds() + 60 })), "`nbf`"),
        ("for another audience", rs(json!({ "aud": ["others"] })), "`aud`"),
        ("for no audience", rs(json!({ "aud": null })), "`aud`"),
        ("of another issuer", rs(json!({ "iss": "https://evil.example/" })), "`iss`"),
        ("of an issuer with a longer name", rs(json!({ "iss": format!("{}/", issuer("login")) })), "`iss`"),
        ("of several issuers", rs(json!({ "iss": [issuer("login")] })), "`iss`"),
        ("without a user", rs(json!({ "sub": "" })), "`sub`"),
        ("of a user with a long name", rs(json!({ "sub": "x".repeat(129) })), "`sub`"),
        ("of a user with a line break", rs(json!({ "sub": "a\nb" })), "`sub`"),
        ("too long", rs(json!({ "groups": "x".repeat(2000) })), "`token_bytes`"),
        ("HMAC with the modulus", hmac_with(plain(&public["n"]).as_bytes(), "rsa"), "`alg`"),
        ("HMAC with the DER", hmac_with(&der(&public), "rsa"), "`alg`"),
        ("HMAC with the secret of the set", hmac_with(&[0, 0, 0], "oct"), "`alg`"),
        ("unsigned", format!("{}.{}.", part(&json!({ "alg": "none" })), part(&good())), "`alg`"),
        (
            "unsigned with a signature",
            format!("{}.{}.{signature}", part(&json!({ "alg": "none", "kid": "rsa" })), part(&good())),
            "`alg`",
        ),
        ("without its signature", format!("{signed}."), "signature"),
        ("with the claims of another", other_user, "signature"),
        ("of another key by the same name", stranger.token(&good()), "signature"),
        ("with an extension", headed(json!({ "crit": ["exp"], "exp": 1 })), "`crit`"),
        ("of another type", headed(json!({ "typ": "logout+jwt" })), "`typ`"),
        (
            "with an algorithm that its key does not have",
            rsa.signed(Algorithm::PS256, &json!({ "kid": "rsa" }), &good()),
            "`kid`",
        ),
        ("with an algorithm that is not taken", rsa.signed(Algorithm::RS512, &json!({ "kid": "rsa" }), &good()), "`alg`"),
        ("with the name of a key of another kind", rsa.signed(Algorithm::RS256, &json!({ "kid": "ec" }), &good()), "`kid`"),
        ("of a key for encryption", wrong_use.token(&good()), "`kid`"),
        ("of a key that only signs", wrong_ops.token(&good()), "`kid`"),
        (
            "of a key that brings itself along",
            Pair::rsa("mine").signed(Algorithm::RS256, &json!({ "kid": "mine", "jwk": stranger.public() }), &good()),
            "`kid`",
        ),
        ("no JSON", "e30.bm8.c2ln".to_owned(), "base64url"),
        ("no base64", "a.b.c".to_owned(), "base64url"),
    ];
    for (what, token, says) in &cases {
        let (status, headers, body) = world.refusal(token).await;
        assert_eq!((status, &body["code"]), (401, &json!("unauthenticated")), "{what}: {body}");
        assert_eq!(headers["www-authenticate"], "Bearer error=\"invalid_token\"", "{what}");
        assert!(plain(&body["detail"]).contains(says), "{what}: {body}");
    }
    // In the form of the profile too, and never to a route that reads the body first.
    let answer = world.send(&Who::token(&cases[0].1), Method::GET, "/api/v1/agent/history", None).await;
    assert_eq!(answer.headers()["www-authenticate"], "Bearer error=\"invalid_token\"");
    let (status, body) = problem(answer).await;
    assert_eq!((status, &body["code"]), (401, &json!("AUTH_UNAUTHORIZED")), "{body}");
    // Open paths need nobody, and other refusals stay as they were.
    assert_eq!(world.send(&Who::token(&cases[0].1), Method::GET, "/healthz", None).await.status(), 200);
    let (status, headers, _) = world.refusal("nonsense").await;
    assert_eq!((status, headers["www-authenticate"].to_str().unwrap()), (401, "Bearer"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_providers_knows_no_token() {
    let world = World::start("").await;
    let (status, headers, body) = world.refusal(&Pair::ec("k").token(&claims("login", "ada"))).await;
    assert_eq!((status, headers["www-authenticate"].to_str().unwrap()), (401, "Bearer error=\"invalid_token\""));
    assert!(plain(&body["detail"]).contains("[[identity_providers]]"), "{body}");
}
