//! `reprise serve`: puts store, engine and server together, and takes them apart in order.

mod translate;

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use domain::Position;
use effects::{Confinement, Outside};
use engine::port::{Clock as _, Store};
use engine::{Engine, Parts};
use runs::workflow::{EXAMPLES, Registry, builtin};
use server::world::{RandomIds, SystemClock, TokioSpawn};
use server::{Bound, ServeError};
use store::{Options, SqliteStore};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::ServeArgs;
use crate::client::ADDRESS_FILE;
use crate::command::key::{FirstKey, OperatorListener, ensure_first_keys};
use crate::config::{self, Flags, Log, LogFormat, Settings};
use crate::exit::{Exit, OrHint, Problem};
use crate::locked_file::LockedFile;
use crate::output::{Output, inform};
use crate::webhook::{self, Webhook};
use crate::{signing, vault};

/// Runs the server until it is told to stop.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<Exit> {
    if args.print_config {
        Output::stdout().write(&config::print())?;
        return Ok(Exit::Ok);
    }
    let options = Options {
        full_sync: !args.unsafe_no_sync,
        ..Options::default()
    };
    let is_check = args.check_config;
    let settings = settings(args)?;
    if is_check {
        translate::config(&settings)?;
        crate::contracts::configured(&settings.contracts)?;
        webhooks(&settings)?;
        inform("the configuration can be used");
        return Ok(Exit::Ok);
    }
    start_logs(&settings.log)?;
    check_clock(SystemTime::now())?;
    let signals = Signals::new()?;
    let server = Server::start(&settings, options).await?;
    if !options.full_sync {
        inform("unsafe: commits are not synced; a power cut loses what was acknowledged");
    }
    if let FirstKey::Made(file) = &server.first_key {
        inform(format_args!(
            "created the first key, for everything except approvals: {}; the key for approvals is next to it",
            file.display()
        ));
    }
    inform(format_args!(
        "reprise {} on {}, data in {}",
        env!("CARGO_PKG_VERSION"),
        server.url,
        settings.data.display()
    ));
    server.serve(signals.stop()).await;
    Ok(Exit::Ok)
}

/// Refuses a clock that no answer can state: every one carries its time.
fn check_clock(now: SystemTime) -> anyhow::Result<()> {
    match now < UNIX_EPOCH {
        true => Err(Problem::new("the clock is set before 1970", "set the clock").into()),
        false => Ok(()),
    }
}

/// Says that others can read the private key of the certificate, when they can.
#[cfg(unix)]
fn warn_of_open_key(file: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(file).map(|found| found.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o007 != 0) {
        let file = file.display();
        tracing::warn!(
            "every user of this machine can read the TLS key `{file}`: take that right away (chmod o= {file})"
        );
    }
}

#[cfg(not(unix))]
fn warn_of_open_key(_: &std::path::Path) {}

fn settings(args: ServeArgs) -> anyhow::Result<Settings> {
    let flags = Flags {
        data: args.data,
        listen: args.listen,
        allow_plain_http: args.allow_plain_http,
        examples: args.examples,
        tls_cert: args.tls_cert,
        tls_key: args.tls_key,
    };
    config::of_process(args.config.as_deref(), flags)
}

fn start_logs(log: &Log) -> anyhow::Result<()> {
    let hint = "set log.level to error, warn, info, debug or trace, or to a list such as info,engine=debug";
    let level =
        Targets::from_str(&log.level).or_hint(format_args!("log level `{}`", log.level), hint)?;
    let colour = crate::output::is_coloured(std::io::stderr().is_terminal());
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colour);
    let registry = tracing_subscriber::registry().with(level);
    match log.format {
        LogFormat::Text => registry.with(layer).init(),
        LogFormat::Json => registry.with(layer.json()).init(),
    }
    Ok(())
}

/// A server that is ready to answer.
#[derive(Debug)]
pub(crate) struct Server {
    bound: Bound,
    engine: Engine,
    data: PathBuf,
    webhooks: Vec<Webhook>,
    outside: Outside,
    door: OperatorListener,
    address: LockedFile,
    /// Where this machine reaches it.
    pub(crate) url: String,
    /// What became of the first key.
    pub(crate) first_key: FirstKey,
}

