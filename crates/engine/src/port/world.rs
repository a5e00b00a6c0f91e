//! Time, ids, spawning and the outside.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use domain::Timestamp;

use runs::workflow::{Effect, EffectOutcome};

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Reads and waits for time.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Returns the time now. May step back.
    fn now(&self) -> Timestamp;

    /// Returns after a while.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Makes what must be random.
pub trait Ids: Send + Sync + fmt::Debug + 'static {
    /// Returns a new id body: URL-safe, unique, sorting by creation.
    fn body(&self) -> String;

    /// Returns text nobody can guess, for salts.
    fn salt(&self) -> String;
}

/// Starts tasks that run beside the caller.
pub trait Spawn: Send + Sync + fmt::Debug + 'static {
    /// Runs a future to its end.
    fn spawn(&self, future: BoxFuture<'static, ()>);

    /// Runs work that keeps a processor busy for long, where it keeps nobody else waiting. Without such a place it runs at
    /// once.
    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

/// Where a model call that streams puts pieces of its text as they come. They are shown, never relied on: the
/// recorded answer is the whole one.
#[derive(Clone)]
pub struct Deltas(Option<Arc<dyn Fn(String) + Send + Sync>>);

impl Deltas {
    /// Pieces go nowhere: nobody follows the answer as it comes.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Pieces go to a function that does not wait.
    pub fn to(show: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(show)))
    }

    /// Shows a piece of text.
    pub fn push(&self, text: impl Into<String>) {
        if let Some(show) = &self.0 {
            show(text.into());
        }
    }
}

impl fmt::Debug for Deltas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deltas").field(&self.0.is_some()).finish()
    }
}

/// Performs effects. Called only after the intent is durable.
pub trait Performer: Send + Sync + fmt::Debug + 'static {
    /// Performs one effect. Dropping the future cancels it.
    fn perform(&self, effect: Effect, deltas: Deltas) -> BoxFuture<'static, EffectOutcome>;
}

/// Why a secret was not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeepSecretError {
    /// The name or the value is not one that can be kept.
    #[error("{0}")]
    Refused(String),
    /// It could not be written.
    #[error("{0}")]
    Failed(String),
}

/// Keeps secrets. Gives none back: only whoever performs effects can read them.
pub trait SecretKeeper: Send + Sync + fmt::Debug + 'static {
    /// Keeps a value under a name and returns its version.
    ///
    /// # Errors
    /// It was not kept.
    fn put(&self, name: &str, value: &str) -> Result<u64, KeepSecretError>;

    /// Forgets a value. Forgetting what is not there is no error.
    ///
    /// # Errors
    /// It could not be forgotten.
    fn delete(&self, name: &str) -> Result<(), KeepSecretError>;
}
