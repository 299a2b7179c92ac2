//! The library: skills and other content that an operator gives to runs, read once when the host starts.
//!
//! Each file becomes an artifact of the ledger, whose id follows from what it is: its kind, name, media type and
//! content. The same content has the same artifact at every start; other content has another one, and the one before
//! stays, because runs that were granted it still read it. A run may read what its grant names, and nothing else here.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use agent_host_config::{Config, Names, ResourcePolicy, SkillConfig, StaticRefConfig};
use agent_host_ledger::{ArtifactRecord, ArtifactScope, Blob, Ledger, LedgerError};
use agent_host_protocol::{
    context::{SkillResource, StaticRef},
    manifest::{ArtifactOperation, Permissions},
    message::ArtifactRef,
    time,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::policy::media;

/// The file that makes a folder a skill.
const SKILL_FILE: &str = "SKILL.md";
/// Files of one skill, and folders of one skill.
const MAX_SKILL_FILES: usize = 200;
/// Files of all skills: each is named in the grant of every run, with about 300 bytes.
const MAX_LIBRARY_FILES: usize = 1_000;
/// Bytes of one skill, and of one static reference: what an artifact may have unless configured otherwise.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// A name and a description take a hundredth of it.
const MAX_FRONT_MATTER_BYTES: usize = 64 * 1024;
/// Pieces of YAML that a front matter may unfold to. Aliases could make millions of a few lines.
const MAX_FRONT_MATTER_NODES: usize = 10_000;
/// As in the Agent Skills format.
const MAX_SKILL_NAME: usize = 64;
/// As in the Agent Skills format.
const MAX_DESCRIPTION_CHARS: usize = 1_024;
/// Name of an artifact, as runs may give it.
const MAX_ARTIFACT_NAME_BYTES: usize = 255;
/// Digits of a digest that make an id: enough that nobody finds two contents with one.
const ID_DIGITS: usize = 32;
/// Digits of a digest that stand for a version.
const VERSION_DIGITS: usize = 12;

/// Why the library could not be read. The message names the file and the mend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// A file or folder.
    #[error("{path} cannot be read: {source}. Correct `path` in the configuration, or let the host read it", path = path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no such file in the folder.
    #[error("{path} is not there: a skill is a folder with a file {SKILL_FILE}, so `path` must name that folder", path = path.display())]
    NoSkill {
        /// Where it would be.
        path: PathBuf,
    },
    /// A file says or is something that cannot be.
    #[error("{path}: {problem}", path = path.display())]
    Invalid {
        /// Which.
        path: PathBuf,
        /// What, and the mend.
        problem: String,
    },
    /// Two skills have one name.
    #[error(
        "two skills have the name `{name}`: {first} and {second}. Change `name` in the {SKILL_FILE} of one, or leave one out",
        first = first.display(),
        second = second.display()
    )]
    SameName {
        /// The name.
        name: String,
        /// The folder that comes first in the configuration.
        first: PathBuf,
        /// The other folder.
        second: PathBuf,
    },
    /// A static reference is configured wrongly.
    #[error("static reference `{name}`: {problem}")]
    Config {
        /// Its name.
        name: String,
        /// What, and the mend.
        problem: String,
    },
    /// The ledger did not take it.
    #[error("{path} could not be put into the ledger: {source}", path = path.display())]
    Ledger {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: LedgerError,
    },
    /// The host failed.
    #[error("{path} could not be read: {problem}", path = path.display())]
    Failed {
        /// Which file or folder.
        path: PathBuf,
        /// How.
        problem: String,
    },
}

/// What can be granted.
#[derive(Debug, Default)]
pub(crate) struct Library {
    skills: Vec<Skill>,
    static_refs: BTreeMap<String, StaticRef>,
}

#[derive(Debug)]
struct Skill {
    resource: SkillResource,
    /// All but the first file, by name.
    files: Vec<ArtifactRef>,
}

/// What of the library one run is granted.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Granted {
    pub(crate) skills: Vec<SkillResource>,
    pub(crate) skill_files: Vec<ArtifactRef>,
    pub(crate) static_refs: BTreeMap<String, StaticRef>,
}

