//! The pattern of a parallel file system over bare sockets: what the medium reaches by itself.
//!
//! A thread for each connection on both sides, with blocking calls: on few cores nothing that asks the
//! kernel for bytes is cheaper, and a client's buffers are filled by one call for all pieces of a message.

use std::io::{Error, ErrorKind, IoSliceMut, Read, Result, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::Context;

use crate::bmi_side::{
    ACKNOWLEDGEMENT, MESSAGE, MESSAGES, PIECE, PIECES, REQUEST, STRIDE, next_line,
};
use crate::host::monotonic_nanos;

/// Bytes of all pieces of a pair, with what lies between them.
const ROOM: usize = MESSAGES * PIECES * STRIDE;

/// Says its address, and serves whoever connects until this process is ended.
pub fn server() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("url {}", listener.local_addr()?);
    loop {
        let socket = listener.accept()?.0;
        socket.set_nodelay(true)?;
        // Whoever hangs up ends his own thread alone.
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
    let sockets: Vec<TcpStream> =
        addresses.split(' ').map(TcpStream::connect).collect::<Result<_>>()?;
    sockets.iter().try_for_each(|socket| socket.set_nodelay(true))?;
    let mut data = vec![0; sockets.len() * ROOM];
    while next_line()?.is_some() {
        let begin = monotonic_nanos();
        std::thread::scope(|scope| -> Result<()> {
            let mut lanes = sockets.iter().zip(data.chunks_mut(ROOM));
            let own = lanes.next();
            let others: Vec<_> =
                lanes.map(|(socket, data)| scope.spawn(|| drink(socket, data))).collect();
            let drunk = own.map_or(Ok(()), |(socket, data)| drink(socket, data));
            let panicked = || Error::other("a thread of the bare pattern panicked");
            others.into_iter().try_for_each(|other| other.join().map_err(|_| panicked())?)?;
            drunk
        })?;
        let end = monotonic_nanos();
        anyhow::ensure!(data.iter().step_by(STRIDE).all(|byte| *byte == 7), "data is wrong");
        println!("pattern {begin} {end} 1 1");
        std::io::stdout().flush()?;
    }
    Ok(())
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
