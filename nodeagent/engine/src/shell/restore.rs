//! Writing a chunk that comes from another copy.

use super::{Shell, answer_of};
use crate::core::RestorePlan;
use crate::observe::{Op, Stage};
use api_types::QosClass;
use api_types::chunk::{ChunkInfo, Error};
use api_types::limits::UNIT_BYTES_MAX;
use api_types::unit::{ChunkShape, Head, find_unit};
use bytes::{Bytes, BytesMut};
use nodeagent_device::Durability;
use std::rc::Rc;

/// One write at the device.
const PIECE_BYTES: usize = 512 << 10;

pub(crate) struct RestoreWriter {
    shell: Rc<Shell>,
    plan: RestorePlan,
    written: u32,
    verified: u32,
    /// What came after the last whole unit.
    rest: BytesMut,
    is_finished: bool,
}

impl Shell {
    pub(crate) async fn restore(self: &Rc<Self>, shape: ChunkShape, length: u32) -> Result<RestoreWriter, Error> {
        if self.is_closing.get() {
            return Err(Error::Io("the store is closed".into()));
        }
        let (op, receiver) = self.wait();
        let plan = self.core.borrow_mut().begin_restore(op, shape, length);
        self.pump();
        let plan = plan.inspect_err(|_| self.forget(op))?;
        // Made before the wait, so that whoever gives up waiting gives up the restore too.
        let writer =
            RestoreWriter { shell: Rc::clone(self), plan, written: 0, verified: 0, rest: BytesMut::new(), is_finished: false };
        answer_of(receiver).await?;
        Ok(writer)
    }
}

impl RestoreWriter {
    pub(crate) fn written(&self) -> u32 {
        self.written
    }

    pub(crate) async fn write(&mut self, offset: u32, data: Bytes) -> Result<(), Error> {
        let end = u32::try_from(data.len()).ok().and_then(|length| offset.checked_add(length));
        let Some(end) = end.filter(|end| *end <= self.plan.length) else {
            return Err(Error::Invalid(format!("a restore beyond its length of {} bytes", self.plan.length)));
        };
        if offset != self.written {
            return Err(Error::WrongOffset { expected: self.written });
        }
        let alignment = self.plan.shape.alignment.bytes();
        if !end.is_multiple_of(alignment) {
            return Err(Error::Invalid(format!("a write of a restore must end on a multiple of {alignment}")));
        }
        self.verify(&data)?;
        self.check()?;
        let begun = self.shell.clock.now();
        let length = data.len();
        let mut data = data;
        let mut at = offset;
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(PIECE_BYTES));
            let bytes = u32::try_from(piece.len()).unwrap_or(0);
            self.write_piece(at, piece).await?;
            at += bytes;
        }
        self.written = end;
        self.shell.observe(Op::Restore, Stage::Device, QosClass::Repair, length, begun);
        Ok(())
    }

    async fn write_piece(&self, at: u32, mut data: Bytes) -> Result<(), Error> {
        self.check()?;
        let shell = &self.shell;
        let length = u32::try_from(data.len()).unwrap_or(0);
        let origin = shell.superblock.layout.extents_offset;
        let writes: Vec<_> = self
            .plan
            .runs
            .pieces(at, length)
            .into_iter()
            .map(|piece| {
                let part = data.split_to(piece.bytes as usize);
                shell.write(origin + piece.at, part, Durability::Cached, QosClass::Repair)
            })
            .collect();
        let ticket = shell.core.borrow_mut().begin_ticket();
        // In a task of its own: the extents must not be given to another chunk before the device is done with them,
        // even if nobody waits any more.
        let task = tokio::task::spawn_local({
            let shell = Rc::clone(shell);
            async move {
                let mut result = Ok(());
                for write in writes {
                    result = result.and(shell.note(Op::Restore, write.await));
                }
                shell.core.borrow_mut().finish_ticket(ticket);
                shell.pump();
                result
            }
        });
        match task.await {
            Ok(result) => result.map_err(|error| Error::Io(error.to_string())),
            Err(_) => Err(Error::Io("the store was stopped".into())),
        }
    }

    /// Takes whole units off what has come so far.
    fn verify(&mut self, data: &Bytes) -> Result<(), Error> {
        self.rest.extend_from_slice(data);
        loop {
            let shape = &self.plan.shape;
            match find_unit(&self.rest, self.verified, shape.alignment, Some(shape.chunk), self.shell.seed) {
                Head::Unit(footer) if footer.shape == *shape => {
                    let _ = self.rest.split_to(footer.unit_bytes() as usize);
                    self.verified = footer.end();
                }
                Head::More if self.rest.len() < UNIT_BYTES_MAX as usize => return Ok(()),
                _ => return Err(Error::Corrupt { offset: self.verified }),
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        let is_there = self.shell.core.borrow().has_restore(self.plan.shape.chunk, self.plan.serial);
        if is_there { Ok(()) } else { Err(Error::Unknown) }
    }

    pub(crate) async fn finish(mut self) -> Result<ChunkInfo, Error> {
        if self.written != self.plan.length {
            return Err(Error::WrongOffset { expected: self.written });
        }
        if self.verified != self.plan.length {
            return Err(Error::Corrupt { offset: self.verified });
        }
        self.check()?;
        let flushed = self.shell.flush().await;
        self.shell.note(Op::Restore, flushed).map_err(|error| Error::Io(error.to_string()))?;
        let (op, receiver) = self.shell.wait();
        self.is_finished = true;
        self.shell.core.borrow_mut().finish_restore(op, self.plan.shape.chunk, self.plan.serial);
        self.shell.pump();
        answer_of(receiver).await?;
        Ok(ChunkInfo { shape: self.plan.shape, length: self.plan.length, sealed: true })
    }
}

impl Drop for RestoreWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            self.shell.core.borrow_mut().abandon_restore(self.plan.shape.chunk, self.plan.serial);
            self.shell.pump();
        }
    }
}
