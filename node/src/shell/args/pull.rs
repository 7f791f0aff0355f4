//! `cadencia pull` as it is typed.

use clap::Args;

use crate::shell::pull::Digest;

/// `cadencia pull`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia pull HuggingFaceTB/SmolLM2-135M-Instruct-GGUF
  cadencia pull OWNER/REPOSITORY:Q8_0
  cadencia pull OWNER/REPOSITORY/folder/file.gguf@main --name small
  cadencia pull https://example.org/model.gguf --sha256 HEX
  cadencia pull ~/Downloads/model.gguf

SOURCE is a Hugging Face name, an https URL, or the path of a file, which is copied: a link would
change together with the original, under a node that runs it. Of a split model name the first file;
the others come with it. The model goes into the first models folder when it is whole, its sha256 is
right and it is a sound GGUF; until then it lies in NAME.part there, and the same command goes on
where an earlier one ended. Prints the name to use with `cadencia up -m NAME`.
HF_TOKEN opens gated repositories, HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy.")]
pub struct Pull {
    /// OWNER/REPOSITORY[:MIXTURE | /FILE.gguf][@REVISION], an https URL, or a file
    #[arg(value_name = "SOURCE")]
    pub source: String,
    /// What to call it [default: as it is called there]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// What its bytes must come to; once for each file of a split model
    #[arg(long, value_name = "HEX")]
    pub sha256: Vec<Digest>,
    /// Take whatever comes from a URL without --sha256. Not secure: a wrong or tampered file is
    /// not noticed
    #[arg(long)]
    pub insecure_no_checksum: bool,
    /// Replace a model of that name
    #[arg(long)]
    pub force: bool,
    /// Megabytes that stay free on the disk
    #[arg(long, value_name = "MB", default_value_t = 1000)]
    pub keep_free: u64,
    /// Seconds that a server may be silent
    #[arg(long, value_name = "S", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
    /// Tries in a row that may bring nothing
    #[arg(long, value_name = "N", default_value_t = 6,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub tries: u32,
}
