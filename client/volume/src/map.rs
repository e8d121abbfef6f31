//! The map: block → where it is stored. A tree of leaves (1 MiB of address space each) under branches (1 GiB) under a
//! root, copy-on-write.
//!
//! A leaf is in one of three states: *empty* (nothing is mapped), *resident* (in memory, perhaps changed since the last
//! checkpoint), or *absent* (only in the index stream). Reading or changing an absent leaf is a programmer's error: the
//! caller loads it first, and pins it while a change is under way. A slot's pointer is always the one of the last
//! *durable* checkpoint, so that a checkpoint that fails needs no undoing.

mod leaf;
mod node;

pub(crate) use leaf::{LEAF_BLOCKS, LEAF_BYTES, Leaf, Location};
pub(crate) use node::{NodePointer, decode_branch, encode_branch, put_pointers, take_pointers};

use api_types::ChunkId;
use node::BRANCH_LEAVES;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Blocks under one branch.
pub(crate) const BRANCH_BLOCKS: u64 = LEAF_BLOCKS as u64 * BRANCH_LEAVES as u64;
/// Most resident leaves looked at by one call of [`Map::shrink`].
const SHRINK_STEPS: usize = 64;

/// The leaf that holds `block`.
pub(crate) fn leaf_of(block: u64) -> u64 {
    block / u64::from(LEAF_BLOCKS)
}

#[derive(Clone, Default)]
struct Slot {
    leaf: Option<Rc<Leaf>>,
    /// In the last durable checkpoint.
    disk: Option<NodePointer>,
    /// Differs from `disk`; only with a leaf.
    dirty: bool,
    /// Used since the last round of shrinking.
    touched: Cell<bool>,
    pins: Cell<u32>,
}

#[derive(Clone)]
struct Branch {
    slots: Vec<Slot>,
    disk: Option<NodePointer>,
    /// Some slot is dirty, or the branch itself must move.
    dirty: bool,
}

/// What a leaf is at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Nothing is mapped.
    Empty,
    /// In memory.
    Resident,
    /// In the index stream only.
    Absent(NodePointer),
}

/// A root that no longer changes.
#[derive(Default)]
pub(crate) struct Frozen {
    branches: BTreeMap<u64, Rc<Branch>>,
}

/// A leaf of a frozen root that the last checkpoint doesn't hold, with the place it was written to.
pub(crate) struct WrittenLeaf {
    pub(crate) index: u64,
    pub(crate) leaf: Rc<Leaf>,
    /// `None`: nothing is mapped in it.
    pub(crate) pointer: Option<NodePointer>,
}

/// See the module.
pub(crate) struct Map {
    branches: BTreeMap<u64, Rc<Branch>>,
    /// Every resident leaf is in it once.
    ring: VecDeque<u64>,
    dirty_leaves: u64,
    empty: Rc<Leaf>,
}

impl Map {
    pub(crate) fn new() -> Self {
        Map { branches: BTreeMap::new(), ring: VecDeque::new(), dirty_leaves: 0, empty: Rc::new(Leaf::empty()) }
    }

    /// Puts a branch of a checkpoint in its place.
    pub(crate) fn load_branch(&mut self, branch: u64, pointer: NodePointer, leaves: &[(u32, NodePointer)]) {
        let mut slots = vec![Slot::default(); BRANCH_LEAVES as usize];
        for (place, leaf) in leaves {
            slots[*place as usize].disk = Some(*leaf);
        }
        self.branches.insert(branch, Rc::new(Branch { slots, disk: Some(pointer), dirty: false }));
    }

    fn slot(&self, leaf: u64) -> Option<&Slot> {
        let branch = self.branches.get(&(leaf / u64::from(BRANCH_LEAVES)))?;
        branch.slots.get((leaf % u64::from(BRANCH_LEAVES)) as usize)
    }

    fn branch_mut(&mut self, leaf: u64) -> &mut Branch {
        Rc::make_mut(self.branches.entry(leaf / u64::from(BRANCH_LEAVES)).or_insert_with(|| {
            Rc::new(Branch { slots: vec![Slot::default(); BRANCH_LEAVES as usize], disk: None, dirty: false })
        }))
    }

    pub(crate) fn state(&self, leaf: u64) -> State {
        match self.slot(leaf) {
            Some(Slot { leaf: Some(_), .. }) => State::Resident,
            Some(Slot { disk: Some(pointer), .. }) => State::Absent(*pointer),
            _ => State::Empty,
        }
    }

    /// Where a block is; `None` reads as zeros.
    ///
    /// # Panics
    /// When its leaf is absent.
    pub(crate) fn get(&self, block: u64) -> Option<Location> {
        let slot = self.slot(leaf_of(block))?;
        slot.touched.set(true);
        match &slot.leaf {
            Some(leaf) => leaf.get((block % u64::from(LEAF_BLOCKS)) as u32),
            None => {
                assert!(slot.disk.is_none(), "a leaf is loaded before it is read");
                None
            }
        }
    }

