//! Tests of what an etcd is shown: settings that belong together.

use super::*;

/// What an etcd is shown.
pub(super) const FLAGS: [&str; 5] = [
    "etcd-ca",
    "etcd-cert",
    "etcd-key",
    "etcd-user",
    "etcd-password-file",
];

#[test]
fn what_etcd_is_shown_comes_together() {
    let of_etcd = || samples().filter(|(sample, _)| FLAGS.contains(&sample.flag));
    let etcd = "--cluster c --etcd https://a:1";
    let flags: Vec<String> = of_etcd()
        .map(|(it, _)| format!("--{} {}", it.flag, it.good))
        .collect();
    let by_flag = config(&format!("{etcd} {}", flags.join(" ")), &[]);
    for (sample, _) in of_etcd() {
        let shown = format!("{by_flag:?}");
        assert!(shown.contains(sample.reads), "{}: {shown}", sample.flag);
    }
    let env: Vec<(&str, &str)> = of_etcd().map(|(it, row)| (row.env[0], it.good)).collect();
    assert_eq!(config(etcd, &env), by_flag);
    for (half, names) in [
        ("--etcd-cert /c.pem", "set --etcd-key"),
        ("--etcd-key /k.pem", "set --etcd-cert"),
        ("--etcd-user me", "set --etcd-password-file"),
        ("--etcd-password-file /p", "set --etcd-user"),
    ] {
        let wrong = load_line(&format!("{etcd} {half}"), &[]).unwrap_err();
        assert_eq!(wrong.exit(), Exit::Config, "{half}");
        assert!(wrong.to_string().contains(names), "{half}: {wrong}");
        let given = half.split(' ').next().unwrap();
        assert!(wrong.to_string().contains(given), "{half}: {wrong}");
    }
    let plain = load_line("--etcd http://a:1 --etcd-ca /ca.pem", &[]).unwrap_err();
    assert_eq!(plain.exit(), Exit::Config);
    assert!(plain.to_string().contains("--etcd-ca"), "{plain}");
}
