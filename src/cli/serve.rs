//! `confrev serve`: its options, and the start of all servers and tasks.

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::{Router, extract::Request, middleware::map_request};
use clap::{Args, builder::NonEmptyStringValueParser};
use jiff::SignedDuration;
use tokio::{net::TcpListener, signal::unix::SignalKind, sync::watch};
use tokio_rustls::rustls::ServerConfig;

use super::{
    duration::signed_duration,
    flags::{InheritedFlags, KindFlag, RotatedFlag},
    limits::LimitOptions,
    notifications::{NotifyError, NotifyFlags},
};
use crate::{
    admission,
    cluster::{self, IdentityError, KeyKeeper, KubeApi, Lease, Reach},
    controller::{self, Leadership, Shared, State},
    notify::Notifier,
    schema::Schemas,
    server,
    snapshot::{CopiedLabel, CopiedLabelError},
    telemetry::{self, Metrics, Readiness, Traces, log},
    tls::{self, WebhookUrl, webhooks},
    world::{DigestKeys, RefusedList, Served},
};

/// How long requests are still served after the replica becomes unready: endpoints follow with a delay.
const LAME_DUCK: Duration = Duration::from_secs(3);
/// Task polls between two checks of timers and sockets. tokio's default is 61.
const EVENT_INTERVAL: u32 = 16;
/// The namespaces that the webhook configurations always exclude, in addition to confrev's own.
const EXCLUDED: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// Options of `serve`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one for each flag")]
pub(super) struct ServeOptions {
    /// The address on which admission is served, over TLS. `[::]` includes IPv4.
    #[arg(long, env = "CONFREV_LISTEN", default_value = "[::]:8443", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// The address on which /healthz, /readyz and /metrics are served, in plain HTTP.
    #[arg(long, env = "CONFREV_ADMIN_LISTEN", default_value = "[::]:8080", value_name = "ADDRESS")]
    admin_listen: SocketAddr,
    /// A mounted Secret with tls.crt and tls.key; re-read when it changes.
    #[arg(long, env = "CONFREV_TLS_DIR", value_name = "DIR")]
    tls_dir: Option<PathBuf>,
    /// Serve with certificates of confrev's own CA, which the replicas share in a Secret. Also keep the caBundle of the
    /// webhook configurations correct.
    #[arg(long, env = "CONFREV_SELF_SIGNED")]
    self_signed: bool,
    /// Answer only clients with a certificate of a CA in this file (PEM), such as the API server; re-read when it changes.
    #[arg(long, env = "CONFREV_CLIENT_CA", value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// The common name or DNS name of the client's certificate, or several, one of which must match. Without it, any
    /// certificate is accepted.
    #[arg(long = "client-name", env = "CONFREV_CLIENT_NAME", value_name = "NAME", value_delimiter = ',',
          value_parser = NonEmptyStringValueParser::new(), requires = "client_ca")]
    client_names: Vec<String>,
    /// Add the name of the user who changed a source to the annotation changed-by of its snapshot. Needs --client-ca.
    // Without a client certificate, anyone who reaches the port could give any name.
    #[arg(long, env = "CONFREV_RECORD_USERS")]
    record_users: bool,
    /// Point the webhook configurations at this URL instead of the Service, for running outside the cluster.
    #[arg(long, env = "CONFREV_WEBHOOK_URL", value_name = "URL")]
    webhook_url: Option<WebhookUrl>,
    /// The namespace in which confrev is installed.
    #[arg(long, env = "CONFREV_NAMESPACE", default_value = "confrev", value_name = "NAMESPACE")]
    namespace: String,
    /// Further namespaces that the webhook configurations exclude: nothing is rolled there.
    #[arg(long, env = "CONFREV_EXCLUDED_NAMESPACES", value_name = "NAMESPACE", value_delimiter = ',')]
    excluded_namespaces: Vec<String>,
    /// The only namespaces that confrev serves. In others, it writes nothing and reads no ConfigMap or Secret.
    /// Without it, every namespace that is not excluded.
    #[arg(long, env = "CONFREV_NAMESPACES", value_name = "NAMESPACE", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// How long a snapshot without references is kept.
    #[arg(long, env = "CONFREV_ORPHAN_GRACE", default_value = "10m", value_name = "DURATION", value_parser = signed_duration)]
    orphan_grace: SignedDuration,
    /// Automatic rolls per second, over all workloads. After an idle second, this many may start at once.
    #[arg(long, env = "CONFREV_ROLL_RATE", default_value_t = controller::Config::default().rolls_per_second,
          value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    roll_rate: u32,
    /// How long a change of a source waits for an apply of the workload that includes it. Both together then make one new
    /// revision.
    #[arg(long, env = "CONFREV_SETTLE", default_value = "1s", value_name = "DURATION", value_parser = signed_duration)]
    settle: SignedDuration,
    /// Keep the state of each change in the annotation confrev.dev/change of its source, unless the source has
    /// confrev.dev/report=false.
    #[arg(long, env = "CONFREV_REPORT_CHANGES")]
    report_changes: bool,
    /// Snapshot the Secrets of workloads that request it. Without this flag, confrev reads no Secret of a workload, and needs
    /// no right to read one.
    #[arg(long, env = "CONFREV_SECRETS")]
    secrets: bool,
    /// Labels to copy from a source to its snapshots, so that backup and policy tools treat both in the same way.
    #[arg(long, env = "CONFREV_COPIED_LABELS", default_value = "velero.io/exclude-from-backup", value_name = "LABEL",
          value_delimiter = ',', value_parser = copied_label)]
    copied_labels: Vec<CopiedLabelFlag>,
    #[command(flatten)]
    kinds: KindFlag,
    #[command(flatten)]
    rotated: RotatedFlag,
    #[command(flatten)]
    inherited: InheritedFlags,
    #[command(flatten)]
    limits: LimitOptions,
    /// The collector for traces, as OTLP over HTTP, such as http://collector:4318. Default: the value of
    /// OTEL_EXPORTER_OTLP_ENDPOINT. If neither is set, there are no traces.
    #[arg(long, env = "CONFREV_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
    #[command(flatten)]
    notifications: NotifyFlags,
    /// The format of the log, on standard error.
    #[arg(long, env = "CONFREV_LOG_FORMAT", value_enum, default_value_t = log::LogFormat::Text, value_name = "FORMAT")]
    log_format: log::LogFormat,
}

