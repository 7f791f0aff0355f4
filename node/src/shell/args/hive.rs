//! What is asked of a hive, as it is typed.

use std::path::PathBuf;

use clap::Args;

use super::ModelFlags;
use crate::shell::settings::{Layer, Secret};

/// `cadencia hive`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia hive -m ./model.gguf
  cadencia hive --nodes 5 -m ./model.gguf --api 127.0.0.1:8080 --spares 2 --threads 1

Starts that many nodes as processes of their own, which know one another over the loopback address,
and splits the layers evenly over them; the API is that of the first. When the model answers, one
line on stdout says which layers are where and ends with `listening on http://ADDRESS:PORT`.
Warnings of the nodes come on stderr, each with its node's number. SIGTERM or Ctrl-C ends all of
them in good order, a second one at once; they end, too, if this process is killed. If a node ends,
the others go on as long as they can.")]
pub struct Hive {
    /// Nodes, the one with the API among them
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=NODES_MAX))]
    pub nodes: u32,
    /// Model, threads of each node, and kernels.
    #[command(flatten)]
    pub model: ModelFlags,
    /// Tokens that one conversation may hold [default: as for `up`]
    #[arg(short = 'c', long, value_name = "TOKENS")]
    pub ctx: Option<usize>,
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    pub api: Option<String>,
    /// Nodes that stand by for each stage, 0 to 2 [default: 1]
    #[arg(long, value_name = "K")]
    pub spares: Option<u32>,
    /// Write the API's port here as soon as it is bound
    #[arg(long, value_name = "FILE")]
    pub port_file: Option<PathBuf>,
}

/// Nodes of a local hive: the first, and as many stages as a route may have.
const NODES_MAX: i64 = 1 + crate::house::place::STAGES_MAX as i64;

impl Hive {
    /// The flags that are settings.
    pub(super) fn layer(&self) -> Layer {
        Layer { ctx: self.ctx, api: self.api.clone(), spares: self.spares, ..self.model.layer() }
    }
}

/// Which running node is asked, and how the answer is shown.
#[derive(Debug, Args)]
pub struct Asking {
    /// Address of the node's API [default: that of the settings, 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    pub api: Option<String>,
    /// Key to show it; other users of this machine can see flags, so prefer CADENCIA_API_KEY or the
    /// config file
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<Secret>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

impl Asking {
    /// The flags that are settings.
    pub(super) fn layer(&self) -> Layer {
        Layer { api: self.api.clone(), api_key: self.api_key.clone(), ..Layer::default() }
    }
}

/// `cadencia status`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia status
  cadencia status --api 127.0.0.1:8080 --json | jq .ready

Exit code 0 if the node is ready to answer; 1 if it is not, or no node answers.")]
pub struct Status {
    /// Whom to ask.
    #[command(flatten)]
    pub asking: Asking,
}

/// `cadencia peers`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia peers
  cadencia peers --json | jq -r '.peers[].id'

PATH is direct or relayed, or - for a node that is known by its offer alone. FREE is the memory
that it would still lend, HOLDS what it has in memory already.")]
pub struct Peers {
    /// Whom to ask.
    #[command(flatten)]
    pub asking: Asking,
}

/// `cadencia plan`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia plan
  cadencia plan -m SmolLM2-135M-Instruct.Q4_1
  cadencia plan -m ./model.gguf --json | jq -r .plan.words

Asks a running node, which must know the model: it serves it, or lends parts of it. The plan is the
one that would be made now; what a split model goes over at present is in `cadencia status`. Exit
code 1 if there is no plan.")]
pub struct Plan {
    /// Name of a model of that node, or path of its file [default: the one that it splits]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Whom to ask.
    #[command(flatten)]
    pub asking: Asking,
}

/// `cadencia sentinel`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia sentinel --listen 0.0.0.0:4610 --record /var/lib/cadencia/seed.txt
  cadencia sentinel --listen 0.0.0.0:4610 --lend-mb 4000

A sentinel is a node that others can always be sent to: it introduces them to one another, answers
look-ups, and carries sealed bytes between those who cannot reach each other. It lends nothing unless
--lend-mb says so. The hive goes on when all sentinels are gone.")]
pub struct Sentinel {
    /// As of any node.
    #[command(flatten)]
    pub up: super::Up,
    /// Write a signed record of where this seed is here, for others to start with
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// `cadencia invite`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia invite
  cadencia invite --uses 3 --hours 48 --may-invite
  cadencia invite --list
  cadencia invite --withdraw 5f0c...

Prints one line, which another node joins with: `cadencia up --join LINE`. In a private hive (`cadencia
up --private`) it lets in so many nodes until it expires; on the public network it is an address book.
Run it on the machine of the node, which must be running, with the same --state-dir.")]
pub struct Invite {
    /// How many nodes may come with it, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub uses: u32,
    /// For how long, hours, at most 720
    #[arg(long, value_name = "H", default_value_t = 24)]
    pub hours: u32,
    /// Let those who come invite others
    #[arg(long)]
    pub may_invite: bool,
    /// List the invitations that are open
    #[arg(long, conflicts_with = "withdraw")]
    pub list: bool,
    /// Leave the private hive for the public network; a running node does so at its next start
    #[arg(long, conflicts_with_all = ["list", "withdraw"])]
    pub leave: bool,
    /// Take an invitation back
    #[arg(long, value_name = "ID")]
    pub withdraw: Option<String>,
    /// Folder of the node's state [default: as for `up`]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Whom to ask for addresses.
    #[command(flatten)]
    pub asking: Asking,
}
