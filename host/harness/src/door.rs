//! The door to the host of a run, for an agent that shares the network of the machine with the host.
//!
//! Landlock lets the agent connect to the port of the door and not to that of the host. The door passes requests on, and says so (`Via`):
//! the host may trust programs of this machine (`loopback_without_key`), and an agent is none of them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use tokio::{net::TcpListener, task::JoinHandle};

use crate::relay;

/// The door of one run. Dropping it closes every connection.
#[derive(Debug)]
pub(crate) struct Door {
    port: u16,
    serving: JoinHandle<()>,
}

impl Door {
    /// Opens a door to the host at this address.
    pub(crate) async fn open(host: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let serving = tokio::spawn(relay::serve(listener, move |stream| relay::serve_host(stream, host)));
        Ok(Self { port, serving })
    }

    /// The port of the door, at 127.0.0.1.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
        time::timeout,
    };

    use super::*;

    /// A server that answers `count` requests of a connection with their heads, then closes it, and its address.
    async fn server(count: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                for _ in 0..count {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { break };
                        head.push(byte);
                    }
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", head.len());
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.write_all(&head).await;
                }
            }
        });
        address
    }

    async fn asked(stream: &mut TcpStream, path: &str) -> String {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut text = String::new();
        while !text.ends_with("\r\n\r\n") || text.matches("\r\n\r\n").count() < 2 {
            let byte = timeout(Duration::from_secs(20), stream.read_u8()).await.unwrap().unwrap();
            text.push(byte.into());
        }
        text
    }

    #[tokio::test]
    async fn requests_reach_the_host_and_say_that_they_were_passed_on() {
        // The second request goes by the connection of the first, the third by a new one.
        let door = Door::open(server(2).await).await.unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", door.port())).await.unwrap();
        for path in ["/one", "/two", "/three", "/four", "/five"] {
            let answer = asked(&mut stream, path).await;
            assert!(
                answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains(&format!("GET {path} HTTP/1.1\r\n")),
                "{answer}"
            );
            assert!(answer.to_ascii_lowercase().contains("via: 1.1 agent-host\r\n"), "{answer}");
        }
        // A door is no proxy.
        stream.write_all(b"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut refused = String::new();
        timeout(Duration::from_secs(20), stream.read_to_string(&mut refused)).await.unwrap().unwrap();
        assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    }

    #[tokio::test]
    async fn a_host_that_is_away_is_an_answer_and_a_door_that_is_dropped_is_closed() {
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let door = Door::open(address).await.unwrap();
        let port = door.port();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        timeout(Duration::from_secs(20), stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        drop(door);
        let gone = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(20), gone).await.unwrap();
    }
}
