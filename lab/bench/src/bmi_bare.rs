//! The pattern of a parallel file system over bare sockets: the performance of the medium by itself.
//!
//! A thread for each connection on both sides, with blocking calls: on few cores nothing that asks the
//! kernel for bytes is cheaper, and a client's buffers are filled by one call for all pieces of a message.

use std::io::{Error, ErrorKind, IoSliceMut, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::Context;

use crate::bmi_side::{ACKNOWLEDGEMENT, MESSAGE, MESSAGES, PIECE, PIECES, REQUEST, STRIDE};
use crate::host::monotonic_nanos;
use crate::process::next_line;

/// Bytes of all pieces of a connection, with the gaps between them.
const ROOM: usize = MESSAGES * PIECES * STRIDE;

/// Prints its address, and serves every peer that connects until this process is ended.
pub fn server() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("url {}", listener.local_addr()?);
    loop {
        let socket = listener.accept()?.0;
        socket.set_nodelay(true)?;
        // A peer that closes its connection ends only the thread of that connection.
        std::thread::spawn(move || pour(socket));
    }
}

fn pour(mut socket: TcpStream) -> Result<()> {
    let data = vec![7; MESSAGES * MESSAGE];
    loop {
        socket.read_exact(&mut [0; REQUEST])?;
        socket.write_all(&[0; ACKNOWLEDGEMENT])?;
        for message in data.chunks(MESSAGE) {
            socket.write_all(message)?;
        }
    }
}

/// Learns the servers' addresses, then answers each line with a run.
pub fn client() -> anyhow::Result<()> {
    let addresses = next_line()?.context("nobody says which servers there are")?;
    let mut sockets = Vec::new();
    for address in addresses.split(' ') {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        sockets.push(socket);
    }
    let mut sockets = sockets.into_iter();
    let first = sockets.next().context("there are no servers")?;
    let others = sockets.map(Lane::start).collect::<Result<Vec<Lane>>>()?;
    let mut data = vec![0; ROOM];
    while next_line()?.is_some() {
        let begin = monotonic_nanos();
        for lane in &others {
            lane.go.send(()).ok().context("a thread of the bare pattern is gone")?;
        }
        let mut end = drink_at(&first, &mut data)?;
        for lane in &others {
            let drunk = lane.drunk.recv().context("a thread of the bare pattern is gone")?;
            end = end.max(drunk?);
        }
        println!("pattern {begin} {end}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Threads of connections are called so.
const NAME: &str = "bare-lane";

/// A connection with its thread, which lives as long as the process: of a thread that ended, nobody outside
/// could see what it used.
struct Lane {
    go: Sender<()>,
    /// When all of its data was there.
    drunk: Receiver<Result<u64>>,
}

impl Lane {
    fn start(socket: TcpStream) -> Result<Lane> {
        let (go, told) = channel();
        let (tell, drunk) = channel();
        let thread = std::thread::Builder::new().name(NAME.into());
        let spawned = thread.spawn(move || {
            let mut data = vec![0; ROOM];
            while told.recv().is_ok() && tell.send(drink_at(&socket, &mut data)).is_ok() {}
        });
        spawned.map(|_| Lane { go, drunk })
    }
}

/// Drinks, and looks at what came; when it had come.
fn drink_at(socket: &TcpStream, data: &mut [u8]) -> Result<u64> {
    drink(socket, data)?;
    let end = monotonic_nanos();
    let right = data.iter().step_by(STRIDE).all(|byte| *byte == 7);
    if right { Ok(end) } else { Err(Error::other("data is wrong")) }
}

fn drink(mut socket: &TcpStream, data: &mut [u8]) -> Result<()> {
    socket.write_all(&[b'P'; REQUEST])?;
    socket.read_exact(&mut [0; ACKNOWLEDGEMENT])?;
    for message in data.chunks_mut(PIECES * STRIDE) {
        let pieces = message.chunks_mut(STRIDE).map(|piece| IoSliceMut::new(&mut piece[..PIECE]));
        let mut pieces: Vec<IoSliceMut<'_>> = pieces.collect();
        let mut left = &mut pieces[..];
        while !left.is_empty() {
            match socket.read_vectored(left)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => IoSliceMut::advance_slices(&mut left, read),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processor time of living threads of connections, each.
    fn used() -> Vec<u64> {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let tell = |path: std::path::PathBuf, what: &str| std::fs::read_to_string(path.join(what));
        threads
            .map(|thread| thread.path())
            .filter(|path| tell(path.clone(), "comm").is_ok_and(|name| name.trim() == NAME))
            .map(|path| {
                let told = tell(path, "schedstat").unwrap();
                told.split(' ').next().unwrap().parse().unwrap()
            })
            .collect()
    }

    #[test]
    fn what_a_connection_used_can_be_seen_after_its_run() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || pour(listener.accept().unwrap().0));
        let lane = Lane::start(TcpStream::connect(address).unwrap()).unwrap();
        let mut before = 0;
        for _ in 0..2 {
            lane.go.send(()).unwrap();
            lane.drunk.recv_timeout(std::time::Duration::from_secs(30)).unwrap().unwrap();
            let [used] = used()[..] else { panic!("one connection, {} threads", used().len()) };
            assert!(used > before);
            before = used;
        }
    }
}
