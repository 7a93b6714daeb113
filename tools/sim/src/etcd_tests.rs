//! The model of etcd keeps to what etcd says about itself.

use latchd::base::Nanos;
use latchd::etcd::{Answer, Ask, Compare, Get, Op, Trouble};

use crate::etcd::Model;

fn put(key: &[u8], value: &[u8], lease: u64) -> Op {
    Op::Put {
        key: key.to_vec(),
        value: value.to_vec(),
        lease,
    }
}

fn txn(compare: Vec<Compare>, success: Vec<Op>) -> Ask {
    Ask::Txn {
        compare,
        success,
        failure: Vec::new(),
    }
}

#[test]
fn revisions_guards_and_history() {
    let mut etcd = Model::default();
    let first = txn(
        vec![Compare::Created(b"k".to_vec(), 0)],
        vec![put(b"k", b"1", 0)],
    );
    let succeeded = |answer: Result<Answer, Trouble>| match answer {
        Ok(Answer::Txn { succeeded, .. }) => succeeded,
        other => panic!("{other:?}"),
    };
    assert!(succeeded(etcd.apply(Nanos(0), &first)));
    assert!(!succeeded(etcd.apply(Nanos(0), &first)), "it is there");
    let at = etcd.value(b"k").unwrap();
    assert_eq!((at.created, at.modified), (2, 2));
    assert!(succeeded(
        etcd.apply(Nanos(0), &txn(Vec::new(), vec![put(b"k", b"2", 0)]))
    ));
    let now = etcd.value(b"k").unwrap();
    assert_eq!(
        (now.created, now.modified, &now.value[..]),
        (2, 3, &b"2"[..])
    );
    let old = Ask::Range(Get {
        revision: 2,
        ..Get::one(b"k")
    });
    match etcd.apply(Nanos(0), &old) {
        Ok(Answer::Range { got, .. }) => assert_eq!(got.kvs, [at]),
        other => panic!("{other:?}"),
    }
    assert_eq!(etcd.changed(3, b"a", b"z").unwrap().len(), 1);
    etcd.apply(Nanos(0), &Ask::Compact { revision: 3 }).unwrap();
    assert_eq!(etcd.apply(Nanos(0), &old), Err(Trouble::Compacted));
    assert_eq!(etcd.changed(2, b"a", b"z"), Err(Trouble::Compacted));
    assert_eq!(etcd.changed(3, b"a", b"z").unwrap().len(), 1);
    let again = etcd.apply(Nanos(0), &Ask::Compact { revision: 3 });
    assert_eq!(again, Err(Trouble::Compacted));
}

#[test]
fn what_is_forgotten_takes_no_room() {
    let mut etcd = Model::default();
    for _ in 0..10 {
        let both = vec![put(b"k", &[0; 100], 0), put(b"gone", &[0; 100], 0)];
        etcd.apply(Nanos(0), &txn(Vec::new(), both)).unwrap();
    }
    let delete = vec![Op::Delete(b"gone".to_vec(), Vec::new())];
    etcd.apply(Nanos(0), &txn(Vec::new(), delete)).unwrap();
    let bytes = |etcd: &mut Model| match etcd.apply(Nanos(0), &Ask::Status) {
        Ok(Answer::Status { bytes_in_use, .. }) => bytes_in_use,
        other => panic!("{other:?}"),
    };
    assert_eq!(bytes(&mut etcd), 2_000);
    let revision = etcd.revision();
    etcd.apply(Nanos(0), &Ask::Compact { revision }).unwrap();
    assert_eq!(bytes(&mut etcd), 100);
    assert_eq!(etcd.value(b"k").unwrap().created, 2);
    assert!(etcd.value(b"gone").is_none());
}

#[test]
fn a_lease_takes_its_keys_along_and_is_never_back() {
    let mut etcd = Model::default();
    let second = |s: u64| Nanos(s * 1_000_000_000);
    etcd.apply(second(0), &Ask::Grant { ttl_s: 5 }).unwrap();
    etcd.apply(second(0), &txn(Vec::new(), vec![put(b"l", b"", 1)]))
        .unwrap();
    let kept = etcd.apply(second(4), &Ask::KeepAlive { lease: 1 });
    assert_eq!(kept, Ok(Answer::KeptAlive { ttl_s: 5 }));
    etcd.expire(Nanos(second(9).0 - 1));
    assert!(etcd.value(b"l").is_some());
    etcd.expire(second(9));
    assert!(etcd.value(b"l").is_none());
    let kept = etcd.apply(second(9), &Ask::KeepAlive { lease: 1 });
    assert_eq!(kept, Ok(Answer::KeptAlive { ttl_s: 0 }));
    let late = etcd.apply(second(9), &txn(Vec::new(), vec![put(b"l", b"", 1)]));
    assert_eq!(late, Err(Trouble::NoLease));
}
