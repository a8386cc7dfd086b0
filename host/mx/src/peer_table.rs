//! The table of peers, which an operator writes: a name and a place on each line.

use crate::place::Place;

/// A host that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    pub place: Place,
}

/// The byte order mark that editors of some systems put before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The table of peers: a name and a place on each line, `#` begins a comment.
pub fn parse(bytes: &[u8]) -> Result<Vec<Peer>, String> {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let mut peers = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        // Comments are not read, in whatever encoding they are.
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| {
            format!(
                "line {number}: a name or an address is not valid UTF-8; `iconv -f ENCODING -t UTF-8` \
                 converts other texts"
            )
        })?;
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (None, ..) => {}
            (Some(name), Some(place), None) => {
                let place = place.parse().map_err(|error| format!("line {number}: {error}"))?;
                peers.push(Peer { name: name.to_string(), place });
            }
            _ => {
                return Err(format!(
                    "line {number}: give a name and an address, like node2:0 udp://10.0.0.2:7100"
                ));
            }
        }
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_written_in_utf_8_but_for_comments() {
        let peers = parse(b"\xef\xbb\xbfnode1:0 udp://10.0.0.1 # Z\xfcrich\n# \xff\n").unwrap();
        assert_eq!((peers.len(), peers[0].name.as_str()), (1, "node1:0"));
        let peers = parse("z\u{fc}rich:0 udp://10.0.0.1".as_bytes()).unwrap();
        assert_eq!(peers[0].name, "z\u{fc}rich:0");
        let error = parse(b"node1:0 udp://10.0.0.1\nz\xfcrich:0 udp://10.0.0.2\n").unwrap_err();
        assert!(error.contains("line 2") && error.contains("UTF-8"), "{error}");
        // UTF-16.
        assert!(parse(b"\xff\xfen\0o\0d\0e\0").unwrap_err().contains("line 1"));
    }
}
