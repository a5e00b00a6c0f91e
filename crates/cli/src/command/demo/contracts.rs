//! The part of the tour where contracts stand between an agent and its tools: `examples/refund-desk`, as it is in the tree.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Act, Chapter, Guide, HINT, Place};
use crate::client::{Cursor, Event, Flow, Write, follow, fresh_key};
use crate::command::task::{NewTask, user_message};
use crate::config::{ContractsConfig, Settings};
use crate::exit::OrHint;
use crate::output::{Paint, shorten, width};

macro_rules! example {
    ($file:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../examples/refund-desk/",
            $file
        ))
    };
}

const CONFIGURATION: &str = example!("reprise.toml");
const ANSWERS: &str = example!("answers.yaml");
const CONTRACTS: [(&str, &str); 5] = [
    ("session.yaml", example!("contracts/session.yaml")),
    ("find_order.yaml", example!("contracts/find_order.yaml")),
    (
        "assess_return.yaml",
        example!("contracts/assess_return.yaml"),
    ),
    ("pay_back.yaml", example!("contracts/pay_back.yaml")),
    ("send_note.yaml", example!("contracts/send_note.yaml")),
];

/// What of the example's configuration the tour needs.
#[derive(Deserialize)]
struct Example {
    tools: Vec<effects::ToolConfig>,
}

/// Writes the example into a folder, and a stricter copy of its contracts, and adds it to the settings.
pub(super) fn set_stage(settings: &mut Settings, folder: &Path) -> anyhow::Result<()> {
    let desk = folder.join("desk");
    std::fs::create_dir_all(&desk).or_hint(format_args!("`{}`", desk.display()), HINT)?;
    for (name, most) in [("contracts", 40_000), ("stricter", 15_000)] {
        let set = folder.join(name);
        std::fs::create_dir_all(&set).or_hint(format_args!("`{}`", set.display()), HINT)?;
        for (file, text) in CONTRACTS {
            let mut text = text.replace("gte: 1, lte: 40000", &format!("gte: 1, lte: {most}"));
            if name == "stricter" {
                // A backtest has no prices of its own to judge a budget by.
                text = text.replace("  max_cost_per_session: 2.50\n", "");
            }
            write(&set.join(file), &text)?;
        }
    }
    write(&folder.join("desk-answers.yaml"), ANSWERS)?;
    let principal = json!({"role": "desk", "trainee": false});
    write(&folder.join("principal.json"), &principal.to_string())?;
    let Example { mut tools } =
        toml::from_str(CONFIGURATION).or_hint("the example of the tour", HINT)?;
    for tool in &mut tools {
        tool.folder = Some(desk.clone());
    }
    settings.tools.append(&mut tools);
    let provider = json!({"id": "desk", "kind": "scripted", "file": folder.join("desk-answers.yaml"), "model": "desk-1"});
    let provider = serde_json::from_value(provider).or_hint("the settings of the tour", HINT)?;
    settings.providers.push(provider);
    settings.contracts.push(ContractsConfig {
        name: "refund-desk".to_owned(),
        folder: folder.join("contracts"),
        principal: principal.as_object().cloned().unwrap_or_default(),
    });
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).or_hint(format_args!("`{}`", path.display()), HINT)
}

