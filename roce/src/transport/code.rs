//! Five-bit codes in acknowledgements: credits and timers.

use core::time::Duration;

/// The code of an acknowledgement without credits (IBTA vol. 1 table 46).
pub const NO_CREDITS: u8 = 31;

/// The code of so many credits, rounded down (IBTA vol. 1 section 9.7.7.2, table 46): 0, 1, 2, 3,
/// 4, 6, 8, 12, 16, … 32,768.
pub const fn credit_code(receives: u32) -> u8 {
    match receives {
        0 | 1 => receives as u8,
        32_768.. => 30,
        _ => {
            let log = receives.ilog2();
            let half = receives >> (log - 1) & 1;
            (2 * log + half) as u8
        }
    }
}

/// The credits of a code; `None` if it says that credits are not counted.
pub const fn credits(code: u8) -> Option<u32> {
    match code & 31 {
        NO_CREDITS => None,
        0 => Some(0),
        1 => Some(1),
        code => Some((2 + (code as u32 & 1)) << (code as u32 / 2 - 1)),
    }
}

/// RNR NAK timer codes as times, in units of 10 us (IBTA vol. 1 section 9.7.5.2.8, table 45).
const RNR_TIMER: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// How long the requester waits after an RNR NAK with this timer code.
pub fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(10 * u64::from(RNR_TIMER[usize::from(code & 31)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_those_of_the_table() {
        let table = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
            3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, count) in table.into_iter().enumerate() {
            assert_eq!(credits(code as u8), Some(count));
            assert_eq!(usize::from(credit_code(count)), code);
            assert!(credit_code(count + 1) as usize == code || table[code + 1] == count + 1);
        }
        assert_eq!(credits(NO_CREDITS), None);
        assert_eq!(credit_code(u32::MAX), 30);
        // What a code promises is there.
        for receives in 0..70_000 {
            assert!(credits(credit_code(receives)).unwrap() <= receives);
        }
    }

    #[test]
    fn timers_are_those_of_the_table() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        assert_eq!(rnr_delay(33), rnr_delay(1));
    }
}
