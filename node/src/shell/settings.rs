//! What the user has set: built-in defaults, under the config file, under the environment, under
//! the command line's flags.
//!
//! Each source is a [`Layer`]; [`Settings::of`] lays them over one another and checks the result,
//! so that nothing later has to ask where a value came from or whether it is sound.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use compute::engine::KernelChoice;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::house::place::Cuts;

/// Threads that anyone may ask for; more than any machine has, few enough to start.
pub const THREADS_MAX: usize = 1024;
/// Requests that may be told to wait; each holds its prompt in memory.
pub const QUEUE_MAX: usize = 4096;
/// Requests of one model that anyone may ask to be answered at a time.
pub const PARALLEL_MAX: usize = 256;
/// As many as more than that would each be slow on a machine for the home.
const PARALLEL_DEFAULT: usize = 16;
/// Context without a wish of the user's, tokens. Enough for a long talk, and cheap to hold.
pub const CONTEXT_DEFAULT: usize = 8192;
/// How long a stop may take, seconds: a supervisor's patience.
const DRAIN_SECONDS_MAX: u64 = 3600;
/// Names or origins in one list.
const NAMES_MAX: usize = 64;
/// Disk for fetched parts without a wish of the user's: some large models' shares.
const DISK_MB_DEFAULT: u64 = 20_000;
/// Nodes that may compute a stage at a time.
const REPLICAS_MAX: u64 = 3;
/// Nodes that may stand by for a stage.
const SPARES_MAX: u64 = crate::house::place::SPARES_MAX as u64;
/// How long a stream may be silent, milliseconds: less than proxies wait.
const KEEP_ALIVE_MS_MAX: u64 = 600_000;

/// Why settings were refused. All of these are the user's to correct.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The file named on the command line or in the environment is not there.
    #[error("cannot read the config file {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no TOML, or has a key or value that is not known.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// Line, key and what is wrong with it.
        message: String,
    },
    /// An environment variable's text does not say what it must.
    #[error("{name}={text:?}: {wanted} is wanted")]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its text.
        text: String,
        /// What would be right.
        wanted: &'static str,
    },
    /// A value is out of its range, wherever it came from.
    #[error("{key} = {value} (from {source_name}): {wanted} is wanted")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Who set it.
        source_name: String,
        /// The range.
        wanted: String,
    },
}

/// Which kernels compute. Every choice gives the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernels {
    /// The fastest that this machine passes the self-test with.
    #[default]
    Auto,
    /// AVX2; refused where the machine has none.
    Avx2,
    /// Plain Rust, runs anywhere.
    Portable,
    /// The definition of the numeric class; very slow.
    Reference,
}

impl From<Kernels> for KernelChoice {
    fn from(kernels: Kernels) -> Self {
        match kernels {
            Kernels::Auto => KernelChoice::Auto,
            Kernels::Avx2 => KernelChoice::Avx2,
            Kernels::Portable => KernelChoice::Portable,
            Kernels::Reference => KernelChoice::Reference,
        }
    }
}

/// Whether tokens are guessed ahead. Answers are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Guessing {
    /// Where it has paid lately.
    #[default]
    On,
    /// Never.
    Off,
}

/// Text that must not be shown: it prints as `(hidden)`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("(hidden)")
    }
}

impl std::str::FromStr for Secret {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_string()))
    }
}

