//! `cadencia up`: binds, loads, serves, and stops in good order.
//!
//! **Invariant:** nothing on disk says that a node runs: no lock, no process id. A node that is
//! killed at any moment leaves nothing that the next start could trip over; a port file is written
//! anew by each start.

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use wire::Halves;

use super::Usage;
use super::args::Up;
use super::engine::road::Inbox;
use super::hive::HiveNode;
use super::http::{Api, Guard, Key, Ring, Server, router};
use super::library;
use super::line::Line;
use super::settings::{Secret, Settings};
use super::worker::{self, Far, Files, Phase, Serving, Source};

/// How long connections get to deliver their last bytes after their answers were cut off.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often whoever asks is told anew why there is no route yet.
const LOOK_AT_ROUTE: Duration = Duration::from_millis(500);
/// How long the swarm may take until it listens, and how often it is asked.
const LISTENING_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AT_ADDRESSES: Duration = Duration::from_millis(20);
/// How long a node that is to split its model over others waits for so many to be known.
const OTHERS_WITHIN: Duration = Duration::from_secs(5);
/// How often it counts them.
const LOOK_AT_OTHERS: Duration = Duration::from_millis(100);
/// Threads that speak HTTP. They wait most of the time; the processor is the model's.
const HTTP_THREADS: usize = 2;

/// Runs the daemon until it is told to stop.
pub fn up(flags: &Up, settings: Settings) -> Result<ExitCode> {
    if flags.print_config {
        write!(std::io::stdout(), "{}", settings.to_toml())?;
        return Ok(ExitCode::SUCCESS);
    }
    let addresses = addresses(&settings.api)?;
    let guard = guard(&addresses, &settings)?;
    let mut models = Vec::new();
    match library::find(settings.model.as_deref(), &settings.models_dirs) {
        Ok(path) => models.push(path),
        // A node may be there for others alone.
        Err(_) if settings.model.is_none() && settings.is_in_hive() => {}
        Err(error) => return Err(error.into()),
    }
    for also in &settings.also {
        models.push(library::find(Some(also), &settings.models_dirs)?);
    }
    let lend = settings.lend.iter();
    let lend = lend.map(|lend| library::find(Some(lend), &settings.models_dirs));
    let lend = lend.collect::<Result<_, _>>()?;
    if flags.hive_file.is_some() && !settings.is_in_hive() {
        let message = "--hive-file is for a node in a hive; --listen or --join makes it one";
        return Err(Usage(message.into()).into());
    }
    let draft = settings.draft.as_deref();
    let draft = draft.map(|draft| library::find(Some(draft), &settings.models_dirs)).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .thread_name("http")
        .enable_all()
        .build()
        .context("cannot start the threads that speak HTTP")?;
    let outcome =
        runtime.block_on(run(flags, settings, &addresses, guard, Paths { models, lend, draft }));
    // Work that is still under way is nobody's any more.
    runtime.shutdown_background();
    outcome
}

/// What `api` resolves to.
fn addresses(api: &str) -> Result<Vec<SocketAddr>> {
    let wrong = |why: String| Usage(format!("--api {api:?}: {why}; HOST:PORT is wanted"));
    let addresses = api.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    let addresses: Vec<_> = addresses.collect();
    match addresses.is_empty() {
        true => Err(wrong("no such host".into()).into()),
        false => Ok(addresses),
    }
}

/// The rules for who may speak to a node on `addresses`; refuses to be open to the world.
fn guard(addresses: &[SocketAddr], settings: &Settings) -> Result<Guard> {
    let loopback = addresses.iter().all(|address| address.ip().is_loopback());
    let key = settings.api_key.as_ref().map(|Secret(text)| Key::new(text));
    let (hosts, origins) = (settings.allowed_hosts.clone(), settings.cors_origins.clone());
    let keys = Arc::new(Ring::load(&settings.api_keys_file)?);
    let guard = Guard { loopback, hosts, origins, key, keys };
    if !loopback && guard.is_open() {
        let message = format!(
            "{} can be reached from other machines, so clients must show an API key: make one with \
             `cadencia keys add NAME`, or set CADENCIA_API_KEY, or api_key in the config file, or \
             listen on 127.0.0.1",
            settings.api
        );
        return Err(Usage(message).into());
    }
    Ok(guard)
}

