//! The committed seeds of every fuzz target, replayed: `fuzz/seeds/TARGET/*`.

use std::path::Path;

#[test]
fn the_seeds_find_nothing() {
    // Cargo runs tests in the package's folder, wherever the checkout was moved.
    let all = Path::new("../seeds");
    for (name, body) in ferrovia_fuzz_bodies::TARGETS {
        body(&[]);
        let files =
            std::fs::read_dir(all.join(name)).unwrap_or_else(|error| panic!("seeds of {name}: {error}"));
        let mut paths: Vec<_> = files.map(|file| file.expect("a seed").path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "no seed of {name}");
        for path in paths {
            eprintln!("{}", path.display());
            body(&std::fs::read(&path).expect("a seed"));
        }
    }
}

/// Random inputs that are not from a fuzzer: enough to know that the targets work without a corpus.
#[test]
fn random_inputs_find_nothing() {
    let mut random = platform::random::Random::new(5);
    for (name, body) in ferrovia_fuzz_bodies::TARGETS {
        for round in 0..40 {
            let len = 1 + random.below(600);
            let mut input: Vec<u8> = (0..len).map(|_| random.word() as u8).collect();
            // By the first byte, the bodies with a consumer give it DAT's face, or VIPL's, or
            // endpoints over VIA.
            match round % 4 {
                1 => input.iter_mut().take(3).for_each(|byte| *byte |= 0xe0),
                2 => input.iter_mut().take(3).for_each(|byte| *byte = *byte & 0x1f | 0xc0),
                3 => input.iter_mut().take(3).for_each(|byte| *byte = *byte & 0xf | 0xa0),
                _ => {}
            }
            eprintln!("{name} {round}");
            body(&input);
        }
    }
}
