//! Models on Hugging Face, or on what `HF_ENDPOINT` names: which files a name means.
//!
//! The `hf-hub` crate knows the addresses and where users keep their token. The requests are our
//! own, since its client has no deadlines and no bounds, and so is the download.

use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use serde::Deserialize;
use thiserror::Error;

use super::address::{Address, AddressError, encode};
use super::choose::{ChoiceError, choose, known};
use super::digest::Digest;
use super::source::{HubName, is_hub_path};
use super::web::{Token, Web, WebError};
use crate::shell::settings::Secret;

/// Bytes of what is told about one repository; the largest tell a few hundred thousand.
const LISTING_BYTES_MAX: u64 = 16 << 20;

/// Why a name leads to no files.
#[derive(Debug, Error)]
pub enum HubError {
    /// `HF_ENDPOINT` is nothing to fetch from.
    #[error("HF_ENDPOINT: {0}")]
    Endpoint(AddressError),
    /// The library refused to be set up.
    #[error("cannot ask Hugging Face")]
    Library(#[source] Box<ApiError>),
    /// The token is none.
    #[error("HF_TOKEN holds something else than a token: copy it again from your settings there")]
    Token,
    /// The repository cannot be listed.
    #[error("cannot list {repository} at {revision}")]
    List {
        /// `OWNER/REPOSITORY`.
        repository: String,
        /// Branch, tag or commit.
        revision: String,
        /// Why not.
        source: WebError,
    },
    /// The repository does not say which model is meant.
    #[error("{repository}")]
    Choice {
        /// `OWNER/REPOSITORY`.
        repository: String,
        /// Why not.
        source: ChoiceError,
    },
}

/// A file of a model.
#[derive(Debug)]
pub struct HubFile {
    /// Its path in the repository; its last part is what it is called.
    pub path: String,
    /// Where it can be fetched, at one commit.
    pub address: Address,
    /// Size, bytes, if it was told.
    pub bytes: Option<u64>,
    /// What its bytes come to, if it was told.
    pub sha256: Option<Digest>,
}

/// What a name means.
#[derive(Debug)]
pub struct Found {
    /// The files, in the order of the model's parts.
    pub files: Vec<HubFile>,
    /// What opens them.
    pub token: Option<Token>,
}

/// What is told about a repository.
#[derive(Debug, Deserialize)]
struct Listing {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Stored>,
}

/// What a large file is stored as.
#[derive(Debug, Deserialize)]
struct Stored {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Asks which files `name` means.
///
/// # Errors
/// See [`HubError`].
pub fn find(web: &Web, name: &HubName) -> Result<Found, HubError> {
    let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|text| !text.is_empty());
    let endpoint = endpoint.unwrap_or_else(|| "https://huggingface.co".into());
    let endpoint = endpoint.trim_end_matches('/').to_string();
    let place = Address::parse(&endpoint).map_err(HubError::Endpoint)?;
    let token = token()?.map(|secret| Token { place, secret });
    let api = ApiBuilder::from_cache(Cache::from_env())
        .with_endpoint(endpoint)
        .with_token(None)
        .build()
        .map_err(|error| HubError::Library(Box::new(error)))?;

    let listing = list(web, &api, name, token.as_ref())?;
    let all: Vec<String> = listing.siblings.iter().map(|file| file.rfilename.clone()).collect();
    let sound: Vec<String> = all.into_iter().filter(|path| is_hub_path(path)).collect();
    let choice = |source| HubError::Choice { repository: name.repository.clone(), source };
    let chosen = choose(&sound, &name.wanted).map_err(choice)?;
    // All from one commit, even if somebody changes the branch while we fetch.
    let commit = listing.sha.clone().filter(|sha| is_commit(sha));
    let pinned = repo(name, commit.as_deref().unwrap_or(&name.revision));
    let files = chosen.into_iter().map(|path| {
        let encoded = path.split('/').map(encode).collect::<Vec<_>>().join("/");
        let address = Address::parse(&api.repo(pinned.clone()).url(&encoded));
        let sibling = listing.siblings.iter().find(|file| file.rfilename == path);
        let stored = sibling.and_then(|file| file.lfs.as_ref());
        Ok(HubFile {
            address: address.map_err(HubError::Endpoint)?,
            bytes: stored.and_then(|stored| stored.size).or(sibling.and_then(|file| file.size)),
            sha256: stored.and_then(|stored| Digest::parse(stored.sha256.as_deref()?)),
            path,
        })
    });
    Ok(Found { files: files.collect::<Result<_, HubError>>()?, token })
}

fn list(web: &Web, api: &Api, name: &HubName, token: Option<&Token>) -> Result<Listing, HubError> {
    let request = api.repo(repo(name, &name.revision)).info_request();
    let uri = request.uri_ref().map(ToString::to_string).unwrap_or_default();
    // With sizes and digests.
    let address = Address::parse(&format!("{uri}?blobs=true")).map_err(HubError::Endpoint)?;
    web.json(&address, token, LISTING_BYTES_MAX).map_err(|source| HubError::List {
        repository: name.repository.clone(),
        revision: name.revision.clone(),
        source,
    })
}

fn repo(name: &HubName, revision: &str) -> Repo {
    Repo::with_revision(name.repository.clone(), RepoType::Model, revision.into())
}

/// `HF_TOKEN`, or what Hugging Face's own tools have stored.
fn token() -> Result<Option<Secret>, HubError> {
    let set = std::env::var("HF_TOKEN").ok().filter(|text| !text.trim().is_empty());
    let Some(text) = set.or_else(|| Cache::from_env().token()) else { return Ok(None) };
    let text = text.trim().to_string();
    let sound = text.len() <= 1024 && text.bytes().all(|b| b.is_ascii_graphic());
    if sound { Ok(Some(Secret(text))) } else { Err(HubError::Token) }
}

fn is_commit(text: &str) -> bool {
    (40..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The files as a sentence has them.
pub fn told(files: &[HubFile]) -> String {
    let one = [files.iter().map(|file| file.path.clone()).collect::<Vec<_>>()];
    known(one.iter())
}
