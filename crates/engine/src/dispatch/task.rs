//! Orders about new Tasks, and about the personas that they run under.
//!
//! A Persona belongs to no Workspace. Every caller may run Tasks under it; only callers without bounds define and
//! change it.

use canon::{Map, Value};
use domain::{
    BranchId, ContractTexts, CreatePersona, Document, InputSpec, NewTask, Order, PersonaChange,
    PersonaId, PersonaSnapshot, PersonaSpec, Position, Refusal, ResourceKind, State, SubmitTask,
    TaskId, TaskInput, UpdatePersona, payload,
};
use serde::Deserialize as _;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{ListQuery, Scope};
use crate::refused::Refused;
use runs::workflow::{Offer, excluded_model};

/// A Persona with what its event says.
pub(super) struct LoadedPersona {
    pub(super) id: PersonaId,
    pub(super) spec: PersonaSpec,
    metadata: Map<String, Value>,
    document_version: u64,
}

impl Engine {
    pub(super) async fn build_task(&self, caller: &Caller, new: NewTask) -> Result<Order, Refused> {
        let (_, session) = self.visible_session(caller, &new.session_id).await?;
        self.shared
            .work
            .may_open(&session.workspace_id, &caller.actor)?;
        // Its own, or else the Session's.
        let of_session = session.persona_id.as_ref().map(PersonaId::as_str);
        let persona = self
            .persona_named(caller, new.persona_id.as_deref().or(of_session))
            .await?;
        let branch = new.branch_id.as_ref().map(BranchId::as_str);
        // Readers of this Workspace must not learn of another one's.
        let place = (caller, Some(&session.workspace_id));
        self.must_be_in(place, ResourceKind::Branch, branch, "branch_id")
            .await?;
        let parent = new.parent_task_id.as_ref().map(TaskId::as_str);
        self.must_be_in(place, ResourceKind::Task, parent, "parent_task_id")
            .await?;
        if let InputSpec::Message(message) = &new.input {
            self.references_must_exist(place, message).await?;
        }
        let entry = persona.as_ref().map(|known| &*known.spec.entry_workflow);
        let workflow = match new.metadata.get("workflow") {
            // A persona says how its agent runs, approvals included: no caller gets around it.
            Some(asked) if entry.is_some_and(|entry| asked.as_str() != Some(entry)) => {
                return Err(Refused::Domain(Refusal::Policy {
                    reason: "persona_workflow",
                    message: format!(
                        "tasks of this persona run `{}`: leave out `metadata.workflow`",
                        entry.unwrap_or_default()
                    ),
                }));
            }
            None => match &persona {
                Some(persona) => self.entry_workflow(persona)?,
                None => "agent",
            },
            Some(asked) => {
                let name = asked.as_str().unwrap_or_default();
                self.offered(name, "metadata.workflow")?;
                name
            }
        };
        let workflow = workflow.to_owned();
        Ok(Order::SubmitTask(SubmitTask {
            id: TaskId::from_body(&self.shared.ids.body()),
            session_id: new.session_id,
            workspace_id: new.workspace_id,
            branch_id: new.branch_id,
            parent_task_id: new.parent_task_id,
            workflow,
            persona: persona.map(|known| self.snapshot(known)).transpose()?,
            input: match new.input {
                InputSpec::Message(message) => TaskInput::Message(self.new_message(message)),
                InputSpec::Object(map) => TaskInput::Object(map),
            },
            metadata: new.metadata,
        }))
    }

    pub(super) fn build_persona(&self, order: CreatePersona) -> Result<Order, Refused> {
        self.offered(&order.persona.entry_workflow, "entry_workflow")?;
        if let Some(name) = &order.persona.contracts {
            self.contracts_named(name, "contracts")?;
            let workflow = &order.persona.entry_workflow;
            if workflow != "agent" {
                return Err(Refused::Domain(Refusal::Policy {
                    reason: "contracts_without_agent",
                    message: format!(
                        "contracts judge the tool calls of the workflow `agent`, and this persona runs `{workflow}`"
                    ),
                }));
            }
        }
        Ok(Order::CreatePersona(order))
    }

    /// Finds the contracts that a Persona names, which an earlier start of the server may have had and this one not.
    fn contracts_named(&self, name: &str, param: &'static str) -> Result<ContractTexts, Refused> {
        let found = self.shared.contracts(name).cloned();
        found.ok_or_else(|| {
            let known = self.shared.contract_names();
            let known = match known.is_empty() {
                true => "it has none".to_owned(),
                false => format!("it has {}", known.join(", ")),
            };
            Refused::Domain(Refusal::Invalid {
                param,
                message: format!("this server has no contracts named `{name}`: {known}"),
            })
        })
    }

