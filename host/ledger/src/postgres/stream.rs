//! The stream to a server, in the clear or over TLS.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};

use crate::postgres::{PostgresError, PostgresServer, server::TlsMode};

pub(super) enum Stream {
    Clear(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Connects within `timeout`, which is also that of every later read and write until [`Self::set_timeout`].
    pub(super) fn connect(server: &PostgresServer, timeout: Duration) -> Result<Self, PostgresError> {
        let place: Arc<str> = server.place().into();
        let failed =
            |error: io::Error| PostgresError::Connection { server: Arc::clone(&place), reason: error.to_string().into() };
        let mut tcp = connect_any(&server.host, server.port, timeout).map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        tcp.set_read_timeout(Some(timeout)).and_then(|()| tcp.set_write_timeout(Some(timeout))).map_err(failed)?;
        let TlsMode::VerifyFull { roots } = &server.tls else { return Ok(Self::Clear(tcp)) };
        let insecure = |reason: String| PostgresError::Tls { server: Arc::clone(&place), reason: reason.into() };
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        let mut answer = [0];
        tcp.write_all(&request).and_then(|()| tcp.read_exact(&mut answer)).map_err(failed)?;
        if answer != *b"S" {
            return Err(insecure("the server has TLS switched off".to_owned()));
        }
        let config = config(roots.as_deref()).map_err(insecure)?;
        let name = ServerName::try_from(server.host.clone()).map_err(|error| insecure(error.to_string()))?;
        let mut connection = ClientConnection::new(config, name).map_err(|error| insecure(error.to_string()))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut tcp).map_err(|error| insecure(error.to_string()))?;
        }
        Ok(Self::Tls(Box::new(StreamOwned::new(connection, tcp))))
    }

    /// Every read and write fails after so long without a byte.
    pub(super) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let tcp = match self {
            Self::Clear(tcp) => tcp,
            Self::Tls(tls) => &tls.sock,
        };
        tcp.set_read_timeout(Some(timeout))?;
        tcp.set_write_timeout(Some(timeout))
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Clear(tcp) => tcp.read(into),
            Self::Tls(tls) => tls.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Clear(tcp) => tcp.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Clear(tcp) => tcp.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

/// The first address of the host that answers.
fn connect_any(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let began = Instant::now();
    let mut last = None;
    for address in (host, port).to_socket_addrs()? {
        let left = timeout.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::other("its name has no address")))
}

fn config(roots: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut store = RootCertStore::empty();
    match roots {
        Some(path) => {
            let unread = |error: &dyn std::fmt::Display| format!("{} cannot be read: {error}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unread(&error))? {
                store.add(certificate.map_err(|error| unread(&error))?).map_err(|error| unread(&error))?;
            }
            if store.is_empty() {
                return Err(format!("{} has no certificate", path.display()));
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err("this system has no trusted certificates".to_owned());
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(Arc::new(config.map_err(|error| error.to_string())?.with_root_certificates(store).with_no_client_auth()))
}
