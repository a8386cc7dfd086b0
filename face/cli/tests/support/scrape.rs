//! The metrics of a process, by a plain socket.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A page, as it comes.
pub fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").expect("it has a head");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    page.to_string()
}

/// Series and their values.
pub fn series(page: &str) -> BTreeMap<&str, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.rsplit_once(' ').expect("a name and a value"));
    pairs.map(|(name, value)| (name, value.parse().expect("a number"))).collect()
}

/// The sum of all series of a metric whose labels have this part.
pub fn sum(page: &str, metric: &str, part: &str) -> f64 {
    let found = series(page)
        .into_iter()
        .filter(|(name, _)| name.split('{').next() == Some(metric) && name.contains(part));
    found.map(|(_, value)| value).sum()
}
