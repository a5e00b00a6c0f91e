//! What a run asked, in words. The log holds digests of requests; the workflow says them again over the recorded
//! answers, and only what has the recorded digest counts.

use std::collections::BTreeMap;

use canon::{Digest, Value};
use domain::payload;

use super::{is_input_public, is_public};
use crate::replay::source::Source;
use crate::workflow::{Answers, EffectAnswer, EffectRequest, Machine, Registry, Step, Workflow};

/// Something that a run asked.
pub(in crate::replay) struct RequestOfRun {
    pub(in crate::replay) wanted: EffectRequest,
    /// True when nothing went into it that is not public.
    pub(in crate::replay) is_open: bool,
    /// False when its digest is not the recorded one. Nothing is known of what comes after it.
    pub(in crate::replay) matches: bool,
}

/// Returns what a run asked, by key, as far as its record says. What a record has only by its digest is taken from the
/// run beside it.
pub(in crate::replay) fn requests_of(
    source: &Source,
    beside: &Source,
    workflows: &Registry,
) -> BTreeMap<String, RequestOfRun> {
    let mut found = BTreeMap::new();
    let (name, version) = source.workflow();
    let workflow = workflows.recorded(name, version);
    let Some((mut machine, mut is_open)) =
        workflow.and_then(|workflow| begun(workflow.as_ref(), source, beside))
    else {
        return found;
    };
    let mut answers: Vec<EffectAnswer> = Vec::new();
    // Each step asks for something that the log holds: there are no more steps than events.
    for _ in 0..source.len() {
        let Step::Request { effects, .. } = machine.step(&answers) else {
            break;
        };
        let was_open = is_open;
        answers.clear();
        for wanted in effects {
            let Some(recorded) = recorded_digest(source, &wanted.key) else {
                return found;
            };
            if recorded != wanted.request_digest() {
                let asked = RequestOfRun {
                    is_open: was_open,
                    matches: false,
                    wanted,
                };
                found.insert(asked.wanted.key.clone(), asked);
                return found;
            }
            let answer = answer(source, beside, &wanted.key);
            is_open &= is_answer_public(source, &wanted.key);
            let asked = RequestOfRun {
                is_open: was_open,
                matches: true,
                wanted,
            };
            found.insert(asked.wanted.key.clone(), asked);
            match answer {
                Some(answer) => answers.push(answer),
                None => return found,
            }
        }
    }
    found
}

/// Returns the workflow where the run began, and whether that is public.
fn begun(
    workflow: &dyn Workflow,
    source: &Source,
    beside: &Source,
) -> Option<(Box<dyn Machine>, bool)> {
    let start = |run: &Source| run.start(|index| run.payload(index)).0;
    let is_open = is_input_public(source);
    let checkpoint = source.request().and_then(|spec| spec.checkpoint.as_deref());
    let Some(id) = checkpoint else {
        return Some((workflow.begin(&start(source)), is_open));
    };
    // Only the run that made it has its state, and what came before it.
    let (state, _) = checkpoint_states(beside, source, id)?;
    let past: Answers = beside.answers_before(beside.checkpoint(id)?).ok()?;
    let mut keys = past.keys();
    let is_open = is_open
        && is_input_public(beside)
        && keys.all(|key| is_answer_public(beside, key))
        && source
            .request()
            .and_then(|spec| spec.overrides.get(&format!("host:checkpoint:{id}")))
            .is_none_or(is_public);
    let machine = workflow.restore(&start(beside), &state, &past).ok()?;
    Some((machine, is_open))
}

/// Returns the state that a replay restored, and the one that its source had kept.
pub(super) fn checkpoint_states(
    source: &Source,
    replay: &Source,
    id: &str,
) -> Option<(Value, Value)> {
    let kept = source.checkpoint_state(source.checkpoint(id)?)?;
    let mut state = kept.clone();
    let overrides = &replay.request()?.overrides;
    if let Some(given) = overrides.get(&format!("host:checkpoint:{id}")) {
        let member = match given.target.as_deref() {
            None | Some("") => Some(&mut state),
            Some(pointer) => state.pointer_mut(pointer),
        };
        *member? = given.inline()?.clone();
    }
    Some((state, kept))
}

fn recorded_digest(source: &Source, key: &str) -> Option<Digest> {
    let event = source.event(source.places(key).requested?)?;
    payload::EffectRequested::of(&event.payload).request_sha256()
}

fn answer(source: &Source, beside: &Source, key: &str) -> Option<EffectAnswer> {
    let place = source.places(key).recorded?;
    if let Some(answer) = source.answer(place) {
        return Some(answer);
    }
    let said = payload::EffectRecorded::of(&source.event(place)?.payload);
    let other = beside.places(key).recorded;
    let stated = other.and_then(|place| beside.event(place));
    let stated =
        stated.and_then(|event| payload::EffectRecorded::of(&event.payload).value_sha256());
    if stated.is_some() && stated == said.value_sha256() {
        return beside.answer(other?);
    }
    // No workflow sees the value of a secret.
    (said.kind()? == "secret_value").then(|| EffectAnswer {
        ok: said.outcome() == Some("ok"),
        value: Value::Null,
        model: None,
    })
}

/// True when everybody who reads the log may read the answer.
pub(in crate::replay) fn is_answer_public(source: &Source, key: &str) -> bool {
    let recorded = source.places(key).recorded;
    let event = recorded.and_then(|place| source.event(place));
    let word = event.and_then(|event| payload::EffectRecorded::of(&event.payload).visibility());
    word.is_none_or(|word| word == "public")
}