impl Library {
    /// Reads what is configured, and makes an artifact of each file that has none yet.
    pub(crate) async fn open(config: &Config, ledger: &Ledger) -> Result<Self, LibraryError> {
        let mut library = Self::default();
        let mut folders: BTreeMap<String, &Path> = BTreeMap::new();
        let mut files = 0;
        for SkillConfig { path } in &config.skills {
            let (skill, count) = read_skill(path, ledger).await?;
            let name = &skill.resource.skill_name;
            if let Some(first) = folders.insert(name.clone(), path) {
                return Err(LibraryError::SameName { name: name.clone(), first: first.to_owned(), second: path.clone() });
            }
            files += count;
            if files > MAX_LIBRARY_FILES {
                let problem = format!(
                    "with this skill there are {files} files of skills, and there may be {MAX_LIBRARY_FILES}: leave some skills out, or put files together"
                );
                return Err(LibraryError::Invalid { path: path.clone(), problem });
            }
            library.skills.push(skill);
        }
        for content in &config.static_refs {
            library.static_refs.insert(content.name.clone(), read_static(content, ledger).await?);
        }
        Ok(library)
    }

    /// What `policy` names of what is there, as far as the permissions let a run read it.
    pub(crate) fn granted(&self, policy: &ResourcePolicy, permissions: &Permissions) -> Granted {
        let all = Names::all();
        let reads = permissions.artifacts.contains(&ArtifactOperation::Read);
        let mut granted = Granted::default();
        let there = self.skills.iter().map(|skill| skill.resource.skill_name.clone());
        let names = if reads { policy.skill_names.as_ref().unwrap_or(&all).of(there) } else { Vec::new() };
        for skill in self.skills.iter().filter(|skill| names.contains(&skill.resource.skill_name)) {
            granted.skills.push(skill.resource.clone());
            granted.skill_files.extend(skill.files.iter().cloned());
        }
        for name in policy.static_refs.as_ref().unwrap_or(&all).of(self.static_refs.keys().cloned()) {
            let Some(content) = self.static_refs.get(&name) else { continue };
            let content = StaticRef { content: content.content.clone().filter(|_| reads), ..content.clone() };
            granted.static_refs.insert(name, content);
        }
        granted
    }
}

async fn read_skill(folder: &Path, ledger: &Ledger) -> Result<(Skill, usize), LibraryError> {
    let (front, files) = {
        let folder = folder.to_owned();
        blocking(&folder.clone(), move || Ok((read_front(&folder)?, files_of(&folder)?))).await?
    };
    let mut left = MAX_BYTES;
    let mut artifacts = Vec::with_capacity(files.len());
    let mut content = None;
    let count = files.len();
    for Found { relative, path } in files {
        let name = format!("{}/{relative}", front.name);
        if name.len() > MAX_ARTIFACT_NAME_BYTES {
            let problem = format!("`{name}` has more than {MAX_ARTIFACT_NAME_BYTES} bytes: give it a shorter name");
            return Err(LibraryError::Invalid { path, problem });
        }
        let artifact = keep(ledger, Kind::Skill, name, path, left).await?;
        left = left.saturating_sub(artifact.size.unwrap_or(0));
        if relative == SKILL_FILE {
            content = Some(artifact);
        } else {
            artifacts.push(artifact);
        }
    }
    let content = content.ok_or_else(|| LibraryError::NoSkill { path: folder.join(SKILL_FILE) })?;
    let resource = SkillResource { skill_name: front.name, description: Some(front.description), content };
    Ok((Skill { resource, files: artifacts }, count))
}

async fn read_static(config: &StaticRefConfig, ledger: &Ledger) -> Result<StaticRef, LibraryError> {
    config.check().map_err(|problem| LibraryError::Config { name: config.name.clone(), problem })?;
    let content = keep(ledger, Kind::Static, config.name.clone(), config.path.clone(), MAX_BYTES).await?;
    let sha256 = content.sha256.clone().unwrap_or_default();
    let version = config.version.clone().unwrap_or_else(|| sha256.chars().take(VERSION_DIGITS).collect());
    Ok(StaticRef { version, sha256, content: Some(content) })
}

/// Reads files on a thread that may wait for a disk.
async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, LibraryError> + Send + 'static,
) -> Result<T, LibraryError> {
    let failed = |error: tokio::task::JoinError| LibraryError::Failed { path: path.to_owned(), problem: error.to_string() };
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

/// What an artifact of the library is part of. It is the source of the artifact, and begins its id.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Skill,
    Static,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Skill => "skill",
            Self::Static => "static",
        }
    }
}

