//! `agent-host init`.

use std::{
    fs,
    io::{self, BufRead, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use agent_host_config::Config;
use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::{init_files, keys};
use crate::{failure::Failure, output::Output, settings::local_url};

/// The configuration file.
const FILE: &str = "agent-host.toml";
/// The script of a scripted model.
const SCRIPT: &str = "script.toml";
/// The folder of the example runners below the folder of an installation.
const SHARE: &str = "share/agent-host/runners";
/// Wrong answers to one question.
const TRIES: usize = 5;

/// Make a first configuration, with a runner that answers
///
/// Asks for the agent, its model and who may use it, on a terminal, for what the options do not say. Writes agent-host.toml, which
/// `agent-host config check` accepts, and copies the example runners into the plugins directory. No file is overwritten.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  \
    agent-host init && agent-host serve\n  \
    agent-host init --yes                                   # a scripted model, no key for this machine\n  \
    agent-host init demo --agent local-agent --provider openai --model gpt-4o-mini --access key\n  \
    agent-host init --provider compatible --base-url http://127.0.0.1:11434/v1 --model llama3.2 --access machine")]
pub(crate) struct Init {
    /// Folder of the configuration; made if it is not there
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The first agent
    #[arg(long, value_name = "AGENT")]
    agent: Option<FirstAgent>,
    /// The model of the agent
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<Provider>,
    /// Name of the model at its provider
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Address of a compatible server, up to the version
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Requests that the host takes
    #[arg(long, value_name = "WHO")]
    access: Option<Access>,
    /// Folder of the components of the example runners [default: that of the installation]
    #[arg(long, value_name = "DIR")]
    runners: Option<PathBuf>,
    /// Ask nothing: the defaults for what the options do not say
    #[arg(short, long)]
    yes: bool,
}

/// The first agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FirstAgent {
    /// Talks to a model, with tools, knowledge and memory
    LocalAgent,
    /// Repeats what it is told; needs no model
    Echo,
}

/// The provider of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Provider {
    /// A file of replies, to try the host without a model
    Scripted,
    /// OpenAI; the key is in the environment, as OPENAI_API_KEY
    Openai,
    /// Anthropic; the key is in the environment, as ANTHROPIC_API_KEY
    Anthropic,
    /// Gemini of Google; the key is in the environment, as GEMINI_API_KEY
    Gemini,
    /// A server with the API of OpenAI, such as Ollama or vLLM
    Compatible,
}

impl Provider {
    /// The environment variable of the key; `None` where the provider needs none.
    const fn key_variable(self) -> Option<&'static str> {
        match self {
            Self::Openai => Some("OPENAI_API_KEY"),
            Self::Anthropic => Some("ANTHROPIC_API_KEY"),
            Self::Gemini => Some("GEMINI_API_KEY"),
            Self::Scripted | Self::Compatible => None,
        }
    }
}

/// The senders whose requests the host takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Access {
    /// Every user and program of this machine, without a key
    Machine,
    /// Holders of a key; the first one is made now
    Key,
}

/// The choices of the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choices {
    pub(super) agent: FirstAgent,
    /// `None` where the agent needs no model.
    pub(super) model: Option<ModelChoice>,
    pub(super) access: Access,
}

/// The model that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelChoice {
    pub(super) provider: Provider,
    pub(super) model: Option<String>,
    pub(super) base_url: Option<String>,
}

impl FirstAgent {
    /// The name of the agent and of the file of its component.
    pub(super) const fn file(self) -> &'static str {
        match self {
            Self::LocalAgent => "local_agent_runner.wasm",
            Self::Echo => "echo_runner.wasm",
        }
    }
}

