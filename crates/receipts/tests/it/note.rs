//! Signed notes, checkpoints and the cosignatures of witnesses.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use canon::sha256;
use ed25519_dalek::{Signer as _, SigningKey};
use receipts::{
    Signer,
    note::{Checkpoint, KeyUse, Note, NoteError, NoteKey, SignatureLine},
};

use crate::common::signer;

const ORIGIN: &str = "log.example/receipts";
const WITNESS: &str = "witness.example/w1";

fn checkpoint() -> Checkpoint {
    Checkpoint {
        origin: ORIGIN.to_owned(),
        size: 42,
        root: sha256(b"root"),
        extensions: Vec::new(),
    }
}

fn log_key() -> NoteKey {
    NoteKey::new(ORIGIN, KeyUse::Note, signer().public()).unwrap()
}

fn witness() -> (SigningKey, NoteKey) {
    let secret = SigningKey::from_bytes(&[7; 32]);
    let public = secret.verifying_key().to_bytes();
    let key = NoteKey::new(WITNESS, KeyUse::Cosignature, public).unwrap();
    (secret, key)
}

/// What a witness does, written from the format and not from our code.
fn cosign(text: &str, time: u64) -> SignatureLine {
    let (secret, key) = witness();
    let message = format!("cosignature/v1\ntime {time}\n{text}");
    let mut bytes = key.id().to_vec();
    bytes.extend_from_slice(&time.to_be_bytes());
    bytes.extend_from_slice(&secret.sign(message.as_bytes()).to_bytes());
    SignatureLine::parse(&format!("\u{2014} {WITNESS} {}", STANDARD.encode(bytes))).unwrap()
}

fn signed() -> Note {
    let mut note = Note::new(checkpoint().text()).unwrap();
    note.sign(ORIGIN, &signer()).unwrap();
    note
}

#[test]
fn the_key_id_is_that_of_the_format() {
    // A published verifier key: name, id and key in one text.
    let text = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
    let key = NoteKey::parse(text).unwrap();
    assert_eq!(key.id(), [0xc7, 0x4f, 0x20, 0xa3]);
    assert_eq!(key.text(), text);
    let digest = sha256(&[ORIGIN.as_bytes(), b"\n\x01", &signer().public()].concat());
    assert_eq!(log_key().id(), digest.as_bytes()[..4]);
    // The same key for another use has another id.
    let other = NoteKey::new(ORIGIN, KeyUse::Cosignature, signer().public()).unwrap();
    let digest = sha256(&[ORIGIN.as_bytes(), b"\n\x04", &signer().public()].concat());
    assert_eq!(other.id(), digest.as_bytes()[..4]);
    assert_ne!(other.id(), log_key().id());
    assert_eq!(NoteKey::parse(&other.text()), Ok(other));
}