/// The id of an artifact. Each part is hashed with its length, so no choice of parts looks like another. The media type
/// is one of them: it belongs to what readers are told, and a record in the ledger does not change.
fn id_of(kind: Kind, name: &str, media_type: &str, bytes: &[u8]) -> String {
    let mut hash = Sha256::new();
    for part in [kind.as_str().as_bytes(), name.as_bytes(), media_type.as_bytes(), bytes] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = format!("{:x}", hash.finalize());
    format!("{}-{}", kind.as_str(), digest.chars().take(ID_DIGITS).collect::<String>())
}

/// The artifact of a file of at most `max_bytes`. It is durable when this returns.
async fn keep(ledger: &Ledger, kind: Kind, name: String, path: PathBuf, max_bytes: u64) -> Result<ArtifactRef, LibraryError> {
    let writing = ledger.clone();
    let (record, new) = blocking(&path.clone(), {
        let path = path.clone();
        move || {
            let bytes = read(&path, max_bytes)?;
            write(&writing, kind, name, &path, &bytes).map_err(|source| LibraryError::Ledger { path, source })
        }
    })
    .await?;
    let reference = record.reference();
    if let Some(blob) = new {
        ledger.add_artifact(record).await.map_err(|source| LibraryError::Ledger { path, source })?;
        // Held until the record is there: it keeps the content.
        drop(blob);
    }
    Ok(reference)
}

/// The record of an artifact, and its content on disk where the record is new.
fn write(
    ledger: &Ledger,
    kind: Kind,
    name: String,
    path: &Path,
    bytes: &[u8],
) -> Result<(ArtifactRecord, Option<Blob>), LedgerError> {
    let media_type = media_type(path, bytes);
    let artifact_id = id_of(kind, &name, &media_type, bytes);
    let known = ledger.artifact(&artifact_id)?;
    if let Some(record) = &known
        && ledger.blob(&record.sha256)?.is_some()
    {
        return Ok((record.clone(), None));
    }
    let mut writer = ledger.blob_writer(bytes.len() as u64)?;
    writer.write(bytes)?;
    let blob = writer.finish()?;
    if let Some(record) = known {
        // Its content was lost, and is back.
        return Ok((record, None));
    }
    let record = ArtifactRecord {
        artifact_id,
        sha256: blob.sha256.clone(),
        size: blob.size,
        media_type,
        name: Some(name),
        created_at: time::now(),
        expires_at: None,
        // Of no run, conversation or binding: a grant is the only way to it.
        scope: ArtifactScope::default(),
        source: kind.as_str().to_owned(),
    };
    Ok((record, Some(blob)))
}

fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, LibraryError> {
    let unreadable = |source| LibraryError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(invalid(path, "is not a file: `path` must name one"));
    }
    let mut bytes = Vec::new();
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > max_bytes {
        let problem =
            format!("is too large: a skill with all of its files, or a static reference, has at most {MAX_BYTES} bytes");
        return Err(invalid(path, problem));
    }
    Ok(bytes)
}

fn invalid(path: &Path, problem: impl Into<String>) -> LibraryError {
    LibraryError::Invalid { path: path.to_owned(), problem: problem.into() }
}

/// The media type of a file: what its extension says, where the content bears it out, and else what the content shows.
fn media_type(path: &Path, bytes: &[u8]) -> String {
    // As much as `media` asks for.
    let head = bytes.get(..8 * 1024).unwrap_or(bytes);
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    media::judge(of_extension(&extension), head).or_else(|_| media::judge("", head)).unwrap_or_else(|_| media::UNKNOWN.to_owned())
}

/// Types that the content alone does not tell; nothing where it does.
fn of_extension(extension: &str) -> &'static str {
    match extension {
        "md" | "markdown" => "text/markdown",
        "txt" | "text" => "text/plain",
        "csv" => "text/csv",
        "tsv" => "text/tab-separated-values",
        "html" | "htm" => "text/html",
        "css" => "text/css",
        "js" | "mjs" | "cjs" => "text/javascript",
        "ts" | "tsx" => "text/x-typescript",
        "py" => "text/x-python",
        "rb" => "text/x-ruby",
        "rs" => "text/x-rust",
        "sh" | "bash" => "text/x-shellscript",
        "sql" => "text/x-sql",
        "json" => "application/json",
        "jsonl" | "ndjson" => "application/x-ndjson",
        "yaml" | "yml" => "application/yaml",
        "toml" => "application/toml",
        "xml" | "xsd" => "application/xml",
        "svg" => "image/svg+xml",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "odt" => "application/vnd.oasis.opendocument.text",
        "ods" => "application/vnd.oasis.opendocument.spreadsheet",
        "odp" => "application/vnd.oasis.opendocument.presentation",
        _ => "",
    }
}

