use super::*;

fn start() -> Web {
    let address = "127.0.0.1:0".parse().expect("an address");
    Web::start(address, Box::new(|| "a 1\n".repeat(20_000))).expect("loopback has ports")
}

/// Sends something, and reads the answer to its end.
fn ask(web: &Web, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(web.address).expect("it listens");
    stream.set_read_timeout(Some(2 * PATIENCE)).expect("a time limit");
    // It may answer before it has all.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("text")
}

#[test]
fn the_page_and_nothing_else_is_served() {
    let web = start();
    let page = ask(&web, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n");
    let (head, body) = page.split_once("\r\n\r\n").expect("an answer has a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{head}");
    assert!(head.contains("Content-Length: 80000\r\n"), "{head}");
    assert_eq!(body.len(), 80_000);
    for (request, status) in [
        (&b"GET /metrics?x=1 HTTP/1.0\n\n"[..], "200"),
        (b"GET / HTTP/1.1\r\n\r\n", "200"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"\xff\xfe\0\r\n\r\n", "400"),
        (b"\r\n\r\n", "400"),
    ] {
        let answer = ask(&web, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
    }
    let head = ask(&web, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.contains("Content-Length: 80000") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn a_request_without_an_end_costs_little_memory() {
    let web = start();
    let answer = ask(&web, &[b'a'; 3 * HEAD_BYTES_MAX]);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let long = [&b"GET /"[..], &[b'x'; HEAD_BYTES_MAX - 100], b" HTTP/1.1\r\n\r\n"].concat();
    assert!(ask(&web, &long).starts_with("HTTP/1.1 404 "));
}

#[test]
fn callers_that_are_silent_or_do_not_read_keep_nobody_away_for_long() {
    let web = start();
    let begin = Instant::now();
    let mut slow: Vec<TcpStream> = Vec::new();
    for number in 0..3 * CALLERS_MAX {
        let mut stream = TcpStream::connect(web.address).expect("it listens");
        // Some say nothing, some begin, some ask and do not read.
        let said: [&[u8]; 3] = [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n"];
        let _ = stream.write_all(said[number % 3]);
        slow.push(stream);
    }
    let served = loop {
        let answer = ask(&web, b"GET /metrics HTTP/1.1\r\n\r\n");
        if answer.starts_with("HTTP/1.1 200") {
            break begin.elapsed();
        }
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(begin.elapsed() < 3 * PATIENCE, "nobody is served");
        std::thread::sleep(PAUSE);
    };
    assert!(served < 2 * PATIENCE, "{served:?}");
    drop(slow);
}

#[test]
fn the_page_is_not_made_for_each_of_many_callers() {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = made.clone();
    let source = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        "a 1\n".to_string()
    };
    let address = "127.0.0.1:0".parse().expect("an address");
    let web = Web::start(address, Box::new(source)).expect("loopback has ports");
    let begin = Instant::now();
    for _ in 0..50 {
        assert!(ask(&web, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("a 1\n"));
    }
    let most = begin.elapsed().as_millis() / KEPT.as_millis() + 1;
    assert!((made.load(Ordering::Relaxed) as u128) <= most);
}
