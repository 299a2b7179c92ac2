//! A connection that is made again when it was lost.

use std::time::{Duration, Instant};

use crate::postgres::{Connection, Param, PostgresError, PostgresServer, Row};

pub(crate) struct Session {
    server: PostgresServer,
    name: String,
    timeout: Duration,
    connection: Option<Connection>,
    has_connected: bool,
    /// The time of the last connection but the first.
    reconnected: Option<Instant>,
}

impl Session {
    /// A session of this name, which connects when it is first used. Every wait for the server ends after `timeout`.
    pub(crate) fn new(server: &PostgresServer, name: &str, timeout: Duration) -> Self {
        Self { server: server.clone(), name: name.to_owned(), timeout, connection: None, has_connected: false, reconnected: None }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// True if a connection was lost, and another one made less than this time ago: the server may be another one than before.
    pub(crate) fn has_reconnected_within(&self, time: Duration) -> bool {
        self.reconnected.is_some_and(|at| at.elapsed() < time)
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) -> Result<(), PostgresError> {
        if timeout != self.timeout {
            self.timeout = timeout;
            if let Some(connection) = &mut self.connection {
                connection.set_timeout(timeout)?;
            }
        }
        Ok(())
    }

    /// Executes a statement once.
    ///
    /// # Errors
    /// As [`Connection::query`].
    pub(crate) fn query(&mut self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, PostgresError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let result = connection.query(sql, params);
        if result.as_ref().err().is_none_or(PostgresError::is_refusal) {
            self.connection = Some(connection);
        }
        result
    }

    fn connect(&mut self) -> Result<Connection, PostgresError> {
        let connection = Connection::open(&self.server, &self.name, self.timeout)?;
        if std::mem::replace(&mut self.has_connected, true) {
            self.reconnected = Some(Instant::now());
        }
        Ok(connection)
    }

    /// Executes a statement that may be executed twice: once more where the connection had been lost meanwhile.
    pub(crate) fn query_again(&mut self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, PostgresError> {
        let was_connected = self.is_connected();
        match self.query(sql, params) {
            Err(error) if was_connected && !error.is_refusal() => self.query(sql, params),
            result => result,
        }
    }
}
