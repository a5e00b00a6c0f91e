//! The options of a session as JSON, under their published names. Everything that is wrong is found at once.

use std::collections::BTreeSet;

use crate::capture::CaptureLevel;
use crate::cost::{Price, Prices};
use crate::decimal::Decimal;
use crate::json::{self, Limits, Numbers};
use crate::rules::{Compat, Executors, Feedback, Gate, Mode, Options, Permission};
use crate::session::ProviderConstraints;
use crate::value::Value;

/// Reads options.
pub(super) fn read(text: &[u8]) -> Result<Options, Vec<String>> {
    let text = std::str::from_utf8(text).map_err(|_| vec!["not valid UTF-8".to_owned()])?;
    let value = json::read(text, Limits::MESSAGE, Numbers::Any)
        .map_err(|error| vec![format!("options: {error}")])?;
    let Some(members) = value.as_object() else {
        return Err(vec!["options are an object".to_owned()]);
    };
    let mut options = Options::new("");
    let mut findings = Vec::new();
    for (name, value) in members {
        if let Err(expected) = set(&mut options, name, value) {
            findings.push(format!("`{name}`: {expected}"));
        }
    }
    if findings.is_empty() {
        Ok(options)
    } else {
        Err(findings)
    }
}

fn set(options: &mut Options, name: &str, value: &Value) -> Result<(), &'static str> {
    match name {
        "sessionId" => options.session_id = text(value)?,
        "agent" if *value == Value::Null => options.agent = None,
        "agent" => options.agent = Some(text(value)?),
        "mode" => options.mode = word(value, Mode::named)?,
        "gate" => options.gate = word(value, Gate::named)?,
        "onError" => options.on_error = word(value, Permission::named)?,
        "unmatchedPolicy" => options.unmatched = word(value, Permission::named)?,
        "compatEnforcement" => options.compat = word(value, Compat::named)?,
        "maxRetries" => {
            let retries = whole(value)?;
            options.retries_max = u32::try_from(retries).map_err(|_| "a whole number in 0..5")?;
        }
        "maxUnguardedCalls" => options.unguarded_calls_max = whole(value)?,
        "narrowingFeedback" => options.feedback = word(value, Feedback::named)?,
        "providerConstraints" => options.providers = Some(providers(value)?),
        "principal" => options.principal = Some(value.clone()),
        "tools" => {
            let names = texts(value)?.into_iter().collect::<BTreeSet<_>>();
            options.executors = Executors::Named(names);
        }
        "captureLevel" => options.capture_level = word(value, CaptureLevel::named)?,
        "labels" => options.labels = texts(value)?,
        "answersCheckpoints" => options.answers_checkpoints = truth(value)?,
        // The place in a workflow, and whether anybody keeps what happens, are read where the session is opened.
        "workflow" | "keepsNothing" => {}
        "server" => options.server = truth(value)?,
        "pricing" => options.prices = prices(value)?,
        _ => return Err("no option of this name"),
    }
    Ok(())
}

fn text(value: &Value) -> Result<String, &'static str> {
    value.as_str().map(ToOwned::to_owned).ok_or("a text")
}

fn texts(value: &Value) -> Result<Vec<String>, &'static str> {
    let items = value.as_array().ok_or("a list of texts")?;
    items.iter().map(text).collect()
}

fn word<T>(value: &Value, named: impl Fn(&str) -> Option<T>) -> Result<T, &'static str> {
    let word = value.as_str().and_then(named);
    word.ok_or("not one of the words it can be")
}

fn truth(value: &Value) -> Result<bool, &'static str> {
    match value {
        Value::Bool(value) => Ok(*value),
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            Err("true or false")
        }
    }
}

fn whole(value: &Value) -> Result<u64, &'static str> {
    let number = value.as_decimal().and_then(|number| number.as_u64());
    number.ok_or("a whole number")
}

fn providers(value: &Value) -> Result<ProviderConstraints, &'static str> {
    let members = value.as_object().ok_or("an object")?;
    let mut constraints = ProviderConstraints::default();
    for (name, list) in members {
        match name.as_str() {
            "block_incompatible" => constraints.block = texts(list)?,
            "warn_incompatible" => constraints.warn = texts(list)?,
            _ => return Err("`block_incompatible` and `warn_incompatible`"),
        }
    }
    Ok(constraints)
}

/// Prices are decimals, as numbers or as texts: both are exact here.
fn prices(value: &Value) -> Result<Prices, &'static str> {
    const FORM: &str =
        "prices are `{ input, output, cache_read?, cache_write? }` by `provider/model`";
    let decimal = |value: Option<&Value>| {
        let value = value?;
        let text = value.as_str().and_then(|text| Decimal::parse(text).ok());
        let price = value.as_decimal().or(text)?;
        (price >= Decimal::ZERO).then_some(price)
    };
    let mut prices = Prices::default();
    for (model, entry) in value.as_object().ok_or(FORM)? {
        let members = entry.as_object().ok_or(FORM)?;
        let known = ["input", "output", "cache_read", "cache_write"];
        if !members.keys().all(|name| known.contains(&name.as_str())) {
            return Err(FORM);
        }
        let optional = |name: &str| match members.get(name) {
            None => Ok(None),
            Some(value) => decimal(Some(value)).map(Some).ok_or(FORM),
        };
        let price = Price {
            input: decimal(members.get("input")).ok_or(FORM)?,
            output: decimal(members.get("output")).ok_or(FORM)?,
            cache_read: optional("cache_read")?,
            cache_write: optional("cache_write")?,
        };
        prices.set(model, price);
    }
    Ok(prices)
}
