//! Sessions of Gemini CLI, kept from its own `session/load`.
//!
//! Gemini CLI has a session in `~/.gemini/tmp/PROJECT/chats/session-MINUTE-SHORT.jsonl`, where `MINUTE` is the one of its beginning and
//! `SHORT` are the first eight characters of its id. Before `session/load` reads the session, it begins a new one of the same id, whose file has
//! the present minute: within the minute of the beginning both are one file, and the conversation is lost
//! (google-gemini/gemini-cli#28693, seen up to 0.61). At its start, Gemini CLI also deletes every file that shares `SHORT` with one that has
//! no conversation. It reads every file `session-*.jsonl`, and neither begins nor deletes one whose name ends with the whole id.

use std::{io, path::Path};

use rustix::fs::{Dir, OFlags, RenameFlags, renameat_with};

use crate::folder::Folder;

/// The folder with a folder for each project, in the home of the agent.
const PROJECTS: &str = ".gemini/tmp";
/// The folder with the sessions of a project.
const SESSIONS: &str = "chats";
/// Beginning of the name of a session.
const PREFIX: &str = "session-";
/// End of the name of a session.
const SUFFIX: &str = ".jsonl";
/// Characters of an id in the name that Gemini CLI gives.
const SHORT: usize = 8;
/// Longest id; Gemini CLI has UUIDs, with 36 characters.
const MAX_ID: usize = 64;
/// Entries of a folder that are looked at: the agent can make any number of them.
const MAX_ENTRIES: usize = 5_000;

/// Gives the files of a session names that end with its whole id, unless one has such a name already: what is beside it then has no
/// conversation. The agent must not run.
///
/// # Errors
/// Fails if a folder cannot be read, or a file cannot have the name. A home without sessions is no error.
pub(crate) fn keep(home: &Folder, session_id: &str) -> io::Result<()> {
    // Conversation state, which an agent can write, becomes a part of a name.
    let is_plain = session_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let Some(short) = session_id.get(..SHORT).filter(|_| is_plain && session_id.len() <= MAX_ID) else { return Ok(()) };
    for project in entries(home, Path::new(PROJECTS))? {
        let sessions = Path::new(PROJECTS).join(project).join(SESSIONS);
        let whole = format!("-{session_id}{SUFFIX}");
        let names = entries(home, &sessions)?;
        if names.iter().any(|name| name.starts_with(PREFIX) && name.ends_with(&whole)) {
            continue;
        }
        let folder = home.open(&sessions, OFlags::DIRECTORY);
        for name in names {
            let begin = name.strip_suffix(&format!("-{short}{SUFFIX}")).filter(|begin| begin.starts_with(PREFIX));
            if let (Some(begin), Ok(folder)) = (begin, &folder) {
                renameat_with(folder, name.as_str(), folder, format!("{begin}{whole}"), RenameFlags::NOREPLACE)?;
            }
        }
    }
    Ok(())
}

/// The names in a folder; none if there is no such folder.
fn entries(home: &Folder, below: &Path) -> io::Result<Vec<String>> {
    let folder = match home.open(below, OFlags::DIRECTORY) {
        Ok(folder) => folder,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)?.take(MAX_ENTRIES) {
        // No name of Gemini CLI is other than text.
        names.extend(entry?.file_name().to_str().ok().filter(|name| !matches!(*name, "." | "..")).map(str::to_owned));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

    use super::*;

    const ID: &str = "933f7a2e-f91c-415d-8ffb-461819ab27d0";

    fn names(dir: &Path) -> BTreeSet<String> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn the_file_of_a_session_has_a_name_that_gemini_does_not_begin() {
        let root = tempfile::tempdir().unwrap();
        let home = Folder::of_host(root.path().to_owned());
        keep(&home, ID).unwrap();
        let chats = root.path().join(PROJECTS).join("space").join(SESSIONS);
        fs::create_dir_all(&chats).unwrap();
        fs::write(root.path().join(PROJECTS).join("bin"), "no folder").unwrap();
        let (early, late) = ("session-2026-11-27T11-29-933f7a2e.jsonl", "session-2026-11-27T11-31-933f7a2e.jsonl");
        let other = "session-2026-11-27T11-29-ecab7cb7.jsonl";
        fs::write(chats.join(early), "conversation").unwrap();
        fs::write(chats.join(other), "of another session").unwrap();
        keep(&home, ID).unwrap();
        let kept = format!("session-2026-11-27T11-29-{ID}.jsonl");
        assert_eq!(names(&chats), BTreeSet::from([kept.clone(), other.to_owned()]));
        // What a load has begun stays where Gemini CLI deletes it.
        for begun in [early, late] {
            fs::write(chats.join(begun), "no conversation").unwrap();
        }
        keep(&home, ID).unwrap();
        assert_eq!(names(&chats), [early, late, other, &kept].map(str::to_owned).into());
        assert_eq!(fs::read_to_string(chats.join(&kept)).unwrap(), "conversation");
    }

    #[test]
    fn nothing_outside_of_the_home_has_another_name() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("inside"), root.path().join("outside"));
        let name = "session-2026-11-27T11-29-933f7a2e.jsonl";
        fs::create_dir_all(inside.join(PROJECTS).join("space")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join(name), "conversation").unwrap();
        symlink(&outside, inside.join(PROJECTS).join("space").join(SESSIONS)).unwrap();
        let home = Folder::of_host(inside.clone());
        assert_eq!(keep(&home, ID).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(names(&outside), BTreeSet::from([name.to_owned()]));
        let chats = inside.join(PROJECTS).join("other").join(SESSIONS);
        fs::create_dir_all(&chats).unwrap();
        fs::remove_file(inside.join(PROJECTS).join("space").join(SESSIONS)).unwrap();
        fs::write(chats.join(name), "conversation").unwrap();
        for id in ["933f7a2e/../../../x", "933f7a2", "", &format!("933f7a2e{}", "0".repeat(MAX_ID))] {
            keep(&home, id).unwrap();
        }
        assert_eq!(names(&chats), BTreeSet::from([name.to_owned()]));
    }
}