/// A file of a skill.
#[derive(Debug)]
struct Found {
    /// Below the folder, with `/`.
    relative: String,
    path: PathBuf,
}

/// All files of a folder and the folders in it, by name. What is hidden is passed over; what leads elsewhere is refused,
/// so that a skill from somebody else brings along only what is in it.
fn files_of(folder: &Path) -> Result<Vec<Found>, LibraryError> {
    let mut found = Vec::new();
    let mut folders = vec![(String::new(), folder.to_owned())];
    let mut entered = 0;
    while let Some((prefix, dir)) = folders.pop() {
        let unreadable = |source| LibraryError::Unreadable { path: dir.clone(), source };
        for entry in fs::read_dir(&dir).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let path = entry.path();
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Some(name) = name.to_str().filter(|name| !name.chars().any(char::is_control)) else {
                return Err(invalid(&path, "the name is not UTF-8, or has control characters: rename it"));
            };
            let relative = format!("{prefix}{name}");
            let kind = entry.file_type().map_err(|source| LibraryError::Unreadable { path: path.clone(), source })?;
            if kind.is_dir() {
                entered += 1;
                folders.push((format!("{relative}/"), path));
            } else if kind.is_file() {
                found.push(Found { relative, path });
            } else if kind.is_symlink() {
                return Err(invalid(&path, "is a symbolic link: put the file itself into the skill, or take the link out"));
            } else {
                return Err(invalid(&path, "is neither a file nor a folder: take it out of the skill"));
            }
            if found.len() > MAX_SKILL_FILES || entered > MAX_SKILL_FILES {
                let problem = format!("a skill has at most {MAX_SKILL_FILES} files and as many folders: take some out");
                return Err(invalid(folder, problem));
            }
        }
    }
    found.sort_by(|a, b| a.relative.cmp(&b.relative));
    Ok(found)
}

/// What a skill says of itself. The format has more fields; the host does not need them.
#[derive(Debug, PartialEq, Deserialize)]
struct Front {
    name: String,
    description: String,
}

fn read_front(folder: &Path) -> Result<Front, LibraryError> {
    let path = folder.join(SKILL_FILE);
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && folder.is_dir() => return Err(LibraryError::NoSkill { path }),
        Err(source) => return Err(LibraryError::Unreadable { path, source }),
        Ok(metadata) if !metadata.is_file() => {
            return Err(invalid(&path, "is not a file: put the file itself into the skill, no link or folder"));
        }
        Ok(_) => {}
    }
    let bytes = read(&path, MAX_BYTES)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        invalid(&path, format!("line {line} is not UTF-8: save the file as UTF-8"))
    })?;
    front(text).map_err(|problem| LibraryError::Invalid { path, problem })
}

/// The front matter of a text: YAML between two lines of `---`, the first of them at its beginning.
fn front(text: &str) -> Result<Front, String> {
    let yaml = front_matter(text.strip_prefix('\u{feff}').unwrap_or(text))?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: MAX_FRONT_MATTER_NODES },
    };
    let front: Front = serde_saphyr::from_str_with_options(yaml, options).map_err(|error| {
        format!(
            "{}. The front matter is YAML with `name` and `description`; a text with `: ` in it needs quotes",
            error.without_snippet()
        )
    })?;
    let front = Front { description: front.description.trim().to_owned(), ..front };
    let named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if front.name.is_empty() || front.name.len() > MAX_SKILL_NAME || !front.name.bytes().all(named) {
        return Err(format!("`name` must have 1 to {MAX_SKILL_NAME} lower-case letters, digits and `-`"));
    }
    let chars = front.description.chars().count();
    if chars == 0 || chars > MAX_DESCRIPTION_CHARS {
        return Err(format!("`description` has {chars} characters, and must have 1 to {MAX_DESCRIPTION_CHARS}"));
    }
    if front.description.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
        return Err("`description` has control characters: take them out".to_owned());
    }
    Ok(front)
}

