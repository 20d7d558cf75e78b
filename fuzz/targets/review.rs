#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| confrev_properties::review::check(bytes));
