//! The directory tree. A directory's id follows from its parent's id and its name, so that a client or a master knows
//! the ids of all directories of a path without asking, and the look-ups of all its levels can be sent at once, each
//! to the partition of its parent.

use api_types::StreamId;
use api_types::master::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many partitions there are. Routing is by key already; one partition holds them all as yet.
const PARTITIONS: u128 = 1;
/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The deepest path.
const DEPTH_MAX: usize = 32;

/// A part of the namespace or of the streams that one group of masters serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct PartitionId(pub u32);

/// The partition of a key: a directory's id for the names in it, a stream's id for its chunks.
#[must_use]
pub fn partition_of(key: u64) -> PartitionId {
    PartitionId(u32::try_from((u128::from(mix(key)) * PARTITIONS) >> 64).unwrap_or(0))
}

/// A directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DirectoryId(pub u64);

impl DirectoryId {
    /// `/`.
    pub const ROOT: DirectoryId = DirectoryId(1);

    /// The id that a directory with this name in this parent has.
    #[must_use]
    pub fn child(self, name: &str) -> DirectoryId {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ mix(self.0);
        for byte in name.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        DirectoryId(mix(hash))
    }
}

/// Spreads a number over all 64 bits, one to one.
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Entry {
    /// More names.
    Directory(DirectoryId),
    /// A stream.
    File(StreamId),
}

/// All directories.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Namespace {
    directories: BTreeMap<DirectoryId, Directory>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Directory {
    entries: BTreeMap<String, Entry>,
}

impl Default for Namespace {
    fn default() -> Self {
        Namespace { directories: BTreeMap::from([(DirectoryId::ROOT, Directory::default())]) }
    }
}

/// The names of an absolute path, each checked. `/` has none.
pub(crate) fn split(path: &str) -> Result<Vec<&str>, Error> {
    let rest = path.strip_prefix('/').ok_or_else(|| Error::Invalid(format!("path `{path}` must start with `/`")))?;
    let names: Vec<&str> = if rest.is_empty() { Vec::new() } else { rest.split('/').collect() };
    if names.len() > DEPTH_MAX {
        return Err(Error::Invalid(format!("path `{path}` is deeper than {DEPTH_MAX} levels")));
    }
    for name in &names {
        check_name("path", name)?;
    }
    Ok(names)
}

/// Refuses a name that can't be one level of a path.
pub(crate) fn check_name(field: &str, name: &str) -> Result<(), Error> {
    let wrong = if name.is_empty() {
        "is empty"
    } else if name.len() > NAME_BYTES_MAX {
        "is longer than 255 bytes"
    } else if name == "." || name == ".." {
        "may not be `.` or `..`"
    } else if name.chars().any(|c| c == '/' || c.is_control()) {
        "may not hold `/` or control characters"
    } else {
        return Ok(());
    };
    Err(Error::Invalid(format!("{field}: name {wrong}")))
}

fn not_found(path: &str) -> Error {
    Error::NotFound { what: format!("path `{path}`") }
}

impl Namespace {
    /// The directory that a path's names lead to. No level depends on the answer of another.
    fn directory_id(names: &[&str]) -> DirectoryId {
        names.iter().fold(DirectoryId::ROOT, |parent, name| parent.child(name))
    }

    /// What a path stands for.
    pub(crate) fn lookup(&self, path: &str) -> Result<Entry, Error> {
        let names = split(path)?;
        let Some((last, parents)) = names.split_last() else { return Ok(Entry::Directory(DirectoryId::ROOT)) };
        let parent = self.directories.get(&Self::directory_id(parents)).ok_or_else(|| not_found(path))?;
        parent.entries.get(*last).copied().ok_or_else(|| not_found(path))
    }

    /// Makes a directory, its parents too. Those that are there stay.
    pub(crate) fn make_directory(&mut self, path: &str) -> Result<DirectoryId, Error> {
        let names = split(path)?;
        let (mut parent, mut to_make) = (DirectoryId::ROOT, Vec::new());
        for name in names {
            let id = parent.child(name);
            match self.directories.get(&parent).and_then(|directory| directory.entries.get(name)) {
                Some(Entry::File(_)) => return Err(Error::Conflict(format!("`{name}` in path `{path}` is a file"))),
                Some(Entry::Directory(_)) => {}
                None if self.directories.contains_key(&id) => {
                    return Err(Error::Conflict(format!("name `{name}` has the id of another directory: choose another name")));
                }
                None => to_make.push((parent, name, id)),
            }
            parent = id;
        }
        for (parent, name, id) in to_make {
            self.directories.entry(parent).or_default().entries.insert(name.to_owned(), Entry::Directory(id));
            self.directories.insert(id, Directory::default());
        }
        Ok(parent)
    }

