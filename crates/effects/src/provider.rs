//! Model providers: a neutral request in, a neutral completion out, whatever is spoken on the wire.
//!
//! Owns the choice of provider and model, the price, and the shape of the answer. The wire formats are in
//! [`openai`] and [`anthropic`], attempts and their failures in [`http`], answers from a file in [`scripted`].

mod anthropic;
mod completion;
mod embeddings;
mod http;
mod openai;
mod scripted;

use std::sync::Arc;

use canon::Value;
use domain::{Egress, ModelUse, Observed, Seller};
use engine::port::Deltas;
use reqwest::Url;
use runs::workflow::{Effect, EffectOutcome};
use secrecy::ExposeSecret;

use crate::client::SharedClient;
use crate::config::{
    ApiKey, Config, ConfigError, IN_THE_CLEAR, ProviderConfig, ProviderKind, keeps_a_key,
};
use crate::outside::Outside;
use crate::prices::Prices;
use crate::scrub::Scrubber;
use crate::secrets::Secrets;
use completion::Completion;
pub use embeddings::Embeddings;
use http::{Attempts, Failure, Target};
use scripted::Script;

/// The configured providers, in their order.
#[derive(Debug)]
pub(crate) struct Providers {
    all: Vec<Arc<Provider>>,
    prices: Arc<Prices>,
}

#[derive(Debug)]
pub(crate) struct Provider {
    config: ProviderConfig,
    access: Access,
}

#[derive(Debug)]
enum Access {
    Http(Url, reqwest::Client),
    Script(Script),
}

/// How a call found its provider.
pub(crate) enum Choice {
    /// Nothing is configured, or the offline model is asked for by name.
    Offline,
    /// No provider of that name.
    Unknown(String),
    /// This one.
    Call(Call),
}

/// A call that knows where it goes.
pub(crate) struct Call {
    provider: Arc<Provider>,
    prices: Arc<Prices>,
}

/// The public service of the format.
const OPENAI: &str = "https://api.openai.com/v1";

/// The name of the built-in provider.
const OFFLINE: &str = "offline";

impl Providers {
    pub(crate) fn new(config: &Config, client: &SharedClient) -> Result<Self, ConfigError> {
        crate::config::check_ids(
            "provider",
            config.providers.iter().map(|one| one.id.as_str()),
        )?;
        let all = config
            .providers
            .iter()
            .map(|config| {
                let place = format!("provider `{}`", config.id);
                let access =
                    access(config, client).map_err(|problem| ConfigError::new(place, problem))?;
                Ok(Arc::new(Provider {
                    config: config.clone(),
                    access,
                }))
            })
            .collect::<Result<_, ConfigError>>()?;
        Ok(Self {
            all,
            prices: Arc::new(Prices::new(config.prices.clone())),
        })
    }

    /// Returns the model of a provider that makes vectors.
    pub(crate) fn embeddings(
        &self,
        outside: Outside,
        id: &str,
        model: &str,
    ) -> Result<Embeddings, ConfigError> {
        let wrong = |problem: String| ConfigError::new("fields.embeddings_provider", problem);
        let found = self.all.iter().find(|one| one.config.id == id);
        let provider = found.ok_or_else(|| wrong(format!("there is no provider `{id}`")))?;
        let (ProviderKind::Openai, Access::Http(_, client)) =
            (provider.config.kind, &provider.access)
        else {
            return Err(wrong(format!("provider `{id}` is not of kind openai")));
        };
        if model.is_empty() {
            return Err(wrong(
                "`fields.embeddings_model` says which model".to_owned(),
            ));
        }
        Ok(Embeddings {
            outside,
            provider: Arc::clone(provider),
            client: client.clone(),
            url: endpoint(&provider.config, OPENAI, "embeddings").map_err(wrong)?,
            model: model.to_owned(),
        })
    }

    /// The keys that providers need, with their ids.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&str, &ApiKey)> {
        self.all
            .iter()
            .filter_map(|one| Some((one.config.id.as_str(), one.config.api_key.as_ref()?)))
    }

    pub(crate) fn choose(&self, request: &Value) -> Choice {
        let found = match request.get("provider").and_then(Value::as_str) {
            None => self.all.first(),
            Some(id) => match self.all.iter().find(|one| one.config.id == id) {
                None if id != OFFLINE => return Choice::Unknown(id.to_owned()),
                found => found,
            },
        };
        match found {
            None => Choice::Offline,
            Some(provider) => Choice::Call(Call {
                provider: Arc::clone(provider),
                prices: Arc::clone(&self.prices),
            }),
        }
    }
}

fn access(config: &ProviderConfig, client: &SharedClient) -> Result<Access, String> {
    let (default, path) = match config.kind {
        ProviderKind::Openai => (OPENAI, "chat/completions"),
        ProviderKind::Anthropic => ("https://api.anthropic.com", "v1/messages"),
        ProviderKind::Scripted => {
            let file = config
                .file
                .as_ref()
                .ok_or("a scripted provider needs `file`")?;
            return Script::load(file).map(Access::Script);
        }
    };
    Ok(Access::Http(
        endpoint(config, default, path)?,
        client.get()?,
    ))
}

