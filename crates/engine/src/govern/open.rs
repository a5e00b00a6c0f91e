//! Beginning a governed session: its contracts, its Session and its Task.

use std::sync::Arc;

use canon::{Digest, Map, Value, jcs, sha256};
use domain::{
    Command, CreateSession, Document, GOVERNED, GovernedFiles, GovernedOperation, GovernedStart,
    NewGoverned, NewPlace, OpenGoverned, Order, Problem, Refusal, ResourceKind, RulesVersion,
    SessionId, State, SubmitTask, TaskId, TaskInput, WorkspaceId,
};
use runs::workflow::{self, governed::Contracts};
use serde_json::json;
use tokio::sync::OwnedMutexGuard;

use super::fold::GovernedFold;
use super::input::STALE_TRIES;
use super::{intent, no_session};
use crate::caller::Caller;
use crate::dispatch::Idempotency;
use crate::engine::Engine;
use crate::refused::Refused;
use crate::turn::{ClaimRequest, CommandOutcome, CommitContents, Lease};

/// What a Task of a governed program runs, and the member of its metadata that says how its program calls it.
pub(super) struct GovernedTask<'a> {
    pub(super) workflow: &'static str,
    pub(super) named: (&'static str, &'a str),
}

impl Engine {
    /// Begins a session, or goes on with the one that has its id.
    pub(super) async fn open_governed(
        &self,
        caller: &Caller,
        new: NewGoverned,
        idempotency: Option<Idempotency>,
    ) -> Result<(Value, bool), Refused> {
        let wanted = new.workspace_id.clone();
        let (workspace, claim, done) = self.begins_in(caller, wanted, &idempotency).await?;
        if let Some(document) = done {
            return self.opened(&document).await.map(|shown| (shown, false));
        }
        self.shared.demands().check(&new)?;
        let own = match &new.session_id {
            Some(id) => id.clone(),
            None => format!("gs_{}", self.shared.ids.body()),
        };
        let task_id = TaskId::governed(&workspace, &own);
        let files = match self.files_of(&new) {
            Ok(files) => files,
            // A session that is there has its contracts, whether or not they are configured by now.
            Err(problem) => {
                let begun = self.begun_under(&task_id, new.compiled_digest).await?;
                begun.ok_or(problem)?
            }
        };
        let mut compiled = self.compiled(&caller.actor, &files).await;
        // A session that is there goes on under contracts that no new one may begin under.
        if compiled.is_err() && self.shared_document(task_id.as_str()).await?.is_some() {
            compiled = self.compiled_recorded(&caller.actor, &files).await;
        }
        if !new.unknown_members.is_empty() {
            return Err(unknown_members(&new.unknown_members, compiled.err()).into());
        }
        let contracts = compiled?;
        if new
            .compiled_digest
            .is_some_and(|given| given != contracts.digest())
        {
            let message = "the contracts do not compile to the digest that was given";
            let problem = Problem::new(409, "digest_mismatch", message);
            return Err(problem.with("compiled_digest", contracts.digest()).into());
        }
        let demands = self.shared.demands();
        demands.leave_contracts(contracts.replaced_by(&new.options))?;
        let place = match &new.workflow {
            None => None,
            Some(asked) => Some(self.workflow_asked(caller, &workspace, asked).await?),
        };
        let of = place.as_ref().map(|place| place.0.as_str());
        let mut options = new.options.clone();
        options.insert("sessionId".to_owned(), own.clone().into());
        // Before an id is held, so that whoever waits for their turn keeps nobody else from theirs.
        let admitted = match self.shared_document(task_id.as_str()).await? {
            Some(_) => None,
            None => {
                let judged = contracts.clone();
                let (options, principal) = (options.clone(), new.principal.clone());
                let admitted = self.run_judgement(&caller.actor, move || {
                    judged.admit(&options, principal.as_ref())
                });
                Some(admitted.await?)
            }
        };
        let _naming = self.shared.governed.naming(&task_id).await;
        if let Some(document) = self.shared_document(task_id.as_str()).await? {
            return self.resumed(caller, &document, &new, &contracts, of).await;
        }
        self.must_be_free(&workspace, &own, of).await?;
        let policies = match admitted {
            Some(admitted) => admitted?,
            None => contracts.admit(&options, new.principal.as_ref())?,
        };
        self.shared.work.may_open(&workspace, &caller.actor)?;
        self.may_store(Some(&workspace), 1).await?;
        let mut start = GovernedStart {
            session_id: own.clone(),
            at: self.shared.clock.now(),
            sha256: contracts.digest(),
            contracts: files,
            options,
            policies,
            slots: std::collections::BTreeMap::new(),
            workflow: None,
            rules_version: RulesVersion::Removals,
        };
        let key = idempotency.map(|given| given.key);
        for _ in 0..STALE_TRIES {
            let mut joined = None;
            let mut parent = None;
            if let Some((_, document)) = &place {
                let asked = new.workflow.as_ref();
                // Held until the child has begun: it has every label that its parent has then.
                parent = self.hold_parent(&workspace, document, asked).await?;
                let joining = self.join_workflow(caller, document, &own, asked, start.at);
                let (held, told, mut joining) = joining.await?;
                let named = joining.session_contract.as_str();
                if let Err(problem) = self.has_role_contract(named, &start.contracts, start.sha256)
                {
                    self.unlock_workflow(held, &CommitContents::default(), false);
                    return Err(problem.into());
                }
                let labels = &mut joining.place.labels;
                labels.extend(parent.iter().flat_map(|(_, labels)| labels.iter().cloned()));
                labels.sort_unstable();
                labels.dedup();
                start.slots = joining.slots;
                start.workflow = Some(joining.place);
                joined = Some((held, told));
            }
            let session_id = SessionId::governed(&workspace, &own);
            let begins = GovernedTask {
                workflow: GOVERNED,
                named: ("replay_session_id", &own),
            };
            let mut order =
                self.beginning(&workspace, session_id, task_id.clone(), begins, &start)?;
            let held = joined.map(|(held, told)| {
                order.workflow = told;
                held
            });
            let command = Command {
                actor: caller.actor.clone(),
                idempotency_key: key.clone(),
                order: Order::OpenGoverned(Box::new(order)),
            };
            match self.order(command, claim, Lease::None).await {
                Ok(done) => {
                    if let Some(held) = held {
                        self.unlock_workflow(held, &done.written, done.changed);
                    }
                    // Of equal requests at the same time, all are answered with what the first one began.
                    let document = self.answered_with(&done).await?;
                    let shown = self.opened(&document).await?;
                    return Ok((shown, done.changed));
                }
                Err(Refused::Domain(Refusal::Stale)) => {
                    // Somebody else began it at the same time, or its workflow has gone on.
                    drop((held, parent));
                    if let Some(document) = self.shared_document(task_id.as_str()).await? {
                        return self.resumed(caller, &document, &new, &contracts, of).await;
                    }
                }
                Err(other) => return Err(other),
            }
        }
        Err(Refused::Busy { what: "session" })
    }

