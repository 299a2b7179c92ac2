//! Enums whose values have names.

/// Defines an enum whose values each have a name: `ALL` has every value in order, `as_str` gives the name, and `from_name` the value.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal),* $(,)? }
    ) => {
        $(#[$attribute])*
        $visibility enum $type { $($(#[$doc])* $variant),* }

        impl $type {
            /// Every value, in order.
            $visibility const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name, as JSON shows it.
            #[must_use]
            $visibility const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The value with this name.
            #[must_use]
            $visibility fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}
