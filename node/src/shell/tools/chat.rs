//! `cadencia chat`

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use compute::template::Message;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};

use super::generate::{sampler, timing_line};
use super::load;
use crate::house::Finish;
use crate::shell::args::Chat;
use crate::shell::ask::{Ask, Goal, Heard, Manner, Outcome, Owner};
use crate::shell::progress::{Progress, Unit};
use crate::shell::sequence::Sequence;
use crate::shell::settings::Settings;
use crate::shell::speaker::{Speaker, message, unix_now};

const HELP: &str = "\
/help          this list
/reset         forget the conversation
/system TEXT   tell the model this before the conversation, and forget the rest
/again         answer the last message anew
/stats         how fast the last answer was, and how full the context is
/quit          end (Ctrl-D, too)
Ctrl-C stops an answer.";

/// Talks to a model in this terminal.
pub fn chat(flags: &Chat, settings: &Settings) -> Result<ExitCode> {
    sampler(&flags.sampling)?;
    let speaker = load(settings)?;
    speaker.can_chat()?;
    let context = speaker.context(settings)?;
    let interrupt = Interrupt::listen()?;
    let mut talk = Talk::new(&speaker, context, flags, &interrupt);
    let mut input = Input::open()?;
    if input.is_terminal() {
        let summary = speaker.model().summary();
        eprintln!(
            "{} on cpu with {} kernels and {} threads, context {context}; /help for commands",
            speaker.name(),
            summary.kernels,
            settings.threads,
        );
    }
    while let Some(line) = input.next()? {
        match Spoken::of(&line) {
            Spoken::Nothing => {}
            Spoken::Quit => break,
            Spoken::Help => eprintln!("{HELP}"),
            Spoken::Stats => eprintln!("{}", talk.stats()),
            Spoken::Reset => talk.reset(),
            Spoken::System(text) => talk.system(text),
            Spoken::Again => talk.again()?,
            Spoken::Unknown(word) => eprintln!("there is no {word}; /help lists what there is"),
            Spoken::Message(text) => talk.say(text)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What a typed line means.
#[derive(Debug, PartialEq, Eq)]
enum Spoken<'a> {
    Nothing,
    Help,
    Reset,
    System(&'a str),
    Again,
    Stats,
    Quit,
    Unknown(&'a str),
    Message(&'a str),
}

impl<'a> Spoken<'a> {
    fn of(line: &'a str) -> Self {
        let line = line.trim();
        if line.is_empty() {
            return Spoken::Nothing;
        }
        if !line.starts_with('/') {
            return Spoken::Message(line);
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word {
            "/help" | "/?" => Spoken::Help,
            "/reset" | "/clear" => Spoken::Reset,
            "/system" => Spoken::System(rest.trim()),
            "/again" => Spoken::Again,
            "/stats" => Spoken::Stats,
            "/quit" | "/exit" | "/bye" => Spoken::Quit,
            _ => Spoken::Unknown(word),
        }
    }
}

/// A conversation.
struct Talk<'a> {
    speaker: &'a Speaker,
    flags: &'a Chat,
    interrupt: &'a Interrupt,
    context: usize,
    sequence: Sequence,
    messages: Vec<Message>,
    last: Option<Outcome>,
}

impl<'a> Talk<'a> {
    fn new(
        speaker: &'a Speaker,
        context: usize,
        flags: &'a Chat,
        interrupt: &'a Interrupt,
    ) -> Self {
        let sequence = Sequence::new(speaker.model(), context);
        let messages = flags.system.iter().map(|text| message("system", text)).collect();
        Self { speaker, flags, interrupt, context, sequence, messages, last: None }
    }

    fn reset(&mut self) {
        let kept = self.messages.first().is_some_and(|message| message.role == "system");
        self.messages.truncate(usize::from(kept));
        self.last = None;
    }

    fn system(&mut self, text: &str) {
        self.messages.clear();
        self.last = None;
        if !text.is_empty() {
            self.messages.push(message("system", text));
        }
    }

    fn stats(&self) -> String {
        let held = self.sequence.len();
        let context = format!("context {held} of {} tokens", self.context);
        match &self.last {
            Some(outcome) => format!("{}; {context}", timing_line(outcome)),
            None => context,
        }
    }

    /// Says `text`, and shows the answer.
    fn say(&mut self, text: &str) -> Result<()> {
        self.messages.push(message("user", text));
        self.answer()
    }

    /// Answers the last message anew.
    fn again(&mut self) -> Result<()> {
        if self.messages.last().is_some_and(|message| message.role == "assistant") {
            self.messages.pop();
        }
        match self.messages.last() {
            Some(message) if message.role == "user" => self.answer(),
            _ => {
                eprintln!("nothing has been asked yet");
                Ok(())
            }
        }
    }

    fn answer(&mut self) -> Result<()> {
        let ask = match self.ask() {
            Ok(ask) => ask,
            Err(error) => {
                // A message that cannot be answered must not stay in the way of the next.
                self.messages.pop();
                eprintln!("{error:#}");
                return Ok(());
            }
        };
        let mut progress = Some(Progress::new("reading", Unit::Tokens));
        let mut text = String::new();
        let mut failure = None;
        self.interrupt.begin();
        let outcome = self.sequence.answer(
            ask,
            self.speaker.tokenizer()?,
            &|| self.interrupt.is_asked(),
            &mut |heard| match heard {
                Heard::Prompt { done, whole } => {
                    if let Some(progress) = &mut progress {
                        progress.set(done as u64, whole as u64);
                    }
                }
                Heard::Shown(more) => {
                    progress = None;
                    text.push_str(&more.text);
                    failure = failure.take().or(show(&more.text).err());
                }
                Heard::Embedding(_) => {}
            },
        )?;
        self.interrupt.end();
        show("\n")?;
        if let Some(error) = failure {
            return Err(error.into());
        }
        match outcome.finish {
            Finish::Stop => {}
            Finish::Length => eprintln!("[cut off after {} tokens]", outcome.tokens.len()),
            Finish::Halted => eprintln!("[stopped]"),
        }
        self.messages.push(message("assistant", text));
        self.last = Some(outcome);
        Ok(())
    }

    /// The conversation as tokens, without its oldest turns if it has become too long.
    fn ask(&mut self) -> Result<Ask> {
        let room = self.context / 4;
        let mut dropped = 0;
        let prompt = loop {
            let prompt = self.speaker.conversation(&self.messages, unix_now())?;
            if prompt.len() + room <= self.context || !self.forget_a_turn() {
                break prompt;
            }
            dropped += 1;
        };
        if dropped > 0 {
            eprintln!("[the context is full: the oldest {dropped} turns are forgotten]");
        }
        let mut manner = Manner::plain(sampler(&self.flags.sampling)?);
        manner.tokens_max = self.flags.tokens.map_or(usize::MAX, |n| n as usize);
        let ask = Ask { model: 0, owner: Owner::default(), prompt, goal: Goal::Answer(manner) };
        ask.check(self.context)?;
        Ok(ask)
    }

    /// Takes out the oldest message and its answer; whether there was one beside the last.
    fn forget_a_turn(&mut self) -> bool {
        let first = usize::from(self.messages[0].role == "system");
        let next = (first + 1..self.messages.len()).find(|&n| self.messages[n].role == "user");
        match next {
            Some(next) => {
                self.messages.drain(first..next);
                true
            }
            None => false,
        }
    }
}

fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Ctrl-C: stops an answer while there is one, and the program otherwise.
struct Interrupt {
    answering: Arc<AtomicBool>,
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    fn listen() -> Result<Self> {
        let listening = Self { answering: Arc::default(), asked: Arc::default() };
        let (answering, asked) = (listening.answering.clone(), listening.asked.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .context("cannot listen for Ctrl-C")?;
        let listen = move || {
            runtime.block_on(async {
                while tokio::signal::ctrl_c().await.is_ok() {
                    if !answering.load(Ordering::SeqCst) {
                        std::process::exit(130);
                    }
                    asked.store(true, Ordering::SeqCst);
                }
            });
        };
        std::thread::Builder::new().name("interrupt".into()).spawn(listen)?;
        Ok(listening)
    }

    fn begin(&self) {
        self.asked.store(false, Ordering::SeqCst);
        self.answering.store(true, Ordering::SeqCst);
    }

    fn end(&self) {
        self.answering.store(false, Ordering::SeqCst);
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Lines that are typed, or that come through a pipe.
enum Input {
    Terminal(Box<Editor<(), MemHistory>>),
    Pipe(io::Stdin),
}

impl Input {
    fn open() -> Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Pipe(io::stdin()));
        }
        // The history lives as long as the program: what was said is not left on the disk.
        let editor = Editor::with_history(Config::default(), MemHistory::new())
            .context("this terminal cannot be used; pipe the text in instead")?;
        Ok(Self::Terminal(Box::new(editor)))
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next line; `None` at the end.
    fn next(&mut self) -> Result<Option<String>> {
        match self {
            Self::Terminal(editor) => match editor.readline("> ") {
                Ok(line) => {
                    editor.add_history_entry(&line)?;
                    Ok(Some(line))
                }
                // Ctrl-C in a line that is being typed throws the line away.
                Err(ReadlineError::Interrupted) => Ok(Some(String::new())),
                Err(ReadlineError::Eof) => Ok(None),
                Err(error) => Err(error.into()),
            },
            Self::Pipe(stdin) => {
                let mut line = String::new();
                let read = stdin.read_line(&mut line).context("cannot read text from stdin")?;
                Ok((read > 0).then_some(line))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_message_or_a_command() {
        assert_eq!(Spoken::of("  hello /help "), Spoken::Message("hello /help"));
        assert_eq!(Spoken::of("/system  be brief "), Spoken::System("be brief"));
        assert_eq!(Spoken::of("/system"), Spoken::System(""));
        assert_eq!(Spoken::of("/quit"), Spoken::Quit);
        assert_eq!(Spoken::of(" \n"), Spoken::Nothing);
        assert_eq!(Spoken::of("/dance now"), Spoken::Unknown("/dance"));
    }
}
