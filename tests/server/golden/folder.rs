//! A folder of golden files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What is made now, by the name of its file.
pub(crate) struct Folder {
    name: &'static str,
    files: BTreeMap<String, String>,
}

impl Folder {
    pub(crate) fn new(name: &'static str) -> Self {
        let files = BTreeMap::new();
        Self { name, files }
    }

    pub(crate) fn add(&mut self, name: &str, text: String) {
        let before = self.files.insert(name.to_owned(), text);
        assert_eq!(before, None, "two files are called {name}");
    }

    fn path(&self) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        root.join("tests/golden").join(self.name)
    }

    fn golden(&self) -> BTreeMap<String, String> {
        let entries = fs::read_dir(self.path()).into_iter().flatten();
        let files = entries.map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        });
        files.collect()
    }

    /// Compares what is made with what is in the folder, or writes the folder anew.
    pub(crate) fn check(self) {
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let path = self.path();
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            for (name, text) in &self.files {
                fs::write(path.join(name), text).unwrap();
            }
            return;
        }
        let golden = self.golden();
        let names: Vec<&String> = golden.keys().collect();
        let made: Vec<&String> = self.files.keys().collect();
        assert_eq!(names, made, "files of tests/golden/{}", self.name);
        let mut wrong = Vec::new();
        for (name, made) in &self.files {
            if let Some(difference) = difference(&golden[name], made) {
                wrong.push(format!("tests/golden/{}/{name}:{difference}", self.name));
            }
        }
        assert!(
            wrong.is_empty(),
            "\n{}\nif that is meant: UPDATE_GOLDEN=1 cargo test --test golden",
            wrong.join("\n")
        );
    }
}

/// The first line in which they differ.
fn difference(golden: &str, made: &str) -> Option<String> {
    if golden == made {
        return None;
    }
    let [mut golden, mut made] = [golden, made].map(|it| it.split('\n'));
    for number in 1.. {
        let (was, is) = (golden.next(), made.next());
        if was != is {
            return Some(format!("{number}:\n  was {was:?}\n  is  {is:?}"));
        }
    }
    None
}

#[test]
fn first_differing_line_is_reported() {
    assert_eq!(difference("a\nb\n", "a\nb\n"), None);
    let told = difference("a\nb\n", "a\nc\n").unwrap();
    assert_eq!(told, "2:\n  was Some(\"b\")\n  is  Some(\"c\")");
    let told = difference("a\n", "a").unwrap();
    assert_eq!(told, "2:\n  was Some(\"\")\n  is  None");
}
