//! The manual page, latchd(8), in the language of roff, made from the table of options.
//!
//! A package installs what `latchd --man` prints; so it never says anything else than `--help` does.

use super::Exit;
use super::command::{ABOUT, EXAMPLES, RULES, default};
use super::row::Takes;
use super::table::ROWS;

const DESCRIPTION: &str = "\
latchd gives programs on many machines what flock(1) gives on one. A lock has a queue, a lease that \
ends by itself and a fencing number, and it passes to the next in the queue the moment its holder \
lets go, dies or is too late. Clients speak lines over TCP and unix sockets, or HTTP. Without \
options it listens on 127.0.0.1:6388, and serves HTTP and a dashboard on 127.0.0.1:6389.";

const FILE: &str = "\
The file of --config is TOML. Its keys are the names of the flags without the dashes in front; \
switches are true or false, numbers stand as they are or, with a unit, in quotes, everything else \
in quotes. An option that may be given several times takes a list. A key that is not known, or a \
value that cannot be used, ends the start with 78, and file and line are named. --check-config tells \
whether there are any.";

const FILE_EXAMPLE: &str = "\
host = \"0.0.0.0\"
auth-token-file = \"/etc/latchd/token\"
data-dir = \"/var/lib/latchd\"
default-lease-ttl = \"20s\"
http-host-name = [\"locks.example.org\", \"locks\"]
max-connections = 20_000
access-log = true";

const SIGNALS: &[(&str, &str)] = &[
    (
        "SIGTERM, SIGINT",
        "Stop: refuse waits and new locks, wait for holders for --shutdown-timeout at most, then \
         exit. With --data-dir locks are on disk and are not waited for. The same again stops at \
         once.",
    ),
    (
        "SIGHUP",
        "Open the log file again, and read again what can change while the daemon runs. Nobody \
         loses a lock or a connection.",
    ),
];

/// The whole page.
pub(super) fn page() -> String {
    let mut page = format!(
        ".TH LATCHD 8 \"\" \"latchd {}\" \"System Administration\"\n",
        env!("CARGO_PKG_VERSION")
    );
    let out = &mut page;
    section(out, "NAME");
    paragraph(
        out,
        "latchd - a lock daemon: named locks with leases and fences",
    );
    section(out, "SYNOPSIS");
    out.push_str(".B latchd\n[\\fIOPTIONS\\fR]\n");
    section(out, "DESCRIPTION");
    paragraph(out, ABOUT);
    out.push_str(".PP\n");
    paragraph(out, DESCRIPTION);
    section(out, "OPTIONS");
    paragraph(out, RULES);
    let mut group = "";
    for row in ROWS {
        if row.group != group {
            group = row.group;
            out.push_str(&format!(".SS {}\n", escaped(group)));
        }
        let value = match row.takes {
            Takes::Switch { .. } => String::new(),
            Takes::Number | Takes::Word | Takes::Words => {
                format!(" \\fI{}\\fR", escaped(row.value))
            }
        };
        let flag = escaped(&format!("--{}", row.flag));
        out.push_str(&format!(".TP\n\\fB{flag}\\fR{value}\n"));
        paragraph(out, row.help);
        let env = row.env.join(", ");
        paragraph(
            out,
            &format!("Default: {}. Environment: {env}.", default(row)),
        );
    }
    out.push_str(".SS Instead of serving\n");
    for (flag, help) in [
        (
            "--inspect PATH",
            "Show what is in a data directory; with --json for programs.",
        ),
        ("--repair", "Mend the directory of --data-dir, and exit."),
        (
            "--check-config",
            "Say whether a daemon could start with these settings, and exit.",
        ),
        ("--man", "Print this page, and exit."),
        ("--help, --version", "Print that, and exit."),
    ] {
        out.push_str(&format!(".TP\n\\fB{}\\fR\n", escaped(flag)));
        paragraph(out, help);
    }
    section(out, "CONFIGURATION FILE");
    paragraph(out, FILE);
    example(out, FILE_EXAMPLE);
    section(out, "SIGNALS");
    for (signal, meaning) in SIGNALS {
        out.push_str(&format!(".TP\n\\fB{}\\fR\n", escaped(signal)));
        paragraph(out, meaning);
    }
    section(out, "EXIT STATUS");
    for exit in Exit::ALL {
        out.push_str(&format!(".TP\n{}\n", exit.code()));
        paragraph(out, &exit.meaning().replace('\n', " "));
    }
    section(out, "EXAMPLES");
    example(out, EXAMPLES);
    page
}

fn section(out: &mut String, title: &str) {
    out.push_str(&format!(".SH {title}\n"));
}

fn paragraph(out: &mut String, text: &str) {
    for line in text.lines() {
        out.push_str(&format!("{}\n", escaped(line)));
    }
}

/// Lines that stay as they are.
fn example(out: &mut String, text: &str) {
    out.push_str(".PP\n.nf\n");
    paragraph(out, text);
    out.push_str(".fi\n");
}

/// Text that roff prints as it is: a backslash begins an escape, a dash would become a hyphen, and a
/// point or an apostrophe at the beginning of a line a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) {
        return format!("\\&{text}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_option_with_its_default_and_its_variables() {
        let page = page();
        for row in ROWS {
            let flag = escaped(&format!("--{}", row.flag));
            assert!(page.contains(&format!("\\fB{flag}\\fR")), "{flag}");
            assert!(page.contains(&escaped(row.help)), "{flag}");
            for name in row.env {
                assert!(page.contains(&escaped(name)), "{name}");
            }
        }
        for exit in Exit::ALL {
            assert!(page.contains(&format!("\n.TP\n{}\n", exit.code())));
        }
    }

    #[test]
    fn no_text_is_taken_for_a_request() {
        for (text, written) in [
            (".so x", "\\&.so x"),
            ("'x'", "\\&'x'"),
            ("a\\b --c", "a\\eb \\-\\-c"),
        ] {
            assert_eq!(escaped(text), written);
        }
        let known = [".TH", ".SH", ".SS", ".TP", ".PP", ".nf", ".fi", ".B"];
        for line in page().lines().filter(|line| line.starts_with('.')) {
            let request = line.split(' ').next().unwrap_or_default();
            assert!(known.contains(&request), "{line}");
        }
    }

    /// The example in the page is a file that can be used.
    #[test]
    fn the_example_of_a_file_names_options() {
        for line in FILE_EXAMPLE.lines() {
            let (key, _) = line.split_once(" = ").expect(line);
            assert!(ROWS.iter().any(|row| row.flag == key), "{key}");
        }
    }
}