/// What one source sets; the keys are those of the config file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Path of a GGUF file, or a name in a models folder.
    pub model: Option<String>,
    /// Folders that hold models.
    pub models_dirs: Option<Vec<PathBuf>>,
    /// Where the API listens, `HOST:PORT`.
    pub api: Option<String>,
    /// What a client must present as `Authorization: Bearer`.
    pub api_key: Option<Secret>,
    /// Names, beside those of this machine, that clients may know the node by.
    pub allowed_hosts: Option<Vec<String>>,
    /// Origins whose pages may use the node.
    pub cors_origins: Option<Vec<String>>,
    /// After how long a silence a stream shows that it lives, milliseconds.
    pub keep_alive_ms: Option<u64>,
    /// File of the keys that `cadencia keys` makes.
    pub api_keys_file: Option<PathBuf>,
    /// Threads that compute.
    pub threads: Option<usize>,
    /// Which kernels.
    pub kernels: Option<Kernels>,
    /// Tokens that one conversation may hold.
    pub ctx: Option<usize>,
    /// Requests that may wait while one is answered.
    pub queue: Option<usize>,
    /// Further models that are served beside the first.
    pub also: Option<Vec<String>>,
    /// A smaller model of the same vocabulary that guesses for the first.
    pub draft: Option<String>,
    /// Requests of one model that are answered at a time.
    pub parallel: Option<usize>,
    /// Memory for KV caches of all models, megabytes.
    pub kv_mb: Option<u64>,
    /// Whether tokens are guessed ahead.
    pub guessing: Option<Guessing>,
    /// Whether this node is a seed: others find one another and reach one another through it.
    pub seed: Option<bool>,
    /// File for its bootstrap record.
    pub record: Option<PathBuf>,
    /// Whether this node founds a private hive.
    pub private: Option<bool>,
    /// Nodes or invitations by which a hive is joined.
    pub join: Option<Vec<String>>,
    /// Where other nodes reach this one, `HOST:PORT`; makes it part of a hive.
    pub listen: Option<String>,
    /// Where its lanes listen, `HOST:PORT`.
    pub lanes: Option<String>,
    /// Where others reach its lanes, if that is elsewhere: `HOST:PORT`.
    pub lanes_at: Option<String>,
    /// Folder of what the node must remember.
    pub state_dir: Option<PathBuf>,
    /// Models whose files are here and of which parts are lent, without serving them.
    pub lend: Option<Vec<String>>,
    /// Memory lent to other nodes, megabytes.
    pub lend_mb: Option<u64>,
    /// Disk for parts of models that are fetched from other nodes, megabytes.
    pub disk_mb: Option<u64>,
    /// Memory for this node's own part of a model that goes over a hive, megabytes.
    pub own_mb: Option<u64>,
    /// Other nodes among which a model is split, at least.
    pub stages: Option<u32>,
    /// Layers that one stage may have at most.
    pub stage_layers: Option<u32>,
    /// Where it may be cut.
    pub cuts: Option<Cuts>,
    /// Nodes that compute each stage at a time.
    pub replicate: Option<u32>,
    /// Nodes that stand by for each stage.
    pub spares: Option<u32>,
    /// Whether nodes of the local network are looked for.
    pub mdns: Option<bool>,
    /// How long a stopping node lets answers finish, seconds.
    pub drain_seconds: Option<u64>,
    /// Log filter, such as `info` or `warn,cadencia=debug`.
    pub log: Option<String>,
}

