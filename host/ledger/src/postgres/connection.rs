//! One connection, and its statements.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    num::TryFromIntError,
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::{
    IsNull,
    authentication::{
        md5_hash,
        sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256},
    },
    message::{
        backend::{DataRowBody, ErrorFields, Message},
        frontend,
    },
    types::{ArrayDimension, array_to_sql},
};

use crate::postgres::{PostgresError, PostgresServer, stream::Stream};

/// Format codes of the protocol.
const BINARY: i16 = 1;
/// Numbers of types, which are the same in every database (`pg_type.dat`).
const BYTEA: u32 = 17;
const INT8: u32 = 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;

/// A parameter of a statement, in its binary form. The statement gives its type with a cast, such as `$1::int8`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Param<'a> {
    Int(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// An array of `int8`.
    Numbers(&'a [i64]),
    /// An array of `bytea`.
    Frames(&'a [Bytes]),
}

impl Param<'_> {
    /// A number, which is never as large as `int8` has room for.
    pub(crate) fn number(number: u64) -> Self {
        Self::Int(column(number))
    }
}

/// A number as a column has it.
pub(crate) fn column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A row of an answer.
#[derive(Debug)]
pub(crate) struct Row {
    fields: Vec<Option<Bytes>>,
    server: Arc<str>,
}

impl Row {
    fn field(&self, column: usize) -> Option<&Bytes> {
        self.fields.get(column).and_then(Option::as_ref)
    }

    fn malformed(&self, column: usize) -> PostgresError {
        let reason = format!("column {column} of an answer has another type");
        PostgresError::Protocol { server: Arc::clone(&self.server), reason: reason.into() }
    }

    /// A column of type `int8`; `None` where it is null.
    pub(crate) fn int(&self, column: usize) -> Result<Option<i64>, PostgresError> {
        let Some(bytes) = self.field(column) else { return Ok(None) };
        bytes.as_ref().try_into().map(|bytes| Some(i64::from_be_bytes(bytes))).map_err(|_| self.malformed(column))
    }

    /// A column of type `int8` that is never null or negative.
    pub(crate) fn number(&self, column: usize) -> Result<u64, PostgresError> {
        self.int(column)?.and_then(|value| u64::try_from(value).ok()).ok_or_else(|| self.malformed(column))
    }

    /// A column of type `bool`.
    pub(crate) fn flag(&self, column: usize) -> Result<bool, PostgresError> {
        match self.field(column).map(AsRef::as_ref) {
            Some([flag]) => Ok(*flag != 0),
            _ => Err(self.malformed(column)),
        }
    }

    /// A column of type `text`; `None` where it is null.
    pub(crate) fn text(&self, column: usize) -> Result<Option<String>, PostgresError> {
        let Some(bytes) = self.field(column) else { return Ok(None) };
        String::from_utf8(bytes.to_vec()).map(Some).map_err(|_| self.malformed(column))
    }

    /// A column of type `bytea`; empty where it is null.
    pub(crate) fn bytes(&self, column: usize) -> Bytes {
        self.field(column).cloned().unwrap_or_default()
    }
}

/// A connection. After [`PostgresError::Connection`] it must be dropped.
pub(crate) struct Connection {
    stream: Stream,
    server: Arc<str>,
    user: Arc<str>,
    incoming: BytesMut,
    outgoing: BytesMut,
    /// Names of the statements that the server knows, by their text.
    prepared: HashMap<&'static str, String>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.server)
    }
}

impl Connection {
    /// Connects and logs in. `name` is the name of the session that `pg_stat_activity` shows.
    pub(crate) fn open(server: &PostgresServer, name: &str, timeout: Duration) -> Result<Self, PostgresError> {
        let stream = Stream::connect(server, timeout)?;
        let mut connection = Self {
            stream,
            server: server.place().into(),
            user: Arc::clone(&server.user),
            incoming: BytesMut::new(),
            outgoing: BytesMut::new(),
            prepared: HashMap::new(),
        };
        connection.log_in(server, name)?;
        Ok(connection)
    }