impl Init {
    pub(crate) async fn execute(&self, output: Output) -> anyhow::Result<ExitCode> {
        let (config_file, plugins) = (self.dir.join(FILE), self.dir.join("plugins"));
        // Before the questions: their answers would be for nothing.
        if config_file.exists() {
            let message =
                format!("{} is there already, and is not overwritten: change it, or name another folder", config_file.display());
            return Err(Failure::new("already_there", message).into());
        }
        let choices = self.choices()?;
        let runners = self.find_runners(choices.agent)?;

        fs::create_dir_all(&plugins).with_context(|| format!("{} cannot be made", plugins.display()))?;
        let mut made = Vec::new();
        for runner in &runners {
            let Some(name) = runner.file_name() else { continue };
            install(runner, &plugins.join(name), &mut made, output)?;
        }
        if choices.model.as_ref().is_some_and(|model| model.provider == Provider::Scripted) {
            let script = self.dir.join(SCRIPT);
            if script.exists() {
                output.remark(&format!("{} is there already, and stays as it is", script.display()));
            } else {
                write_new(&script, init_files::SCRIPT_TEXT)?;
                made.push(script);
            }
        }
        // The last file: an interrupted command can be repeated.
        write_new(&config_file, &init_files::config_text(&choices))?;
        made.push(config_file.clone());
        let config = Config::load(&config_file).context("the file that was written is not valid")?;
        config.check().context("the file that was written is not valid")?;
        let key = match choices.access {
            Access::Machine => None,
            Access::Key => Some(keys::create_admin(&config).await?),
        };

        let page = format!("{}/", local_url(config.listen));
        let files: Vec<_> = made.iter().map(|file| file.display().to_string()).collect();
        let report = json!({ "config": config_file.display().to_string(), "made": files, "key": key, "page": page });
        output.result(&report, || {
            let mut text: String = files.iter().map(|file| format!("made  {file}\n")).collect();
            if let Some(key) = &key {
                text.push_str(&format!("\nThe key of an administrator, shown this once; the page asks for it:\n{key}\n"));
            }
            text.push_str(&self.next_steps(&choices, &page));
            text
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn next_steps(&self, choices: &Choices, page: &str) -> String {
        let mut text = "\nNext:\n".to_owned();
        if let Some(variable) = choices.model.as_ref().and_then(|model| model.provider.key_variable()) {
            text.push_str(&format!("  export {variable}=…\n"));
        }
        let here = self.dir == Path::new(".");
        let config = if here { String::new() } else { format!(" --config {}", self.dir.join(FILE).display()) };
        text.push_str(&format!("  agent-host{config} serve\nand talk to the agent at {page}\n"));
        text
    }

    /// The options, and the answers to questions where they leave something open.
    fn choices(&self) -> anyhow::Result<Choices> {
        let asks = !self.yes && io::stdin().is_terminal();
        let open = self.agent.is_none()
            || self.access.is_none()
            || self.provider.is_none() && self.agent == Some(FirstAgent::LocalAgent);
        if open && !asks && !self.yes {
            let message = "standard input is no terminal, so nothing can be asked: give --agent, --provider and --access, or --yes for \
                           the defaults";
            return Err(Failure::new("not_a_terminal", message).into());
        }
        let mut input = io::stdin().lock();
        let mut ask = Questions { input: asks.then_some(&mut input) };
        let agent = ask.choice("Which agent is to answer first?", self.agent)?;
        let model = match agent {
            FirstAgent::Echo => None,
            FirstAgent::LocalAgent => {
                let provider = ask.choice("Which model is it to talk to?", self.provider)?;
                Some(ModelChoice { provider, model: self.model.clone(), base_url: self.base_url.clone() })
            }
        };
        self.has_no_idle_option(model.as_ref())?;
        let access = ask.choice("Whose requests is the host to take?", self.access)?;
        Ok(Choices { agent, model, access })
    }

    /// Fails if an option says something of a model that is not used.
    fn has_no_idle_option(&self, model: Option<&ModelChoice>) -> Result<(), Failure> {
        let provider = model.map(|model| model.provider);
        let idle = [
            ("--provider", self.provider.is_some() && provider.is_none(), "an agent with a model: --agent local-agent"),
            (
                "--model",
                self.model.is_some() && provider.is_none_or(|provider| provider == Provider::Scripted),
                "a provider with models: --provider openai, anthropic, gemini or compatible",
            ),
            (
                "--base-url",
                self.base_url.is_some() && provider != Some(Provider::Compatible),
                "a server of that address: --provider compatible",
            ),
        ];
        match idle.into_iter().find(|(_, is_idle, _)| *is_idle) {
            Some((option, _, needs)) => Err(Failure::new("invalid_argument", format!("{option} needs {needs}"))),
            None => Ok(()),
        }
    }

    /// The component of the agent, and the other example runners beside it.
    fn find_runners(&self, agent: FirstAgent) -> Result<Vec<PathBuf>, Failure> {
        let dirs = self.runners.clone().map_or_else(installed_runners, |dir| vec![dir]);
        for dir in &dirs {
            if dir.join(agent.file()).is_file() {
                let files = FirstAgent::value_variants().iter().map(|agent| dir.join(agent.file()));
                return Ok(files.filter(|file| file.is_file()).collect());
            }
        }
        let places: Vec<_> = dirs.iter().map(|dir| dir.join(agent.file()).display().to_string()).collect();
        Err(Failure::new(
            "no_runners",
            format!(
                "the component of the agent is not there ({}): name the folder that has it with --runners DIR. An installation has it in \
                 {SHARE}; in the source, `cargo xtask guests` builds it into target/wasm32-wasip2/guest",
                places.join(", ")
            ),
        ))
    }
}

/// The folders in which an installation, or a build of the project, has the example runners.
fn installed_runners() -> Vec<PathBuf> {
    let Some(beside) = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned)) else {
        return Vec::new();
    };
    let above = beside.parent().map(Path::to_owned).unwrap_or_default();
    vec![beside.join(SHARE), above.join(SHARE), above.join("wasm32-wasip2/guest")]
}

/// Copies a component under a hidden name, then shows it whole, as a running host needs it. A file that is there stays.
fn install(runner: &Path, to: &Path, made: &mut Vec<PathBuf>, output: Output) -> anyhow::Result<()> {
    if to.exists() {
        output.remark(&format!("{} is there already, and stays as it is", to.display()));
        return Ok(());
    }
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let hidden = to.with_file_name(format!(".{name}.partial"));
    let copied = fs::copy(runner, &hidden).and_then(|_| fs::rename(&hidden, to));
    copied.with_context(|| format!("{} cannot be copied to {}", runner.display(), to.display()))?;
    made.push(to.to_owned());
    Ok(())
}

fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = fs::File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("{} cannot be written", path.display()))
}