impl Layer {
    /// From a config file; a file that is not there sets nothing, unless it was asked for by name.
    pub fn read(path: &Path, asked_for: bool) -> Result<Self, SettingsError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(path, &text),
            Err(source) if source.kind() == std::io::ErrorKind::NotFound && !asked_for => {
                Ok(Self::default())
            }
            Err(source) => Err(SettingsError::Unreadable { path: path.into(), source }),
        }
    }

    /// From the text of a config file, which `path` names in errors.
    pub fn parse(path: &Path, text: &str) -> Result<Self, SettingsError> {
        toml::from_str(text).map_err(|error| SettingsError::File {
            path: path.into(),
            message: error.to_string().trim_end().to_string(),
        })
    }

    /// From environment variables, which `lookup` reads. An empty one counts as not set.
    pub fn from_env(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let text = |name: &'static str| lookup(name).filter(|text| !text.is_empty());
        Ok(Self {
            model: text("CADENCIA_MODEL"),
            models_dirs: text("CADENCIA_MODELS_DIRS")
                .map(|list| std::env::split_paths(&list).collect()),
            api: text("CADENCIA_API"),
            api_key: text("CADENCIA_API_KEY").map(Secret),
            allowed_hosts: list("CADENCIA_ALLOWED_HOSTS", &text),
            cors_origins: list("CADENCIA_CORS_ORIGINS", &text),
            keep_alive_ms: number("CADENCIA_KEEP_ALIVE_MS", &text)?,
            api_keys_file: text("CADENCIA_API_KEYS_FILE").map(PathBuf::from),
            threads: number("CADENCIA_THREADS", &text)?,
            kernels: match text("CADENCIA_KERNELS") {
                None => None,
                Some(word) => Some(Kernels::from_str(&word, true).map_err(|_| {
                    SettingsError::Environment {
                        name: "CADENCIA_KERNELS",
                        text: word,
                        wanted: "auto, avx2, portable or reference",
                    }
                })?),
            },
            ctx: number("CADENCIA_CTX", &text)?,
            queue: number("CADENCIA_QUEUE", &text)?,
            also: text("CADENCIA_ALSO").map(|list| list.split(',').map(str::to_string).collect()),
            draft: text("CADENCIA_DRAFT"),
            parallel: number("CADENCIA_PARALLEL", &text)?,
            kv_mb: number("CADENCIA_KV_MB", &text)?,
            guessing: match text("CADENCIA_GUESSING") {
                None => None,
                Some(word) => Some(Guessing::from_str(&word, true).map_err(|_| {
                    SettingsError::Environment {
                        name: "CADENCIA_GUESSING",
                        text: word,
                        wanted: "on or off",
                    }
                })?),
            },
            seed: switch("CADENCIA_SEED", &text)?,
            record: text("CADENCIA_RECORD").map(PathBuf::from),
            private: switch("CADENCIA_PRIVATE", &text)?,
            join: list("CADENCIA_JOIN", &text),
            listen: text("CADENCIA_LISTEN"),
            lanes: text("CADENCIA_LANES"),
            lanes_at: text("CADENCIA_LANES_AT"),
            state_dir: text("CADENCIA_STATE_DIR").map(PathBuf::from),
            lend: list("CADENCIA_LEND", &text),
            lend_mb: number("CADENCIA_LEND_MB", &text)?,
            disk_mb: number("CADENCIA_DISK_MB", &text)?,
            own_mb: number("CADENCIA_OWN_MB", &text)?,
            stages: number("CADENCIA_STAGES", &text)?,
            stage_layers: number("CADENCIA_STAGE_LAYERS", &text)?,
            cuts: match text("CADENCIA_CUTS") {
                None => None,
                Some(list) => Some(list.parse().map_err(|_| SettingsError::Environment {
                    name: "CADENCIA_CUTS",
                    text: list,
                    wanted: "layers, halves, alpha-beta, or ascending half-blocks such as 3,8",
                })?),
            },
            replicate: number("CADENCIA_REPLICATE", &text)?,
            spares: number("CADENCIA_SPARES", &text)?,
            mdns: switch("CADENCIA_MDNS", &text)?,
            drain_seconds: number("CADENCIA_DRAIN_SECONDS", &text)?,
            log: text("CADENCIA_LOG"),
        })
    }

    /// This layer, over `under`.
    fn over(self, under: Layer) -> Layer {
        Layer {
            model: self.model.or(under.model),
            models_dirs: self.models_dirs.or(under.models_dirs),
            api: self.api.or(under.api),
            api_key: self.api_key.or(under.api_key),
            allowed_hosts: self.allowed_hosts.or(under.allowed_hosts),
            cors_origins: self.cors_origins.or(under.cors_origins),
            keep_alive_ms: self.keep_alive_ms.or(under.keep_alive_ms),
            api_keys_file: self.api_keys_file.or(under.api_keys_file),
            threads: self.threads.or(under.threads),
            kernels: self.kernels.or(under.kernels),
            ctx: self.ctx.or(under.ctx),
            queue: self.queue.or(under.queue),
            also: self.also.or(under.also),
            draft: self.draft.or(under.draft),
            parallel: self.parallel.or(under.parallel),
            kv_mb: self.kv_mb.or(under.kv_mb),
            guessing: self.guessing.or(under.guessing),
            seed: self.seed.or(under.seed),
            record: self.record.or(under.record),
            private: self.private.or(under.private),
            join: self.join.or(under.join),
            listen: self.listen.or(under.listen),
            lanes: self.lanes.or(under.lanes),
            lanes_at: self.lanes_at.or(under.lanes_at),
            state_dir: self.state_dir.or(under.state_dir),
            lend: self.lend.or(under.lend),
            lend_mb: self.lend_mb.or(under.lend_mb),
            disk_mb: self.disk_mb.or(under.disk_mb),
            own_mb: self.own_mb.or(under.own_mb),
            stages: self.stages.or(under.stages),
            stage_layers: self.stage_layers.or(under.stage_layers),
            cuts: self.cuts.or(under.cuts),
            replicate: self.replicate.or(under.replicate),
            spares: self.spares.or(under.spares),
            mdns: self.mdns.or(under.mdns),
            drain_seconds: self.drain_seconds.or(under.drain_seconds),
            log: self.log.or(under.log),
        }
    }

    /// Its keys and values as the config file would have them.
    fn table(&self) -> toml::Table {
        toml::Table::try_from(self).expect("every key of a layer has a TOML form")
    }
}

