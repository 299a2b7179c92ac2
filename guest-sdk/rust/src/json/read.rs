//! JSON reader for `serde` that stays small in a component.
//!
//! In contrast to `serde_json`, the reader links no formatting of floats, and parses floats only for types that contain
//! one. Both accept the same documents (the tests compare them), with the same limit of nesting. The reader cannot build
//! a `serde_json::value::RawValue`, which is private to `serde_json`.

use std::borrow::Cow;

use serde::de::value::CowStrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::JsonError;
use super::scan::{Items, Number, Reader};

/// Parses a document.
///
/// # Errors
/// Fails if `json` is not a JSON document, or does not have the shape of `T`. The error names the field.
pub fn from_str<T: DeserializeOwned>(json: &str) -> Result<T, JsonError> {
    let mut reader = Reader::new(json);
    let value = T::deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Readers for one kind of value each.
impl<'de> Reader<'de> {
    fn whole<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, JsonError> {
        if !self.at_number() {
            return Err(self.another(&visitor));
        }
        let number = self.number()?;
        if let Ok(value) = number.text.parse::<u64>() {
            visitor.visit_u64(value)
        } else if let Ok(value) = number.text.parse::<i64>() {
            visitor.visit_i64(value)
        } else {
            let found = if number.whole { Unexpected::Other("a number of that size") } else { Unexpected::Float(0.0) };
            Err(JsonError::invalid_type(found, &visitor))
        }
    }

    fn float<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, JsonError> {
        if !self.at_number() {
            return Err(self.another(&visitor));
        }
        match self.number()?.text.parse::<f64>() {
            Ok(value) if value.is_finite() => visitor.visit_f64(value),
            _ => Err(self.syntax("a number of that size")),
        }
    }

    fn text<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, JsonError> {
        if self.next_token() != Some(b'"') {
            return Err(self.another(&visitor));
        }
        match self.string()? {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }

    fn array<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, JsonError> {
        match self.next_token() {
            Some(b'[') => self.nested(b']', |items| visitor.visit_seq(items)),
            _ => Err(self.another(&visitor)),
        }
    }

    fn object<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, JsonError> {
        match self.next_token() {
            Some(b'{') => self.nested(b'}', |items| visitor.visit_map(items)),
            _ => Err(self.another(&visitor)),
        }
    }
}

macro_rules! as_numbers {
    ($how:ident: $($method:ident)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
            self.$how(visitor)
        })+
    };
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = JsonError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self.next_token() {
            Some(b'"') => self.text(visitor),
            Some(b'[') => self.array(visitor),
            Some(b'{') => self.object(visitor),
            Some(b't' | b'f') => self.deserialize_bool(visitor),
            Some(b'n') => self.deserialize_unit(visitor),
            _ => {
                let from = self.at;
                let Number { text, whole } = self.number()?;
                self.at = from;
                let fits = text.parse::<u64>().is_ok() || text.parse::<i64>().is_ok();
                if whole && fits && text != "-0" { self.whole(visitor) } else { self.float(visitor) }
            }
        }
    }

    as_numbers!(whole: deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64);
    as_numbers!(float: deserialize_f32 deserialize_f64);
    as_numbers!(text: deserialize_str deserialize_string deserialize_char deserialize_identifier);
    as_numbers!(array: deserialize_seq);
    as_numbers!(object: deserialize_map);

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self.next_token() {
            Some(b't') => {
                self.word("true")?;
                visitor.visit_bool(true)
            }
            Some(b'f') => {
                self.word("false")?;
                visitor.visit_bool(false)
            }
            _ => Err(self.another(&visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self.next_token() {
            Some(b'n') => {
                self.word("null")?;
                visitor.visit_none()
            }
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self.next_token() {
            Some(b'n') => {
                self.word("null")?;
                visitor.visit_unit()
            }
            _ => Err(self.another(&visitor)),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, JsonError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, JsonError> {
        self.array(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(self, _: &'static str, _: usize, visitor: V) -> Result<V::Value, JsonError> {
        self.array(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        self.object(visitor)
    }

    /// Reads `"variant"` or `{"variant": content}`.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        match self.next_token() {
            Some(b'"') => visitor.visit_enum(CowStrDeserializer::new(self.string()?)),
            Some(b'{') => self.nested(b'}', |items| visitor.visit_enum(items)),
            _ => Err(self.another(&visitor)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        self.array(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        self.array(visitor)
    }
}

impl<'de> SeqAccess<'de> for &mut Items<'_, 'de> {
    type Error = JsonError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, JsonError> {
        if !self.more()? {
            return Ok(None);
        }
        let index = self.index;
        self.index += 1;
        match seed.deserialize(&mut *self.reader) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(error.within(&format!("[{index}]"))),
        }
    }
}

impl<'de> MapAccess<'de> for &mut Items<'_, 'de> {
    type Error = JsonError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, JsonError> {
        if self.next_name()? { seed.deserialize(Key(self.key.clone())).map(Some) } else { Ok(None) }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, JsonError> {
        seed.deserialize(&mut *self.reader).map_err(|error| error.within(&self.key))
    }
}

impl<'de> EnumAccess<'de> for &mut Items<'_, 'de> {
    type Error = JsonError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), JsonError> {
        if !self.next_name()? {
            return Err(self.reader.syntax("the name of a variant was expected"));
        }
        let variant = seed.deserialize(Key(self.key.clone()))?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Items<'_, 'de> {
    type Error = JsonError;

    fn unit_variant(self) -> Result<(), JsonError> {
        self.newtype_variant_seed(std::marker::PhantomData)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, JsonError> {
        seed.deserialize(&mut *self.reader).map_err(|error| error.within(&self.key))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, JsonError> {
        self.reader.array(visitor).map_err(|error| error.within(&self.key))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, JsonError> {
        self.reader.object(visitor).map_err(|error| error.within(&self.key))
    }
}

/// Name of a member. A map may have numbers as keys; in JSON these are quoted.
struct Key<'de>(Cow<'de, str>);

macro_rules! number_keys {
    ($($method:ident)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
            if let Ok(value) = self.0.parse::<u64>() {
                visitor.visit_u64(value)
            } else if let Ok(value) = self.0.parse::<i64>() {
                visitor.visit_i64(value)
            } else {
                Err(JsonError::invalid_type(Unexpected::Str(&self.0), &visitor))
            }
        })+
    };
}

impl<'de> Deserializer<'de> for Key<'de> {
    type Error = JsonError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self.0 {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }

    number_keys!(deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64);

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        self.0.into_deserializer().deserialize_enum(name, variants, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool f32 f64 char str string bytes byte_buf option unit unit_struct seq tuple tuple_struct
        map struct identifier ignored_any
    }
}
