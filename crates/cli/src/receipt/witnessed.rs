//! Cosignatures on a checkpoint: which witnesses a reader trusts, and how many of them must have signed.

use receipts::PublicKey;
use receipts::note::{KeyUse, Note, NoteKey};
use serde_json::json;

use super::report::Findings;
use crate::exit::{OrHint, Problem};

/// The witnesses that a reader trusts.
#[derive(Debug, Default)]
pub(crate) struct Witnesses {
    keys: Vec<NoteKey>,
    quorum: usize,
}

impl Witnesses {
    /// Reads verifier keys; without a quorum all of them must have signed.
    pub(crate) fn read(vkeys: &[String], quorum: Option<usize>) -> anyhow::Result<Self> {
        let hint = "a witness's key for cosignature/v1 has the form `name+id+key`";
        let mut keys: Vec<NoteKey> = Vec::new();
        for vkey in vkeys {
            let key = NoteKey::parse(vkey).or_hint(format_args!("`{vkey}`"), hint)?;
            if key.key_use() != KeyUse::Cosignature {
                return Err(
                    Problem::new(format!("`{vkey}` is not the key of a witness"), hint).into(),
                );
            }
            // One key under two names is one witness.
            if !keys.iter().any(|known| known.public() == key.public()) {
                keys.push(key);
            }
        }
        let quorum = quorum.unwrap_or(keys.len());
        if quorum > keys.len() || (quorum == 0 && !keys.is_empty()) {
            let message = format!("a quorum of {quorum} of {} witnesses", keys.len());
            return Err(Problem::new(
                message,
                "name at least as many witnesses with --witness as the quorum asks for",
            )
            .into());
        }
        Ok(Self { keys, quorum })
    }

    /// Tells whether any were named.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Counts the witnesses whose cosignature on a checkpoint holds. Returns whether enough of them saw it while the key
    /// that signed it was in use.
    pub(crate) fn check(&self, note: &Note, signer: &PublicKey, findings: &mut Findings) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut in_time = 0;
        let signed = self.keys.iter().filter_map(|key| {
            let time = note.verify(key).ok().flatten()?;
            in_time += usize::from(signer.was_in_use_at(time));
            Some(json!({"name": key.name(), "time": time}))
        });
        let signed: Vec<_> = signed.collect();
        let count = signed.len();
        findings.set("witnesses", json!(signed));
        if count >= self.quorum {
            findings.pass(format!("witnesses: {count} of {}", self.keys.len()));
            return in_time >= self.quorum;
        }
        let expected = Some(format!(
            "cosignatures of {} of these witnesses",
            self.quorum
        ));
        let found = Some(format!("{count}"));
        findings.fail("witnesses", "witness_quorum", expected, found);
        false
    }
}
