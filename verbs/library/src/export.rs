//! How a function gets a name with a version.
//!
//! An exported function of Rust has a name without a version, and programs that ask for one would
//! get a warning of the loader, or none at all. So each name is a jump of its own to the function.

/// Exports functions of C: the name, its version, the function.
macro_rules! export {
    ($($name:literal, $version:literal, $function:path;)*) => {$(
        core::arch::global_asm!(
            concat!(
                ".globl ", $name, "\n",
                ".type ", $name, ",@function\n",
                $name, ":\n jmp {function}\n",
                ".size ", $name, ", .-", $name, "\n",
                ".symver ", $name, ", ", $name, "@@", $version, "\n",
            ),
            function = sym $function,
        );
    )*};
}
