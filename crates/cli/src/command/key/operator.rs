//! How a change of a key reaches the log: through the server that holds the data directory, or alone, under its lock.
//!
//! A running server listens on a port of this machine for the operator and for nobody else. A file of the data directory, which
//! other users and tools cannot read, says where, and holds a secret. It is never sent: each side shows that it knows it, the
//! server first, so that whoever has the port by now learns nothing. Anybody on this machine can knock, so that a place at the
//! door is lent: whoever has not shown the secret makes room for the next.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::port::ApiKey;
use engine::{Engine, change_api_key};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use store::{OpenError, Options, SqliteStore};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::{now, random_hex};
use crate::exit::{OrHint, Problem};

/// The file in the data directory: where the server listens for the operator, and the secret to know there.
const FILE: &str = "operator";

/// Who changes keys, in events.
pub(super) const ACTOR: &str = "operator";

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the server waits for a stranger's first words.
const PATIENCE_WITH_STRANGERS: Duration = Duration::from_secs(2);
/// The longest question and the longest answer.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// How many knock at the same time.
const PLACES: usize = 64;
/// How often a client knocks whose connection was closed before the server had spoken.
const TRIES: u32 = 20;

/// The first words of a client.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientHello {
    nonce: String,
}

/// The server's: it knows the secret.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerHello {
    nonce: String,
    proof: String,
}

/// A question or an answer, as the text that the proof is of.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProvenText {
    said: String,
    proof: String,
}

/// What became of it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    problem: Option<String>,
}

/// What both sides know and neither sends.
#[derive(Clone)]
struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What is being proven: a proof of one thing is none of another.
#[derive(Clone, Copy)]
enum ProofPurpose {
    Welcome,
    Question,
    Answer,
}

impl Secret {
    fn mac(&self, act: ProofPurpose, nonces: [&str; 2], said: &str) -> io::Result<Hmac<Sha256>> {
        let act = match act {
            ProofPurpose::Welcome => "welcome",
            ProofPurpose::Question => "question",
            ProofPurpose::Answer => "answer",
        };
        let mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes());
        let mut mac = mac.map_err(io::Error::other)?;
        for part in [act, nonces[0], nonces[1], said] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        Ok(mac)
    }

    fn proof(&self, act: ProofPurpose, nonces: [&str; 2], said: &str) -> io::Result<String> {
        let bytes = self.mac(act, nonces, said)?.finalize().into_bytes();
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Checks a proof, in the same time whatever is wrong with it.
    fn check(
        &self,
        act: ProofPurpose,
        nonces: [&str; 2],
        said: &str,
        proof: &str,
    ) -> io::Result<()> {
        let digits = proof.as_bytes().chunks(2).map(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        });
        let bytes: Option<Vec<u8>> = digits.collect();
        let verified = self
            .mac(act, nonces, said)?
            .verify_slice(&bytes.unwrap_or_default());
        verified.map_err(|_| io::ErrorKind::PermissionDenied.into())
    }
}

/// Where a running server listens for the operator.
#[derive(Debug)]
pub(crate) struct OperatorListener {
    listener: TcpListener,
    secret: Secret,
    file: PathBuf,
}

/// Somebody at the door.
struct OperatorConnection {
    is_operator: Arc<AtomicBool>,
    task: AbortHandle,
}

impl OperatorListener {
    /// Opens it, and writes down where it is.
    ///
    /// # Errors
    /// No port is free, or the disk fails.
    pub(crate) async fn open(data: &Path) -> anyhow::Result<Self> {
        let hint = "check that the disk has room and lets this user write";
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener =
            listener.or_hint("no port on 127.0.0.1", "check the limits of this machine")?;
        let address = listener
            .local_addr()
            .or_hint("no port on 127.0.0.1", hint)?;
        let secret = Secret(random_hex::<32>()?);
        let file = data.join(FILE);
        files::write_durably(data, FILE, format!("{address} {}\n", secret.0).as_bytes())
            .or_hint(format_args!("`{}`", file.display()), hint)?;
        Ok(Self {
            listener,
            secret,
            file,
        })
    }

    /// Answers until it is dropped.
    pub(crate) async fn serve(self, engine: Engine) {
        let mut askers: VecDeque<OperatorConnection> = VecDeque::new();
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                // Out of descriptors, perhaps: others give theirs back.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            askers.retain(|asker| !asker.task.is_finished());
            if askers.len() >= PLACES {
                let stranger = askers
                    .iter()
                    .position(|asker| !asker.is_operator.load(Ordering::Relaxed));
                // When all are the operator's, each ends within its time, and this one comes again.
                let Some(stranger) = stranger else { continue };
                if let Some(asker) = askers.remove(stranger) {
                    asker.task.abort();
                }
            }
            let is_operator = Arc::new(AtomicBool::new(false));
            let (engine, secret) = (engine.clone(), self.secret.clone());
            let known = Arc::clone(&is_operator);
            let task = tokio::spawn(async move {
                // Whoever went away, or says nothing, gets no answer.
                let answered = answer(stream, &engine, &secret, &known);
                let _ = tokio::time::timeout(PATIENCE, answered).await;
            });
            let task = task.abort_handle();
            askers.push_back(OperatorConnection { is_operator, task });
        }
    }
}

impl Drop for OperatorListener {
    fn drop(&mut self) {
        // One that stays behind leads to a closed port, and whoever follows it finds the directory free.
        let _ = std::fs::remove_file(&self.file);
    }
}

