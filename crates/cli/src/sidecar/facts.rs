//! Facts about a run that only its caller knows: models, sampling, conditions, request ids.

use std::fs;
use std::path::{Path, PathBuf};

use ::sidecar::{AhdModel, AhdSampling, Conditions, Model, Sampling, looks_secret};
use anyhow::{Context as _, bail, ensure};
use canon::{Integers, Number, Value};

/// Models and how often each was asked.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Models and sampling")]
pub(super) struct ModelArgs {
    /// A model: id=…,provider=…[,reported=…][,endpoint=…][,calls=N][,tokens-in=N][,tokens-out=N].
    #[arg(long = "model", value_name = "FACTS", value_parser = parse_model)]
    models: Vec<Model>,
    /// Samples per cell.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    n: Option<u64>,
}

/// Models and how they were sampled.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Models and sampling")]
pub(super) struct FactArgs {
    #[command(flatten)]
    known: ModelArgs,
    /// Provider request ids: a JSON object from model id to list, a JSON list, or one id per line
    /// (the last two with exactly one --model).
    #[arg(long, value_name = "FILE")]
    request_ids: Option<PathBuf>,
    /// Temperature, when one was set.
    #[arg(long, allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Seed, when one was set for all samples.
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<i64>,
    /// A condition that was asked for; repeat for more.
    #[arg(long, value_name = "NAME")]
    condition_requested: Vec<String>,
    /// A condition that really ran; repeat for more.
    #[arg(long, value_name = "NAME")]
    condition_effective: Vec<String>,
}

/// Sampling that only the general sidecar records.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Models and sampling")]
pub(super) struct GeneralSamplingArgs {
    /// Seed of one sample; repeat in sample order.
    #[arg(long, value_name = "SEED", allow_negative_numbers = true)]
    sample_seed: Vec<i64>,
    /// Nucleus sampling bound, when one was set.
    #[arg(long)]
    top_p: Option<f64>,
    /// Bound on generated tokens, when one was set.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    max_tokens: Option<u64>,
    /// Calls in flight at a time.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    concurrency: Option<u64>,
}

impl GeneralSamplingArgs {
    /// Says whether none of the flags was given.
    pub(super) fn is_empty(&self) -> bool {
        self.sample_seed.is_empty()
            && self.top_p.is_none()
            && self.max_tokens.is_none()
            && self.concurrency.is_none()
    }
}