    /// Holds the session that made the offer which a new session takes, and returns its labels. Whoever cannot be read hands over
    /// nothing: its labels would be lost.
    async fn hold_parent(
        &self,
        workspace: &WorkspaceId,
        workflow: &Document,
        asked: Option<&NewPlace>,
    ) -> Result<Option<(OwnedMutexGuard<Option<GovernedFold>>, Vec<String>)>, Refused> {
        let Some(handoff) = asked.and_then(|asked| asked.handoff_id.as_deref()) else {
            return Ok(None);
        };
        let now = self.shared.clock.now();
        let offered_by = self
            .read_folded(workflow, |folded| {
                folded.workflow().map(|of| of.offered_by(handoff, now))
            })
            .await??;
        // The workflow refuses an offer that nobody made.
        let Some(parent) = offered_by else {
            return Ok(None);
        };
        let id = TaskId::governed(workspace, &parent);
        let document = self.shared_document(id.as_str()).await?;
        let document = document.ok_or_else(no_session)?;
        let known = self.shared.governed.find(&document, now)?;
        let mut slot = self.hold_known(&known).await?;
        let document = self.shared_document(id.as_str()).await?;
        let document = document.ok_or_else(no_session)?;
        let State::Task(task) = &document.state else {
            return Err(no_session());
        };
        let folded = self.folded(slot.take(), &document, task).await?;
        let labels = folded.session()?.labels();
        *slot = Some(folded);
        Ok(Some((slot, labels)))
    }

