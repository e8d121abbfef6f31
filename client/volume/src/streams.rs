//! What a volume needs of streams: `client-stream`, or a fake that fails in every way its contract allows.

use api_types::master::{ChunkRecord, Replication};
use api_types::{ChunkId, Epoch, QosClass, StreamId};
use bytes::Bytes;
use client_stream::{Client, Error, Position, Scan, ScannedUnit, Writer, WriterOptions};
use futures::FutureExt;
use futures::future::LocalBoxFuture;

/// See [`Client`], whose methods these are.
pub(crate) trait Streams {
    fn recover(
        &self,
        stream: StreamId,
        epoch: Epoch,
        replication: Replication,
    ) -> LocalBoxFuture<'_, Result<Vec<ChunkRecord>, Error>>;
    fn writer(&self, stream: StreamId, options: WriterOptions) -> Box<dyn Append>;
    fn read<'a>(
        &'a self,
        chunk: ChunkId,
        offset: u32,
        length: u32,
        qos: QosClass,
        verify: &'a dyn Fn(&[u8]) -> bool,
    ) -> LocalBoxFuture<'a, Result<Bytes, Error>>;
    fn scan(&self, chunk: ChunkId, from: u32, to: u32, with_data: bool, qos: QosClass) -> Box<dyn Units>;
    fn delete_chunks(&self, stream: StreamId, epoch: Epoch, chunks: Vec<ChunkId>) -> LocalBoxFuture<'_, Result<(), Error>>;
}

/// See [`Writer`].
pub(crate) trait Append {
    fn append(&self, data: Vec<Bytes>, trailer: Bytes) -> LocalBoxFuture<'static, Result<Position, Error>>;
    fn take_sealed(&self) -> Vec<ChunkRecord>;
    fn close(self: Box<Self>) -> LocalBoxFuture<'static, Result<(), Error>>;
}

/// See [`Scan`].
pub(crate) trait Units {
    fn next(&mut self) -> LocalBoxFuture<'_, Result<Option<ScannedUnit>, Error>>;
}

impl Streams for Client {
    fn recover(
        &self,
        stream: StreamId,
        epoch: Epoch,
        replication: Replication,
    ) -> LocalBoxFuture<'_, Result<Vec<ChunkRecord>, Error>> {
        Client::recover(self, stream, epoch, replication).boxed_local()
    }

    fn writer(&self, stream: StreamId, options: WriterOptions) -> Box<dyn Append> {
        Box::new(Client::writer(self, stream, options))
    }

    fn read<'a>(
        &'a self,
        chunk: ChunkId,
        offset: u32,
        length: u32,
        qos: QosClass,
        verify: &'a dyn Fn(&[u8]) -> bool,
    ) -> LocalBoxFuture<'a, Result<Bytes, Error>> {
        Client::read(self, chunk, offset, length, qos, verify).boxed_local()
    }

    fn scan(&self, chunk: ChunkId, from: u32, to: u32, with_data: bool, qos: QosClass) -> Box<dyn Units> {
        Box::new(Client::scan(self, chunk, from, to, with_data, qos))
    }

    fn delete_chunks(&self, stream: StreamId, epoch: Epoch, chunks: Vec<ChunkId>) -> LocalBoxFuture<'_, Result<(), Error>> {
        Client::delete_chunks(self, stream, epoch, chunks).boxed_local()
    }
}

impl Append for Writer {
    fn append(&self, data: Vec<Bytes>, trailer: Bytes) -> LocalBoxFuture<'static, Result<Position, Error>> {
        Writer::append(self, data, trailer)
    }

    fn take_sealed(&self) -> Vec<ChunkRecord> {
        Writer::take_sealed(self)
    }

    fn close(self: Box<Self>) -> LocalBoxFuture<'static, Result<(), Error>> {
        Writer::close(*self).boxed_local()
    }
}

impl Units for Scan {
    fn next(&mut self) -> LocalBoxFuture<'_, Result<Option<ScannedUnit>, Error>> {
        Scan::next(self).boxed_local()
    }
}
