//! Texts with `{{fields}}`.

/// A part of a template.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Text as it stands.
    Text(&'a str),
    /// A field, and how many characters of it at most.
    Field { name: &'a str, limit: Option<usize> },
}

/// The parts of a template. A field is `{{name}}`, or `{{name:100}}` for the first 100 characters of it.
pub(super) fn parts(text: &str) -> Result<Vec<Part<'_>>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (field, after) = after.split_once("}}").ok_or_else(|| "a `{{` has no `}}`".to_owned())?;
        let (name, limit) = match field.split_once(':') {
            Some((name, limit)) => match limit.trim().parse() {
                Ok(limit) => (name, Some(limit)),
                Err(_) => return Err(format!("`{{{{{field}}}}}`: what follows the colon must be a number of characters")),
            },
            None => (field, None),
        };
        parts.push(Part::Text(before));
        parts.push(Part::Field { name: name.trim(), limit });
        rest = after;
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

/// The text with its fields replaced. Replaced values are not searched for fields again.
pub(super) fn fill(text: &str, field: impl Fn(&str) -> String) -> Result<String, String> {
    let mut filled = String::new();
    for part in parts(text)? {
        match part {
            Part::Text(text) => filled.push_str(text),
            Part::Field { name, limit: None } => filled.push_str(&field(name)),
            Part::Field { name, limit: Some(limit) } => filled.extend(field(name).chars().take(limit)),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_filled_in_once() {
        let filled = fill("a {{x}} {{ y : 3 }}!", |name| if name == "x" { "{{y}}".into() } else { "語語語語".into() });
        assert_eq!(filled.unwrap(), "a {{y}} 語語語!");
        assert_eq!(fill("plain }} text", |_| String::new()).unwrap(), "plain }} text");
    }

    #[test]
    fn a_field_that_is_not_one_is_refused() {
        assert!(parts("a {{x").unwrap_err().contains("no `}}`"));
        assert!(parts("{{x:many}}").unwrap_err().contains("number of characters"));
    }
}
