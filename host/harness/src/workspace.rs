//! The workspace of a run: its directory, the lock that keeps other runs out, and access to its files that does not leave it.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use agent_host_protocol::{context::RunContext, hex};
use rustix::fs::{FlockOperation, OFlags, flock};
use sha2::{Digest, Sha256};

use crate::folder::Folder;

/// Longest part of a path that is made of an id.
const MAX_NAME: usize = 80;
/// Pause between two tries to lock a workspace that another run has.
const PAUSE: Duration = Duration::from_millis(25);

/// The directories of a run.
pub(crate) struct Workspace {
    /// Working directory of the agent.
    pub(crate) dir: PathBuf,
    /// Home of the agent: that of its workspace, where the agent keeps its sessions.
    pub(crate) home: PathBuf,
    files: Folder,
    /// True if the directory was made for this run.
    pub(crate) is_new: bool,
    /// Locked for as long as it is open.
    _lock: fs::File,
}

impl Workspace {
    /// Opens the workspace of a run, once no other run is in it. `locks` is common to the harnesses that can have the workspace; the
    /// home is below `homes`.
    pub(crate) async fn open(dir: PathBuf, locks: &Path, homes: &Path) -> io::Result<Self> {
        let key = digest(&dir.to_string_lossy());
        make_private(locks)?;
        let lock = fs::File::options().create(true).truncate(false).write(true).open(locks.join(&key))?;
        // Each run has opened the file for itself, so that the lock also holds between runs of one process.
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(error.into());
            }
            tokio::time::sleep(PAUSE).await;
        }
        let is_new = !dir.is_dir();
        fs::create_dir_all(&dir)?;
        let dir = dir.canonicalize()?;
        let home = homes.join(&key);
        make_private(&home)?;
        Ok(Self { files: Folder::of_agent(dir.clone()), dir, home, is_new, _lock: lock })
    }

    /// The part of `path` below the workspace.
    fn below<'a>(&self, path: &'a Path) -> io::Result<&'a Path> {
        let below = if path.is_absolute() { path.strip_prefix(&self.dir).ok() } else { Some(path) };
        below.filter(|below| below.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))).ok_or_else(
            || {
                let message = format!("{} is not in the workspace {}", path.display(), self.dir.display());
                io::Error::new(io::ErrorKind::PermissionDenied, message)
            },
        )
    }

    /// The text of a file of the workspace.
    pub(crate) fn read_text(&self, path: &Path) -> io::Result<String> {
        self.files.read(self.below(path)?)
    }

    /// Writes a file of the workspace, with the folders above it.
    pub(crate) fn write_text(&self, path: &Path, text: &str) -> io::Result<()> {
        self.files.write(self.below(path)?, text.as_bytes())
    }

    /// A folder of the workspace, for a command.
    pub(crate) fn folder(&self, path: &Path) -> io::Result<PathBuf> {
        let below = self.below(path)?;
        self.files.open(below, OFlags::DIRECTORY)?;
        Ok(self.dir.join(below))
    }
}

/// Makes a directory that only this user sees.
pub(crate) fn make_private(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// The directory that a template names for a run, below `data_dir` if it is relative.
pub(crate) fn resolve(template: &str, context: &RunContext, data_dir: &Path) -> PathBuf {
    let conversation = context.conversation.as_ref();
    let run_id = context.run_id.to_string();
    let value = |name: &str| {
        let id = match name {
            "conversation_id" => conversation.and_then(|it| it.conversation_id.as_deref()),
            "thread_id" => conversation.and_then(|it| it.thread_id.as_deref()),
            "bot_id" => conversation.and_then(|it| it.bot_id.as_deref()),
            "workspace_id" => conversation.and_then(|it| it.workspace_id.as_deref()),
            "actor_id" => context.actor.as_ref().and_then(|actor| actor.actor_id.as_deref()),
            "session_key" => context.context.session_key.as_deref(),
            _ => None,
        };
        safe_name(id.unwrap_or(&run_id))
    };
    let mut path = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        path.push_str(before);
        path.push_str(&value(name));
        rest = after;
    }
    path.push_str(rest);
    data_dir.join(path)
}

/// An id as one part of a path: equal ids have equal names, and other ids have other names.
pub(crate) fn safe_name(id: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = id.chars().take(MAX_NAME).map(|c| if is_safe(c) { c } else { '_' }).collect();
    if name == id && !name.starts_with('.') && !name.is_empty() {
        return name;
    }
    format!("{}-{}", name.trim_start_matches('.'), digest(id))
}

/// 16 hexadecimal digits.
fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    hex::encode(digest.get(..8).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    async fn workspace(root: &Path) -> Workspace {
        Workspace::open(root.join("space"), &root.join("locks"), &root.join("homes")).await.unwrap()
    }

    #[tokio::test]
    async fn files_of_the_workspace_are_read_and_written() {
        let root = tempfile::tempdir().unwrap();
        let space = workspace(root.path()).await;
        space.write_text(&space.dir.join("a/b/c.txt"), "text").unwrap();
        space.write_text(Path::new("a/b/c.txt"), "new").unwrap();
        assert_eq!(space.read_text(Path::new("a/./b/c.txt")).unwrap(), "new");
        assert_eq!(space.folder(&space.dir.join("a")).unwrap(), space.dir.join("a"));
    }

    #[tokio::test]
    async fn no_path_leads_out_of_the_workspace() {
        let root = tempfile::tempdir().unwrap();
        let space = workspace(root.path()).await;
        let outside = root.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("key"), "secret").unwrap();
        symlink(&outside, space.dir.join("link")).unwrap();
        symlink("../outside/key", space.dir.join("key")).unwrap();
        fs::hard_link(outside.join("key"), space.dir.join("hard")).unwrap();
        for path in ["../outside/key", "link/key", "key", "a/../../outside/key", "/etc/passwd"] {
            let path = Path::new(path);
            space.read_text(path).unwrap_err();
            space.write_text(path, "changed").unwrap_err();
            space.folder(path).unwrap_err();
        }
        space.write_text(Path::new("link/new"), "x").unwrap_err();
        space.write_text(Path::new("link/new/file"), "x").unwrap_err();
        space.write_text(Path::new("hard"), "changed").unwrap_err();
        assert_eq!(fs::read_to_string(outside.join("key")).unwrap(), "secret");
        assert!(!outside.join("new").exists());
    }

    #[tokio::test]
    async fn the_second_run_waits_for_the_first() {
        let root = tempfile::tempdir().unwrap();
        let first = workspace(root.path()).await;
        assert!(first.is_new);
        let path = root.path().to_owned();
        let second = tokio::spawn(async move { workspace(&path).await.is_new });
        tokio::time::sleep(PAUSE * 4).await;
        assert!(!second.is_finished());
        drop(first);
        assert!(!second.await.unwrap(), "the directory is there already");
    }

    #[test]
    fn ids_become_one_part_of_a_path() {
        assert_eq!(safe_name("c-1.x"), "c-1.x");
        for id in ["..", "../../etc", "a/b", "", ".ssh", &"x".repeat(300)] {
            let name = safe_name(id);
            assert!(!name.contains('/') && !name.starts_with('.') && name.len() <= MAX_NAME + 17, "{name}");
        }
        assert_ne!(safe_name("a/b"), safe_name("a_b"));
        assert_ne!(safe_name("a/b"), safe_name("a?b"));
    }
}
