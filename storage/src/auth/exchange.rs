//! Powers in the groups of RFC 7919, in steps of one multiplication, so that whoever computes one
//! can do something else in between.
//!
//! The number of steps, the time of each, and the memory that it touches do not depend on the
//! exponent.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, CtAssign, CtEq, Odd};
use nvme::auth::{Group, LONGEST_VALUE};
use zeroize::{Zeroize, Zeroizing};

use super::random::Random;

/// Bits of the exponent that are done at once.
const WINDOW: u32 = 4;

/// What is computed once for a group.
struct Parameters {
    modulus: BoxedMontyParams,
    /// The prime less 1.
    last: BoxedUint,
}

/// The groups that are used so far.
#[derive(Default)]
pub(crate) struct Groups([Option<Parameters>; Group::ALL.len()]);

impl Groups {
    /// Computes what a group needs, unless that is done. It takes as long as some steps.
    fn parameters(&mut self, group: Group) -> Option<&Parameters> {
        let slot = &mut self.0[group as usize];
        if slot.is_none() {
            let mut room = [0; LONGEST_VALUE];
            let prime = BoxedUint::from_be_slice(group.prime(&mut room), bits(group)).ok()?;
            let modulus: Option<Odd<BoxedUint>> = Odd::new(prime.clone()).into();
            let last = prime.wrapping_sub(BoxedUint::one_with_precision(bits(group)));
            *slot = Some(Parameters { modulus: BoxedMontyParams::new_vartime(modulus?), last });
        }
        slot.as_ref()
    }

    /// Begins to compute the generator, 2, to the power of an exponent.
    pub(crate) fn begin(&mut self, group: Group, exponent: Exponent) -> Option<Power> {
        let two = BoxedUint::from_be_slice(&[2], bits(group)).ok()?;
        Some(Power::new(two, exponent, self.parameters(group)?))
    }

    /// Begins to compute a peer's value to the power of an exponent. `None` if the value is 0, 1,
    /// the prime less 1, or more: then the result would be no secret.
    pub(crate) fn continued(&mut self, group: Group, value: &[u8], exponent: Exponent) -> Option<Power> {
        let parameters = self.parameters(group)?;
        let value = BoxedUint::from_be_slice(value, bits(group)).ok()?;
        let is_secret = value > BoxedUint::one_with_precision(bits(group)) && value < parameters.last;
        is_secret.then(|| Power::new(value, exponent, parameters))
    }
}

fn bits(group: Group) -> u32 {
    8 * group.len() as u32
}

/// A secret exponent. It is wiped when it is dropped.
#[derive(Clone)]
pub(crate) struct Exponent(Zeroizing<Vec<u8>>);

impl Exponent {
    /// A random one for a group; `None` if there are no random numbers.
    pub(crate) fn new(group: Group, random: &Random) -> Option<Exponent> {
        let mut bytes = Zeroizing::new(alloc::vec![0; group.exponent_len()]);
        random.fill(&mut bytes).then_some(Exponent(bytes))
    }
}

/// A number that is wiped when it is dropped.
struct Wiped(BoxedUint);

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// A power that is being computed.
pub(crate) struct Power {
    parameters: BoxedMontyParams,
    /// The first powers of the base, in Montgomery form.
    powers: Vec<Wiped>,
    /// The power so far, in the same form.
    so_far: Wiped,
    exponent: Exponent,
    /// The next digit of the exponent, and how many squarings are left before it.
    digit: usize,
    squarings: u32,
}

impl Power {
    fn new(base: BoxedUint, exponent: Exponent, parameters: &Parameters) -> Power {
        let one = BoxedMontyForm::one(&parameters.modulus).to_montgomery();
        let base = BoxedMontyForm::new(base, &parameters.modulus).to_montgomery();
        let mut powers = Vec::with_capacity(1 << WINDOW);
        powers.push(Wiped(one.clone()));
        powers.push(Wiped(base));
        let parameters = parameters.modulus.clone();
        Power { parameters, powers, so_far: Wiped(one), exponent, digit: 0, squarings: 0 }
    }

