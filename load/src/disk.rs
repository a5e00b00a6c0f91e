//! The peer of every commit: a block appended to a file and synced, on the same disk.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::samples::Samples;

const BLOCK: [u8; 4096] = [b'x'; 4096];

/// A file that grows.
#[derive(Debug)]
pub(crate) struct Disk {
    file: File,
}

impl Disk {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self { file })
    }

    /// Appends 4 KiB and waits until they are durable.
    pub(crate) fn append(&mut self) -> Result<()> {
        self.file.write_all(&BLOCK)?;
        self.file.sync_data()?;
        Ok(())
    }

    /// Returns how many appends fit into a second.
    pub(crate) fn appends_per_second(&mut self, length: Duration) -> Result<f64> {
        let mut samples = Samples::default();
        let began = Instant::now();
        while began.elapsed() < length {
            let start = Instant::now();
            self.append()?;
            samples.add(start.elapsed());
        }
        Ok(samples.len() as f64 / began.elapsed().as_secs_f64())
    }
}
