//! Formatting, and what is refused.

use crate::world::{CLUSTER, PausedClock, fresh, make, options, run, try_open};
use api_types::{ClusterId, DeviceId};
use nodeagent_device::{Device, Memory};
use nodeagent_engine::{Engine, FormatError, FormatOptions, OpenError, OpenOptions, format, inspect};
use nodeagent_reactor::RealRng;
use std::rc::Rc;

async fn try_format(device: &Rc<dyn Device>, overwrite: Option<&str>) -> Result<(), FormatError> {
    let options = FormatOptions { overwrite: overwrite.map(str::to_owned), ..FormatOptions::new(CLUSTER) };
    format(Rc::clone(device), options, &RealRng::seeded(2)).await.map(|_| ())
}

#[test]
fn a_device_that_holds_anything_is_refused_unless_its_exact_id_is_given() {
    run(async {
        let memory = Memory::new(64 << 20, 512);
        memory.poke(1080, &[0x53, 0xef]);
        memory.poke(1128, &[0x22; 16]);
        let before = memory.peek(0, 1 << 20);
        let device: Rc<dyn Device> = Rc::new(memory.clone());
        let id = "ext4:22222222-2222-2222-2222-222222222222";
        assert_eq!(inspect(device.as_ref()).await.unwrap().to_string(), id);
        let refused = try_format(&device, None).await.unwrap_err();
        assert!(matches!(refused, FormatError::NotBlank { .. }));
        assert!(refused.to_string().contains(id));
        let other = try_format(&device, Some("ext4:33333333-2222-2222-2222-222222222222")).await.unwrap_err();
        assert!(matches!(other, FormatError::OtherContents { .. }));
        assert!(memory.peek(0, 1 << 20) == before, "nothing was written");
        try_format(&device, Some(id)).await.unwrap();
        let contents = inspect(device.as_ref()).await.unwrap();
        assert!(contents.superblock.is_some());
        assert_eq!(contents.signatures.len(), 1);
    });
}

#[test]
fn a_store_of_ours_is_refused_too_also_of_the_same_cluster() {
    run(async {
        let (_, device, _) = fresh(64).await;
        assert!(matches!(try_format(&device, None).await, Err(FormatError::NotBlank { .. })));
        let id = format!("basalt:{CLUSTER}/{}", DeviceId(0xd));
        try_format(&device, Some(&id)).await.unwrap();
    });
}

#[test]
fn nothing_of_an_earlier_store_of_the_same_cluster_comes_back() {
    run(async {
        let (_, device, engine) = fresh(64).await;
        for id in 1..40 {
            let shape = crate::world::shape(id);
            crate::world::append(&engine, shape, 0, &crate::world::unit(shape, 0, 4096, 4)).await.unwrap();
        }
        drop(engine);
        try_format(&device, Some(&format!("basalt:{CLUSTER}/{}", DeviceId(0xd)))).await.unwrap();
        for _ in 0..3 {
            let engine = try_open(&device).await.unwrap();
            assert!(engine.infos(api_types::ChunkId(0), 9).is_empty());
        }
    });
}

#[test]
fn too_small_a_device_is_told_what_it_needs() {
    run(async {
        let device: Rc<dyn Device> = Rc::new(Memory::new(4 << 20, 4096));
        let refused = try_format(&device, None).await.unwrap_err();
        let FormatError::TooSmall { least_bytes, .. } = refused else { panic!("{refused}") };
        let device: Rc<dyn Device> = Rc::new(Memory::new(least_bytes, 4096));
        try_format(&device, None).await.unwrap();
        try_open(&device).await.unwrap();
    });
}

#[test]
fn opening_what_is_not_ours_is_a_clear_error() {
    run(async {
        let blank: Rc<dyn Device> = Rc::new(Memory::new(64 << 20, 4096));
        assert!(matches!(try_open(&blank).await, Err(OpenError::NotFormatted { .. })));

        let (memory, device, engine) = fresh(64).await;
        drop(engine);
        let other = OpenOptions { cluster: ClusterId(8), ..options() };
        let refused = Engine::open(Rc::clone(&device), PausedClock::start(), other).await;
        assert!(matches!(refused, Err(OpenError::WrongCluster { found: CLUSTER, .. })));

        let small = Memory::new(32 << 20, 4096);
        small.poke(0, &memory.peek(0, 32 << 20));
        let small: Rc<dyn Device> = Rc::new(small);
        assert!(matches!(try_open(&small).await, Err(OpenError::Shrunk { .. })));

        for at in [0, 1 << 20] {
            let mut block = memory.peek(at, 4096);
            block[8] = 9;
            let crc = api_types::checksum::crc32c(&block[..4092]);
            block[4092..].copy_from_slice(&crc.to_le_bytes());
            memory.poke(at, &block);
        }
        assert!(matches!(try_open(&device).await, Err(OpenError::WrongVersion { found: 9, known: 1, .. })));
    });
}

#[test]
fn formatting_twice_with_one_seed_writes_the_same_bytes() {
    run(async {
        let copies = [Memory::new(64 << 20, 4096), Memory::new(64 << 20, 4096)];
        for copy in &copies {
            let device: Rc<dyn Device> = Rc::new(copy.clone());
            make(&device).await;
        }
        assert!(copies[0].peek(0, 8 << 20) == copies[1].peek(0, 8 << 20));
    });
}
