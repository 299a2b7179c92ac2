//! Keys of a provider: fetched once for all, fetched again when they rotate, used for a while when the provider is away.

use std::time::{Duration, Instant};

use agent_host_tests::world::PATIENCE;
use futures_util::future::join_all;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

use super::{
    World,
    provider::{KeyServer, Pair, claims, entry},
};
use crate::agui::support::plain;

/// Longer than the pause between two fetches (`refetch_ms`).
const PAUSE: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_fetch_serves_all_and_survives_the_client_that_began_it() {
    let pair = Pair::rsa("k");
    let server = KeyServer::start(&[&pair]).await;
    server.delay(Duration::from_millis(800));
    let world = World::start(&entry("login", &server.url())).await;
    let token = pair.token(&claims("login", "ada"));
    assert_eq!(server.fetches(), 0, "nothing is fetched before it is needed");
    // The first client hangs up while the keys are on their way.
    let address = world.host.process().url.trim_start_matches("http://").to_owned();
    let mut first = TcpStream::connect(&address).await.unwrap();
    let request = format!("GET /agents HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n");
    first.write_all(request.as_bytes()).await.unwrap();
    while server.fetches() == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    drop(first);
    let statuses = join_all((0..20).map(|_| world.status(&token))).await;
    assert_eq!((statuses, server.fetches()), (vec![200; 20], 1));
    // Keys in memory serve without the provider.
    let began = Instant::now();
    assert_eq!(world.status(&token).await, 200);
    assert!(began.elapsed() < Duration::from_millis(500) && server.fetches() == 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_key_is_fetched_and_made_up_keys_do_not_load_the_provider() {
    let (old, new, made_up) = (Pair::ec("2025"), Pair::ec("2026"), Pair::ec("none"));
    let server = KeyServer::start(&[&old]).await;
    let more = format!("{}\nrefresh_ms = 3600000", server.url());
    let world = World::start(&entry("login", &more).replace("refetch_ms = 500", "refetch_ms = 2000")).await;
    let token = |pair: &Pair| pair.token(&claims("login", "ada"));
    assert_eq!((world.status(&token(&old)).await, server.fetches()), (200, 1));
    sleep(Duration::from_millis(2100)).await;
    server.publish(&[&new]);
    assert_eq!((world.status(&token(&new)).await, server.fetches()), (200, 2));
    assert_eq!(world.status(&token(&old)).await, 401, "a key that was taken back");
    let began = Instant::now();
    for _ in 0..30 {
        assert_eq!(world.status(&token(&made_up)).await, 401);
    }
    let allowed = 2 + 1 + began.elapsed().as_secs() as usize / 2;
    assert!(server.fetches() <= allowed, "{} fetches in {:?}", server.fetches(), began.elapsed());
    // A token without the name of its key is good while one key fits, and no longer.
    let nameless = new.signed(new.algorithm, &json!({}), &claims("login", "ada"));
    assert_eq!(world.status(&nameless).await, 200);
    server.publish(&[&new, &old]);
    sleep(Duration::from_millis(2100)).await;
    assert_eq!(world.status(&token(&old)).await, 200);
    let (status, _, body) = world.refusal(&nameless).await;
    assert_eq!((status, plain(&body["detail"]).contains("`kid`")), (401, true), "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_is_away_is_no_reason_to_throw_a_token_away() {
    let (pair, next) = (Pair::ec("k"), Pair::ec("next"));
    let mut server = KeyServer::start(&[&pair]).await;
    server.go_away().await;
    let more = format!("{}\nrefresh_ms = 1500\nstale_ms = 4000", server.url());
    let world = World::start(&entry("login", &more)).await;
    let token = pair.token(&claims("login", "ada"));
    // Away at the start: nobody can say whether the token is good.
    world.is_unavailable(&token, "login").await;
    world.is_unavailable(&token, "login").await;
    assert_eq!(world.refusal(&pair.token(&super::provider::with(claims("login", "ada"), json!({ "exp": 1 })))).await.0, 401);
    server.come_back().await;
    sleep(PAUSE).await;
    assert_eq!(world.status(&token).await, 200);
    let fetched = Instant::now();
    // Away later: the keys in memory are used beyond their time, and not for ever.
    server.go_away().await;
    while fetched.elapsed() < Duration::from_millis(3500) {
        assert_eq!(world.status(&token).await, 200, "after {:?}", fetched.elapsed());
        sleep(Duration::from_millis(200)).await;
    }
    world.is_unavailable(&next.token(&claims("login", "ada")), "login").await;
    sleep(Duration::from_millis(6000).saturating_sub(fetched.elapsed())).await;
    world.is_unavailable(&token, "login").await;
    server.publish(&[&next]);
    server.come_back().await;
    sleep(PAUSE).await;
    assert_eq!(world.status(&next.token(&claims("login", "ada"))).await, 200);
    assert_eq!(world.status(&token).await, 401, "a key that was taken back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_set_that_cannot_be_used_is_the_fault_of_its_provider() {
    let pair = Pair::ec("k");
    let [huge, many, moved, slow, wrong] = [
        KeyServer::start(&[&pair]).await,
        KeyServer::start(&[&pair]).await,
        KeyServer::start(&[&pair]).await,
        KeyServer::start(&[&pair]).await,
        KeyServer::start(&[&pair]).await,
    ];
    let mut set = json!({ "keys": [pair.public()] });
    set["padding"] = json!("x".repeat(300 << 10));
    huge.publish_text(&set.to_string());
    many.publish_text(&json!({ "keys": vec![pair.public(); 101] }).to_string());
    moved.answer_with(302);
    slow.delay(Duration::from_secs(60));
    wrong.publish_text("<html>Sign in</html>");
    // A server that never stops.
    let endless = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endless_url = format!("jwks_url = \"http://{}/keys\"", endless.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        while let Ok((mut connection, _)) = endless.accept().await {
            tokio::spawn(async move {
                let _ = connection.read(&mut [0; 4096]).await;
                let _ = connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                while connection.write_all(&[b' '; 1024]).await.is_ok() {}
            });
        }
    });
    let good = tempfile_with(&json!({ "keys": [pair.public()] }).to_string());
    let providers = [
        ("huge", huge.url()),
        ("many", many.url()),
        ("moved", moved.url()),
        ("slow", slow.url()),
        ("wrong", wrong.url()),
        ("endless", endless_url),
        ("nowhere", "jwks_file = \"no-such-file.json\"".to_owned()),
        ("folder", "jwks_file = \"plugins\"".to_owned()),
        ("file", format!("jwks_file = {:?}", good.path())),
    ];
    let world = World::start(&providers.iter().map(|(name, url)| entry(name, url)).collect::<String>()).await;
    for (name, _) in &providers {
        let (token, began) = (pair.token(&claims(name, "ada")), Instant::now());
        match *name {
            "file" => assert_eq!(world.status(&token).await, 200),
            name => world.is_unavailable(&token, name).await,
        }
        assert!(began.elapsed() < PATIENCE.min(Duration::from_secs(10)), "{name}: {:?}", began.elapsed());
    }
    // A file is read again as a set is fetched again.
    let next = Pair::ec("next");
    std::fs::write(good.path(), json!({ "keys": [next.public()] }).to_string()).unwrap();
    sleep(PAUSE).await;
    assert_eq!(world.status(&next.token(&claims("file", "ada"))).await, 200);
    serving.abort();
}

fn tempfile_with(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_requests_wait_for_keys_than_may() {
    let pair = Pair::ec("k");
    let server = KeyServer::start(&[&pair]).await;
    server.delay(Duration::from_secs(6));
    let world = World::start(&entry("login", &server.url()).replace("fetch_ms = 2000", "fetch_ms = 30000")).await;
    let token = pair.token(&claims("login", "ada"));
    let statuses = join_all((0..300).map(|_| world.status(&token))).await;
    let of = |status: u16| statuses.iter().filter(|found| **found == status).count();
    assert_eq!((of(200) + of(503), server.fetches()), (300, 1), "{statuses:?}");
    assert!(of(503) >= 1 && of(200) >= 256, "{statuses:?}");
}