    /// Refuses a path where no file could be made.
    pub(crate) fn check_new_file(&self, path: &str) -> Result<(), Error> {
        let names = split(path)?;
        let Some((last, parents)) = names.split_last() else { return Err(Error::Conflict("`/` is a directory".into())) };
        let parent = self.directories.get(&Self::directory_id(parents)).ok_or_else(|| not_found(path))?;
        if parent.entries.contains_key(*last) {
            return Err(Error::Conflict(format!("path `{path}` exists")));
        }
        Ok(())
    }

    /// Names a stream. The path must have passed [`Self::check_new_file`].
    pub(crate) fn add_file(&mut self, path: &str, stream: StreamId) -> Result<(), Error> {
        self.check_new_file(path)?;
        let names = split(path)?;
        if let Some((last, parents)) = names.split_last()
            && let Some(parent) = self.directories.get_mut(&Self::directory_id(parents))
        {
            parent.entries.insert((*last).to_owned(), Entry::File(stream));
        }
        Ok(())
    }

    /// Removes a name. A directory must be empty.
    pub(crate) fn remove(&mut self, path: &str) -> Result<Entry, Error> {
        let entry = self.lookup(path)?;
        let names = split(path)?;
        let Some((last, parents)) = names.split_last() else { return Err(Error::Invalid("`/` can't be removed".into())) };
        if let Entry::Directory(id) = entry {
            if self.directories.get(&id).is_some_and(|directory| !directory.entries.is_empty()) {
                return Err(Error::Conflict(format!("directory `{path}` is not empty")));
            }
            self.directories.remove(&id);
        }
        if let Some(parent) = self.directories.get_mut(&Self::directory_id(parents)) {
            parent.entries.remove(*last);
        }
        Ok(entry)
    }

    /// Names in a directory above `after`, ascending, `limit` at most.
    pub(crate) fn list(&self, path: &str, after: &str, limit: usize) -> Result<Vec<(String, Entry)>, Error> {
        let id = Self::directory_id(&split(path)?);
        let directory = self.directories.get(&id).ok_or_else(|| not_found(path))?;
        let above = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        Ok(directory.entries.range::<str, _>(above).take(limit).map(|(name, entry)| (name.clone(), *entry)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_by_ids_that_nobody_had_to_ask_for() {
        let mut namespace = Namespace::default();
        let made = namespace.make_directory("/a/b").unwrap();
        assert_eq!(made, DirectoryId::ROOT.child("a").child("b"));
        namespace.add_file("/a/b/c", StreamId(7)).unwrap();
        assert_eq!(namespace.lookup("/a/b/c"), Ok(Entry::File(StreamId(7))));
        assert_eq!(namespace.lookup("/a/b"), Ok(Entry::Directory(made)));
        assert!(matches!(namespace.lookup("/a/x/c"), Err(Error::NotFound { .. })));
    }

    #[test]
    fn only_an_empty_directory_is_removed() {
        let mut namespace = Namespace::default();
        namespace.make_directory("/a/b").unwrap();
        assert!(matches!(namespace.remove("/a"), Err(Error::Conflict(_))));
        namespace.remove("/a/b").unwrap();
        namespace.remove("/a").unwrap();
        assert!(namespace.lookup("/a").is_err());
    }

    #[test]
    fn bad_paths_are_refused() {
        for path in ["", "a", "//", "/a//b", "/..", "/a\n"] {
            assert!(matches!(split(path), Err(Error::Invalid(_))), "{path}");
        }
    }

    #[test]
    fn a_listing_goes_on_after_a_name() {
        let mut namespace = Namespace::default();
        for name in ["a", "b", "c"] {
            namespace.make_directory(&format!("/{name}")).unwrap();
        }
        let names: Vec<String> = namespace.list("/", "a", 10).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["b", "c"]);
    }

    #[test]
    fn a_file_is_no_directory() {
        let mut namespace = Namespace::default();
        namespace.add_file("/f", StreamId(1)).unwrap();
        assert!(matches!(namespace.make_directory("/f/g"), Err(Error::Conflict(_))));
        assert!(matches!(namespace.add_file("/f", StreamId(2)), Err(Error::Conflict(_))));
    }
}
