//! The errors of the client.

use std::sync::Arc;

/// The reason why PostgreSQL could not be asked, or refused. No variant holds a password.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The URL is not one of PostgreSQL that this host understands.
    #[error("the address of PostgreSQL is wrong: {0}; write it as postgres://USER@HOST:5432/DATABASE?sslmode=verify-full")]
    Url(Arc<str>),
    /// No connection can be made, or it was lost: what became of the statement is not known.
    #[error("PostgreSQL at {server} cannot be reached ({reason}): look whether it runs, and whether this host may connect to it")]
    Connection {
        /// Host and port.
        server: Arc<str>,
        /// The reason.
        reason: Arc<str>,
    },
    /// The connection cannot be secured.
    #[error(
        "PostgreSQL at {server} cannot be reached over TLS ({reason}): correct its certificate, name that of its authority with \
         sslrootcert=FILE, or take sslmode=disable where nobody else is on the network"
    )]
    Tls {
        /// Host and port.
        server: Arc<str>,
        /// The reason.
        reason: Arc<str>,
    },
    /// The server does not let this user in.
    #[error("PostgreSQL at {server} refuses the login of `{user}` ({reason}): correct the user, the password or pg_hba.conf")]
    Login {
        /// Host and port.
        server: Arc<str>,
        /// The user.
        user: Arc<str>,
        /// The server's message.
        reason: Arc<str>,
    },
    /// The server has refused a statement, which changed nothing.
    #[error("PostgreSQL at {server} refuses a statement: {message} (SQLSTATE {code})")]
    Refused {
        /// Host and port.
        server: Arc<str>,
        /// The five characters of SQLSTATE.
        code: Arc<str>,
        /// The server's message.
        message: Arc<str>,
    },
    /// The server has answered what it cannot answer.
    #[error("PostgreSQL at {server} has sent what is no answer ({reason}): look whether something else listens there")]
    Protocol {
        /// Host and port.
        server: Arc<str>,
        /// Description of the answer.
        reason: Arc<str>,
    },
}

impl PostgresError {
    /// SQLSTATE of a statement that was refused.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }

    /// True if the statement is known to have changed nothing, and the connection can be used.
    pub(crate) fn is_refusal(&self) -> bool {
        // Class 57: the server ends the connection. Class 08: the connection has failed. Class 40003: not known.
        self.code().is_some_and(|code| !code.starts_with("57") && !code.starts_with("08") && code != "40003")
    }
}
