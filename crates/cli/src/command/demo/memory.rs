//! The part of the tour where agents share a memory: two of them disagree, a third settles it, and the replay says why it
//! stands as it does.

use serde_json::{Value, json};

use super::Guide;
use crate::command::field;
use crate::output::{Paint, Table};

/// A field of the tour's own.
const PLACE: [&str; 4] = ["akashik", "fields", "tour", "v1"];

impl Guide<'_> {
    /// Three agents, a contradiction, a merge, and the replay of the conflict.
    pub(super) async fn memory(&mut self, number: usize) -> anyhow::Result<()> {
        self.heading(
            number,
            "Agents share a memory",
            "What they know is recorded with why; a contradiction is settled in the open, and its reasons can be replayed.",
        )?;
        // Whoever settles conflicts needs more authority than whoever records.
        for (agent, role, authority) in [
            ("ann", "analyst", 4),
            ("bob", "analyst", 4),
            ("sam", "strategist", 6),
        ] {
            let payload = json!({"id": agent, "role": role, "authority": authority});
            self.send_to_field("register", agent, payload).await?;
        }
        let first = self
            .learn("ann", "The market grows by 23% a year", 0.8, None)
            .await?;
        let target = text(&first, "/memory_unit_id").to_owned();
        let second = self
            .learn("bob", "It grows by 14% a year", 0.4, Some(&target))
            .await?;
        let conflict = text(&second, "/conflicts_detected/0").to_owned();
        self.move_line(
            "",
            "conflict",
            "both findings are contested until somebody settles it",
        )?;
        let payload = json!({
            "conflict_id": conflict, "strategy": "confidence_weighted",
            "resolution": {"rationale": "the better source"},
        });
        self.send_to_field("merge", "sam", payload).await?;
        self.move_line(
            "sam",
            "merge",
            "by confidence: ann's finding stands, bob's is superseded",
        )?;
        let payload =
            json!({"target_type": "conflict", "target_id": conflict, "depth": "detailed"});
        let told = self.send_to_field("replay", "sam", payload).await?;
        self.out.line("\n   Asked later why, the log answers:\n")?;
        let mut rows = Table::new(&["EPOCH", "AGENT", "EVENT", "WHAT"]);
        for event in told
            .pointer("/timeline")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let what = text(event, "/description").replace(&target, "ann's finding");
            rows.row([
                (
                    event
                        .pointer("/epoch")
                        .map(Value::to_string)
                        .unwrap_or_default(),
                    None,
                ),
                (text(event, "/agent_id").to_owned(), None),
                (text(event, "/event_type").to_owned(), None),
                (what, None),
            ]);
        }
        rows.print(&mut self.out, "   ")
    }

    async fn learn(
        &mut self,
        agent: &str,
        content: &str,
        score: f64,
        contradicts: Option<&str>,
    ) -> anyhow::Result<Value> {
        let relations: Vec<Value> = contradicts
            .iter()
            .map(|unit| json!({"type": "contradicts", "target_id": unit}))
            .collect();
        let payload = json!({
            "mode": "committed", "type": "finding", "content": content,
            "intent": {"purpose": "size the market"},
            "confidence": {"score": score, "reasoning": "a report"}, "relations": relations,
        });
        let answer = self.send_to_field("record", agent, payload).await?;
        self.move_line(agent, "record", &format!("{content} (sure: {score})"))?;
        Ok(answer)
    }

    async fn send_to_field(
        &self,
        operation: &str,
        agent: &str,
        payload: Value,
    ) -> anyhow::Result<Value> {
        let path = [&PLACE, &[operation][..]].concat();
        field::message(self.client, &path, agent, None, payload).await
    }

    fn move_line(&mut self, who: &str, what: &str, words: &str) -> anyhow::Result<()> {
        let head = self.out.paint(Paint::Quiet, &format!("{who:5}{what:10}"));
        self.out.line(format_args!("   {head}{words}"))
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default()
}
