//! Volumes, files outside any volume, and their writers' epochs.

use crate::chunks::{check_epoch, no_stream};
use crate::command::{Event, FileLease, NewVolume, Reply};
use crate::namespace::{Entry, check_name};
use crate::nodes::Presence;
use crate::state::State;
use api_types::limits::BLOCK_BYTES;
use api_types::master::{Error, QosLimits, RootPointer, VolumeLease, VolumeRecord, VolumeStreams};
use api_types::{Epoch, NodeName, OwnerId, StreamId, VolumeId};

/// The largest volume: 1 PiB.
const VOLUME_BYTES_MAX: u64 = 1 << 50;
/// The smallest chunks that a volume gets, unless its pool has smaller ones.
const SMALL_CHUNK_BYTES: u32 = 4 << 20;
/// The most parameters, and the longest key or value, in bytes.
const PARAMETERS_MAX: usize = 64;
const PARAMETER_BYTES_MAX: usize = 1024;
/// Where the files of volumes are.
const VOLUMES: &str = "/volumes";

fn no_volume(volume: VolumeId) -> Error {
    Error::NotFound { what: format!("volume {volume}") }
}

fn check_size(size_bytes: u64) -> Result<(), Error> {
    if size_bytes == 0 || size_bytes > VOLUME_BYTES_MAX || !size_bytes.is_multiple_of(u64::from(BLOCK_BYTES)) {
        return Err(Error::Invalid(format!(
            "size_bytes: {size_bytes} must be a multiple of {BLOCK_BYTES}, above zero and at most {VOLUME_BYTES_MAX}"
        )));
    }
    Ok(())
}

/// Chunks of a volume are a 64th of it at most, so that those that are open or granted ahead, and the garbage that has to
/// gather before a chunk is worth emptying, take a small part of its space; but not smaller than is good for a disk.
fn chunk_bytes(pool: u32, size_bytes: u64) -> u32 {
    let fitting = (size_bytes / 64).next_power_of_two().max(SMALL_CHUNK_BYTES.into());
    u32::try_from(fitting).unwrap_or(u32::MAX).min(pool)
}

impl State {
    pub(crate) fn create_volume(&mut self, new: &NewVolume, events: &mut Vec<Event>) -> Result<Reply, Error> {
        check_name("name", &new.name)?;
        check_size(new.size_bytes)?;
        let long = |text: &String| text.len() > PARAMETER_BYTES_MAX;
        if new.parameters.len() > PARAMETERS_MAX || new.parameters.iter().any(|(key, value)| long(key) || long(value)) {
            return Err(Error::Invalid(format!(
                "parameters: at most {PARAMETERS_MAX}, none longer than {PARAMETER_BYTES_MAX} bytes"
            )));
        }
        let pool = self.pool_named(&new.pool)?.0.to_owned();
        if let Some(known) = self.volume_names.get(&new.name).and_then(|id| self.volumes.get(id)) {
            let same = (known.size_bytes, &known.pool, known.qos, &known.parameters)
                == (new.size_bytes, &pool, new.qos, &new.parameters);
            return match same {
                true => Ok(Reply::Volume(known.clone())),
                false => Err(Error::Conflict(format!("volume `{}` exists with other properties", new.name))),
            };
        }
        let directory = format!("{VOLUMES}/{}", new.name);
        self.namespace.make_directory(&directory)?;
        let volume = VolumeId(self.draw_id());
        let [hot, cold, index] = ["hot", "cold", "index"].map(|_| self.new_stream(&pool, Some(volume)));
        for (name, stream) in [("hot", hot), ("cold", cold), ("index", index)] {
            self.namespace.add_file(&format!("{directory}/{name}"), stream)?;
        }
        let record = VolumeRecord {
            volume,
            name: new.name.clone(),
            size_bytes: new.size_bytes,
            pool,
            epoch: Epoch(0),
            attached: None,
            published: None,
            streams: VolumeStreams { hot, cold, index },
            root: None,
            qos: new.qos,
            parameters: new.parameters.clone(),
        };
        self.volume_names.insert(new.name.clone(), volume);
        self.volumes.insert(volume, record.clone());
        events.push(Event::VolumeCreated(volume));
        Ok(Reply::Volume(record))
    }

