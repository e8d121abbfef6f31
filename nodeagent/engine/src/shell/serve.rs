//! One request after the other.

use super::{Answer, Shell, answer_of};
use crate::observe::{Op, Stage};
use api_types::chunk::{Append, Error, Read, Request, Response, ScrubReport};
use api_types::limits::{READ_BYTES_MAX, UNIT_BYTES_MAX};
use api_types::unit::{Head, find_unit, verify_unit};
use api_types::{ChunkId, QosClass};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{LocalBoxFuture, ready};
use std::rc::Rc;
use std::time::Duration;

/// Requests that wait for an answer at once.
const WAITERS_MAX: usize = 65_536;
/// Chunks in one answer to a list.
const LIST_MAX: usize = 4096;

impl Shell {
    pub(crate) fn serve(self: &Rc<Self>, request: Request) -> LocalBoxFuture<'static, Answer> {
        if self.is_closing.get() {
            return ready(Err(Error::Io("the store is closed".into()))).boxed_local();
        }
        if self.waiters.borrow().len() >= WAITERS_MAX {
            return ready(Err(Error::Busy)).boxed_local();
        }
        match request {
            Request::Append(append) => self.append(append),
            Request::Read(read) => self.read_chunk(read),
            Request::Seal(seal) => {
                let (op, receiver) = self.wait();
                self.core.borrow_mut().seal(op, &seal);
                self.pump();
                self.timed(Op::Seal, QosClass::Foreground, 0, answer_of(receiver))
            }
            Request::Delete(chunk) => {
                let (op, receiver) = self.wait();
                self.core.borrow_mut().delete(op, chunk);
                self.pump();
                self.timed(Op::Delete, QosClass::Foreground, 0, answer_of(receiver))
            }
            Request::Stat(chunk) => ready(self.core.borrow().info(chunk).map(Response::Stat)).boxed_local(),
            Request::Scrub(chunk) => {
                let scrub = Rc::clone(self).scrub(chunk).map(|result| result.map(Response::Scrub));
                self.timed(Op::Scrub, QosClass::Scrub, 0, scrub)
            }
            Request::Probe => ready(Ok(Response::Probe(self.stats().store))).boxed_local(),
            Request::List(after) => ready(Ok(Response::List(self.infos(after, LIST_MAX)))).boxed_local(),
        }
    }

    pub(crate) fn infos(&self, after: ChunkId, count: usize) -> Vec<api_types::chunk::ChunkInfo> {
        self.core.borrow().infos(after, count)
    }

    fn append(self: &Rc<Self>, append: Append) -> LocalBoxFuture<'static, Answer> {
        let footer = match verify_unit(&append.unit, self.seed) {
            Ok(footer) => footer,
            Err(error) => return ready(Err(Error::Invalid(format!("the unit does not verify: {error}")))).boxed_local(),
        };
        let (qos, bytes) = (append.qos, append.unit.len());
        let (op, receiver) = self.wait();
        self.core.borrow_mut().append(op, append, &footer, self.clock.now());
        self.pump();
        self.timed(Op::Append, qos, bytes, answer_of(receiver))
    }

    fn read_chunk(self: &Rc<Self>, read: Read) -> LocalBoxFuture<'static, Answer> {
        let plan = match self.core.borrow_mut().plan_read(read.chunk, read.offset, read.length) {
            Ok(plan) => plan,
            Err(error) => return ready(Err(error)).boxed_local(),
        };
        let bytes = self.read_plan(plan, read.qos);
        let answer = bytes.map(|result| result.map(Response::Read).map_err(|error| Error::Io(error.to_string())));
        self.timed(Op::Read, read.qos, read.length as usize, answer)
    }

    fn timed(
        self: &Rc<Self>,
        op: Op,
        qos: QosClass,
        bytes: usize,
        work: impl Future<Output = Answer> + 'static,
    ) -> LocalBoxFuture<'static, Answer> {
        let begun = self.clock.now();
        let shell = Rc::clone(self);
        async move {
            let answer = work.await;
            shell.observe(op, Stage::Total, qos, bytes, begun);
            answer
        }
        .boxed_local()
    }

    /// Reads a chunk from end to end, slowly, and verifies every unit of it.
    async fn scrub(self: Rc<Self>, chunk: ChunkId) -> Result<ScrubReport, Error> {
        let info = self.core.borrow().info(chunk)?;
        let mut report = ScrubReport::default();
        let mut window = Bytes::new();
        let (mut at, mut read_to) = (0u32, 0u32);
        while at < info.length {
            match find_unit(&window, at, info.shape.alignment, Some(chunk), self.seed) {
                Head::Unit(footer) => {
                    window = window.slice(footer.unit_bytes() as usize..);
                    at = footer.end();
                    report.units += 1;
                }
                Head::More if read_to < info.length => {
                    let length = (info.length - at).min(READ_BYTES_MAX);
                    let plan = self.core.borrow_mut().plan_read(chunk, at, length)?;
                    let begun = self.clock.now();
                    match self.read_plan(plan, QosClass::Scrub).await {
                        Ok(bytes) => window = bytes,
                        Err(_) => break,
                    }
                    report.bytes += u64::from(at + length - read_to.max(at));
                    read_to = at + length;
                    self.pace(length, begun).await;
                }
                Head::More | Head::Nothing => break,
            }
            debug_assert!(window.len() <= READ_BYTES_MAX.max(UNIT_BYTES_MAX) as usize);
        }
        report.bad_at = (at < info.length).then_some(at);
        self.options.observer.scrubbed(report.bytes, report.bad_at.is_none());
        Ok(report)
    }

    /// Waits so that reading `bytes` takes as long as the scrub's rate allows.
    async fn pace(&self, bytes: u32, begun: Duration) {
        let rate = self.options.scrub_bytes_per_second.max(1);
        let due = Duration::from_nanos(u64::from(bytes).saturating_mul(1_000_000_000) / rate);
        let rest = due.saturating_sub(self.clock.now().saturating_sub(begun));
        if !rest.is_zero() {
            self.clock.sleep(rest).await;
        }
    }
}
