//! The command line as it is typed; `settings` says what it comes to.

mod hive;
mod keys;
mod pull;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use compute::sample::SamplerOptions;

use super::settings::{Guessing, Kernels, Layer, Secret};
use crate::house::place::Cuts;

pub use hive::{Hive, Invite, Peers, Plan, Sentinel, Status};
pub use keys::{Keys, KeysAction};
pub use pull::Pull;

/// Runs language models on this machine, in arithmetic that every other machine can repeat bit
/// for bit.
#[derive(Debug, Parser)]
#[command(name = "cadencia", version, propagate_version = true, after_help = TOP_HELP)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What holds for every command.
    #[command(flatten)]
    pub everywhere: Everywhere,
}

const TOP_HELP: &str = "\
Examples:
  cadencia pull OWNER/REPOSITORY                   bring a model here
  cadencia models                                  what is in the models folder
  cadencia chat -m SmolLM2-135M-Instruct           talk to a model in this terminal
  cadencia up -m ./some.gguf --api 127.0.0.1:8080  serve the OpenAI-compatible API
  cadencia hive --nodes 4 -m ./some.gguf           split one over nodes of this machine
  cadencia doctor                                  is this machine fit for it

A model is a path to a .gguf file, or the name of one in the models folder
(by default cadencia/models in the user's data folder).
Settings: built-in defaults, then cadencia/config.toml in the user's config folder, then
CADENCIA_* variables (CADENCIA_MODEL, CADENCIA_THREADS, ...), then flags; `cadencia up
--print-config` shows the outcome and where each value came from.
Exit codes: 0 done, 1 failed, 2 asked wrongly.";

/// Flags of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub struct Everywhere {
    /// Config file to use instead of cadencia/config.toml in the user's config folder
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder that holds models; may be given more than once
    #[arg(long = "models-dir", global = true, value_name = "DIR")]
    pub models_dirs: Vec<PathBuf>,
    /// What to log on stderr: error, warn, info, debug, or target=level, ...
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
}

/// What can be asked for.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model through an OpenAI-compatible HTTP API
    Up(Up),
    /// Run a hive of several nodes on this machine, with one model split over them
    Hive(Hive),
    /// Show a running node: its models, its hive, its memory
    Status(Status),
    /// Show the other nodes of a running node's hive
    Peers(Peers),
    /// Let another node into this node's hive
    Invite(Invite),
    /// Be a seed: a stable address by which others find and reach one another
    Sentinel(Sentinel),
    /// Show how a running node would split a model over its hive now, and why
    Plan(Plan),
    /// Talk to a model in this terminal
    Chat(Chat),
    /// Bring a model here from Hugging Face, a URL or a file
    Pull(Pull),
    /// Make, list and revoke API keys
    Keys(Keys),
    /// List the models in the models folders, or remove one
    Models(Models),
    /// Turn text into token ids
    Tokenize(Tokenize),
    /// Continue a prompt
    Generate(Generate),
    /// Write the logits after each of the given tokens
    Logits(Logits),
    /// Measure how well a model predicts a text
    Perplexity(Perplexity),
    /// Measure speed and memory
    Bench(Bench),
    /// Check whether this machine is fit to run models
    Doctor(Doctor),
}

/// Which model, and what computes it.
#[derive(Debug, Args)]
pub struct ModelFlags {
    /// Path to a .gguf file, or a name from the models folder
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Threads that compute [default: the physical cores that may be used]
    #[arg(short, long, value_name = "N")]
    pub threads: Option<usize>,
    /// Which kernels compute; every choice gives the same bits
    #[arg(long, value_enum)]
    pub kernels: Option<Kernels>,
}

impl ModelFlags {
    /// As a layer of settings.
    fn layer(&self) -> Layer {
        Layer {
            model: self.model.clone(),
            threads: self.threads,
            kernels: self.kernels,
            ..Layer::default()
        }
    }
}