    pub(crate) fn delete_volume(&mut self, id: VolumeId, force: bool, events: &mut Vec<Event>) -> Result<Reply, Error> {
        let Some(volume) = self.volumes.get(&id) else { return Ok(Reply::Done) };
        let in_use = volume.attached.as_ref().or(volume.published.as_ref());
        if let Some(node) = in_use
            && !force
        {
            return Err(Error::Conflict(format!("volume `{}` is attached on node `{node}`: detach it first", volume.name)));
        }
        let (name, streams) = (volume.name.clone(), volume.streams);
        let directory = format!("{VOLUMES}/{name}");
        for (file, stream) in [("hot", streams.hot), ("cold", streams.cold), ("index", streams.index)] {
            self.remove_stream(stream);
            self.namespace.remove(&format!("{directory}/{file}"))?;
        }
        self.namespace.remove(&directory)?;
        self.volume_names.remove(&name);
        self.volumes.remove(&id);
        events.push(Event::VolumeDeleted(id));
        Ok(Reply::Done)
    }

    fn volume_mut(&mut self, id: VolumeId) -> Result<&mut VolumeRecord, Error> {
        self.volumes.get_mut(&id).ok_or_else(|| no_volume(id))
    }

    pub(crate) fn grow_volume(&mut self, id: VolumeId, size_bytes: u64) -> Result<Reply, Error> {
        check_size(size_bytes)?;
        let volume = self.volume_mut(id)?;
        if size_bytes < volume.size_bytes {
            return Err(Error::Invalid(format!(
                "size_bytes: {size_bytes} is below the present size {}: a volume can't shrink",
                volume.size_bytes
            )));
        }
        volume.size_bytes = size_bytes;
        Ok(Reply::Volume(volume.clone()))
    }

    pub(crate) fn set_qos(&mut self, id: VolumeId, qos: QosLimits) -> Result<Reply, Error> {
        let volume = self.volume_mut(id)?;
        volume.qos = qos;
        Ok(Reply::Volume(volume.clone()))
    }

    pub(crate) fn publish(&mut self, id: VolumeId, node: &NodeName) -> Result<Reply, Error> {
        check_name("node", &node.0)?;
        let volume = self.volume_mut(id)?;
        match &volume.published {
            Some(other) if other != node => {
                Err(Error::Conflict(format!("volume `{}` is published to node `{other}`", volume.name)))
            }
            _ => {
                volume.published = Some(node.clone());
                Ok(Reply::Volume(volume.clone()))
            }
        }
    }

    pub(crate) fn unpublish(&mut self, id: VolumeId, node: Option<&NodeName>) -> Reply {
        let Some(volume) = self.volumes.get_mut(&id) else { return Reply::Done };
        if node.is_some() && volume.published.as_ref() != node {
            return Reply::Done;
        }
        let from = volume.published.take();
        let gone = |node: &NodeName| self.nodes.get(node).is_none_or(|node| node.presence == Presence::Lost);
        // The node can't close the volume any more. The next epoch keeps it out should it come back.
        if from.is_some() && from == volume.attached && from.as_ref().is_some_and(gone) {
            volume.attached = None;
            volume.epoch = volume.epoch.next();
        }
        Reply::Done
    }

    pub(crate) fn open_volume(&mut self, id: VolumeId, node: &NodeName, events: &mut Vec<Event>) -> Result<Reply, Error> {
        check_name("node", &node.0)?;
        let volume = self.volume_mut(id)?;
        volume.epoch = volume.epoch.next();
        volume.attached = Some(node.clone());
        let record = volume.clone();
        events.push(Event::VolumeOpened(id, record.epoch, node.clone()));
        let (_, pool) = self.pool_named(&record.pool)?;
        let chunk_bytes = chunk_bytes(pool.chunk_bytes, record.size_bytes);
        Ok(Reply::Lease(VolumeLease { replication: pool.replication, chunk_bytes, volume: record }))
    }

    pub(crate) fn close_volume(&mut self, id: VolumeId, epoch: Epoch) -> Result<Reply, Error> {
        let volume = self.volume_mut(id)?;
        check_epoch(volume.epoch, epoch)?;
        volume.attached = None;
        Ok(Reply::Done)
    }

