//! Damaged input for every decoder that others can reach: bodies, imports, receipts, keys, heads, sidecars, contracts.
//!
//! A decoder is a target: a function of bytes that must not panic, must end soon, must not use more than bounded memory,
//! and must write what it read so that it reads the same again. Inputs are made from good ones, damaged by a seeded
//! generator, so that a run repeats exactly. Whatever was found once is kept in `corpus/<target>` and tried first.
//!
//! The test of this crate tries a fixed number of inputs; `cargo xtask fuzz` goes on for as long as it is told. There is
//! no coverage feedback, because that needs a compiler that this workspace does not build with.

mod damage;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use damage::Damage;
pub use targets::{TARGETS, Target, read_stream};

/// The longest input that is tried.
pub const INPUT_BYTES_MAX: usize = 64 * 1024;
/// How long one input may take, also without optimisation on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the whole process may use: a decoder that asks for more ends it.
const MEMORY_BYTES_MAX: u64 = 4 << 30;

/// An input that a target does not stand.
#[derive(Debug)]
pub struct Found {
    /// The target's name.
    pub target: &'static str,
    /// What went wrong.
    pub problem: String,
    /// The input.
    pub input: Vec<u8>,
}

impl Found {
    /// Keeps the input for later runs, and returns where.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self) -> std::io::Result<PathBuf> {
        let folder = corpus(self.target);
        std::fs::create_dir_all(&folder)?;
        let digest = canon::sha256(&self.input).to_string();
        let name = digest.trim_start_matches("sha256:").get(..16);
        let file = folder.join(name.unwrap_or("input"));
        std::fs::write(&file, &self.input)?;
        Ok(file)
    }
}

/// Bounds the memory of this process, so that a decoder without a bound is noticed.
pub fn bound_memory() {
    let limit = rustix::process::Rlimit {
        current: Some(MEMORY_BYTES_MAX),
        maximum: Some(MEMORY_BYTES_MAX),
    };
    // Where the system does not bound memory, the other rules still hold.
    let _ = rustix::process::setrlimit(rustix::process::Resource::As, limit);
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target)
}

/// Tries what was found before, then damaged input until there was enough of it or the time is up. Returns how many inputs
/// were tried.
///
/// # Errors
/// The first input that the target does not stand.
pub fn attack(
    target: &Target,
    seed: u64,
    inputs_max: u64,
    until: Option<Instant>,
) -> Result<u64, Found> {
    let good = (target.seeds)();
    let mut tried = 0;
    let kept = std::fs::read_dir(corpus(target.name)).into_iter().flatten();
    let kept = kept.filter_map(|entry| std::fs::read(entry.ok()?.path()).ok());
    for input in kept.chain(good.iter().cloned()) {
        attempt(target, input)?;
        tried += 1;
    }
    let mut damage = Damage::new(seed);
    for _ in 0..inputs_max {
        if until.is_some_and(|until| Instant::now() > until) {
            break;
        }
        attempt(target, damage.apply(&good))?;
        tried += 1;
    }
    Ok(tried)
}

fn attempt(target: &Target, input: Vec<u8>) -> Result<(), Found> {
    let began = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
    let problem = match outcome {
        Ok(Ok(())) if began.elapsed() < PATIENCE => return Ok(()),
        Ok(Ok(())) => format!("took {:?}", began.elapsed()),
        Ok(Err(problem)) => problem,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            format!("panic: {}", text.unwrap_or("without words"))
        }
    };
    Err(Found {
        target: target.name,
        problem,
        input,
    })
}
