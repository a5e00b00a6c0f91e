//! What commands share that list things of the server, or show one.

use clap::Args;
use serde_json::Value;

use crate::args::ServerArgs;
use crate::client::{Client, Target};
use crate::exit::Exit;
use crate::output::{Output, Table, inform, is_quiet};

/// What every list takes.
#[derive(Debug, Args)]
pub(crate) struct Listing {
    /// Maximum number to list
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

impl Listing {
    /// Returns how many are wanted.
    pub(crate) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Prints what was found: one array, ids alone, or a table; and says when there is more.
    ///
    /// # Errors
    /// Nothing can be written.
    pub(crate) fn print(
        &self,
        found: Vec<Value>,
        more: bool,
        none: &str,
        table: impl FnOnce(&[Value]) -> Table,
    ) -> anyhow::Result<Exit> {
        let mut out = Output::stdout();
        if self.server.json {
            out.json(&Value::Array(found))?;
            return Ok(Exit::Ok);
        }
        if is_quiet() {
            out.ids(found.iter().map(|item| text(item, "id")))?;
        } else if found.is_empty() {
            inform(none);
        } else {
            table(&found).print(&mut out, "")?;
        }
        if more {
            inform(format_args!(
                "there are more; raise --limit (now {})",
                self.limit
            ));
        }
        Ok(Exit::Ok)
    }
}

/// What a command takes that shows one thing.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Its id
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

impl ServerArgs {
    /// Returns a client of the server that is asked.
    ///
    /// # Errors
    /// No server is named, or it cannot be talked to with this key.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Client::new(Target::find(&self.connection)?)
    }
}

/// Returns a text of an answer; an empty one when it is not there.
pub(crate) fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value
        .get(member)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns a time of an answer as a person reads it.
pub(crate) fn time(value: &Value, member: &str) -> String {
    let time = text(value, member).get(..19).unwrap_or_default();
    time.replace('T', " ")
}
