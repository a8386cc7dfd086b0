//! The smallest web server that answers Prometheus: `GET /metrics`, and a page that names it.
//!
//! Invariants, whatever callers send:
//! * at most [`CALLERS_MAX`] connections are worked on, each by a thread of its own; further ones are told to come again;
//! * a connection has one request of at most [`HEAD_BYTES_MAX`] bytes, and [`PATIENCE`] from its begin to its end;
//! * the page is made at most once in [`KEPT`], so that callers cannot keep servers from their work.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// Connections that are worked on at a time.
const CALLERS_MAX: usize = 8;
/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// The time limit of a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// A page that is younger is given out again.
const KEPT: Duration = Duration::from_millis(50);
/// The pause after a connection that could not be taken.
const PAUSE: Duration = Duration::from_millis(20);

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const ABOUT: &str = "<!DOCTYPE html><title>Ropewalk</title><h1>Ropewalk</h1>\
    <p><a href=\"/metrics\">/metrics</a> has the figures of the servers of this process, for Prometheus.\n";

/// Makes the page.
pub type Source = Box<dyn Fn() -> String + Send + Sync>;

/// A running web server. It ends when it is dropped.
pub struct Web {
    pub address: SocketAddr,
    /// Readable once the web server has to end.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The page, and when it was made.
struct Page {
    source: Source,
    made: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Page {
    fn read(&self) -> Arc<str> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = made.as_ref().filter(|(at, _)| at.elapsed() < KEPT) {
            return text.clone();
        }
        let text: Arc<str> = (self.source)().into();
        *made = Some((Instant::now(), text.clone()));
        text
    }
}

impl Web {
    /// Listens there, and answers with what `source` makes.
    pub fn start(address: SocketAddr, source: Source) -> io::Result<Web> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopped = stop.clone();
        let page = Arc::new(Page { source, made: Mutex::new(None) });
        let thread = std::thread::Builder::new()
            .name("metrics".to_string())
            .spawn(move || accept(&listener, &page, &stopped))?;
        Ok(Web { address, stop, thread: Some(thread) })
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        // An eventfd has room for one.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for a caller. False: the web server has to end.
fn wait(listener: &TcpListener, stop: &OwnedFd) -> bool {
    let mut set = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    // An interrupted wait is looked at like any other.
    let _ = poll(&mut set, None);
    set[1].revents().is_empty()
}

fn accept(listener: &TcpListener, page: &Arc<Page>, stop: &OwnedFd) {
    let callers = Arc::new(AtomicUsize::new(0));
    while wait(listener, stop) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            // The error may be that of one connection, or a lack of descriptors that passes.
            Err(_) => {
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        if callers.load(Ordering::Relaxed) >= CALLERS_MAX {
            turn_away(stream);
            continue;
        }
        callers.fetch_add(1, Ordering::Relaxed);
        let (page, counted) = (page.clone(), Caller(callers.clone()));
        let served =
            std::thread::Builder::new().name("metrics caller".to_string()).spawn(move || {
                let _counted = counted;
                // It went away, or was too slow: nobody is there to be told.
                let _ = serve(stream, &page);
            });
        // Without a thread the caller comes again.
        drop(served);
    }
}

/// Counts as a caller until it is dropped.
struct Caller(Arc<AtomicUsize>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells a caller to come again, without waiting for anything.
fn turn_away(mut stream: TcpStream) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = stream.write(&head("503 Service Unavailable", TEXT, 0));
    }
}

/// The time that is left; an error if there is none.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn serve(mut stream: TcpStream, page: &Page) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    stream.set_nonblocking(false)?;
    let request = read_head(&mut stream, until)?;
    let (status, kind, body) = answer(request.as_deref(), page);
    let is_asked = request.is_none_or(|head| !head.starts_with(b"HEAD "));
    let mut bytes = head(status, kind, body.len());
    if is_asked {
        bytes.extend_from_slice(body.as_bytes());
    }
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        let written = stream.write(rest)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        rest = &rest[written..];
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // Bytes that were not read would reset the connection, and the caller might miss the answer.
    let mut more = [0; 1024];
    for _ in 0..HEAD_BYTES_MAX / more.len() {
        stream.set_read_timeout(Some(left(until)?))?;
        if stream.read(&mut more)? == 0 {
            break;
        }
    }
    Ok(())
}

/// The head of a request, to its empty line. None: it is longer than any that is answered.
fn read_head(stream: &mut TcpStream, until: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&part[..count]);
        if head.windows(4).any(|end| end == b"\r\n\r\n")
            || head.windows(2).any(|end| end == b"\n\n")
        {
            return Ok(Some(head));
        }
        if head.len() >= HEAD_BYTES_MAX {
            return Ok(None);
        }
    }
}

fn answer(head: Option<&[u8]>, page: &Page) -> (&'static str, &'static str, Arc<str>) {
    let Some(head) = head else {
        return ("431 Request Header Fields Too Large", TEXT, "the request is too long\n".into());
    };
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.trim_end().split(' ');
    let (method, path, version) = (words.next(), words.next(), words.next());
    let path = path.map(|path| path.split('?').next().unwrap_or_default());
    match (method, path, version) {
        (Some("GET" | "HEAD"), Some("/metrics"), Some("HTTP/1.1" | "HTTP/1.0")) => {
            ("200 OK", TEXT, page.read())
        }
        (Some("GET" | "HEAD"), Some("/"), Some("HTTP/1.1" | "HTTP/1.0")) => {
            ("200 OK", HTML, ABOUT.into())
        }
        (Some("GET" | "HEAD"), Some(_), Some("HTTP/1.1" | "HTTP/1.0")) => {
            ("404 Not Found", TEXT, "the figures are at /metrics\n".into())
        }
        (Some(_), Some(_), Some("HTTP/1.1" | "HTTP/1.0")) => {
            ("405 Method Not Allowed", TEXT, "only GET is answered\n".into())
        }
        _ => ("400 Bad Request", TEXT, "this is no request of HTTP/1.1\n".into()),
    }
}

fn head(status: &str, kind: &str, bytes: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests;