/// Returns the address of something that a provider offers.
fn endpoint(config: &ProviderConfig, default: &str, path: &str) -> Result<Url, String> {
    let base = config.base_url.as_deref().unwrap_or(default);
    let url = Url::parse(&format!("{}/{path}", base.trim_end_matches('/')))
        .map_err(|error| format!("`base_url` is not a valid URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("`base_url` must begin with http:// or https://".to_owned());
    }
    if config.api_key.is_some() && !keeps_a_key(&url) {
        return Err(IN_THE_CLEAR.replace("{member}", "base_url"));
    }
    Ok(url)
}

impl Call {
    /// Asks the model.
    pub(crate) async fn perform(
        &self,
        effect: &Effect,
        deltas: &Deltas,
        secrets: &Secrets,
    ) -> EffectOutcome {
        match &self.provider.access {
            Access::Script(script) => {
                let scrubber = secrets.scrubber();
                let answer = script.answer(effect);
                if let Some(delay) = answer.delay {
                    tokio::time::sleep(delay).await;
                }
                match answer.outcome {
                    Ok(completion) => {
                        for piece in scrubber.text(completion.text()).split_inclusive(' ') {
                            deltas.push(piece);
                        }
                        self.done(completion, &effect.request, None, &scrubber)
                    }
                    Err(error) => EffectOutcome {
                        ok: false,
                        ..EffectOutcome::ok(scrubber.texts(error))
                    },
                }
            }
            Access::Http(url, client) => self.over_http(client, url, effect, deltas, secrets).await,
        }
    }

    async fn over_http(
        &self,
        client: &reqwest::Client,
        url: &Url,
        effect: &Effect,
        deltas: &Deltas,
        secrets: &Secrets,
    ) -> EffectOutcome {
        let config = &self.provider.config;
        let request = &effect.request;
        let asked = request.get("model").and_then(Value::as_str);
        let Some(model) = asked.or(config.model.as_deref()) else {
            return EffectOutcome::error(
                "model_unknown",
                format!(
                    "provider `{}` has no default model and the request names none",
                    config.id
                ),
            );
        };
        let key = match config
            .api_key
            .as_ref()
            .map(|key| secrets.key(key))
            .transpose()
        {
            Ok(key) => key,
            Err(error) => return error.performed(),
        };
        let key = key.as_ref().map(ExposeSecret::expose_secret);
        // Only now: it must know the key.
        let scrubber = secrets.scrubber();
        let target = match config.kind {
            ProviderKind::Anthropic => Target {
                headers: anthropic::headers(key),
                body: anthropic::body(config, request, model),
                event: anthropic::event,
                whole: anthropic::whole,
            },
            ProviderKind::Openai | ProviderKind::Scripted => Target {
                headers: openai::headers(key),
                body: openai::body(config, request, model),
                event: openai::event,
                whole: openai::whole,
            },
        };
        let host = url.host_str().unwrap_or_default();
        let mut attempts = Attempts::default();
        let outcome = http::call(
            client,
            config,
            url,
            &target,
            deltas,
            &scrubber,
            &mut attempts,
        )
        .await;
        let observed = Observed {
            network_egress: (attempts.bytes_sent > 0)
                .then(|| Egress {
                    destination: host.to_owned(),
                    purpose: "model".to_owned(),
                    bytes_sent: Some(attempts.bytes_sent),
                })
                .into_iter()
                .collect(),
            ..Observed::default()
        };
        let mut performed = match outcome {
            Ok(mut completion) => {
                if completion.model.is_empty() {
                    completion.model = model.to_owned();
                }
                self.done(completion, request, Some(host), &scrubber)
            }
            Err(failure) => failure.performed(&config.id, attempts.count, &scrubber),
        };
        performed.observed = Some(observed);
        performed
    }

    fn done(
        &self,
        completion: Completion,
        request: &Value,
        host: Option<&str>,
        scrubber: &Scrubber,
    ) -> EffectOutcome {
        let provider = &self.provider.config.id;
        let usage = completion.usage_or_estimate(request);
        let seller = Seller {
            provider,
            host: host.unwrap_or_default(),
            model: &completion.model,
        };
        let cost = match (completion.usage, host) {
            // An answer from a file costs nothing, and that is known.
            (_, None) => Some((0, None)),
            (Some(usage), Some(_)) => self
                .prices
                .cost(seller, usage)
                .map(|(micros, table)| (micros, Some(table.to_owned()))),
            (None, Some(_)) => None,
        };
        let (cost_micros, price_table) = match cost {
            Some((micros, table)) => (Some(micros), table),
            None => (None, None),
        };
        let request_id = completion.request_id.as_deref();
        EffectOutcome {
            provider_request_id: request_id.map(|id| scrubber.text(id)),
            model: Some(ModelUse {
                provider: provider.clone(),
                model: scrubber.text(&completion.model),
                input_tokens: usage.input,
                output_tokens: usage.output,
                cost_micros,
                price_table,
                usage_unknown: completion.reported.is_some(),
            }),
            ..EffectOutcome::ok(scrubber.texts(completion.into_value(request)))
        }
    }
}

impl Choice {
    /// The error for a provider that nobody configured.
    pub(crate) fn unknown(id: &str) -> EffectOutcome {
        Failure::new(
            "provider_unknown",
            format!("no provider `{id}` is configured"),
        )
        .into_performed()
    }
}