    /// Changes where a block is, and returns where it was.
    ///
    /// # Panics
    /// When its leaf is absent.
    pub(crate) fn set(&mut self, block: u64, location: Option<Location>) -> Option<Location> {
        let index = leaf_of(block);
        if location.is_none() && self.get(block).is_none() {
            return None;
        }
        let empty = self.empty.clone();
        let branch = self.branch_mut(index);
        branch.dirty = true;
        let slot = &mut branch.slots[(index % u64::from(BRANCH_LEAVES)) as usize];
        slot.touched.set(true);
        let (fresh, newly_dirty) = (slot.leaf.is_none(), !slot.dirty);
        assert!(!fresh || slot.disk.is_none(), "a leaf is loaded before it is changed");
        slot.dirty = true;
        let leaf = slot.leaf.get_or_insert(empty);
        let old = Rc::make_mut(leaf).set((block % u64::from(LEAF_BLOCKS)) as u32, location);
        if fresh {
            self.ring.push_back(index);
        }
        self.dirty_leaves += u64::from(newly_dirty);
        old
    }

    /// Leaves with anything in them that touch the range of blocks.
    pub(crate) fn leaves_in(&self, first: u64, count: u64) -> Vec<u64> {
        if count == 0 {
            return Vec::new();
        }
        let (from, to) = (leaf_of(first), leaf_of(first + count - 1));
        let width = u64::from(BRANCH_LEAVES);
        let mut found = Vec::new();
        for (number, branch) in self.branches.range(from / width..=to / width) {
            for (place, slot) in branch.slots.iter().enumerate() {
                let leaf = number * width + place as u64;
                if (from..=to).contains(&leaf) && (slot.leaf.is_some() || slot.disk.is_some()) {
                    found.push(leaf);
                }
            }
        }
        found
    }

    /// Forgets a range; tells where each mapped block was.
    pub(crate) fn clear(&mut self, first: u64, count: u64, mut forgotten: impl FnMut(Location)) {
        for leaf in self.leaves_in(first, count) {
            let start = leaf * u64::from(LEAF_BLOCKS);
            for block in start.max(first)..(start + u64::from(LEAF_BLOCKS)).min(first + count) {
                if let Some(old) = self.set(block, None) {
                    forgotten(old);
                }
            }
        }
    }

    /// Puts a leaf in memory that was read from `pointer`. Does nothing when it isn't absent any more, or elsewhere.
    pub(crate) fn install(&mut self, index: u64, pointer: NodePointer, leaf: Leaf) {
        if self.state(index) != State::Absent(pointer) {
            return;
        }
        let slot = &mut self.branch_mut(index).slots[(index % u64::from(BRANCH_LEAVES)) as usize];
        slot.leaf = Some(Rc::new(leaf));
        slot.touched.set(true);
        self.ring.push_back(index);
    }

    /// Keeps a leaf from being dropped until as many calls of [`Map::unpin`].
    pub(crate) fn pin(&mut self, leaf: u64) {
        let slot = &self.branch_mut(leaf).slots[(leaf % u64::from(BRANCH_LEAVES)) as usize];
        slot.pins.set(slot.pins.get() + 1);
    }

    /// See [`Map::pin`].
    pub(crate) fn unpin(&self, leaf: u64) {
        if let Some(slot) = self.slot(leaf) {
            slot.pins.set(slot.pins.get().saturating_sub(1));
        }
    }

    /// Drops unchanged leaves until at most `leaves_max` are resident, a bounded number of them at a time. A leaf that
    /// was used since the last round stays for another.
    pub(crate) fn shrink(&mut self, leaves_max: u64) {
        for _ in 0..SHRINK_STEPS {
            if self.ring.len() as u64 <= leaves_max {
                return;
            }
            let Some(index) = self.ring.pop_front() else { return };
            let keep = self.slot(index).is_some_and(|slot| slot.dirty || slot.pins.get() > 0 || slot.touched.replace(false));
            if keep {
                self.ring.push_back(index);
            } else {
                self.branch_mut(index).slots[(index % u64::from(BRANCH_LEAVES)) as usize].leaf = None;
            }
        }
    }

    /// Leaves in memory.
    pub(crate) fn resident(&self) -> u64 {
        self.ring.len() as u64
    }

