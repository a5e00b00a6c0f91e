//! Compression of what is stored: zstd with a dictionary of our own shapes.
//!
//! Most stored values are small and much like the ones before them. The dictionary holds what events, receipts and
//! documents have in common, so that a value of some hundred bytes costs little more than what is new in it. Each
//! frame names its dictionary. A dictionary is part of the format: one that was ever shipped stays, under its number;
//! a better one gets the next number. How the files were made stands in `codec/README.md`.

use std::cell::RefCell;
use std::io;
use std::sync::LazyLock;

use zstd::bulk::{Compressor, Decompressor};
use zstd::dict::{DecoderDictionary, EncoderDictionary};
use zstd::zstd_safe::{
    CCtx, CParameter, DCtx, ErrorCode, compress_bound, get_dict_id_from_frame, get_error_name,
    get_frame_content_size,
};

/// The dictionary that new frames are written with.
const DICTIONARY: &[u8] = include_bytes!("codec/1.zdict");
const DICTIONARY_NUMBER: u32 = 1;

/// Higher levels gain a few per cent and cost a lone commit more than they save it.
const LEVEL: i32 = 1;

/// More than a block or a small blob can hold; a damaged frame may claim anything.
const CONTENT_BYTES_MAX: usize = 256 * 1024 * 1024;
/// More than a block can hold that continues another.
const AFTER_BYTES_MAX: u64 = 1024 * 1024;

/// What every frame begins with.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

// Preparing the dictionary costs more than using it: once per process, and the contexts once per thread.
static ENCODER: LazyLock<EncoderDictionary<'static>> =
    LazyLock::new(|| EncoderDictionary::copy(DICTIONARY, LEVEL));
static DECODER: LazyLock<DecoderDictionary<'static>> =
    LazyLock::new(|| DecoderDictionary::copy(DICTIONARY));

thread_local! {
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    static AFTER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    static UNAFTER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// Returns a frame with a checksum of its content.
pub(crate) fn compress(content: &[u8]) -> io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            None => {
                let mut made = Compressor::with_prepared_dictionary(&ENCODER)?;
                made.set_parameter(CParameter::ChecksumFlag(true))?;
                kept.insert(made)
            }
        };
        compressor.compress(content)
    })
}

/// Returns the content of a frame, or what is wrong with it.
pub(crate) fn decompress(frame: &[u8]) -> Result<Vec<u8>, String> {
    match get_dict_id_from_frame(frame).map(u32::from) {
        Some(DICTIONARY_NUMBER) => {}
        Some(other) => {
            return Err(format!(
                "it needs dictionary {other}, which is not known here"
            ));
        }
        None => return Err("it names no dictionary".to_owned()),
    }
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => {
                let made = Decompressor::with_prepared_dictionary(&DECODER);
                kept.insert(made.map_err(|error| error.to_string())?)
            }
        };
        decompressor
            .decompress(frame, CONTENT_BYTES_MAX)
            .map_err(|error| error.to_string())
    })
}

/// Returns content compressed by what came before it, which must be at hand to read it and begins with a zero. In the
/// place of the four bytes that begin every frame stands a checksum of the content: zstd writes none in this call.
pub(crate) fn compress_after(before: &[u8], content: &[u8]) -> io::Result<Vec<u8>> {
    let failed = |code: ErrorCode| io::Error::other(get_error_name(code));
    AFTER.with_borrow_mut(|kept| {
        let context = match kept {
            Some(context) => context,
            None => kept.insert(CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?),
        };
        let mut frame = Vec::with_capacity(compress_bound(content.len()));
        context
            .compress_using_dict(&mut frame, content, before, LEVEL)
            .map_err(failed)?;
        match frame.split_first_chunk_mut() {
            Some((magic, _)) if *magic == MAGIC => *magic = checksum(content),
            _ => return Err(io::Error::other("a frame that does not begin as one")),
        }
        Ok(frame)
    })
}