    /// Returns the Workspace that something begins in, the claim of the request, and what the same request began before.
    pub(super) async fn begins_in(
        &self,
        caller: &Caller,
        wanted: Option<WorkspaceId>,
        idempotency: &Option<Idempotency>,
    ) -> Result<(WorkspaceId, Option<ClaimRequest>, Option<Arc<Document>>), Refused> {
        let workspace = wanted.unwrap_or_else(|| own_workspace(caller));
        let param = Some(workspace.as_str());
        self.must_see(caller, ResourceKind::Workspace, param, "workspace_id")
            .await?;
        let claim = idempotency
            .as_ref()
            .map(|given| self.claim(caller, Some(&workspace), given));
        let begun = match claim {
            Some(claim) => self.claimed(claim).await?,
            None => None,
        };
        let begun = match begun {
            Some(done) => Some(self.answered_with(&done).await?),
            None => None,
        };
        Ok((workspace, claim, begun))
    }

    /// Finds the Task that a request began, or an equal one before it.
    pub(super) async fn answered_with(
        &self,
        done: &CommandOutcome,
    ) -> Result<Arc<Document>, Refused> {
        let event = self.event_at(done.answer).await?.ok_or_else(no_session)?;
        let document = self.shared_document(&event.resource.id).await?;
        document.ok_or_else(no_session)
    }

    /// Puts together what begins the Task of a session or of a workflow, and the Session that it is in.
    pub(super) fn beginning(
        &self,
        workspace: &WorkspaceId,
        session_id: SessionId,
        task_id: TaskId,
        begins: GovernedTask<'_>,
        start: &impl serde::Serialize,
    ) -> Result<OpenGoverned, Refused> {
        let lost = |detail: &str| Refused::Internal {
            detail: format!("`{}` {detail}", begins.workflow),
        };
        let workflow = self.shared.workflows.find(begins.workflow);
        let workflow = workflow.ok_or_else(|| lost("is not among the workflows"))?;
        let Ok(Value::Object(input)) = serde_json::to_value(start) else {
            return Err(lost("cannot be written down"));
        };
        let (member, own) = begins.named;
        let metadata: Map<String, Value> = Map::from_iter([(member.to_owned(), own.into())]);
        Ok(OpenGoverned {
            session: CreateSession {
                id: session_id.clone(),
                workspace_id: workspace.clone(),
                mode_id: None,
                persona_id: None,
                model_policy: None,
                initial_messages: Vec::new(),
                metadata: metadata.clone(),
            },
            task: SubmitTask {
                id: task_id,
                session_id,
                workspace_id: Some(workspace.clone()),
                branch_id: None,
                parent_task_id: None,
                workflow: begins.workflow.to_owned(),
                persona: None,
                input: TaskInput::Object(input),
                metadata,
            },
            workflow_digest: workflow::digest(workflow.as_ref()),
            awaits: intent(1),
            workflow: None,
        })
    }

    /// Goes on with a session that exists, as it began and not otherwise: whatever is asked for must be in force.
    async fn resumed(
        &self,
        caller: &Caller,
        document: &Document,
        new: &NewGoverned,
        contracts: &Contracts,
        workflow: Option<&str>,
    ) -> Result<(Value, bool), Refused> {
        let (start, labels, works_in, over) = self
            .read_folded(document, |folded| {
                let session = folded.session()?;
                let works_in = session.workflow_id().map(str::to_owned);
                let start = folded.start().cloned().ok_or_else(no_session)?;
                Ok::<_, Refused>((start, session.labels(), works_in, session.closed_problem()))
            })
            .await??;
        if workflow.is_some_and(|asked| works_in.as_deref() != Some(asked)) {
            let message = "the session began in another workflow, or in none";
            return Err(Problem::new(409, "invalid_option", message).into());
        }
        if start.sha256 != contracts.digest() {
            let message = "the session began under other contracts";
            let problem = Problem::new(409, "invalid_option", message);
            return Err(problem.with("compiled_digest", start.sha256).into());
        }
        let differs = differs(new, &start, &labels, contracts)?;
        if !differs.is_empty() {
            let names = differs.join(", ");
            let message = format!("the session is open with something else: {names}");
            let problem = Problem::new(409, "invalid_option", message);
            return Err(problem.with("differs", differs).into());
        }
        if let Some(over) = over {
            return Err(over.into());
        }
        self.still_admitted(&start, contracts.replaced_by(&start.options))?;
        if matches!(&document.state, State::Task(task) if task.status.is_terminal()) {
            return Err(Problem::new(410, "session_lost", "the session has ended").into());
        }
        self.joins(caller, document).await?;
        self.opened(document).await.map(|shown| (shown, false))
    }