/// The files of models.
struct Paths {
    models: Vec<PathBuf>,
    /// Those of which parts are lent, without serving them.
    lend: Vec<PathBuf>,
    draft: Option<PathBuf>,
}

async fn run(
    flags: &Up,
    settings: Settings,
    addresses: &[SocketAddr],
    guard: Guard,
    files: Paths,
) -> Result<ExitCode> {
    let mut signals = Ends::new(flags.stay_with_stdin)?;
    let listener = TcpListener::bind(addresses)
        .await
        .with_context(|| format!("cannot listen on {}", settings.api))?;
    let address = listener.local_addr().context("the listener has no address")?;
    for model in &files.models {
        tracing::info!(%address, model = %model.display(), "bound; the model is being loaded");
    }
    let port = format!("{}\n", address.port());
    if files.models.is_empty() {
        tracing::info!(%address, "bound; there is no model of this node's own");
    }
    let _port_file = flags.port_file.as_deref().map(|path| Told::write(path, &port)).transpose()?;

    let line = Line::new(settings.queue, settings.parallel * files.models.len());
    let (phase, phases) = watch::channel(Phase::Loading { done: 0, whole: 0 });
    let drain = Duration::from_secs(settings.drain_seconds);
    let hive = match settings.is_in_hive() {
        true => Some(HiveNode::start(&settings).await?),
        false => None,
    };
    let _hive_file = match (flags.hive_file.as_deref(), &hive) {
        (Some(path), Some(hive)) => Some(Told::write(path, &reachable(hive).await?)?),
        _ => None,
    };
    let starting = start(files, settings.clone(), line.clone(), phase, hive.clone());
    let mut end = tokio::spawn(starting);
    let alive = Duration::from_millis(settings.keep_alive_ms);
    let api = Api::new(line.clone(), phases.clone(), guard, hive.clone(), alive);
    let open = api.connections();
    let server = Server::new(listener, router(api), open);
    let announcing = tokio::spawn(announce(phases, settings, address));

    let mut failure = None;
    server
        .run(async {
            tokio::select! {
                signal = signals.next() => tracing::info!(signal, "stopping"),
                ended = &mut end => failure = Some(why(ended)),
            }
        })
        .await;
    announcing.abort();
    line.close();
    if let Some(error) = failure {
        return Err(error);
    }
    let code = stop(server, &line, drain, &mut signals).await;
    if let Some(hive) = hive {
        hive.stop().await;
    }
    code
}

/// Finds out where the models come from and lets the worker compute, to its end.
async fn start(
    files: Paths,
    settings: Settings,
    line: Arc<Line>,
    phase: watch::Sender<Phase>,
    hive: Option<HiveNode>,
) -> Result<()> {
    if let Some(hive) = &hive {
        for path in files.lend {
            hive.know(path).await?;
        }
    }
    let mut models = Vec::new();
    for (n, path) in files.models.into_iter().enumerate() {
        models.push(match hive.as_ref().filter(|_| n == 0) {
            Some(hive) => source(hive, path, &settings, &line, &phase).await?,
            None => Source::File(path),
        });
    }
    let end = worker::start(Files { models, draft: files.draft }, settings, line, phase)?;
    end.await.unwrap_or_else(|_| Err(anyhow!("the thread that computes is gone")))
}

/// Waits until `wanted` others are known, for a while: a route over fewer would be made at once, and
/// stay.
async fn others(hive: &HiveNode, wanted: usize, phase: &watch::Sender<Phase>) {
    let end = tokio::time::Instant::now() + OTHERS_WITHIN;
    while let Some(view) = hive.hub.look().await {
        let known = view.offers.len();
        if known >= wanted || tokio::time::Instant::now() >= end {
            if known < wanted {
                tracing::warn!(known, wanted, "so few other nodes are known");
            }
            return;
        }
        let why = format!("{known} of the {wanted} other nodes that are wanted are known");
        phase.send_replace(Phase::Waiting(why));
        tokio::time::sleep(LOOK_AT_OTHERS).await;
    }
}

