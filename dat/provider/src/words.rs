//! Numbers of C that `dat` has as enumerations.

use dat::{CloseFlags, ConnectFlags, PspFlags, Result, Subtype, VaType};

use crate::call::parameter;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $type:ident = [$($value:ident),*];)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(number: u32, argument: Subtype) -> Result<$type> {
            let all = [$($type::$value),*];
            all.into_iter().find(|value| value.as_raw() == number).ok_or(parameter(argument))
        }
    )*};
}

numbers! {
    /// How something is closed.
    close: CloseFlags = [Abrupt, Graceful];
    /// How an endpoint is connected.
    connect: ConnectFlags = [Default, MultipathRequested, MultipathRequired];
    /// Who makes the endpoints.
    point: PspFlags = [Consumer, Provider];
    /// How a region is addressed.
    va: VaType = [Va, Zb];
}
