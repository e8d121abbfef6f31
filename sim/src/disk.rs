//! A volume's process: takes the volume over, then reads and writes blocks at random beside each other.

use crate::check::Stamp;
use crate::clock::Chance;
use crate::masters::Masters;
use crate::network::Transport;
use crate::process::Process;
use crate::world::World;
use crate::writer::{Session, Task};
use api_types::chunk::ChunkTransport;
use api_types::limits::BLOCK_BYTES;
use api_types::master::MasterClient;
use api_types::{Clock, Epoch, NodeName, Rng};
use bytes::Bytes;
use client_stream::{Client, Deps};
use client_volume::{BlockDevice, BlockError, Volume};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Blocks of the volume that are used: few, so that writes meet.
const BLOCKS: u64 = 256;
const BLOCKS_AT_ONCE_MAX: u64 = 8;
const UNDER_WAY_MAX: u32 = 8;

struct Shared {
    world: Rc<World>,
    chance: Rc<Chance>,
    volume: Rc<Volume>,
    epoch: Epoch,
    name: String,
    under_way: Cell<u32>,
    ended: Cell<bool>,
}

/// Starts a session in a process of its own.
pub(crate) fn start(world: &Rc<World>, task: Task, read_all: bool) -> Session {
    let process = Process::start(world);
    let ended = Rc::new(Cell::new(false));
    let (world, chance, done) = (Rc::clone(world), world.chance.fork(), Rc::clone(&ended));
    process.spawn(async move {
        let name = format!("volume on n{}", task.host.0);
        match run(&world, chance, task, &name, read_all).await {
            Ok(()) => world.tell(&format!("{name} ends")),
            Err(error) => world.tell(&format!("{name} ends: {error}")),
        }
        done.set(true);
    });
    Session { process, ended }
}