/// How the next token is picked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingFlags {
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, alias = "temperature", value_name = "X")]
    pub temp: Option<f32>,
    /// Only the N likeliest tokens; 0 for all
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together have this probability
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Only tokens at least this probable, relative to the likeliest
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Penalty for tokens that occurred already; 1 for none
    #[arg(long, value_name = "X")]
    pub repeat_penalty: Option<f32>,
    /// Amount taken from the logit of every token that occurred already
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Amount taken from a token's logit for each time that it occurred
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Seed of the dice: the same seed gives the same answer [default: a new one each time]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl SamplingFlags {
    /// These flags over the defaults, with `seed` where none was given.
    pub fn options(&self, seed: u64) -> SamplerOptions {
        let usual = SamplerOptions::default();
        SamplerOptions {
            temperature: self.temp.unwrap_or(usual.temperature),
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            repetition_penalty: self.repeat_penalty.unwrap_or(usual.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(usual.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(usual.frequency_penalty),
            seed: self.seed.unwrap_or(seed),
            ..usual
        }
    }
}

/// `cadencia up`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia up -m SmolLM2-135M-Instruct.Q4_1
  cadencia up -m ./model.gguf --api 127.0.0.1:0 --port-file /run/user/1000/port
  CADENCIA_API_KEY=... cadencia up -m ./model.gguf --api 0.0.0.0:8080

  curl http://127.0.0.1:8080/v1/chat/completions \\
    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"stream\":true}'

Routes: POST /v1/chat/completions, /v1/completions and /v1/embeddings; GET /v1/models, /v1/hive, /v1/hive/plan,
/metrics (for Prometheus), /health (it runs) and /ready (the model has answered a probe; until then requests
get 503 with Retry-After).
When the model is ready, one line on stdout says what computes and ends with
`listening on http://ADDRESS:PORT`. SIGTERM or Ctrl-C lets running answers finish within
--drain-seconds; a second one ends at once. An address beyond this machine needs an API key.")]
pub struct Up {
    /// Model, threads and kernels.
    #[command(flatten)]
    pub model: ModelFlags,
    /// Tokens that one conversation may hold [default: what the model was trained for, at most
    /// 8192, and what memory allows]
    #[arg(short = 'c', long, value_name = "TOKENS")]
    pub ctx: Option<usize>,
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    pub api: Option<String>,
    /// Key that clients must present as `Authorization: Bearer KEY`; other users of this machine
    /// can see flags, so prefer CADENCIA_API_KEY or the config file
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<Secret>,
    /// Name, beside those of this machine, that clients may know the node by, as behind a reverse
    /// proxy; may be given more than once
    #[arg(long = "allowed-host", value_name = "NAME")]
    pub allowed_hosts: Vec<String>,
    /// Origin whose pages may use the node, such as https://chat.example; may be given more than
    /// once [default: none]
    #[arg(long = "cors-origin", value_name = "ORIGIN")]
    pub cors_origins: Vec<String>,
    /// After how long a silence a stream shows that it lives, milliseconds [default: 10000]
    #[arg(long, value_name = "MS")]
    pub keep_alive_ms: Option<u64>,
    /// File of keys made with `cadencia keys`; any of them is as good as --api-key [default:
    /// api-keys.toml beside the config file]
    #[arg(long, value_name = "FILE")]
    pub api_keys_file: Option<PathBuf>,
    /// Requests that may wait while others are answered; more get 429 [default: 32]
    #[arg(long, value_name = "N")]
    pub queue: Option<usize>,
    /// Another model to serve beside the first; may be given more than once
    #[arg(long, value_name = "MODEL")]
    pub also: Vec<String>,
    /// A smaller model of the same vocabulary, to guess tokens ahead for the first
    #[arg(long, value_name = "MODEL")]
    pub draft: Option<String>,
    /// Requests of one model that are answered at a time; the others wait [default: 16]
    #[arg(long, value_name = "N")]
    pub parallel: Option<usize>,
    /// Memory for KV caches, for running answers and for prompts that may come again [default: what
    /// --parallel contexts take, at most a quarter of what is free]
    #[arg(long, value_name = "MB")]
    pub kv_mb: Option<u64>,
    /// Whether tokens are guessed ahead where that pays; answers are the same [default: on]
    #[arg(long, value_enum)]
    pub guessing: Option<Guessing>,
    /// How long a stopping node lets answers finish [default: 20]
    #[arg(long, value_name = "S")]
    pub drain_seconds: Option<u64>,
    /// Being part of a hive.
    #[command(flatten)]
    pub hive: HiveFlags,
    /// Write the port here as soon as it is bound
    #[arg(long, value_name = "FILE")]
    pub port_file: Option<PathBuf>,
    /// Write the addresses at which other nodes reach this one here, one a line, as soon as there are
    /// any
    #[arg(long, value_name = "FILE")]
    pub hive_file: Option<PathBuf>,
    /// Stop when stdin ends, as it does when whoever started this node is gone
    #[arg(long, hide = true)]
    pub stay_with_stdin: bool,
    /// Print all settings and where each came from, and stop
    #[arg(long)]
    pub print_config: bool,
}

/// Being part of a hive.
#[derive(Debug, Args)]
#[command(next_help_heading = "Hive")]
pub struct HiveFlags {
    /// Found a private hive, which only those whom its members invite can join (`cadencia invite`)
    #[arg(long)]
    pub private: bool,
    /// Join the hive of the node at this address: HOST:PORT, a multiaddress, an invitation, the record
    /// of a seed, or a file with one of these on each line; may be given more than once
    #[arg(long, value_name = "ADDRESS")]
    pub join: Vec<String>,
    /// Address at which other nodes reach this one; UDP and TCP [default: 0.0.0.0:4610 when joining]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Address for rows of models, UDP [default: the port after that of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub lanes: Option<String>,
    /// Address at which others reach --lanes, where it is another, as with a forwarded port
    #[arg(long, value_name = "HOST:PORT")]
    pub lanes_at: Option<String>,
    /// Folder of what the node must remember: its key and its peers [default: cadencia/state in the
    /// user's data folder]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// A model of which parts are lent without serving it; may be given more than once
    #[arg(long, value_name = "MODEL")]
    pub lend: Vec<String>,
    /// Memory lent to other nodes; 0 lends nothing [default: half of what is free]
    #[arg(long, value_name = "MB")]
    pub lend_mb: Option<u64>,
    /// Disk for parts of models that come from other nodes [default: 20000]
    #[arg(long, value_name = "MB")]
    pub disk_mb: Option<u64>,
    /// Memory for this node's own part of a model that is split [default: what is free]
    #[arg(long, value_name = "MB")]
    pub own_mb: Option<u64>,
    /// Split the model over at least so many other nodes, even if fewer would be faster
    #[arg(long, value_name = "N")]
    pub stages: Option<u32>,
    /// Ask no node for more layers than that in one stage [default: what its memory holds]
    #[arg(long, value_name = "N")]
    pub stage_layers: Option<u32>,
    /// Where the model may be cut: layers, halves (within a layer where only that fits), alpha-beta
    /// (attention and feed-forward apart), or before these half-blocks, such as 3,8 [default: layers]
    #[arg(long, value_name = "WHERE")]
    pub cuts: Option<Cuts>,
    /// Have each stage computed by so many nodes; the fastest result counts, 1 to 3 [default: 1]
    #[arg(long, value_name = "N")]
    pub replicate: Option<u32>,
    /// Nodes that stand by for each stage, fed along so that they can take over, 0 to 2 [default: 1]
    #[arg(long, value_name = "N")]
    pub spares: Option<u32>,
    /// Whether to look for nodes on the local network [default: true]
    #[arg(long, value_name = "BOOL")]
    pub mdns: Option<bool>,
}

impl HiveFlags {
    /// Over `layer`.
    fn over(&self, layer: Layer) -> Layer {
        Layer {
            private: self.private.then_some(true),
            join: given(&self.join),
            listen: self.listen.clone(),
            lanes: self.lanes.clone(),
            lanes_at: self.lanes_at.clone(),
            state_dir: self.state_dir.clone(),
            lend: given(&self.lend),
            lend_mb: self.lend_mb,
            disk_mb: self.disk_mb,
            own_mb: self.own_mb,
            stages: self.stages,
            stage_layers: self.stage_layers,
            cuts: self.cuts,
            replicate: self.replicate,
            spares: self.spares,
            mdns: self.mdns,
            ..layer
        }
    }
}

/// `cadencia chat`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia chat -m SmolLM2-135M-Instruct.Q4_1
  cadencia chat --system 'Answer in one sentence.' --temp 0.2
  echo 'What is the capital of France?' | cadencia chat -m ./model.gguf

In the chat: /help, /reset, /system TEXT, /again, /stats, /quit. Ctrl-C stops an answer, not the
chat; Ctrl-D ends it.")]
pub struct Chat {
    /// Model, threads and kernels.
    #[command(flatten)]
    pub model: ModelFlags,
    /// Tokens that the conversation may hold [default: as for `up`]
    #[arg(short = 'c', long, value_name = "TOKENS")]
    pub ctx: Option<usize>,
    /// What the model is told before the conversation
    #[arg(short, long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Tokens of one answer at most [default: what the context holds]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: Option<u32>,
    /// Sampling.
    #[command(flatten)]
    pub sampling: SamplingFlags,
}

/// `cadencia models`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia models
  cadencia models --models-dir ~/gguf --json | jq -r '.[].name'
  cadencia models rm small --yes

MEMORY is about what running it takes: its weights, and the conversation that fits by default. A
file that cannot be read is listed with the reason.")]
pub struct Models {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
    /// What to do instead of listing them.
    #[command(subcommand)]
    pub action: Option<ModelsAction>,
}

/// What can be done with models.
#[derive(Debug, Subcommand)]
pub enum ModelsAction {
    /// Remove a model, all of its files
    Rm {
        /// Its name in a models folder
        #[arg(value_name = "NAME")]
        name: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// `cadencia tokenize`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia tokenize -m ./model.gguf < text
  cadencia tokenize -m ./model.gguf --special --text '<|im_start|>user'

Reads UTF-8 from stdin unless --text is given; prints a JSON array of ids.")]
pub struct Tokenize {
    /// Path to a .gguf file, or a name from the models folder
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Parse special tokens in the text, and add those that the model wants around it
    #[arg(long)]
    pub special: bool,
    /// This text instead of stdin
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,
}

/// `cadencia generate`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia generate -m ./model.gguf --special --prompt 'The history of computing began' -n 64
  cadencia generate -m ./model.gguf --prompt-file p.txt --special -n 64 --temp 0 --json

Continues raw text; for a conversation use `chat`, which applies the model's template. Ends at an
end token, a --stop string, or after -n tokens. With --json prints one object at the end:
  {\"prompt_tokens\":[..],\"tokens\":[..],\"text\":\"..\",\"seed\":..,\"finish\":\"stop\"|\"length\",\"timings\":{..}}")]
pub struct Generate {
    /// Model, threads and kernels.
    #[command(flatten)]
    pub model: ModelFlags,
    /// The prompt
    #[arg(short, long, value_name = "TEXT", required_unless_present = "prompt_file")]
    pub prompt: Option<String>,
    /// File that holds the prompt; - for stdin
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "prompt")]
    pub prompt_file: Option<PathBuf>,
    /// Parse special tokens in the prompt, and add those that the model wants around it
    #[arg(long)]
    pub special: bool,
    /// Tokens at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// End before this text; may be given more than once
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Print one JSON object instead of the text as it comes
    #[arg(long)]
    pub json: bool,
    /// Sampling.
    #[command(flatten)]
    pub sampling: SamplingFlags,
}

/// `cadencia logits`
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cadencia logits -m ./model.gguf --tokens ids.txt --out logits.f32

Reads token ids separated by white space; writes little-endian f32, one row of the vocabulary's
size for each token. The file appears only when it is complete.")]
pub struct Logits {
    /// Model, threads and kernels.
    #[command(flatten)]
    pub model: ModelFlags,
    /// File of token ids; - for stdin
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    /// File to write; - for stdout
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
}

/// `cadencia perplexity`
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cadencia perplexity -m ./model.gguf --file text.txt --ctx 512 --json

The method of llama.cpp: the whole text is tokenised, cut into windows of --ctx tokens that do not
overlap, each window begins with BOS where the model wants it, and the tokens of its second half
are predicted. The last, incomplete window is left out.")]
pub struct Perplexity {
    /// Model, threads and kernels.
    #[command(flatten)]
    pub model: ModelFlags,
    /// UTF-8 text
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens of one window
    #[arg(short = 'c', long, value_name = "TOKENS", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(4..))]
    pub ctx: u32,
    /// Windows at most [default: the whole text]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub windows: Option<u32>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `cadencia bench`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia bench -m ./model.gguf
  cadencia bench -m ./model.gguf -p 512 -n 128 -t 2 --json

prefill_tps and decode_tps are those of the best repetition, the one least disturbed by other
work; the medians are beside them. Memory's read bandwidth is measured in the same run with the
same number of threads, after peak memory has been noted, and bounds decoding:
decode_tps <= read_bandwidth / bytes_per_token.")]
pub struct Bench {
    /// Model, threads and kernels.
    #[command(flatten)]
    pub model: ModelFlags,
    /// Tokens of the prompt
    #[arg(short = 'p', long = "prompt", value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt: u32,
    /// Tokens to decode
    #[arg(short = 'n', long = "tokens", value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Repetitions
    #[arg(short, long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Also decode with this many tokens in the context already
    #[arg(short = 'd', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// Also decode for this many sequences together, as a node does for several users
    #[arg(short = 'u', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub users: Option<u32>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `cadencia doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia doctor
  cadencia doctor -m ./model.gguf --json

Checks the processor, the kernels (against the definition of the numeric class, bit for bit),
memory and its read bandwidth, the models folders, and the API's address; with a model, also
whether it fits. Exit code 1 if something is broken; warnings alone give 0.")]
pub struct Doctor {
    /// Model, threads and kernels.
    #[command(flatten)]
    pub model: ModelFlags,
    /// API address to try [default: that of the settings]
    #[arg(long, value_name = "HOST:PORT")]
    pub api: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

impl CommandLine {
    /// The flags that are settings, as the highest layer.
    pub fn layer(&self) -> Layer {
        let dirs = &self.everywhere.models_dirs;
        Layer {
            models_dirs: (!dirs.is_empty()).then(|| dirs.clone()),
            log: self.everywhere.log.clone(),
            ..self.command.layer()
        }
    }
}

/// A list of flags, if there are any.
fn given(list: &[String]) -> Option<Vec<String>> {
    (!list.is_empty()).then(|| list.to_vec())
}

impl Command {
    fn up_layer(up: &Up) -> Layer {
        up.hive.over(Layer {
            ctx: up.ctx,
            api: up.api.clone(),
            api_key: up.api_key.clone(),
            allowed_hosts: given(&up.allowed_hosts),
            cors_origins: given(&up.cors_origins),
            keep_alive_ms: up.keep_alive_ms,
            api_keys_file: up.api_keys_file.clone(),
            queue: up.queue,
            also: (!up.also.is_empty()).then(|| up.also.clone()),
            draft: up.draft.clone(),
            parallel: up.parallel,
            kv_mb: up.kv_mb,
            guessing: up.guessing,
            drain_seconds: up.drain_seconds,
            ..up.model.layer()
        })
    }

    fn layer(&self) -> Layer {
        match self {
            Command::Up(up) => Self::up_layer(up),
            Command::Hive(hive) => hive.layer(),
            Command::Status(flags) => flags.asking.layer(),
            Command::Peers(flags) => flags.asking.layer(),
            Command::Invite(flags) => {
                Layer { state_dir: flags.state_dir.clone(), ..flags.asking.layer() }
            }
            Command::Sentinel(flags) => Layer {
                seed: Some(true),
                record: flags.record.clone(),
                ..Command::up_layer(&flags.up)
            },
            Command::Plan(flags) => Layer { model: flags.model.clone(), ..flags.asking.layer() },
            Command::Chat(chat) => Layer { ctx: chat.ctx, ..chat.model.layer() },
            Command::Pull(_) => Layer::default(),
            Command::Keys(flags) => {
                Layer { api_keys_file: flags.api_keys_file.clone(), ..Layer::default() }
            }
            Command::Models(_) => Layer::default(),
            Command::Tokenize(flags) => Layer { model: flags.model.clone(), ..Layer::default() },
            Command::Generate(flags) => flags.model.layer(),
            Command::Logits(flags) => flags.model.layer(),
            Command::Perplexity(flags) => flags.model.layer(),
            Command::Bench(flags) => flags.model.layer(),
            Command::Doctor(flags) => Layer { api: flags.api.clone(), ..flags.model.layer() },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn flags_that_are_settings_reach_the_layer() {
        let line = "cadencia up -m x --api 127.0.0.1:0 -t 2 --models-dir /a --models-dir /b";
        let layer = CommandLine::parse_from(line.split(' ')).layer();
        assert_eq!(layer.model.as_deref(), Some("x"));
        assert_eq!((layer.threads, layer.api.as_deref()), (Some(2), Some("127.0.0.1:0")));
        assert_eq!(layer.models_dirs, Some(vec!["/a".into(), "/b".into()]));
    }

    #[test]
    fn the_forms_that_scripts_rely_on_are_understood() {
        for line in [
            "cadencia up --model M --api 127.0.0.1:0",
            "cadencia up --lend M --listen 127.0.0.1:0 --hive-file F --stay-with-stdin",
            "cadencia status --api 127.0.0.1:8080 --json",
            "cadencia peers --json",
            "cadencia plan -m M --json --api-key K",
            "cadencia hive --nodes 4 -m M --api 127.0.0.1:0 --spares 1 --threads 1",
            "cadencia tokenize --model M --special",
            "cadencia logits --model M --tokens F --out F",
            "cadencia generate --model M --prompt-file F --special -n 8 --temp 0 --json",
            "cadencia perplexity --model M --file F --ctx 512 --json",
            "cadencia bench --model M -p 512 -n 128 -t 2 --json",
        ] {
            CommandLine::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }
}
