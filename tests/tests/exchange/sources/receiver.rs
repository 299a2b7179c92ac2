//! A receiver of deliveries. The receiver checks their form, and refuses as the test says.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use agent_host_tests::world::PATIENCE;
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use serde_json::Value;
use sha2::Sha256;

use crate::sources::support::Random;

/// The shared secret of the host and the receiver.
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// `webhook-signature` of a message.
pub fn signature(secret: &str, id: &str, at: u64, body: &[u8]) -> String {
    let key = secret.strip_prefix("whsec_").map_or_else(|| secret.as_bytes().to_vec(), |key| STANDARD.decode(key).unwrap());
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{id}.{at}.").as_bytes());
    mac.update(body);
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A running receiver.
pub struct Receiver {
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    /// Status of the answers: 0 alternates.
    status: AtomicU16,
    random: Mutex<Random>,
    got: Mutex<Vec<Got>>,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Got {
    pub id: String,
    pub body: Vec<u8>,
    pub answered: u16,
}

impl Got {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn run_id(&self) -> String {
        self.json()["data"]["run"]["run_id"].as_str().unwrap().to_owned()
    }

    pub fn sequences(&self) -> Vec<u64> {
        self.json()["data"]["events"].as_array().unwrap().iter().map(|event| event["sequence"].as_u64().unwrap()).collect()
    }
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/told", listener.local_addr().unwrap());
        let shared = Arc::new(Shared { status: AtomicU16::new(204), random: Mutex::new(Random(7)), got: Mutex::default() });
        let app = Router::new().route("/told", post(received_numbers)).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, shared }
    }

    /// Sets the status of the answers; 0 alternates between acceptance and refusal.
    pub fn answers(&self, status: u16) {
        self.shared.status.store(status, Ordering::SeqCst);
    }

    pub fn got(&self) -> Vec<Got> {
        self.shared.got.lock().unwrap().clone()
    }

    /// Waits until this is so of all that it got.
    pub async fn until(&self, what: &str, is_so: impl Fn(&[Got]) -> bool) {
        let began = Instant::now();
        while !is_so(&self.got()) {
            assert!(began.elapsed() < PATIENCE, "{what}: {:#?}", self.received_numbers());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits for the deliveries of this many ended runs.
    pub async fn until_ended(&self, runs: usize) {
        self.until(&format!("{runs} runs end"), |got| {
            let ended = got.iter().filter(|got| got.answered < 300).filter(|got| {
                let last = got.json()["data"]["events"].as_array().unwrap().last().unwrap()["type"].clone();
                last == "run.completed" || last == "run.failed"
            });
            ended.map(Got::run_id).collect::<std::collections::HashSet<_>>().len() >= runs
        })
        .await;
    }

    /// The accepted events by run, each once, in order of arrival. A repeated request must have the same bytes.
    pub fn received_numbers(&self) -> BTreeMap<String, Vec<u64>> {
        let mut bodies: HashMap<String, Vec<u8>> = HashMap::new();
        let mut taken: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut ids = std::collections::HashSet::new();
        for got in self.got() {
            let sequences = got.sequences();
            assert_eq!(got.id, format!("{}.{}", got.run_id(), sequences[0]), "the id names the first event");
            let before = bodies.entry(got.id.clone()).or_insert_with(|| got.body.clone());
            assert!(*before == got.body, "one id, two messages:\n{}\n{}", String::from_utf8_lossy(before), got.json());
            let of_run = taken.entry(got.run_id()).or_default();
            assert!(
                of_run.last().is_none_or(|last| *last < sequences[0]) || ids.contains(&got.id),
                "{} comes after {of_run:?}",
                got.id
            );
            if got.answered < 300 && ids.insert(got.id.clone()) {
                of_run.extend(sequences);
            }
        }
        assert!(taken.values().all(|sequences| sequences.is_sorted()), "{taken:?}");
        taken
    }
}

async fn received_numbers(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let (id, at) = (header("webhook-id"), header("webhook-timestamp").parse().unwrap());
    assert_eq!(header("webhook-signature"), signature(SECRET, &id, at, &body));
    assert!(at.abs_diff(now_s()) < 60 && header("idempotency-key") == id && header("content-type") == "application/json");
    let status = match shared.status.load(Ordering::SeqCst) {
        0 => [204, 204, 500, 429, 404][usize::try_from(shared.random.lock().unwrap().below(5)).unwrap()],
        status => status,
    };
    // The delivery counts, even if the host does not receive the answer.
    shared.got.lock().unwrap().push(Got { id, body: body.to_vec(), answered: status });
    StatusCode::from_u16(status).unwrap()
}
