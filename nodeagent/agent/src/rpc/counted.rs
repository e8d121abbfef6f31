//! The data plane's counters and latencies, one set a core.

use super::connection::End;
use super::observe::{Called, Observer, Served};
use crate::meters::Spans;
use api_telemetry::{Counter, Family, Gauge, Operation, Recorder, Stage, table};
use api_types::DeviceId;
use api_types::chunk::Error;
use api_wire::frame::Opcode;
use std::cell::OnceCell;
use std::rc::Rc;

fn result_of(error: Option<&Error>) -> usize {
    match error {
        None => 0,
        Some(Error::Unknown) => 1,
        Some(Error::Sealed { .. }) => 2,
        Some(Error::WrongOffset { .. }) => 3,
        Some(Error::Fenced { .. }) => 4,
        Some(Error::Full) => 5,
        Some(Error::Conflict) => 6,
        Some(Error::Corrupt { .. }) => 7,
        Some(Error::Invalid(_)) => 8,
        Some(Error::Busy) => 9,
        Some(Error::Deadline) => 10,
        Some(Error::Io(_)) => 11,
        Some(Error::Unreachable(_)) => 12,
    }
}

/// Counters by opcode and result, each made when it first counts.
struct ByResult {
    family: &'static Family<Counter>,
    cells: [[OnceCell<Counter>; table::ANSWERS.len()]; Opcode::ALL.len() + 1],
}

impl ByResult {
    fn new(family: &'static Family<Counter>) -> Self {
        ByResult { family, cells: Default::default() }
    }

    fn count(&self, opcode: Opcode, error: Option<&Error>) {
        let result = result_of(error);
        let make = || self.family.with(&[opcode.as_str(), table::ANSWERS[result]]);
        self.cells[opcode as usize][result].get_or_init(make).increment();
    }
}

/// Counters of bytes by opcode.
struct ByOpcode {
    family: &'static Family<Counter>,
    cells: [OnceCell<Counter>; Opcode::ALL.len() + 1],
}

impl ByOpcode {
    fn new(family: &'static Family<Counter>) -> Self {
        ByOpcode { family, cells: Default::default() }
    }

    fn add(&self, opcode: Opcode, bytes: usize) {
        if bytes > 0 {
            self.cells[opcode as usize].get_or_init(|| self.family.with(&[opcode.as_str()])).add(bytes as u64);
        }
    }
}

/// How long a kind of request took and where.
struct ServedTimes {
    total: Recorder,
    queue: Recorder,
    device: Recorder,
}

impl ServedTimes {
    fn new(operation: Operation) -> Self {
        let recorder = |stage| Recorder::new(operation, stage);
        ServedTimes { total: recorder(Stage::Total), queue: recorder(Stage::Queue), device: recorder(Stage::Device) }
    }

    fn record(&self, served: &Served<'_>) {
        self.total.record(served.waited + served.store);
        self.queue.record(served.waited);
        self.device.record(served.store);
    }
}

/// Counts into the process's registry. One for each core, for its server and its client.
pub(crate) struct CountedObserver {
    served: ByResult,
    called: ByResult,
    received: ByOpcode,
    sent: ByOpcode,
    connections: Gauge,
    connected: Counter,
    lost: Counter,
    appends: ServedTimes,
    reads: ServedTimes,
    others: ServedTimes,
    append_network: Recorder,
    read_network: Recorder,
    spans: Rc<Spans>,
}

impl CountedObserver {
    /// With everything at zero.
    pub(crate) fn new(spans: Rc<Spans>) -> Self {
        CountedObserver {
            served: ByResult::new(&table::RPC_SERVED_TOTAL),
            called: ByResult::new(&table::RPC_CALLED_TOTAL),
            received: ByOpcode::new(&table::RPC_RECEIVED_BYTES_TOTAL),
            sent: ByOpcode::new(&table::RPC_SENT_BYTES_TOTAL),
            connections: table::RPC_CONNECTIONS.with(&[]),
            connected: table::RPC_CONNECTED_TOTAL.with(&[]),
            lost: table::RPC_LOST_TOTAL.with(&[]),
            appends: ServedTimes::new(Operation::ServeAppend),
            reads: ServedTimes::new(Operation::ServeRead),
            others: ServedTimes::new(Operation::ServeOther),
            append_network: Recorder::new(Operation::StreamAppend, Stage::Network),
            read_network: Recorder::new(Operation::StreamRead, Stage::Network),
            spans,
        }
    }
}

impl Observer for CountedObserver {
    fn served(&self, served: &Served<'_>) {
        self.served.count(served.opcode, served.error);
        self.received.add(served.opcode, served.request_bytes);
        self.sent.add(served.opcode, served.answer_bytes);
        match served.opcode {
            Opcode::Append => self.appends.record(served),
            Opcode::Read => self.reads.record(served),
            _ => self.others.record(served),
        }
    }

    fn called(&self, called: &Called<'_>) {
        self.called.count(called.opcode, called.error);
        if self.spans.is_on() {
            self.spans.called(called);
        }
        if called.local || called.error.is_some() {
            return;
        }
        // What the server didn't account for was spent between the two.
        let network = called.total.saturating_sub(called.device_time);
        match called.opcode {
            Opcode::Append => self.append_network.record(network),
            Opcode::Read => self.read_network.record(network),
            _ => {}
        }
    }

    fn traces(&self) -> bool {
        self.spans.is_on()
    }

    fn accepted(&self) {
        self.connections.add(1);
    }

    fn closed(&self, end: &End) {
        self.connections.add(-1);
        table::RPC_CLOSED_TOTAL.with(&[end.as_str()]).increment();
    }

    fn connected(&self, _device: DeviceId) {
        self.connected.increment();
    }

    fn lost(&self, _device: DeviceId, _reason: &str) {
        self.lost.increment();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api_types::{ChunkId, QosClass};
    use std::time::Duration;

    #[test]
    fn requests_count_by_kind_and_result() {
        let spans = Spans::new(api_telemetry::TraceHub::default(), Rc::new(nodeagent_reactor::RealClock::new()));
        let observer = CountedObserver::new(spans);
        let ms = Duration::from_millis(1);
        let served = Served {
            device: DeviceId(1),
            opcode: Opcode::Seal,
            chunk: ChunkId(1),
            qos: QosClass::Foreground,
            waited: ms,
            store: ms,
            request_bytes: 0,
            answer_bytes: 0,
            error: Some(&Error::Conflict),
            trace: false,
        };
        let counter = table::RPC_SERVED_TOTAL.with(&["seal", "conflict"]);
        let before = counter.get();
        observer.served(&served);
        observer.served(&Served { error: None, ..served });
        assert_eq!(counter.get() - before, 1);
    }
}
