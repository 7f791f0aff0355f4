//! `cadencia generate`

use std::cell::RefCell;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use compute::sample::Sampler;
use compute::tokenizer::Specials;
use serde_json::json;

use super::{load, read_text};
use crate::shell::Usage;
use crate::shell::args::{Generate, SamplingFlags};
use crate::shell::ask::{Ask, Goal, Heard, Manner, Outcome, Owner};
use crate::shell::http::{random, timings};
use crate::shell::machine;
use crate::shell::progress::{Progress, Unit};
use crate::shell::sequence::Sequence;
use crate::shell::settings::Settings;
use crate::shell::speaker;

/// Continues a prompt.
pub fn generate(flags: &Generate, settings: &Settings) -> Result<ExitCode> {
    let sampler = sampler(&flags.sampling)?;
    let text = match (&flags.prompt, &flags.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path)?,
        (None, None) => return Err(Usage("--prompt or --prompt-file is wanted".into()).into()),
    };
    let speaker = load(settings)?;
    let tokenizer = speaker.tokenizer()?;
    let specials = if flags.special { Specials::Parse } else { Specials::Plain };
    if tokenizer.adds_bos() && !flags.special {
        eprintln!("note: this model expects BOS before a text; --special puts it there");
    }
    let seed = sampler.options().seed;
    let prompt = tokenizer.encode(&text, specials);
    let tokens_max = flags.tokens as usize;
    let summary = speaker.model().summary();
    let context = (prompt.len() + tokens_max).min(summary.context_length);
    let memory = machine::memory_available();
    speaker::context(Some(context), context, summary.kv_bytes_per_token, memory)?;

    let mut manner = Manner::plain(sampler);
    manner.tokens_max = tokens_max;
    manner.stops = flags.stop.clone();
    let goal = Goal::Answer(manner);
    let ask = Ask { model: 0, owner: Owner::default(), prompt: prompt.clone(), goal };
    let printer = RefCell::new(Printer::new(flags.json));
    let outcome = Sequence::new(speaker.model(), context).answer(
        ask,
        tokenizer,
        &|| printer.borrow().failure.is_some(),
        &mut |heard| printer.borrow_mut().hear(heard),
    )?;
    let text = printer.into_inner().finish()?;
    match flags.json {
        true => print_json(&prompt, &text, seed, &outcome)?,
        false => eprintln!("{}", timing_line(&outcome)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The dice that the flags describe.
pub fn sampler(flags: &SamplingFlags) -> Result<Sampler> {
    Ok(Sampler::new(flags.options(random())).map_err(|error| Usage(error.to_string()))?)
}

/// One line that says how fast it went.
pub fn timing_line(outcome: &Outcome) -> String {
    format!(
        "{} prompt tokens ({} kept) at {:.1}/s, {} tokens at {:.1}/s",
        outcome.prompt,
        outcome.kept,
        outcome.prompt_tps(),
        outcome.tokens.len(),
        outcome.answer_tps(),
    )
}

fn print_json(prompt: &[u32], text: &str, seed: u64, outcome: &Outcome) -> Result<()> {
    let value = json!({
        "prompt_tokens": prompt,
        "tokens": outcome.tokens,
        "text": text,
        "finish": outcome.finish.word(),
        "seed": seed,
        "timings": timings(outcome),
    });
    writeln!(io::stdout(), "{value}")?;
    Ok(())
}

/// Gathers the text, and shows it as it comes unless it is to be printed as JSON.
struct Printer {
    quiet: bool,
    text: String,
    progress: Option<Progress>,
    failure: Option<io::Error>,
}

impl Printer {
    fn new(quiet: bool) -> Self {
        let progress = Some(Progress::new("reading the prompt", Unit::Tokens));
        Self { quiet, text: String::new(), progress, failure: None }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Prompt { done, whole } => {
                if let Some(progress) = &mut self.progress {
                    progress.set(done as u64, whole as u64);
                }
            }
            Heard::Shown(shown) => {
                self.progress = None;
                self.text.push_str(&shown.text);
                self.show(&shown.text);
            }
            Heard::Embedding(_) => {}
        }
    }

    fn show(&mut self, text: &str) {
        if self.quiet || text.is_empty() || self.failure.is_some() {
            return;
        }
        let mut out = io::stdout().lock();
        self.failure = out.write_all(text.as_bytes()).and_then(|()| out.flush()).err();
    }

    /// The whole text, if all of it could be shown.
    fn finish(mut self) -> io::Result<String> {
        if !self.text.ends_with('\n') {
            self.show("\n");
        }
        match self.failure {
            Some(error) => Err(error),
            None => Ok(self.text),
        }
    }
}
