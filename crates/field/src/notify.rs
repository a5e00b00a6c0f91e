//! Notifications: which subscriptions an operation concerns, and when they are sent.
//!
//! Computed from entries that are durable and applied. Whoever did it is not notified of it: the answer said so.

use std::collections::BTreeMap;

use canon::Value;
use domain::Timestamp;
use serde_json::json;

use crate::config::Level;
use crate::event::{Entry, Event, Outcome, Subscription};
use crate::kind::{HandoffAction, Mode, SessionAction, TaskAction, Topic, UnitStatus};
use crate::relevance::Scope;
use crate::state::{Field, Unit};
use crate::vector::Vector;

/// Interests of a subscriber that are compared with what happens: everybody's writing waits for that.
const INTERESTS_BYTES_MAX: usize = 4 << 10;

/// One push to one subscriber.
#[derive(Debug, Clone, PartialEq)]
pub struct Notification {
    /// Who gets it.
    pub agent_id: String,
    /// The least gap to the next one about the same thing.
    pub debounce_ms: u64,
    subscription_id: String,
    event: Topic,
    epoch: u64,
    relevance_score: f64,
    summary: String,
    memory_unit_id: Option<String>,
    conflict_id: Option<String>,
    requires_action: bool,
    /// What it is about, for the gap between notifications.
    about: String,
}

impl Notification {
    /// Returns the topic.
    pub fn topic(&self) -> Topic {
        self.event
    }

    /// Returns the epoch of what happened.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the object that is pushed.
    pub fn to_json(&self) -> Value {
        json!({
            "subscription_id": self.subscription_id,
            "event": self.event,
            "epoch": self.epoch,
            "relevance_score": self.relevance_score,
            "summary": self.summary,
            "memory_unit_id": self.memory_unit_id,
            "conflict_id": self.conflict_id,
            "requires_action": self.requires_action,
        })
    }
}

/// Something that subscribers may want to hear about.
struct Happening<'a> {
    topic: Topic,
    entry: &'a Entry,
    summary: String,
    unit: Option<&'a str>,
    conflict: Option<&'a str>,
    about: &'a str,
    /// Who has to do something.
    asked: Vec<&'a str>,
    /// The only agent it concerns, if it is not for everyone.
    only: Option<&'a str>,
    /// Whether it says that its conflict made its unit contested: those for whom it was so before do not hear it again.
    contests: bool,
}

impl Field {
    /// Returns what to push to those who listen after the entries of one operation were applied. What others subscribed to
    /// costs nothing.
    pub fn notifications(&self, entries: &[Entry], listeners: &[String]) -> Vec<Notification> {
        let actor = entries.first().map(|entry| entry.agent_id.as_str());
        let mut notifications = Vec::new();
        let heard = listeners.iter().map(String::as_str);
        let heard = heard.filter_map(|agent| Some((agent, self.subscriptions.get(agent)?)));
        let heard: Vec<_> = heard.filter(|(agent, _)| Some(*agent) != actor).collect();
        if self.config.level < Level::Standard || heard.is_empty() {
            return notifications;
        }
        for happening in entries.iter().flat_map(|entry| self.happenings(entry)) {
            for (agent, subscriptions) in &heard {
                let wanted = subscriptions
                    .values()
                    .filter(|subscription| subscription.events.contains(&happening.topic));
                let mut wanted = wanted.peekable();
                let may_hear = wanted.peek().is_some()
                    && happening.only.is_none_or(|only| only == *agent)
                    && self.may_hear(agent, &happening);
                if !may_hear {
                    continue;
                }
                let relevance = happening
                    .unit
                    .map_or(1.0, |unit| self.relevance_to(agent, unit));
                let found =
                    wanted.filter_map(|wanted| notification(agent, wanted, relevance, &happening));
                notifications.extend(found);
            }
        }
        notifications
    }

    fn may_hear(&self, agent: &str, happening: &Happening<'_>) -> bool {
        let unit = happening.unit.and_then(|unit| self.unit(unit));
        let conflict = happening
            .conflict
            .and_then(|conflict| self.conflict(conflict));
        let is_of_task = matches!(
            happening.entry.event,
            Event::Coordinated { .. } | Event::HandedOff { .. }
        );
        let task = happening.entry.event.task_id().filter(|_| is_of_task);
        self.active(agent).is_some()
            && self.sees_session(agent, happening.entry.session_id.as_deref())
            && task.is_none_or(|task| self.sees_task(agent, task))
            && unit.is_none_or(|unit| self.sees(agent, unit))
            && conflict.is_none_or(|conflict| self.sees_conflict(agent, conflict))
            && !(happening.contests && self.was_contested(agent, happening))
    }

    /// Returns whether a conflict makes one of its units contested: a draft contests drafts alone.
    fn contests(&self, row: usize, unit: &Unit) -> bool {
        let newer = self
            .conflicts
            .get(row)
            .and_then(|conflict| self.at(conflict.b));
        unit.mode == Mode::Draft || newer.is_some_and(|newer| newer.mode == Mode::Committed)
    }