impl Guide<'_> {
    /// Runs the refund desk: a narrowed list, a blocked call, an approval, and what stricter contracts would have done.
    pub(super) async fn contracts(
        &mut self,
        number: usize,
        chapter: &Chapter,
        place: &Place,
    ) -> anyhow::Result<()> {
        self.heading(number, chapter.title, chapter.why)?;
        let persona = json!({
            "name": "return-desk",
            "version": "1",
            "entry_workflow": chapter.workflow,
            "description": "Pays back what customers return",
            "autonomy_tier": "act_auto",
            "receipt_policy": "required",
            "system_prompt": "You look after returns.",
            "model": {"provider": "desk", "model": "desk-1"},
            "tools": ["find_order", "assess_return", "pay_back", "send_note"],
            "contracts": "refund-desk",
        });
        let key = fresh_key()?;
        let write = Write {
            body: persona,
            key: &key,
        };
        let persona = self.client.post(&["v1", "personas"], write).await?;
        let persona = persona.get("id").and_then(Value::as_str);
        let task = NewTask {
            input: user_message(chapter.text),
            metadata: Map::new(),
            persona: persona.map(str::to_owned),
            session: Some(self.session.clone()),
            workspace: None,
        };
        let id = task.submit(self.client, &fresh_key()?).await?.id;
        let mut cursor = Cursor::default();
        let mut narrowed = false;
        self.judged(&id, &mut cursor, &chapter.act, &mut narrowed)
            .await?;
        self.act(&id, &chapter.act).await?;
        let task = self
            .judged(&id, &mut cursor, &Act::Nothing, &mut narrowed)
            .await?;
        self.tasks.push(task);
        self.backtested(&id, place).await
    }

    /// Shows what contracts did, until the task ends or the moment to act has come.
    async fn judged(
        &mut self,
        id: &str,
        cursor: &mut Cursor,
        until: &Act,
        narrowed: &mut bool,
    ) -> anyhow::Result<crate::client::Task> {
        let out = &mut self.out;
        follow(self.client, id, cursor, |event| {
            if let Some((word, paint, text)) = describe_event(event, narrowed) {
                let room = width().map_or(usize::MAX, |width| width.saturating_sub(15));
                let word = out.paint(paint, &format!("{word:10}"));
                out.line(format_args!("   {word}  {}", shorten(&text, room)))?;
            }
            Ok(match until.is_due(event) {
                true => Flow::Stop,
                false => Flow::Continue,
            })
        })
        .await
    }

    /// Judges the run again under contracts that allow less.
    async fn backtested(&mut self, id: &str, place: &Place) -> anyhow::Result<()> {
        let path = ["v1", "tasks", id, "bundle"];
        let bundle = self.client.get_bytes(&path, &[]).await?;
        let file = place.stage.join("refund.bundle");
        std::fs::write(&file, bundle).or_hint(format_args!("`{}`", file.display()), HINT)?;
        self.out.line(
            "\n   the same run under contracts that allow 150.00 at most, as `reprise contracts backtest` judges it\n",
        )?;
        let args = [
            "contracts",
            "backtest",
            "stricter",
            "refund.bundle",
            "--principal",
            "principal.json",
        ];
        self.printed(&args, &place.stage, &[], None).await
    }
}

/// Says what an event means to whoever watches contracts at work; nothing for most.
fn describe_event(event: &Event, narrowed: &mut bool) -> Option<(&'static str, Paint, String)> {
    let text = |pointer: &str| {
        let found = event.payload.pointer(pointer).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let call = |name: &str, input: &str| {
        let input = event.payload.pointer(input).map(Value::to_string);
        format!("{} {}", text(name), input.unwrap_or_default())
    };
    match event.kind.as_str() {
        // The first one shows the idea; the list changes with every step.
        "vendor.contract_decided" if !*narrowed => {
            let removed = event.payload.pointer("/narrowing/removed")?.as_array()?;
            let removed = removed.iter().map(|tool| {
                let member = |name: &str| tool.get(name).and_then(Value::as_str);
                let reason = member("reason").unwrap_or_default();
                format!("{} ({reason})", member("tool").unwrap_or_default())
            });
            let removed: Vec<String> = removed.collect();
            *narrowed = true;
            let text = format!("the model is not shown {}", removed.join(", "));
            Some(("narrowed", Paint::Waiting, text))
        }
        "tool.denied" if event.payload.get("tool_call_id").is_some() => {
            let text = format!("{}: {}", text("/name"), text("/reason"));
            Some(("blocked", Paint::Bad, text))
        }
        "tool.approval_required" => Some((
            "asked",
            Paint::Waiting,
            call("/action/name", "/action/input"),
        )),
        "agent.tool_use" if event.payload.get("attempt").is_some() => {
            Some(("made", Paint::Good, call("/name", "/input")))
        }
        "task.completed" => Some((
            "completed",
            Paint::Good,
            "every verdict is in the log, and counted in the receipt".to_owned(),
        )),
        _ => None,
    }
}
