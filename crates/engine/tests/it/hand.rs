//! An executor turned by hand: every task gets one poll after the other, in order, and between two polls anybody may
//! look. It has no time, so that nothing depends on it; a crash is dropping it.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use engine::port::{BoxFuture, Spawn};

#[derive(Default)]
struct Inbox(Mutex<Vec<BoxFuture<'static, ()>>>);

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

impl Spawn for Inbox {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(future);
    }
}

/// The tasks of one life.
#[derive(Default)]
pub(crate) struct Hand {
    inbox: Arc<Inbox>,
    tasks: Vec<BoxFuture<'static, ()>>,
}

/// More rounds than any test needs: what is not done by then never will be.
const ROUNDS_MAX: usize = 200_000;

impl Hand {
    pub(crate) fn spawner(&self) -> Arc<dyn Spawn> {
        Arc::clone(&self.inbox) as Arc<dyn Spawn>
    }

    /// Turns until a future is done. `look` is called after every poll.
    pub(crate) fn turn<T>(&mut self, future: impl Future<Output = T>, mut look: impl FnMut()) -> T {
        let mut context = Context::from_waker(Waker::noop());
        let mut future = pin!(future);
        for _ in 0..ROUNDS_MAX {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                look();
                return value;
            }
            look();
            let new =
                std::mem::take(&mut *self.inbox.0.lock().unwrap_or_else(PoisonError::into_inner));
            self.tasks.extend(new);
            let mut index = 0;
            while let Some(task) = self.tasks.get_mut(index) {
                if Pin::new(task).poll(&mut context).is_ready() {
                    drop(self.tasks.remove(index));
                } else {
                    index += 1;
                }
                look();
            }
        }
        panic!("nothing comes of it");
    }
}
