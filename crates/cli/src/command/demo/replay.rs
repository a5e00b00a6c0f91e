//! The part of the tour where an agent uses a tool, and its run is replayed: exactly, twice, without a server, and once
//! more with one answer changed.

use std::path::Path;
use std::process::Stdio;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Guide, HINT, Place, program_file};
use crate::client::{Cursor, Flow, Write, follow, fresh_key};
use crate::command::task::{NewTask, user_message};
use crate::config::Settings;
use crate::exit::{OrHint, Problem};
use crate::output::Paint;

/// What the model of the tour says. It depends on the question alone, so that nothing outside is needed.
const ANSWERS: &str = r#"model: scripted-1
answers:
  - when: { contains: "failed twice and then passed" }
    answer: Twice the health check timed out while the cache was cold. The third try found it warm.
    usage: { prompt_tokens: 21, completion_tokens: 20 }
  - when: { key: "llm:main:1" }
    answer: I count the lines first.
    tool_calls: [{ name: count_lines, arguments: { file: deploy.log } }]
    usage: { prompt_tokens: 64, completion_tokens: 18 }
  - answer: The log has 3 lines, two timeouts and a success. Nothing to roll back.
    usage: { prompt_tokens: 96, completion_tokens: 17 }
"#;

const LOG: &str = "10:01 timeout\n10:04 timeout\n10:09 passed\n";

const OTHER_ANSWER: &str = "The log has 3 lines, all timeouts. Roll back now.";

/// The settings that the tour's agent needs.
#[derive(Deserialize)]
struct Stage {
    providers: Vec<effects::ProviderConfig>,
    tools: Vec<effects::ToolConfig>,
}

/// Writes the model's answers and the file that the tool reads into a folder, which is not the data directory's, and
/// adds both to the settings.
pub(super) fn set_stage(settings: &mut Settings, folder: &Path) -> anyhow::Result<()> {
    let files = folder.join("files");
    std::fs::create_dir_all(&files).or_hint(format_args!("`{}`", files.display()), HINT)?;
    for (path, text) in [
        (folder.join("answers.yaml"), ANSWERS),
        (files.join("deploy.log"), LOG),
    ] {
        std::fs::write(&path, text).or_hint(format_args!("`{}`", path.display()), HINT)?;
    }
    let stage = json!({
        "providers": [{"id": "script", "kind": "scripted", "file": folder.join("answers.yaml")}],
        "tools": [{
            "name": "count_lines",
            "description": "Counts the lines of a file.",
            "argv": ["wc", "-l", "--", "{file}"],
            "folder": files,
            "read_only": true,
            "repeatable": true,
            "parameters": {
                "type": "object",
                "required": ["file"],
                "properties": {"file": {"type": "string"}},
            },
        }],
    });
    let Stage { providers, tools } =
        serde_json::from_value(stage).or_hint("the settings of the tour", HINT)?;
    settings.providers = providers;
    settings.tools = tools;
    Ok(())
}

