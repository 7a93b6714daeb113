//! The files of the dashboard, and the description of the interface, as they are in the binary.
//!
//! Nothing is read when the daemon runs. Each file has a tag of its contents, made when it was compiled,
//! so that a browser that has it is not sent it again. `README.md` says what the files are for.

use std::sync::LazyLock;

/// What a browser may do with the page: run our scripts, use our styles, ask this server, and
/// nothing else.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// How many characters a tag has: two quotes, and a number of 64 bits in hex digits.
const TAG_BYTES: usize = 18;

/// One file.
#[derive(Debug)]
pub struct File {
    /// Its name, as it stands behind `/assets/`.
    pub name: &'static str,
    /// What it is.
    pub content_type: &'static str,
    /// What is in it.
    pub bytes: &'static [u8],
    tag: [u8; TAG_BYTES],
}

impl File {
    const fn new(name: &'static str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        Self {
            name,
            content_type,
            bytes,
            tag: tag_of(bytes),
        }
    }

    /// The strong entity tag of its contents, in its quotes.
    #[must_use]
    pub fn tag(&self) -> &str {
        str::from_utf8(&self.tag).unwrap_or_default() // digits are text
    }

    /// Whether a browser that sends this in `If-None-Match` has it already.
    #[must_use]
    pub fn is_known_by(&self, if_none_match: &[u8]) -> bool {
        let tags = if_none_match.split(|&byte| byte == b',');
        tags.map(|tag| tag.trim_ascii())
            .map(|tag| tag.strip_prefix(b"W/").unwrap_or(tag))
            .any(|tag| tag == self.tag || tag == b"*")
    }
}

/// The page itself, at `/`.
pub static PAGE: File = File::new(
    "index.html",
    "text/html; charset=utf-8",
    include_bytes!("index.html"),
);

/// The description of the interface, at `/v1/openapi.json`, of a daemon that asks for a token.
pub static OPENAPI: File = File::new("openapi.json", "application/json", DESCRIPTION.as_bytes());

/// The same without `security` and `securitySchemes`, each of which is one line.
static OPENAPI_WITHOUT_TOKEN: LazyLock<File> = LazyLock::new(|| {
    let lines = DESCRIPTION.split_inclusive('\n');
    let text: String = lines
        .filter(|line| !line.trim_start().starts_with("\"security"))
        .collect();
    File::new(OPENAPI.name, OPENAPI.content_type, text.leak().as_bytes())
});

const DESCRIPTION: &str = include_str!("../wire/http/openapi.json");

/// The description of the interface of a daemon that asks for a token, or does not.
pub fn openapi(asks_for_token: bool) -> &'static File {
    match asks_for_token {
        true => &OPENAPI,
        false => &OPENAPI_WITHOUT_TOKEN,
    }
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// Each file of the folder that the page is made of, under its name.
macro_rules! files {
    ($($name:literal $content_type:ident,)*) => {
        &[$(File::new($name, $content_type, include_bytes!($name)),)*]
    };
}

/// All that the page is made of, at `/assets/`.
pub static ASSETS: &[File] = files! {
    "app.js" SCRIPT,
    "bar.js" SCRIPT,
    "break.js" SCRIPT,
    "charts.js" SCRIPT,
    "cluster.js" SCRIPT,
    "connections.js" SCRIPT,
    "dom.js" SCRIPT,
    "format.js" SCRIPT,
    "graph.js" SCRIPT,
    "icon.svg" PICTURE,
    "lock.js" SCRIPT,
    "locks.js" SCRIPT,
    "overview.js" SCRIPT,
    "range.js" SCRIPT,
    "ranges.js" SCRIPT,
    "server.js" SCRIPT,
    "style.css" STYLE,
    "uplot.LICENSE.txt" TEXT,
    "uplot.min.css" STYLE,
    "uplot.min.js" SCRIPT,
    "waits.js" SCRIPT,
};

/// The file of this name that the page is made of.
#[must_use]
pub fn asset(name: &[u8]) -> Option<&'static File> {
    ASSETS.iter().find(|file| file.name.as_bytes() == name)
}

/// FNV-1a over the contents: enough to tell one version of a file from the next. Nobody but us
/// chooses what is in them.
const fn tag_of(bytes: &[u8]) -> [u8; TAG_BYTES] {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    let mut tag = [b'"'; TAG_BYTES];
    let mut digit = 1;
    while digit + 1 < TAG_BYTES {
        tag[digit] = b"0123456789abcdef"[(hash >> 60) as usize];
        hash <<= 4;
        digit += 1;
    }
    tag
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::{fs, str};

    use super::*;

    fn folder() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/dashboard"))
    }

    #[test]
    fn every_file_of_the_folder_is_served_as_it_is() {
        for entry in fs::read_dir(folder()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let file = match name {
                "mod.rs" | "README.md" => continue,
                "index.html" => Some(&PAGE),
                name => asset(name.as_bytes()),
            };
            let file = file.unwrap_or_else(|| panic!("{name} is not served"));
            assert_eq!(file.bytes, fs::read(&path).unwrap(), "{name}");
        }
        assert!(asset(b"index.html").is_none(), "the page has one address");
        assert!(asset(b"../mod.rs").is_none() && asset(b"").is_none());
    }

    #[test]
    fn a_file_is_what_its_name_says() {
        for file in ASSETS {
            let content_type = match file.name.rsplit('.').next().unwrap() {
                "js" => SCRIPT,
                "css" => STYLE,
                "svg" => PICTURE,
                "txt" => TEXT,
                other => panic!("what is .{other}?"),
            };
            assert_eq!(file.content_type, content_type, "{}", file.name);
        }
    }

    #[test]
    fn every_file_has_a_tag_of_its_own() {
        let all = || ASSETS.iter().chain([&PAGE, &OPENAPI]);
        let tags: BTreeSet<&str> = all().map(File::tag).collect();
        assert_eq!(tags.len(), all().count());
        for tag in tags {
            let digits = tag.strip_prefix('"').unwrap().strip_suffix('"').unwrap();
            assert!(digits.len() == 16 && digits.bytes().all(|it| it.is_ascii_hexdigit()));
        }
    }

    #[test]
    fn a_browser_that_has_a_file_is_recognised() {
        let tag = PAGE.tag();
        for known in [
            tag.to_owned(),
            format!("\"other\", {tag}"),
            format!("W/{tag}"),
            "*".to_owned(),
        ] {
            assert!(PAGE.is_known_by(known.as_bytes()), "{known}");
        }
        for unknown in ["", "\"other\"", &tag[1..], OPENAPI.tag()] {
            assert!(!PAGE.is_known_by(unknown.as_bytes()), "{unknown}");
        }
    }

    /// Scripts import one another by name, and the page names the rest.
    #[test]
    fn everything_that_the_page_asks_for_is_there() {
        let page = str::from_utf8(PAGE.bytes).unwrap();
        for link in page.split("\"/assets/").skip(1) {
            let name = link.split('"').next().unwrap();
            assert!(asset(name.as_bytes()).is_some(), "{name}");
        }
        for script in ASSETS.iter().filter(|file| file.name.ends_with(".js")) {
            let text = str::from_utf8(script.bytes).unwrap();
            for import in text.split("from \"./").skip(1) {
                let name = import.split('"').next().unwrap();
                assert!(asset(name.as_bytes()).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn the_readme_says_the_same_policy() {
        let readme = fs::read_to_string(folder().join("README.md")).unwrap();
        assert!(readme.contains(&format!("Content-Security-Policy: {POLICY}\n")));
    }
}