/// Questions on a terminal; without one, each has its first choice as the answer.
struct Questions<'a, R> {
    input: Option<&'a mut R>,
}

impl<R: BufRead> Questions<'_, R> {
    /// The choice that an option has made, else that of the person.
    fn choice<T: ValueEnum + Copy>(&mut self, question: &str, given: Option<T>) -> anyhow::Result<T> {
        let first = T::value_variants().first().copied().context("a question has choices")?;
        let (None, Some(input)) = (given, &mut self.input) else { return Ok(given.unwrap_or(first)) };
        let mut text = format!("{question}\n");
        for (place, choice) in T::value_variants().iter().enumerate() {
            let value = choice.to_possible_value().unwrap_or_default();
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {}) {}: {help}\n", place + 1, value.get_name()));
        }
        let mut terminal = io::stderr().lock();
        terminal.write_all(text.as_bytes())?;
        for _ in 0..TRIES {
            write!(terminal, "Choose [1]: ")?;
            terminal.flush()?;
            let mut answer = String::new();
            if input.read_line(&mut answer)? == 0 {
                return Err(Failure::new("no_answer", "the input ended before the questions did: nothing was written").into());
            }
            match chosen(answer.trim()) {
                Some(choice) => return Ok(choice),
                None => writeln!(terminal, "Write a number from 1 to {}, or a name.", T::value_variants().len())?,
            }
        }
        Err(Failure::new("no_answer", format!("no choice after {TRIES} answers: nothing was written")).into())
    }
}