/// Whether a model is computed here or over the hive; in the latter case, once there is a route.
async fn source(
    hive: &HiveNode,
    path: PathBuf,
    settings: &Settings,
    line: &Arc<Line>,
    phase: &watch::Sender<Phase>,
) -> Result<Source> {
    let manifest = hive.know(path.clone()).await?;
    let want = hive.wish(&manifest, settings);
    if want.fits_here() {
        tracing::info!("all of the model fits here, so it is not split");
        return Ok(Source::File(path));
    }
    others(hive, settings.stages as usize, phase).await;
    let ringing = line.clone();
    let inbox = Inbox::new(move || ringing.ring());
    let road = hive.want(want, inbox.clone()).await;
    let route = hive.hub.front(manifest.id());
    tokio::pin!(route);
    let front = loop {
        let why = road.route().err().unwrap_or_default();
        phase.send_replace(Phase::Waiting(why));
        tokio::select! {
            front = &mut route => break front.context("the hive is gone")?,
            () = tokio::time::sleep(LOOK_AT_ROUTE) => {}
        }
    };
    let page_secret = hive.page_secret();
    Ok(Source::Far(Box::new(Far { path, front, road, inbox, page_secret })))
}

/// Why the worker ended while the node was meant to go on.
fn why(ended: Result<Result<()>, tokio::task::JoinError>) -> anyhow::Error {
    match ended {
        Ok(Err(error)) => error,
        Ok(Ok(())) | Err(_) => anyhow!("the thread that computes ended by itself"),
    }
}

