//! What a run began with, as far as verdicts depend on it.

use std::collections::BTreeMap;

use canon::{Digest, Map, Value};
use contracts::backtest::{RecordedRequest, Start as Begun};
use contracts::{PolicyAnswer, ToolChoice};
use domain::{GOVERNED, GovernedStart, RulesVersion, Timestamp};
use serde::Deserialize as _;

use super::super::Source;
use crate::workflow::{governed, recorded_contracts};

/// What a run began with.
#[derive(Debug)]
pub struct RunStart {
    /// Labels, carried slots, its place in a workflow.
    pub start: Begun,
    /// The digest of the contracts that it ran under; none without contracts.
    pub contracts: Option<Digest>,
    /// The options of a governed session, under their published names.
    pub options: Option<Map<String, Value>>,
    /// Who called, where the record says so: an agent's own identity.
    pub principal: Option<contracts::Value>,
    /// Which rules a governed session was judged by; none for an agent.
    pub rules_version: Option<RulesVersion>,
    /// What the policies of its contracts said about who called.
    pub policies: BTreeMap<String, PolicyAnswer>,
}

impl RunStart {
    /// Reads it from a record.
    ///
    /// # Errors
    /// What the record should hold and does not.
    pub fn read(source: &Source, at: Timestamp) -> Result<Self, String> {
        let (start, _) = source.start(|index| source.payload(index));
        let mut beginning = Self {
            start: Begun::from(at),
            contracts: None,
            options: None,
            principal: None,
            rules_version: None,
            policies: BTreeMap::new(),
        };
        if source.workflow().0 == GOVERNED {
            let session = GovernedStart::deserialize(&start.input);
            beginning.session(session.map_err(|_| "what the session began with".to_owned())?)?;
            return Ok(beginning);
        }
        let Some(persona) = &start.persona else {
            return Ok(beginning);
        };
        let text = |name: &str| {
            persona
                .get("model")
                .and_then(|model| model.get(name)?.as_str())
        };
        beginning.start.sent = text("provider")
            .zip(text("model"))
            .map(|(provider, model)| RecordedRequest {
                provider: provider.to_owned(),
                model: model.to_owned(),
                tools: None,
                choice: ToolChoice::Auto,
                view: None,
            });
        if let Some((digest, principal)) = recorded_contracts(persona)? {
            beginning.contracts = Some(digest);
            beginning.principal = Some(principal);
        }
        Ok(beginning)
    }

    fn session(&mut self, session: GovernedStart) -> Result<(), String> {
        self.contracts = Some(session.sha256);
        self.rules_version = Some(session.rules_version);
        self.start.at = session.at;
        self.start.slots = session.slots.clone();
        let labels = session.options.get("labels").and_then(Value::as_array);
        let labels = labels.into_iter().flatten().filter_map(Value::as_str);
        self.start.labels = labels.map(str::to_owned).collect();
        if let Some(place) = &session.workflow {
            self.start.labels.extend(place.labels.iter().cloned());
            let seat = governed::seat_of(&session.session_id, place, session.rules_version);
            self.start.seat = Some(seat?);
        }
        self.policies = session
            .policies
            .into_iter()
            .map(|(name, verdict)| {
                let answer = PolicyAnswer {
                    allowed: verdict.allowed,
                    rule: verdict.rule,
                };
                (name, answer)
            })
            .collect();
        self.options = Some(session.options);
        Ok(())
    }
}