impl Server {
    /// Takes the data directory, the address and the key file, and starts working.
    pub(crate) async fn start(settings: &Settings, options: Options) -> anyhow::Result<Self> {
        let config = translate::config(settings)?;
        let contracts = crate::contracts::configured(&settings.contracts)?;
        let webhooks = webhooks(settings)?;
        let data = settings.data.as_path();
        // Blocks for as long as the disk takes; nothing else runs yet.
        let store = SqliteStore::open(data, options).map_err(|error| {
            let hint = error.hint();
            Problem::new(error.to_string(), hint)
        })?;
        let store: Arc<dyn Store> = Arc::new(store);
        let bound = server::bind(config).await.map_err(|error| {
            let hint = match &error {
                ServeError::PlainHttp { .. } => {
                    "give --tls-cert and --tls-key, listen on 127.0.0.1, or say --allow-plain-http"
                }
                ServeError::Bind { .. } | ServeError::Tls { .. } => error.advice(),
            };
            Problem::new(error.to_string(), hint)
        })?;
        warn_of_open_key(&settings.tls.key);
        engine::settle_api_keys(&*store, SystemClock.now())
            .await
            .or_hint(
                "the API keys do not match the log",
                "`reprise log verify` names them; `reprise key revoke` revokes one that nobody created",
            )?;
        let first_key = ensure_first_keys(data, &*store).await?;
        signing::agree_with_log(data, &*store).await?;
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let origin = given(&settings.origin);
        let log = store.name().log();
        let mut authority = signing::authority_of(data, log, origin.as_deref())?;
        signing::log_rotation(data, &*store).await?;
        authority.id = given(&settings.issuer_id).unwrap_or(authority.id);
        authority.name = given(&settings.issuer_name).or(authority.name);
        let vault = vault::open(data)?;
        let outside = Outside::new(
            translate::outside(settings),
            Some(vault.clone()),
            Confinement::by_this_program(vec![data.to_owned()]),
        )
        .or_hint(
            "the configuration of providers and tools",
            "see docs/agents.md",
        )?;
        let fields = &settings.fields;
        let embeddings = match fields.embeddings_provider.as_str() {
            "" => None,
            provider => {
                let found = outside.embeddings(provider, &fields.embeddings_model);
                Some(found.or_hint("the configuration of fields", "see docs/memory.md")?)
            }
        };
        for warning in outside.warnings() {
            tracing::warn!("{warning}");
        }
        let stored_bytes_max = stored_bytes_max(settings, &*store);
        let engine = Engine::start(Parts {
            store,
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            spawn: Arc::new(TokioSpawn),
            performer: Arc::new(outside.clone()),
            secrets: Some(Arc::new(vault)),
            workflows: workflows(settings.examples),
            authority,
            limits: translate::limits(&settings.limits, stored_bytes_max),
        })
        .await
        .or_hint(
            "the engine did not start",
            "check that the disk has room; `reprise log verify` checks the data directory",
        )?;
        engine.set_contracts(contracts);
        engine.set_fields(translate::fields(&settings.fields));
        if let Some(embeddings) = embeddings {
            engine.set_embedder(Arc::new(embeddings));
        }
        engine.set_demands(translate::demands(&settings.governed));
        crate::witness::load(data, &engine)?;
        let door = OperatorListener::open(data).await?;
        let url = local_url(&bound);
        let address = LockedFile::write(data, ADDRESS_FILE, &format!("{url}\n")).or_hint(
            format_args!("`{}`", data.join(ADDRESS_FILE).display()),
            "check that the disk has room and lets this user write",
        )?;
        Ok(Self {
            bound,
            engine,
            outside,
            door,
            data: data.to_path_buf(),
            webhooks,
            address,
            url,
            first_key,
        })
    }

    /// Answers until `stop`, then drains.
    pub(crate) async fn serve(self, stop: impl Future<Output = ()> + Send) {
        let witnesses = tokio::spawn(crate::witness::post_heads(self.data, self.engine.clone()));
        let told = self.webhooks.into_iter();
        let told = told
            .map(|webhook| tokio::spawn(webhook::announce_approvals(webhook, self.engine.clone())));
        let told: Vec<_> = told.collect();
        let operator = tokio::spawn(self.door.serve(self.engine.clone()));
        self.bound.serve(self.engine, stop).await;
        witnesses.abort();
        for webhook in told {
            webhook.abort();
        }
        operator.abort();
        // Processes of MCP servers end with ours.
        self.outside.shutdown().await;
        drop(self.address);
    }
}

/// Reads the webhooks, with their secrets from the environment.
fn webhooks(settings: &Settings) -> anyhow::Result<Vec<Webhook>> {
    webhook::configured(&settings.approval_webhooks, |name| std::env::var(name).ok())
}

/// Returns how much may be stored: what the operator says, or so much that the disk is not filled. With the quarter that is
/// kept for those below their share it stays below nine tenths of what there is.
fn stored_bytes_max(settings: &Settings, store: &dyn Store) -> u64 {
    const MIB: u64 = 1024 * 1024;
    let said = settings.limits.stored_mib_max.count() as u64;
    if said > 0 {
        return said * MIB;
    }
    let Ok(disk) = rustix::fs::statvfs(&settings.data) else {
        return u64::MAX;
    };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let stored = store.stored(Position::START);
    let stored = stored.map_or(0, |stored| stored.total);
    free.saturating_add(stored) / 10 * 7
}

/// Returns every workflow that ever wrote a log; the examples only for what is on record, unless they are switched on.
fn workflows(examples: bool) -> Registry {
    let all = Registry::new(builtin());
    match examples {
        true => all,
        false => all.only_recorded(EXAMPLES),
    }
}

/// Returns where clients on this machine find the server: an address that means "all" is no destination.
fn local_url(bound: &Bound) -> String {
    let address = bound.address();
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let scheme = bound.url().split("://").next().unwrap_or("http").to_owned();
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

/// The signals that stop a server: somebody asks, or the terminal it was started from is gone.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Begins to listen: from here on a signal is not lost.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let hint = "check the limits of this process";
        Ok(Self {
            terminate: signal(SignalKind::terminate())
                .or_hint("cannot listen for signals", hint)?,
            interrupt: signal(SignalKind::interrupt())
                .or_hint("cannot listen for signals", hint)?,
            hangup: signal(SignalKind::hangup()).or_hint("cannot listen for signals", hint)?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }

    /// Returns after the first signal; a second one ends the process at once.
    pub(crate) async fn stop(mut self) {
        self.next().await;
        inform("stopping; a second signal stops at once");
        tokio::spawn(async move {
            self.next().await;
            // What was acknowledged is durable; there is nothing to lose but the leases, which the next start takes.
            std::process::exit(Exit::Fault.code().into());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f15_a_clock_before_1970_stops_the_start() {
        let before = UNIX_EPOCH - std::time::Duration::from_secs(1);
        let error = check_clock(before).unwrap_err();
        assert!(error.to_string().contains("before 1970"), "{error}");
        assert!(check_clock(UNIX_EPOCH).is_ok());
    }
}