/// A number from the environment variable `name`.
fn number<T: std::str::FromStr>(
    name: &'static str,
    text: &dyn Fn(&'static str) -> Option<String>,
) -> Result<Option<T>, SettingsError> {
    let Some(text) = text(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(SettingsError::Environment { name, text, wanted: "a whole number" }),
    }
}

/// Whether, from the environment variable `name`.
fn switch(
    name: &'static str,
    text: &dyn Fn(&'static str) -> Option<String>,
) -> Result<Option<bool>, SettingsError> {
    match text(name).as_deref() {
        None => Ok(None),
        Some("true" | "on" | "1") => Ok(Some(true)),
        Some("false" | "off" | "0") => Ok(Some(false)),
        Some(word) => {
            Err(SettingsError::Environment { name, text: word.into(), wanted: "true or false" })
        }
    }
}

/// A list from the environment variable `name`, its members separated by commas.
fn list(name: &'static str, text: &dyn Fn(&'static str) -> Option<String>) -> Option<Vec<String>> {
    let members = |text: String| text.split(',').map(|one| one.trim().to_string()).collect();
    text(name).map(members)
}

/// Where settings come from, lowest first, each with the name it has in messages.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The config file's, and where it is.
    pub file: (PathBuf, Layer),
    /// The environment's.
    pub env: Layer,
    /// The command line's.
    pub flags: Layer,
}

impl Sources {
    /// Who set `key`: the highest layer that has it.
    fn of(&self, key: &str) -> String {
        if self.flags.table().contains_key(key) {
            "the command line".into()
        } else if self.env.table().contains_key(key) {
            format!("CADENCIA_{}", key.to_uppercase())
        } else if self.file.1.table().contains_key(key) {
            self.file.0.display().to_string()
        } else {
            "default".into()
        }
    }
}

/// Settings that are complete and sound.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Path of a GGUF file, or a name in a models folder.
    pub model: Option<String>,
    /// Folders that hold models; names are looked up in them, first to last.
    pub models_dirs: Vec<PathBuf>,
    /// Where the API listens, `HOST:PORT`.
    pub api: String,
    /// What a client must present.
    pub api_key: Option<Secret>,
    /// Names, beside those of this machine, that clients may know the node by; without port.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may use the node, such as `https://chat.example`.
    pub cors_origins: Vec<String>,
    /// After how long a silence a stream shows that it lives, milliseconds.
    pub keep_alive_ms: u64,
    /// File of the keys that `cadencia keys` makes; it need not be there.
    pub api_keys_file: PathBuf,
    /// Threads that compute, 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Which kernels.
    pub kernels: Kernels,
    /// Tokens that one conversation may hold; `None` lets the model and the memory decide.
    pub ctx: Option<usize>,
    /// Requests that may wait, 0 to [`QUEUE_MAX`].
    pub queue: usize,
    /// Further models that are served beside the first.
    pub also: Vec<String>,
    /// A smaller model of the same vocabulary that guesses for the first.
    pub draft: Option<String>,
    /// Requests of one model that are answered at a time, 1 to [`PARALLEL_MAX`].
    pub parallel: usize,
    /// Memory for KV caches of all models, megabytes; `None` lets the machine decide.
    pub kv_mb: Option<u64>,
    /// Whether tokens are guessed ahead.
    pub guessing: Guessing,
    /// Whether this node is a seed: others find one another and reach one another through it.
    pub seed: bool,
    /// File for its bootstrap record.
    pub record: Option<PathBuf>,
    /// Whether this node founds a private hive.
    pub private: bool,
    /// Nodes or invitations by which a hive is joined.
    pub join: Vec<String>,
    /// Where other nodes reach this one, `HOST:PORT`.
    pub listen: Option<String>,
    /// Where its lanes listen; `None` for the port after that of `listen`.
    pub lanes: Option<String>,
    /// Where others reach its lanes, if that is elsewhere, as behind a port that is forwarded.
    pub lanes_at: Option<String>,
    /// Folder of what the node must remember: its key, its peers.
    pub state_dir: PathBuf,
    /// Models whose files are here and of which parts are lent, without serving them.
    pub lend: Vec<String>,
    /// Memory lent to other nodes, megabytes; `None` for half of what is free.
    pub lend_mb: Option<u64>,
    /// Disk for parts of models that are fetched from other nodes, megabytes.
    pub disk_mb: u64,
    /// Memory for this node's own part of a model that goes over a hive, megabytes; `None` for what is
    /// free.
    pub own_mb: Option<u64>,
    /// Other nodes among which a model is split, at least; 0 leaves that to the planner.
    pub stages: u32,
    /// Layers that one stage may have at most; 0 leaves that to the planner.
    pub stage_layers: u32,
    /// Where a model may be cut.
    pub cuts: Cuts,
    /// Nodes that compute each stage at a time, 1 to 3.
    pub replicate: u32,
    /// Nodes that stand by for each stage, 0 to 2.
    pub spares: u32,
    /// Whether nodes of the local network are looked for.
    pub mdns: bool,
    /// How long a stopping node lets answers finish, seconds.
    pub drain_seconds: u64,
    /// Log filter; `None` where nobody set one.
    pub log: Option<String>,
    sources: Sources,
}

