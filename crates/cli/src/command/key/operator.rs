//! How a change of a key reaches the log: through the server that holds the data directory, or alone, under its lock.
//!
//! A running server listens on a port of this machine for the operator and for nobody else: whoever asks shows a secret from a
//! file of the data directory, which other users and tools cannot read. One line asks, one line answers.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use canon::Digest;
use domain::Timestamp;
use engine::port::ApiKey;
use engine::{Engine, change_api_key};
use serde::{Deserialize, Serialize};
use store::{OpenError, Options, SqliteStore};
use subtle::ConstantTimeEq as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::{now, random_hex, write_secret};
use crate::exit::{OrHint, Problem};

/// The file in the data directory: where the server listens for the operator, and the secret to show there.
const FILE: &str = "operator";

/// Who changes keys, in events.
const ACTOR: &str = "operator";

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest question and the longest answer.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// How many ask at the same time.
const ASKERS_MAX: usize = 16;

/// A question.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    secret: String,
    key: Told,
}

/// A key as it is told: what the store keeps of it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    id: String,
    digest: Digest,
    actor: String,
    workspaces: Option<Vec<String>>,
    scopes: Vec<String>,
    created_at: Timestamp,
    revoked_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
}

/// An answer, with what only the server knows beside the file: after a crash the port may be somebody else's.
#[derive(Serialize, Deserialize)]
struct Answer {
    proof: String,
    problem: Option<String>,
}

impl From<ApiKey> for Told {
    fn from(key: ApiKey) -> Self {
        Self {
            id: key.id,
            digest: key.digest,
            actor: key.actor,
            workspaces: key.workspaces,
            scopes: key.scopes,
            created_at: key.created_at,
            revoked_at: key.revoked_at,
            expires_at: key.expires_at,
        }
    }
}

impl From<Told> for ApiKey {
    fn from(key: Told) -> Self {
        Self {
            id: key.id,
            digest: key.digest,
            actor: key.actor,
            workspaces: key.workspaces,
            scopes: key.scopes,
            created_at: key.created_at,
            revoked_at: key.revoked_at,
            expires_at: key.expires_at,
        }
    }
}

/// What each side shows the other.
#[derive(Clone)]
struct Secrets {
    asking: String,
    answering: String,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

/// Where a running server listens for the operator.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    secrets: Secrets,
    file: PathBuf,
}

impl Door {
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
        let secrets = Secrets {
            asking: random_hex::<32>()?,
            answering: random_hex::<32>()?,
        };
        let Secrets { asking, answering } = &secrets;
        let file = data.join(FILE);
        write_secret(data, FILE, &format!("{address} {asking} {answering}\n"))
            .or_hint(format_args!("`{}`", file.display()), hint)?;
        Ok(Self {
            listener,
            secrets,
            file,
        })
    }

    /// Answers until it is dropped.
    pub(crate) async fn serve(self, engine: Engine) {
        let door = Arc::new(self);
        let askers = Arc::new(Semaphore::new(ASKERS_MAX));
        loop {
            let Ok(place) = Arc::clone(&askers).acquire_owned().await else {
                return;
            };
            let Ok((stream, _)) = door.listener.accept().await else {
                // Out of descriptors, perhaps: others give theirs back.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (engine, secrets) = (engine.clone(), door.secrets.clone());
            tokio::spawn(async move {
                // Whoever went away, or says nothing, gets no answer.
                let _ = tokio::time::timeout(PATIENCE, answer(stream, &engine, &secrets)).await;
                drop(place);
            });
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // One that stays behind leads to a closed port, and whoever follows it finds the directory free.
        let _ = std::fs::remove_file(&self.file);
    }
}

async fn answer(stream: TcpStream, engine: &Engine, secrets: &Secrets) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let question: Question = read_line(&mut stream).await?;
    let is_operator = question.secret.as_bytes().ct_eq(secrets.asking.as_bytes());
    if !bool::from(is_operator) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let changed = engine.change_api_key(question.key.into(), ACTOR).await;
    let answer = Answer {
        proof: secrets.answering.clone(),
        problem: changed.err().map(|error| error.to_string()),
    };
    write_line(&mut stream, &answer).await
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
    let (secret, proof) = (words.next()?, words.next()?);
    if !address.ip().is_loopback() {
        return None;
    }
    let stream = TcpStream::connect(address).await.ok()?;
    let asked = tokio::time::timeout(PATIENCE, async {
        let mut stream = BufReader::new(stream);
        let question = Question {
            secret: secret.to_owned(),
            key: key.into(),
        };
        write_line(&mut stream, &question).await?;
        read_line::<Answer>(&mut stream).await
    });
    Some(match asked.await {
        // The file was left over, and the port is another's by now.
        Ok(Ok(answer)) if answer.proof != proof => return None,
        Ok(Ok(Answer { problem: None, .. })) => Ok(()),
        Ok(Ok(Answer {
            problem: Some(problem),
            ..
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
