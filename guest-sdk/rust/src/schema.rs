//! JSON Schemas of Rust types, for forms and for parameters of tools.
//!
//! The members of an object stand in the order of the fields of its type, since a form shows them so. `serde_json` sorts them, and its
//! other maps would cost every runner: the order comes from the names that the type gives its deserializer. Members of nested objects
//! are sorted.

use std::fmt;

use serde::{
    Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error, Visitor},
    forward_to_deserialize_any,
    ser::SerializeMap,
};
use serde_json::{Map, Value};

/// The member of a schema that has the members of an object.
const PROPERTIES: &str = "properties";

/// Returns the JSON Schema of a type, inlined and without a title, as models expect.
#[must_use]
pub fn schema_of<P: schemars::JsonSchema + DeserializeOwned>() -> String {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<P>();
    schema.remove("title");
    let value = schema.as_value();
    let ordered = value.as_object().map(|members| OrderedSchema { members, fields: fields_of::<P>() });
    ordered.and_then(|schema| serde_json::to_string(&schema).ok()).unwrap_or_else(|| value.to_string())
}

/// A schema whose properties are written in the order of the fields.
struct OrderedSchema<'a> {
    members: &'a Map<String, Value>,
    fields: &'static [&'static str],
}

/// The properties of a schema: first those that are fields, in their order.
struct OrderedProperties<'a> {
    properties: &'a Map<String, Value>,
    fields: &'static [&'static str],
}

impl Serialize for OrderedSchema<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.members.len()))?;
        for (name, member) in self.members {
            match member {
                Value::Object(properties) if name == PROPERTIES => {
                    map.serialize_entry(name, &OrderedProperties { properties, fields: self.fields })?;
                }
                _ => map.serialize_entry(name, member)?,
            }
        }
        map.end()
    }
}

impl Serialize for OrderedProperties<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.properties.len()))?;
        for (name, property) in self.fields.iter().filter_map(|name| self.properties.get_key_value(*name)) {
            map.serialize_entry(name, property)?;
        }
        for (name, property) in self.properties.iter().filter(|(name, _)| !self.fields.contains(&name.as_str())) {
            map.serialize_entry(name, property)?;
        }
        map.end()
    }
}

/// The names of the fields of a struct, in the order in which they are declared; none for other types.
fn fields_of<T: DeserializeOwned>() -> &'static [&'static str] {
    match T::deserialize(Probe) {
        Err(Fields(fields)) => fields,
        Ok(_) => &[],
    }
}

/// A deserializer without a value, which gives the fields of the struct that is asked for as its error.
struct Probe;

#[derive(Debug)]
struct Fields(&'static [&'static str]);

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for Fields {}

impl Error for Fields {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }
}

impl<'de> Deserializer<'de> for Probe {
    type Error = Fields;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Fields> {
        Err(Fields(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Fields> {
        Err(Fields(fields))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Fields> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    #![allow(dead_code, reason = "only the schemas of the types are read")]

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, schemars::JsonSchema)]
    struct Booking {
        /// Street and number.
        street: String,
        #[serde(rename = "day", alias = "date")]
        arrival: String,
        nights: Option<u8>,
        breakfast: bool,
    }

    /// The places of these texts, one after the other.
    fn in_order(text: &str, parts: &[&str]) -> bool {
        let places: Vec<_> = parts.iter().map(|part| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"))).collect();
        places.is_sorted()
    }

    #[test]
    fn members_stand_in_the_order_of_the_fields() {
        let schema = schema_of::<Booking>();
        assert!(in_order(&schema, &[r#""street":{"#, r#""day":{"#, r#""nights":{"#, r#""breakfast":{"#]), "{schema}");
        let parsed: Value = serde_json::from_str(&schema).unwrap();
        assert_eq!(parsed["properties"].as_object().unwrap().len(), 4, "an alias is no member of its own");
        assert_eq!(parsed["properties"]["street"]["description"], "Street and number.");
    }

    #[test]
    fn types_without_named_fields_have_their_schema_too() {
        #[derive(Deserialize, schemars::JsonSchema)]
        struct Wrapped(Booking);
        #[derive(Deserialize, schemars::JsonSchema)]
        struct Flat {
            zone: u8,
            #[serde(flatten)]
            rest: Booking,
        }
        let wrapped = schema_of::<Wrapped>();
        assert!(in_order(&wrapped, &[r#""street":{"#, r#""day":{"#]), "{wrapped}");
        let flat: Value = serde_json::from_str(&schema_of::<Flat>()).unwrap();
        assert_eq!(flat["properties"].as_object().unwrap().len(), 5, "{flat}");
        let number: Value = serde_json::from_str(&schema_of::<u8>()).unwrap();
        assert_eq!(number["type"], "integer");
    }
}
