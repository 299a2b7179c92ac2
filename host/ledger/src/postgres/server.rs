//! The address of a server, read from a URL.

use std::{fmt, path::PathBuf, sync::Arc};

use percent_encoding::percent_decode_str;
use url::Url;

use crate::postgres::PostgresError;

const PORT: u16 = 5432;

/// The way in which the connection is secured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TlsMode {
    /// The connection is not encrypted.
    Disable,
    /// The server's certificate is of an authority that is trusted, and of the host that the URL names.
    VerifyFull {
        /// A file of trusted certificates, instead of those of the system.
        roots: Option<PathBuf>,
    },
}

/// The address of PostgreSQL, with the login. `Debug` and `Display` leave the password out.
#[derive(Clone)]
pub struct PostgresServer {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) database: String,
    pub(super) user: Arc<str>,
    pub(super) password: Option<String>,
    pub(super) tls: TlsMode,
}

impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresServer({self})")
    }
}

impl fmt::Display for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}@{}/{}", self.user, self.place(), self.database)
    }
}

fn wrong(reason: impl Into<String>) -> PostgresError {
    PostgresError::Url(reason.into().into())
}

fn decoded(text: &str, what: &str) -> Result<String, PostgresError> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| wrong(format!("its {what} is not UTF-8")))?;
    if text.contains('\0') {
        return Err(wrong(format!("its {what} has a zero byte")));
    }
    Ok(text.into_owned())
}

impl PostgresServer {
    /// Reads `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE?sslmode=verify-full|disable&sslrootcert=FILE`. `sslmode` is
    /// `verify-full` by default. `password` has precedence over a password in the URL.
    ///
    /// # Errors
    /// [`PostgresError::Url`]; the error does not repeat the URL, which may hold a password.
    pub fn parse(url: &str, password: Option<String>) -> Result<Self, PostgresError> {
        let url = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        if !matches!(url.scheme(), "postgres" | "postgresql") {
            return Err(wrong(format!("it begins with `{}:`", url.scheme())));
        }
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it names no host"))?;
        let host = decoded(host.trim_start_matches('[').trim_end_matches(']'), "host")?;
        let user = decoded(url.username(), "user")?;
        if user.is_empty() {
            return Err(wrong("it names no user"));
        }
        let database = decoded(url.path().trim_start_matches('/'), "database")?;
        let (mut mode, mut roots) = (None, None);
        for (key, value) in url.query_pairs() {
            match &*key {
                "sslmode" => mode = Some(value.into_owned()),
                "sslrootcert" => roots = Some(PathBuf::from(value.into_owned())),
                other => {
                    return Err(wrong(format!(
                        "it has the parameter `{other}`, and this host knows `sslmode` and `sslrootcert`"
                    )));
                }
            }
        }
        let tls = match mode.as_deref() {
            None | Some("verify-full") => TlsMode::VerifyFull { roots },
            Some("disable") if roots.is_none() => TlsMode::Disable,
            Some("disable") => return Err(wrong("`sslrootcert` changes nothing with sslmode=disable")),
            Some(other) => {
                return Err(wrong(format!(
                    "sslmode is `{other}`, and this host knows `verify-full` and, where nobody else is on the network, `disable`"
                )));
            }
        };
        let password = match (password, url.password()) {
            (Some(password), _) => Some(password),
            (None, Some(password)) => Some(decoded(password, "password")?),
            (None, None) => None,
        };
        let database = if database.is_empty() { user.clone() } else { database };
        Ok(Self { host, port: url.port().unwrap_or(PORT), database, user: user.into(), password, tls })
    }

    /// The user that logs in.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Host and port.
    pub(crate) fn place(&self) -> String {
        if self.host.contains(':') { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_and_its_password_is_not_shown() {
        let server = PostgresServer::parse("postgres://a%40b:s%2Fcret@db.internal/agent_host", None).unwrap();
        assert_eq!((&*server.user, server.password.as_deref()), ("a@b", Some("s/cret")));
        assert_eq!((server.place(), &*server.database), ("db.internal:5432".to_owned(), "agent_host"));
        assert_eq!(server.tls, TlsMode::VerifyFull { roots: None });
        assert!(!format!("{server} {server:?}").contains("cret"));
        let server = PostgresServer::parse("postgresql://u@[::1]:99?sslmode=disable", Some("p".into())).unwrap();
        assert_eq!((server.place(), &*server.database, &server.tls), ("[::1]:99".to_owned(), "u", &TlsMode::Disable));
        assert_eq!(server.password.as_deref(), Some("p"));
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for (url, wanted) in [
            ("mysql://u:secret@h/d", "begins with `mysql:`"),
            ("u:secret@h", "address of PostgreSQL"),
            ("postgres://:secret@h/d", "no user"),
            ("postgres://u:secret@h/d?sslmode=prefer", "`prefer`"),
            ("postgres://u:secret@h/d?sslmode=disable&sslrootcert=x", "changes nothing"),
            ("postgres://u:secret@h/d?options=x", "`options`"),
            ("postgres://u:secret@h:99999/d", "port"),
            ("postgres://u%00:secret@h/d", "zero byte"),
        ] {
            let error = PostgresServer::parse(url, None).unwrap_err();
            assert!(matches!(error, PostgresError::Url(_)), "{url}");
            let text = error.to_string();
            assert!(text.contains(wanted) && !text.contains("secret"), "{url}: {text}");
        }
    }
}
