//! A sign of life on stderr while something takes its time: nothing before a second has passed, and nothing at all where
//! stderr is not a terminal or somebody wants quiet.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long nobody wonders.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it moves.
const TICK: Duration = Duration::from_millis(120);

/// True while one is there: what is part of a longer job has none of its own.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// A sign of life; it is gone with this value.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// What brings it to the screen; none where nobody would see it.
    showing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Begins a job.
    pub(crate) fn begin(what: impl Into<String>) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_message(what.into());
        set_style(&bar, "{spinner} {wide_msg}");
        let is_seen = io::stderr().is_terminal() && !super::is_quiet();
        let showing = (is_seen && !TAKEN.swap(true, Ordering::Relaxed)).then(|| show_later(&bar));
        Self { bar, showing }
    }

    /// Says how many are done.
    pub(crate) fn count(&self, what: &'static str, done: u64) {
        self.say(what, done, None);
    }

    /// Says how many of how many are done.
    pub(crate) fn count_of(&self, what: &'static str, done: u64, all: u64) {
        self.say(what, done, Some(all));
    }

    fn say(&self, what: &'static str, done: u64, all: Option<u64>) {
        if self.showing.is_none() {
            return;
        }
        self.bar.set_position(done);
        if self.bar.message() != what {
            let style = match all {
                Some(_) => "{spinner} {pos} of {len} {wide_msg}",
                None => "{spinner} {pos} {wide_msg}",
            };
            set_style(&self.bar, style);
            self.bar.set_message(what);
        }
        if let Some(all) = all.filter(|all| self.bar.length() != Some(*all)) {
            self.bar.set_length(all);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Some((stop, shown)) = self.showing.take() else {
            return;
        };
        drop(stop);
        // Nothing is drawn any more once it is cleared.
        let _ = shown.join();
        self.bar.finish_and_clear();
        TAKEN.store(false, Ordering::Relaxed);
    }
}

fn show_later(bar: &ProgressBar) -> (Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = mpsc::channel();
    let bar = bar.clone();
    let shown = thread::spawn(move || {
        if stopped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(TICK);
        }
    });
    (stop, shown)
}

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}
