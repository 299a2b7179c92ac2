//! Commands as a shell has them.

/// Characters of words that need no quotes.
const PLAIN: &str = "-_./=:,@%+";

fn is_plain(character: char) -> bool {
    character.is_alphanumeric() || PLAIN.contains(character)
}

/// The words of a command as one line, each as one word of a shell.
pub(crate) fn line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted = words.into_iter().map(|word| {
        if !word.is_empty() && word.chars().all(is_plain) {
            word.to_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// The command that a shell is given by `SHELL -lc COMMAND`, which is how agents execute one; else the command as it is.
pub(crate) fn inner(command: &str) -> String {
    let mut words = command.splitn(3, ' ');
    let shell = words.next().and_then(|shell| shell.rsplit('/').next());
    let is_shell = matches!(shell, Some("bash" | "sh" | "zsh")) && matches!(words.next(), Some("-c" | "-lc"));
    let script = words.next().filter(|_| is_shell).and_then(one_word);
    script.unwrap_or_else(|| command.to_owned())
}

/// The text of one quoted word of a shell; `None` if there are several, or a shell would put in more than the word says.
fn one_word(text: &str) -> Option<String> {
    let mut word = String::new();
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        match next {
            '\'' => loop {
                match rest.next()? {
                    '\'' => break,
                    other => word.push(other),
                }
            },
            '"' => loop {
                match rest.next()? {
                    '"' => break,
                    '\\' => match rest.next()? {
                        escaped @ ('"' | '\\' | '$' | '`') => word.push(escaped),
                        other => word.extend(['\\', other]),
                    },
                    '$' | '`' => return None,
                    other => word.push(other),
                }
            },
            '\\' => word.push(rest.next()?),
            plain if is_plain(plain) => word.push(plain),
            _ => return None,
        }
    }
    Some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_in_a_shell_is_the_command() {
        for (shown, command) in [
            ("/bin/bash -lc 'mkdir one'", "mkdir one"),
            ("bash -lc ls", "ls"),
            (r#"/usr/bin/zsh -lc "echo 'a'""#, "echo 'a'"),
            ("bash -lc 'git status' 'x; rm'", "bash -lc 'git status' 'x; rm'"),
            ("bash -lc git status", "bash -lc git status"),
            (r#"bash -lc "git $(rm)""#, r#"bash -lc "git $(rm)""#),
            ("bash -lc 'git'\"'\"'s'", "git's"),
            ("python3 -c 'x'", "python3 -c 'x'"),
            ("bash -lc 'open", "bash -lc 'open"),
        ] {
            assert_eq!(inner(shown), command, "{shown}");
        }
    }

    #[test]
    fn a_line_has_the_words_of_the_command() {
        assert_eq!(line(["git", "commit", "-m", "it's done", ""]), r"git commit -m 'it'\''s done' ''");
        assert_eq!(inner(&line(["/bin/bash", "-lc", "rm -r 'a b'; ls"])), "rm -r 'a b'; ls");
    }
}