impl ServeOptions {
    /// Why the options are invalid together. An environment variable with the value `false` counts as an option that is
    /// not given. The parser's own groups would count it as given.
    pub(super) fn wrong(&self) -> Option<String> {
        let wrong = match (&self.tls_dir, self.self_signed) {
            (None, false) => Some("no certificate to serve with: give --tls-dir DIR or --self-signed"),
            (Some(_), true) => Some("--tls-dir and --self-signed: give one of them, not both"),
            _ if self.record_users && self.client_ca.is_none() => Some(
                "--record-users needs --client-ca FILE: without it, anyone who reaches the port could give any name",
            ),
            _ => None,
        };
        wrong.map(str::to_owned).or_else(|| self.notifications.wrong())
    }
}

/// A label to copy; `None` for an empty text, which turns the default off.
type CopiedLabelFlag = Option<CopiedLabel>;

fn copied_label(text: &str) -> Result<CopiedLabelFlag, CopiedLabelError> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

/// Why serving did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    /// The log could not be set up.
    #[error(transparent)]
    Log(#[from] log::LogError),
    /// Traces could not be set up.
    #[error("--otlp-endpoint: {0}")]
    Traces(#[from] telemetry::traces::TracesError),
    /// The runtime could not start its threads.
    #[error("cannot start the runtime: {0}")]
    Runtime(#[source] io::Error),
    /// An address could not be bound.
    #[error("{option} {address}: {source}")]
    Listen {
        /// The option.
        option: &'static str,
        /// Its value.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No client for the cluster.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No certificate to serve with.
    #[error("{}", telemetry::causes(.0))]
    Tls(#[source] Box<tls::TlsError>),
    /// Notifications cannot be sent.
    #[error(transparent)]
    Notify(#[from] NotifyError),
    /// No key for the digests of Secrets.
    #[error(transparent)]
    Key(#[from] cluster::KeyError),
    /// A strategy or a default cannot be followed.
    #[error("{0}")]
    Inherited(String),
    /// A task that must never end has ended.
    #[error("{task} ended, which is a defect of confrev: {reason}")]
    Ended {
        /// The task.
        task: &'static str,
        /// How it ended.
        reason: String,
    },
}

/// Serves until SIGTERM or SIGINT; a second signal ends the process at once.
pub(super) fn run(options: ServeOptions) -> Result<(), ServeError> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    // Timers and sockets are checked after this many polls: a client that makes each poll long must not delay others.
    let runtime = runtime.event_interval(EVENT_INTERVAL).enable_all().build().map_err(ServeError::Runtime)?;
    let endpoint = Traces::endpoint(options.otlp_endpoint.as_deref(), |name| std::env::var(name).ok());
    let traces = endpoint.map(|endpoint| Traces::start(&endpoint, runtime.handle())).transpose()?;
    log::init(options.log_format, traces.as_ref())?;
    let result = runtime.block_on(run_servers(options));
    if let Some(traces) = traces {
        traces.shut_down();
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// The controller's settings.
fn controller_config(options: &ServeOptions) -> controller::Config {
    controller::Config {
        settle: options.settle,
        orphan_grace: options.orphan_grace,
        rolls_per_second: options.roll_rate,
        max_snapshots: options.limits.of_reviews().snapshots,
        secrets: options.secrets,
    }
}

async fn run_servers(options: ServeOptions) -> Result<(), ServeError> {
    let inherited = options.inherited.in_force().map_err(ServeError::Inherited)?;
    let (metrics, readiness) = (Metrics::new(), Readiness::new());
    let conditions = ["caches", "certificate", "webhook configurations", "API server"]
        .map(|name| readiness.register(name));
    let [caches, certificate, webhooks_right, reachable] = conditions;
    let reach = Reach::new(reachable);
    let admission_listener = listen("--listen", options.listen).await?;
    let admin_listener = listen("--admin-listen", options.admin_listen).await?;
    let (stop, stopping) = watch::channel(false);
    // The admin server runs until the program ends, so that /readyz can report the shutdown.
    tokio::spawn(server::serve(
        admin_listener,
        telemetry::admin::router(readiness.clone(), metrics.clone()),
        server::Transport::Plain,
        options.limits.of_admin(),
        metrics.clone(),
        watch::channel(false).1,
        std::future::pending(),
    ));

    let client = cluster::client(&options.namespace).await?;
    let source = certificate_source(&options, &client, &metrics, certificate).await?;
    let tls = tls_config(&options, &source)?;
    let keeper = webhooks::Keeper::new(
        client.clone(),
        &options.namespace,
        options.webhook_url.clone(),
        source.clone(),
        webhooks_right,
    );
    let kept = source.clone();
    let keepers =
        [tokio::spawn(async move { kept.run().await }), tokio::spawn(async move { keeper.run().await })];

    let kinds = options.kinds.in_force();
    let (keys, refused) = (DigestKeys::default(), RefusedList::default());
    let rotated = options.rotated.in_force();
    let state = State::new(Arc::clone(&kinds), controller_config(&options))
        .under(inherited.clone())
        .reporting(options.report_changes)
        .keyed_by(keys.clone())
        .refusing(refused.clone())
        .serving(served(&options))
        .naming_at_most(options.limits.of_reviews().reads)
        .keeping_at_most(options.limits.snapshot_bytes())
        .leaving(rotated.clone());
    let shared = Shared::new(notifying(state, &options, &metrics).await?, caches);
    let api = KubeApi::new(client.clone(), Arc::clone(&kinds), metrics.clone())
        .under(inherited)
        .keyed_by(keys.clone())
        .refusing(refused)
        .with_max_names(options.limits.of_reviews().reads)
        .leaving(rotated)
        .copying(options.copied_labels.iter().flatten().cloned());
    // Before any decision: without the key, digests of Secrets would be different.
    let key_keeper = if options.secrets {
        Some(KeyKeeper::start(api.clone(), &options.namespace, keys).await?)
    } else {
        None
    };
    let keyed = shared.clone();
    let key_keeper =
        key_keeper.map(|keeper| tokio::spawn(async move { keeper.run(move || keyed.reconcile_all()).await }));
    let leadership = Leadership::default();
    let [mut leader, probe] =
        start_leader(&client, &options.namespace, &shared, &leadership, &reach, (&metrics, &stopping));
    let schemas = Schemas::default().at_once(options.limits.checks());
    let mut controller = start_controller(&api, &shared, &schemas, leadership, (&metrics, &stopping));
    let mut watches =
        tokio::spawn(controller::watch_all(api.clone(), shared.clone(), options.namespace.clone()));

    let limits = options.limits.of_reviews();
    let counted = metrics.clone();
    let users = options.record_users.then(admission::Authors::default);
    let recorder = users.clone().map(|users| tokio::spawn(users.run(api.clone(), shared.clone())));
    let secrets = options.secrets;
    let context = admission::Context { api, kinds, secrets, limits, shared, metrics, schemas, users };
    let router = admission_router(context, &reach, &stopping);
    let (drain, draining) = watch::channel(false);
    let limits = options.limits.of_connections();
    let serving =
        server::serve(admission_listener, router, tls, limits, counted, reach.cut_off(), until(draining));
    let server = tokio::spawn(serving);

    let result = tokio::select! {
        () = terminated() => Ok(()),
        ended = &mut watches => Err(ended_early("the task of the watches", &ended)),
        ended = &mut controller => Err(ended_early("the controller's loop", &ended)),
        ended = &mut leader => Err(ended_early("the task of the Lease", &ended)),
    };
    tokio::spawn(abort_on_second_signal());
    readiness.shut_down();
    // The Lease is released first: another replica takes over while this one still answers.
    let _ = stop.send(true);
    for task in [controller, leader].into_iter().filter(|task| !task.is_finished()) {
        let _ = task.await;
    }
    tokio::time::sleep(LAME_DUCK).await;
    let _ = drain.send(true);
    let _ = server.await;
    watches.abort();
    let others = keepers.iter().chain(&key_keeper).chain(&recorder).chain([&probe]);
    others.for_each(tokio::task::JoinHandle::abort);
    result
}

/// The routes of the webhooks. They tell when an API server calls, and ask clients to disconnect while the endpoints follow, so that no
/// connection is in use when the server closes it.
fn admission_router(
    context: admission::Context<KubeApi>,
    reach: &Reach,
    stopping: &watch::Receiver<bool>,
) -> Router {
    let called = reach.clone();
    let notice = move |request: Request| {
        called.called();
        std::future::ready(request)
    };
    let router = admission::router(context).layer(map_request(notice));
    server::ask_to_leave(router, [stopping.clone(), reach.cut_off()])
}

/// Starts the task of the Lease, and the one that notices a silent API server.
fn start_leader(
    client: &kube::Client,
    namespace: &str,
    shared: &Shared,
    leadership: &Leadership,
    reach: &Reach,
    (metrics, stop): (&Metrics, &watch::Receiver<bool>),
) -> [tokio::task::JoinHandle<()>; 2] {
    let (stating, unfit, changed) = (shared.clone(), shared.clone(), shared.changed());
    let lease = Lease::new(client.clone(), namespace, replica_identity())
        .stating(move || stating.lock().partly_known_namespaces());
    let unfit = move || unfit.unfit_to_lead();
    let lead = controller::lead(
        lease,
        leadership.clone(),
        changed,
        metrics.clone(),
        unfit,
        reach.clone(),
        stop.clone(),
    );
    let (probing, client, namespace) = (reach.clone(), client.clone(), namespace.to_owned());
    [tokio::spawn(lead), tokio::spawn(async move { probing.keep(client, &namespace).await })]
}

/// Starts the controller's loop.
fn start_controller(
    api: &KubeApi,
    shared: &Shared,
    schemas: &Schemas,
    leadership: Leadership,
    (metrics, stop): (&Metrics, &watch::Receiver<bool>),
) -> tokio::task::JoinHandle<()> {
    let (api, shared, schemas) = (api.clone(), shared.clone(), schemas.clone());
    tokio::spawn(controller::run(api, shared, schemas, leadership, metrics.clone(), stop.clone()))
}

/// The state, which passes its Events on if the options ask for notifications.
async fn notifying(state: State, options: &ServeOptions, metrics: &Metrics) -> Result<State, ServeError> {
    let Some(wanted) = options.notifications.in_force().await? else { return Ok(state) };
    let (notices, notifier) = Notifier::new(wanted, metrics.clone()).map_err(NotifyError::from)?;
    // It posts until the program ends: the last Events are posted while this replica stops.
    tokio::spawn(notifier.run());
    Ok(state.notifying(notices))
}

/// The error for a task that ended early: the process ends, since it must not continue without the task.
fn ended_early(task: &'static str, ended: &Result<(), tokio::task::JoinError>) -> ServeError {
    let reason = ended.as_ref().err().map_or_else(|| "it returned".to_owned(), ToString::to_string);
    ServeError::Ended { task, reason }
}

async fn listen(option: &'static str, address: SocketAddr) -> Result<TcpListener, ServeError> {
    server::listen(address).await.map_err(|source| ServeError::Listen { option, address, source })
}

/// The namespaces for which the webhooks are called.
fn served(options: &ServeOptions) -> Served {
    let excluded = EXCLUDED.map(str::to_owned).into_iter().chain([options.namespace.clone()]);
    Served::but(excluded.chain(options.excluded_namespaces.iter().cloned()))
        .only(options.namespaces.iter().cloned())
}

/// The TLS settings of the webhook port, and the clients that it accepts.
fn tls_config(
    options: &ServeOptions,
    source: &tls::CertificateSource,
) -> Result<Arc<ServerConfig>, ServeError> {
    let Some(file) = options.client_ca.clone() else {
        tracing::warn!(
            "the webhook port answers every client: without --client-ca, forged reviews cost reads and reveal names and \
             digests of ConfigMaps, and an apply of a workload does not check stored content against its schema"
        );
        return Ok(source.server_config());
    };
    let clients = tls::Clients::open(file, options.client_names.clone())
        .map_err(|error| ServeError::Tls(Box::new(error.into())))?;
    let config = source.server_config_for(&clients);
    tokio::spawn(async move { clients.run().await });
    Ok(config)
}

async fn certificate_source(
    options: &ServeOptions,
    client: &kube::Client,
    metrics: &Metrics,
    condition: telemetry::Condition,
) -> Result<tls::CertificateSource, ServeError> {
    let source = if let Some(dir) = &options.tls_dir {
        tls::CertificateSource::files(dir.clone(), metrics.clone(), condition)
    } else {
        let own = tls::SelfSignedOptions {
            namespace: options.namespace.clone(),
            webhook_url: options.webhook_url.clone(),
            lifetimes: tls::Lifetimes::default(),
        };
        tls::CertificateSource::self_signed(client.clone(), own, metrics.clone(), condition).await
    };
    source.map_err(|error| ServeError::Tls(Box::new(error)))
}

/// A unique name for this replica; another run of the same replica has another name.
fn replica_identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "confrev".to_owned());
    format!("{host}_{}_{}", std::process::id(), jiff::Timestamp::now().as_nanosecond())
}

async fn until(mut flag: watch::Receiver<bool>) {
    let _ = flag.wait_for(|set| *set).await;
}

/// Waits for SIGTERM or SIGINT.
async fn terminated() {
    let signal = |kind| async move {
        match tokio::signal::unix::signal(kind) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(error) => {
                tracing::warn!(%error, "cannot wait for a signal");
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = signal(SignalKind::terminate()) => {}
        () = signal(SignalKind::interrupt()) => {}
    }
    tracing::info!("stopping");
}

/// A second signal means that the process should not wait.
async fn abort_on_second_signal() {
    terminated().await;
    std::process::exit(1);
}
