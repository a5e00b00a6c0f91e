//! Nothing: this package has benchmarks alone, see `benches/`.
