//! Query parameters, read one by one, so that a refusal names the parameter and what it may be.

use std::{collections::BTreeMap, fmt::Display, str::FromStr};

use agent_host_protocol::limits::{MAX_PAGE, MIN_PAGE};

use super::{percent, problem::Problem};

/// Items on a page where the client does not say.
pub(crate) const DEFAULT_PAGE: u32 = 50;

/// The parameter that has a stream token (RFC 6750, section 2.3). Admission takes it out of a request, so no route sees it.
pub(crate) const ACCESS_TOKEN: &str = "access_token";

/// The parameters of a request that were not read yet. [`Query::finish`] refuses what is left.
#[derive(Debug)]
pub(crate) struct Query {
    left: BTreeMap<String, String>,
    known: Vec<&'static str>,
}

impl Query {
    /// Splits and decodes the query of a URI. A parameter that comes twice is refused, as it is not clear which
    /// one is meant.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, Problem> {
        let mut left = BTreeMap::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let not_text =
                || Problem::invalid("query", "the query has bytes that are not UTF-8, or a `%` without two hexadecimal digits");
            let name = decode(name).ok_or_else(not_text)?;
            let value = decode(value).ok_or_else(not_text)?;
            if left.contains_key(&name) {
                return Err(Problem::invalid(printable(&name), format!("`{}` is there twice", printable(&name))));
            }
            left.insert(name, value);
        }
        Ok(Self { left, known: Vec::new() })
    }

    /// The value of `name`, also where it is empty.
    pub(crate) fn value(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        self.left.remove(name)
    }

    /// The text of `name`. An empty text is none.
    pub(crate) fn text(&mut self, name: &'static str) -> Option<String> {
        self.value(name).filter(|value| !value.is_empty())
    }

    /// The parsed value of `name`. An empty value is refused like any other invalid one: an empty filter would otherwise
    /// match everything.
    pub(crate) fn parsed<T: FromStr<Err: Display>>(&mut self, name: &'static str) -> Result<Option<T>, Problem> {
        self.value(name)
            .map(|value| value.parse().map_err(|error| Problem::invalid(name, format!("`{name}`: {error}"))))
            .transpose()
    }

    /// The size of the page.
    pub(crate) fn limit(&mut self) -> Result<u32, Problem> {
        let Some(value) = self.value("limit") else { return Ok(DEFAULT_PAGE) };
        let limit = value.parse().ok().filter(|limit| (MIN_PAGE..=MAX_PAGE).contains(limit));
        limit.ok_or_else(|| Problem::invalid("limit", format!("`limit` must be a number from {MIN_PAGE} to {MAX_PAGE}")))
    }

    /// Cursor and size of the page, the last parameters of a route.
    pub(crate) fn page(&mut self) -> Result<(Option<String>, u32), Problem> {
        let page = (self.text("cursor"), self.limit()?);
        self.finish()?;
        Ok(page)
    }

    /// All that is left, for those who take any.
    pub(crate) fn all(self) -> Vec<(String, String)> {
        self.left.into_iter().collect()
    }

    /// Refuses parameters that nobody read: a misspelt filter would otherwise show everything.
    pub(crate) fn finish(&self) -> Result<(), Problem> {
        let Some(name) = self.left.keys().next() else { return Ok(()) };
        let known = if self.known.is_empty() { "none".to_owned() } else { self.known.join(", ") };
        let name = printable(name);
        Err(Problem::invalid(&*name, format!("`{name}` is not a query parameter here; there are: {known}")))
    }
}

/// A foreign name, made fit for a message.
fn printable(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// `+` and `%XX` decoded. `None` where that is not possible, or not UTF-8.
fn decode(text: &str) -> Option<String> {
    String::from_utf8(percent::decode(&text.replace('+', " "))?).ok()
}

#[cfg(test)]
mod tests {
    use agent_host_protocol::EventId;

    use super::*;

    fn refusal(problem: Problem) -> String {
        problem.to_json()
    }

    #[test]
    fn parameters_are_decoded() {
        let mut query = Query::parse(Some("a=x+y%2Fz%C3%A4&b=&c")).unwrap();
        assert_eq!(query.text("a").as_deref(), Some("x y/zä"));
        assert_eq!((query.text("b"), query.text("c"), query.text("d")), (None, None, None));
        assert!(query.finish().is_ok());
    }

    #[test]
    fn a_parameter_that_is_unknown_double_or_no_text_is_refused() {
        let mut query = Query::parse(Some("limit=3&statsu=failed")).unwrap();
        assert_eq!(query.limit().unwrap(), 3);
        insta::assert_snapshot!(refusal(query.finish().unwrap_err()), @r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"`statsu` is not a query parameter here; there are: limit","code":"invalid_argument","message":"`statsu` is not a query parameter here; there are: limit","field":"statsu"}"#);
        for query in ["a=1&a=2", "a=%ff", "a=%2", "a=%zz", "%=1"] {
            assert!(Query::parse(Some(query)).is_err(), "{query}");
        }
    }

    #[test]
    fn a_page_has_1_to_100_items() {
        let limit = |text: &str| Query::parse(Some(&format!("limit={text}"))).unwrap().limit();
        assert_eq!((limit("1").unwrap(), limit("100").unwrap()), (1, 100));
        assert_eq!(Query::parse(None).unwrap().limit().unwrap(), DEFAULT_PAGE);
        for bad in ["", "0", "101", "-1", "ten", "4294967297", "1.0"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_id_that_is_none_is_named() {
        let mut query = Query::parse(Some("event_id=7")).unwrap();
        let problem = query.parsed::<EventId>("event_id").unwrap_err();
        assert!(refusal(problem).contains(r#""field":"event_id""#));
    }
}
