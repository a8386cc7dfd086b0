//! The side of the process that serves a mount: whoever takes it over calls at a socket.
//!
//! Invariants: one caller at a time is attended, the others wait; what a caller sends takes a bounded amount of
//! memory and time; a caller that goes before it serves leaves a mount that this process serves on.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use ropewalk_base::level::Level;
use ropewalk_net::{host, threads};
use ropewalk_wire::fs::handover::{Facts, Kind, frame, word};
use rustix::net::sockopt::socket_peercred;

use super::NAME;
use super::desk::{Desk, Order};
use super::frames::{receive, send, send_with};
use crate::log;

/// The time for a caller's word, while this process serves or rests.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time for a caller to get ready, which waits for servers.
const READY: Duration = Duration::from_secs(120);
/// A caller without rights is told so within this time, or not at all.
const SHORT: Duration = Duration::from_millis(100);

/// Opens a door to the mount on this device. It stays open for the life of the process.
pub fn open(device: &str, facts: Facts, desk: Arc<Desk>) -> anyhow::Result<()> {
    let name = format!("{NAME}{device}/{:016x}", host::random_seed());
    let address = SocketAddr::from_abstract_name(name)?;
    let listener = UnixListener::bind_addr(&address)?;
    threads::start("mount-handover", move || {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    if attend(&stream, &facts, &desk) {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Without a descriptor for the caller there is none for the next one either.
                Err(_) => std::thread::sleep(SHORT),
            }
        }
    })?;
    Ok(())
}

/// Attends to a caller; true where it has the mount.
fn attend(stream: &UnixStream, facts: &Facts, desk: &Desk) -> bool {
    let Ok(caller) = socket_peercred(stream) else { return false };
    let process = caller.pid.as_raw_nonzero();
    if !caller.uid.is_root() && caller.uid != rustix::process::geteuid() {
        let _ = stream.set_write_timeout(Some(SHORT));
        refuse(stream, "only root and the user who mounted take a mount over");
        let text = format!("refused to hand the mount over to process {process} of another user");
        log::line(Level::Warning, &text);
        return false;
    }
    match hand_over(stream, facts, desk) {
        Ok(Outcome::Handed) => {
            let text = format!("handed the mount over to process {process}");
            log::line(Level::Note, &text);
            true
        }
        Ok(Outcome::Gone) => false,
        Err(error) => {
            refuse(stream, &format!("{error:#}"));
            let text = format!(
                "did not hand the mount over to process {process}: {error:#}; this process serves on"
            );
            log::line(Level::Warning, &text);
            false
        }
    }
}

fn refuse(stream: &UnixStream, reason: &str) {
    if let Some(bytes) = frame(Kind::Refused, &reason) {
        // One who has gone meanwhile misses it.
        let _ = send(stream, &bytes);
    }
}

enum Outcome {
    Handed,
    /// The caller went before anything happened.
    Gone,
}

fn hand_over(stream: &UnixStream, facts: &Facts, desk: &Desk) -> anyhow::Result<Outcome> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    if !hear(stream, Kind::Hello)? {
        return Ok(Outcome::Gone);
    }
    let facts = frame(Kind::Facts, facts).context("the mount's path or address is too long")?;
    send(stream, &facts)?;
    // It gets ready, and calls servers for that.
    stream.set_read_timeout(Some(READY))?;
    if !hear(stream, Kind::Go)? {
        return Ok(Outcome::Gone);
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let (sender, parcel) = mpsc::channel();
    desk.give(Order::Rest(sender));
    let parcel = parcel.recv().map_err(|_| anyhow!("the mount is at its end"))?;
    let parcel = parcel.map_err(|reason| anyhow!(reason))?;
    let understood = send_with(stream, &parcel.frame, parcel.device.as_fd())
        .map_err(anyhow::Error::from)
        .and_then(|()| hear(stream, Kind::Ready))
        .and_then(|ready| if ready { Ok(()) } else { bail!("it ended") })
        .and_then(|()| {
            desk.set_given(true);
            Ok(send(stream, &word(Kind::Yours))?)
        });
    if let Err(error) = understood {
        desk.set_given(false);
        desk.give(Order::GoOn);
        return Err(error);
    }
    // From now on the mount is the caller's as long as it lives.
    stream.set_read_timeout(None)?;
    if hear(stream, Kind::Serving).unwrap_or(false) {
        desk.give(Order::Leave);
        return Ok(Outcome::Handed);
    }
    // It has read no request. If the session has moved, the client opens another one.
    desk.set_given(false);
    desk.give(Order::GoOn);
    bail!("it ended before it served")
}

/// Waits for a frame of this kind; false where the caller has gone.
fn hear(stream: &UnixStream, kind: Kind) -> anyhow::Result<bool> {
    match receive(stream)? {
        None => Ok(false),
        Some(heard) if heard.kind == kind => Ok(true),
        Some(_) => bail!("it sent a message out of turn"),
    }
}
