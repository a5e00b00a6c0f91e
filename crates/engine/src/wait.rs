//! Waiting until something happens to one Task.

use domain::Position;
use tokio::sync::broadcast;

use crate::engine::Engine;
use crate::port::News;

/// Hears of the commits that touch one Task, and of no others.
#[derive(Debug)]
pub(crate) struct TaskWatch {
    news: broadcast::Receiver<News>,
    key: Position,
}

impl Engine {
    /// Watches a Task from now on: whoever looks at it afterwards misses nothing.
    pub(crate) fn watch_task(&self, key: Position) -> TaskWatch {
        TaskWatch {
            news: self.shared.store.news(),
            key,
        }
    }
}

impl TaskWatch {
    /// Returns when there is a reason to look at the Task again. Safe to drop and call again.
    pub(crate) async fn changed(&mut self) {
        loop {
            match self.news.recv().await {
                // Nothing in it: somebody else committed, and only the log knows what.
                Ok(news) if news.events.is_empty() => return,
                Ok(news) => {
                    let mut events = news.events.iter();
                    if events.any(|event| {
                        event.links.task == Some(self.key) || event.resource == self.key
                    }) {
                        return;
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => return,
                // The store is gone: nothing will ever happen.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}