impl Settings {
    /// Lays `sources` over the defaults: `cores` threads and the folder `models_dir`.
    pub fn of(sources: Sources, cores: usize, models_dir: PathBuf) -> Result<Self, SettingsError> {
        let top = sources.flags.clone().over(sources.env.clone()).over(sources.file.1.clone());
        let settings = Self {
            model: top.model,
            models_dirs: top.models_dirs.unwrap_or_else(|| vec![models_dir.clone()]),
            api: top.api.unwrap_or_else(|| "127.0.0.1:8080".into()),
            api_key: top.api_key,
            allowed_hosts: top.allowed_hosts.unwrap_or_default(),
            cors_origins: top.cors_origins.unwrap_or_default(),
            keep_alive_ms: top.keep_alive_ms.unwrap_or(10_000),
            api_keys_file: top
                .api_keys_file
                .unwrap_or_else(|| sources.file.0.with_file_name("api-keys.toml")),
            threads: top.threads.unwrap_or(cores),
            kernels: top.kernels.unwrap_or_default(),
            ctx: top.ctx,
            queue: top.queue.unwrap_or(32),
            also: top.also.unwrap_or_default(),
            draft: top.draft,
            parallel: top.parallel.unwrap_or(PARALLEL_DEFAULT),
            kv_mb: top.kv_mb,
            guessing: top.guessing.unwrap_or_default(),
            seed: top.seed.unwrap_or(false),
            record: top.record,
            private: top.private.unwrap_or(false),
            join: top.join.unwrap_or_default(),
            listen: top.listen,
            lanes: top.lanes,
            lanes_at: top.lanes_at,
            state_dir: top.state_dir.unwrap_or_else(|| models_dir.with_file_name("state")),
            lend: top.lend.unwrap_or_default(),
            lend_mb: top.lend_mb,
            disk_mb: top.disk_mb.unwrap_or(DISK_MB_DEFAULT),
            own_mb: top.own_mb,
            stages: top.stages.unwrap_or(0),
            stage_layers: top.stage_layers.unwrap_or(0),
            cuts: top.cuts.unwrap_or_default(),
            replicate: top.replicate.unwrap_or(1),
            spares: top.spares.unwrap_or(1),
            mdns: top.mdns.unwrap_or(true),
            drain_seconds: top.drain_seconds.unwrap_or(20),
            log: top.log,
            sources,
        };
        settings.check()?;
        Ok(settings)
    }

    /// Whether this node is part of a hive.
    pub fn is_in_hive(&self) -> bool {
        self.seed || self.private || self.listen.is_some() || !self.join.is_empty()
    }

