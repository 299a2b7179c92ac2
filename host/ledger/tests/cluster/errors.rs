//! Errors: each fault of a database, a host or its files has a type, and its message says what to do; no message has the password.

use std::process::Command;

use agent_host_ledger::{ClusterError, OpenError, PostgresError, PostgresServer, Standby, cluster_status, init_cluster};

use crate::{
    common::{
        postgres::{PASSWORD, Postgres, shared},
        *,
    },
    hosts::*,
};

fn server(url: &str) -> PostgresServer {
    PostgresServer::parse(url, None).unwrap()
}

#[track_caller]
fn says(error: &dyn std::error::Error, wanted: &str) {
    let text = format!("{error} {error:?}");
    assert!(text.contains(wanted), "{text}");
    assert!(!text.contains(PASSWORD), "{text}");
}

/// The error with which a host is refused.
#[track_caller]
fn refused(url: &str) -> ClusterError {
    let dir = tempfile::tempdir().unwrap();
    match Standby::join(host_options(dir.path()), &member(url, "refused:1")).unwrap_err() {
        OpenError::Cluster(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_database_that_cannot_be_reached_or_refuses_the_login() {
    let url = shared().url("postgres");
    let error = refused(&url.replace(&shared().port.to_string(), "1"));
    assert!(matches!(error, ClusterError::Postgres(PostgresError::Connection { .. })), "{error}");
    says(&error, "127.0.0.1:1 cannot be reached");
    for (url, wanted) in [
        (url.replace(PASSWORD, "wrong"), "password authentication failed"),
        (url.replace(&format!(":{PASSWORD}"), ""), "none is configured"),
        (url.replace("/postgres?", "/nowhere?"), "nowhere"),
    ] {
        let error = refused(&url);
        assert!(matches!(error, ClusterError::Postgres(PostgresError::Login { .. })), "{error}");
        says(&error, wanted);
    }
}

#[test]
fn a_connection_that_cannot_be_secured() {
    let error = refused(&shared().url("postgres").replace("sslmode=disable", "sslmode=verify-full"));
    assert!(matches!(error, ClusterError::Postgres(PostgresError::Tls { .. })), "{error}");
    says(&error, "TLS switched off");
    let certificates = tempfile::tempdir().unwrap();
    std::fs::set_permissions(certificates.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (key, certificate) = (certificates.path().join("key.pem"), certificates.path().join("cert.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    if rustix::process::geteuid().is_root() {
        assert!(Command::new("chown").arg("postgres").arg(&key).status().unwrap().success());
    }
    let files = [format!("ssl_cert_file={}", certificate.display()), format!("ssl_key_file={}", key.display())];
    let postgres = Postgres::start_with(&["ssl=on", &files[0], &files[1]]);
    let url = postgres.url("postgres");
    for (url, wanted) in [
        (url.replace("sslmode=disable", ""), "invalid peer certificate"),
        (url.replace("sslmode=disable", &format!("sslrootcert={}", certificate.display())), "not valid for name"),
        (url.replace("sslmode=disable", "sslrootcert=/nowhere.pem"), "/nowhere.pem cannot be read"),
    ] {
        let error = refused(&url);
        assert!(matches!(error, ClusterError::Postgres(PostgresError::Tls { .. })), "{error}");
        says(&error, wanted);
    }
    // The name of the certificate, and its authority.
    let secure =
        url.replace("127.0.0.1", "localhost").replace("sslmode=disable", &format!("sslrootcert={}", certificate.display()));
    assert!(matches!(refused(&secure), ClusterError::NoCluster { .. }));
    init_cluster(&server(&secure), None, 1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    drop(active(dir.path(), &secure, "a:1"));
}

#[test]
fn a_server_that_is_too_old_read_only_or_whose_clock_is_off() {
    let database = cluster(shared());
    let url = shared().url(&database);
    // Functions of these names, found before those of PostgreSQL.
    shared().sql(
        &database,
        "create schema fake; create function fake.current_setting(text) returns text language sql as \
         $$ select case when $1 = 'server_version_num' then '130009' else pg_catalog.current_setting($1) end $$",
    );
    let search = |path: &str| shared().sql("postgres", &format!("alter database {database} set search_path = {path}"));
    search("fake, pg_catalog");
    let error = refused(&url);
    assert!(matches!(error, ClusterError::TooOld { .. }), "{error}");
    says(&error, "14 or newer");
    shared().sql(
        &database,
        "drop function fake.current_setting; create function fake.clock_timestamp() returns timestamptz language sql as \
         $$ select pg_catalog.clock_timestamp() + interval '5 seconds' $$",
    );
    let error = refused(&url);
    assert!(matches!(error, ClusterError::ClockOff { off_ms, .. } if (-5_500..=-4_000).contains(&off_ms)), "{error}");
    says(&error, "NTP");
    search("public");
    shared().sql("postgres", &format!("alter database {database} set default_transaction_read_only = on"));
    let error = refused(&url);
    assert!(matches!(error, ClusterError::ReadOnly { .. }), "{error}");
    says(&error, "primary");
}

#[test]
fn a_database_without_a_cluster_with_a_foreign_one_or_with_one_already() {
    shared().create("plain");
    let url = shared().url("plain");
    let error = refused(&url);
    assert!(matches!(error, ClusterError::NoCluster { .. }), "{error}");
    says(&error, "agent-host cluster init");
    assert!(matches!(cluster_status(&server(&url)), Err(ClusterError::NoCluster { .. })));
    shared().sql("plain", "create schema agent_host; create table agent_host.x (y int)");
    for error in [refused(&url), init_cluster(&server(&url), None, 1).unwrap_err()] {
        assert!(matches!(error, ClusterError::ForeignSchema { .. }), "{error}");
    }
    shared().sql("plain", "drop table agent_host.x; create table agent_host.cluster (y int)");
    assert!(matches!(refused(&url), ClusterError::ForeignSchema { .. }));
    // An empty schema that an administrator has made is filled.
    shared().sql("plain", "drop table agent_host.cluster");
    init_cluster(&server(&url), None, 1).unwrap();
    let error = init_cluster(&server(&url), None, 1).unwrap_err();
    assert!(matches!(error, ClusterError::AlreadyThere { .. }), "{error}");
    says(&error, "cluster status");
    for (column, newer) in [("ledger_format", 99), ("schema_version", 99)] {
        shared().sql("plain", &format!("update agent_host.cluster set {column} = {newer}"));
        let error = refused(&url);
        assert!(matches!(error, ClusterError::OtherFormat { .. }), "{error}");
        says(&error, "version of agent-host");
    }
}

#[test]
fn a_user_without_the_rights() {
    let database = cluster(shared());
    shared().sql("postgres", &format!("create role weak login password '{PASSWORD}'"));
    let url = shared().url(&database).replace("//agent_host:", "//weak:");
    let error = refused(&url);
    assert!(matches!(error, ClusterError::Rights { .. }), "{error}");
    says(&error, "`weak` has no right to use the schema");
    shared().sql(&database, "grant usage on schema agent_host to weak; grant select on all tables in schema agent_host to weak");
    says(&refused(&url), "insert in the table agent_host.hosts");
    shared().create("weak");
    let error = init_cluster(&server(&shared().url("weak").replace("//agent_host:", "//weak:")), None, 1).unwrap_err();
    assert!(matches!(error, ClusterError::Rights { .. }), "{error}");
    says(&error, "create a schema");
}

#[test]
fn two_hosts_with_one_address() {
    let (dir, other, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let ledger = active(dir.path(), &url, "same:1");
    let error = Standby::join(host_options(other.path()), &member(&url, "same:1")).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::AdvertiseTaken { .. })), "{error}");
    says(&error, "same:1");
    // Two processes with the files of one host.
    let error = Standby::join(host_options(dir.path()), &member(&url, "other:1")).unwrap_err();
    assert!(matches!(error, OpenError::AlreadyOpen { .. }), "{error}");
    drop(ledger);
}

#[tokio::test]
async fn files_of_another_kind_of_ledger_or_of_another_cluster() {
    let (embedded, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (url, other) = (shared().url(&cluster(shared())), shared().url(&cluster(shared())));
    host_options(embedded.path()).open().unwrap().close().await.unwrap();
    let join = |dir: &std::path::Path, url: &str| Standby::join(host_options(dir), &member(url, "a:1"));
    let error = join(embedded.path(), &url).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::NotACopy { .. })), "{error}");
    active(copy.path(), &url, "a:1").close().await.unwrap();
    let error = join(copy.path(), &other).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::NotACopy { .. })), "{error}");
    let error = host_options(copy.path()).open().unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::IsACopy { .. })), "{error}");
    says(&error, "[server] ledger");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_lost_what_was_acknowledged_or_is_damaged() {
    let (dir, other, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), cluster(shared()));
    let url = shared().url(&database);
    let ledger = active(dir.path(), &url, "a:1");
    for _ in 0..3 {
        new_run(&ledger).await;
    }
    let last = last_batch(shared(), &database);
    shared().sql(&database, &format!("create table lost as select * from agent_host.log where seq = {last}"));
    shared().sql(&database, &format!("delete from agent_host.log where seq = {last}"));
    // The owner notices with its next batch, and a copy when it is opened.
    let error = ledger.accept(accept(event(), Vec::new())).await.unwrap_err();
    says(&error, "engine_lost_commits");
    drop(ledger);
    let join = |dir: &std::path::Path| Standby::join(host_options(dir), &member(&url, "a:1"));
    let error = join(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::LostCommits { copy, .. }) if copy == last), "{error}");
    says(&error, "engine_lost_commits");
    // Another host goes on with what is left, where the operator says so: the copy differs.
    shared().sql(&database, "update agent_host.partitions set lost_batch = null, lost_by = null");
    let new = tokio::task::spawn_blocking({
        let (dir, url) = (other.path().to_owned(), url.clone());
        move || active(&dir, &url, "b:1")
    });
    let new = new.await.unwrap();
    new_run(&new).await;
    new_run(&new).await;
    assert!(matches!(join(dir.path()).unwrap_err(), OpenError::Cluster(ClusterError::LostCommits { .. })));
    new.close().await.unwrap();
    shared().sql(&database, "update agent_host.log set frame = frame || '\\x00' where seq = 2");
    let fresh = tempfile::tempdir().unwrap();
    let error = join(fresh.path()).unwrap().activate(|| false, |_| ()).unwrap_err();
    assert!(matches!(error, OpenError::Cluster(ClusterError::LogDamaged { batch: 2, .. })), "{error}");
    shared().sql(&database, "delete from agent_host.log where seq = 2");
    let error = join(fresh.path()).unwrap().activate(|| false, |_| ()).unwrap_err();
    says(&error, "the batch before it that is there is");
}

#[test]
fn a_lease_is_renewed() {
    let (dir, database) = (tempfile::tempdir().unwrap(), cluster(shared()));
    let standby = Standby::join(host_options(dir.path()), &member(&shared().url(&database), "a:1")).unwrap();
    let ledger = standby.activate(|| false, |reason| panic!("{reason}")).unwrap().unwrap();
    std::thread::sleep(LEASE * 2);
    ledger.check_lease().unwrap();
}
