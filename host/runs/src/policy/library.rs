//! The library: skills and other content that an operator gives to runs, read once when the host starts.
//!
//! Each file becomes an artifact of each ledger that the process opens, whose id follows from what it is: its kind, name, media type and
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
    hex,
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
/// Digits of a digest that serve as a version.
const VERSION_DIGITS: usize = 12;

/// The reason why the library could not be read. The message names the file and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// A file or folder.
    #[error("{path} cannot be read: {source}. Correct `path` in the configuration, or let the host read it", path = path.display())]
    Unreadable {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The folder has no `SKILL.md`.
    #[error("{path} is not there: a skill is a folder with a file {SKILL_FILE}, so `path` must name that folder", path = path.display())]
    NoSkill {
        /// Expected path of the file.
        path: PathBuf,
    },
    /// A file says or is something that cannot be.
    #[error("{path}: {problem}", path = path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// The problem and its remedy.
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
        /// Name of the entry.
        name: String,
        /// The problem and its remedy.
        problem: String,
    },
    /// The ledger did not take it.
    #[error("{path} could not be put into the ledger: {source}", path = path.display())]
    Ledger {
        /// Path of the file.
        path: PathBuf,
        /// Error of the ledger.
        source: LedgerError,
    },
    /// A file is not the one that was read with the configuration.
    #[error("{path} was changed since it was read: read the configuration again (`agent-host config reload`)", path = path.display())]
    Changed {
        /// Path of the file.
        path: PathBuf,
    },
    /// The host failed.
    #[error("{path} could not be read: {problem}", path = path.display())]
    Failed {
        /// Path of the file or folder.
        path: PathBuf,
        /// Description of the change.
        problem: String,
    },
}

/// The resources that can be granted.
#[derive(Debug, Default)]
pub(crate) struct Library {
    skills: Vec<Skill>,
    static_refs: BTreeMap<String, StaticRef>,
    /// All files, in the order in which they were read.
    files: Vec<LibraryFile>,
}

/// A file, and the artifact that its content is.
#[derive(Debug, Clone)]
struct LibraryFile {
    kind: Kind,
    path: PathBuf,
    artifact: ArtifactRef,
}

#[derive(Debug)]
struct Skill {
    resource: SkillResource,
    /// All but the first file, by name.
    files: Vec<ArtifactRef>,
}

/// The part of the library that one run is granted.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct GrantedLibrary {
    pub(crate) skills: Vec<SkillResource>,
    pub(crate) skill_files: Vec<ArtifactRef>,
    pub(crate) static_refs: BTreeMap<String, StaticRef>,
}

impl Library {
    /// Reads what is configured.
    pub(crate) async fn open(config: &Config) -> Result<Self, LibraryError> {
        let mut library = Self::default();
        let mut folders: BTreeMap<String, &Path> = BTreeMap::new();
        for SkillConfig { path } in &config.skills {
            let skill = library.read_skill(path).await?;
            let name = &skill.resource.skill_name;
            if let Some(first) = folders.insert(name.clone(), path) {
                return Err(LibraryError::SameName { name: name.clone(), first: first.to_owned(), second: path.clone() });
            }
            let count = library.files.len();
            if count > MAX_LIBRARY_FILES {
                let problem = format!(
                    "with this skill there are {count} files of skills, and there may be {MAX_LIBRARY_FILES}: leave some skills out, or put files together"
                );
                return Err(LibraryError::Invalid { path: path.clone(), problem });
            }
            library.skills.push(skill);
        }
        for content in &config.static_refs {
            let reference = library.read_static(content).await?;
            library.static_refs.insert(content.name.clone(), reference);
        }
        Ok(library)
    }

    /// Makes an artifact of each file that has none in this ledger. The artifacts are durable when this function returns.
    ///
    /// # Errors
    /// [`LibraryError::Changed`] where a file that is read for it is another than the one that was read first.
    pub(crate) async fn keep_in(&self, ledger: &Ledger) -> Result<(), LibraryError> {
        for file in &self.files {
            file.keep_in(ledger).await?;
        }
        Ok(())
    }

