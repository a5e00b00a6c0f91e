//! Witnesses: a server posts its heads to a real one, and readers count the signatures that hold.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use canon::Digest;
use ed25519_dalek::{Signer as _, SigningKey};
use receipts::merkle;
use receipts::note::{Checkpoint, KeyUse, Note, NoteKey};

use super::{Ran, get};

/// A witness as C2SP `tlog-witness` describes it: it keeps the newest head of one log, and signs only what continues it.
struct Witness {
    url: String,
    name: String,
    key: SigningKey,
    seen: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Witness {
    fn start(name: &str, secret: u8, honest: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let key = SigningKey::from_bytes(&[secret; 32]);
        let seen: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
        let witness = Self {
            url,
            name: name.to_owned(),
            key: key.clone(),
            seen: Arc::clone(&seen),
        };
        let vkey = witness.note_key();
        std::thread::spawn(move || {
            let mut head: (u64, Option<Digest>) = (0, None);
            for stream in listener.incoming().flatten() {
                let body = body_of(&stream);
                let (status, answer) = judge(&body, &mut head, &vkey, &key, honest, &seen);
                let mut stream = stream;
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
                    answer.len()
                );
            }
        });
        witness
    }

    fn note_key(&self) -> NoteKey {
        let public = self.key.verifying_key().to_bytes();
        NoteKey::new(self.name.clone(), KeyUse::Cosignature, public).unwrap()
    }

    fn vkey(&self) -> String {
        self.note_key().text()
    }
}

