//! placeholder
use gungraun::{library_benchmark, library_benchmark_group, main};
#[library_benchmark]
#[bench::one(3)]
fn f(x: u64) -> u64 { std::hint::black_box(x) + 1 }
library_benchmark_group!(name = g, benchmarks = [f]);
main!(library_benchmark_groups = g);