    /// All settings as a config file, with where each came from. The API key is not shown.
    pub fn to_toml(&self) -> String {
        let whole = Layer {
            model: self.model.clone(),
            models_dirs: Some(self.models_dirs.clone()),
            api: Some(self.api.clone()),
            api_key: self.api_key.clone(),
            allowed_hosts: Some(self.allowed_hosts.clone()),
            cors_origins: Some(self.cors_origins.clone()),
            keep_alive_ms: Some(self.keep_alive_ms),
            api_keys_file: Some(self.api_keys_file.clone()),
            threads: Some(self.threads),
            kernels: Some(self.kernels),
            ctx: self.ctx,
            queue: Some(self.queue),
            also: Some(self.also.clone()),
            draft: self.draft.clone(),
            parallel: Some(self.parallel),
            kv_mb: self.kv_mb,
            guessing: Some(self.guessing),
            seed: Some(self.seed),
            record: self.record.clone(),
            private: Some(self.private),
            join: Some(self.join.clone()),
            listen: self.listen.clone(),
            lanes: self.lanes.clone(),
            lanes_at: self.lanes_at.clone(),
            state_dir: Some(self.state_dir.clone()),
            lend: Some(self.lend.clone()),
            lend_mb: self.lend_mb,
            disk_mb: Some(self.disk_mb),
            own_mb: self.own_mb,
            stages: Some(self.stages),
            stage_layers: Some(self.stage_layers),
            cuts: Some(self.cuts),
            replicate: Some(self.replicate),
            spares: Some(self.spares),
            mdns: Some(self.mdns),
            drain_seconds: Some(self.drain_seconds),
            log: self.log.clone(),
        };
        let lines = whole.table().into_iter().map(|(key, value)| {
            let from = self.sources.of(&key);
            format!("{key} = {value}  # {from}\n")
        });
        lines.collect()
    }

    fn check(&self) -> Result<(), SettingsError> {
        self.within("threads", self.threads as u64, 1, THREADS_MAX as u64)?;
        self.within("parallel", self.parallel as u64, 1, PARALLEL_MAX as u64)?;
        self.within("queue", self.queue as u64, 0, QUEUE_MAX as u64)?;
        self.within("join", self.join.len() as u64, 0, NAMES_MAX as u64)?;
        self.within("stages", self.stages.into(), 0, crate::house::place::STAGES_MAX.into())?;
        self.within("lend", self.lend.len() as u64, 0, NAMES_MAX as u64)?;
        let layers_max = u64::from(wire::HALVES_MAX) / 2;
        self.within("stage_layers", self.stage_layers.into(), 0, layers_max)?;
        self.within("spares", self.spares.into(), 0, SPARES_MAX)?;
        self.within("replicate", self.replicate.into(), 1, REPLICAS_MAX)?;
        self.within("drain_seconds", self.drain_seconds, 0, DRAIN_SECONDS_MAX)?;
        self.within("keep_alive_ms", self.keep_alive_ms, 10, KEEP_ALIVE_MS_MAX)?;
        self.names("allowed_hosts", &self.allowed_hosts, "host names without port", is_host)?;
        let wanted = "origins such as https://chat.example, without path";
        self.names("cors_origins", &self.cors_origins, wanted, is_origin)?;
        if let Some(ctx) = self.ctx {
            self.within("ctx", ctx as u64, 2, u64::from(u32::MAX))?;
        }
        if let Some(Secret(key)) = &self.api_key
            && (key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()))
        {
            let wanted = "one or more visible ASCII characters without spaces".into();
            return Err(self.out_of_range("api_key", "(hidden)".into(), wanted));
        }
        Ok(())
    }

    fn names(
        &self,
        key: &'static str,
        names: &[String],
        wanted: &str,
        is_right: fn(&str) -> bool,
    ) -> Result<(), SettingsError> {
        match names.iter().find(|name| !is_right(name)) {
            Some(name) => Err(self.out_of_range(key, format!("{name:?}"), wanted.into())),
            None => self.within(key, names.len() as u64, 0, NAMES_MAX as u64),
        }
    }

    fn within(&self, key: &'static str, n: u64, low: u64, high: u64) -> Result<(), SettingsError> {
        if (low..=high).contains(&n) {
            return Ok(());
        }
        Err(self.out_of_range(key, n.to_string(), format!("{low} to {high}")))
    }

    fn out_of_range(&self, key: &'static str, value: String, wanted: String) -> SettingsError {
        SettingsError::Range { key, value, source_name: self.sources.of(key), wanted }
    }
}

/// Whether `name` is a host name or address as a `Host` header has it, without its port.
fn is_host(name: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
    let address = name.parse::<std::net::Ipv6Addr>().is_ok();
    !name.is_empty() && name.bytes().all(letter) && (address || !name.contains(':'))
}

