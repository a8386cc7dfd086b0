//! Captures written for tshark, and what it reads in them with docs/wireshark/ropewalk.lua.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use ropewalk_wire::mxoe::{ETHERTYPE, Ethernet, FRAME_BYTES_MIN, Station};

/// Stations that talk.
pub const HERE: Station = Station([2, 0, 0, 0, 0, 1]);
pub const THERE: Station = Station([2, 0, 0, 0, 0, 2]);

/// A file of frames, gone with the value.
pub struct Capture {
    pub path: PathBuf,
    bytes: Vec<u8>,
    frames: u32,
}

impl Capture {
    pub fn new() -> Capture {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ropewalk-wireshark-{}-{number}.pcap", std::process::id());
        let mut bytes = Vec::new();
        // Nanoseconds, version 2.4, whole frames, Ethernet.
        for word in [0xa1b2_3c4d_u32, 4 << 16 | 2, 0, 0, 1 << 18, 1] {
            bytes.extend(word.to_le_bytes());
        }
        Capture { path: std::env::temp_dir().join(name), bytes, frames: 0 }
    }

    /// A frame as it is.
    pub fn frame(&mut self, frame: &[u8]) {
        self.cut(frame, frame.len());
    }

    /// A frame of which the beginning was kept.
    pub fn cut(&mut self, frame: &[u8], kept: usize) {
        self.frames += 1;
        for word in [self.frames, 0, kept as u32, frame.len() as u32] {
            self.bytes.extend(word.to_le_bytes());
        }
        self.bytes.extend(&frame[..kept]);
    }

    /// A body in a frame, padded as cards do.
    pub fn ethernet(&mut self, source: Station, destination: Station, body: &[u8]) {
        let mut frame = Ethernet { destination, source, ethertype: ETHERTYPE }.to_bytes().to_vec();
        frame.extend(body);
        frame.resize(frame.len().max(FRAME_BYTES_MIN), 0);
        self.frame(&frame);
    }

    /// A body behind UDP: from this port of 10.0.0.1 to that one of 10.0.0.2.
    pub fn udp(&mut self, from: u16, to: u16, body: &[u8]) {
        let header = Ethernet { destination: THERE, source: HERE, ethertype: 0x0800 };
        let mut frame = header.to_bytes().to_vec();
        frame.extend([0x45, 0]);
        frame.extend((body.len() as u16 + 28).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(from.to_be_bytes());
        frame.extend(to.to_be_bytes());
        frame.extend((body.len() as u16 + 8).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(body);
        self.frame(&frame);
    }

    /// tshark's output for the capture: the columns of each frame. `None` if there is no tshark.
    pub fn columns(&self, preferences: &[&str], fields: &[&str]) -> Option<Vec<Vec<String>>> {
        let mut arguments: Vec<&str> = vec!["-T", "fields", "-E", "separator=/t"];
        arguments.extend(fields.iter().flat_map(|field| ["-e", *field]));
        let text = self.tshark(preferences, &arguments)?;
        let rows: Vec<Vec<String>> =
            text.lines().map(|line| line.split('\t').map(str::to_string).collect()).collect();
        assert!(rows.iter().all(|row| row.len() == fields.len()), "{text}");
        Some(rows)
    }

    /// The output of tshark.
    pub fn tshark(&self, preferences: &[&str], arguments: &[&str]) -> Option<String> {
        std::fs::write(&self.path, &self.bytes).expect("the temporary folder can be written to");
        tshark(&self.path, preferences, arguments)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The output of tshark for a capture, with our dissector.
pub fn tshark(
    capture: &std::path::Path,
    preferences: &[&str],
    arguments: &[&str],
) -> Option<String> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/wireshark/ropewalk.lua");
    let output = Command::new("tshark")
        // No settings of whoever runs this, and none of their plugins.
        .env("HOME", std::env::temp_dir().join("ropewalk-wireshark-nobody"))
        .env_remove("XDG_CONFIG_HOME")
        .arg("-n")
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .args(preferences.iter().flat_map(|preference| ["-o", *preference]))
        .arg("-r")
        .arg(capture)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIP: there is no tshark");
            return None;
        }
        Err(error) => panic!("tshark does not start: {error}"),
    };
    let (text, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(!text.contains("Lua Error") && !said.contains("Lua"), "{said}{text}");
    Some(text.into_owned())
}
