//! The numbers of a specification, with the names that it gives them: enumerations, open sets of
//! constants, and sets of flags. Each definition is a table, a line for each number, from which
//! follow the type, its conversions, its texts, and the names by which the documentation finds it.

#[doc(hidden)]
pub use bitflags::bitflags;
#[doc(hidden)]
pub use platform::OutOfMemory;

/// Defines an enumeration with a specification's numbers and names. The first line of the
/// documentation of a value is also its text, where an API shows one.
#[macro_export]
macro_rules! enumeration {
    ($(#[$meta:meta])* $vis:vis enum $name:ident: $repr:ident {
        $(
            #[doc = $text:literal] $(#[$more:meta])*
            $variant:ident = $number:literal, $c:literal $(or $other:literal)*;
        )*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        $vis enum $name {
            $(
                #[doc = $text]
                $(#[$more])*
                #[doc(alias = $c)]
                $(#[doc(alias = $other)])*
                $variant = $number,
            )*
        }

        #[allow(dead_code, reason = "not every enumeration needs all of them")]
        impl $name {
            pub(crate) const ALL: &[$name] = &[$($name::$variant),*];

            /// The specification's number.
            pub const fn as_raw(self) -> u32 {
                self as u32
            }

            pub(crate) const fn from_number(number: u32) -> Option<$name> {
                match number {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// The name in the specification.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $c,)*
                }
            }

            /// What it means.
            pub(crate) const fn text(self) -> &'static str {
                match self {
                    $($name::$variant => $text.trim_ascii(),)*
                }
            }
        }
    };
}

/// Converts what any call of a face may end with into its error type: a lack of memory or
/// resources, and the end of the adapter.
#[macro_export]
macro_rules! common_errors {
    ($error:ty: out of resources $exhausted:expr, disabled $disabled:expr, freed $freed:expr) => {
        impl From<$crate::Ended> for $error {
            fn from(ended: $crate::Ended) -> $error {
                match ended {
                    $crate::Ended::Disabled => $disabled,
                    $crate::Ended::Freed => $freed,
                }
            }
        }

        $crate::common_errors! { $error: $exhausted;
            $crate::OutOfResources, $crate::named::OutOfMemory, ::alloc::collections::TryReserveError
        }
    };
    ($error:ty: $exhausted:expr; $($cause:ty),*) => {
        $(impl From<$cause> for $error {
            fn from(_: $cause) -> $error {
                $exhausted
            }
        })*
    };
}

/// Defines the constants of an open set of numbers, a type of one field that holds the number.
#[macro_export]
macro_rules! constants {
    ($type:ident: $($(#[$doc:meta])* $name:ident = $number:literal, $c:literal $(or $other:literal)*;)*) => {
        impl $type {
            $(
                $(#[$doc])*
                #[doc(alias = $c)]
                $(#[doc(alias = $other)])*
                pub const $name: $type = $type($number);
            )*

            /// The name in the specification, if it defines the number.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($c),)*
                    _ => None,
                }
            }

            /// The number.
            pub const fn as_raw(self) -> u32 {
                self.0
            }
        }

        impl ::core::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($type), "({:#x})"), self.0),
                }
            }
        }
    };
}

/// Defines a set of flags with a specification's bits and names. Undefined bits can be passed with
/// `from_bits_retain`.
#[macro_export]
macro_rules! flags {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident: $repr:ident {
        $($(#[$($doc:tt)*])* $flag:ident = $bits:expr $(, $c:literal $(or $other:literal)*)?;)*
    })*) => {$(
        $crate::named::bitflags! {
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            $vis struct $name: $repr {
                $(
                    $(#[$($doc)*])*
                    $(#[doc(alias = $c)] $(#[doc(alias = $other)])*)?
                    const $flag = $bits;
                )*
            }
        }
    )*};
}
