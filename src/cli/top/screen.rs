//! A whole terminal to draw on, and the keyboard key by key. It is as it was before on every way out.
//!
//! The other screen, a hidden cursor and a keyboard without echo are put back when this is dropped,
//! and before the process stops or ends by a signal that can be heard. The terminal is set only
//! while this process is in its foreground. In the background the settings are those of the shell.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};

use crate::cli::exit::{Exit, Fail};

/// The terminal, while it is ours to draw on.
pub(crate) struct Screen {
    tty: File,
    /// The settings that the shell gave, while the terminal has ours.
    before: Option<Termios>,
}

/// What was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
}

const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

impl Screen {
    /// Opens the terminal and leaves it as it is.
    pub(crate) fn open() -> Result<Self, Fail> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty");
        let tty = tty.map_err(|error| no_terminal(&error))?;
        Ok(Self { tty, before: None })
    }

    /// Whether this process is in the foreground, so that it may set the terminal and read keys.
    pub(crate) fn is_ours(&self) -> Result<bool, Fail> {
        match tcgetpgrp(&self.tty) {
            Ok(foreground) => Ok(foreground == getpgrp()),
            // The foreground group is in another namespace of processes.
            Err(Errno::OPNOTSUPP) => Ok(true),
            Err(error) => Err(no_terminal(&error)),
        }
    }

    /// Begins, or begins again after a stop. To be called in the foreground only.
    pub(crate) fn enter(&mut self) -> Result<(), Fail> {
        let failed = |error: Errno| no_terminal(&error);
        let now = tcgetattr(&self.tty).map_err(failed)?;
        let by_key = LocalModes::ICANON | LocalModes::ECHO;
        let mut modes = now.clone();
        // After SIGSTOP these may be our own settings, and not those of the shell.
        if self.before.is_none() || now.local_modes.intersects(by_key) {
            self.before = Some(now);
        }
        // Ctrl-C and Ctrl-Z stay what they are.
        modes.local_modes.remove(by_key);
        modes.special_codes[SpecialCodeIndex::VMIN] = 0;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&self.tty, OptionalActions::Now, &modes).map_err(failed)?;
        let written = self.tty.write_all(ENTER);
        written.map_err(|error| Fail::output(&error))
    }

    /// Puts everything back. In the background the shell has put back the settings itself.
    pub(crate) fn leave(&mut self) {
        if let Some(before) = self.before.take() {
            let _ = self.tty.write_all(LEAVE);
            if self.is_ours().unwrap_or(false) {
                let _ = tcsetattr(&self.tty, OptionalActions::Drain, &before);
            }
        }
    }

    /// Columns and lines.
    pub(crate) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(&self.tty).map(|size| (size.ws_col, size.ws_row));
        match size {
            Ok((columns, lines)) if columns > 0 && lines > 0 => (columns.into(), lines.into()),
            _ => (80, 24),
        }
    }

    /// Shows these lines, as many as there is room for, in one write.
    pub(crate) fn draw(&mut self, lines: &[String]) -> Result<(), Fail> {
        let (_, room) = self.size();
        let mut text = String::from("\x1b[H");
        for (index, line) in lines.iter().take(room).enumerate() {
            if index > 0 {
                text.push_str("\r\n");
            }
            text.push_str(line);
            text.push_str("\x1b[0m\x1b[K");
        }
        text.push_str("\x1b[J");
        let written = self.tty.write_all(text.as_bytes());
        written.map_err(|error| Fail::output(&error))
    }

    /// What was typed since the last time. `None` if there is nobody to type any more.
    pub(crate) fn keys(&mut self) -> Option<Vec<Key>> {
        let mut bytes = [0; 256];
        match self.tty.read(&mut bytes) {
            Ok(count) => Some(read_keys(&bytes[..count])),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Some(Vec::new()),
            Err(_) => None,
        }
    }
}

fn no_terminal(why: &dyn std::fmt::Display) -> Fail {
    Fail::new(
        Exit::CANNOT_OPEN,
        format!("latch top needs a terminal: {why}. `latch stats` needs none"),
    )
}

/// Keys as terminals send them. Those with several bytes (arrows) mean nothing here.
fn read_keys(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let text = String::from_utf8_lossy(bytes);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' if matches!(chars.peek(), Some('[' | 'O')) => {
                chars.next();
                // Up to the letter or tilde that ends it.
                while chars.next().is_some_and(|it| !('@'..='~').contains(&it)) {}
            }
            '\x1b' => keys.push(Key::Escape),
            '\r' | '\n' => keys.push(Key::Enter),
            '\x7f' | '\x08' => keys.push(Key::Backspace),
            c if c.is_control() => {}
            c => keys.push(Key::Char(c)),
        }
    }
    keys
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

impl AsFd for Screen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tty.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_arrows_are_nothing() {
        assert_eq!(read_keys(b"q"), [Key::Char('q')]);
        assert_eq!(read_keys("/ö\r".as_bytes()).len(), 3);
        assert_eq!(read_keys(b"\x1b[A\x1b[3~q"), [Key::Char('q')]);
        assert_eq!(read_keys(b"\x1bOPx"), [Key::Char('x')]);
        assert_eq!(read_keys(b"\x1b"), [Key::Escape]);
        assert_eq!(read_keys(b"\x7f\x08"), [Key::Backspace, Key::Backspace]);
        assert_eq!(read_keys(b"\x00\x01"), []);
        assert_eq!(read_keys(b"\x1b["), []);
    }
}
