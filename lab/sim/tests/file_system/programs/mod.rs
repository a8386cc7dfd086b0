//! Operations of test programs on a client.

pub mod model;
pub mod steps;

use ropewalk_client::{Access, Caller, Client, Errno, File, OpenOptions};
use ropewalk_wire::fs::meta::ROOT;

pub const READ: OpenOptions = OpenOptions::READ;
pub const BOTH: OpenOptions =
    OpenOptions { access: Access { read: true, write: true }, truncate: false, append: false };
pub const APPEND: OpenOptions =
    OpenOptions { access: Access { read: true, write: true }, truncate: false, append: true };

/// Bytes that say where they belong.
pub fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Compares without printing megabytes.
#[track_caller]
pub fn assert_same(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "the lengths differ");
    if let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at]) {
        let end = (at..found.len()).find(|at| found[*at] == expected[*at]).unwrap_or(found.len());
        let zeros = found[at..end].iter().all(|byte| *byte == 0);
        panic!("bytes {at}..{end} of {} differ; zeros: {zeros}", found.len());
    }
}

/// Creates a file in the root directory that is not there yet.
pub async fn create(client: &Client, name: &[u8]) -> File {
    let created = client.create(&Caller::root(), ROOT, name, 0o644, true, BOTH).await;
    created.expect("created").1
}

/// Opens a file of the root directory.
pub async fn open(client: &Client, name: &[u8], options: OpenOptions) -> Result<File, Errno> {
    let found = client.lookup(&Caller::root(), ROOT, name).await?;
    client.open(&Caller::root(), found.inode, options).await
}

/// Writes bytes; the offset at which they went.
pub async fn write(client: &Client, file: &File, offset: u64, bytes: &[u8]) -> Result<u64, Errno> {
    let buffer = client.pool().copy_of(bytes).expect("memory");
    client.write(file, offset, buffer, 0..bytes.len()).await
}

/// Reads a range; shorter at the end of the file.
pub async fn read(client: &Client, file: &File, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = client.pool().take(len.max(1)).expect("memory");
    buffer.fill(0xee);
    let (buffer, count) = client.read(file, offset, buffer).await?;
    Ok(buffer[..count.min(len)].to_vec())
}

/// Reads the whole file.
pub async fn read_all(client: &Client, file: &File) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    loop {
        let piece = read(client, file, bytes.len() as u64, 1 << 20).await?;
        if piece.is_empty() {
            return Ok(bytes);
        }
        bytes.extend(piece);
    }
}

/// The names in the root directory, in order.
pub async fn list(client: &Client) -> Vec<Vec<u8>> {
    list_in(client, ROOT).await
}

/// The names in a directory, in order.
pub async fn list_in(client: &Client, directory: u64) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let root = Caller::root();
        let (entries, end) =
            client.read_directory(&root, directory, cookie, false).await.expect("listed");
        for entry in entries {
            cookie = entry.cookie;
            names.push(entry.name);
        }
        if end {
            names.sort();
            return names;
        }
    }
}