fn parse_model(text: &str) -> Result<Model, String> {
    let mut model = Model {
        id: String::new(),
        provider: String::new(),
        provider_request_ids: Vec::new(),
        reported_ids: None,
        endpoint: None,
        calls: None,
        tokens_in: None,
        tokens_out: None,
    };
    for part in text.split(',') {
        let (name, value) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` is not name=value"))?;
        let count = || {
            let count: Result<u64, _> = value.parse();
            count
                .map(|count| Some(Number::from(count)))
                .map_err(|_| format!("`{value}` is not a count"))
        };
        match name {
            "id" => model.id = value.to_owned(),
            "provider" => model.provider = value.to_owned(),
            "reported" => model
                .reported_ids
                .get_or_insert_default()
                .push(value.to_owned()),
            "endpoint" if looks_secret(value) => {
                return Err("the endpoint holds what looks like a credential".to_owned());
            }
            "endpoint" => model.endpoint = Some(value.to_owned()),
            "calls" => model.calls = count()?,
            "tokens-in" => model.tokens_in = count()?,
            "tokens-out" => model.tokens_out = count()?,
            _ => return Err(format!("`{name}` is not a fact about a model")),
        }
    }
    if model.id.is_empty() || model.provider.is_empty() {
        return Err("a model needs id=… and provider=…".to_owned());
    }
    Ok(model)
}

/// Whether the file of request ids is there to be read: the run itself may write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestIds {
    Pending,
    Attached,
}

impl ModelArgs {
    /// Returns the models in the form of AHD blocks, which know ids only.
    pub(super) fn ahd_models(&self) -> anyhow::Result<Vec<AhdModel>> {
        as_ahd(self.models.clone())
    }

    /// Returns the number of samples, which AHD blocks must hold.
    pub(super) fn samples(&self) -> anyhow::Result<Number> {
        self.n.map(Number::from).context("this kind needs --n")
    }
}

impl FactArgs {
    /// Returns the models, with their request ids when those are there.
    pub(super) fn models(&self, ids: RequestIds) -> anyhow::Result<Vec<Model>> {
        let mut models = self.known.models.clone();
        if let Some(path) = &self.request_ids
            && ids == RequestIds::Attached
        {
            let doing = || format!("cannot use the request ids in `{}`", path.display());
            attach_ids(path, &mut models).with_context(doing)?;
        }
        Ok(models)
    }

    /// Returns the same in the form of AHD blocks.
    pub(super) fn ahd_models(&self, ids: RequestIds) -> anyhow::Result<Vec<AhdModel>> {
        as_ahd(self.models(ids)?)
    }

    /// Returns the sampling of an AHD block.
    pub(super) fn ahd_sampling(&self) -> anyhow::Result<AhdSampling> {
        Ok(AhdSampling {
            n: self.known.samples()?,
            temperature: self.temperature()?,
            seed: self.seed.map(Number::from),
        })
    }

    /// Returns the general sampling, or nothing when no flag was given.
    pub(super) fn sampling(&self, more: &GeneralSamplingArgs) -> anyhow::Result<Option<Sampling>> {
        let seeds = (!more.sample_seed.is_empty())
            .then(|| more.sample_seed.iter().copied().map(Number::from).collect());
        let sampling = Sampling {
            n: self.known.n.map(Number::from),
            temperature: self.temperature()?,
            top_p: finite("--top-p", more.top_p)?,
            max_tokens: more.max_tokens.map(Number::from),
            seed: self.seed.map(Number::from),
            seeds,
            concurrency: more.concurrency.map(Number::from),
        };
        Ok((sampling != Sampling::default()).then_some(sampling))
    }

    fn temperature(&self) -> anyhow::Result<Option<Number>> {
        finite("--temperature", self.temperature)
    }

    /// Returns the conditions as given.
    pub(super) fn conditions(&self) -> Conditions {
        Conditions {
            requested: self.condition_requested.clone(),
            effective: self.condition_effective.clone(),
        }
    }
}

fn as_ahd(models: Vec<Model>) -> anyhow::Result<Vec<AhdModel>> {
    let plain = |model: &Model| {
        model.reported_ids.is_none()
            && model.endpoint.is_none()
            && model.calls.is_none()
            && model.tokens_in.is_none()
            && model.tokens_out.is_none()
    };
    ensure!(
        models.iter().all(plain),
        "blocks of this kind record id and provider of a model, nothing more"
    );
    let convert = |model: Model| AhdModel {
        id: model.id,
        provider: model.provider,
        provider_request_ids: model.provider_request_ids,
    };
    Ok(models.into_iter().map(convert).collect())
}

fn finite(flag: &str, value: Option<f64>) -> anyhow::Result<Option<Number>> {
    value
        .map(|value| {
            // Whole numbers are written without a fraction, as their writers mean them.
            let whole = value.fract() == 0.0 && value.abs() < 1e15;
            let number = if whole {
                Some(Number::from(value as i64))
            } else {
                Number::from_f64(value)
            };
            number.with_context(|| format!("{flag} must be a finite number"))
        })
        .transpose()
}

fn attach_ids(path: &Path, models: &mut [Model]) -> anyhow::Result<()> {
    let bytes = fs::read(path)?;
    match canon::read(&bytes, Integers::Doubles) {
        Ok(Value::Object(by_model)) => {
            for (id, ids) in by_model {
                let Some(model) = models.iter_mut().find(|model| model.id == id) else {
                    bail!("there is no --model with the id `{id}`");
                };
                model.provider_request_ids = strings(ids)?;
            }
            Ok(())
        }
        Ok(list @ Value::Array(_)) => {
            *only(models)? = strings(list)?;
            Ok(())
        }
        _ => {
            let text = String::from_utf8(bytes).context("neither JSON nor text")?;
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            *only(models)? = lines.map(str::to_owned).collect();
            Ok(())
        }
    }
}

fn only(models: &mut [Model]) -> anyhow::Result<&mut Vec<String>> {
    match models {
        [model] => Ok(&mut model.provider_request_ids),
        _ => bail!("a plain list of ids needs exactly one --model"),
    }
}

fn strings(value: Value) -> anyhow::Result<Vec<String>> {
    serde_json::from_value(value).context("request ids must be lists of strings")
}

/// Returns operating system and architecture in Node's names.
pub(super) fn node_platform() -> String {
    let os = match std::env::consts::OS {
        "macos" => "darwin",
        "windows" => "win32",
        other => other,
    };
    let arch = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        "x86" => "ia32",
        other => other,
    };
    format!("{os}-{arch}")
}

/// Returns the current time as sidecars write it.
pub(super) fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}
