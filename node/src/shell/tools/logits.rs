//! `cadencia logits`

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use super::{load, read_text};
use crate::shell::args::Logits;
use crate::shell::progress::{Progress, Unit};
use crate::shell::settings::Settings;

/// Tokens computed between two updates of the progress line.
const PIECE: usize = 128;

/// Writes the logits after each of the given tokens.
pub fn logits(flags: &Logits, settings: &Settings) -> Result<ExitCode> {
    let tokens = tokens(&read_text(&flags.tokens)?)?;
    let speaker = load(settings)?;
    let trained = speaker.model().summary().context_length;
    ensure!(
        tokens.len() <= trained,
        "there are {} tokens and the model was trained for {trained}",
        tokens.len()
    );
    let mut session = speaker.model().session(tokens.len());
    let mut out = Out::create(&flags.out)?;
    let mut progress = Progress::new("computing", Unit::Tokens);
    let mut failure = None;
    for (n, piece) in tokens.chunks(PIECE).enumerate() {
        session.logits_each(piece, &mut |_, row| {
            if failure.is_none() {
                failure = out.row(row).err();
            }
        })?;
        if let Some(error) = failure {
            return Err(error).with_context(|| format!("cannot write {}", flags.out.display()));
        }
        progress.set((n * PIECE + piece.len()) as u64, tokens.len() as u64);
    }
    out.finish().with_context(|| format!("cannot write {}", flags.out.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn tokens(text: &str) -> Result<Vec<u32>> {
    let id = |word: &str| word.parse::<u32>().with_context(|| format!("{word:?} is no token id"));
    let tokens: Vec<u32> = text.split_whitespace().map(id).collect::<Result<_>>()?;
    ensure!(!tokens.is_empty(), "there are no token ids");
    Ok(tokens)
}

/// Where rows go. A regular file appears under its name only when it is complete.
struct Out {
    writer: BufWriter<Box<dyn Write>>,
    /// Where it is written, and where it belongs.
    moved: Option<(PathBuf, PathBuf)>,
}

impl Out {
    fn create(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot create {}", path.display());
        let plain = |writer| Self { writer: BufWriter::new(writer), moved: None };
        if path == Path::new("-") {
            return Ok(plain(Box::new(io::stdout())));
        }
        // A device or a pipe is written as it is: it cannot be replaced.
        if path.metadata().is_ok_and(|there| !there.is_file()) {
            return Ok(plain(Box::new(File::create(path).with_context(cannot)?)));
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(".part");
        let beside = PathBuf::from(beside);
        let file: Box<dyn Write> = Box::new(File::create(&beside).with_context(cannot)?);
        Ok(Self { writer: BufWriter::new(file), moved: Some((beside, path.into())) })
    }

    fn row(&mut self, row: &[f32]) -> io::Result<()> {
        row.iter().try_for_each(|x| self.writer.write_all(&x.to_le_bytes()))
    }

    fn finish(mut self) -> io::Result<()> {
        self.writer.flush()?;
        match &self.moved {
            Some((from, to)) => std::fs::rename(from, to),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_separated_by_any_white_space() {
        assert_eq!(tokens("1 2\n\t3\r\n").unwrap(), [1, 2, 3]);
        assert!(tokens(" \n").is_err());
        let error = tokens("1 two").unwrap_err().to_string();
        assert!(error.contains("\"two\""), "{error}");
        assert!(tokens("-1").is_err());
    }

    #[test]
    fn a_file_appears_only_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.f32");
        let mut out = Out::create(&path).unwrap();
        out.row(&[1.5, -2.0]).unwrap();
        assert!(!path.exists());
        out.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