/// Whether `text` is an origin as browsers write it.
fn is_origin(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._:[]".contains(&b);
    rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Layer, SettingsError> {
        Layer::parse(Path::new("config.toml"), text)
    }

    fn env(pairs: &'static [(&'static str, &'static str)]) -> Result<Layer, SettingsError> {
        Layer::from_env(&|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        })
    }

    fn settle(file: &str, env: Layer, flags: Layer) -> Result<Settings, SettingsError> {
        let file = ("config.toml".into(), parse(file)?);
        Settings::of(Sources { file, env, flags }, 4, "/models".into())
    }

    #[test]
    fn flags_go_over_the_environment_and_that_over_the_file() {
        let flags = Layer { threads: Some(3), ..Layer::default() };
        let env = env(&[("CADENCIA_THREADS", "2"), ("CADENCIA_QUEUE", "7")]).unwrap();
        let s = settle("threads = 1\nqueue = 6\nctx = 512\n", env, flags).unwrap();
        assert_eq!((s.threads, s.queue, s.ctx), (3, 7, Some(512)));
        assert_eq!((s.api.as_str(), s.drain_seconds), ("127.0.0.1:8080", 20));
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = parse("modle = \"x\"\n").unwrap_err().to_string();
        assert!(error.contains("config.toml") && error.contains("`modle`"), "{error}");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_with_its_line() {
        let error = parse("queue = 1\nthreads = \"two\"\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("threads"), "{error}");
    }

    #[test]
    fn an_environment_variable_that_is_no_number_is_refused_by_name() {
        let error = env(&[("CADENCIA_CTX", "lots")]).unwrap_err().to_string();
        assert_eq!(error, "CADENCIA_CTX=\"lots\": a whole number is wanted");
        let error = env(&[("CADENCIA_KERNELS", "mmx")]).unwrap_err().to_string();
        assert!(error.contains("CADENCIA_KERNELS"), "{error}");
        let error = env(&[("CADENCIA_CUTS", "9,3")]).unwrap_err().to_string();
        assert!(error.contains("CADENCIA_CUTS"), "{error}");
    }

    #[test]
    fn a_value_out_of_range_says_who_set_it() {
        let error = settle("threads = 0\n", Layer::default(), Layer::default()).unwrap_err();
        let text = "threads = 0 (from config.toml): 1 to 1024 is wanted";
        assert_eq!(error.to_string(), text);
        let env = env(&[("CADENCIA_QUEUE", "99999")]).unwrap();
        let error = settle("", env, Layer::default()).unwrap_err().to_string();
        assert!(error.contains("CADENCIA_QUEUE"), "{error}");
    }

    #[test]
    fn printing_names_the_sources_and_hides_the_key() {
        let env = env(&[("CADENCIA_API_KEY", "sesame")]).unwrap();
        let settings = settle("ctx = 512\ncuts = \"3,8\"\n", env, Layer::default()).unwrap();
        let text = settings.to_toml();
        assert!(text.contains("ctx = 512  # config.toml\n"), "{text}");
        assert!(text.contains("api_key = \"(hidden)\"  # CADENCIA_API_KEY\n"), "{text}");
        assert!(text.contains("threads = 4  # default\n"), "{text}");
        assert!(text.contains("cuts = \"3,8\"  # config.toml\n"), "{text}");
        assert!(!text.contains("sesame") && !format!("{settings:?}").contains("sesame"));
        parse(&text).expect("what is printed can be read back");
    }

    #[test]
    fn a_missing_file_is_an_error_only_if_it_was_asked_for() {
        let path = Path::new("/nonexistent/cadencia.toml");
        assert_eq!(Layer::read(path, false).unwrap(), Layer::default());
        assert!(Layer::read(path, true).is_err());
    }

    #[test]
    fn names_and_origins_are_checked_and_listed_with_commas() {
        let pairs = &[
            ("CADENCIA_ALLOWED_HOSTS", "node.example, ::1"),
            ("CADENCIA_CORS_ORIGINS", "https://chat.example,http://localhost:3000"),
        ];
        let settings = settle("", env(pairs).unwrap(), Layer::default()).unwrap();
        assert_eq!(settings.allowed_hosts, ["node.example", "::1"]);
        assert_eq!(settings.cors_origins, ["https://chat.example", "http://localhost:3000"]);
        for text in [
            "allowed_hosts = [\"node.example:80\"]",
            "allowed_hosts = [\"\"]",
            "allowed_hosts = [\"http://node.example\"]",
            "cors_origins = [\"*\"]",
            "cors_origins = [\"chat.example\"]",
            "cors_origins = [\"https://chat.example/\"]",
            "cors_origins = [\"https://Chat.example\"]",
            "keep_alive_ms = 1",
        ] {
            assert!(settle(text, Layer::default(), Layer::default()).is_err(), "{text}");
        }
    }
}
