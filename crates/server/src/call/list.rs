//! Lists: what their query asks for (filters, order, state, persona, workflow, times, members of the metadata), and their pages.

use canon::Value;
use domain::{Document, Position, ResourceKind, State, Timestamp};
use engine::{Filters, ListOrder, ListRequest, Page, Selection, View};
use serde_json::json;
use wire::Cursor;
use wire::openapi::Operation;
use wire::render::resource;

use super::{Call, ok};
use crate::failure::{Failure, Reply};

/// How many items a list has at most, and when nothing is said.
const LIMIT_MAX: usize = 200;
const LIMIT_DEFAULT: usize = 50;

/// Refuses a filter that a list does not have: what is narrowed by nothing would look like an answer.
pub(super) fn known_filters(
    operation: &Operation,
    query: &[(String, String)],
) -> Result<(), Failure> {
    // No id is longer: it names nothing, whatever a list makes of ids that it does not know.
    let is_id = |name: &str| name.ends_with("_id") || name == "in_workspace";
    let is_long = |value: &str| value.len() > domain::ID_BYTES_MAX;
    let long = query
        .iter()
        .find(|(name, value)| is_id(name) && is_long(value));
    if let Some((name, _)) = long {
        let most = domain::ID_BYTES_MAX;
        let message = format!("`{name}` is longer than {most} bytes");
        return Err(Failure::invalid(name, message));
    }
    if !operation.is_list() {
        return Ok(());
    }
    let known = |name: &str| match name {
        "limit" | "cursor" => true,
        "metadata" => false,
        name => {
            operation.query.contains(&name)
                || (operation.query.contains(&"metadata") && name.starts_with("metadata."))
        }
    };
    match query.iter().find(|(name, _)| !known(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let message = format!("this list has no filter `{name}`");
            Err(Failure::invalid(name, message).with("known", json!(operation.query)))
        }
    }
}

impl Call {
    fn owned_query(&self, name: &str) -> Result<Option<String>, Failure> {
        Ok(self.query(name)?.map(str::to_owned))
    }

    /// Returns the filters of the query that this list takes.
    pub(crate) fn filters(&self, taken: &[&str]) -> Result<Filters, Failure> {
        let filter = |name: &str| match taken.contains(&name) {
            true => self.owned_query(name),
            false => Ok(None),
        };
        Ok(Filters {
            workspace_id: filter("workspace_id")?,
            session_id: filter("session_id")?,
            task_id: filter("task_id")?,
        })
    }

    /// Reads how many items are wanted (AP-ENV-07).
    pub(crate) fn limit(&self) -> Result<usize, Failure> {
        let Some(text) = self.query("limit")? else {
            return Ok(LIMIT_DEFAULT);
        };
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(limit) if digits && (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            _ => Err(Failure::invalid(
                "limit",
                format!("`limit` must be an integer from 1 to {LIMIT_MAX}"),
            )),
        }
    }

    /// Reads where a list goes on.
    pub(crate) fn cursor(&self) -> Result<Cursor, Failure> {
        match self.query("cursor")? {
            None => Ok(Cursor::default()),
            Some(text) => Ok(Cursor::parse(text)?),
        }
    }

    /// Reads an event cursor under any of its names; two that differ are refused (C-13).
    pub(crate) fn event_cursor(&self) -> Result<Option<String>, Failure> {
        let mut cursor: Option<&str> = None;
        for name in ["after_event_id", "cursor", "after"] {
            let Some(given) = self.query(name)? else {
                continue;
            };
            if cursor.is_some_and(|known| known != given) {
                let message = "`after_event_id`, `cursor` and `after` name different events";
                return Err(Failure::invalid("after_event_id", message));
            }
            cursor = Some(given);
        }
        Ok(cursor.map(str::to_owned))
    }

    /// Returns the filters of the query that name members of the metadata.
    fn metadata_filters(&self) -> Result<Vec<(String, String)>, Failure> {
        let mut found: Vec<(String, String)> = Vec::new();
        for (name, value) in &self.query {
            let Some(key) = name.strip_prefix(METADATA) else {
                continue;
            };
            if key.is_empty() || found.iter().any(|(known, _)| known == key) {
                let message = format!("`{name}` must name a member, and once");
                return Err(Failure::invalid(name, message));
            }
            found.push((key.to_owned(), value.clone()));
        }
        Ok(found)
    }

