//! NICs as the kernel hands them over. What they do is for the layers above.

use alloc::boxed::Box;

use crate::{Machine, Outcome, Test, check};

/// All of them.
pub const TESTS: &[Test] = &[
    ("kernel.nic.registers", registers),
    ("kernel.nic.vectors", vectors),
    ("kernel.interrupts.none_unexpected", none_unexpected),
];

fn registers(m: &Machine) -> Outcome {
    for nic in &m.nics {
        let registers = nic.registers();
        check(registers.len() >= 4096, "the register file is too small")?;
        check(registers.atomic_u32s().is_ok(), "the register file is not aligned")?;
    }
    Ok(())
}

fn vectors(m: &Machine) -> Outcome {
    for nic in &m.nics {
        let count = nic.vectors();
        check(count > 0, "no vectors")?;
        check(!nic.set_vector(count, Some(Box::new(|| ()))), "a vector too many")?;
        check(!nic.set_vector(u16::MAX, None), "a vector too many")?;
        for vector in 0..count {
            check(nic.set_vector(vector, Some(Box::new(|| ()))), "a vector was refused")?;
            check(nic.set_vector(vector, Some(Box::new(|| ()))), "a second handler was refused")?;
            check(nic.set_vector(vector, None), "masking was refused")?;
            check(nic.set_vector(vector, None), "masking again was refused")?;
        }
    }
    Ok(())
}

fn none_unexpected(_: &Machine) -> Outcome {
    check(kernel::interrupts::unexpected() == 0, "an interrupt came that nobody wanted")
}
