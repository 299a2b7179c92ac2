//! Lists of problem codes.

/// Defines an enum of codes, each with its meaning, its name in JSON and its HTTP status.
macro_rules! problem_codes {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident;
        $($(#[doc = $doc:literal])* $variant:ident = $text:literal, $status:ident;)*
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name { $($(#[doc = $doc])* $variant),* }

        impl $name {
            /// Every one.
            $vis const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code as JSON shows it.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// Meaning of the code, for people.
            #[must_use]
            $vis fn description(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*).trim()),* }
            }

            /// The HTTP status that goes with it.
            #[must_use]
            $vis const fn status(self) -> axum::http::StatusCode {
                match self { $(Self::$variant => axum::http::StatusCode::$status),* }
            }
        }
    };
}
pub(crate) use problem_codes;
