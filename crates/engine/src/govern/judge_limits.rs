//! Where contracts are compiled and calls are judged: beside the threads that answer requests, and so much at a time that whoever
//! has much judged keeps the others waiting for a while at most.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::engine::Engine;
use crate::refused::Refused;

/// How much is judged at once for one actor, and for all.
const OWN_MAX: usize = 2;
const ALL_MAX: usize = 16;

/// Who is having something judged.
#[derive(Debug)]
pub(super) struct JudgeLimits {
    all: Arc<Semaphore>,
    by_actor: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

impl Default for JudgeLimits {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(ALL_MAX)),
            by_actor: Mutex::default(),
        }
    }
}

impl JudgeLimits {
    fn of(&self, actor: &str) -> Arc<Semaphore> {
        let known = self.by_actor.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        // Nobody waits for or holds a part of one that is only known here.
        known.retain(|_, own| Arc::strong_count(own) > 1);
        let own = known.entry(actor.to_owned());
        Arc::clone(own.or_insert_with(|| Arc::new(Semaphore::new(OWN_MAX))))
    }
}

impl Engine {
    /// Has long pure work done on somebody's account.
    ///
    /// # Errors
    /// The work came to no end, which is a bug.
    pub(super) async fn run_judgement<T: Send + 'static>(
        &self,
        actor: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let limits = &self.shared.governed.judge_limits;
        let closed = |_| Refused::Internal {
            detail: "nothing is judged any more".to_owned(),
        };
        let own = limits.of(actor).acquire_owned().await.map_err(closed)?;
        let one = Arc::clone(&limits.all).acquire_owned();
        let one = one.await.map_err(closed)?;
        // Held until the work is done, even when nobody waits for it any more.
        self.run_blocking(move || {
            let done = work();
            drop((own, one));
            done
        })
        .await
    }
}