    /// Every read and write fails after so long without a byte.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) -> Result<(), PostgresError> {
        self.stream.set_timeout(timeout.max(Duration::from_millis(1))).map_err(|error| self.lost(&error))
    }

    fn lost(&self, error: &io::Error) -> PostgresError {
        let reason = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not answer in time".to_owned(),
            _ => error.to_string(),
        };
        PostgresError::Connection { server: Arc::clone(&self.server), reason: reason.into() }
    }

    fn unexpected(&self, reason: impl Into<String>) -> PostgresError {
        PostgresError::Protocol { server: Arc::clone(&self.server), reason: reason.into().into() }
    }

    fn refused_login(&self, reason: impl Into<String>) -> PostgresError {
        PostgresError::Login { server: Arc::clone(&self.server), user: Arc::clone(&self.user), reason: reason.into().into() }
    }

    fn send(&mut self) -> Result<(), PostgresError> {
        let sent = self.stream.write_all(&self.outgoing).and_then(|()| self.stream.flush());
        self.outgoing.clear();
        sent.map_err(|error| self.lost(&error))
    }

    fn receive(&mut self) -> Result<Message, PostgresError> {
        loop {
            if let Some(message) = Message::parse(&mut self.incoming).map_err(|error| self.unexpected(error.to_string()))? {
                match message {
                    Message::NoticeResponse(_) | Message::ParameterStatus(_) | Message::NotificationResponse(_) => continue,
                    message => return Ok(message),
                }
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(self.lost(&io::Error::other("the server has closed the connection"))),
                Ok(count) => self.incoming.extend_from_slice(bytes.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(&error)),
            }
        }
    }

    fn log_in(&mut self, server: &PostgresServer, name: &str) -> Result<(), PostgresError> {
        let parameters = [
            ("user", &*server.user),
            ("database", server.database.as_str()),
            ("application_name", name),
            ("client_encoding", "UTF8"),
            // A commit is durable when it is answered, whatever the default of the server is.
            ("options", "-c synchronous_commit=on -c standard_conforming_strings=on"),
        ];
        frontend::startup_message(parameters, &mut self.outgoing).map_err(|error| self.unexpected(error.to_string()))?;
        self.send()?;
        let mut scram = None;
        loop {
            match self.receive()? {
                Message::AuthenticationOk => {}
                Message::AuthenticationCleartextPassword => {
                    let password = self.password(server)?;
                    self.answer_password(password.as_bytes())?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(server.user.as_bytes(), self.password(server)?.as_bytes(), body.salt());
                    self.answer_password(hash.as_bytes())?;
                }
                Message::AuthenticationSasl(body) => {
                    let offers = body.mechanisms().any(|mechanism| Ok(mechanism == SCRAM_SHA_256));
                    if !offers.map_err(|error| self.unexpected(error.to_string()))? {
                        return Err(self.refused_login("it asks for a login that this host does not know"));
                    }
                    let state = ScramSha256::new(self.password(server)?.as_bytes(), ChannelBinding::unsupported());
                    let encoded = frontend::sasl_initial_response(SCRAM_SHA_256, state.message(), &mut self.outgoing);
                    encoded.map_err(|error| self.unexpected(error.to_string()))?;
                    self.send()?;
                    scram = Some(state);
                }
                Message::AuthenticationSaslContinue(body) => {
                    let state = scram.as_mut().ok_or_else(|| self.unexpected("a login out of order"))?;
                    if state.update(body.data()).is_err() {
                        return Err(self.refused_login("its proof is wrong"));
                    }
                    let encoded = frontend::sasl_response(state.message(), &mut self.outgoing);
                    encoded.map_err(|error| self.unexpected(error.to_string()))?;
                    self.send()?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    let state = scram.as_mut().ok_or_else(|| self.unexpected("a login out of order"))?;
                    if state.finish(body.data()).is_err() {
                        return Err(self.refused_login("the server does not know the password either"));
                    }
                }
                Message::BackendKeyData(_) => {}
                Message::ReadyForQuery(_) => return Ok(()),
                Message::ErrorResponse(body) => {
                    let (code, message) = error_of(body.fields());
                    // Class 28: the login. 3D000: no such database. 42501: no right to connect.
                    if code.starts_with("28") || code == "3D000" || code == "42501" {
                        return Err(self.refused_login(message));
                    }
                    return Err(self.lost(&io::Error::other(format!("{message}, SQLSTATE {code}"))));
                }
                _ => return Err(self.refused_login("it asks for a login that this host does not know")),
            }
        }
    }

    fn password<'a>(&self, server: &'a PostgresServer) -> Result<&'a str, PostgresError> {
        server.password.as_deref().ok_or_else(|| self.refused_login("it asks for a password, and none is configured"))
    }

    fn answer_password(&mut self, password: &[u8]) -> Result<(), PostgresError> {
        let encoded = frontend::password_message(password, &mut self.outgoing);
        // The error of the encoder is not shown: its message is about the password.
        encoded.map_err(|_| self.refused_login("the password has a zero byte"))?;
        self.send()
    }

    /// Executes a statement in a transaction of its own; gives its rows. All columns are `int8`, `bool`, `text` or `bytea`.
    ///
    /// # Errors
    /// [`PostgresError::is_refusal`] says that nothing was changed; after any other error that is not known.
    pub(crate) fn query(&mut self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, PostgresError> {
        let name = match self.prepared.get(sql) {
            Some(name) => name.clone(),
            None => {
                let name = format!("s{}", self.prepared.len());
                frontend::parse(&name, sql, [], &mut self.outgoing).map_err(|error| self.unencodable(&error))?;
                name
            }
        };
        let bound = frontend::bind("", &name, [BINARY], params, write_param, [BINARY], &mut self.outgoing);
        if bound.is_err() {
            self.outgoing.clear();
            return Err(self.unexpected("a parameter is larger than the protocol allows"));
        }
        frontend::execute("", 0, &mut self.outgoing).map_err(|error| self.unencodable(&error))?;
        frontend::sync(&mut self.outgoing);
        self.send()?;
        let (rows, known) = self.answer()?;
        if known {
            self.prepared.insert(sql, name);
        }
        rows
    }

    /// Executes statements without parameters, all of them in one transaction.
    pub(crate) fn execute(&mut self, sql: &str) -> Result<(), PostgresError> {
        frontend::query(sql, &mut self.outgoing).map_err(|error| self.unencodable(&error))?;
        self.send()?;
        self.answer()?.0.map(drop)
    }

    fn unencodable(&mut self, error: &io::Error) -> PostgresError {
        self.outgoing.clear();
        self.unexpected(error.to_string())
    }

    /// The answer up to its end: the rows or the refusal, and whether the server has parsed a statement.
    fn answer(&mut self) -> Result<(Result<Vec<Row>, PostgresError>, bool), PostgresError> {
        let (mut rows, mut refusal, mut parsed) = (Vec::new(), None, false);
        loop {
            match self.receive()? {
                Message::ParseComplete => parsed = true,
                Message::DataRow(body) => rows.push(self.row(&body)?),
                Message::ErrorResponse(body) => {
                    let (code, message) = error_of(body.fields());
                    let server = Arc::clone(&self.server);
                    let error = PostgresError::Refused { server, code: code.into(), message: message.into() };
                    if !error.is_refusal() {
                        return Err(self.lost(&io::Error::other(error.to_string())));
                    }
                    refusal = Some(error);
                }
                Message::ReadyForQuery(_) => return Ok((refusal.map_or(Ok(rows), Err), parsed)),
                _ => {}
            }
        }
    }

    fn row(&self, body: &DataRowBody) -> Result<Row, PostgresError> {
        let bytes = body.buffer_bytes();
        let mut fields = Vec::new();
        let mut ranges = body.ranges();
        while let Some(range) = ranges.next().map_err(|error| self.unexpected(error.to_string()))? {
            fields.push(range.map(|range| bytes.slice(range)));
        }
        Ok(Row { fields, server: Arc::clone(&self.server) })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.outgoing.clear();
        frontend::terminate(&mut self.outgoing);
        // The server also ends the session of a connection that was closed without this.
        let _ = self.stream.write_all(&self.outgoing);
    }
}