    /// Shows a page of resources in the order and of the state that the query asks for. `open` are the states of which
    /// there is an index.
    pub(crate) async fn narrowed_page(
        &self,
        kind: ResourceKind,
        filters: Filters,
        statuses: &[&str],
        open: &[&str],
    ) -> Reply {
        let narrow = Narrow::read(self, statuses)?;
        if narrow.is_plain() {
            return self.page(kind, filters).await;
        }
        let request = ListRequest {
            kind,
            filters,
            after: Position(self.cursor()?.0),
            limit: self.limit()?,
        };
        let engine = &self.app.engine;
        let page = engine
            .list_where(
                &self.caller,
                request,
                narrow.order,
                narrow.is_open_only(open),
                |document| narrow.look(document),
                |view| narrow.keeps(view),
            )
            .await?;
        self::page(&page)
    }

    /// Shows a page of resources.
    pub(crate) async fn page(&self, kind: ResourceKind, filters: Filters) -> Reply {
        let request = ListRequest {
            kind,
            filters,
            after: Position(self.cursor()?.0),
            limit: self.limit()?,
        };
        let page = self.app.engine.list(&self.caller, request).await?;
        self::page(&page)
    }

    /// Shows a page of a list that is in memory.
    pub(crate) fn page_of(&self, all: Vec<Value>) -> Reply {
        let skip = usize::try_from(self.cursor()?.0).unwrap_or(usize::MAX);
        let limit = self.limit()?;
        let more = all.len() > skip.saturating_add(limit);
        let next = more.then(|| Cursor((skip + limit) as u64));
        let data = all.into_iter().skip(skip).take(limit).collect();
        Ok(ok(&wire::list(data, next)))
    }
}

/// Shows a page of resources.
pub(crate) fn page(page: &Page) -> Reply {
    let shown = page.views.iter().map(|view| resource(view).value());
    let next = page.next.map(|position| Cursor(position.0));
    Ok(ok(&wire::list(shown.collect(), next)))
}

/// The prefix of parameters that name a member of the metadata.
const METADATA: &str = "metadata.";

/// What is asked of each resource of a list.
#[derive(Debug, Default)]
struct Narrow {
    order: ListOrder,
    statuses: Vec<String>,
    persona_id: Option<String>,
    workflow: Option<String>,
    metadata: Vec<(String, String)>,
    after: Option<Timestamp>,
    before: Option<Timestamp>,
}

impl Narrow {
    /// Reads it from a query. Which parameters a list takes its description says; others were refused before.
    fn read(call: &Call, statuses: &[&str]) -> Result<Self, Failure> {
        let order = match call.query("order")? {
            None | Some("asc") => ListOrder::OldestFirst,
            Some("desc") => ListOrder::NewestFirst,
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
            metadata: call.metadata_filters()?,
            after: time("created_after")?,
            before: time("created_before")?,
        })
    }

    /// True when nothing is asked: the list as it always was.
    fn is_plain(&self) -> bool {
        self.order == ListOrder::OldestFirst
            && self.statuses.is_empty()
            && self.persona_id.is_none()
            && self.workflow.is_none()
            && self.metadata.is_empty()
            && self.after.is_none()
            && self.before.is_none()
    }

    /// True when only open ones can be meant, of which there is an index.
    fn is_open_only(&self, open: &[&str]) -> bool {
        !self.statuses.is_empty()
            && self
                .statuses
                .iter()
                .all(|word| open.contains(&word.as_str()))
    }

    /// Judges what a document alone says.
    fn look(&self, document: &Document) -> Selection {
        let created = document.created_at;
        let is_early = self.after.is_some_and(|after| created < after);
        let is_late = self.before.is_some_and(|before| created >= before);
        match (self.order, is_early, is_late) {
            (ListOrder::NewestFirst, true, _) | (ListOrder::OldestFirst, _, true) => {
                return Selection::Stop;
            }
            (ListOrder::OldestFirst, true, _) | (ListOrder::NewestFirst, _, true) => {
                return Selection::Skip;
            }
            (_, false, false) => {}
        }
        let State::Task(task) = &document.state else {
            return Selection::Keep;
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
            true => Selection::Skip,
            false => Selection::Keep,
        }
    }

    /// Judges what a reader sees.
    fn keeps(&self, view: &View) -> bool {
        if self.statuses.is_empty() && self.metadata.is_empty() && self.persona_id.is_none() {
            return true;
        }
        let shown = resource(view).value();
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