    /// Returns whether the unit of a happening was contested for an agent before its conflict began.
    fn was_contested(&self, agent: &str, happening: &Happening<'_>) -> bool {
        let (Some(unit), Some(now)) = (
            happening.unit.and_then(|unit| self.unit(unit)),
            happening
                .conflict
                .and_then(|conflict| self.conflict_rows.get(conflict)),
        ) else {
            return false;
        };
        let before = unit.conflicts.iter().filter(|row| *row < now);
        let mut before = before.filter(|row| self.contests(**row, unit));
        before.any(|row| {
            let conflict = self.conflicts.get(*row);
            conflict
                .is_some_and(|conflict| conflict.is_open() && self.sees_conflict(agent, conflict))
        })
    }

    /// Returns how much a unit matters to an agent by its role, its current task, and its interests as far as they are short.
    fn relevance_to(&self, agent_id: &str, unit: &str) -> f64 {
        let (Some(agent), Some(row)) = (self.active(agent_id), self.unit_rows.get(unit)) else {
            return 0.0;
        };
        let mut room = INTERESTS_BYTES_MAX;
        let fits = |interest: &&str| {
            let left = room.checked_sub(interest.len());
            room = left.unwrap_or(0);
            left.is_some()
        };
        let interests = agent.interests.iter().map(String::as_str);
        let interests: Vec<&str> = interests.take_while(fits).collect();
        let query = if interests.is_empty() {
            agent.role.clone()
        } else {
            interests.join(" ")
        };
        let vector = Vector::hash_1024(&query);
        let scope = Scope {
            agent: agent_id,
            role: &agent.role,
            committed_only: false,
            interests,
            task: agent.current_task.as_deref(),
            query: &query,
            query_source: "the interests of the subscriber",
            vector: Some(&vector),
            recency_weight: None,
            since_epoch: None,
            include_own: true,
            include_archived: true,
            threshold: None,
            epoch: self.clock,
        };
        self.relevance(&scope, *row)
    }

    fn author_of(&self, unit: &str) -> Option<&str> {
        self.unit(unit).map(|unit| unit.author.as_str())
    }

    fn happenings<'a>(&'a self, entry: &'a Entry) -> Vec<Happening<'a>> {
        let agent = &entry.agent_id;
        let plain = |topic: Topic, summary: String, about: &'a str| Happening {
            topic,
            entry,
            summary,
            unit: None,
            conflict: None,
            about,
            asked: Vec::new(),
            only: None,
            contests: false,
        };
        let mut found = match &entry.event {
            Event::Recorded(recorded) => vec![Happening {
                unit: Some(&recorded.unit_id),
                ..plain(
                    Topic::MemoryRecorded,
                    format!("{agent} recorded a {}", recorded.kind),
                    &recorded.unit_id,
                )
            }],
            Event::ConflictCreated {
                conflict_id,
                unit_a,
                unit_b,
                ..
            } => vec![Happening {
                conflict: Some(conflict_id),
                asked: [unit_a, unit_b]
                    .into_iter()
                    .filter_map(|unit| self.author_of(unit))
                    .collect(),
                ..plain(
                    Topic::ConflictDetected,
                    format!("{unit_b} contradicts {unit_a}"),
                    conflict_id,
                )
            }],
            Event::Merged(merged) if merged.outcome == Outcome::Resolved => vec![Happening {
                conflict: Some(&merged.conflict_id),
                ..plain(
                    Topic::ConflictResolved,
                    format!(
                        "{agent} resolved {} by {}",
                        merged.conflict_id, merged.strategy
                    ),
                    &merged.conflict_id,
                )
            }],
            Event::Coordinated {
                action,
                task_id,
                assignee,
                ..
            } => {
                let mut found = vec![plain(
                    Topic::TaskStateChanged,
                    format!("{agent}: {action} {task_id}"),
                    task_id,
                )];
                if let (TaskAction::Create | TaskAction::Assign, Some(assignee)) =
                    (action, assignee)
                {
                    found.push(Happening {
                        asked: vec![assignee],
                        ..plain(
                            Topic::TaskAssigned,
                            format!("{task_id} is assigned to {assignee}"),
                            task_id,
                        )
                    });
                }
                if *action == TaskAction::Complete {
                    let summary = format!("{task_id} is completed");
                    found.push(plain(Topic::TaskCompleted, summary, task_id));
                }
                found
            }
            Event::HandedOff {
                action: HandoffAction::Offer,
                handoff_id,
                task_id,
                to_agent,
                ..
            } => vec![Happening {
                asked: vec![to_agent],
                only: Some(to_agent),
                ..plain(
                    Topic::HandoffIncoming,
                    format!("{agent} offers {task_id} ({handoff_id})"),
                    handoff_id,
                )
            }],
            Event::Registered { role, .. } => {
                vec![plain(
                    Topic::AgentJoined,
                    format!("{agent} joined as {role}"),
                    agent,
                )]
            }
            Event::AgentFailed { agent_id, .. } => {
                vec![plain(
                    Topic::AgentFailed,
                    format!("{agent_id} failed"),
                    agent_id,
                )]
            }
            Event::SessionChanged {
                action, session_id, ..
            } => match action {
                SessionAction::Pause => vec![plain(
                    Topic::SessionPaused,
                    format!("{session_id} is paused"),
                    session_id,
                )],
                SessionAction::End => vec![plain(
                    Topic::SessionEnded,
                    format!("{session_id} is ended"),
                    session_id,
                )],
                SessionAction::Create
                | SessionAction::Join
                | SessionAction::Leave
                | SessionAction::Resume => Vec::new(),
            },
            _ => Vec::new(),
        };
        // Not by the effects: a unit may have been contested before by what a subscriber cannot see.
        if let Event::ConflictCreated {
            conflict_id,
            unit_a,
            unit_b,
            ..
        } = &entry.event
        {
            let row = self.conflict_rows.get(conflict_id).copied();
            for unit in [unit_a, unit_b] {
                let is_contested = self.unit(unit).is_some_and(|unit| {
                    unit.status == UnitStatus::Contested
                        && row.is_some_and(|row| self.contests(row, unit))
                });
                if is_contested {
                    found.push(Happening {
                        unit: Some(unit),
                        conflict: Some(conflict_id),
                        asked: self.author_of(unit).into_iter().collect(),
                        contests: true,
                        ..plain(Topic::MemoryContested, format!("{unit} is contested"), unit)
                    });
                }
            }
        }
        for effect in entry.event.effects() {
            let (topic, word) = match effect.status {
                UnitStatus::Superseded => (Topic::MemorySuperseded, "superseded"),
                UnitStatus::Active
                | UnitStatus::Contested
                | UnitStatus::Draft
                | UnitStatus::Retracted
                | UnitStatus::PendingEnrichment => continue,
            };
            found.push(Happening {
                unit: Some(&effect.unit_id),
                asked: self.author_of(&effect.unit_id).into_iter().collect(),
                ..plain(
                    topic,
                    format!("{} is {word}", effect.unit_id),
                    &effect.unit_id,
                )
            });
        }
        found
    }
}

