//! Room for bytes that are on their way, shared out by key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::{NoShare, Refused, Shares};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::gate::Credential;

/// How long a transfer waits for room.
const PATIENCE: Duration = Duration::from_secs(5);

/// Room of one kind.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    /// The setting that bounds it.
    limit: &'static str,
    shares: Mutex<Shares<Credential>>,
    left: Notify,
}

/// Room that is taken; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Reservation {
    room: Arc<ByteBudget>,
    key: Credential,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.room.lock().release(&self.key, self.bytes);
        self.room.left.notify_waiters();
    }
}

impl ByteBudget {
    pub(crate) fn new(limit: &'static str, bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            shares: Mutex::new(Shares::new(bytes_max)),
            left: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Shares<Credential>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for a key, after a wait when there is none. More than there is altogether counts as all there is.
    pub(crate) async fn take(
        self: &Arc<Self>,
        key: Credential,
        bytes: usize,
    ) -> Result<Reservation, Failure> {
        let until = Instant::now() + PATIENCE;
        loop {
            // Listens before it looks: what is given back in between is not missed.
            let left = self.left.notified();
            let refused = {
                let mut shares = self.lock();
                let bytes = bytes.min(shares.max());
                match shares.take(&key, bytes) {
                    Ok(()) => {
                        let room = Arc::clone(self);
                        return Ok(Reservation { room, key, bytes });
                    }
                    Err(NoShare::All) => Refused::Busy { what: self.limit },
                    Err(NoShare::Own { held }) => Refused::OverShare {
                        limit: self.limit,
                        held,
                        max: shares.max(),
                    },
                }
            };
            if tokio::time::timeout_at(until, left).await.is_err() {
                return Err(refused.into());
            }
        }
    }
}