fn body_of(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    let mut line = String::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

fn judge(
    body: &str,
    head: &mut (u64, Option<Digest>),
    vkey: &NoteKey,
    key: &SigningKey,
    honest: bool,
    seen: &Mutex<Vec<(u64, u64)>>,
) -> (u16, String) {
    let (proof, checkpoint) = body.split_once("\n\n").unwrap();
    let mut lines = proof.lines();
    let old: u64 = lines
        .next()
        .unwrap()
        .strip_prefix("old ")
        .unwrap()
        .parse()
        .unwrap();
    let path: Vec<Digest> = lines
        .map(|line| Digest::from_bytes(STANDARD.decode(line).unwrap().try_into().unwrap()))
        .collect();
    let note = Note::read(checkpoint.as_bytes()).unwrap();
    let stated = Checkpoint::read(note.text()).unwrap();
    seen.lock().unwrap().push((old, stated.size));
    if old != head.0 {
        return (409, format!("{}\n", head.0));
    }
    let follows = match head.1 {
        None => path.is_empty(),
        Some(root) => merkle::verify_consistency(old, stated.size, &root, &stated.root, &path),
    };
    if !follows {
        return (422, String::new());
    }
    *head = (stated.size, Some(stated.root));
    let time = 1_770_000_000_u64;
    let message = format!("cosignature/v1\ntime {time}\n{}", note.text());
    let mut bytes = vkey.id().to_vec();
    bytes.extend(time.to_be_bytes());
    bytes.extend(match honest {
        true => key.sign(message.as_bytes()).to_bytes(),
        false => key.sign(b"something else").to_bytes(),
    });
    let line = format!("\u{2014} {} {}\n", vkey.name(), STANDARD.encode(bytes));
    (200, line)
}

/// Waits until the published checkpoint has a number of lines below its text.
fn signatures(url: &str, count: usize) -> Note {
    let end = Instant::now() + Duration::from_secs(15);
    loop {
        let note = Note::read(get(url, "/tlog/checkpoint").as_bytes()).unwrap();
        if note.signatures().len() == count || Instant::now() > end {
            return note;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn heads_are_cosigned_by_witnesses_and_readers_count_them() {
    let mut ran = Ran::new(1);
    let url = ran.server.as_ref().unwrap().url.clone();
    let one = Witness::start("one.example", 11, true);
    let two = Witness::start("two.example", 12, true);
    let liar = Witness::start("liar.example", 13, false);
    ran.save();
    let first = get(&url, "/tlog/checkpoint");
    fs::write(ran.path("old.checkpoint"), &first).unwrap();
    for witness in [&one, &two, &liar] {
        ran.world
            .ok(&["witness", "add", &witness.url, &witness.vkey()]);
    }
    let listed = ran.world.json(&["witness", "list", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 3, "{listed}");
    // The log's own line, and one of each witness that signs what it says.
    let note = signatures(&url, 3);
    assert_eq!(note.signatures().len(), 3, "{note:?}");
    for witness in [&one, &two] {
        assert!(note.verify(&witness.note_key()).is_ok());
    }
    assert!(note.verify(&liar.note_key()).is_err());
    // A longer log is posted with the proof from where the witness stands, also by a server that knows nothing of it.
    ran.stop();
    ran.server = Some(ran.world.serve());
    let url = ran.server.as_ref().unwrap().url.clone();
    let task = ran.world.submit("agent");
    let proof = ran.world.ok(&["receipt", "proof", &task]);
    let note = signatures(&url, 3);
    assert_eq!(note.signatures().len(), 3, "{note:?}");
    assert!(Checkpoint::read(note.text()).unwrap().size >= 2);
    assert!(one.seen.lock().unwrap().contains(&(1, 2)), "{:?}", one.seen);
    fs::write(ran.path("new.checkpoint"), note.write()).unwrap();
    fs::write(ran.path("p.json"), proof).unwrap();
    let receipt = ran.world.ok(&["receipt", "show", &task, "--wire"]);
    fs::write(ran.path("r.json"), receipt).unwrap();
    let base = [
        "r.json",
        "--keys",
        "jwks.json",
        "--proof",
        "p.json",
        "--checkpoint",
        "new.checkpoint",
    ];
    let (one_key, two_key, liar_key) = (one.vkey(), two.vkey(), liar.vkey());
    let verify = |args: &[&str]| ran.verify(&[&base[..], args].concat());
    let (said, value) = verify(&["--witness", &one_key, "--witness", &two_key]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(value["witnesses"].as_array().unwrap().len(), 2);
    let (said, value) = verify(&["--witness", &one_key, "--witness", &liar_key]);
    assert_eq!(
        (said.code, value["reason"].as_str()),
        (1, Some("witness_quorum"))
    );
    let some = [
        "--witness",
        &one_key,
        "--witness",
        &liar_key,
        "--quorum",
        "1",
    ];
    assert_eq!(verify(&some).0.code, 0);
    assert_eq!(verify(&["--witness", &one_key, "--quorum", "2"]).0.code, 2);
    let none = ran.verify(&["r.json", "--keys", "jwks.json", "--witness", &one_key]);
    assert_eq!(none.0.code, 1, "no checkpoint was given: {none:?}");
    // Two heads of one log, and one that somebody else signed.
    let check = |old: &str, new: &str, args: &[&str]| {
        ran.world
            .run(&[&["tlog", "check", old, new], args].concat())
    };
    let whole = ["--keys", "jwks.json", "--url", &url];
    let said = check("old.checkpoint", "new.checkpoint", &whole);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(check("new.checkpoint", "old.checkpoint", &whole).code, 1);
    assert_eq!(
        check("old.checkpoint", "new.checkpoint", &["--url", &url]).code,
        1
    );
    assert_eq!(
        check("old.checkpoint", "new.checkpoint", &whole[..2]).code,
        2
    );
    assert_eq!(
        check("old.checkpoint", "old.checkpoint", &whole[..2]).code,
        0
    );
    let other = first.replacen("\n1\n", "\n2\n", 1);
    fs::write(ran.path("other.checkpoint"), other).unwrap();
    let said = check("other.checkpoint", "new.checkpoint", &whole);
    assert_eq!(said.code, 1, "{said:?}");
    ran.world.ok(&["witness", "remove", "liar.example"]);
    assert_eq!(
        ran.world.run(&["witness", "remove", "liar.example"]).code,
        1
    );
    let wrong = ran
        .world
        .run(&["witness", "add", "https://x.example", "x+00000000+AAAA"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
}
