//! A TCP proxy before the database that loses answers, and what a host then knows.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};

use agent_host_ledger::{ClusterOptions, Standby};

use crate::{
    common::{
        postgres::{Postgres, shared},
        *,
    },
    hosts::*,
};

/// Forwards connections, and can drop an answer with its connection.
pub struct Proxy {
    port: u16,
    /// Port of the server.
    to: Arc<AtomicU16>,
    /// The next answer is lost.
    cut: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
}

fn pump(mut from: TcpStream, mut to: TcpStream, cut: Option<(Arc<AtomicBool>, Arc<AtomicU64>)>) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut bytes) {
        if count == 0 {
            break;
        }
        if let Some((cut, cuts)) = &cut
            && cut.swap(false, Ordering::AcqRel)
        {
            cuts.fetch_add(1, Ordering::AcqRel);
            break;
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Proxy {
    pub fn start(to: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cut, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let state = (Arc::clone(&cut), Arc::clone(&cuts));
        let to = Arc::new(AtomicU16::new(to));
        let server_port = Arc::clone(&to);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                // Without a server the client's connection ends.
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server_port.load(Ordering::Acquire)));
                let (Ok(client), Ok(server)) = (client, server) else { continue };
                let (answers, back, state) = (server.try_clone().unwrap(), client.try_clone().unwrap(), state.clone());
                std::thread::spawn(move || pump(client, server, None));
                std::thread::spawn(move || pump(answers, back, Some(state)));
            }
        });
        Self { port, to, cut, cuts }
    }

    /// New connections go to another server.
    pub fn switch(&self, to: u16) {
        self.to.store(to, Ordering::Release);
    }

    /// The URL of a database behind this proxy.
    pub fn url(&self, postgres: &Postgres, database: &str) -> String {
        postgres.url(database).replace(&format!(":{}/", postgres.port), &format!(":{}/", self.port))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_lost_at_a_commit_loses_and_repeats_nothing() {
    let (dir, database) = (tempfile::tempdir().unwrap(), cluster(shared()));
    let proxy = Proxy::start(shared().port);
    let url = proxy.url(shared(), &database);
    // Answers to the heartbeat are lost too.
    let options = ClusterOptions { lease: Duration::from_secs(60), ..member(&url, "a:1") };
    let ledger = Standby::join(host_options(dir.path()), &options).unwrap().activate(|| false, |_| ()).unwrap().unwrap();
    let mut runs = Vec::new();
    for _ in 0..40 {
        // Sometimes the answer to the heartbeat is lost, mostly that to the commit, which took place.
        proxy.cut.store(true, Ordering::Release);
        runs.push(new_run(&ledger).await);
    }
    assert!(proxy.cuts.load(Ordering::Acquire) >= 30, "{}", proxy.cuts.load(Ordering::Acquire));
    for run in &runs {
        assert!(ledger.run(run.run.run_id).unwrap().is_some());
    }
    let numbers: Vec<_> = runs.iter().map(|run| run.run_no).collect();
    assert_eq!(numbers, (1..=40).collect::<Vec<_>>());
    proxy.cut.store(false, Ordering::Release);
    let before = exported(&ledger);
    ledger.close().await.unwrap();
    let other = tempfile::tempdir().unwrap();
    assert_eq!(exported(&active(other.path(), &shared().url(&database), "b:1")), before);
}
