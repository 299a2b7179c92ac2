//! The files of a folder, to be read by a model: nothing outside of it, nothing hidden, nothing in large pieces.

use std::{
    ffi::OsStr,
    fmt::Write,
    fs::File,
    io::Read,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, Dir, FileType, Mode, OFlags, openat},
    io::Errno,
};

/// A text of the project is far smaller; a larger file is none to be read by a model.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// More than a folder of sources has.
const MAX_ENTRIES: usize = 200;
/// A page of a source.
const MAX_LINES: usize = 200;
/// The same page, where lines are long.
const MAX_TEXT_BYTES: usize = 16 * 1024;

/// A folder, and what is below it.
///
/// Every name of a path is opened below the folder before it, and symbolic links are not followed. Changes at the same time
/// therefore cannot lead out of the folder.
#[derive(Debug)]
pub(crate) struct Files {
    root: PathBuf,
}

impl Files {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The names in a folder, sorted, those of folders with `/` at the end.
    pub(crate) fn list(&self, folder: &str) -> Result<String, String> {
        let opened = self.open(folder, OFlags::DIRECTORY)?;
        let unreadable = |error: Errno| format!("`{folder}` cannot be listed: {error}");
        let mut names = Vec::new();
        for entry in Dir::read_from(opened).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            // A name that is not UTF-8 could not be asked for.
            let Ok(name) = entry.file_name().to_str() else { continue };
            match entry.file_type() {
                _ if name.starts_with('.') => {}
                FileType::Directory => names.push(format!("{name}/")),
                FileType::Symlink => {}
                _ => names.push(name.to_owned()),
            }
        }
        names.sort_unstable();
        let more = names.len().saturating_sub(MAX_ENTRIES);
        names.truncate(MAX_ENTRIES);
        let mut list = names.join("\n");
        if more > 0 {
            let _ = write!(list, "\n… and {more} more");
        }
        Ok(if list.is_empty() { "The folder is empty.".to_owned() } else { list })
    }

    /// The number of words, lines and bytes of a text.
    pub(crate) fn count(&self, file: &str) -> Result<String, String> {
        let text = self.text(file)?;
        Ok(format!(
            "{file} has {} words, {} lines and {} bytes",
            text.split_whitespace().count(),
            text.lines().count(),
            text.len()
        ))
    }

    /// Some lines of a text, the first of a file being 1, each with its number.
    pub(crate) fn lines(&self, file: &str, from: usize, to: usize) -> Result<String, String> {
        if from == 0 || to < from {
            return Err(format!("there are no lines {from} to {to}: the first is 1, and `to` is not before `from`"));
        }
        let text = self.text(file)?;
        let mut page = String::new();
        let lines = text.lines().zip(1..).skip(from - 1).take_while(|(_, number)| *number <= to);
        for (line, number) in lines.take(MAX_LINES) {
            let _ = writeln!(page, "{number} {line}");
            if page.len() > MAX_TEXT_BYTES {
                page.truncate(page.floor_char_boundary(MAX_TEXT_BYTES));
                page.push_str("… [cut: ask for fewer lines]\n");
                break;
            }
        }
        if page.is_empty() { Err(format!("`{file}` has only {} lines", text.lines().count())) } else { Ok(page) }
    }

    fn text(&self, file: &str) -> Result<String, String> {
        // A pipe would be waited for.
        let opened = File::from(self.open(file, OFlags::NONBLOCK)?);
        if !opened.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(format!("`{file}` is not a file"));
        }
        let mut bytes = Vec::new();
        let read = opened.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| format!("`{file}` cannot be read: {}", error.kind()))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(format!("`{file}` has more than {MAX_FILE_BYTES} bytes"));
        }
        String::from_utf8(bytes).map_err(|_| format!("`{file}` is not UTF-8 text"))
    }

    /// Opens what a path names. `as_what` is for the last name of it; the others must be folders.
    fn open(&self, path: &str, as_what: OFlags) -> Result<OwnedFd, String> {
        let names = names(path)?;
        let reading = OFlags::RDONLY | OFlags::CLOEXEC;
        let root = openat(CWD, &self.root, reading | OFlags::DIRECTORY, Mode::empty());
        let mut opened = root.map_err(|error| format!("the project cannot be read: {error}"))?;
        for (place, name) in names.iter().enumerate() {
            let flags = if place + 1 == names.len() { as_what } else { OFlags::DIRECTORY };
            opened = openat(&opened, *name, reading | flags | OFlags::NOFOLLOW, Mode::empty()).map_err(|error| match error {
                Errno::NOENT => format!("there is no `{path}`"),
                Errno::LOOP => format!("`{path}` goes through a symbolic link, which is not followed"),
                Errno::NOTDIR => format!("`{path}` goes through what is no folder, or is none"),
                error => format!("`{path}` cannot be opened: {error}"),
            })?;
        }
        Ok(opened)
    }
}

