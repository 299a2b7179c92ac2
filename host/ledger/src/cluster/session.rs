//! A connection that is made again when it was lost.

use std::time::Duration;

use crate::postgres::{Connection, Param, PostgresError, PostgresServer, Row};

pub(crate) struct Session {
    server: PostgresServer,
    name: String,
    timeout: Duration,
    connection: Option<Connection>,
}

impl Session {
    /// A session of this name, which connects when it is first used. Every wait for the server ends after `timeout`.
    pub(crate) fn new(server: &PostgresServer, name: &str, timeout: Duration) -> Self {
        Self { server: server.clone(), name: name.to_owned(), timeout, connection: None }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
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
            None => Connection::open(&self.server, &self.name, self.timeout)?,
        };
        let result = connection.query(sql, params);
        if result.as_ref().err().is_none_or(PostgresError::is_refusal) {
            self.connection = Some(connection);
        }
        result
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