    /// Takes note of somebody who goes on with what another one began: whoever works in it does not decide in it. Whoever did is
    /// refused, and whoever is known to work in it is not written down again.
    pub(super) async fn joins(&self, caller: &Caller, document: &Document) -> Result<(), Refused> {
        let State::Task(task) = &document.state else {
            return Err(no_session());
        };
        if task.created_by == caller.actor || task.status.is_terminal() {
            return Ok(());
        }
        let key = caller.key_id.as_deref();
        let is_known = self
            .read_folded(document, |folded| {
                folded.parties().is_worker(&caller.actor, key)
            })
            .await?;
        if is_known {
            return Ok(());
        }
        let operation = GovernedOperation::Resume;
        self.take_input(caller, document, operation, None, None, None)
            .await
            .map(drop)
    }

    async fn opened(&self, document: &Document) -> Result<Value, Refused> {
        let State::Task(task) = &document.state else {
            return Err(no_session());
        };
        self.read_session(document, |session| {
            let (state_version, control_revision) = session.versions();
            let mut shown = json!({
                "session_id": session.id(),
                "state_version": state_version,
                "control_revision": control_revision,
                "compiled_digest": session.compiled(),
                "mode": session.mode(),
                "protocol": {
                    "session_id": task.session_id,
                    "task_id": &*document.id,
                    "workspace_id": task.workspace_id,
                },
            });
            let Value::Object(members) = &mut shown else {
                return shown;
            };
            if let Some(id) = session.workflow_id() {
                members.insert("workflow_id".to_owned(), id.into());
            }
            let unchecked = session.checked_by_executors();
            if !unchecked.is_empty() {
                let message = "`execution_constraints` are not checked here: what an executor is given is seen only where it runs";
                let warning = json!({"code": "execution_constraints_elsewhere", "message": message, "tools": unchecked});
                members.insert("warnings".to_owned(), json!([warning]));
            }
            shown
        })
        .await
    }

    /// Finds the contracts of a session: those it brings, or those of the server that have the digest it names.
    fn files_of(&self, new: &NewGoverned) -> Result<GovernedFiles, Problem> {
        if let Some(files) = &new.contracts {
            return Ok(files.clone());
        }
        let Some(digest) = new.compiled_digest else {
            if new.options.get("mode").and_then(Value::as_str) == Some("log-only") {
                return Ok(GovernedFiles {
                    files: Vec::new(),
                    session: None,
                });
            }
            let message = "a session needs contracts: send them, or the digest of a configured set";
            return Err(Problem::new(422, "no_contracts", message));
        };
        match self.shared.contracts_of(digest) {
            Some(texts) => Ok(GovernedFiles {
                files: texts.files.clone(),
                session: texts.session.clone(),
            }),
            None => {
                let message = "no configured set of contracts has this digest: send the files";
                Err(Problem::new(422, "unknown_contracts", message))
            }
        }
    }

    /// Finds the contracts of a session that is there, if they have the digest that is named.
    async fn begun_under(
        &self,
        task_id: &TaskId,
        digest: Option<Digest>,
    ) -> Result<Option<GovernedFiles>, Refused> {
        let Some(document) = self.shared_document(task_id.as_str()).await? else {
            return Ok(None);
        };
        self.read_folded(&document, |folded| {
            let start = folded.start();
            let same = start.filter(|start| digest.is_none_or(|digest| digest == start.sha256));
            same.map(|start| start.contracts.clone())
        })
        .await
    }

