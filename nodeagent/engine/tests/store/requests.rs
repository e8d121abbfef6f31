//! Append, read, seal, delete, scrub.

use crate::world::{MIB, append, append_request, delete, fresh, info, open, read, run, seal, shape, unit};
use api_types::chunk::{ChunkStore, Error, Request, Response, ScrubReport, Sealed};
use api_types::{ChunkId, Epoch};
use futures::future::join_all;

#[test]
fn what_is_appended_is_read_back_and_survives_reopening() {
    run(async {
        let (_, device, engine) = fresh(64).await;
        let shape = shape(5);
        let first = unit(shape, 0, 4096, 1);
        let second = unit(shape, 8192, 9000, 2);
        assert_eq!(append(&engine, shape, 0, &first).await, Ok(8192));
        assert_eq!(append(&engine, shape, 8192, &second).await, Ok(8192 + 12288));
        assert_eq!(read(&engine, 5, 0, 8192).await.unwrap(), first);
        assert_eq!(read(&engine, 5, 8200, 77).await.unwrap(), second.slice(8..85));
        drop(engine);
        let engine = open(&device).await;
        assert_eq!(read(&engine, 5, 8192, 12288).await.unwrap(), second);
        assert!(info(&engine, 5).unwrap().sealed);
        assert_eq!(append(&engine, shape, 20480, &unit(shape, 20480, 1, 3)).await, Err(Error::Sealed { length: 20480 }));
        assert_eq!(engine.mount_report().closed, 1);
    });
}

#[test]
fn a_chunk_grows_over_many_runs_with_several_appends_under_way() {
    run(async {
        let (_, device, engine) = fresh(64).await;
        let shape = shape(5);
        let mut units = Vec::new();
        let mut at = 0;
        while at + 500_000 < 16 * MIB {
            let unit = unit(shape, at, 300_000 + at % 70_000, 7);
            units.push((at, unit.clone()));
            at += unit.len() as u32;
        }
        let calls: Vec<_> = units.iter().map(|(at, unit)| engine.serve(append_request(shape, *at, unit.clone()))).collect();
        for answer in join_all(calls).await {
            assert!(matches!(answer, Ok(Response::Append(_))), "{answer:?}");
        }
        for engine in [engine.clone(), {
            drop(engine);
            open(&device).await
        }] {
            for (at, unit) in &units {
                assert_eq!(read(&engine, 5, *at, unit.len() as u32).await.as_ref(), Ok(unit));
            }
        }
    });
}

#[test]
fn appends_come_in_order_or_are_told_what_is_wrong() {
    run(async {
        let (_, _, engine) = fresh(64).await;
        let shape = shape(5);
        let first = unit(shape, 0, 4096, 1);
        let mut without_create = append_request(shape, 0, first.clone());
        if let Request::Append(append) = &mut without_create {
            append.create = false;
        }
        assert_eq!(engine.serve(without_create).await, Err(Error::Unknown));
        assert_eq!(append(&engine, shape, 0, &first).await, Ok(8192));
        assert_eq!(append(&engine, shape, 0, &first).await, Ok(8192), "the same again");
        assert_eq!(append(&engine, shape, 0, &unit(shape, 0, 4096, 2)).await, Err(Error::Conflict));
        let far = unit(shape, 16384, 4096, 1);
        assert_eq!(append(&engine, shape, 16384, &far).await, Err(Error::WrongOffset { expected: 8192 }));
        let mut damaged = unit(shape, 8192, 4096, 1).to_vec();
        damaged[17] ^= 1;
        assert!(matches!(append(&engine, shape, 8192, &damaged.into()).await, Err(Error::Invalid(_))));
        let newer = api_types::unit::ChunkShape { epoch: Epoch(2), ..shape };
        assert_eq!(append(&engine, newer, 8192, &unit(newer, 8192, 4096, 1)).await, Err(Error::Fenced { floor: Epoch(1) }));
        assert!(matches!(read(&engine, 5, 4096, 8192).await, Err(Error::WrongOffset { expected: 8192 })));
    });
}

#[test]
fn the_end_of_a_chunk_is_full() {
    run(async {
        let (_, _, engine) = fresh(64).await;
        let shape = api_types::unit::ChunkShape { capacity: MIB, ..shape(5) };
        let first = unit(shape, 0, 500_000, 1);
        let end = append(&engine, shape, 0, &first).await.unwrap();
        let second = unit(shape, end, 500_000, 1);
        let end = append(&engine, shape, end, &second).await.unwrap();
        let last = MIB - end - 80;
        assert_eq!(append(&engine, shape, end, &unit(shape, end, last, 1)).await, Ok(MIB));
        assert!(matches!(append(&engine, shape, 0, &first).await, Ok(MIB)));
    });
}

