//! A bare copy: bytes of a file of one host, by a socket, into a file of another host, durably. It is the yardstick of
//! rebuilds.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, ensure};

use crate::host::monotonic_nanos;
use crate::order::Order;
use crate::process::{Process, next_line};
use crate::survive::ground::Ground;
use crate::survive::store::Store;
use crate::work_files::LARGE;
use crate::worker::Work;

/// Copies so many bytes between the hosts of two data servers.
pub fn copy(ground: &Ground, store: &Store<'_>, bytes: u64) -> anyhow::Result<Work> {
    let place = ground.place(2)?;
    let side = |kind: &str, host: usize, name: &str| {
        let order = Order::new(kind).with("place", place).with("bytes", bytes);
        let order = order.with("file", store.scratch().join(name).display());
        Process::start(ground.command(host), &format!("work\n{}", order.encode()))
    };
    let mut sink = side("survive sink", 2, "bare.sink")?;
    sink.hear_word("ready")?;
    let mut source = side("survive source", 1, "bare.source")?;
    source.hear_word("ready")?;
    let begin_nanos = monotonic_nanos();
    source.tell("go")?;
    sink.hear_word("durable")?;
    let end_nanos = monotonic_nanos();
    source.await_end()?;
    sink.await_end()?;
    Ok(whole((begin_nanos, end_nanos), bytes))
}

/// One operation that took the whole span.
pub fn whole((begin_nanos, end_nanos): (u64, u64), bytes: u64) -> Work {
    let mut work =
        Work { begin_nanos, end_nanos, operations: 1, bytes, lanes: 1, ..Work::default() };
    work.times.note(end_nanos - begin_nanos);
    work
}

/// Sends a file, as soon as it is told to.
pub fn source(order: &Order) -> anyhow::Result<()> {
    let (path, bytes): (&str, u64) = (order.text("file")?, order.get("bytes")?);
    let mut block = vec![0x5a; LARGE];
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let len = left.min(LARGE as u64) as usize;
        file.write_all(&block[..len])?;
        left -= len as u64;
    }
    let mut file = File::open(path)?;
    let mut stream = TcpStream::connect(order.get::<SocketAddr>("place")?)?;
    println!("ready");
    ensure!(next_line()?.as_deref() == Some("go"), "nobody waits for this copy");
    loop {
        match file.read(&mut block)? {
            0 => break,
            read => stream.write_all(&block[..read])?,
        }
    }
    drop(stream);
    std::fs::remove_file(path)?;
    Ok(())
}

/// Takes a file, and makes it durable.
pub fn sink(order: &Order) -> anyhow::Result<()> {
    let (path, bytes): (&str, u64) = (order.text("file")?, order.get("bytes")?);
    let place: SocketAddr = order.get("place")?;
    let listener = TcpListener::bind(place).with_context(|| format!("cannot listen at {place}"))?;
    println!("ready");
    let (mut stream, _) = listener.accept()?;
    let (mut file, mut block, mut found) = (File::create(path)?, vec![0; LARGE], 0);
    loop {
        match stream.read(&mut block)? {
            0 => break,
            read => {
                file.write_all(&block[..read])?;
                found += read as u64;
            }
        }
    }
    file.sync_all()?;
    ensure!(found == bytes, "{found} of {bytes} bytes came");
    println!("durable");
    std::fs::remove_file(path)?;
    Ok(())
}