    /// Returns what a Task of a Persona runs under.
    pub(super) fn snapshot(&self, persona: LoadedPersona) -> Result<PersonaSnapshot, Refused> {
        let named = persona.spec.contracts.as_deref();
        let contracts = named.map(|name| self.contracts_named(name, "persona_id"));
        let contracts = contracts.transpose()?;
        let model = &persona.spec.model;
        if let (Some(texts), Some(provider), Some(name)) =
            (&contracts, &model.provider, &model.model)
            && let Some(pattern) = excluded_model(texts, provider, name)
        {
            return Err(Refused::Domain(Refusal::Policy {
                reason: "provider_incompatible",
                message: format!("the contracts of the persona exclude its model: {pattern}"),
            }));
        }
        Ok(persona.spec.snapshot(persona.id, contracts))
    }

    pub(super) async fn build_persona_change(
        &self,
        caller: &Caller,
        id: &PersonaId,
        change: PersonaChange,
    ) -> Result<Order, Refused> {
        let document = self
            .visible(caller, ResourceKind::Persona, id.as_str())
            .await?;
        let mut known = self.known_persona(document).await?;
        known.spec.change(&change);
        let order = UpdatePersona {
            id: known.id,
            document_version: known.document_version,
            persona: known.spec,
            metadata: change.metadata.unwrap_or(known.metadata),
        };
        Ok(Order::UpdatePersona(order))
    }

    /// Finds the Persona that a request or a Session names (AP-PERS-07).
    pub(super) async fn persona_named(
        &self,
        caller: &Caller,
        id: Option<&str>,
    ) -> Result<Option<LoadedPersona>, Refused> {
        let Some(id) = id else { return Ok(None) };
        match self.visible(caller, ResourceKind::Persona, id).await {
            Ok(document) => self.known_persona(document).await.map(Some),
            Err(Refused::Domain(Refusal::NotFound { object, .. })) => {
                Err(Refused::Domain(Refusal::NotFound {
                    object,
                    param: Some("persona_id"),
                }))
            }
            Err(other) => Err(other),
        }
    }

    /// Returns the workflow of a Persona, which an earlier start of the server may have had and this one not.
    pub(super) fn entry_workflow<'a>(
        &self,
        persona: &'a LoadedPersona,
    ) -> Result<&'a str, Refused> {
        let name = persona.spec.entry_workflow.as_str();
        match self.shared.workflows.offer(name) {
            Offer::New => Ok(name),
            Offer::OnlyRecorded => Err(only_recorded(name)),
            Offer::Unknown => Err(Refused::Domain(Refusal::Invalid {
                param: "persona_id",
                message: format!("this server has no workflow `{name}`, which the persona runs"),
            })),
        }
    }

    /// Refuses a workflow that new Tasks do not get.
    pub(super) fn offered(&self, name: &str, param: &'static str) -> Result<(), Refused> {
        match self.shared.workflows.offer(name) {
            Offer::New => Ok(()),
            Offer::OnlyRecorded => Err(only_recorded(name)),
            Offer::Unknown => {
                let known = self.shared.workflows.iter();
                let known: Vec<&str> = known.map(|workflow| workflow.name()).collect();
                Err(Refused::Domain(Refusal::Invalid {
                    param,
                    message: format!(
                        "this server has no workflow `{name}`; it has {}",
                        known.join(", ")
                    ),
                }))
            }
        }
    }

    async fn known_persona(&self, document: Document) -> Result<LoadedPersona, Refused> {
        let broken = |problem: &str| Refused::Internal {
            detail: format!("persona `{}`: {problem}", document.id),
        };
        let State::Persona(state) = &document.state else {
            return Err(broken("the document is not a persona"));
        };
        let payload = self.payload(state.source).await?;
        let said = payload::Persona::of(&payload);
        let spec = said.persona().unwrap_or(&Value::Null);
        Ok(LoadedPersona {
            id: PersonaId::parse(&document.id).map_err(|error| broken(&error.to_string()))?,
            spec: PersonaSpec::deserialize(spec).map_err(|error| broken(&error.to_string()))?,
            metadata: said
                .metadata()
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default(),
            document_version: document.version,
        })
    }

    /// Returns the ids of the oldest Personas, as many as a card shows.
    ///
    /// # Errors
    /// The store failed.
    pub async fn persona_ids(&self, limit: usize) -> Result<Vec<String>, Refused> {
        let query = ListQuery {
            kind: ResourceKind::Persona,
            scope: Scope::All,
            open_only: false,
            after: Position::START,
            limit,
        };
        let documents = self.shared.store.list(query).await?;
        Ok(documents
            .into_iter()
            .map(|document| document.id.into())
            .collect())
    }
}

fn only_recorded(name: &str) -> Refused {
    Refused::Domain(Refusal::Policy {
        reason: "example_workflow",
        message: format!(
            "`{name}` is an example workflow, which this server does not offer (`reprise serve --examples`)"
        ),
    })
}
