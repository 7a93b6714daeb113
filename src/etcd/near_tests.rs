//! Tests of `near.rs`: calls go where etcd is led, and somewhere in any case.

use super::super::scripted::{EMPTY, Member, NEW, answer, far, plain};
use super::super::{Ask, Endpoints, Etcd, Get};
use super::*;

const WITHIN: Duration = Duration::from_secs(20);

/// An answer in this term.
fn in_term(term: u64) -> String {
    plain(&format!(
        r#"{{"header":{{"revision":"7","raft_term":"{term}"}}}}"#
    ))
}

/// How a member is, which has this number, if that one leads.
fn status(own: u64, leader: u64) -> String {
    plain(&format!(
        r#"{{"header":{{"member_id":"{own}","revision":"7","raft_term":"2"}},"leader":"{leader}"}}"#
    ))
}

fn gateway(members: &[&Member]) -> Gateway {
    let urls: Vec<String> = members
        .iter()
        .map(|it| format!("http://{}", it.address))
        .collect();
    Gateway::new(&Endpoints::parse(&urls.join(",")).unwrap(), 0).near_leader()
}

fn ask(gateway: &mut Gateway) {
    let answer = gateway.call(&Ask::Range(Get::one(b"k")), WITHIN);
    assert!(answer.is_ok(), "{answer:?}");
}

#[test]
fn after_the_first_answer_it_goes_where_etcd_is_led() {
    let first = Member::start(&[&[&plain(NEW), &in_term(2), &status(11, 12)]]);
    let second = Member::start(&[&[&plain(NEW), &status(12, 12), &in_term(2), &in_term(2)]]);
    let mut gateway = gateway(&[&first, &second]);
    for _ in 0..3 {
        ask(&mut gateway);
    }
    assert_eq!(gateway.member(), second.address);
    assert_eq!(second.count("/v3/kv/range"), 2);
    assert_eq!(second.count("/v3/maintenance/status"), 1, "asked once");
}

/// The search has as long as the members are far, and a connection is not lost over it.
#[test]
fn far_leader_of_etcd_is_found() {
    let first = Member::start(&[&[&plain(NEW), &in_term(2), &status(11, 12)]]);
    let second = Member::start(&[&[&plain(NEW), &status(12, 12), &in_term(2)]]);
    let one_way = Duration::from_millis(150);
    let urls = [&first, &second].map(|it| format!("http://{}", far(&it.address, one_way)));
    let endpoints = Endpoints::parse(&urls.join(",")).unwrap();
    let mut gateway = Gateway::new(&endpoints, 0).near_leader();
    ask(&mut gateway);
    ask(&mut gateway);
    assert_eq!(format!("http://{}", gateway.member()), urls[1]);
    assert_eq!(first.count("/version"), 1, "its connection is not lost");
    assert_eq!(second.count("/v3/maintenance/status"), 1);
    assert_eq!(second.count("/v3/kv/range"), 1);
}

#[test]
fn in_another_term_it_is_looked_for_again() {
    let first = Member::start(&[&[
        &plain(NEW),
        &in_term(2),
        &status(11, 11),
        &in_term(3),
        &status(11, 12),
    ]]);
    let second = Member::start(&[&[&plain(NEW), &status(12, 12), &in_term(3)]]);
    let mut gateway = gateway(&[&first, &second]);
    ask(&mut gateway);
    ask(&mut gateway);
    assert_eq!(gateway.member(), first.address, "it leads");
    ask(&mut gateway);
    assert_eq!(gateway.member(), second.address, "now that one does");
}

#[test]
fn a_leader_that_is_out_of_reach_leaves_everything_as_it_is() {
    let first = Member::start(&[&[
        &plain(NEW),
        &in_term(2),
        &status(11, 12),
        &in_term(2),
        &in_term(2),
    ]]);
    let gone = Member::start(&[]);
    let mut gateway = gateway(&[&first, &gone]);
    for _ in 0..3 {
        ask(&mut gateway);
    }
    assert_eq!(gateway.member(), first.address);
    assert_eq!(
        first.count("/v3/maintenance/status"),
        1,
        "not with every call"
    );
}

#[test]
fn whoever_may_not_ask_reads_it_in_the_figures() {
    let forbidden = answer(403, r#"{"error":"etcdserver: permission denied","code":7}"#);
    let figures = |leads: u64| plain(&format!("# HELP x\netcd_server_is_leader {leads}\n"));
    let first = Member::start(&[&[&plain(NEW), &in_term(2), &forbidden, &figures(0)]]);
    let second = Member::start(&[&[&plain(NEW), &forbidden, &figures(1), &in_term(2)]]);
    let mut gateway = gateway(&[&first, &second]);
    ask(&mut gateway);
    ask(&mut gateway);
    assert_eq!(gateway.member(), second.address);
}

#[test]
fn an_etcd_that_names_no_term_is_asked_nothing_besides() {
    let first = Member::start(&[&[&plain(NEW), &plain(EMPTY), &plain(EMPTY)]]);
    let second = Member::start(&[]);
    let mut gateway = gateway(&[&first, &second]);
    ask(&mut gateway);
    ask(&mut gateway);
    assert_eq!(first.count("/v3/maintenance/status"), 0);
}
