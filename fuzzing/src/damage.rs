//! What is done to good input.

use crate::INPUT_BYTES_MAX;

/// Pieces that decoders treat specially.
const PIECES: &[&[u8]] = &[
    b"\"",
    b"\\u0000",
    b"\\ud800",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"null",
    b"true",
    b"-0",
    b"1e308",
    b"1e-400",
    b"9007199254740993",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"0.1",
    b"\n",
    b"\r\n",
    b"\n\n",
    b" ",
    b"\t",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x80\xa8",
    b"\xef\xbb\xbf",
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!binary ",
    b"---\n",
    b"...\n",
    b"? ",
    b"- ",
    b"# ",
    b"|\n",
    b">\n",
    b"sha256:",
    b"event_",
    b"task_",
    b"{\"blob\":",
    b"{\"event\":",
    b"\xa1",
    b"\xbf",
    b"\x9f",
    b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xfb\x7f\xf0\0\0\0\0\0\0",
    b"\xc1",
    b"\xe2\x80\x94 ",
    b"+",
    b"=",
    b"AAAA",
];

/// A seeded source of damage.
#[derive(Debug)]
pub struct Damage(fastrand::Rng);

impl Damage {
    /// The same seed gives the same damage.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Returns one of these inputs, damaged in one to eight ways.
    pub fn apply(&mut self, good: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.one_of(good);
        for _ in 0..self.0.u32(1..=8) {
            self.once(&mut input, good);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn one_of(&mut self, good: &[Vec<u8>]) -> Vec<u8> {
        match good.len() {
            0 => Vec::new(),
            count => good.get(self.0.usize(..count)).cloned().unwrap_or_default(),
        }
    }

    /// Returns a range inside, mostly a short one.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.0.usize(..=length);
        let most = match self.0.u8(..4) {
            0 => length - start,
            1 => 256,
            _ => 8,
        };
        let end = start + self.0.usize(..=most.min(length - start));
        start..end
    }

    fn once(&mut self, input: &mut Vec<u8>, good: &[Vec<u8>]) {
        let length = input.len();
        let range = self.range(length);
        match self.0.u8(..12) {
            0 if length > 0 => {
                let bit = 1 << self.0.u8(..8);
                if let Some(byte) = input.get_mut(self.0.usize(..length)) {
                    *byte ^= bit;
                }
            }
            1 if length > 0 => {
                let new = self.0.u8(..);
                if let Some(byte) = input.get_mut(self.0.usize(..length)) {
                    *byte = new;
                }
            }
            2 => drop(input.drain(range)),
            3 => input.truncate(range.start),
            4 | 5 => {
                let piece = PIECES.get(self.0.usize(..PIECES.len()));
                let piece = piece.copied().unwrap_or_default();
                input.splice(range, piece.iter().copied());
            }
            6 => {
                // Something again and again: depth, length, numbers of members.
                let piece = input.get(range.clone()).unwrap_or_default().to_vec();
                let times = 1 << self.0.u32(..12);
                let room = INPUT_BYTES_MAX.saturating_sub(length) / piece.len().max(1);
                let many = piece.repeat(times.min(room));
                input.splice(range.start..range.start, many);
            }
            7 => {
                let other = self.one_of(good);
                let from = self.range(other.len());
                let piece = other.get(from).unwrap_or_default().to_vec();
                input.splice(range, piece);
            }
            8 => {
                // A number becomes another.
                let digit = input.iter().skip(range.start).position(u8::is_ascii_digit);
                if let Some(at) = digit.map(|at| at + range.start) {
                    let new = self.0.u64(..) >> self.0.u32(..64);
                    input.splice(at..at + 1, new.to_string().into_bytes());
                }
            }
            9 => {
                let times = 1 << self.0.u32(..14);
                let opening: &[u8] = match self.0.u8(..6) {
                    0 => b"[",
                    1 => b"{\"a\":",
                    2 => b"- ",
                    3 => b"\x81",
                    4 => b"\xa1\x61\x61",
                    _ => b"(",
                };
                let room = INPUT_BYTES_MAX.saturating_sub(length) / opening.len();
                input.splice(range.start..range.start, opening.repeat(times.min(room)));
            }
            10 => {
                let random: Vec<u8> = (0..self.0.usize(..16)).map(|_| self.0.u8(..)).collect();
                input.splice(range, random);
            }
            _ => {
                // Two parts change places.
                let piece: Vec<u8> = input.drain(range).collect();
                let at = self.0.usize(..=input.len());
                input.splice(at..at, piece);
            }
        }
    }
}
