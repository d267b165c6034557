//! Handle words: each names one object, and a check takes constant time.
//!
//! | bits | meaning |
//! |---|---|
//! | 0..24 | index into the table of its type |
//! | 24..28 | type: the [`Tag`] plus one, so that no handle is zero |
//! | 28..40 | number of the adapter that it belongs to |
//! | 40..64 | generation: how many times the index was given out |
//!
//! A table entry holds the whole word that is valid at this moment. One comparison therefore
//! refuses handles that are null, freed, of another adapter or of another type.

/// Bits of the index.
pub const INDEX_BITS: u32 = 24;
const TAG_SHIFT: u32 = INDEX_BITS;
const TAG_BITS: u32 = 4;
const ADAPTER_SHIFT: u32 = TAG_SHIFT + TAG_BITS;
/// Bits of the adapter's number.
pub const ADAPTER_BITS: u32 = 12;
const GENERATION_SHIFT: u32 = ADAPTER_SHIFT + ADAPTER_BITS;
/// The highest generation that fits into a handle. No table gives it out, nor the adapter number
/// with all bits set: a face can use both for a handle that is the same for all of its adapters.
pub const GENERATION_MASK: u32 = (1 << (64 - GENERATION_SHIFT)) - 1;

const _: () = assert!(GENERATION_SHIFT == 40);

/// The type of object that a handle names. Each face numbers its types from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u32);

impl Tag {
    /// The tag with this number, which must be below 15.
    pub const fn new(number: u32) -> Tag {
        assert!(number < (1 << TAG_BITS) - 1);
        Tag(number)
    }
}

/// A handle of one type of objects of a face: a [`Table`](crate::Table) of these objects takes no
/// other. [`handles!`](crate::handles) makes such types.
pub trait ObjectHandle: Copy {
    /// The tag of its words.
    const TAG: Tag;

    /// The handle with this word; every use checks it.
    fn from_word(word: u64) -> Self;

    /// The word.
    fn word(self) -> u64;
}

/// Defines types of handles, each with its tag. They are the same in all faces: a word, a null
/// handle, and no check before a use.
#[macro_export]
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident = $tag:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u64);

        #[allow(dead_code, reason = "a type that its crate keeps to itself may not need all of it")]
        impl $name {
            /// No object.
            pub const NULL: $name = $name(0);

            /// The handle with this word; every use checks it.
            pub const fn from_raw(word: u64) -> $name {
                $name(word)
            }

            /// The word.
            #[inline(always)]
            pub const fn as_raw(self) -> u64 {
                self.0
            }

            /// Whether it is the null handle.
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }
        }

        impl $crate::handle::ObjectHandle for $name {
            const TAG: $crate::handle::Tag = $tag;

            #[inline(always)]
            fn from_word(word: u64) -> $name {
                $name(word)
            }

            #[inline(always)]
            fn word(self) -> u64 {
                self.0
            }
        }
    )*};
}

/// Defines a face's handle of any type of object, and the handles of each type, whose tags are the
/// numbers of the face's enumeration. `null` is the specification's name of the null handle.
#[macro_export]
macro_rules! typed_handles {
    (
        $(#[$any_doc:meta])* $any:ident of $kinds:ident, null $null:literal;
        $($(#[$doc:meta])* $name:ident: $kind:ident;)*
    ) => {
        $crate::handles! { $($(#[$doc])* $name = $crate::handle::Tag::new($kinds::$kind as u32);)* }

        $(#[$any_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $any(u64);

        impl $any {
            /// No object.
            #[doc(alias = $null)]
            pub const NULL: $any = $any(0);

            /// The handle with this word; every use checks it.
            pub const fn from_raw(word: u64) -> $any {
                $any(word)
            }

            /// The word.
            pub const fn as_raw(self) -> u64 {
                self.0
            }

            /// Whether it is the null handle.
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }

            /// The same word as a handle of one type, which it may not be: a table finds nothing
            /// then.
            #[inline(always)]
            pub(crate) fn typed<H: $crate::handle::ObjectHandle>(self) -> H {
                H::from_word(self.0)
            }

            /// The type that the word claims. `Ia::get_handle_type` also checks that such an object
            /// exists.
            pub(crate) const fn claimed_type(self) -> Option<$kinds> {
                match $crate::handle::tag(self.0) {
                    $(Some(number) if number == $kinds::$kind as u32 => Some($kinds::$kind),)*
                    _ => None,
                }
            }
        }

        impl ::core::fmt::Debug for $any {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self.claimed_type() {
                    None if self.is_null() => f.write_str("NULL"),
                    None => write!(f, "Handle({:#x})", self.0),
                    Some(kind) => write!(
                        f,
                        "{kind:?}({} of IA {}, generation {})",
                        $crate::handle::index(self.0),
                        $crate::handle::adapter(self.0),
                        $crate::handle::generation(self.0)
                    ),
                }
            }
        }

        $(
            impl From<$name> for $any {
                fn from(handle: $name) -> $any {
                    $any(handle.0)
                }
            }

            impl ::core::fmt::Debug for $name {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    $any(self.0).fmt(f)
                }
            }
        )*
    };
}

/// The handle of entry `index` of a type's table in an adapter.
pub const fn word(tag: Tag, adapter: u32, index: u32, generation: u32) -> u64 {
    (index & ((1 << INDEX_BITS) - 1)) as u64
        | ((tag.0 + 1) as u64) << TAG_SHIFT
        | ((adapter & ((1 << ADAPTER_BITS) - 1)) as u64) << ADAPTER_SHIFT
        | ((generation & GENERATION_MASK) as u64) << GENERATION_SHIFT
}

/// The index in a handle.
#[inline(always)]
pub const fn index(word: u64) -> usize {
    (word & ((1 << INDEX_BITS) - 1)) as usize
}

/// The number of the tag that a handle claims; `None` for a word that has none.
pub const fn tag(word: u64) -> Option<u32> {
    ((word >> TAG_SHIFT & ((1 << TAG_BITS) - 1)) as u32).checked_sub(1)
}

/// The tag that a handle claims; `None` for a word that has none.
pub const fn claimed(word: u64) -> Option<Tag> {
    match tag(word) {
        Some(number) => Some(Tag(number)),
        None => None,
    }
}

/// The adapter's number in a handle.
pub const fn adapter(word: u64) -> u32 {
    (word >> ADAPTER_SHIFT & ((1 << ADAPTER_BITS) - 1)) as u32
}

/// The generation in a handle.
pub const fn generation(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32
}

/// The generation that follows. 0 never occurs, nor does [`GENERATION_MASK`].
pub const fn next_generation(generation: u32) -> u32 {
    if generation >= GENERATION_MASK - 1 { 1 } else { generation + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_parts_apart() {
        let word = word(Tag::new(9), 0xfff, 0xff_ffff, GENERATION_MASK);
        assert_eq!(index(word), 0xff_ffff);
        assert_eq!(tag(word), Some(9));
        assert_eq!(adapter(word), 0xfff);
        assert_eq!(generation(word), GENERATION_MASK);
        assert_eq!(tag(0), None);
    }

    #[test]
    fn generations_come_round_without_the_reserved_ones() {
        assert_eq!(next_generation(0), 1);
        assert_eq!(next_generation(GENERATION_MASK - 2), GENERATION_MASK - 1);
        assert_eq!(next_generation(GENERATION_MASK - 1), 1);
        assert_eq!(next_generation(GENERATION_MASK), 1);
    }
}
