//! A connection to the host: HTTP/1.1 with keep-alive, as little of it as the host's answers need, so that the
//! load takes little of the cores that it shares with the host.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// A connection on which one request is made after the other.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    line: String,
    body: Vec<u8>,
}

/// The length of a body.
#[derive(Debug, PartialEq, Eq)]
enum Length {
    Known(usize),
    Chunked,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("{address} does not answer"))?;
        Self::over(stream, address)
    }

    /// The same on a stream to the host that is there.
    pub(crate) fn over(stream: TcpStream, address: SocketAddr) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), address, line: String::new(), body: Vec::new() })
    }

    /// Sends JSON; gives the body of the answer, which must have this status.
    pub(crate) async fn post(&mut self, path: &str, headers: &str, json: &str, status: u16) -> anyhow::Result<&str> {
        let (got, body) = self.send(path, headers, json).await?;
        anyhow::ensure!(got == status, "the host answers POST {path} with {got}: {body}");
        Ok(body)
    }

    /// Sends JSON; gives the status and the body of the answer.
    pub(crate) async fn send(&mut self, path: &str, headers: &str, json: &str) -> anyhow::Result<(u16, &str)> {
        let (address, length) = (self.address, json.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{json}"
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.answer().await.with_context(|| format!("POST {path}"))
    }

    /// Reads JSON.
    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<&str> {
        let address = self.address;
        self.stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").as_bytes()).await?;
        let (got, body) = self.answer().await.with_context(|| format!("GET {path}"))?;
        anyhow::ensure!(got == 200, "the host answers GET {path} with {got}: {body}");
        Ok(body)
    }

    /// Sends bytes; gives the body of the answer, which must be that something was created.
    pub(crate) async fn upload(&mut self, path: &str, bytes: &[u8]) -> anyhow::Result<&str> {
        let (address, length) = (self.address, bytes.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/octet-stream\r\ncontent-length: {length}\r\n\r\n"
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.write_all(bytes).await?;
        let (got, body) = self.answer().await.with_context(|| format!("POST {path}"))?;
        anyhow::ensure!(got == 201, "the host answers POST {path} with {got}: {body}");
        Ok(body)
    }

    /// Reads a body and throws it away; gives how long it was.
    pub(crate) async fn download(&mut self, path: &str) -> anyhow::Result<usize> {
        const PIECE: usize = 256 * 1024;
        let address = self.address;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        let (status, length) = self.head().await?;
        let Length::Known(length) = length else { bail!("the host answers GET {path} with a body of unknown length") };
        let mut left = length;
        while left > 0 {
            self.body.resize(left.min(PIECE), 0);
            let read = self.stream.read(&mut self.body).await?;
            anyhow::ensure!(read > 0, "the host closed the connection {left} bytes before the end");
            left -= read;
        }
        anyhow::ensure!(status == 200, "the host answers GET {path} with {status}");
        Ok(length)
    }

    /// Reads server-sent events, line by line, to the end of the stream.
    pub(crate) async fn stream(&mut self, path: &str, each: impl FnMut(&str)) -> anyhow::Result<()> {
        self.subscribe(path).await?;
        self.lines(each).await
    }

    /// Sends JSON; reads the server-sent events of the answer, line by line, to the end of the stream.
    pub(crate) async fn post_stream(&mut self, path: &str, json: &str, each: impl FnMut(&str)) -> anyhow::Result<()> {
        self.post_subscribe(path, json).await?;
        self.lines(each).await
    }

    /// Sends JSON, whose answer are server-sent events, and reads none of them.
    pub(crate) async fn post_subscribe(&mut self, path: &str, json: &str) -> anyhow::Result<()> {
        let (address, length) = (self.address, json.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: text/event-stream\r\ncontent-length: {length}\r\n\r\n{json}"
        );
        self.stream.write_all(request.as_bytes()).await?;
        let (status, length) = self.head().await?;
        if let (Length::Known(length), true) = (&length, status != 200) {
            self.body.resize(*length, 0);
            self.stream.read_exact(&mut self.body).await?;
            bail!("the host answers POST {path} with {status}: {}", String::from_utf8_lossy(&self.body));
        }
        anyhow::ensure!(status == 200 && length == Length::Chunked, "the host answers POST {path} with {status} and no stream");
        Ok(())
    }

    /// Asks for server-sent events, and reads none of them.
    pub(crate) async fn subscribe(&mut self, path: &str) -> anyhow::Result<()> {
        let address = self.address;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\n\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        let (status, length) = self.head().await?;
        anyhow::ensure!(status == 200 && length == Length::Chunked, "the host answers GET {path} with {status} and no stream");
        Ok(())
    }

    /// Reads what was subscribed to, line by line, to the end of the stream.
    pub(crate) async fn lines(&mut self, mut each: impl FnMut(&str)) -> anyhow::Result<()> {
        self.lines_while(|line| {
            each(line);
            true
        })
        .await
    }

    /// Likewise, as long as more is wanted. After that nothing else can be asked on this connection.
    pub(crate) async fn lines_while(&mut self, mut more: impl FnMut(&str) -> bool) -> anyhow::Result<()> {
        // The part of a line from the last chunk.
        self.body.clear();
        loop {
            self.read_line().await?;
            let size = usize::from_str_radix(self.line.trim_end(), 16).context("a chunk without a size")?;
            let start = self.body.len();
            self.body.resize(start + size, 0);
            let chunk = self.body.get_mut(start..).unwrap_or_default();
            self.stream.read_exact(chunk).await?;
            self.read_line().await?;
            if size == 0 {
                return Ok(());
            }
            let mut used = 0;
            for line in self.body.split_inclusive(|byte| *byte == b'\n') {
                if let Some(line) = line.strip_suffix(b"\n") {
                    used += line.len() + 1;
                    if !more(std::str::from_utf8(line)?) {
                        return Ok(());
                    }
                }
            }
            self.body.drain(..used);
        }
    }

    /// True if the connection is open and has unread data.
    pub(crate) async fn has_unread(&self) -> bool {
        matches!(self.stream.get_ref().peek(&mut [0]).await, Ok(1..))
    }

    /// Reads an answer whose length is known: its status and its body.
    async fn answer(&mut self) -> anyhow::Result<(u16, &str)> {
        let (status, length) = self.head().await?;
        let Length::Known(length) = length else { bail!("the host answers with a body of unknown length") };
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body).await?;
        Ok((status, std::str::from_utf8(&self.body)?))
    }

    /// Reads an answer up to its body.
    async fn head(&mut self) -> anyhow::Result<(u16, Length)> {
        self.read_line().await?;
        let status = self.line.split(' ').nth(1).and_then(|status| status.parse().ok()).context("an answer without a status")?;
        let mut length = Length::Known(0);
        loop {
            self.read_line().await?;
            let Some((name, value)) = self.line.trim_end().split_once(':') else { return Ok((status, length)) };
            if name.eq_ignore_ascii_case("content-length") {
                length = Length::Known(value.trim().parse()?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                length = Length::Chunked;
            }
        }
    }

    async fn read_line(&mut self) -> anyhow::Result<()> {
        self.line.clear();
        let read = self.stream.read_line(&mut self.line).await?;
        anyhow::ensure!(read > 0, "the host closed the connection");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A server that answers every connection with the same bytes.
    async fn answering(answer: &'static str) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await
        });
        Connection::open(address).await.unwrap()
    }

    #[tokio::test]
    async fn answers_follow_each_other_on_one_connection() {
        let answers = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx: y\r\n\r\n{}HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy";
        let mut connection = answering(answers).await;
        assert_eq!(connection.post("/", "", "{}", 200).await.unwrap(), "{}");
        assert!(connection.post("/", "", "{}", 200).await.unwrap_err().to_string().ends_with("503: busy"));
    }

    #[tokio::test]
    async fn an_answer_may_have_no_body() {
        let answers =
            "HTTP/1.1 204 No Content\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]HTTP/1.1 404 No\r\n\r\n";
        let mut connection = answering(answers).await;
        assert_eq!(connection.send("/", "", "{}").await.unwrap(), (204, ""));
        assert_eq!(connection.get("/").await.unwrap(), "[]");
        assert!(connection.get("/").await.is_err());
    }

    #[tokio::test]
    async fn unread_data_are_noticed() {
        let mut connection = answering("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        connection.subscribe("/").await.unwrap();
        let nothing = tokio::time::timeout(std::time::Duration::from_millis(20), connection.has_unread()).await;
        assert!(nothing.is_err(), "nothing came, and it is open");
        let mut closed = answering("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        closed.subscribe("/").await.unwrap();
        closed.stream.get_mut().shutdown().await.unwrap();
        assert!(!closed.has_unread().await);
    }

    #[tokio::test]
    async fn bytes_go_and_come() {
        let answers = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nbytesHTTP/1.1 404 No\r\n\r\n";
        let mut connection = answering(answers).await;
        assert_eq!(connection.upload("/", b"bytes").await.unwrap(), "{}");
        assert_eq!(connection.download("/").await.unwrap(), 5);
        assert!(connection.download("/").await.is_err());
    }

    #[tokio::test]
    async fn lines_of_a_stream_may_be_cut_by_chunks() {
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nid: 1\r\nc\r\n2\nevent: x\n\n\r\n0\r\n\r\n";
        let mut lines = Vec::new();
        answering(answer).await.stream("/", |line| lines.push(line.to_owned())).await.unwrap();
        assert_eq!(lines, ["id: 12", "event: x", ""]);
    }

    #[tokio::test]
    async fn an_answer_may_be_a_stream_that_is_read_in_part() {
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\na\nb\nc\r\n1\r\n\n\r\n0\r\n\r\n";
        let mut lines = Vec::new();
        answering(answer).await.post_stream("/", "{}", |line| lines.push(line.to_owned())).await.unwrap();
        assert_eq!(lines, ["a", "b", "c"]);
        let mut connection = answering(answer).await;
        connection.post_subscribe("/", "{}").await.unwrap();
        let mut lines = Vec::new();
        let two = |line: &str| {
            lines.push(line.to_owned());
            lines.len() < 2
        };
        connection.lines_while(two).await.unwrap();
        assert_eq!(lines, ["a", "b"]);
        let error = answering("HTTP/1.1 409 No\r\ncontent-length: 4\r\n\r\nbusy").await.post_stream("/", "{}", |_| {}).await;
        assert!(error.unwrap_err().to_string().ends_with("409: busy"));
    }

    #[tokio::test]
    async fn a_stream_that_breaks_off_is_an_error() {
        let mut connection = answering("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nid").await;
        connection.stream.get_mut().shutdown().await.unwrap();
        assert!(connection.stream("/", |_| {}).await.is_err());
    }
}
