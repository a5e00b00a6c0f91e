//! Threads that read, each with its own connection, started when they are needed.
//!
//! A read blocks its thread and never the caller's executor.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use engine::port::StoreFault;

use crate::blocks::Blocks;
use crate::fault::{closed, fault};
use crate::schema::{Role, connect};

/// How many reads run at once. Reads of a warm database are short; more threads would only hold caches.
const THREADS_MAX: usize = 3;

type Job = Box<dyn FnOnce(Result<&Blocks, StoreFault>) + Send>;

/// The reading threads of one store.
#[derive(Debug)]
pub(crate) struct Readers {
    shared: Arc<Shared>,
}

struct Shared {
    directory: Box<Path>,
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    closed: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(crate) fn new(directory: &Path) -> Self {
        let shared = Shared {
            directory: directory.into(),
            queue: Mutex::default(),
            ready: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Runs a read on one of the threads.
    pub(crate) fn submit(&self, job: Job) {
        let mut queue = self.shared.lock();
        if queue.closed {
            drop(queue);
            return job(Err(closed()));
        }
        queue.jobs.push_back(job);
        if queue.idle < queue.jobs.len() && queue.threads.len() < THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            let name = format!("store-read-{}", queue.threads.len());
            match thread::Builder::new()
                .name(name)
                .spawn(move || shared.work())
            {
                Ok(thread) => queue.threads.push(thread),
                Err(error) if queue.threads.is_empty() => {
                    let job = queue.jobs.pop_back();
                    drop(queue);
                    if let Some(job) = job {
                        job(Err(StoreFault::new(format!(
                            "no thread to read with: {error}"
                        ))));
                    }
                    return;
                }
                // Those that run will get to it.
                Err(_) => {}
            }
        }
        drop(queue);
        self.shared.ready.notify_one();
    }

    /// Finishes what is asked for already and ends the threads.
    pub(crate) fn close(&self) {
        let threads = {
            let mut queue = self.shared.lock();
            queue.closed = true;
            std::mem::take(&mut queue.threads)
        };
        self.shared.ready.notify_all();
        for thread in threads {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing that can panic runs under the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut connection = None;
        while let Some(job) = self.next() {
            if connection.is_none() {
                match connect(&self.directory, Role::Reader) {
                    Ok(opened) => connection = Some(Blocks::new(opened)),
                    Err(error) => {
                        job(Err(fault(error)));
                        continue;
                    }
                }
            }
            if let Some(connection) = &connection {
                job(Ok(connection));
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            queue.idle += 1;
            queue = self
                .ready
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
