//! What is asked of a hive, as it is typed.

use std::path::PathBuf;

use clap::Args;

use super::ModelFlags;
use crate::shell::settings::Layer;

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
