//! Which tests there are: the functions that `cargo test` runs, by their names in the source.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::source::rust_files;

/// The names of all tests of the library, of the tools and of the integration tests.
pub(crate) fn all_tests(root: &Path) -> BTreeSet<String> {
    let files = ["src", "tests", "tools"].map(|dir| rust_files(&root.join(dir)));
    let texts = files
        .concat()
        .into_iter()
        .map(|file| fs::read_to_string(file).unwrap());
    texts
        .flat_map(|text| tests_in(&text).map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// The names of the functions that stand under `#[test]`, also within a macro, and are not ignored.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let (mut is_test, mut is_ignored) = (false, false);
    text.lines().map(str::trim).filter_map(move |line| {
        if line == "#[test]" {
            (is_test, is_ignored) = (true, false);
        }
        is_ignored |= line.starts_with("#[ignore");
        let (name, _) = line.strip_prefix("fn ")?.split_once('(')?;
        let is_run = std::mem::take(&mut is_test) && !is_ignored;
        is_run.then_some(name)
    })
}

#[test]
fn only_functions_that_are_run_as_tests_count() {
    let source = "
        #[test]
        // why
        #[should_panic(expected = \"x\")]
        fn is_run() {}

        fn helps() {}

        proptest! {
            #[test]
            fn is_run_often(n in 0..9) {}
        }

        #[test]
        #[ignore = \"slow\"]
        fn is_not_run() {}
    ";
    let names: Vec<&str> = tests_in(source).collect();
    assert_eq!(names, ["is_run", "is_run_often"]);
}