/// The names that a path goes through; none for the root itself.
fn names(path: &str) -> Result<Vec<&OsStr>, String> {
    let refused = || format!("`{path}` is refused: give a path below the project's root, without `..` and hidden names");
    let mut names = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) if !name.as_encoded_bytes().starts_with(b".") => names.push(name),
            _ => return Err(refused()),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use tempfile::TempDir;

    use super::*;

    /// `secret.txt` and `root/`; in that `a.txt`, `sub/b.txt`, hidden and strange things, and links.
    fn world() -> (TempDir, Files) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::create_dir_all(root.join(".git")).unwrap();
        fs::write(dir.path().join("secret.txt"), "canary").unwrap();
        fs::write(root.join("a.txt"), "one two\nthree\n").unwrap();
        fs::write(root.join("sub/b.txt"), "b").unwrap();
        fs::write(root.join(".git/config"), "canary").unwrap();
        fs::write(root.join("binary"), [0xff, 0xfe]).unwrap();
        fs::write(root.join("huge"), vec![b'x'; MAX_FILE_BYTES as usize + 1]).unwrap();
        symlink("../secret.txt", root.join("out.txt")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("a.txt", root.join("within.txt")).unwrap();
        (dir, Files::new(root))
    }

    #[test]
    fn texts_and_folders_are_read() {
        let (_dir, files) = world();
        assert_eq!(files.count("a.txt").unwrap(), "a.txt has 3 words, 2 lines and 14 bytes");
        assert_eq!(files.count("./sub//b.txt").unwrap(), "./sub//b.txt has 1 words, 1 lines and 1 bytes");
        assert_eq!(files.lines("a.txt", 2, 9).unwrap(), "2 three\n");
        assert_eq!(files.list("sub").unwrap(), "b.txt");
        for root in ["", "."] {
            assert_eq!(files.list(root).unwrap(), "a.txt\nbinary\nhuge\nsub/");
        }
    }

    #[test]
    fn paths_stay_in_the_folder() {
        let (dir, files) = world();
        let absolute = dir.path().join("secret.txt");
        let ways = [
            "../secret.txt",
            "sub/../../secret.txt",
            "sub/../a.txt",
            "./../secret.txt",
            absolute.to_str().unwrap(),
            "/etc/passwd",
            "out.txt",
            "up/secret.txt",
            "up/root/a.txt",
            "within.txt",
            ".git/config",
            "sub/../.git/config",
            "a.txt/../../secret.txt",
            "\0",
            "a.txt\0.md",
        ];
        for way in ways {
            for refused in [files.count(way), files.lines(way, 1, 9), files.list(way)] {
                let error = refused.unwrap_err();
                assert!(!error.contains("canary"), "{way}: {error}");
            }
        }
        for folder in ["..", "/", "up", "sub/..", ".git"] {
            assert!(files.list(folder).is_err(), "{folder}");
        }
    }

    #[test]
    fn bytes_without_text_and_large_files_are_refused() {
        let (_dir, files) = world();
        for file in ["binary", "huge", "sub", "", "none.txt", "a.txt/b"] {
            assert!(files.count(file).is_err(), "{file}");
        }
        for (from, to) in [(0, 1), (2, 1), (3, 9), (usize::MAX, usize::MAX)] {
            assert!(files.lines("a.txt", from, to).is_err(), "{from} to {to}");
        }
        assert!(files.list("a.txt").is_err());
    }

    #[test]
    fn a_page_is_bounded() {
        let (dir, files) = world();
        let root = dir.path().join("root");
        fs::write(root.join("many"), "x\n".repeat(10 * MAX_LINES)).unwrap();
        assert_eq!(files.lines("many", 1, usize::MAX).unwrap().lines().count(), MAX_LINES);
        fs::write(root.join("long"), "ä".repeat(MAX_TEXT_BYTES)).unwrap();
        assert!(files.lines("long", 1, 1).unwrap().len() < MAX_TEXT_BYTES + 100);
        for number in 0..=MAX_ENTRIES {
            fs::write(root.join("sub").join(number.to_string()), "").unwrap();
        }
        assert!(files.list("sub").unwrap().ends_with("… and 2 more"));
    }
}