/// The choice that an answer names, by its number or its name; the first for an empty answer.
fn chosen<T: ValueEnum + Copy>(answer: &str) -> Option<T> {
    let choices = T::value_variants();
    if answer.is_empty() {
        return choices.first().copied();
    }
    let by_number = answer.parse::<usize>().ok().and_then(|number| choices.get(number.checked_sub(1)?)).copied();
    by_number.or_else(|| T::from_str(answer, true).ok())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        init: Init,
    }

    #[test]
    fn a_question_takes_numbers_names_and_nothing_and_asks_again() {
        let ask = |answers: &str, given| {
            let mut input = answers.as_bytes();
            Questions { input: Some(&mut input) }.choice("Which?", given)
        };
        assert_eq!(ask("\n", None).unwrap(), Provider::Scripted);
        assert_eq!(ask("2\n", None).unwrap(), Provider::Openai);
        assert_eq!(ask("gemini\n", None).unwrap(), Provider::Gemini);
        assert_eq!(ask("9\n0\nnonsense\ncompatible\n", None).unwrap(), Provider::Compatible);
        assert_eq!(ask("", Some(Provider::Openai)).unwrap(), Provider::Openai, "an option is not asked for");
        assert!(ask("", None).is_err());
        assert!(ask(&"x\n".repeat(10), None).is_err(), "the number of questions has an end");
        let mut none: Questions<'_, &[u8]> = Questions { input: None };
        assert_eq!(none.choice::<Access>("Who?", None).unwrap(), Access::Machine);
    }

    #[test]
    fn an_option_that_would_change_nothing_is_refused_with_what_it_needs() {
        let choices = |line: &str| {
            let words = ["init", "--yes", "--access", "machine"].into_iter().chain(line.split_whitespace());
            Line::try_parse_from(words).unwrap().init.choices().map_err(|error| error.to_string())
        };
        for (line, needs) in [
            ("--model llama3.2", "--provider openai, anthropic, gemini or compatible"),
            ("--provider openai --base-url http://127.0.0.1:1/v1", "--provider compatible"),
            ("--agent echo --provider openai", "--agent local-agent"),
        ] {
            let refused = choices(line).unwrap_err();
            assert!(refused.ends_with(needs), "{line}: {refused}");
        }
        let chosen = choices("--provider compatible --model llama3.2 --base-url http://127.0.0.1:1/v1").unwrap();
        assert_eq!(chosen.model.unwrap().model.as_deref(), Some("llama3.2"));
        assert_eq!(choices("--agent echo").unwrap().model, None);
    }

    #[test]
    fn every_choice_gives_a_valid_configuration() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(SCRIPT), init_files::SCRIPT_TEXT).unwrap();
        let odd = Some("a \"model\"".to_owned());
        let models = Provider::value_variants().iter().flat_map(|provider| {
            let model = |model: &Option<String>| ModelChoice { provider: *provider, model: model.clone(), base_url: None };
            [Some(model(&None)), Some(model(&odd))]
        });
        for model in models.chain([None]) {
            for access in Access::value_variants() {
                let agent = if model.is_some() { FirstAgent::LocalAgent } else { FirstAgent::Echo };
                let choices = Choices { agent, model: model.clone(), access: *access };
                let text = init_files::config_text(&choices);
                let config = Config::parse(&text, dir.path()).unwrap_or_else(|error| panic!("{error}\n{text}"));
                config.check().unwrap_or_else(|error| panic!("{error}\n{text}"));
                assert_eq!(config.loopback_without_key, *access == Access::Machine);
                assert_eq!((config.models.len(), config.bindings.len()), (usize::from(model.is_some()), 1), "{text}");
            }
        }
    }
}