/// Lets answers finish for as long as `most`, then cuts them off. A second signal ends at once.
async fn stop(
    server: Server,
    line: &Arc<Line>,
    most: Duration,
    signals: &mut Ends,
) -> Result<ExitCode> {
    let drained = async {
        let drain = server.drain();
        tokio::pin!(drain);
        if tokio::time::timeout(most, &mut drain).await.is_err() {
            tracing::warn!(seconds = most.as_secs(), "answers are cut off");
            line.clear();
            let _ = tokio::time::timeout(FAREWELL, &mut drain).await;
        }
    };
    tokio::select! {
        () = drained => {
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
        signal = signals.next() => {
            tracing::warn!(signal, "ended at once");
            Ok(ExitCode::from(130))
        }
    }
}

/// Waits until the model answers, and says so in one line on stdout that scripts may wait for.
async fn announce(mut phases: watch::Receiver<Phase>, settings: Settings, address: SocketAddr) {
    let ready = |phase: &Phase| matches!(phase, Phase::Ready(_));
    let Ok(phase) = phases.wait_for(ready).await.map(|phase| phase.clone()) else { return };
    let Phase::Ready(served) = phase else { return };
    for also in served.models.iter().skip(1) {
        tracing::info!(model = also.speaker.name(), context = also.context, "is served, too");
    }
    let line = match served.models.first() {
        Some(first) => readiness(first, &settings, address),
        None => format!("no model of its own, computing for others, listening on http://{address}"),
    };
    // Who started us may have closed our stdout; that is no reason to stop.
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
}

/// What computes which model, with how much context, and where it listens.
fn readiness(serving: &Serving, settings: &Settings, address: SocketAddr) -> String {
    let summary = serving.speaker.model().summary();
    let split = match &serving.road {
        Some(_) => format!(", layers {} here", Halves::new(0, summary.part.halves.end)),
        None => String::new(),
    };
    format!(
        "{} ({}, {} layers{split}) on cpu with {} kernels and {} threads, context {}, \
         listening on http://{address}",
        serving.speaker.name(),
        summary.architecture,
        summary.layers,
        summary.kernels,
        settings.threads,
        serving.context,
    )
}

/// A file that tells others where this node is; removed when the node stops in good order.
struct Told(PathBuf);

impl Told {
    /// Written beside and moved into place, so that whoever reads it reads all of it.
    fn write(path: &Path, text: &str) -> Result<Self> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".part");
        std::fs::write(&beside, text)
            .and_then(|()| std::fs::rename(&beside, path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(path.into()))
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Where other nodes reach this one, one address a line with its name at the end.
async fn reachable(hive: &HiveNode) -> Result<String> {
    let end = tokio::time::Instant::now() + LISTENING_WITHIN;
    loop {
        let addresses = hive.hub.look().await.map_or(Vec::new(), |view| view.addresses);
        if !addresses.is_empty() {
            return Ok(addresses.iter().map(|at| format!("{at}/p2p/{}\n", hive.me)).collect());
        }
        if tokio::time::Instant::now() >= end {
            let waited = LISTENING_WITHIN.as_secs();
            bail!("the swarm does not listen after {waited} s; look at --listen");
        }
        tokio::time::sleep(LOOK_AT_ADDRESSES).await;
    }
}

/// What asks a daemon to stop: signals, and the end of whoever started it.
struct Ends {
    signals: Signals,
    /// Hears when stdin has ended; `None` where that means nothing, or was heard.
    stdin: Option<oneshot::Receiver<()>>,
}

impl Ends {
    fn new(stay_with_stdin: bool) -> Result<Self> {
        let stdin = stay_with_stdin.then(stdin_ended).transpose()?;
        Ok(Self { signals: Signals::new()?, stdin })
    }

    async fn next(&mut self) -> &'static str {
        let Some(stdin) = &mut self.stdin else { return self.signals.next().await };
        tokio::select! {
            signal = self.signals.next() => signal,
            _ = stdin => {
                self.stdin = None;
                "end of stdin"
            }
        }
    }
}

/// Hears when stdin has ended. Nothing else can be known of a parent that was killed without a
/// chance to say so.
fn stdin_ended() -> Result<oneshot::Receiver<()>> {
    let (tell, ended) = oneshot::channel();
    let read = move || {
        // What is written there means nothing, and an error is an end, too.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = tell.send(());
    };
    let thread = std::thread::Builder::new().name("stdin".into());
    thread.spawn(read).context("cannot start the thread that watches stdin")?;
    Ok(ended)
}

/// The signals that ask a daemon to stop.
pub struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system does not let us.
    pub fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// The next one's name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(not(unix))]
impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// None here.
    pub fn new() -> Result<Self> {
        Ok(Self {})
    }

    /// The next one's name.
    pub async fn next(&mut self) -> &'static str {
        if tokio::signal::ctrl_c().await.is_err() {
            // Without signals a node ends when it is killed, which does no harm.
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::{Layer, Sources};
    use super::*;

    fn settings(api: &str, key: Option<&str>) -> Settings {
        let flags = Layer {
            api: Some(api.into()),
            api_key: key.map(|key| Secret(key.into())),
            ..Layer::default()
        };
        Settings::of(Sources { flags, ..Sources::default() }, 1, "/models".into()).unwrap()
    }

    fn check(api: &str, key: Option<&str>) -> Result<Guard> {
        guard(&addresses(api)?, &settings(api, key))
    }

    #[test]
    fn an_address_beyond_this_machine_needs_a_key() {
        assert!(check("127.0.0.1:0", None).unwrap().loopback);
        assert!(check("[::1]:0", None).unwrap().loopback);
        for api in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let error = check(api, None).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains("CADENCIA_API_KEY"));
            assert!(!check(api, Some("k")).unwrap().loopback);
        }
    }

    #[test]
    fn an_address_that_is_none_is_a_usage_error() {
        for api in ["", "127.0.0.1", "127.0.0.1:99999", "8080"] {
            assert!(addresses(api).unwrap_err().is::<Usage>(), "{api:?}");
        }
    }
}