fn dimension(len: usize) -> Result<ArrayDimension, TryFromIntError> {
    Ok(ArrayDimension { len: i32::try_from(len)?, lower_bound: 1 })
}

fn write_param(param: &Param<'_>, to: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
    match param {
        Param::Int(value) => to.extend_from_slice(&value.to_be_bytes()),
        Param::Text(text) => to.extend_from_slice(text.as_bytes()),
        Param::Bytes(bytes) => to.extend_from_slice(bytes),
        Param::Numbers(numbers) => {
            let write = |number: &i64, to: &mut BytesMut| {
                to.extend_from_slice(&number.to_be_bytes());
                Ok(IsNull::No)
            };
            array_to_sql([dimension(numbers.len())?], INT8, *numbers, write, to)?;
        }
        Param::Frames(frames) => {
            let write = |frame: &Bytes, to: &mut BytesMut| {
                to.extend_from_slice(frame);
                Ok(IsNull::No)
            };
            array_to_sql([dimension(frames.len())?], BYTEA, *frames, write, to)?;
        }
    }
    Ok(IsNull::No)
}

/// SQLSTATE and message of an error.
fn error_of(mut fields: ErrorFields<'_>) -> (String, String) {
    let (mut code, mut message) = (String::new(), String::new());
    while let Ok(Some(field)) = fields.next() {
        let value = String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => code = value,
            b'M' => message = value,
            _ => {}
        }
    }
    (code, message)
}
