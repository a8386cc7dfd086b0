//! Runs a target over many inputs. If the target panics, prints the input and the command that replays it.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::mutate::Mutator;
use crate::{Target, corpus, made};

/// When a run ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After so many made inputs.
    Iterations(u64),
    /// After so much time.
    Elapsed(Duration),
}

/// Names the input on the way out of a panic.
struct Witness<'a> {
    name: &'a str,
    input: &'a [u8],
}

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "target {} broke on {} bytes; once more:\n  \
                 cargo run -p ropewalk-fuzz -- replay {} {}",
                self.name,
                self.input.len(),
                self.name,
                to_hex(self.input)
            );
        }
    }
}

/// Feeds one input.
pub fn once(name: &str, target: Target, input: &[u8]) {
    let _witness = Witness { name, input };
    target(input);
}

/// Replays the corpus of the target and valid messages, then feeds inputs made out of both; returns how many
/// there were in all.
pub fn run(name: &str, target: Target, seed: u64, until: Until) -> Result<u64> {
    let mut corpus = corpus::read(name)?;
    corpus.extend(made::inputs(name, seed));
    for input in &corpus {
        once(name, target, input);
    }
    let mut mutator = Mutator::new(seed, &corpus);
    let mut input = Vec::new();
    let begin = Instant::now();
    let mut made = 0;
    loop {
        let goes_on = match until {
            Until::Iterations(most) => made < most,
            // The clock is asked rarely: it costs as much as a small input.
            Until::Elapsed(most) => made % 1024 != 0 || begin.elapsed() < most,
        };
        if !goes_on {
            return Ok(made + corpus.len() as u64);
        }
        mutator.next(&mut input);
        once(name, target, &input);
        made += 1;
    }
}

/// Two digits a byte.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The inverse of [`to_hex`].
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_breaks_is_noticed() {
        let fragile: Target = |bytes| assert!(!bytes.starts_with(&[0xff]), "planted");
        let outcome =
            std::panic::catch_unwind(|| run("planted", fragile, 1, Until::Iterations(100_000)));
        assert!(outcome.is_err());
        let sturdy: Target = |_| {};
        assert_eq!(run("planted", sturdy, 1, Until::Iterations(500)).unwrap(), 500);
        assert!(run("planted", sturdy, 1, Until::Elapsed(Duration::ZERO)).is_ok());
    }

    #[test]
    fn hex_comes_back() {
        assert_eq!(from_hex(&to_hex(&[0, 15, 255])), Some(vec![0, 15, 255]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("zz"), None);
        assert_eq!(from_hex("€1"), None);
    }
}
