//! The network within a sandbox: ports of its loopback interface, of which each connection goes to the proxy of the host.
//!
//! A sandbox has no other network. The port of the proxy passes bytes to the socket of the proxy as they are; a port of the machine
//! asks the proxy for a tunnel to it, so that programs that know no proxy reach it by its usual address. Nothing is decided here: the
//! proxy is outside, and judges every connection.

use std::{collections::BTreeSet, io, net::Ipv4Addr, net::Ipv6Addr, path::Path, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream, UnixStream},
    sync::Semaphore,
    time::sleep,
};

/// Connections at one time; more wait. Each has two files of the launcher.
const MAX_CONNECTIONS: usize = 192;
/// Longest answer of the proxy to a request for a tunnel.
const MAX_ANSWER: u64 = 4 * 1024;
/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// Listens on the port of the proxy and on the ports of the machine, for as long as the runtime of the caller lives.
///
/// # Errors
/// Fails if the port of the proxy cannot be had. A port of the machine that cannot be had is reported on standard error: programs
/// reach it by the proxy.
pub(crate) async fn start(socket: &Path, proxy_port: u16, ports: &BTreeSet<u16>) -> io::Result<()> {
    let socket: Arc<Path> = Arc::from(socket);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, proxy_port)).await?;
    tokio::spawn(serve(proxy, Arc::clone(&socket), None, Arc::clone(&places)));
    for port in ports {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await {
            Ok(listener) => drop(tokio::spawn(serve(listener, Arc::clone(&socket), Some(*port), Arc::clone(&places)))),
            Err(error) => {
                use io::Write as _;
                let _ = writeln!(io::stderr(), "launcher: 127.0.0.1:{port} cannot be forwarded: {error}");
            }
        }
        // Not every machine has IPv6.
        if let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, *port)).await {
            tokio::spawn(serve(listener, Arc::clone(&socket), Some(*port), Arc::clone(&places)));
        }
    }
    Ok(())
}

/// Passes the connections of one port to the proxy; with `port`, to a port of the machine behind it.
async fn serve(listener: TcpListener, socket: Arc<Path>, port: Option<u16>, places: Arc<Semaphore>) {
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((connection, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let socket = Arc::clone(&socket);
        tokio::spawn(async move {
            // The program sees a connection that ends.
            let _ = pass(connection, &socket, port).await;
            drop(place);
        });
    }
}

async fn pass(mut inside: TcpStream, socket: &Path, port: Option<u16>) -> io::Result<()> {
    let mut outside = BufReader::new(UnixStream::connect(socket).await?);
    if let Some(port) = port {
        let request = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
        outside.write_all(request.as_bytes()).await?;
        tunnel_answer(&mut outside).await?;
    }
    copy_bidirectional(&mut inside, &mut outside).await.map(drop)
}

/// Reads the answer to a request for a tunnel, to its end.
async fn tunnel_answer(proxy: &mut BufReader<UnixStream>) -> io::Result<()> {
    let mut head = proxy.take(MAX_ANSWER);
    let mut line = String::new();
    head.read_line(&mut line).await?;
    if line.split(' ').nth(1) != Some("200") {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the proxy refuses the connection"));
    }
    loop {
        line.clear();
        match head.read_line(&mut line).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if line.trim_end().is_empty() => return Ok(()),
            _ => {}
        }
    }
}