/// Adds the content of what [`compress_after`] returned to what came before it, or says what is wrong.
pub(crate) fn decompress_after(before: &mut Vec<u8>, frame: &[u8]) -> Result<(), String> {
    let Some((sum, rest)) = frame.split_first_chunk() else {
        return Err("it is cut short".to_owned());
    };
    let frame = [&MAGIC, rest].concat();
    let len = match get_frame_content_size(&frame) {
        Ok(Some(len @ ..=AFTER_BYTES_MAX)) => len as usize,
        _ => return Err("it does not say how long it is".to_owned()),
    };
    let known = before.len();
    before.resize(known + len, 0);
    let (old, new) = before.split_at_mut(known);
    let read = UNAFTER.with_borrow_mut(|kept| {
        let context = match kept {
            Some(context) => context,
            None => kept.insert(DCtx::try_create().ok_or("out of memory")?),
        };
        context
            .decompress_using_dict(new, &frame, old)
            .map_err(get_error_name)
    });
    let problem = match read {
        Ok(read) if read == len && checksum(new) == *sum => return Ok(()),
        Ok(_) => "its checksum is another",
        Err(problem) => problem,
    };
    before.truncate(known);
    Err(problem.to_owned())
}

/// Against decay: every word changes all that follows. A digest would cost a reader as much as decompressing does.
fn checksum(content: &[u8]) -> [u8; 4] {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let add = |sum: u64, word: u64| {
        let sum = (sum ^ word).wrapping_mul(FACTOR);
        sum ^ (sum >> 32)
    };
    let (words, rest) = content.as_chunks();
    let sum = words.iter().fold(content.len() as u64, |sum, word| {
        add(sum, u64::from_le_bytes(*word))
    });
    let sum = rest
        .iter()
        .fold(sum, |sum, byte| add(sum, u64::from(*byte)));
    (sum as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_has_its_number() {
        let number = zstd::zstd_safe::get_dict_id_from_dict(DICTIONARY);
        assert_eq!(number.map(u32::from), Some(DICTIONARY_NUMBER));
    }

    #[test]
    fn content_comes_back_and_every_flipped_bit_is_seen() {
        let content =
            br#"{"actor":"me","created_at":"2026-01-01T00:00:00.000000Z","event":"user.message"}"#;
        let frame = compress(content).unwrap();
        assert!(frame.len() < content.len());
        assert_eq!(decompress(&frame).unwrap(), content);
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A bit may be reserved or unused; then the content is as it was.
            if let Ok(read) = decompress(&damaged) {
                assert_eq!(read, content, "bit {bit}");
            }
        }
        for len in 0..frame.len() {
            assert!(decompress(&frame[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn content_after_other_content_comes_back_and_every_flipped_bit_is_seen() {
        let before = br#".{"created_at":"2026-01-01T00:00:00.000000Z","event":"vendor.message_delta","text":"one"}"#;
        let content = br#"{"created_at":"2026-01-01T00:00:00.000001Z","event":"vendor.message_delta","text":"two"}"#;
        let frame = compress_after(before, content).unwrap();
        assert!(frame.len() < 40, "{}", frame.len());
        let read = |before: &[u8], frame: &[u8]| {
            let mut all = before.to_vec();
            let read = decompress_after(&mut all, frame);
            assert!(all.starts_with(before));
            assert_eq!(read.is_err(), all.len() == before.len());
            read.map(|()| all.split_off(before.len()))
        };
        assert_eq!(read(before, &frame).unwrap(), content);
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Ok(read) = read(before, &damaged) {
                assert_eq!(read, content, "bit {bit}");
            }
        }
        for len in 0..frame.len() {
            assert!(read(before, &frame[..len]).is_err(), "cut to {len}");
        }
        // What it continues is part of it.
        let mut other = before.to_vec();
        other[40] ^= 1;
        assert!(read(&other, &frame).is_err());
        // Far from any limit of a context: what is before need not be small, and content may be empty.
        let long: Vec<u8> = (0..60_000u32).map(|at| ((at * at) >> 7) as u8).collect();
        let frame = compress_after(&[&[0], &long[..]].concat(), &long[5_000..51_000]).unwrap();
        assert!(frame.len() < 1_000, "{}", frame.len());
        let mut all = [&[0], &long[..]].concat();
        decompress_after(&mut all, &frame).unwrap();
        assert_eq!(all[60_001..], long[5_000..51_000]);
        let empty = compress_after(&all, b"").unwrap();
        decompress_after(&mut all, &empty).unwrap();
        assert_eq!(all.len(), 106_001);
    }

    #[test]
    fn a_frame_of_another_dictionary_is_told_apart() {
        let plain = zstd::bulk::compress(b"x", 1).unwrap();
        assert_eq!(decompress(&plain).unwrap_err(), "it names no dictionary");
        let mut other = DICTIONARY.to_vec();
        other[4] = 9;
        let frame = Compressor::with_dictionary(1, &other)
            .unwrap()
            .compress(b"x")
            .unwrap();
        assert!(decompress(&frame).unwrap_err().contains("dictionary 9"));
    }
}
