//! Frames on the socket of a hand-over.
//!
//! Invariants: a body's memory grows as its bytes come; a descriptor that nobody expects is closed.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, bail};
use ropewalk_wire::fs::handover::{FrameHead, HEAD_BYTES, Kind};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// A frame as it came.
pub struct Frame {
    pub kind: Kind,
    pub body: Vec<u8>,
    pub descriptor: Option<OwnedFd>,
}

/// Sends a frame's bytes.
pub fn send(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

/// Sends a frame's bytes, with a descriptor beside the first one.
pub fn send_with(stream: &UnixStream, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("a descriptor has no room beside a message"));
    }
    let head = &bytes[..HEAD_BYTES.min(bytes.len())];
    let sent = loop {
        let slices = [IoSlice::new(head)];
        match rustix::net::sendmsg(stream, &slices, &mut ancillary, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    send(stream, &bytes[sent..])
}

/// The next frame; none at the end of the stream.
pub fn receive(stream: &UnixStream) -> anyhow::Result<Option<Frame>> {
    let mut head = [0; HEAD_BYTES];
    let Some(descriptor) = receive_head(stream, &mut head)? else { return Ok(None) };
    let head = FrameHead::decode(&head)?;
    let mut body = Vec::new();
    stream.take(u64::from(head.bytes)).read_to_end(&mut body).context("the message broke off")?;
    if !head.is_of(&body) {
        bail!("the message broke off, or is damaged");
    }
    Ok(Some(Frame { kind: head.kind, body, descriptor }))
}

/// Fills a head; the descriptor that came with it, if one did. None at the end of the stream.
fn receive_head(
    stream: &UnixStream,
    head: &mut [u8; HEAD_BYTES],
) -> anyhow::Result<Option<Option<OwnedFd>>> {
    let (mut filled, mut descriptor) = (0, None);
    while filled < HEAD_BYTES {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut head[filled..])];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(stream.as_fd(), &mut slices, &mut ancillary, flags);
        let count = match received.map_err(io::Error::from) {
            Ok(received) => received.bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("it does not answer"),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => return Err(error.into()),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptors.for_each(|it| descriptor = Some(it));
            }
        }
        match count {
            0 if filled == 0 => return Ok(None),
            0 => bail!("the message broke off"),
            count => filled += count,
        }
    }
    Ok(Some(descriptor))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use ropewalk_wire::fs::handover::{frame, word};

    use super::*;

    #[test]
    fn frames_and_descriptors_arrive_and_garbage_is_told() {
        let (near, far) = UnixStream::pair().expect("sockets");
        send(&near, &word(Kind::Go)).expect("it fits");
        let refusal = frame(Kind::Refused, &"no").expect("it is short");
        send_with(&near, &refusal, near.as_fd()).expect("it fits");
        let first = receive(&far).expect("a frame").expect("one");
        assert!(first.kind == Kind::Go && first.body.is_empty() && first.descriptor.is_none());
        let second = receive(&far).expect("a frame").expect("one");
        assert_eq!((second.kind, &second.body[..]), (Kind::Refused, &b"\x02no"[..]));
        assert_ne!(second.descriptor.expect("it came").as_raw_fd(), near.as_raw_fd());
        send(&near, b"GET / HTTP/1.1\r\n\r\n").expect("it fits");
        let error = receive(&far).err().expect("no frame").to_string();
        assert!(error.contains("does not speak the protocol"), "{error}");
        let (near, far) = UnixStream::pair().expect("sockets");
        send(&near, &refusal[..20.min(refusal.len() - 1)]).expect("it fits");
        drop(near);
        assert!(receive(&far).err().expect("no frame").to_string().contains("broke off"));
        let (near, far) = UnixStream::pair().expect("sockets");
        drop(near);
        assert!(receive(&far).expect("the end").is_none());
    }
}