    /// Refuses a session whose session file is not the one that its role has in the workflow. Names are compared as far as both
    /// say something: a program may send `session.yaml` for `desk/session.yaml`. A configured set that has the name of the role's
    /// folder is what the role works under.
    fn has_role_contract(
        &self,
        named: &str,
        files: &GovernedFiles,
        digest: Digest,
    ) -> Result<(), Problem> {
        let wrong = |message: String| {
            let problem = Problem::new(422, "session_contract_differs", message);
            Err(problem.with("session_contract", named))
        };
        let Some(session) = &files.session else {
            return wrong(format!(
                "the role works under `{named}`, and the session has no session file"
            ));
        };
        if !workflow::governed::names_same_file(named, &session.file) {
            let file = &session.file;
            return wrong(format!(
                "the role works under `{named}`, and the session under `{file}`"
            ));
        }
        let folder = named.rsplit('/').nth(1);
        let sets = self.shared.contract_sets();
        let mut sets = sets.filter(|texts| Some(texts.name.as_str()) == folder);
        match sets.find(|texts| texts.sha256 != digest) {
            None => Ok(()),
            Some(set) => wrong(format!(
                "the role works under `{named}`, which is the configured set `{}`",
                set.name
            )),
        }
    }

    /// Compiles the contracts of a new session.
    pub(super) async fn compiled(
        &self,
        actor: &str,
        files: &GovernedFiles,
    ) -> Result<Contracts, Refused> {
        let digest = sha256(&jcs(&json!(files)));
        let known = self.shared.governed.compiled(digest);
        if let Some(known) = known.filter(Contracts::are_within_bounds) {
            return Ok(known);
        }
        let own = files.clone();
        let contracts = self
            .run_judgement(actor, move || Contracts::compile(&own))
            .await??;
        self.shared
            .governed
            .keep_compiled(digest, contracts.clone());
        Ok(contracts)
    }
}

/// Names what is asked for and not in force. What is left out is not compared; labels may be some of those in force.
fn differs(
    new: &NewGoverned,
    start: &GovernedStart,
    labels: &[String],
    contracts: &Contracts,
) -> Result<Vec<&'static str>, Problem> {
    const MEMBERS: [(&str, &str); 7] = [
        ("agent", "agent"),
        ("mode", "mode"),
        ("gate", "gate"),
        ("unmatchedPolicy", "unmatched_policy"),
        ("captureLevel", "capture_level"),
        ("providerConstraints", "provider_constraints"),
        ("pricing", "pricing"),
    ];
    let mut found = Vec::new();
    for (option, member) in MEMBERS {
        let Some(asked) = new.options.get(option) else {
            continue;
        };
        let own = match (start.options.get(option), option) {
            (Some(own), _) => Some(own.clone()),
            // What a session has that was opened without a word.
            (None, "agent") => contracts.agent().map(Value::from),
            (None, "mode") => Some("enforce".into()),
            (None, "gate") => Some("reject_all".into()),
            (None, "unmatchedPolicy") => Some("block".into()),
            (None, "captureLevel") => Some("redacted".into()),
            (None, _) => None,
        };
        if own.is_none_or(|own| jcs(&own) != jcs(asked)) {
            found.push(member);
        }
    }
    let asked = new.options.get("labels").and_then(Value::as_array);
    let holds = |label: &Value| labels.iter().any(|own| label.as_str() == Some(own));
    if !asked.into_iter().flatten().all(holds) {
        found.push("labels");
    }
    // Who calls is not recorded: what policies say about it is.
    if new.principal.is_some()
        && contracts.admit(&start.options, new.principal.as_ref())? != start.policies
    {
        found.push("principal");
    }
    Ok(found)
}

/// Refuses members beside the files, together with everything else that is wrong with these.
fn unknown_members(names: &[String], other: Option<Refused>) -> Problem {
    let mut findings: Vec<Value> = names
        .iter()
        .map(|name| format!("unknown member `{name}`: nothing is ignored silently").into())
        .collect();
    if let Some(Refused::Governed(problem)) = other
        && let Some(Value::Array(more)) = problem.members.get("findings")
    {
        findings.extend(more.iter().cloned());
    }
    let message = "the contracts do not compile";
    Problem::new(422, "compilation_failed", message).with("findings", findings)
}

/// The Workspace of a request that names none: the caller's only one, else the local one.
fn own_workspace(caller: &Caller) -> WorkspaceId {
    match caller.workspaces() {
        Some([only]) => only.clone(),
        Some(_) | None => WorkspaceId::local(),
    }
}