/// Returns what a subscriber is told, unless it matters too little to it.
fn notification(
    agent: &str,
    subscription: &Subscription,
    relevance: f64,
    happening: &Happening<'_>,
) -> Option<Notification> {
    if subscription
        .min_relevance
        .is_some_and(|least| relevance < least)
    {
        return None;
    }
    Some(Notification {
        agent_id: agent.to_owned(),
        debounce_ms: subscription.debounce_ms.unwrap_or(0),
        subscription_id: subscription.id.clone(),
        event: happening.topic,
        epoch: happening.entry.epoch,
        relevance_score: relevance,
        summary: happening.summary.clone(),
        memory_unit_id: happening.unit.map(str::to_owned),
        conflict_id: happening.conflict.map(str::to_owned),
        requires_action: happening.asked.contains(&agent),
        about: happening.about.to_owned(),
    })
}

/// A subscription and the thing it is notified about.
type About = (String, String);

/// Keeps the least gap between two notifications about one thing; of those in between the last one is kept.
#[derive(Debug, Clone, Default)]
pub struct Debouncer {
    quiet_until: BTreeMap<About, i64>,
    held: BTreeMap<About, Notification>,
}

impl Debouncer {
    /// Returns the notification if it may be sent now; otherwise holds it, in place of an earlier one that waits.
    pub fn offer(&mut self, notification: Notification, now: Timestamp) -> Option<Notification> {
        let about = (
            notification.subscription_id.clone(),
            notification.about.clone(),
        );
        let now = now.as_micros();
        if self
            .quiet_until
            .get(&about)
            .is_some_and(|until| *until > now)
        {
            self.held.insert(about, notification);
            return None;
        }
        self.note(about, &notification, now);
        Some(notification)
    }

    /// Returns what was held and may be sent now.
    pub fn due(&mut self, now: Timestamp) -> Vec<Notification> {
        let now = now.as_micros();
        self.quiet_until
            .retain(|about, until| *until > now || self.held.contains_key(about));
        let ready: Vec<About> = self
            .held
            .keys()
            .filter(|about| {
                self.quiet_until
                    .get(*about)
                    .is_none_or(|until| *until <= now)
            })
            .cloned()
            .collect();
        let mut due = Vec::new();
        for about in ready {
            if let Some(notification) = self.held.remove(&about) {
                self.note(about, &notification, now);
                due.push(notification);
            }
        }
        due
    }

    /// Returns when the first of what is held may be sent, in microseconds.
    pub fn next_due(&self) -> Option<i64> {
        let until = |about| self.quiet_until.get(about).copied().unwrap_or_default();
        self.held.keys().map(until).min()
    }

    fn note(&mut self, about: About, notification: &Notification, now: i64) {
        let gap = i64::try_from(notification.debounce_ms)
            .unwrap_or(i64::MAX)
            .saturating_mul(1_000);
        if gap > 0 {
            self.quiet_until.insert(about, now.saturating_add(gap));
        }
    }
}
