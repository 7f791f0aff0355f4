//! `cadencia keys` as it is typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `cadencia keys`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cadencia keys add ann                    prints a new key, once
  cadencia keys add ann > key; chmod 600 key
  cadencia keys list
  cadencia keys check < key                whose key is this
  cadencia keys revoke ann

A key is 256 random bits. The file keeps names and BLAKE3 hashes, so a lost key cannot be shown
again: revoke it and make another. A running node reads the file when it starts.")]
pub struct Keys {
    /// File of the keys [default: api-keys.toml beside the config file]
    #[arg(long, value_name = "FILE", global = true)]
    pub api_keys_file: Option<PathBuf>,
    /// What to do with them.
    #[command(subcommand)]
    pub action: KeysAction,
}

/// What can be done with keys.
#[derive(Debug, Subcommand)]
pub enum KeysAction {
    /// Make a key and print it
    Add {
        /// Whose it is: letters, digits and . _ - @
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List names and dates
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Read a key from stdin and say whose it is
    Check,
    /// Take a key back
    Revoke {
        /// Whose it is
        #[arg(value_name = "NAME")]
        name: String,
    },
}
