//! Inputs out of a corpus and chance.
//!
//! Most inputs are kept ones, changed in a few places, since decoders reject pure noise at once; the
//! rest is noise. The changes are those that parsers are known to fall over: flipped bits, numbers
//! at the edges of their range, lost and doubled stretches, cut ends, halves of two inputs.
//!
//! Invariant: an input is at most [`INPUT_BYTES_MAX`] long.

use ropewalk_base::random::Random;

use crate::INPUT_BYTES_MAX;

/// Numbers at which length checks go wrong.
const EDGES: &[u64] = &[
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x4_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
];

/// Makes one input after the other.
pub struct Mutator<'a> {
    random: Random,
    corpus: &'a [Vec<u8>],
}

impl<'a> Mutator<'a> {
    /// The inputs that `seed` and `corpus` determine.
    pub fn new(seed: u64, corpus: &'a [Vec<u8>]) -> Mutator<'a> {
        Mutator { random: Random::from_seed(seed), corpus }
    }

    /// Replaces `input` by the next one.
    pub fn next(&mut self, input: &mut Vec<u8>) {
        input.clear();
        if self.corpus.is_empty() || self.random.below(8) == 0 {
            // Short noise reaches further into compact encodings than long noise does.
            let bytes = 1 << self.random.below(9);
            self.append_noise(input, bytes);
        } else {
            input.extend_from_slice(self.pick());
        }
        for _ in 0..=self.random.below(4) {
            self.change(input);
        }
        input.truncate(INPUT_BYTES_MAX);
    }

    fn pick(&mut self) -> &'a [u8] {
        &self.corpus[self.random.below(self.corpus.len() as u64) as usize]
    }

    fn append_noise(&mut self, input: &mut Vec<u8>, bytes_max: u64) {
        for _ in 0..self.random.below(bytes_max + 1) {
            // Small bytes are tags and lengths in most formats.
            let wide = self.random.below(2) == 0;
            input.push(self.random.below(if wide { 256 } else { 16 }) as u8);
        }
    }

    /// A stretch of `input`, possibly empty.
    fn stretch(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let begin = self.random.below(input.len() as u64 + 1) as usize;
        let bytes = self.random.below((input.len() - begin).min(64) as u64 + 1) as usize;
        begin..begin + bytes
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let range = self.stretch(input);
        match self.random.below(9) {
            0 | 1 => {
                if let Some(byte) = input.get_mut(range.start) {
                    *byte ^= 1 << self.random.below(8);
                }
            }
            2 => {
                if let Some(byte) = input.get_mut(range.start) {
                    *byte = self.random.next_u64() as u8;
                }
            }
            3 => self.write_edge(input, range.start),
            4 => drop(input.drain(range)),
            5 => {
                let copy = input[range.clone()].to_vec();
                input.splice(range.start..range.start, copy);
            }
            6 => input.truncate(range.start),
            7 => {
                let mut noise = Vec::new();
                self.append_noise(&mut noise, 8);
                input.splice(range.start..range.start, noise);
            }
            _ => {
                if !self.corpus.is_empty() {
                    let other = self.pick();
                    let from = self.random.below(other.len() as u64 + 1) as usize;
                    input.truncate(range.start);
                    input.extend_from_slice(&other[from..]);
                }
            }
        }
    }

    /// Writes a number at the edge of a range: fixed width in either byte order, or seven bits a
    /// byte as compact encodings have it.
    fn write_edge(&mut self, input: &mut Vec<u8>, at: usize) {
        let edge = EDGES[self.random.below(EDGES.len() as u64) as usize];
        let width = 1 << self.random.below(4);
        let bytes = match self.random.below(3) {
            0 => edge.to_le_bytes()[..width].to_vec(),
            1 => edge.to_be_bytes()[8 - width..].to_vec(),
            _ => seven_bits(edge),
        };
        let end = (at + bytes.len()).min(input.len());
        input.splice(at..end, bytes);
    }
}

fn seven_bits(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn inputs(seed: u64, corpus: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut mutator = Mutator::new(seed, corpus);
        let mut input = Vec::new();
        let mut made = Vec::new();
        for _ in 0..2000 {
            mutator.next(&mut input);
            made.push(input.clone());
        }
        made
    }

    #[test]
    fn a_seed_determines_the_inputs_and_they_differ() {
        let corpus = [b"a kept input".to_vec(), vec![7; INPUT_BYTES_MAX]];
        let first = inputs(5, &corpus);
        assert_eq!(first, inputs(5, &corpus));
        assert_ne!(first, inputs(6, &corpus));
        assert!(first.iter().all(|input| input.len() <= INPUT_BYTES_MAX));
        assert!(first.iter().collect::<BTreeSet<_>>().len() > 1500);
        // Many of them contain traces of the kept inputs: it is not all noise.
        assert!(first.iter().filter(|input| input.starts_with(b"a k")).count() > 200);
    }

    #[test]
    fn without_a_corpus_there_is_noise() {
        assert!(inputs(1, &[]).iter().filter(|input| !input.is_empty()).count() > 1000);
    }
}
