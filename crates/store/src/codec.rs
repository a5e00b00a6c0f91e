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
use zstd::zstd_safe::{CParameter, get_dict_id_from_frame};

/// The dictionary that new frames are written with.
const DICTIONARY: &[u8] = include_bytes!("codec/1.zdict");
const DICTIONARY_NUMBER: u32 = 1;

/// Higher levels gain a few per cent and cost a lone commit more than they save it.
const LEVEL: i32 = 1;

/// For what is written once for many commits.
const LEVEL_WELL: i32 = 9;

/// More than a block or a small blob can hold; a damaged frame may claim anything.
const CONTENT_BYTES_MAX: usize = 256 * 1024 * 1024;

// Preparing the dictionary costs more than using it: once per process, and the contexts once per thread.
static ENCODER: LazyLock<EncoderDictionary<'static>> =
    LazyLock::new(|| EncoderDictionary::copy(DICTIONARY, LEVEL));
static ENCODER_WELL: LazyLock<EncoderDictionary<'static>> =
    LazyLock::new(|| EncoderDictionary::copy(DICTIONARY, LEVEL_WELL));
static DECODER: LazyLock<DecoderDictionary<'static>> =
    LazyLock::new(|| DecoderDictionary::copy(DICTIONARY));

type Kept = RefCell<Option<Compressor<'static>>>;

thread_local! {
    static COMPRESSOR: Kept = const { RefCell::new(None) };
    static COMPRESSOR_WELL: Kept = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Returns a frame with a checksum of its content.
pub(crate) fn compress(content: &[u8]) -> io::Result<Vec<u8>> {
    COMPRESSOR.with(|kept| compress_with(kept, &ENCODER, content))
}

/// The same, smaller and slower.
pub(crate) fn compress_well(content: &[u8]) -> io::Result<Vec<u8>> {
    COMPRESSOR_WELL.with(|kept| compress_with(kept, &ENCODER_WELL, content))
}

fn compress_with(
    kept: &Kept,
    dictionary: &'static EncoderDictionary<'static>,
    content: &[u8],
) -> io::Result<Vec<u8>> {
    let mut kept = kept.borrow_mut();
    let compressor = match &mut *kept {
        Some(compressor) => compressor,
        None => {
            let mut made = Compressor::with_prepared_dictionary(dictionary)?;
            made.set_parameter(CParameter::ChecksumFlag(true))?;
            kept.insert(made)
        }
    };
    compressor.compress(content)
}

/// Returns the content of a frame, or what is wrong with it.
pub(crate) fn decompress(frame: &[u8]) -> Result<Vec<u8>, String> {
    match get_dict_id_from_frame(frame).map(u32::from) {
        Some(DICTIONARY_NUMBER) => {}
        Some(other) => {
            return Err(format!(
                "it needs dictionary {other}, which this program does not know"
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