    /// The resources that `policy` names, as far as the permissions allow the run to read them.
    pub(crate) fn granted(&self, policy: &ResourcePolicy, permissions: &Permissions) -> GrantedLibrary {
        let reads = permissions.artifacts.contains(&ArtifactOperation::Read);
        let mut granted = GrantedLibrary::default();
        let there = self.skills.iter().map(|skill| skill.resource.skill_name.clone());
        let names = if reads { Names::of_or_all(policy.skill_names.as_ref(), there) } else { Vec::new() };
        for skill in self.skills.iter().filter(|skill| names.contains(&skill.resource.skill_name)) {
            granted.skills.push(skill.resource.clone());
            granted.skill_files.extend(skill.files.iter().cloned());
        }
        for name in Names::of_or_all(policy.static_refs.as_ref(), self.static_refs.keys().cloned()) {
            let Some(content) = self.static_refs.get(&name) else { continue };
            let content = StaticRef { content: content.content.clone().filter(|_| reads), ..content.clone() };
            granted.static_refs.insert(name, content);
        }
        granted
    }
}

impl Library {
    async fn read_skill(&mut self, folder: &Path) -> Result<Skill, LibraryError> {
        let (front, files) = {
            let folder = folder.to_owned();
            blocking(&folder.clone(), move || Ok((read_front(&folder)?, files_of(&folder)?))).await?
        };
        let mut left = MAX_BYTES;
        let mut artifacts = Vec::with_capacity(files.len());
        let mut content = None;
        for SkillFile { relative, path } in files {
            let name = format!("{}/{relative}", front.name);
            if name.len() > MAX_ARTIFACT_NAME_BYTES {
                let problem = format!("`{name}` has more than {MAX_ARTIFACT_NAME_BYTES} bytes: give it a shorter name");
                return Err(LibraryError::Invalid { path, problem });
            }
            let artifact = self.read_file(Kind::Skill, name, path, left).await?;
            left = left.saturating_sub(artifact.size.unwrap_or(0));
            if relative == SKILL_FILE {
                content = Some(artifact);
            } else {
                artifacts.push(artifact);
            }
        }
        let content = content.ok_or_else(|| LibraryError::NoSkill { path: folder.join(SKILL_FILE) })?;
        let resource = SkillResource { skill_name: front.name, description: Some(front.description), content };
        Ok(Skill { resource, files: artifacts })
    }

    async fn read_static(&mut self, config: &StaticRefConfig) -> Result<StaticRef, LibraryError> {
        config.check().map_err(|problem| LibraryError::Config { name: config.name.clone(), problem })?;
        let content = self.read_file(Kind::Static, config.name.clone(), config.path.clone(), MAX_BYTES).await?;
        let sha256 = content.sha256.clone().unwrap_or_default();
        let version = config.version.clone().unwrap_or_else(|| sha256.chars().take(VERSION_DIGITS).collect());
        Ok(StaticRef { version, sha256, content: Some(content) })
    }

    /// Reads a file of at most `max_bytes`; gives the artifact that its content is.
    async fn read_file(&mut self, kind: Kind, name: String, path: PathBuf, max_bytes: u64) -> Result<ArtifactRef, LibraryError> {
        let artifact = {
            let path = path.clone();
            blocking(&path.clone(), move || Ok(artifact_of(kind, name, &path, &read(&path, max_bytes)?))).await?
        };
        self.files.push(LibraryFile { kind, path, artifact: artifact.clone() });
        Ok(artifact)
    }
}

