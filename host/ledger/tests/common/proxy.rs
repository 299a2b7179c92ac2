//! A TCP proxy that breaks connections as networks do.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Between two looks at the state of a network that carries nothing.
const LOOK: Duration = Duration::from_millis(5);

/// The state of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    Whole,
    /// Connections end, and there is no new one.
    Cut,
    /// Connections stay, and carry nothing.
    Stalled,
    /// Requests arrive, and answers do not.
    HalfOpen,
    /// Every piece comes so much later.
    Slow(Duration),
}

/// Forwards connections to a server.
pub struct Proxy {
    pub port: u16,
    state: Arc<State>,
}

struct State {
    /// Port of the server.
    to: AtomicU16,
    network: Mutex<Network>,
    /// Both ends of all connections.
    open: Mutex<Vec<TcpStream>>,
    /// The next answer is lost, with its connection.
    loses_next: AtomicBool,
    lost: AtomicU64,
}

impl State {
    fn network(&self) -> Network {
        *self.network.lock().unwrap()
    }

    /// Waits until bytes of this direction may pass.
    fn carries(&self, is_answer: bool) {
        loop {
            match self.network() {
                Network::Stalled => std::thread::sleep(LOOK),
                Network::HalfOpen if is_answer => std::thread::sleep(LOOK),
                Network::Slow(time) => return std::thread::sleep(time),
                Network::Whole | Network::HalfOpen | Network::Cut => return,
            }
        }
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, is_answer: bool) {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(count) = from.read(&mut bytes) {
            if count == 0 {
                break;
            }
            if is_answer && self.loses_next.swap(false, Ordering::AcqRel) {
                self.lost.fetch_add(1, Ordering::AcqRel);
                break;
            }
            self.carries(is_answer);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    /// A new connection of a client; none where there is no server, or no network.
    fn connect(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.to.load(Ordering::Acquire)))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        let (answers, back) = (server.try_clone()?, client.try_clone()?);
        {
            let mut open = self.open.lock().unwrap();
            // Under the lock: who cuts the network finds the connection.
            if self.network() == Network::Cut {
                return Ok(());
            }
            open.retain(|stream| stream.peer_addr().is_ok());
            open.extend([client.try_clone()?, server.try_clone()?]);
        }
        let (requests, replies) = (Arc::clone(self), Arc::clone(self));
        std::thread::spawn(move || requests.pump(client, server, false));
        std::thread::spawn(move || replies.pump(answers, back, true));
        Ok(())
    }
}

impl Proxy {
    pub fn start(to: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            to: AtomicU16::new(to),
            network: Mutex::new(Network::Whole),
            open: Mutex::default(),
            loses_next: AtomicBool::new(false),
            lost: AtomicU64::new(0),
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let _ = client.and_then(|client| shared.connect(client));
            }
        });
        Self { port, state }
    }

    /// New connections go to another server.
    pub fn switch(&self, to: u16) {
        self.state.to.store(to, Ordering::Release);
    }

    pub fn is(&self, network: Network) {
        let mut open = self.state.open.lock().unwrap();
        *self.state.network.lock().unwrap() = network;
        if network == Network::Cut {
            for stream in open.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// The next answer is lost, with its connection; or, with `false`, it is not.
    pub fn loses_next(&self, loses: bool) {
        self.state.loses_next.store(loses, Ordering::Release);
    }

    /// The number of lost answers.
    pub fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::Acquire)
    }

    /// A URL of a server that goes through this proxy.
    pub fn url(&self, url: &str) -> String {
        url.replace(&format!(":{}/", self.state.to.load(Ordering::Acquire)), &format!(":{}/", self.port))
    }
}
