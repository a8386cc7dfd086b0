//! Captures, read again block by block.
#![allow(dead_code)]

use std::path::Path;
use std::process::{Command, Stdio};

/// A file.
#[derive(Debug, Default)]
pub struct Captured {
    pub link_type: u16,
    pub interface: String,
    pub packets: Vec<Packet>,
    /// Packets that there were, and those of them that were dropped, where the file has its end.
    pub counters: Option<(u64, u64)>,
}

/// A frame of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub nanoseconds: u64,
    pub sent: bool,
    pub frame: Vec<u8>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Options of a block, from `at` on.
fn options(block: &[u8], mut at: usize) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while at + 4 <= block.len() {
        let head = word(block, at);
        let (code, len) = (head as u16, (head >> 16) as usize);
        if code == 0 {
            break;
        }
        found.push((code, &block[at + 4..at + 4 + len]));
        at += 4 + len.next_multiple_of(4);
    }
    found
}

fn option(block: &[u8], at: usize, code: u16) -> &[u8] {
    options(block, at).into_iter().find(|it| it.0 == code).expect("the option").1
}

/// Reads all of it; a block that is not whole fails.
pub fn read(path: &Path) -> Captured {
    let bytes = std::fs::read(path).unwrap();
    let (mut at, mut captured) = (0, Captured::default());
    while at < bytes.len() {
        let len = word(&bytes, at + 4) as usize;
        assert!(len >= 12 && len.is_multiple_of(4), "block of {len} bytes at {at}");
        assert_eq!(word(&bytes, at + len - 4) as usize, len, "a block ends as it begins");
        let block = &bytes[at + 8..at + len - 4];
        let time = |at: usize| u64::from(word(block, at)) << 32 | u64::from(word(block, at + 4));
        match word(&bytes, at) {
            0x0a0d_0d0a => assert_eq!((at, word(block, 0)), (0, 0x1a2b_3c4d)),
            1 => {
                captured.link_type = word(block, 0) as u16;
                captured.interface = String::from_utf8(option(block, 8, 2).to_vec()).unwrap();
                assert_eq!(option(block, 8, 9), [9], "nanoseconds");
            }
            5 => {
                let number = |code| u64::from_le_bytes(option(block, 12, code).try_into().unwrap());
                captured.counters = Some((number(4), number(5)));
            }
            6 => {
                let kept = word(block, 12) as usize;
                assert_eq!(word(block, 16) as usize, kept, "frames are whole");
                let flags = option(block, 20 + kept.next_multiple_of(4), 2);
                captured.packets.push(Packet {
                    nanoseconds: time(4),
                    sent: word(flags, 0) == 2,
                    frame: block[20..20 + kept].to_vec(),
                });
            }
            other => panic!("a block of type {other}"),
        }
        at += len;
    }
    captured
}

impl Captured {
    pub fn frames(&self, sent: bool) -> Vec<&[u8]> {
        let some = self.packets.iter().filter(|packet| packet.sent == sent);
        some.map(|packet| packet.frame.as_slice()).collect()
    }
}

/// Fields of each packet, as tshark reads them; `None` where there is no tshark.
pub fn tshark(path: &Path, fields: &[&str]) -> Option<Vec<String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/wireshark/ropewalk.lua");
    let output = Command::new("tshark")
        .env("HOME", std::env::temp_dir().join("ropewalk-wireshark-nobody"))
        .env_remove("XDG_CONFIG_HOME")
        .arg("-n")
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(path)
        .args(["-T", "fields", "-E", "separator=/s"])
        .args(fields.iter().flat_map(|field| ["-e", field]))
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        println!("SKIP: there is no tshark");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("Lua"), "{said}");
    Some(String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect())
}
