//! A backup of etcd, restored as docs/cluster.md says: what was in it is there, and fences go on above all that anybody was
//! told.

use crate::etcd::Etcds;
use crate::members::Members;

#[test]
fn what_was_in_the_backup_is_there_and_fences_go_on() {
    let Some(mut etcds) = Etcds::start() else {
        eprintln!("skipped: ETCD_FOLDER names no folder with etcd; see docs/cluster.md");
        return;
    };
    let urls = etcds.urls();
    let mut members = Members::start("backup", &urls);
    let leader = members.leader();
    let mut client = members.daemon(leader).connect();
    let before = client.lock("before", "0 600");
    assert_eq!(client.ask("incr hits 5"), "ok 5");
    assert_eq!(client.ask("kset name value"), "ok");
    assert_eq!(client.ask("rpush list first"), "ok 1");
    etcds.back_up();
    let after = client.lock("after", "0 600");
    assert_eq!(client.ask("incr hits 1"), "ok 6");
    assert_eq!(client.ask("rpush list second"), "ok 2");
    for index in 0..3 {
        members.daemon_mut(index).stop();
    }
    etcds.restore();
    for index in 0..3 {
        members.restart(index, &urls);
    }
    // Whoever leads, and whoever leads after that.
    let mut highest = after.token_fence();
    let mut leader = members.leader();
    for round in 0..2 {
        let mut client = members.daemon(leader).connect();
        assert_eq!(client.ask("get hits _"), "ok 5");
        assert_eq!(client.ask("kget name _"), "ok value");
        assert_eq!(client.ask("llen list _"), "ok 1");
        assert_eq!(client.ask("l before 0 1"), "timeout");
        let renew = format!("n before {} 600", before.token);
        assert!(client.ask(&renew).starts_with("ok 600"), "round {round}");
        // It was granted after the backup, and nobody remembers it.
        let lost = format!("n after {} 600", after.token);
        assert!(client.ask(&lost).starts_with("error"), "round {round}");
        let again = client.lock(&format!("after{round}"), "0 600");
        assert!(again.token_fence() > highest, "round {round}");
        highest = again.token_fence();
        for standby in members.others(leader) {
            members.await_all_of(leader, standby);
        }
        if round == 0 {
            members.daemon_mut(leader).stop();
            let next = members.next_leader(leader);
            members.restart(leader, &urls);
            leader = next;
        }
    }
}
