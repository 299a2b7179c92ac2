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

/// The library, with its artifacts in a ledger.
async fn open(config: &Config, ledger: &Ledger) -> Result<Library, LibraryError> {
    let library = Library::open(config).await?;
    library.keep_in(ledger).await?;
    Ok(library)
}

async fn refusal(dir: &Path, ledger: &Ledger, skill: &str) -> String {
    open(&config(dir, &[skill], &[]), ledger).await.expect_err(skill).to_string()
}

fn reading() -> Permissions {
    Permissions { artifacts: vec![ArtifactOperation::Read], ..Permissions::default() }
}

#[test]
fn a_front_matter_is_read() {
    let check = |text: &str, name: &str, description: &str| {
        let expect = FrontMatter { name: name.to_owned(), description: description.to_owned() };
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
    let library = open(&config(dir.path(), &["reader"], &[]), &ledger).await.unwrap();
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
async fn cached_documents_are_reused_unless_changed() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    lay_out(at, &[("pdf/SKILL.md", &skill("pdf", "Reads PDF.")), ("pdf/a.txt", "a"), ("system.md", "Be kind.")]);
    let configured = config(at, &["pdf"], &[("system-prompt", "system.md")]);
    let ledger = ledger(at);
    let all = ResourcePolicy::default();
    let first = open(&configured, &ledger).await.unwrap().granted(&all, &reading());
    assert_eq!(open(&configured, &ledger).await.unwrap().granted(&all, &reading()), first);

    let content = first.static_refs["system-prompt"].clone();
    let artifact = content.content.clone().unwrap();
    assert_eq!(content.sha256, format!("{:x}", Sha256::digest("Be kind.")));
    assert_eq!(content.version, content.sha256[..12]);
    assert!(artifact.artifact_id.starts_with("static-") && artifact.artifact_id.len() == "static-".len() + 32);

    // Resources of a grant are never collected, however old.
    fs::write(at.join("system.md"), "Be brief.").unwrap();
    let second = open(&configured, &ledger).await.unwrap().granted(&all, &reading());
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
    let third = open(&configured, &ledger).await.unwrap().granted(&all, &reading());
    assert_eq!(third, first);
    assert!(ledger.blob(&content.sha256).unwrap().is_some());
}

#[tokio::test]
async fn a_file_that_was_changed_since_it_was_read_is_kept_in_no_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    lay_out(at, &[("pdf/SKILL.md", &skill("pdf", "Reads PDF.")), ("pdf/a.txt", "a")]);
    let library = Library::open(&config(at, &["pdf"], &[])).await.unwrap();
    let first = ledger(&at.join("first"));
    library.keep_in(&first).await.unwrap();
    for changed in ["b", "longer"] {
        lay_out(at, &[("pdf/a.txt", changed)]);
        library.keep_in(&first).await.expect("it is there");
        let second = ledger(&at.join(changed));
        let error = library.keep_in(&second).await.unwrap_err();
        assert!(matches!(&error, LibraryError::Changed { path } if path.ends_with("pdf/a.txt")), "{error}");
        assert!(second.artifact(&library.skills[0].files[0].artifact_id).unwrap().is_none());
    }
}

#[tokio::test]
async fn invalid_skills_are_refused() {
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
    let library = open(&config(at, &["many"], &[]), &ledger).await.unwrap();
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
    let error = open(&config(at, &["a", "b"], &[]), &ledger(at)).await.unwrap_err().to_string();
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
        let configured = Config { static_refs: vec![content], ..Config::default_in(at) };
        let error = open(&configured, &ledger).await.expect_err(says).to_string();
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
    let configured = config(at, &["pdf", "web"], &[("one", "one.md"), ("two", "two.md")]);
    let library = open(&configured, &ledger(at)).await.unwrap();
    let names = |granted: &GrantedLibrary| {
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
    assert_eq!(library.granted(&policy(&[], &["three"]), &reading()), GrantedLibrary::default());

    // A run without the permission to read gets the version in use, and no more.
    let metadata = Permissions { artifacts: vec![ArtifactOperation::Metadata], ..Permissions::default() };
    let known = library.granted(&ResourcePolicy::default(), &metadata);
    assert_eq!(names(&known), "one two");
    assert!(known.static_refs.values().all(|content| content.content.is_none() && content.sha256.len() == 64));
}