/// Reads files on a thread that may wait for a disk.
async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, LibraryError> + Send + 'static,
) -> Result<T, LibraryError> {
    let failed = |error: tokio::task::JoinError| LibraryError::Failed { path: path.to_owned(), problem: error.to_string() };
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

/// The owner of an artifact of the library. The owner is the source of the artifact and the beginning of its id.
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

/// The id of an artifact. Each part is hashed with its length, so that different parts never give the same input. The media
/// type is one part, because a record in the ledger never changes.
fn id_of(kind: Kind, name: &str, media_type: &str, bytes: &[u8]) -> String {
    let mut hash = Sha256::new();
    for part in [kind.as_str().as_bytes(), name.as_bytes(), media_type.as_bytes(), bytes] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = format!("{:x}", hash.finalize());
    format!("{}-{}", kind.as_str(), digest.chars().take(ID_DIGITS).collect::<String>())
}

/// The artifact that a content is.
fn artifact_of(kind: Kind, name: String, path: &Path, bytes: &[u8]) -> ArtifactRef {
    let media_type = media_type(path, bytes);
    ArtifactRef {
        artifact_id: id_of(kind, &name, &media_type, bytes),
        media_type,
        name: Some(name),
        size: Some(bytes.len() as u64),
        sha256: Some(hex::encode(&Sha256::digest(bytes))),
    }
}

impl LibraryFile {
    async fn keep_in(&self, ledger: &Ledger) -> Result<(), LibraryError> {
        let failed = |source| LibraryError::Ledger { path: self.path.clone(), source };
        let (file, writing) = (self.clone(), ledger.clone());
        if let Some((record, blob)) = blocking(&self.path, move || file.write(&writing)).await? {
            ledger.add_artifact(record).await.map_err(failed)?;
            // Held until the record is there: it keeps the content.
            drop(blob);
        }
        Ok(())
    }

    /// Writes the content where the ledger lacks it; gives it with its record where the record is new.
    fn write(&self, ledger: &Ledger) -> Result<Option<(ArtifactRecord, Blob)>, LibraryError> {
        let failed = |source| LibraryError::Ledger { path: self.path.clone(), source };
        let known = ledger.artifact(&self.artifact.artifact_id).map_err(failed)?;
        if let Some(record) = &known
            && ledger.blob(&record.sha256).map_err(failed)?.is_some()
        {
            return Ok(None);
        }
        let bytes = read(&self.path, self.artifact.size.unwrap_or(MAX_BYTES)).map_err(|error| match error {
            LibraryError::Invalid { path, .. } => LibraryError::Changed { path },
            error => error,
        })?;
        let ArtifactRef { artifact_id, media_type, name, .. } = self.artifact.clone();
        if id_of(self.kind, name.as_deref().unwrap_or_default(), &media_type, &bytes) != artifact_id {
            return Err(LibraryError::Changed { path: self.path.clone() });
        }
        let write = || {
            let mut writer = ledger.blob_writer(bytes.len() as u64)?;
            writer.write(&bytes)?;
            writer.finish()
        };
        let blob = write().map_err(failed)?;
        if known.is_some() {
            // The content was lost and is restored.
            return Ok(None);
        }
        let record = ArtifactRecord {
            artifact_id,
            sha256: blob.sha256.clone(),
            size: blob.size,
            media_type,
            name,
            created_at: time::now(),
            expires_at: None,
            // Of no run, conversation or binding: a grant is the only way to it.
            scope: ArtifactScope::default(),
            source: self.kind.as_str().to_owned(),
        };
        Ok(Some((record, blob)))
    }
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

/// Media types that the content alone does not show; empty if it does.
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
struct SkillFile {
    /// Below the folder, with `/`.
    relative: String,
    path: PathBuf,
}

/// All files of a folder and its subfolders, by name. Hidden files are skipped. Links to other places are refused, so that
/// a foreign skill contains only its own files.
fn files_of(folder: &Path) -> Result<Vec<SkillFile>, LibraryError> {
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
                found.push(SkillFile { relative, path });
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

/// The front matter of a skill. The format has more fields, which the host does not need.
#[derive(Debug, PartialEq, Deserialize)]
struct FrontMatter {
    name: String,
    description: String,
}

fn read_front(folder: &Path) -> Result<FrontMatter, LibraryError> {
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
fn front(text: &str) -> Result<FrontMatter, String> {
    let yaml = front_matter(text.strip_prefix('\u{feff}').unwrap_or(text))?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: MAX_FRONT_MATTER_NODES },
    };
    let front: FrontMatter = serde_saphyr::from_str_with_options(yaml, options).map_err(|error| {
        format!(
            "{}. The front matter is YAML with `name` and `description`; a text with `: ` in it needs quotes",
            error.without_snippet()
        )
    })?;
    let front = FrontMatter { description: front.description.trim().to_owned(), ..front };
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

/// Includes the end of the first line, so that line numbers match the file.
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
mod tests;
