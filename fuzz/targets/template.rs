#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| confrev_properties::template::check(bytes));
