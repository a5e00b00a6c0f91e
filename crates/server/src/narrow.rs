//! What a list is narrowed to by its query: order, state, persona, workflow, times, members of the metadata.

use canon::Value;
use domain::{Document, State, Timestamp};
use engine::{Look, Order, View};

use crate::app::App;
use crate::call::Call;
use crate::failure::Failure;
use crate::render;

/// The prefix of parameters that name a member of the metadata.
const METADATA: &str = "metadata.";

/// What is asked of each resource of a list.
#[derive(Debug, Default)]
pub(crate) struct Narrow {
    pub(crate) order: Order,
    statuses: Vec<String>,
    persona_id: Option<String>,
    workflow: Option<String>,
    metadata: Vec<(String, String)>,
    after: Option<Timestamp>,
    before: Option<Timestamp>,
}

impl Narrow {
    /// Reads it from a query. Which parameters a list takes its description says; others were refused before.
    pub(crate) fn read(call: &Call, statuses: &[&str]) -> Result<Self, Failure> {
        let order = match call.query("order")? {
            None | Some("asc") => Order::OldestFirst,
            Some("desc") => Order::NewestFirst,
            Some(_) => return Err(Failure::invalid("order", "`order` must be `asc` or `desc`")),
        };
        let mut wanted = Vec::new();
        for word in call
            .query("status")?
            .into_iter()
            .flat_map(|list| list.split(','))
        {
            if !statuses.contains(&word) {
                let message = format!("`status` must be one of {}", statuses.join(", "));
                return Err(Failure::invalid("status", message));
            }
            wanted.push(word.to_owned());
        }
        let time = |name: &'static str| match call.query(name)? {
            None => Ok(None),
            Some(text) => match Timestamp::parse(text) {
                Ok(time) => Ok(Some(time)),
                Err(_) => Err(Failure::invalid(
                    name,
                    format!("`{name}` must be a time such as 2026-04-25T12:00:00Z"),
                )),
            },
        };
        Ok(Self {
            order,
            statuses: wanted,
            persona_id: call.query("persona_id")?.map(str::to_owned),
            workflow: call.query("workflow")?.map(str::to_owned),
            metadata: call.metadata_filters(METADATA)?,
            after: time("created_after")?,
            before: time("created_before")?,
        })
    }

    /// True when nothing is asked: the list as it always was.
    pub(crate) fn is_plain(&self) -> bool {
        self.order == Order::OldestFirst
            && self.statuses.is_empty()
            && self.persona_id.is_none()
            && self.workflow.is_none()
            && self.metadata.is_empty()
            && self.after.is_none()
            && self.before.is_none()
    }

    /// True when only open ones can be meant, of which there is an index.
    pub(crate) fn is_open_only(&self, open: &[&str]) -> bool {
        !self.statuses.is_empty()
            && self
                .statuses
                .iter()
                .all(|word| open.contains(&word.as_str()))
    }

    /// Judges what a document alone says.
    pub(crate) fn look(&self, document: &Document) -> Look {
        let created = document.created_at;
        let is_early = self.after.is_some_and(|after| created < after);
        let is_late = self.before.is_some_and(|before| created >= before);
        match (self.order, is_early, is_late) {
            (Order::NewestFirst, true, _) | (Order::OldestFirst, _, true) => return Look::Stop,
            (Order::OldestFirst, true, _) | (Order::NewestFirst, _, true) => return Look::Skip,
            (_, false, false) => {}
        }
        let State::Task(task) = &document.state else {
            return Look::Keep;
        };
        let wrong = |wanted: &Option<String>, found: Option<&str>| {
            wanted
                .as_deref()
                .is_some_and(|wanted| Some(wanted) != found)
        };
        let persona = task.persona.as_ref().map(|persona| persona.id.as_str());
        let is_other =
            wrong(&self.persona_id, persona) || wrong(&self.workflow, Some(&task.workflow));
        match is_other {
            true => Look::Skip,
            false => Look::Keep,
        }
    }

    /// Judges what a reader sees.
    pub(crate) fn keeps(&self, app: &App, view: &View) -> bool {
        if self.statuses.is_empty() && self.metadata.is_empty() && self.persona_id.is_none() {
            return true;
        }
        let shown = render::view(app, view);
        let text = |name: &str| shown.get(name).and_then(Value::as_str);
        let has_status = self.statuses.is_empty()
            || text("status")
                .or(text("state"))
                .is_some_and(|status| self.statuses.iter().any(|word| word == status));
        let has_persona = matches!(view.document.state, State::Task(_))
            || self.persona_id.is_none()
            || text("persona_id") == self.persona_id.as_deref();
        let has_metadata = self.metadata.iter().all(|(key, wanted)| {
            match shown.get("metadata").and_then(|metadata| metadata.get(key)) {
                Some(Value::String(text)) => text == wanted,
                Some(Value::Null) | None => false,
                Some(other) => {
                    serde_json::from_str(wanted).is_ok_and(|wanted: Value| wanted == *other)
                }
            }
        });
        has_status && has_persona && has_metadata
    }
}