/// It begins with the end of the first line, so that lines are counted as in the file.
fn front_matter(text: &str) -> Result<&str, String> {
    let is_fence = |line: &str| line.trim_end() == "---";
    let missing = "line 1 must be `---`: a skill begins with front matter between two such lines, with `name` and `description`";
    let body = text.strip_prefix("---").filter(|_| text.lines().next().is_some_and(is_fence)).ok_or(missing)?;
    let mut end = 0;
    for (place, line) in body.split_inclusive('\n').enumerate() {
        if place > 0 && is_fence(line) {
            return Ok(body.get(..end).unwrap_or_default());
        }
        end += line.len();
        if end > MAX_FRONT_MATTER_BYTES {
            return Err(format!(
                "the front matter has more than {MAX_FRONT_MATTER_BYTES} bytes: is the line `---` after it missing?"
            ));
        }
    }
    Err("the front matter that begins in line 1 does not end: a line `---` must come after it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill(name: &str, description: &str) -> String {
        format!("---\nname: {name}\ndescription: {description}\n---\n\n# Steps\n")
    }

    /// Files of a folder, by name.
    fn lay_out(folder: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }

    fn ledger(dir: &Path) -> Ledger {
        agent_host_ledger::Options::new(dir.join("ledger")).open().unwrap()
    }

    fn config(dir: &Path, skills: &[&str], static_refs: &[(&str, &str)]) -> Config {
        Config {
            skills: skills.iter().map(|path| SkillConfig { path: dir.join(path) }).collect(),
            static_refs: static_refs
                .iter()
                .map(|(name, path)| StaticRefConfig { name: (*name).to_owned(), path: dir.join(path), version: None })
                .collect(),
            ..Config::default_in(dir)
        }
    }

    async fn refusal(dir: &Path, ledger: &Ledger, skill: &str) -> String {
        Library::open(&config(dir, &[skill], &[]), ledger).await.expect_err(skill).to_string()
    }

    fn reading() -> Permissions {
        Permissions { artifacts: vec![ArtifactOperation::Read], ..Permissions::default() }
    }

    #[test]
    fn a_front_matter_is_read() {
        let check = |text: &str, name: &str, description: &str| {
            let expect = Front { name: name.to_owned(), description: description.to_owned() };
            assert_eq!(front(text), Ok(expect), "{text:?}");
        };
        check("---\nname: pdf\ndescription: Reads PDF files.\n---\n# PDF\n", "pdf", "Reads PDF files.");
        check("---\r\nname: pdf\r\ndescription: 'a: b'\r\n---\r\ntext", "pdf", "a: b");
        check("\u{feff}---  \nname: a-1\ndescription: >\n  two\n  lines\n---", "a-1", "two lines");
        check("---\nname: x\ndescription: ä\nlicense: MIT\nmetadata:\n  version: 1\n---\n---\nname: y\n---\n", "x", "ä");
        check("---\nname: x\ndescription: |\n  a\n  ---\n  b\n---\n", "x", "a\n---\nb");
        check(&skill(&"n".repeat(64), &"ü".repeat(1024)), &"n".repeat(64), &"ü".repeat(1024));
    }

    #[test]
    fn a_front_matter_that_is_none_is_refused_with_its_line() {
        let aliases = "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]";
        let nested = format!("x: {}{}", "[".repeat(20_000), "]".repeat(20_000));
        for (text, says) in [
            ("", "line 1 must be `---`"),
            ("# PDF\n", "line 1 must be `---`"),
            ("----\nname: x\n", "line 1 must be `---`"),
            ("\n---\nname: x\ndescription: y\n---\n", "line 1 must be `---`"),
            ("---\nname: x\ndescription: y\n", "does not end"),
            ("---", "does not end"),
            ("---\n---\n", "`name` and `description`"),
            ("---\nname: x\ndescription: a: b\n---\n", "line 3"),
            ("---\nname: x\ndescription: a: b\n---\n", "needs quotes"),
            ("---\nname: x\n---\n", "missing field `description`"),
            ("---\nname: [x]\ndescription: y\n---\n", "line 2"),
            ("---\nname: x\nname: z\ndescription: y\n---\n", "duplicate"),
            ("---\n- x\n---\n", "line 2"),
            (&skill("Has_Capitals", "x"), "`name` must have 1 to 64"),
            (&skill("''", "x"), "`name` must have 1 to 64"),
            (&skill("../up", "x"), "`name` must have 1 to 64"),
            (&skill(&"n".repeat(65), "x"), "`name` must have 1 to 64"),
            (&skill("x", "'  '"), "`description` has 0 characters"),
            (&skill("x", &"d".repeat(1025)), "`description` has 1025 characters"),
            (&skill("x", "\"a\\u0007b\""), "control characters"),
            (&format!("---\nname: x\ndescription: y\nmore: {}\n---\n", "m".repeat(MAX_FRONT_MATTER_BYTES)), "65536 bytes"),
            (&format!("---\nname: x\ndescription: y\n{aliases}\n---\n"), "budget"),
            (&format!("---\nname: x\ndescription: y\n{nested}\n---\n"), "recursion"),
        ] {
            let problem = front(text).expect_err(text);
            assert!(problem.contains(says), "{text:.200}\n→ {problem}");
        }
    }

    #[test]
    fn the_same_content_has_the_same_id_and_other_content_another() {
        let id = id_of(Kind::Skill, "pdf/SKILL.md", "text/markdown", b"text");
        assert_eq!(id, "skill-9d390d243eec92e15d0e7dd68ae689dd", "an id outlives versions of the host");
        let others = [
            id_of(Kind::Static, "pdf/SKILL.md", "text/markdown", b"text"),
            id_of(Kind::Skill, "pdf/SKILL.md", "text/markdown", b"text!"),
            id_of(Kind::Skill, "pdf/SKILL.mdt", "ext/markdown", b"text"),
            id_of(Kind::Skill, "pdf/SKILL.md", "text/plain", b"text"),
        ];
        assert!(others.iter().all(|other| *other != id && other.len() <= 64), "{others:?}");
    }

    #[test]
    fn the_media_type_is_the_one_of_the_extension_where_the_content_is_of_it() {
        let check = |name: &str, bytes: &[u8], expect: &str| assert_eq!(media_type(Path::new(name), bytes), expect, "{name}");
        check("a.md", b"# Title", "text/markdown");
        check("a.MD", b"", "text/markdown");
        check("a.py", b"print(1)", "text/x-python");
        check("a.json", b"{}", "application/json");
        check("a.md", b"\0\x01\x02", "application/octet-stream");
        check("a.md", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "application/pdf");
        check("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image/png");
        check("a.docx", b"PK\x03\x04\x14\0\0\0\x08\0", of_extension("docx"));
        check("LICENSE", b"MIT", "text/plain");
        check("a.bin", b"", "application/octet-stream");
    }

    #[tokio::test]
    async fn a_skill_is_its_folder_without_what_is_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let text = skill("pdf", "Reads PDF.");
        lay_out(
            &dir.path().join("reader"),
            &[
                ("SKILL.md", &text),
                ("scripts/deep/run.py", "print(1)"),
                ("a.txt", "a"),
                (".git/config", "x"),
                ("scripts/.cache", "x"),
            ],
        );
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("reader/.hidden-link")).unwrap();
        let ledger = ledger(dir.path());
        let library = Library::open(&config(dir.path(), &["reader"], &[]), &ledger).await.unwrap();
        let [skill] = library.skills.as_slice() else { panic!("{library:?}") };
        let SkillResource { skill_name, description, content } = &skill.resource;
        assert_eq!((skill_name.as_str(), description.as_deref()), ("pdf", Some("Reads PDF.")));
        assert_eq!((content.name.as_deref(), content.media_type.as_str()), (Some("pdf/SKILL.md"), "text/markdown"));
        assert_eq!(content.size, Some(text.len() as u64));
        assert_eq!(content.sha256, Some(format!("{:x}", Sha256::digest(&text))));
        let names: Vec<_> = skill.files.iter().map(|file| file.name.as_deref().unwrap()).collect();
        assert_eq!(names, ["pdf/a.txt", "pdf/scripts/deep/run.py"]);
        for artifact in skill.files.iter().chain([content]) {
            let record = ledger.artifact(&artifact.artifact_id).unwrap().expect("it is in the ledger");
            assert_eq!((record.reference(), record.source.as_str()), (artifact.clone(), "skill"));
            assert_eq!((record.scope, record.expires_at), (ArtifactScope::default(), None), "only a grant leads to it");
        }
        let blob = ledger.blob(content.sha256.as_deref().unwrap()).unwrap().expect("so is its content");
        assert_eq!(blob.read_at(0, 1 << 20).unwrap(), text.as_bytes());
    }

    #[tokio::test]
    async fn what_was_read_before_is_found_again_and_what_has_changed_is_new() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        lay_out(at, &[("pdf/SKILL.md", &skill("pdf", "Reads PDF.")), ("pdf/a.txt", "a"), ("system.md", "Be kind.")]);
        let told = config(at, &["pdf"], &[("system-prompt", "system.md")]);
        let ledger = ledger(at);
        let all = ResourcePolicy::default();
        let first = Library::open(&told, &ledger).await.unwrap().granted(&all, &reading());
        assert_eq!(Library::open(&told, &ledger).await.unwrap().granted(&all, &reading()), first);

        let content = first.static_refs["system-prompt"].clone();
        let artifact = content.content.clone().unwrap();
        assert_eq!(content.sha256, format!("{:x}", Sha256::digest("Be kind.")));
        assert_eq!(content.version, content.sha256[..12]);
        assert!(artifact.artifact_id.starts_with("static-") && artifact.artifact_id.len() == "static-".len() + 32);

        // Nothing that a grant names is ever collected, however old.
        fs::write(at.join("system.md"), "Be brief.").unwrap();
        let second = Library::open(&told, &ledger).await.unwrap().granted(&all, &reading());
        assert_ne!(second.static_refs["system-prompt"].sha256, content.sha256);
        assert_eq!((&second.skills, &second.skill_files), (&first.skills, &first.skill_files), "these have not changed");
        let much_later = time::now() + 1000 * 24 * 60 * 60 * 1000;
        assert_eq!(ledger.collect_garbage(much_later).await.unwrap().artifacts, 0);
        let blob = ledger.blob(&content.sha256).unwrap().expect("runs from before still read it");
        assert_eq!(blob.read_at(0, 100).unwrap(), b"Be kind.");

        // Content that somebody removed from the disk comes back.
        fs::write(at.join("system.md"), "Be kind.").unwrap();
        let place = at.join("ledger/blobs").join(&content.sha256[..2]).join(&content.sha256);
        fs::remove_file(place).unwrap();
        let third = Library::open(&told, &ledger).await.unwrap().granted(&all, &reading());
        assert_eq!(third, first);
        assert!(ledger.blob(&content.sha256).unwrap().is_some());
    }

    #[tokio::test]
    async fn what_cannot_be_a_skill_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let text = skill("x", "y");
        let ledger = ledger(at);
        let check = async |folder: &str, says: &[&str]| {
            let problem = refusal(at, &ledger, folder).await;
            for says in says {
                assert!(problem.contains(says), "{folder}: `{says}` is not in: {problem}");
            }
        };
        check("nowhere", &["nowhere", "cannot be read"]).await;
        lay_out(at, &[("empty/readme.md", "x")]);
        check("empty", &["empty/SKILL.md is not there"]).await;
        lay_out(at, &[("file", "x")]);
        check("file", &["cannot be read"]).await;
        lay_out(at, &[("bad/SKILL.md", "---\nname: x\ndescription: a: b\n---\n")]);
        check("bad", &["bad/SKILL.md: ", "line 3"]).await;
        lay_out(at, &[("binary/SKILL.md", "")]);
        fs::write(at.join("binary/SKILL.md"), b"---\nname: x\ndescription: \xff\n---\n").unwrap();
        check("binary", &["line 3 is not UTF-8"]).await;

        lay_out(at, &[("link/SKILL.md", &text), ("link/in/a.txt", "a")]);
        std::os::unix::fs::symlink("/etc/passwd", at.join("link/in/b.txt")).unwrap();
        check("link", &["link/in/b.txt", "symbolic link"]).await;
        lay_out(at, &[("main-link/a.txt", "a")]);
        std::os::unix::fs::symlink(at.join("link/SKILL.md"), at.join("main-link/SKILL.md")).unwrap();
        check("main-link", &["main-link/SKILL.md", "is not a file"]).await;
        lay_out(at, &[("socket/SKILL.md", &text)]);
        let _socket = std::os::unix::net::UnixListener::bind(at.join("socket/it")).unwrap();
        check("socket", &["socket/it", "neither a file nor a folder"]).await;

        lay_out(at, &[("many/SKILL.md", &text)]);
        (0..MAX_SKILL_FILES).for_each(|number| fs::write(at.join(format!("many/{number}")), "").unwrap());
        check("many", &["many", "at most 200 files"]).await;
        fs::remove_file(at.join("many/0")).unwrap();
        let library = Library::open(&config(at, &["many"], &[]), &ledger).await.unwrap();
        assert_eq!(library.skills[0].files.len(), MAX_SKILL_FILES - 1, "with SKILL.md these are as many as may be");

        lay_out(at, &[("large/SKILL.md", &text), ("large/z", "")]);
        File::options().write(true).open(at.join("large/z")).unwrap().set_len(MAX_BYTES).unwrap();
        check("large", &["large/z", "too large"]).await;
        let long = "n".repeat(200);
        lay_out(at, &[("long/SKILL.md", &text), (&format!("long/{long}/{long}"), "x")]);
        check("long", &["255 bytes", "shorter"]).await;
    }

    #[tokio::test]
    async fn two_skills_with_one_name_are_both_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        lay_out(at, &[("a/SKILL.md", &skill("same", "x")), ("b/SKILL.md", &skill("same", "y"))]);
        let error = Library::open(&config(at, &["a", "b"], &[]), &ledger(at)).await.unwrap_err().to_string();
        for part in ["`same`", &at.join("a").display().to_string(), &at.join("b").display().to_string()] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }

    #[tokio::test]
    async fn a_static_reference_that_cannot_be_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        lay_out(at, &[("a.md", "a")]);
        let ledger = ledger(at);
        let check = async |name: &str, path: &str, version: Option<&str>, says: &str| {
            let content = StaticRefConfig { name: name.to_owned(), path: at.join(path), version: version.map(str::to_owned) };
            let told = Config { static_refs: vec![content], ..Config::default_in(at) };
            let error = Library::open(&told, &ledger).await.expect_err(says).to_string();
            assert!(error.contains(says), "`{says}` is not in: {error}");
        };
        check("", "a.md", None, "`name` must have").await;
        check("a b", "a.md", None, "`name` must have").await;
        check(&"n".repeat(65), "a.md", None, "`name` must have").await;
        check("a", "a.md", Some(""), "`version` must have").await;
        check("a", "a.md", Some("1\n2"), "`version` must have").await;
        check("a", "none.md", None, "none.md cannot be read").await;
        check("a", ".", None, "is not a file").await;
    }

    #[tokio::test]
    async fn a_grant_names_what_the_policy_names_and_the_run_may_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        lay_out(at, &[("pdf/SKILL.md", &skill("pdf", "x")), ("pdf/more.txt", "a"), ("web/SKILL.md", &skill("web", "y"))]);
        lay_out(at, &[("web/page.html", "<p>"), ("one.md", "1"), ("two.md", "2")]);
        let told = config(at, &["pdf", "web"], &[("one", "one.md"), ("two", "two.md")]);
        let library = Library::open(&told, &ledger(at)).await.unwrap();
        let names = |granted: &Granted| {
            let files = granted.skill_files.iter().map(|file| file.name.clone().unwrap());
            let skills = granted.skills.iter().map(|skill| skill.skill_name.clone());
            skills.chain(files).chain(granted.static_refs.keys().cloned()).collect::<Vec<_>>().join(" ")
        };
        let policy = |skills: &[&str], contents: &[&str]| {
            let named = |names: &[&str]| Some(Names(names.iter().map(|name| (*name).to_owned()).collect()));
            ResourcePolicy { skill_names: named(skills), static_refs: named(contents), ..ResourcePolicy::default() }
        };
        let all = library.granted(&ResourcePolicy::default(), &reading());
        assert_eq!(names(&all), "pdf web pdf/more.txt web/page.html one two");
        assert!(all.static_refs.values().all(|content| content.content.is_some()));
        assert_eq!(names(&library.granted(&policy(&["web"], &["t*"]), &reading())), "web web/page.html two");
        assert_eq!(library.granted(&policy(&[], &["three"]), &reading()), Granted::default());

        // Who may not read is told which version is in use, and no more.
        let metadata = Permissions { artifacts: vec![ArtifactOperation::Metadata], ..Permissions::default() };
        let known = library.granted(&ResourcePolicy::default(), &metadata);
        assert_eq!(names(&known), "one two");
        assert!(known.static_refs.values().all(|content| content.content.is_none() && content.sha256.len() == 64));
    }
}