async fn run(world: &Rc<World>, chance: Rc<Chance>, task: Task, name: &str, read_all: bool) -> Result<(), String> {
    let transport: Rc<dyn ChunkTransport> = Rc::new(Transport { world: Rc::downgrade(world), host: task.host });
    let master: Rc<dyn MasterClient> = Rc::new(Masters { world: Rc::downgrade(world), chance: chance.fork() });
    let clock: Rc<dyn Clock> = Rc::new(world.time.clone());
    let rng: Rc<dyn Rng> = chance.fork();
    let node = NodeName(format!("n{}", task.host.0));
    let config = client_stream::Config { node: Some(node.clone()), ..client_stream::Config::default() };
    let deps = Deps { transport, master: master.clone(), clock: clock.clone(), rng: rng.clone(), seed: world.seed() };
    let client = Client::new(deps, config);
    let lease = loop {
        match master.open_volume(task.volume, node.clone()).await {
            Ok(lease) => break lease,
            Err(api_types::master::Error::Unavailable(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
    };
    let epoch = lease.volume.epoch;
    world.tell(&format!("{name} is {epoch}"));
    let config = client_volume::Config {
        checkpoint_log_bytes: 512 << 10,
        checkpoint_every: Duration::from_secs(3),
        ..client_volume::Config::default()
    };
    let volume = loop {
        let opened = Volume::open(client.clone(), master.clone(), clock.clone(), rng.clone(), lease.clone(), config.clone());
        match opened.await {
            Ok(volume) => break volume,
            Err(client_volume::OpenError::Fenced) => return Err("fenced".to_owned()),
            Err(error) => world.tell(&format!("{epoch} can't open yet: {error}")),
        }
        clock.sleep(Duration::from_millis(500)).await;
    };
    world.tell(&format!("{epoch} has opened the volume"));
    world.checks.borrow_mut().blocks.opened(epoch, clock.now());
    let shared = Rc::new(Shared {
        world: Rc::clone(world),
        chance,
        volume,
        epoch,
        name: name.to_owned(),
        under_way: Cell::new(0),
        ended: Cell::new(false),
    });
    if read_all {
        for block in (0..BLOCKS).step_by(BLOCKS_AT_ONCE_MAX as usize) {
            shared.read(block..block + BLOCKS_AT_ONCE_MAX).await;
        }
    }
    shared.work(task.units).await;
    if task.close && !shared.ended.get() {
        shared.volume.close().await.map_err(|error| error.to_string())?;
        world.tell(&format!("{name} closed {epoch}"));
    }
    Ok(())
}

impl Shared {
    async fn work(self: &Rc<Self>, requests: u64) {
        for _ in 0..requests {
            while self.under_way.get() >= UNDER_WAY_MAX {
                self.world.time.sleep(Duration::from_millis(1)).await;
            }
            if self.ended.get() {
                return;
            }
            self.under_way.set(self.under_way.get() + 1);
            let first = self.chance.below(BLOCKS);
            let blocks = first..(first + 1 + self.chance.below(BLOCKS_AT_ONCE_MAX)).min(BLOCKS);
            let this = Rc::clone(self);
            let writes = self.chance.percent(60);
            tokio::task::spawn_local(async move {
                if writes {
                    this.write(blocks).await
                } else {
                    this.read(blocks).await
                }
                this.under_way.set(this.under_way.get() - 1);
            });
            if self.chance.percent(50) {
                self.world.time.sleep(self.chance.between(Duration::ZERO, Duration::from_millis(30))).await;
            }
        }
        while self.under_way.get() > 0 {
            self.world.time.sleep(Duration::from_millis(1)).await;
        }
    }

    async fn write(&self, blocks: Range<u64>) {
        let now = self.world.time.now();
        let stamp = self.world.checks.borrow_mut().blocks.begin(blocks.clone(), now);
        let data: Vec<u8> = blocks.clone().flat_map(|block| fill(stamp, block)).collect();
        match self.volume.write(blocks.start * u64::from(BLOCK_BYTES), Bytes::from(data)).await {
            Ok(()) => {
                self.world.tell(&format!("{} wrote {stamp} to {blocks:?}", self.name));
                self.world.checks.borrow_mut().blocks.end(blocks, stamp, self.world.time.now());
            }
            Err(error) => self.failed(&format!("write {stamp} of {blocks:?}"), &error),
        }
    }

    async fn read(&self, blocks: Range<u64>) {
        let began = self.world.time.now();
        let length = (blocks.end - blocks.start) as u32 * BLOCK_BYTES;
        let parts = match self.volume.read(blocks.start * u64::from(BLOCK_BYTES), length).await {
            Ok(parts) => parts.concat(),
            Err(error) => return self.failed(&format!("read of {blocks:?}"), &error),
        };
        if !self.world.checks.borrow().blocks.is_newest(self.epoch) {
            return;
        }
        for (block, bytes) in blocks.zip(parts.chunks(BLOCK_BYTES as usize)) {
            let result = match stamp_of(bytes, block) {
                Some(stamp) => {
                    let mut checks = self.world.checks.borrow_mut();
                    checks.blocks.check(block, stamp, began, self.world.time.now())
                }
                None => Err(format!("block {block} holds bytes that nobody wrote")),
            };
            if let Err(what) = result {
                self.world.tell(&format!("BROKEN {what}"));
                self.world.checks.borrow_mut().fail(what);
            }
        }
    }

    fn failed(&self, what: &str, error: &BlockError) {
        self.world.tell(&format!("{}: {what} fails: {error}", self.name));
        if matches!(error, BlockError::Fenced | BlockError::Closed) {
            self.ended.set(true);
        }
    }
}

fn fill(stamp: Stamp, block: u64) -> Vec<u8> {
    let mut bytes = vec![(stamp ^ block) as u8; BLOCK_BYTES as usize];
    bytes[..8].copy_from_slice(&stamp.to_le_bytes());
    bytes[8..16].copy_from_slice(&block.to_le_bytes());
    bytes
}

fn stamp_of(bytes: &[u8], block: u64) -> Option<Stamp> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let stamp = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (fill(stamp, block) == bytes).then_some(stamp)
}