async fn answer(
    stream: TcpStream,
    engine: &Engine,
    secret: &Secret,
    is_operator: &AtomicBool,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let introduced = tokio::time::timeout(PATIENCE_WITH_STRANGERS, async {
        let knock: ClientHello = read_line(&mut stream).await?;
        let nonce = random_hex::<16>().map_err(io::Error::other)?;
        let nonces = [knock.nonce.as_str(), nonce.as_str()];
        let proof = secret.proof(ProofPurpose::Welcome, nonces, "")?;
        let welcome = ServerHello {
            nonce: nonce.clone(),
            proof,
        };
        write_line(&mut stream, &welcome).await?;
        let question: ProvenText = read_line(&mut stream).await?;
        secret.check(
            ProofPurpose::Question,
            nonces,
            &question.said,
            &question.proof,
        )?;
        Ok::<_, io::Error>((knock.nonce, nonce, question.said))
    });
    let (theirs, ours, said) = introduced.await.map_err(io::Error::other)??;
    is_operator.store(true, Ordering::Relaxed);
    let key: ApiKey = serde_json::from_str(&said).map_err(io::Error::other)?;
    let changed = engine.change_api_key(key, ACTOR).await;
    let said = Answer {
        problem: changed.err().map(|error| error.to_string()),
    };
    let said = serde_json::to_string(&said).map_err(io::Error::other)?;
    let proof = secret.proof(ProofPurpose::Answer, [&theirs, &ours], &said)?;
    write_line(&mut stream, &ProvenText { said, proof }).await
}

async fn read_line<T: serde::de::DeserializeOwned>(
    stream: &mut BufReader<TcpStream>,
) -> io::Result<T> {
    let mut line = Vec::new();
    let mut bounded = stream.take(LINE_BYTES_MAX);
    bounded.read_until(b'\n', &mut line).await?;
    serde_json::from_slice(&line).map_err(io::Error::other)
}

async fn write_line(stream: &mut BufReader<TcpStream>, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    stream.flush().await
}

/// Stores a key as it is after a change, and logs the change.
///
/// # Errors
/// The server says no or does not answer; nobody holds the directory, and it cannot be opened.
pub(crate) async fn change(data: &Path, key: ApiKey) -> anyhow::Result<()> {
    if let Some(asked) = ask(data, key.clone()).await {
        return asked;
    }
    let store = SqliteStore::open(data, Options::default()).map_err(|error| {
        let hint = match &error {
            OpenError::Locked { .. } => {
                "it does not take questions now: wait until it is ready or has ended"
            }
            other => other.hint(),
        };
        Problem::new(error.to_string(), hint)
    })?;
    let changed = change_api_key(&store, key, ACTOR, now()).await;
    store.close();
    changed.or_hint(
        "the key was not stored",
        "check that the disk has room and lets this user write",
    )
}

/// Asks the server that holds a directory; none when there is none.
async fn ask(data: &Path, key: ApiKey) -> Option<anyhow::Result<()>> {
    let text = std::fs::read_to_string(data.join(FILE)).ok()?;
    let mut words = text.split_whitespace();
    let address: SocketAddr = words.next()?.parse().ok()?;
    let secret = Secret(words.next()?.to_owned());
    if !address.ip().is_loopback() {
        return None;
    }
    let (mut stream, nonces) = introduced(address, &secret).await?;
    let asked = tokio::time::timeout(PATIENCE, async {
        let nonces = [nonces[0].as_str(), nonces[1].as_str()];
        let said = serde_json::to_string(&key).map_err(io::Error::other)?;
        let proof = secret.proof(ProofPurpose::Question, nonces, &said)?;
        write_line(&mut stream, &ProvenText { said, proof }).await?;
        let answer: ProvenText = read_line(&mut stream).await?;
        secret.check(ProofPurpose::Answer, nonces, &answer.said, &answer.proof)?;
        serde_json::from_str::<Answer>(&answer.said).map_err(io::Error::other)
    });
    Some(match asked.await {
        Ok(Ok(Answer { problem: None })) => Ok(()),
        Ok(Ok(Answer {
            problem: Some(problem),
        })) => Err(Problem::new(
            format!("the server did not change the key: {problem}"),
            "`reprise key list` shows the keys",
        )
        .into()),
        Ok(Err(_)) | Err(_) => Err(Problem::new(
            "the server did not answer, so the key may have been changed or not",
            "`reprise key list` shows the keys; try again",
        )
        .into()),
    })
}

/// Connects to whoever has the port and lets it show that it knows the secret; none when it does not. Others may crowd the
/// door, so that this is tried several times.
async fn introduced(
    address: SocketAddr,
    secret: &Secret,
) -> Option<(BufReader<TcpStream>, [String; 2])> {
    for tried in 1..=TRIES {
        let nonce = random_hex::<16>().ok()?;
        let introduced = tokio::time::timeout(PATIENCE, async {
            let stream = TcpStream::connect(address).await?;
            let mut stream = BufReader::new(stream);
            let knock = ClientHello {
                nonce: nonce.clone(),
            };
            write_line(&mut stream, &knock).await?;
            let welcome: ServerHello = read_line(&mut stream).await?;
            Ok::<_, io::Error>((stream, welcome))
        });
        match introduced.await {
            // The file was left over, and the port is another's by now.
            Ok(Ok((stream, welcome))) => {
                let nonces = [nonce, welcome.nonce];
                let theirs = [nonces[0].as_str(), nonces[1].as_str()];
                let shown = secret.check(ProofPurpose::Welcome, theirs, "", &welcome.proof);
                return shown.ok().map(|()| (stream, nonces));
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => return None,
            Ok(Err(_)) => tokio::time::sleep(Duration::from_millis(20) * tried).await,
            Err(_) => return None,
        }
    }
    None
}
