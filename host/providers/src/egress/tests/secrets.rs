//! Secrets in requests, and secrets that a server repeats.

use super::*;

#[tokio::test]
async fn a_secret_goes_where_it_is_meant_to_go_and_nowhere_else() {
    let server = serve(|_| ok("in")).await;
    let here = format!("127.0.0.1:{}", server.port);
    let names = Names::new(&[("local.test", &[&["127.0.0.1"]]), ("elsewhere.test", &[&["8.8.8.8"]])]);
    let kept = with_secrets(
        &[("api", CANARY, &here), ("other", "other-secret-value", "*.test:*"), ("third", "third-secret", &here)],
        names,
    );
    let egress = &kept.egress;
    assert_eq!(egress.secret_names(), ["api", "other", "third"]);
    assert!(egress.problems().is_empty());
    let keyed = |url: String, value: &str| with(get(url), "Authorization", value);

    text(egress, &keyed(server.url("/"), "Bearer {{secret:api}}, again {{secret:api}}!")).await.unwrap();
    assert!(server.last().contains(&format!("authorization: Bearer {CANARY}, again {CANARY}!\r\n")));
    assert!(server.last().contains("accept-encoding: identity\r\n"));
    text(egress, &keyed(format!("http://local.test:{}/", server.port), "{{secret:other}}")).await.unwrap();
    assert!(server.last().contains("authorization: other-secret-value"));

    let before = server.seen().len();
    for (request, code) in [
        (keyed(server.url("/"), "{{secret:third}}"), "secret_not_granted"),
        (keyed(server.url("/"), "{{secret:no\u{7f} such}}"), "invalid_request"),
        (keyed(server.url("/"), "{{secret:}}"), "secret_not_granted"),
        (keyed(server.url("/"), "{{secret:{{secret:api}}}}"), "secret_not_granted"),
        (keyed(server.url("/"), "{{secret:other}}"), "secret_not_for_host"),
        (keyed(format!("http://127.0.0.1:{}/", server.port.wrapping_sub(1)), "{{secret:api}}"), "secret_not_for_host"),
        (keyed(format!("http://localhost:{}/", server.port), "{{secret:api}}"), "secret_not_for_host"),
    ] {
        let checked = refused(egress.check(&request, &any().as_ref()), code);
        assert_eq!(refused(send(egress, &request).await, code), checked);
    }
    // A target whose address decides is refused after the resolution.
    let request = keyed("http://elsewhere.test:9/".into(), "{{secret:other}}");
    egress.check(&request, &any().as_ref()).unwrap();
    refused(send(egress, &request).await, "secret_needs_tls");
    assert_eq!(server.seen().len(), before);

    let public = with_secrets(&[("api", CANARY, "8.8.8.8:*")], Arc::new(System));
    refused(public.egress.check(&keyed("http://8.8.8.8/".into(), "{{secret:api}}"), &any().as_ref()), "secret_needs_tls");
    public.egress.check(&keyed("https://8.8.8.8/".into(), "{{secret:api}}"), &any().as_ref()).unwrap();
}

#[tokio::test]
async fn a_secret_goes_by_https() {
    let server = serve_tls(ok).await;
    let names = Names::new(&[("one.test", &[&["127.0.0.1"]])]);
    let kept = with_secrets(&[("api", CANARY, "one.test:*")], names);
    let request = with(get(format!("https://one.test:{}/", server.port)), "x-key", "{{secret:api}}");
    let echo = text(&kept.egress, &request).await.unwrap();
    assert!(server.last().contains(&format!("x-key: {CANARY}")));
    assert!(echo.contains("x-key: [secret api]") && !echo.contains(CANARY), "{echo}");
}

