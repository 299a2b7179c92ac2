//! The proof with which a connection between two hosts begins: each shows the other that it has the secret of the cluster, and none
//! sends it.
//!
//! | from | bytes |
//! |---|---|
//! | the host that forwards | `agent-host 1\n`, and a nonce of 32 bytes |
//! | the host that is asked | a nonce of 32 bytes, and HMAC-SHA256 with the secret over `answer`, both nonces |
//! | the host that forwards | HMAC-SHA256 with the secret over `request`, both nonces |
//!
//! HTTP/1.1 follows. The host that is asked proves itself first, so nothing of a client's request, not even its key, reaches a program
//! that has taken the address of a host. A recorded proof is worth nothing: the nonces of both are new for each connection. The bytes
//! that follow are neither encrypted nor signed: the network between the hosts is trusted not to change them.

use std::io;

use agent_host_runs::secret::Secret;
use hmac::{Hmac, Mac, digest::KeyInit};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Begins a connection of a host. No method of HTTP does.
const PREFACE: &[u8; 13] = b"agent-host 1\n";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;

type Nonce = [u8; NONCE_BYTES];

/// The reason why a connection is not one between two hosts of a cluster.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The other side has another secret.
    #[error("the other host has another cluster secret: give each host the same in [cluster] secret")]
    WrongSecret,
    /// The other side is no host.
    #[error("the other side is no listener for hosts: [cluster] advertise of each host names its [cluster] listen")]
    NoHost,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// Proves this host to the one that it asks, after that one has proved itself.
pub(crate) async fn prove(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), secret: &Secret) -> Result<(), HandshakeError> {
    let ours = nonce()?;
    let mut preface = [0; PREFACE.len() + NONCE_BYTES];
    let (text, number) = preface.split_at_mut(PREFACE.len());
    text.copy_from_slice(PREFACE);
    number.copy_from_slice(&ours);
    stream.write_all(&preface).await?;
    let (mut theirs, mut proof) = ([0; NONCE_BYTES], [0; PROOF_BYTES]);
    // What answers in another protocol answers less, or something else.
    for part in [&mut theirs[..], &mut proof[..]] {
        match stream.read_exact(part).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(HandshakeError::NoHost),
            Err(error) => return Err(error.into()),
        }
    }
    if theirs.starts_with(b"HTTP/") {
        return Err(HandshakeError::NoHost);
    }
    check(secret, b"answer", &ours, &theirs, &proof)?;
    stream.write_all(&mac(secret, b"request", &ours, &theirs)?.finalize().into_bytes()).await?;
    Ok(())
}

/// Proves this host to one that asks it, and lets that one prove itself.
///
/// # Errors
/// [`HandshakeError::NoHost`] for a client of HTTP, after its first bytes.
pub(crate) async fn demand(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), secret: &Secret) -> Result<(), HandshakeError> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    if preface != *PREFACE {
        return Err(HandshakeError::NoHost);
    }
    let mut theirs = [0; NONCE_BYTES];
    stream.read_exact(&mut theirs).await?;
    let ours = nonce()?;
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    let (number, proof) = answer.split_at_mut(NONCE_BYTES);
    number.copy_from_slice(&ours);
    proof.copy_from_slice(&mac(secret, b"answer", &theirs, &ours)?.finalize().into_bytes());
    stream.write_all(&answer).await?;
    let mut proof = [0; PROOF_BYTES];
    match stream.read_exact(&mut proof).await {
        Ok(_) => {}
        // A host with another secret ends here, for it has found that out.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(HandshakeError::WrongSecret),
        Err(error) => return Err(error.into()),
    }
    check(secret, b"request", &theirs, &ours, &proof)
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(nonce)
}

/// The code over a purpose and the nonces, first that of the host that forwards.
fn mac(secret: &Secret, purpose: &[u8], forwarding: &Nonce, asked: &Nonce) -> io::Result<Hmac<Sha256>> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret.expose().as_bytes())
        .map_err(|error| io::Error::other(error.to_string()))?;
    mac.update(PREFACE);
    mac.update(purpose);
    mac.update(forwarding);
    mac.update(asked);
    Ok(mac)
}