    /// Does one multiplication. The result, when it is there, has as many bytes as the group's
    /// values.
    pub(crate) fn step(&mut self) -> Option<Zeroizing<Box<[u8]>>> {
        let form = |number: &Wiped| BoxedMontyForm::from_montgomery(number.0.clone(), &self.parameters);
        if self.powers.len() < 1 << WINDOW {
            let mut last = form(&self.powers[self.powers.len() - 1]);
            let mut base = form(&self.powers[1]);
            let next = last.mul(&base).to_montgomery();
            last.zeroize();
            base.zeroize();
            self.powers.push(Wiped(next));
            return None;
        }
        if self.squarings > 0 {
            self.squarings -= 1;
            let mut old = form(&self.so_far);
            self.so_far = Wiped(old.square().to_montgomery());
            old.zeroize();
            return None;
        }
        let byte = self.exponent.0.get(self.digit / 2);
        let Some(byte) = byte else {
            let mut result = form(&self.so_far);
            let number = Wiped(result.retrieve());
            result.zeroize();
            return Some(Zeroizing::new(number.0.to_be_bytes()));
        };
        let digit = if self.digit.is_multiple_of(2) { byte >> WINDOW } else { byte & 0xf };
        let mut factor = self.powers[0].0.clone();
        for (power, number) in self.powers.iter().zip(0u8..) {
            factor.ct_assign(&power.0, number.ct_eq(&digit));
        }
        let mut factor = form(&Wiped(factor));
        let mut old = form(&self.so_far);
        self.so_far = Wiped(old.mul(&factor).to_montgomery());
        old.zeroize();
        factor.zeroize();
        self.digit += 1;
        // None follow the last digit.
        self.squarings = if self.digit < 2 * self.exponent.0.len() { WINDOW } else { 0 };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exponent(group: Group, byte: u8) -> Exponent {
        Exponent(Zeroizing::new(alloc::vec![byte; group.exponent_len()]))
    }

    fn compute(mut power: Power) -> (Box<[u8]>, usize) {
        let mut steps = 0;
        loop {
            steps += 1;
            if let Some(result) = power.step() {
                return (result.to_vec().into(), steps);
            }
        }
    }

    /// The digests of what Python's pow computes.
    #[test]
    fn powers_are_those_that_python_computes() {
        for (group, digest) in POWERS {
            let mut groups = Groups::default();
            let (value, steps) = compute(groups.begin(group, exponent(group, 0xa5)).expect("a power"));
            assert_eq!(value.len(), group.len());
            let shared = groups.continued(group, &value, exponent(group, 0x3c)).expect("a value");
            let (shared, other) = compute(shared);
            assert_eq!(steps, other, "the same time for any exponent");
            let found: alloc::string::String = nvme::auth::Hash::Sha256
                .digest(&shared)
                .bytes()
                .iter()
                .map(|b| alloc::format!("{b:02x}"))
                .collect();
            assert_eq!(found, digest, "{group}");
        }
    }

    const POWERS: [(Group, &str); 5] = [
        (Group::Ffdhe2048, "836c09c1f6005482a5b0427383626a9cff17e856a46f28979e4c591b8609f243"),
        (Group::Ffdhe3072, "7ed72eb935d25133a81709ac4d69d7be037f76c6e3fa16d7d762c3c0f3e5c676"),
        (Group::Ffdhe4096, "49f1567f40bb03e1e375facf079253fc31ee4110af1640e39c693b11d5f85652"),
        (Group::Ffdhe6144, "9b6befc10d0b832ba32413a6b6806238c763063f14465e1a97e6e73b789bb83b"),
        (Group::Ffdhe8192, "f1654b6ff6e172e3d133a6460d5e2bdb5807a47f3cc9b011591602b541c534b2"),
    ];

    #[test]
    fn both_sides_compute_the_same() {
        let group = Group::Ffdhe2048;
        let mut groups = Groups::default();
        let [a, b] = [0x17, 0xf1].map(|byte| exponent(group, byte));
        let (of_a, _) = compute(groups.begin(group, a.clone()).expect("a power"));
        let (of_b, _) = compute(groups.begin(group, b.clone()).expect("a power"));
        let (by_a, _) = compute(groups.continued(group, &of_b, a).expect("a value"));
        let (by_b, _) = compute(groups.continued(group, &of_a, b).expect("a value"));
        assert_eq!(by_a, by_b);
        assert_ne!(by_a, of_a);
    }

    #[test]
    fn values_that_make_no_secret_are_refused() {
        let group = Group::Ffdhe2048;
        let mut groups = Groups::default();
        let mut is_taken = |value: &[u8]| groups.continued(group, value, exponent(group, 1)).is_some();
        let mut room = [0; LONGEST_VALUE];
        let prime = group.prime(&mut room).to_vec();
        let mut small = alloc::vec![0; prime.len()];
        for (last, taken) in [(0, false), (1, false), (2, true)] {
            small[255] = last;
            assert_eq!(is_taken(&small), taken, "{last}");
        }
        for (less, taken) in [(0, false), (1, false), (2, true)] {
            let mut large = prime.clone();
            large[255] -= less;
            assert_eq!(is_taken(&large), taken, "the prime less {less}");
        }
        assert!(!is_taken(&[0xff; 256]) && !is_taken(&[2; 257]));
    }

    /// Prints what a step costs: `cargo test -p ferrovia-storage --release cost -- --ignored`.
    #[test]
    #[ignore = "prints times"]
    fn cost() {
        for group in Group::ALL.into_iter().skip(1) {
            let mut groups = Groups::default();
            let begun = std::time::Instant::now();
            groups.parameters(group);
            let prepared = begun.elapsed();
            let begun = std::time::Instant::now();
            let (_, steps) = compute(groups.begin(group, exponent(group, 0xa5)).expect("a power"));
            let time = begun.elapsed();
            std::println!(
                "{group}: {prepared:?} once, {steps} steps in {time:?}, {:?} each",
                time / steps as u32
            );
        }
    }
}