    /// Leaves changed since the last checkpoint.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty_leaves
    }

    /// Nodes of the last checkpoint that stand in any of the chunks: leaves, and branches.
    pub(crate) fn nodes_in(&self, chunks: &BTreeSet<ChunkId>) -> (Vec<u64>, Vec<u64>) {
        let within = |pointer: &Option<NodePointer>| pointer.is_some_and(|pointer| chunks.contains(&pointer.chunk));
        let mut leaves = Vec::new();
        let mut branches = Vec::new();
        for (number, branch) in &self.branches {
            if within(&branch.disk) {
                branches.push(*number);
            }
            for (place, slot) in branch.slots.iter().enumerate() {
                if within(&slot.disk) {
                    leaves.push(number * u64::from(BRANCH_LEAVES) + place as u64);
                }
            }
        }
        (leaves, branches)
    }

    /// All pointers of the last checkpoint.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = NodePointer> + '_ {
        self.branches.values().flat_map(|branch| branch.disk.into_iter().chain(branch.slots.iter().filter_map(|slot| slot.disk)))
    }

    /// Makes the next checkpoint write a resident leaf again.
    pub(crate) fn rewrite_leaf(&mut self, index: u64) {
        if self.state(index) != State::Resident {
            return;
        }
        let branch = self.branch_mut(index);
        branch.dirty = true;
        let slot = &mut branch.slots[(index % u64::from(BRANCH_LEAVES)) as usize];
        let newly_dirty = !std::mem::replace(&mut slot.dirty, true);
        self.dirty_leaves += u64::from(newly_dirty);
    }

    /// Makes the next checkpoint write a branch again.
    pub(crate) fn rewrite_branch(&mut self, number: u64) {
        if let Some(branch) = self.branches.get_mut(&number) {
            Rc::make_mut(branch).dirty = true;
        }
    }

    /// The map as it is now, for ever.
    pub(crate) fn freeze(&self) -> Frozen {
        Frozen { branches: self.branches.clone() }
    }

    /// Takes over the pointers of a checkpoint that is durable now. Returns the pointers that nothing needs any more.
    pub(crate) fn checkpointed(&mut self, leaves: Vec<WrittenLeaf>, branches: &[(u64, Option<NodePointer>)]) -> Vec<NodePointer> {
        let mut old = Vec::new();
        for written in leaves {
            let branch = self.branch_mut(written.index);
            let slot = &mut branch.slots[(written.index % u64::from(BRANCH_LEAVES)) as usize];
            old.extend(std::mem::replace(&mut slot.disk, written.pointer));
            let unchanged = slot.leaf.as_ref().is_some_and(|leaf| Rc::ptr_eq(leaf, &written.leaf));
            if unchanged {
                slot.dirty = false;
                self.dirty_leaves -= 1;
            }
        }
        for (number, pointer) in branches {
            let Some(branch) = self.branches.get_mut(number) else { continue };
            let branch = Rc::make_mut(branch);
            old.extend(std::mem::replace(&mut branch.disk, *pointer));
            branch.dirty = branch.slots.iter().any(|slot| slot.dirty);
        }
        old
    }
}

impl Frozen {
    /// Leaves that must be written, in order of their address.
    pub(crate) fn dirty_leaves(&self) -> Vec<(u64, Rc<Leaf>)> {
        let mut found = Vec::new();
        for (number, branch) in self.branches.iter().filter(|(_, branch)| branch.dirty) {
            for (place, slot) in branch.slots.iter().enumerate() {
                if let (true, Some(leaf)) = (slot.dirty, &slot.leaf) {
                    found.push((number * u64::from(BRANCH_LEAVES) + place as u64, leaf.clone()));
                }
            }
        }
        found
    }

    /// Branches that must be written, each with its leaves where they are now; empty ones have none.
    pub(crate) fn dirty_branches(&self, written: &[WrittenLeaf]) -> Vec<(u64, Vec<(u32, NodePointer)>)> {
        let moved: BTreeMap<u64, Option<NodePointer>> = written.iter().map(|leaf| (leaf.index, leaf.pointer)).collect();
        let mut found = Vec::new();
        for (number, branch) in self.branches.iter().filter(|(_, branch)| branch.dirty) {
            let mut pointers = Vec::new();
            for (place, slot) in branch.slots.iter().enumerate() {
                let index = number * u64::from(BRANCH_LEAVES) + place as u64;
                let pointer = moved.get(&index).copied().unwrap_or(slot.disk);
                pointers.extend(pointer.map(|pointer| (place as u32, pointer)));
            }
            found.push((*number, pointers));
        }
        found
    }

    /// All branches of the root, the written ones where they are now.
    pub(crate) fn branch_pointers(&self, written: &[(u64, Option<NodePointer>)]) -> Vec<(u32, NodePointer)> {
        let moved: BTreeMap<u64, Option<NodePointer>> = written.iter().copied().collect();
        let pointer = |number: &u64, branch: &Rc<Branch>| moved.get(number).copied().unwrap_or(branch.disk);
        let known = self.branches.iter();
        known.filter_map(|(number, branch)| pointer(number, branch).map(|pointer| (*number as u32, pointer))).collect()
    }
}

#[cfg(test)]
mod tests;
