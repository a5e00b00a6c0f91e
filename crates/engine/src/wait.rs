//! Waiting until something happens to one Task.

use domain::Position;
use tokio::sync::broadcast;

use crate::engine::Engine;
use crate::port::{News, StoredEvent};

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
                Ok(news) => {
                    let events = news.events();
                    let is_ours = |event: &StoredEvent| {
                        event.links.task == Some(self.key) || event.resource == self.key
                    };
                    // Nothing in it: something was committed, and only the log knows what.
                    if events.is_empty() || events.iter().any(is_ours) {
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
