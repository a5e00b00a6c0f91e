//! What happens in a session: events, what the program hears of them, what they cost, and what is kept for reading.

use domain::Timestamp;

use super::{Diagnostic, Driver, Open, RECORDS_MAX, Record};
use crate::capture::{self, CaptureLevel};
use crate::cost::Usage;
use crate::decimal::Decimal;
use crate::event::{Event, Release, Responded};
use crate::gate::Decision;
use crate::wire::Reply;

impl Driver {
    pub(super) fn commit(&mut self, event: Event, decision: Option<Decision>) {
        // Invariant: only events that this session can have are made here.
        if self.state.advance(self.rules.compiled(), &event).is_err() {
            return;
        }
        if let Some(seat) = &mut self.seat {
            seat.follow(&self.state);
        }
        if self.keeps_nothing {
            self.first_record += 1;
            return;
        }
        let seq = self.first_record + self.records.len() as u64;
        self.records.push_back(Record {
            seq,
            event,
            decision,
        });
    }

    pub(crate) fn push_event(
        &mut self,
        name: &'static str,
        time: Timestamp,
        data: &[(&'static str, &str)],
    ) {
        // What nobody reads must not grow without end.
        if self.diagnostics.len() >= RECORDS_MAX {
            self.diagnostics.remove(0);
        }
        let data = data
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        self.diagnostics.push(Diagnostic {
            name,
            time,
            session_id: self.rules.options().session_id.clone(),
            state_version: self.state.state_version(),
            data: data.collect(),
        });
    }

    pub(super) fn id(&mut self, kind: &str) -> String {
        self.next_id += 1;
        format!(
            "{}.{kind}.{}",
            self.rules.options().session_id,
            self.next_id
        )
    }

    pub(super) fn expire(&mut self, now: Timestamp) {
        for call in self.state.expired(now) {
            self.commit(Event::Expired { call }, None);
        }
    }

    pub(super) fn cost(&self, open: &Open, usage: Option<Usage>) -> Option<Decimal> {
        let request = open.request.request();
        let model = format!("{}/{}", request.provider, request.model);
        let price = self.rules.options().prices.get(&model);
        price
            .zip(usage)
            .and_then(|(price, usage)| price.cost(usage))
    }

    pub(super) fn discard(
        &mut self,
        open: &Open,
        usage: Option<Usage>,
        proposal: Option<String>,
        now: Timestamp,
    ) {
        let cost = self.cost(open, usage);
        let event = Event::Responded(Responded {
            at: now,
            proposal,
            usage_unknown: self.counts_usage() && cost.is_none(),
            cost,
            release: Release::Discarded,
        });
        self.commit(event, None);
    }

    /// Keeps what the capture level allows: for reading, never for deciding.
    pub(super) fn capture(
        &mut self,
        open: &Open,
        reply: Option<&Reply>,
        decision: Option<&Decision>,
    ) {
        if self.keeps_nothing {
            return;
        }
        let level = self.rules.options().capture_level;
        let response = reply.map(Reply::response);
        let calls = response.into_iter().flat_map(|response| &response.calls);
        let calls = calls.map(|call| {
            let compiled = self.rules.compiled();
            serde_json::json!({
                "id": call.id,
                "tool": call.name,
                "arguments": capture::arguments(level, compiled, &call.name, &call.arguments, &[]),
            })
        });
        let calls: Vec<serde_json::Value> = calls.collect();
        let content = response.and_then(|response| response.content.as_deref());
        let request = open.request.request();
        let mut kept = serde_json::json!({
            "session_id": self.rules.options().session_id,
            "attempt": self.state.attempts(),
            "provider": request.provider,
            "wire": open.request.wire(),
            "model": request.model,
            "request": capture::text(level, open.request.text(), &[]),
            "content": content.map(|content| capture::text(level, content, &[])),
            "calls": calls,
            "decision": decision,
        });
        // Only the whole answer can be given again.
        if let (CaptureLevel::Full, Some(reply), Some(members)) =
            (level, reply, kept.as_object_mut())
        {
            let whole = reply.whole();
            let text = capture::text(level, &String::from_utf8_lossy(&whole), &[]);
            members.insert("response".to_owned(), text);
            members.insert("is_stream".to_owned(), open.request.is_stream().into());
        }
        self.captures.push(kept);
    }

    /// A request is over. What was read of its tools serves the next one.
    pub(super) fn done(&mut self, open: Open) {
        if let Some(tools) = open.request.into_tools() {
            self.offered = Some(tools);
        }
    }
}
