//! A reader of Rust source: the tokens of its code, without comments, literals and test items.

/// A token of the code, and its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    pub text: &'a str,
    pub line: usize,
}

/// The tokens of a source text: identifiers, numbers, `::`, and every other sign on its own. A literal is the token `""`.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = literal(rest) {
            found.push(Token { text: "\"\"", line });
            length
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            found.push(Token { text: &rest[..length], line });
            length
        } else if first.is_whitespace() {
            first.len_utf8()
        } else {
            let length = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            found.push(Token { text: &rest[..length], line });
            length
        };
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

/// The tokens without the items under `#[cfg(test)]`, and the names of the modules among these items that have a file of
/// their own.
pub fn without_tests<'a>(tokens: &[Token<'a>]) -> (Vec<Token<'a>>, Vec<&'a str>) {
    const CFG_TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut modules) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let attribute = tokens.get(at..at + CFG_TEST.len());
        if attribute.is_some_and(|tokens| tokens.iter().map(|token| token.text).eq(CFG_TEST)) {
            at += CFG_TEST.len();
            let item = &tokens[at..at + item_length(&tokens[at..])];
            if let [.., Token { text: "mod", .. }, Token { text: name, .. }, Token { text: ";", .. }] = item {
                modules.push(*name);
            }
            at += item.len();
        } else {
            kept.push(*token);
            at += 1;
        }
    }
    (kept, modules)
}

/// The number of tokens up to the end of the first item: its `;`, its `,`, or the end of its block.
fn item_length(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    let is_import = tokens.iter().take_while(|token| token.text != "{").any(|token| token.text == "use");
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            // The end of what is around the item.
            ")" | "]" | "}" if depth == 0 => return at,
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 && token.text == "}" && !is_import {
                    return at + 1;
                }
            }
            ";" | "," if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of the block comment at the beginning of the text; block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of the text or character literal at the beginning of the text. A lifetime is none.
fn literal(text: &str) -> Option<usize> {
    let prefix = text.find(|c| !matches!(c, 'b' | 'c' | 'r')).filter(|length| *length <= 2)?;
    let body = &text[prefix..];
    if text[..prefix].ends_with('r') {
        let hashes = body.find(|c| c != '#')?;
        let end = format!("\"{}", &body[..hashes]);
        let opened = prefix + hashes + 1;
        return body[hashes..]
            .starts_with('"')
            .then(|| text[opened..].find(&end).map_or(text.len(), |at| opened + at + end.len()));
    }
    let quote = body.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let mut characters = body.char_indices().skip(1);
    let mut count = 0;
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => {
                characters.next();
            }
            _ if c == quote => return Some(prefix + at + 1),
            // `'a` without a quote after it is a lifetime.
            _ if quote == '\'' && count == 1 && !body[1..].starts_with('\\') => return None,
            _ => {}
        }
        count += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &str) -> String {
        let (kept, _) = without_tests(&tokens(source));
        kept.iter().map(|token| token.text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(read("a // b\n/* c /* d */ e */ f"), "a f");
        assert_eq!(read(r#"a("b \" c", b"d", 'e', '\'', b'\\', '\u{e9}', 'é')"#), r#"a ( "" , "" , "" , "" , "" , "" , "" )"#);
        assert_eq!(read("a(r\"b\\\", r#\"c \" d\"#, br\"e\")"), r#"a ( "" , "" , "" )"#);
        assert_eq!(read("fn b<'a>(r: &'a str, c: &'static u8)"), "fn b < ' a > ( r : & ' a str , c : & ' static u8 )");
    }

    #[test]
    fn lines_are_counted_through_comments_and_literals() {
        let source = "/*\n*/ a \"\n\n\" b\nc";
        let found: Vec<_> = tokens(source).into_iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(found, [("a", 2), ("\"\"", 2), ("b", 4), ("c", 5)]);
    }

    #[test]
    fn test_items_are_left_out() {
        assert_eq!(read("a; #[cfg(test)] mod tests { fn b() {} } c"), "a ; c");
        assert_eq!(read("#[cfg(test)]\n#[path = \"x.rs\"]\nmod tests; c"), "c");
        assert_eq!(read("#[cfg(test)] use a::{b, c}; d"), "d");
        assert_eq!(read("#[cfg(test)] const A: [u8; 2] = [1, 2]; d"), "d");
        assert_eq!(read("struct A { #[cfg(test)] b: u8, c: u8 }"), "struct A { c : u8 }");
        assert_eq!(read("enum A { B, #[cfg(test)] C }"), "enum A { B , }");
        assert_eq!(read("#[cfg(not(test))] a"), "# [ cfg ( not ( test ) ) ] a");
    }

    #[test]
    fn test_modules_with_a_file_have_a_name() {
        let source = "#[cfg(test)] mod faults; #[cfg(test)] pub(crate) mod fixtures; #[cfg(test)] mod tests { mod a; } mod b;";
        assert_eq!(without_tests(&tokens(source)).1, ["faults", "fixtures"]);
    }
}