impl Guide<'_> {
    /// Records an agent with a tool, replays it offline in two fresh directories, then with one answer changed.
    pub(super) async fn replay(&mut self, number: usize, place: &Place) -> anyhow::Result<()> {
        self.heading(
            number,
            "An agent uses a tool, and its run is replayed",
            "Answers of models and tools are on record: a replay needs neither.",
        )?;
        let id = self.counted().await?;
        self.out
            .line("   the whole run, as `reprise task show` tells it\n")?;
        self.show_command(&["task", "show", &id, "--no-pager"], place, None)
            .await?;
        let bundle = self
            .client
            .get_bytes(&["v1", "tasks", &id, "bundle"], &[])
            .await?;
        let first = replayed_in_fresh_directory(&bundle).await?;
        let second = replayed_in_fresh_directory(&bundle).await?;
        let digest = canon::sha256(&first);
        let (verdict, good) = match first == second {
            true => ("equal", Paint::Good),
            false => ("DIFFERENT", Paint::Bad),
        };
        let verdict = self.out.paint(good, verdict);
        self.out.line(format_args!(
            "\n   replayed from its bundle in two fresh directories, without a server\n   \
             {verdict}  {} bytes of receipt, {digest}",
            first.len()
        ))?;
        self.changed(&id, place).await
    }

    async fn counted(&mut self) -> anyhow::Result<String> {
        let persona = json!({
            "name": "log-reader",
            "version": "1",
            "entry_workflow": "agent",
            "description": "Reads deploy logs",
            "autonomy_tier": "act_auto",
            "receipt_policy": "required",
            "system_prompt": "You read deploy logs. Be brief.",
            "tools": ["count_lines"],
        });
        let key = fresh_key()?;
        let write = Write {
            body: persona,
            key: &key,
        };
        let persona = self.client.post(&["v1", "personas"], write).await?;
        let persona = persona
            .get("id")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let task = NewTask {
            input: user_message("What does deploy.log say?"),
            metadata: Map::new(),
            persona: Some(persona.to_owned()),
            session: Some(self.session.clone()),
            workspace: None,
        };
        let id = task.submit(self.client, &fresh_key()?).await?.id;
        let mut cursor = Cursor::default();
        let task = follow(self.client, &id, &mut cursor, |_| Ok(Flow::Continue)).await?;
        self.tasks.push(task);
        Ok(id)
    }

    /// Replays with another answer of the model, and shows what that changed.
    async fn changed(&mut self, id: &str, place: &Place) -> anyhow::Result<()> {
        let value = json!({
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": OTHER_ANSWER}}],
        });
        let request = json!({
            "mode": "with_overrides",
            "override": {"llm:main:2": {"kind": "llm_provider_response", "value": value}},
            "reason": "what if it had misread the log?",
        });
        let key = fresh_key()?;
        let write = Write {
            body: request,
            key: &key,
        };
        let replay = self
            .client
            .post(&["v1", "tasks", id, "replay"], write)
            .await?;
        let replay_id = replay.get("id").and_then(Value::as_str);
        let replay_id = replay_id.unwrap_or_default().to_owned();
        self.out
            .line("\n   once more, with the model's second answer changed")?;
        self.out
            .line("   (`reprise diff` compares requests, tools, costs and ends as well)\n")?;
        let section = Some("asked and answered");
        self.show_command(&["diff", id, &replay_id], place, section)
            .await
    }

    /// Runs another command of this program on the tour's server and shows what it prints.
    async fn show_command(
        &mut self,
        args: &[&str],
        place: &Place,
        section: Option<&str>,
    ) -> anyhow::Result<()> {
        let data = place.data.to_string_lossy();
        let folder = std::env::current_dir().or_hint("cannot read the current directory", HINT)?;
        let server = ["--url", &place.url, "--data", &data];
        self.printed(args, &folder, &server, section).await
    }

    /// Runs another command of this program in a folder and shows what it prints, or one section of it.
    pub(super) async fn printed(
        &mut self,
        args: &[&str],
        folder: &Path,
        more: &[&str],
        section: Option<&str>,
    ) -> anyhow::Result<()> {
        let told = tokio::process::Command::new(program_file()?)
            .args(args)
            .args(more)
            .current_dir(folder)
            .stdin(Stdio::null())
            .output()
            .await
            .or_hint(
                format_args!("`reprise {}` did not run", args.join(" ")),
                HINT,
            )?;
        let told = String::from_utf8_lossy(&told.stdout);
        let told = match section {
            None => told.as_ref(),
            Some(title) => told
                .split("\n\n")
                .find(|part| part.starts_with(title))
                .unwrap_or_default(),
        };
        for line in told.lines() {
            self.out.line(format!("   {line}").trim_end())?;
        }
        Ok(())
    }
}

/// Replays a bundle with a process of its own, in an empty directory, and returns the receipt.
async fn replayed_in_fresh_directory(bundle: &[u8]) -> anyhow::Result<Vec<u8>> {
    let directory = tempfile::tempdir().or_hint("cannot create a temporary directory", HINT)?;
    let file: &Path = &directory.path().join("run.bundle");
    std::fs::write(file, bundle).or_hint(format_args!("`{}`", file.display()), HINT)?;
    let replayed = tokio::process::Command::new(program_file()?)
        .args(["replay", "--bundle", "run.bundle", "--receipt"])
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output()
        .await
        .or_hint("`reprise replay` did not run", HINT)?;
    if !replayed.status.success() {
        let told = String::from_utf8_lossy(&replayed.stderr).into_owned();
        return Err(Problem::new(format!("the replay failed: {}", told.trim()), HINT).into());
    }
    Ok(replayed.stdout)
}
