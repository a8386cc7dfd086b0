//! The side of a process that shows its endpoints: a socket, and a thread that sleeps at it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ropewalk_net::{Endpoint, host, threads};
use rustix::net::sockopt::socket_peercred;

use crate::{NAME, answer, shown};

/// The longest question.
const QUESTION_BYTES_MAX: u64 = 4096;
/// How long one who asks may take to ask, or to read.
const PATIENCE: Duration = Duration::from_secs(1);

static IS_OPEN: Mutex<bool> = Mutex::new(false);

/// Shows the paths of an endpoint, under this role, to root and the user of this process, as long as the endpoint is
/// open. Without a descriptor or a thread for that it is not shown. The socket's name is one of the network namespace
/// in which this thread was when it showed the first endpoint.
pub fn show(endpoint: &Endpoint, role: &str) {
    shown::add(endpoint, role);
    let mut is_open = IS_OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !*is_open && let Some(listener) = listen() {
        *is_open = threads::start("ropewalk-paths", move || serve(&listener)).is_ok();
    }
}

fn listen() -> Option<UnixListener> {
    let name = format!("{NAME}{:016x}", host::random_seed());
    let address = SocketAddr::from_abstract_name(name).ok()?;
    UnixListener::bind_addr(&address).ok()
}

fn serve(listener: &UnixListener) {
    loop {
        match listener.accept() {
            // One who has gone meanwhile, or is too slow, misses the answer.
            Ok((stream, _)) => _ = attend(&stream),
            // Without a descriptor for the caller there is none for the next one either.
            Err(_) => std::thread::sleep(PATIENCE),
        }
    }
}

fn attend(mut stream: &UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let asker = socket_peercred(stream)?.uid;
    if !asker.is_root() && asker != rustix::process::geteuid() {
        return Ok(());
    }
    let mut question = String::new();
    BufReader::new(stream.take(QUESTION_BYTES_MAX)).read_line(&mut question)?;
    stream.write_all(answer::to(&question).to_string().as_bytes())
}
