//! Files below a directory that an agent may write to as well. The kernel resolves their paths, so no link that an agent leaves there leads
//! the host to other places.

use std::{
    fs, io,
    io::{Read as _, Write as _},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, mkdirat, openat2, unlinkat};

/// Largest file that is read or written.
const MAX_FILE: u64 = 32 << 20;

/// A directory of the host, and what is below it.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    path: PathBuf,
    resolve: ResolveFlags,
    /// Mode of new folders; new files have it without the right to search.
    mode: u32,
}

impl Folder {
    /// A folder that belongs to the agent: links that stay below it are followed.
    pub(crate) fn of_agent(path: PathBuf) -> Self {
        Self { path, resolve: ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS), mode: 0o755 }
    }

    /// A folder in which the host leaves files for the agent, seen by this user alone: no link below it is followed.
    pub(crate) fn of_host(path: PathBuf) -> Self {
        Self { path, resolve: ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS), mode: 0o700 }
    }

    /// Path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a path below the directory.
    pub(crate) fn open(&self, below: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let root = fs::File::open(&self.path)?;
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(self.mode & 0o666) } else { Mode::empty() };
        openat2(&root, below, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, mode, self.resolve).map_err(|error| match error {
            rustix::io::Errno::XDEV | rustix::io::Errno::LOOP => {
                let message = format!("{} leads out of {}", below.display(), self.path.display());
                io::Error::new(io::ErrorKind::PermissionDenied, message)
            }
            error => error.into(),
        })
    }

    /// Makes a folder below the directory, with those above it.
    pub(crate) fn make(&self, below: &Path) -> io::Result<()> {
        let mut made = PathBuf::new();
        for part in below.components() {
            let parent = self.open(&made, OFlags::DIRECTORY)?;
            match mkdirat(&parent, part.as_os_str(), Mode::from_raw_mode(self.mode)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => made.push(part),
                Err(error) => return Err(error.into()),
            }
        }
        self.open(&made, OFlags::DIRECTORY)?;
        Ok(())
    }

    /// The text of a file.
    pub(crate) fn read(&self, below: &Path) -> io::Result<String> {
        let file = fs::File::from(self.open(below, OFlags::RDONLY)?);
        check_file(below, &file)?;
        let mut text = String::new();
        file.take(MAX_FILE).read_to_string(&mut text)?;
        Ok(text)
    }

    /// Changes a file or makes it, with the folders above it. One that has another name as well stays as it is.
    pub(crate) fn write(&self, below: &Path, content: &[u8]) -> io::Result<()> {
        self.make_parent(below, content)?;
        let mut file = fs::File::from(self.open(below, OFlags::WRONLY | OFlags::CREATE)?);
        check_file(below, &file)?;
        if file.metadata()?.nlink() > 1 {
            let message = format!("{} has another name, which may be outside of {}", below.display(), self.path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        file.set_len(0)?;
        file.write_all(content)
    }

    /// Puts a new file into the place of what has this name, with the folders above it.
    pub(crate) fn replace(&self, below: &Path, content: &[u8]) -> io::Result<()> {
        self.make_parent(below, content)?;
        match self.remove(below) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::File::from(self.open(below, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?);
        file.write_all(content)
    }

    /// Removes a file.
    pub(crate) fn remove(&self, below: &Path) -> io::Result<()> {
        let parent = self.open(below.parent().unwrap_or(Path::new("")), OFlags::DIRECTORY)?;
        let name = below.file_name().unwrap_or_default();
        Ok(unlinkat(&parent, name, AtFlags::empty())?)
    }

    fn make_parent(&self, below: &Path, content: &[u8]) -> io::Result<()> {
        if content.len() as u64 > MAX_FILE {
            return Err(io::Error::other(format!("a file has at most {MAX_FILE} bytes")));
        }
        self.make(below.parent().unwrap_or(Path::new("")))
    }
}

/// Refuses devices, pipes and large files.
fn check_file(path: &Path, file: &fs::File) -> io::Result<()> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no file", path.display())));
    }
    if metadata.len() > MAX_FILE {
        return Err(io::Error::other(format!("{} has more than {MAX_FILE} bytes", path.display())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn files_of_the_host_go_through_no_link_of_an_agent() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("inside"), root.path().join("outside"));
        for dir in [&inside, &outside] {
            fs::create_dir(dir).unwrap();
        }
        fs::create_dir(inside.join("real")).unwrap();
        fs::write(outside.join("key"), "secret").unwrap();
        let folder = Folder::of_host(inside.clone());
        symlink(&outside, inside.join("skills")).unwrap();
        symlink("real", inside.join("near")).unwrap();
        symlink(outside.join("key"), inside.join("page.md")).unwrap();
        for below in ["skills/a/SKILL.md", "skills/key", "near/x", "../outside/key"] {
            folder.replace(Path::new(below), b"changed").unwrap_err();
            folder.write(Path::new(below), b"changed").unwrap_err();
            folder.read(Path::new(below)).unwrap_err();
        }
        folder.remove(Path::new("skills/key")).unwrap_err();
        folder.make(Path::new("skills/new")).unwrap_err();
        // The link itself is replaced, and what it names stays.
        folder.replace(Path::new("page.md"), b"the page").unwrap();
        assert_eq!(folder.read(Path::new("page.md")).unwrap(), "the page");
        assert_eq!(fs::read_to_string(outside.join("key")).unwrap(), "secret");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        folder.replace(Path::new("a/b/c"), b"1").unwrap();
        folder.replace(Path::new("a/b/c"), b"2").unwrap();
        assert_eq!(fs::metadata(inside.join("a/b")).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(inside.join("a/b/c")).unwrap().permissions().mode() & 0o777, 0o600);
        folder.remove(Path::new("a/b/c")).unwrap();
        assert_eq!(folder.read(Path::new("a/b/c")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