fn check(secret: &Secret, purpose: &[u8], forwarding: &Nonce, asked: &Nonce, proof: &[u8]) -> Result<(), HandshakeError> {
    mac(secret, purpose, forwarding, asked)?.verify_slice(proof).map_err(|_| HandshakeError::WrongSecret)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    async fn meet(forwarding: &str, asked: &str) -> (Result<(), HandshakeError>, Result<(), HandshakeError>) {
        let (mut one, mut other) = tokio::io::duplex(256);
        let (forwarding, asked) = (Secret::new(forwarding), Secret::new(asked));
        tokio::join!(async move { prove(&mut one, &forwarding).await }, async move { demand(&mut other, &asked).await })
    }

    #[tokio::test]
    async fn hosts_with_one_secret_meet() {
        assert!(matches!(meet(SECRET, SECRET).await, (Ok(()), Ok(()))));
    }

    #[tokio::test]
    async fn hosts_with_two_secrets_do_not() {
        let met = meet(SECRET, "another secret that is long enough").await;
        assert!(matches!(met, (Err(HandshakeError::WrongSecret), Err(HandshakeError::WrongSecret))), "{met:?}");
    }

    /// Answers a host with what another connection of that host brought.
    #[tokio::test]
    async fn a_recorded_proof_and_a_proof_sent_back_are_worth_nothing() {
        let secret = Secret::new(SECRET);
        let (mut client, mut server) = tokio::io::duplex(256);
        let mut recorded = Vec::new();
        let good = async {
            prove(&mut client, &secret).await.unwrap();
        };
        let record = async {
            let mut preface = [0; PREFACE.len() + NONCE_BYTES];
            server.read_exact(&mut preface).await.unwrap();
            recorded.extend_from_slice(&preface);
            let theirs: Nonce = preface[PREFACE.len()..].try_into().unwrap();
            let ours = nonce().unwrap();
            server.write_all(&ours).await.unwrap();
            let answer = mac(&secret, b"answer", &theirs, &ours).unwrap().finalize().into_bytes();
            server.write_all(&answer).await.unwrap();
            let mut proof = [0; PROOF_BYTES];
            server.read_exact(&mut proof).await.unwrap();
            recorded.extend_from_slice(&proof);
        };
        tokio::join!(good, record);

        let (mut forger, mut host) = tokio::io::duplex(256);
        let replay = async {
            forger.write_all(&recorded[..PREFACE.len() + NONCE_BYTES]).await.unwrap();
            let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
            forger.read_exact(&mut answer).await.unwrap();
            forger.write_all(&recorded[PREFACE.len() + NONCE_BYTES..]).await.unwrap();
        };
        let (judged, ()) = tokio::join!(demand(&mut host, &secret), replay);
        assert!(matches!(judged, Err(HandshakeError::WrongSecret)), "{judged:?}");

        let (mut forger, mut host) = tokio::io::duplex(256);
        let reflect = async {
            forger.write_all(&recorded[..PREFACE.len() + NONCE_BYTES]).await.unwrap();
            let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
            forger.read_exact(&mut answer).await.unwrap();
            forger.write_all(&answer[NONCE_BYTES..]).await.unwrap();
        };
        let (judged, ()) = tokio::join!(demand(&mut host, &secret), reflect);
        assert!(matches!(judged, Err(HandshakeError::WrongSecret)), "{judged:?}");
    }

    #[tokio::test]
    async fn other_protocols_are_no_hosts() {
        let secret = Secret::new(SECRET);
        let (mut client, mut host) = tokio::io::duplex(256);
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let judged = demand(&mut host, &secret).await;
        assert!(matches!(judged, Err(HandshakeError::NoHost)), "{judged:?}");

        let (mut server, mut host) = tokio::io::duplex(256);
        let answer =
            b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: Fri, 27 Nov 2026 11:00:00 GMT\r\n\r\n";
        server.write_all(answer).await.unwrap();
        let judged = prove(&mut host, &secret).await;
        assert!(matches!(judged, Err(HandshakeError::NoHost)), "{judged:?}");
    }
}
