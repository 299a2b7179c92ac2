//! A service of the operator's that carries out platform actions, and sees to it that it is asked properly.
//!
//! The webhook checks signatures itself (<https://www.standardwebhooks.com>), remembers every delivery, and behaves as the
//! `payload` of the action says, in its member `how`: `hang`, `break` (closes the connection), `nonsense` (no HTTP),
//! `garbage` (no JSON), `redirect`, `refuse` (400), `leak` (repeats the secret), `fails:N` (500 to the first N deliveries of
//! an id). Without it, the action is done.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::world::PATIENCE;

/// Largest difference between the time of a delivery and now, in seconds.
const TOLERANCE: u64 = 300;

/// The running service.
pub struct Webhook {
    /// Address of the webhook.
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    secret: String,
    seen: Mutex<Vec<Delivery>>,
    /// Deliveries are answered.
    answers: watch::Sender<bool>,
}

/// A request that it has received.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// `webhook-id`.
    pub id: String,
    /// Path of the request.
    pub path: String,
    /// True if the signature is valid and fresh, and the request has an idempotency key.
    pub proper: bool,
    /// Body of the request.
    pub body: Value,
    /// Body, byte for byte.
    pub bytes: Vec<u8>,
}

impl Webhook {
    /// Starts one that shares this secret with the host.
    pub async fn start(secret: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/act", listener.local_addr().unwrap());
        let shared = Arc::new(Shared { secret: secret.to_owned(), seen: Mutex::default(), answers: watch::Sender::new(true) });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = Arc::clone(&serving);
                // A client that goes away is no failure of the service.
                tokio::spawn(async move { drop(serving.serve(stream).await) });
            }
        });
        Self { url, shared }
    }

    /// Lets deliveries wait for their answer from now on.
    pub fn hold(&self) {
        self.shared.answers.send_replace(false);
    }

    /// Answers those that wait, and all others.
    pub fn release(&self) {
        self.shared.answers.send_replace(true);
    }

    /// All that it has received.
    #[must_use]
    pub fn seen(&self) -> Vec<Delivery> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The number of deliveries with this id.
    #[must_use]
    pub fn times(&self, id: &str) -> usize {
        self.seen().iter().filter(|delivery| delivery.id == id).count()
    }

    /// The ids that were delivered, each once: what was done.
    #[must_use]
    pub fn done(&self) -> Vec<String> {
        let mut ids: Vec<_> = self.seen().into_iter().map(|delivery| delivery.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Waits until this was delivered so often.
    pub async fn until(&self, id: &str, times: usize) {
        let arrived = async {
            while self.times(id) < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let arrival = tokio::time::timeout(PATIENCE, arrived).await;
        assert!(arrival.is_ok(), "{id} was delivered {} times, not {times}", self.times(id));
    }

    /// Panics unless every delivery was proper, and all of one id were the same.
    #[track_caller]
    pub fn check(&self) {
        let seen = self.seen();
        for delivery in &seen {
            assert!(delivery.proper, "it is not signed, or not as it should be: {delivery:#?}");
            assert_eq!(delivery.path, "/act", "a redirect was followed");
            assert_eq!(delivery.body["type"], "action.execute");
            assert_eq!(delivery.body["data"]["action_id"], delivery.id.as_str());
            let first = seen.iter().find(|other| other.id == delivery.id).unwrap();
            assert_eq!(first.body["data"], delivery.body["data"], "one id, two orders");
        }
    }
}

impl Shared {
    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let Some(delivery) = self.receive(&mut stream).await? else { return Ok(()) };
        let (id, how) = (delivery.id.clone(), delivery.body["data"]["payload"]["how"].as_str().unwrap_or_default().to_owned());
        let times = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(delivery);
            seen.iter().filter(|delivery| delivery.id == id).count()
        };
        let _ = self.answers.subscribe().wait_for(|answers| *answers).await;
        let answer = match how.split_once(':').unwrap_or((&how, "")) {
            // Until the host closes the connection.
            ("hang", _) => return stream.read(&mut [0; 16]).await.map(drop),
            ("break", _) => return Ok(()),
            ("nonsense", _) => "I do not speak HTTP\r\n\r\n".to_owned(),
            ("garbage", _) => answer("200 OK", "<html>\u{1}</html>"),
            ("redirect", _) => answer("307 Temporary Redirect\r\nlocation: /elsewhere", ""),
            ("refuse", _) => answer("400 Bad Request", "no such channel"),
            ("leak", _) => answer("200 OK", &json!({ "secret": self.secret }).to_string()),
            ("fails", most) if times <= most.parse().unwrap() => answer("500 Internal Server Error", "not today"),
            _ => answer("200 OK", &json!({ "done": id, "times": times }).to_string()),
        };
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    }

    async fn receive(&self, stream: &mut TcpStream) -> std::io::Result<Option<Delivery>> {
        let mut request = Vec::new();
        let (head, bytes) = loop {
            if stream.read_buf(&mut request).await? == 0 {
                return Ok(None);
            }
            let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&request[..end]).into_owned();
            let length: usize = header(&head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            if request.len() >= end + 4 + length {
                break (head, request[end + 4..].to_vec());
            }
        };
        let id = header(&head, "webhook-id").unwrap_or_default().to_owned();
        Ok(Some(Delivery {
            path: head.split(' ').nth(1).unwrap_or_default().to_owned(),
            proper: self.is_proper(&head, &id, &bytes),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            id,
            bytes,
        }))
    }

    fn is_proper(&self, head: &str, id: &str, bytes: &[u8]) -> bool {
        let Some(timestamp) = header(head, "webhook-timestamp").and_then(|text| text.parse::<u64>().ok()) else { return false };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let key = match self.secret.strip_prefix("whsec_") {
            Some(encoded) => STANDARD.decode(encoded).unwrap(),
            None => self.secret.clone().into_bytes(),
        };
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(bytes);
        let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        head.starts_with("POST ")
            && now.abs_diff(timestamp) <= TOLERANCE
            && header(head, "webhook-signature") == Some(&signature)
            && header(head, "idempotency-key") == Some(id)
            && header(head, "content-type") == Some("application/json")
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let line = head.lines().skip(1).filter_map(|line| line.split_once(':')).find(|(found, _)| found.eq_ignore_ascii_case(name));
    line.map(|(_, value)| value.trim())
}

fn answer(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}