#[test]
fn a_seal_cuts_and_stays_and_keeps_older_epochs_out() {
    run(async {
        let (_, device, engine) = fresh(64).await;
        let shape = shape(5);
        for index in 0..4 {
            append(&engine, shape, index * 8192, &unit(shape, index * 8192, 4096, 1)).await.unwrap();
        }
        assert_eq!(seal(&engine, 5, 2, Some(16384)).await, Ok(Sealed::At(16384)));
        assert_eq!(seal(&engine, 5, 2, Some(8192)).await, Ok(Sealed::At(16384)), "cut once");
        assert_eq!(seal(&engine, 5, 1, None).await, Err(Error::Fenced { floor: Epoch(2) }));
        assert_eq!(seal(&engine, 6, 2, None).await, Ok(Sealed::Absent));
        let other = crate::world::shape(6);
        let late = unit(other, 0, 4096, 1);
        assert_eq!(append(&engine, other, 0, &late).await, Err(Error::Fenced { floor: Epoch(2) }));
        drop(engine);
        let engine = open(&device).await;
        assert_eq!(info(&engine, 5).unwrap().length, 16384);
        assert_eq!(append(&engine, other, 0, &late).await, Err(Error::Fenced { floor: Epoch(2) }));
        assert!(matches!(read(&engine, 5, 8192, 12288).await, Err(Error::Sealed { length: 16384 })));
    });
}

#[test]
fn a_chunk_closed_by_a_restart_can_still_be_cut() {
    run(async {
        let (_, device, engine) = fresh(64).await;
        let shape = shape(5);
        for index in 0..3 {
            append(&engine, shape, index * 8192, &unit(shape, index * 8192, 4096, 1)).await.unwrap();
        }
        drop(engine);
        let engine = open(&device).await;
        assert_eq!(seal(&engine, 5, 1, Some(32768)).await, Ok(Sealed::At(24576)));
        assert_eq!(seal(&engine, 5, 1, Some(8192)).await, Ok(Sealed::At(8192)));
        drop(engine);
        assert_eq!(info(&open(&device).await, 5).unwrap().length, 8192);
    });
}

#[test]
fn a_deleted_chunk_frees_its_space_and_never_comes_back() {
    run(async {
        let (_, device, engine) = fresh(64).await;
        let free = engine.stats().store.free_bytes;
        let shape = shape(5);
        let first = unit(shape, 0, 4096, 1);
        for round in 0..3u64 {
            for id in 0..40 {
                let shape = crate::world::shape(100 * (round + 1) + id);
                append(&engine, shape, 0, &unit(shape, 0, 4096, 1)).await.unwrap();
                delete(&engine, shape.chunk.0).await.unwrap();
            }
        }
        append(&engine, shape, 0, &first).await.unwrap();
        delete(&engine, 5).await.unwrap();
        delete(&engine, 5).await.unwrap();
        assert_eq!(append(&engine, shape, 0, &first).await, Err(Error::Sealed { length: 0 }));
        assert_eq!(read(&engine, 5, 0, 1).await, Err(Error::Unknown));
        engine.close().await.unwrap();
        for _ in 0..3 {
            let engine = open(&device).await;
            assert!(engine.infos(ChunkId(0), 100).is_empty());
            assert_eq!(engine.stats().store.free_bytes, free);
        }
    });
}

#[test]
fn a_full_device_says_so_and_recovers_when_space_is_freed() {
    run(async {
        let (_, _, engine) = fresh(64).await;
        let mut made = 0;
        let full = loop {
            let shape = shape(made + 1);
            match append(&engine, shape, 0, &unit(shape, 0, 4096, 1)).await {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(full, Error::Full);
        assert_eq!(engine.stats().store.free_bytes, 0);
        assert!(made > 40);
        assert_eq!(seal(&engine, 1, 1, None).await, Ok(Sealed::At(8192)), "sealing works on a full device");
        delete(&engine, 2).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        let shape = shape(made + 2);
        append(&engine, shape, 0, &unit(shape, 0, 4096, 1)).await.unwrap();
    });
}

#[test]
fn a_scrub_reads_everything_and_names_the_first_bad_unit() {
    run(async {
        let (memory, _, engine) = fresh(64).await;
        let shape = shape(5);
        let mut at = 0;
        let mut starts = Vec::new();
        while at < 3 * MIB {
            let unit = unit(shape, at, 100_000, 1);
            starts.push(at);
            at = append(&engine, shape, at, &unit).await.unwrap();
        }
        let scrub = || async { engine.serve(Request::Scrub(ChunkId(5))).await };
        let whole = ScrubReport { units: starts.len() as u64, bytes: u64::from(at), bad_at: None };
        assert_eq!(scrub().await, Ok(Response::Scrub(whole)));
        let victim = unit(shape, starts[20], 100_000, 1);
        let place = (0..64u64 << 20).step_by(4096).find(|place| memory.peek(*place, 64) == victim[..64]).unwrap();
        memory.poke(place + 5000, &[0xff]);
        let Ok(Response::Scrub(report)) = scrub().await else { panic!() };
        assert_eq!((report.units, report.bad_at), (20, Some(starts[20])));
    });
}

#[test]
fn requests_after_closing_get_an_error_and_tasks_end() {
    run(async {
        let (_, _, engine) = fresh(64).await;
        engine.close().await.unwrap();
        assert!(matches!(read(&engine, 5, 0, 1).await, Err(Error::Io(_))));
    });
}
