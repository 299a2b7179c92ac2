//! Guests for the end-to-end tests: each file in `examples/` is a component.
//!
//! `hostile` does on request what a broken or malicious runner does, `probe` calls every function of
//! the contract once, `configured` has a form. The `manifest_*` ones are wrong in what they say of
//! themselves, and `unknown_import`, `newer_minor` and `wrong_world` in what they import or export.
//! The `bench_*` ones are what `cargo xtask bench` measures.
