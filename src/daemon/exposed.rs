//! Warnings about secrets and data that other users of the machine can reach, and short tokens.
//!
//! A start logs them and serves all the same; `--check-config` writes them to standard error.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;

use crate::config::{Config, Secret};

/// A shorter token is warned of.
const TOKEN_CHARS_MIN: usize = 16;

/// The permission of other users to read.
const OTHERS_READ: u32 = 0o004;

/// The permission of the group and of other users to write.
const OTHERS_WRITE: u32 = 0o022;

/// The warnings for these settings, one line each.
///
/// Root may check the settings of a daemon that runs as another user, so only a start of root warns
/// of files that belong to another user.
pub(super) fn warnings(config: &Config, is_start: bool) -> Vec<String> {
    let us = geteuid().as_raw();
    let is_other = |owner| owner != us && (is_start || us != 0);
    let cluster = &config.cluster;
    let config_file = config.config_file.as_ref();
    let secrets = [
        (
            "--config",
            config_file.filter(|_| config.config_file_has_token),
        ),
        ("--auth-token-file", config.auth_token_file.as_ref()),
        ("--tls-key", config.tls_key.as_ref()),
        ("--etcd-password-file", cluster.etcd_password_file.as_ref()),
        ("--etcd-key", cluster.etcd_key.as_ref()),
    ];
    let secrets = secrets.iter().filter_map(|(flag, path)| {
        exposure(
            flag,
            path.as_ref()?,
            |owner| owner != 0 && is_other(owner),
            "chown",
        )
    });
    let data_dir = config.data_dir.as_ref().filter(|path| path.is_dir());
    let data_dir = data_dir.and_then(|path| exposure("--data-dir", path, is_other, "chown -R"));
    let tokens = config.auth_token.as_ref().and_then(short_tokens);
    secrets.chain(data_dir).chain(tokens).collect()
}

/// The access that other users have to a file, and the command that ends it.
/// `None` also if the file cannot be examined: the error comes when it is read.
fn exposure(
    flag: &str,
    path: &Path,
    is_foreign: impl Fn(u32) -> bool,
    chown: &str,
) -> Option<String> {
    let us = geteuid().as_raw();
    let file = fs::metadata(path).ok()?;
    let (owner, mode) = (file.uid(), file.mode() & 0o7777);
    let is_foreign = is_foreign(owner);
    let has_bad_mode = mode & (OTHERS_READ | OTHERS_WRITE) != 0;
    let others = |may: u32| is_foreign || mode & may != 0;
    let others_can = match (others(OTHERS_READ), others(OTHERS_WRITE)) {
        (true, true) => "read and change",
        (true, false) => "read",
        (false, true) => "change",
        (false, false) => return None,
    };
    let path = format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    // A file of root that only other users can read would be out of the daemon's reach.
    let is_ours = owner == us || us == 0;
    let chown =
        (is_foreign || !is_ours && mode & OTHERS_READ != 0).then(|| format!("{chown} {us} {path}"));
    let chmod = has_bad_mode.then(|| format!("chmod g-w,o-rwx {path}"));
    let command: Vec<String> = chown.into_iter().chain(chmod).collect();
    Some(format!(
        "{flag} {path} belongs to user {owner} and has mode {mode:04o}: \
         other users can {others_can} it; run: {}",
        command.join(" && ")
    ))
}

fn short_tokens(tokens: &Secret) -> Option<String> {
    let chars = tokens.access().token_chars();
    let (all, short) = chars.fold((0, 0), |(all, short), chars| {
        (all + 1, short + u32::from(chars < TOKEN_CHARS_MIN))
    });
    let which = match (all, short) {
        (_, 0) => return None,
        (1, _) => "the token is".to_owned(),
        _ => format!("{short} of {all} tokens are"),
    };
    Some(format!(
        "{which} shorter than {TOKEN_CHARS_MIN} characters; make one with: openssl rand -hex 16"
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn every_file_that_holds_a_secret_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        let mut config = Config::default();
        let file = Some(path.clone());
        config.config_file.clone_from(&file);
        config.config_file_has_token = true;
        config.auth_token_file.clone_from(&file);
        config.tls_key.clone_from(&file);
        config.cluster.etcd_password_file.clone_from(&file);
        config.cluster.etcd_key.clone_from(&file);
        let flags = |mode, config: &Config| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let flag = |text: String| text.split_once(' ').unwrap().0.to_owned();
            let flags = warnings(config, true).into_iter().map(flag);
            flags.collect::<Vec<_>>()
        };
        let all = [
            "--config",
            "--auth-token-file",
            "--tls-key",
            "--etcd-password-file",
            "--etcd-key",
        ];
        assert_eq!(flags(0o644, &config), all);
        assert!(flags(0o640, &config).is_empty());
        config.config_file_has_token = false;
        assert_eq!(flags(0o644, &config), all[1..]);
        fs::remove_file(&path).unwrap();
        assert!(warnings(&config, true).is_empty(), "reading it says why");
    }
}