    pub(crate) fn set_root(&mut self, id: VolumeId, epoch: Epoch, root: RootPointer) -> Result<Reply, Error> {
        let volume = self.volumes.get(&id).ok_or_else(|| no_volume(id))?;
        check_epoch(volume.epoch, epoch)?;
        let chunk = self.chunks.get(&root.chunk);
        if chunk.is_none_or(|chunk| chunk.record.stream != volume.streams.index) {
            return Err(Error::Invalid(format!("root: chunk {} is not in the volume's index stream", root.chunk)));
        }
        let place = |root: &RootPointer| self.chunks.get(&root.chunk).map(|chunk| (chunk.record.index, root.offset));
        // A late duplicate must not win: what only the older checkpoint needs may be deleted by now.
        if volume.root.is_some_and(|newest| place(&newest) > place(&root)) {
            return Err(Error::Conflict("root: a newer checkpoint is recorded already".into()));
        }
        self.volume_mut(id)?.root = Some(root);
        Ok(Reply::Done)
    }

    pub(crate) fn create_file(&mut self, path: &str, pool: &str) -> Result<Reply, Error> {
        outside_volumes(path)?;
        let pool = self.pool_named(pool)?.0.to_owned();
        self.namespace.check_new_file(path)?;
        let stream = self.new_stream(&pool, None);
        self.namespace.add_file(path, stream)?;
        Ok(Reply::Entry(Entry::File(stream)))
    }

    pub(crate) fn open_file(&mut self, id: StreamId) -> Result<Reply, Error> {
        let stream = self.streams.get_mut(&id).ok_or_else(|| no_stream(id))?;
        if stream.owner != OwnerId(id.0) {
            return Err(Error::Invalid(format!("stream {id} belongs to a volume: open the volume")));
        }
        stream.epoch = stream.epoch.next();
        let (epoch, pool) = (stream.epoch, stream.pool.clone());
        let (_, pool) = self.pool_named(&pool)?;
        Ok(Reply::File(FileLease { epoch, replication: pool.replication, chunk_bytes: pool.chunk_bytes }))
    }

    pub(crate) fn remove_path(&mut self, path: &str) -> Result<Reply, Error> {
        outside_volumes(path)?;
        if let Entry::File(stream) = self.namespace.remove(path)? {
            self.remove_stream(stream);
        }
        Ok(Reply::Done)
    }

    /// One volume.
    pub fn volume(&self, id: VolumeId) -> Result<VolumeRecord, Error> {
        self.volumes.get(&id).cloned().ok_or_else(|| no_volume(id))
    }

    /// The volume with a name.
    pub fn volume_by_name(&self, name: &str) -> Result<VolumeRecord, Error> {
        let id = self.volume_names.get(name).ok_or_else(|| Error::NotFound { what: format!("volume `{name}`") })?;
        self.volume(*id)
    }

    /// All volumes, ordered by id.
    #[must_use]
    pub fn volumes(&self) -> Vec<VolumeRecord> {
        self.volumes.values().cloned().collect()
    }

    /// How many volumes there are.
    #[must_use]
    pub fn volume_count(&self) -> u64 {
        self.volumes.len() as u64
    }

    /// The node a volume is published to.
    #[must_use]
    pub fn published(&self, id: VolumeId) -> Option<NodeName> {
        self.volumes.get(&id).and_then(|volume| volume.published.clone())
    }
}

/// Volumes make and remove their own files.
pub(crate) fn outside_volumes(path: &str) -> Result<(), Error> {
    let below = path.strip_prefix(VOLUMES).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if below {
        return Err(Error::Invalid(format!("path: `{VOLUMES}` holds the files of volumes: change the volume instead")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::chunk_bytes;

    #[test]
    fn a_small_volume_has_small_chunks() {
        assert_eq!(chunk_bytes(64 << 20, 4096), 4 << 20);
        assert_eq!(chunk_bytes(64 << 20, 512 << 20), 8 << 20);
        assert_eq!(chunk_bytes(64 << 20, 700 << 20), 16 << 20);
        assert_eq!(chunk_bytes(64 << 20, 1 << 50), 64 << 20);
        assert_eq!(chunk_bytes(1 << 20, 512 << 20), 1 << 20);
    }
}
