//! Threads for what blocks: reads, each thread with its own connection, and writes of large blobs, which must not stand
//! in the way of reads. Started when they are needed; a job blocks its thread and never the caller's executor.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use engine::port::StoreFault;
use rusqlite::Connection;

use crate::fault::{closed, fault};
use crate::schema::{Role, connect};

/// How many reads run at once. Reads of a warm database are short; more threads would only hold caches.
const READERS_MAX: usize = 3;

/// How many files are written at once. The disk is what takes the time; a second one fills the pauses of the first.
const FILE_WRITERS_MAX: usize = 2;

type Job<T> = Box<dyn FnOnce(Result<&T, StoreFault>) + Send>;

/// Threads that read.
pub(crate) type Readers = Threads<Connection>;

/// Threads that write files.
pub(crate) type FileWriters = Threads<()>;

/// Some threads of one store, each with something of its own to work with.
#[derive(Debug)]
pub(crate) struct Threads<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Threads<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

struct Shared<T> {
    directory: Box<Path>,
    name: &'static str,
    threads_max: usize,
    equip: fn(&Path) -> Result<T, StoreFault>,
    queue: Mutex<Queue<T>>,
    ready: Condvar,
}

struct Queue<T> {
    jobs: VecDeque<Job<T>>,
    idle: usize,
    closed: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(crate) fn readers(directory: &Path) -> Self {
        Self::new(directory, "store-read", READERS_MAX, |directory| {
            let connection = connect(directory, Role::Reader).map_err(fault)?;
            Ok(connection)
        })
    }
}

impl FileWriters {
    pub(crate) fn file_writers(directory: &Path) -> Self {
        Self::new(directory, "store-blob", FILE_WRITERS_MAX, |_| Ok(()))
    }
}

impl<T: 'static> Threads<T> {
    fn new(
        directory: &Path,
        name: &'static str,
        threads_max: usize,
        equip: fn(&Path) -> Result<T, StoreFault>,
    ) -> Self {
        let queue = Queue {
            jobs: VecDeque::new(),
            idle: 0,
            closed: false,
            threads: Vec::new(),
        };
        let shared = Shared {
            directory: directory.into(),
            name,
            threads_max,
            equip,
            queue: Mutex::new(queue),
            ready: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Runs a job on one of the threads.
    pub(crate) fn submit(&self, job: Job<T>) {
        let shared = &self.shared;
        let mut queue = shared.lock();
        if queue.closed {
            drop(queue);
            return job(Err(closed()));
        }
        queue.jobs.push_back(job);
        if queue.idle < queue.jobs.len() && queue.threads.len() < shared.threads_max {
            let shared = Arc::clone(&self.shared);
            let name = format!("{}-{}", shared.name, queue.threads.len());
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
                            "cannot start a worker thread: {error}"
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

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        // Nothing that can panic runs under the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut equipment = None;
        while let Some(job) = self.next() {
            if equipment.is_none() {
                match (self.equip)(&self.directory) {
                    Ok(equipped) => equipment = Some(equipped),
                    Err(fault) => {
                        job(Err(fault));
                        continue;
                    }
                }
            }
            if let Some(equipment) = &equipment {
                job(Ok(equipment));
            }
        }
    }

    fn next(&self) -> Option<Job<T>> {
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

impl<T> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