#[test]
fn a_secret_that_is_not_there_is_a_problem_and_no_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "short").unwrap();
    let broken = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(broken.path(), "two\nlines and more").unwrap();
    let secret = |name: &str, value| HttpSecretConfig { name: name.into(), value, hosts: vec!["a.example".into()] };
    let configs = [
        secret("api", SecretRef::Env("AGENT_HOST_NO_SUCH".into())),
        secret("short", SecretRef::File(file.path().into())),
        secret("broken", SecretRef::File(broken.path().into())),
    ];
    let egress = Egress::open(&EgressConfig::default(), &configs).unwrap();
    let problems = egress.problems();
    assert_eq!(problems.len(), 3);
    assert!(problems[0].contains("`api`") && problems[0].contains("AGENT_HOST_NO_SUCH"), "{problems:?}");
    assert!(!problems.concat().contains("two"), "{problems:?}");
    for name in ["api", "short", "broken", "unknown"] {
        let allowed = AllowedOwned { hosts: vec!["*".into()], secrets: vec![name.into()] };
        let request = with(get("https://a.example/"), "x", &format!("{{{{secret:{name}}}}}"));
        assert_eq!(refused(egress.check(&request, &allowed.as_ref()), "secret_missing").code, ErrorCode::RuntimeError);
    }
    let twice = [secret("api", SecretRef::Env("A".into())), secret("api", SecretRef::Env("B".into()))];
    assert!(Egress::open(&EgressConfig::default(), &twice).unwrap_err().contains("two"));
    let kept = with_secrets(&[("api", CANARY, "a.example")], Arc::new(System));
    assert!(!format!("{:?}", kept.egress).contains("canary"), "{:?}", kept.egress);
}

#[tokio::test]
async fn a_server_that_repeats_a_secret_does_not_give_it_to_the_guest() {
    let basic = STANDARD.encode(format!("user:{CANARY}"));
    let forms = [
        CANARY.to_owned(),
        STANDARD.encode(CANARY),
        basic,
        agent_host_protocol::hex::encode(CANARY.as_bytes()),
        format!("{{\"{CANARY}\":\"{CANARY}\"}}"),
    ];
    let echoed = forms.join(" ");
    let server = serve({
        let echoed = echoed.clone();
        move |request| match request.split(' ').nth(1).unwrap() {
            "/gzip" => vec![say("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\nxxx")],
            "/transfer" => vec![say("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nxxx\r\n0\r\n\r\n")],
            _ => {
                let mut acts = vec![say(format!(
                    "HTTP/1.1 200 {CANARY}\r\nx-echo: <{CANARY}>\r\nx-{CANARY}: 1\r\nx-multi: a\r\nx-multi: b\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                    echoed.len()
                ))];
                // Each byte is a packet of its own.
                acts.extend(echoed.bytes().flat_map(|byte| [say([byte]), Act::Pause(1)]));
                acts
            }
        }
    })
    .await;
    let kept = with_secrets(&[("api", CANARY, "127.0.0.1:*")], Arc::new(System));
    let request = with(get(server.url("/")), "Authorization", "Bearer {{secret:api}}");
    let mut response = send(&kept.egress, &request).await.unwrap();
    let head = format!("{:?}", response.head());
    assert!(head.contains("<[secret api]>") && !head.contains("canary"), "{head}");
    assert_eq!(response.head().headers.iter().filter(|(name, _)| name == "x-multi").count(), 2);
    let seen = body(&mut response).await.unwrap();
    for form in &forms {
        assert!(!seen.contains(form.as_str()), "{form}: {seen}");
    }
    assert_eq!(seen.matches("[secret api]").count(), 6, "{seen}");

    // The client may have kept the secret of the last request.
    let seen = text(&kept.egress, &get(server.url("/"))).await.unwrap();
    assert!(!seen.contains("canary") && seen.contains("[secret api]"), "{seen}");
    for path in ["/gzip", "/transfer"] {
        let request = with(with(get(server.url(path)), "Authorization", "{{secret:api}}"), "Accept-Encoding", "gzip");
        refused(send(&kept.egress, &request).await, "response_encoded");
        assert!(server.last().contains("accept-encoding: identity\r\n") && !server.last().contains("gzip,"), "{}", server.last());
        assert_eq!(send(&kept.egress, &get(server.url(path))).await.unwrap().head().status, 200);
    }
}

#[tokio::test]
async fn a_redirect_does_not_carry_a_secret_in_its_url() {
    let other = serve(|_| ok("end")).await;
    let to = other.url(&format!("/?key={CANARY}"));
    let server = serve(move |_| redirect_to(302, &to)).await;
    let kept = with_secrets(&[("api", CANARY, &format!("127.0.0.1:{}", server.port))], Arc::new(System));
    let request = with(get(server.url("/")), "x-key", "{{secret:api}}");
    assert_eq!(text(&kept.egress, &request).await.unwrap(), "end");
    assert!(!other.last().contains("canary"), "{}", other.last());
}