#[test]
fn malformed_verifier_keys_are_refused() {
    for text in [
        "",
        "name",
        "name+00000000",
        "PeterNeumann+c74f20a4+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        "PeterNeumann+C74F20A3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        "PeterNeumann+c74f20a3+AhPc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10Q=",
        "Peter Neumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
    ] {
        assert!(NoteKey::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_checkpoint_is_written_signed_read_and_verified() {
    let text = signed().write();
    let lines: Vec<&str> = text.split('\n').collect();
    assert_eq!(lines[..2], [ORIGIN, "42"]);
    assert_eq!(lines[3], "");
    assert!(lines[4].starts_with("\u{2014} log.example/receipts "));
    assert_eq!(lines[5..], [""]);
    let note = Note::read(text.as_bytes()).unwrap();
    assert_eq!(note.write(), text);
    assert_eq!(note.verify(&log_key()), Ok(None));
    assert_eq!(Checkpoint::read(note.text()), Ok(checkpoint()));
}

#[test]
fn a_witness_line_is_added_and_its_time_is_told() {
    let mut note = signed();
    note.add(cosign(note.text(), 1_777_144_653));
    note.add(cosign(note.text(), 1_777_144_700));
    note.add(cosign(note.text(), 1_777_144_653));
    let note = Note::read(note.write().as_bytes()).unwrap();
    assert_eq!(note.signatures().len(), 3);
    assert_eq!(note.signatures()[1].name(), WITNESS);
    assert_eq!(note.verify(&witness().1), Ok(Some(1_777_144_700)));
    assert_eq!(note.verify(&log_key()), Ok(None));
}

#[test]
fn a_changed_text_time_or_signer_does_not_verify() {
    let (_, witness) = witness();
    let mut note = signed();
    note.add(cosign(note.text(), 5));
    let text = note.write();
    let forged = Note::read(text.replacen("42", "43", 1).as_bytes()).unwrap();
    assert_eq!(forged.verify(&log_key()), Err(NoteError::SignatureInvalid));
    assert_eq!(forged.verify(&witness), Err(NoteError::SignatureInvalid));
    // Another time under the same signature.
    let line = note.signatures()[1].write();
    let mut bytes = STANDARD.decode(line.rsplit_once(' ').unwrap().1).unwrap();
    bytes[11] ^= 1;
    let mut late = signed();
    late.add(
        SignatureLine::parse(&format!("\u{2014} {WITNESS} {}", STANDARD.encode(bytes))).unwrap(),
    );
    assert_eq!(late.verify(&witness), Err(NoteError::SignatureInvalid));
    // One good line does not cover up a bad one by the same key.
    late.add(cosign(late.text(), 5));
    assert_eq!(late.verify(&witness), Err(NoteError::SignatureInvalid));
    // A key that did not sign, and the log's key under another name.
    let stranger = Signer::new("x", &[9; 32]);
    let key = NoteKey::new(ORIGIN, KeyUse::Note, stranger.public()).unwrap();
    assert_eq!(signed().verify(&key), Err(NoteError::NotSigned));
    let key = NoteKey::new("other.example", KeyUse::Note, signer().public()).unwrap();
    assert_eq!(signed().verify(&key), Err(NoteError::NotSigned));
    assert_eq!(signed().verify(&witness), Err(NoteError::NotSigned));
}

#[test]
fn malformed_notes_are_refused() {
    let good = signed().write();
    let line = good.split('\n').nth(4).unwrap();
    for text in [
        String::new(),
        "text\n".to_owned(),
        format!("text\n{line}\n"),
        format!("text\n\n{line}"),
        format!("text\n\n{line}\n\n"),
        format!("text\n\n{line}\r\n"),
        format!("te\txt\n\n{line}\n"),
        "text\n\n- name AAAAAAAA\n".to_owned(),
        "text\n\n\u{2014} name\n".to_owned(),
        "text\n\n\u{2014} name AAAAAA==\n".to_owned(),
        "text\n\n\u{2014} name AAAAAAB=\n".to_owned(),
        "text\n\n\u{2014} name AAAAAAAA=\n".to_owned(),
        "text\n\n\u{2014} na+me AAAAAAAA\n".to_owned(),
        "text\n\n\u{2014}  AAAAAAAA\n".to_owned(),
        format!("text\n\n{}", format!("{line}\n").repeat(101)),
        "x".repeat(2 << 20),
    ] {
        assert!(
            matches!(Note::read(text.as_bytes()), Err(NoteError::Malformed(_))),
            "{text:.60}"
        );
    }
    assert!(Note::read(b"\xff\n\n\xe2\x80\x94 n AAAAAAAA\n").is_err());
    assert!(Note::new("no end").is_err());
    // Empty lines inside the text are fine: the last one divides.
    let note = Note::read(format!("a\n\nb\n\n{line}\n").as_bytes()).unwrap();
    assert_eq!(note.text(), "a\n\nb\n");
}

#[test]
fn malformed_checkpoints_are_refused() {
    let good = checkpoint().text();
    let root = good.split('\n').nth(2).unwrap();
    assert!(Checkpoint::read(&format!("o\n0\n{root}\nextension\n")).is_ok());
    for text in [
        String::new(),
        "o\n1\n".to_owned(),
        format!("o\n1\n{root}"),
        format!("\n1\n{root}\n"),
        format!("o\n01\n{root}\n"),
        format!("o\n+1\n{root}\n"),
        format!("o\n-1\n{root}\n"),
        format!("o\n18446744073709551616\n{root}\n"),
        "o\n1\nAAAA\n".to_owned(),
        format!("o\n1\n{root}\n\n"),
    ] {
        assert!(Checkpoint::read(&text).is_err(), "{text}");
    }
}
