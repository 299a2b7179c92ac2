//! Redirects: where they lead, and what goes along.

use super::*;

#[tokio::test]
async fn redirects_are_followed_and_methods_change_as_in_a_browser() {
    let server = serve(|request| {
        let path = request.split(' ').nth(1).unwrap();
        match path.strip_prefix("/from/") {
            Some(status) => redirect_to(status.parse().unwrap(), "../end?q=1#part"),
            None => ok("end"),
        }
    })
    .await;
    let egress = open(&local());
    for (status, method, expect, body_stays) in [
        (301, "GET", "GET", true),
        (301, "POST", "GET", false),
        (302, "POST", "GET", false),
        (302, "PUT", "PUT", true),
        (303, "POST", "GET", false),
        (303, "PUT", "GET", false),
        (303, "HEAD", "HEAD", true),
        (307, "POST", "POST", true),
        (308, "DELETE", "DELETE", true),
    ] {
        let request = with(get(server.url(&format!("/from/{status}"))), "content-type", "text/x");
        let request = HttpRequest { method: method.into(), body: b"body".to_vec(), ..request };
        assert_eq!(send(&egress, &request).await.unwrap().head().status, 200);
        let last = server.last();
        assert!(last.starts_with(&format!("{expect} /end?q=1 HTTP/1.1\r\n")), "{status} {method}: {last}");
        assert_eq!(last.ends_with("\r\n\r\nbody"), body_stays, "{status} {method}: {last}");
        assert_eq!(last.contains("content-type: text/x"), body_stays, "{status} {method}: {last}");
    }
}

#[tokio::test]
async fn other_answers_than_redirects_are_returned() {
    let server = serve(|request| match request.split(' ').nth(1).unwrap() {
        "/bare" => vec![say("HTTP/1.1 302 X\r\ncontent-length: 4\r\n\r\nbare")],
        "/304" => redirect_to(304, "/"),
        _ => redirect_to(300, "/"),
    })
    .await;
    for (path, status, expect) in [("/bare", 302, "bare"), ("/304", 304, ""), ("/300", 300, "")] {
        let mut response = send(&open(&local()), &get(server.url(path))).await.unwrap();
        assert_eq!((response.head().status, body(&mut response).await.unwrap().as_str()), (status, expect));
    }
}

#[tokio::test]
async fn a_redirect_to_where_the_run_may_not_go_is_not_followed() {
    let other = serve(|_| ok("other")).await;
    let port = other.port;
    let server = serve(move |request| match request.split(' ').nth(1).unwrap() {
        "/metadata" => redirect_to(302, "http://169.254.169.254/latest/meta-data/"),
        "/mapped" => redirect_to(302, "http://[::ffff:169.254.169.254]/"),
        "/private-name" => redirect_to(302, "http://inside.test/"),
        "/other" => redirect_to(302, &format!("http://127.0.0.1:{port}/")),
        "/user" => redirect_to(302, "http://user:password@127.0.0.1/"),
        "/file" => redirect_to(302, "file:///etc/passwd"),
        "/broken" => redirect_to(302, "http://[::1/"),
        "/long" => redirect_to(302, &format!("/{}", "a".repeat(9 << 10))),
        "/loop" => redirect_to(302, "/loop"),
        path => redirect_to(307, &format!("/{}", path.len())),
    })
    .await;
    let names = Names::new(&[("inside.test", &[&["10.0.0.1"]])]);
    let egress = Egress::build(&local(), &[], names, Vec::new()).unwrap();
    for path in ["/metadata", "/mapped", "/private-name"] {
        let error = refused(send(&egress, &get(server.url(path))).await, "address_not_allowed");
        assert_eq!(error.code, ErrorCode::Unauthorized);
    }
    let only = hosts(&[&format!("127.0.0.1:{}", server.port)]);
    for path in ["/metadata", "/other", "/user", "/file", "/broken", "/long"] {
        let error = refused(egress.send(&get(server.url(path)), &only.as_ref(), &bounds()).await, "redirect_not_allowed");
        assert_eq!(error.code, ErrorCode::Unauthorized, "{path}");
    }
    assert!(other.seen().is_empty());
    let before = server.seen().len();
    let error = refused(send(&egress, &get(server.url("/loop"))).await, "too_many_redirects");
    assert_eq!((error.code, server.seen().len() - before), (ErrorCode::RuntimeError, 6));
    let never = open(&EgressConfig { max_redirects: 0, ..local() });
    refused(send(&never, &get(server.url("/loop"))).await, "too_many_redirects");
}

#[tokio::test]
async fn https_never_becomes_http() {
    let plain = serve(|_| ok("plain")).await;
    let to = plain.url("/");
    let tls = serve_tls(move |_| redirect_to(302, &to)).await;
    let kept = with_secrets(&[], Arc::new(System));
    let url = format!("https://127.0.0.1:{}/", tls.port);
    refused(send(&kept.egress, &get(url)).await, "redirect_not_allowed");
    assert!(plain.seen().is_empty());
}

#[tokio::test]
async fn credentials_do_not_follow_to_another_origin() {
    let other = serve(|request| {
        // After the way back, removed headers stay removed.
        let back = request.lines().find_map(|line| line.strip_prefix("x-back: ")).unwrap();
        redirect_to(307, back)
    })
    .await;
    let to = other.url("/");
    let server = serve(move |request| match request.split(' ').nth(1).unwrap() {
        "/start" => redirect_to(307, "/same"),
        "/same" => redirect_to(307, &to),
        _ => ok("end"),
    })
    .await;
    let kept = with_secrets(&[("api", CANARY, "127.0.0.1:*")], Arc::new(System));
    let request = [
        ("Authorization", "Bearer mine"),
        ("Cookie", "a=b"),
        ("X-Key", "{{secret:api}}"),
        ("X-Plain", "stays"),
        ("X-Back", &server.url("/end")),
    ]
    .into_iter()
    .fold(get(server.url("/start")), |request, (name, value)| with(request, name, value));
    assert_eq!(text(&kept.egress, &request).await.unwrap(), "end");
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    for same in &seen[..2] {
        assert!(
            same.contains(&format!("x-key: {CANARY}"))
                && same.contains("authorization: Bearer mine")
                && same.contains("cookie: a=b")
        );
    }
    for gone in [&other.last(), &seen[2]] {
        assert!(gone.contains("x-plain: stays"), "{gone}");
        for what in ["x-key", "authorization", "cookie", CANARY] {
            assert!(!gone.contains(what), "{gone}");
        }
    }
}
