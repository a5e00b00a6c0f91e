//! What an earlier attempt at a replay left in the replay's own log, read in one pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::{Event, Kind, Position};

use super::super::run::Run;
use crate::refused::Refused;
use crate::view;
use runs::replay::{LiveResults, live};

/// What is done already.
#[derive(Debug, Default)]
pub(super) struct ReplayProgress {
    /// How many events of the computed run are in the log.
    pub(super) written: usize,
    /// What was performed live.
    pub(super) live: LiveResults,
    /// The effects that were meant to be performed and of which no result was told.
    pub(super) unknown: BTreeSet<String>,
}

impl Run<'_> {
    pub(super) async fn read_progress(&self) -> Result<ReplayProgress, Refused> {
        let mut progress = ReplayProgress::default();
        let mut after = Position::START;
        while let Some(events) = self.next_events(&mut after).await? {
            for (_, event) in events {
                self.add_progress(&mut progress, event).await?;
            }
        }
        Ok(progress)
    }

    async fn add_progress(
        &self,
        progress: &mut ReplayProgress,
        mut event: Event,
    ) -> Result<(), Refused> {
        let kind = event.kind().ok();
        // Pieces of live text belong to no computed run.
        progress.written += usize::from(event.replay.as_ref().is_some_and(|mark| {
            mark.original_event_id.is_some() || kind != Some(Kind::MessageDelta)
        }));
        let Some(key) = event.effect_key().map(str::to_owned) else {
            return Ok(());
        };
        if kind == Some(Kind::EffectRequested) {
            progress.unknown.insert(key);
        } else if kind == Some(Kind::EffectRecorded) {
            progress.unknown.remove(&key);
            if live::is_told_by(&event.payload) || live::is_answer(&event) {
                view::resolve_blobs(
                    &*self.engine.shared.store,
                    Arc::make_mut(&mut event.payload),
                )
                .await?;
                progress.live.insert(key, live::read(&event));
            }
        }
        Ok(())
    }
}
