//! The prefix index: which page holds the keys and values of which prefix.
//!
//! A tree with one node a page of text. A node knows its parent, its key, its tokens, and for each layer group the
//! page that holds it, if one does. Nodes are found by key; a find counts only if the tokens are equal and
//! the parent is the node found one step before. So by induction the whole prefix was compared token by token
//! up to the root of the scope, and two prefixes with the same key (which nobody can make) would still not be
//! taken for each other.
//!
//! A page is *pending* from the moment a step plans to fill it until that step has run; then it is public.
//!
//! Invariants: `home` and the nodes' pages mirror each other; a node exists while it has a page, a child, a
//! holder (a running sequence that ends in it) or is remembered as evicted; a root exists while it has a child
//! or a holder.

#[cfg(test)]
mod collision_tests;
mod lookup;

pub(crate) use lookup::Match;
pub use lookup::Stop;

use crate::hash::{PageKey, Scope};
use hashbrown::HashTable;
use octavo_types::{GroupId, PageId, PageSize, Pages, Timestamp, Tokens};
use std::collections::VecDeque;
use std::num::NonZeroU32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeId(NonZeroU32);

impl NodeId {
    fn new(index: usize) -> Self {
        let plus_one = u32::try_from(index + 1).expect("fewer nodes than u32 counts");
        Self(NonZeroU32::new(plus_one).expect("one or more"))
    }
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Debug)]
struct Node {
    key: PageKey,
    parent: Option<NodeId>,
    /// Children form a list, the newest first.
    first_child: Option<NodeId>,
    next_sibling: Option<NodeId>,
    previous_sibling: Option<NodeId>,
    /// Pages held over all groups.
    pages: u32,
    /// How often requests had this prefix.
    uses: u32,
    /// Running sequences whose last full page this is.
    holders: u32,
    /// When a page was last evicted from here.
    evicted: Option<Timestamp>,
    /// Place in the memory of evicted nodes, while it has one.
    ghost: Option<u64>,
}

/// Where a page stands in the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(crate) node: NodeId,
    pub(crate) group: GroupId,
    pub(crate) pending: bool,
}

#[derive(Debug)]
pub(crate) struct PrefixIndex {
    page_size: PageSize,
    windows: Vec<Option<Tokens>>,
    nodes: Vec<Node>,
    unused: Vec<NodeId>,
    /// `page_size` a node.
    tokens: Vec<u32>,
    /// One a node and group.
    pages: Vec<Option<PageId>>,
    by_key: HashTable<NodeId>,
    /// One a page of the pool.
    home: Box<[Option<Home>]>,
    /// Evicted nodes kept to explain misses, the oldest first, with their `Node::ghost`.
    ghosts: VecDeque<(NodeId, u64)>,
    ghost_limit: usize,
    ghost_count: u64,
}

impl PrefixIndex {
    pub(crate) fn new(
        page_size: PageSize,
        windows: Vec<Option<Tokens>>,
        total: Pages,
        ghost_limit: usize,
    ) -> Self {
        Self {
            page_size,
            windows,
            nodes: Vec::with_capacity(total.as_usize()),
            unused: Vec::new(),
            tokens: Vec::new(),
            pages: Vec::with_capacity(total.as_usize()),
            by_key: HashTable::with_capacity(total.as_usize()),
            home: vec![None; total.as_usize()].into(),
            ghosts: VecDeque::new(),
            ghost_limit,
            ghost_count: 0,
        }
    }

    /// Where `page` stands, if its contents are indexed.
    pub(crate) fn home(&self, page: PageId) -> Option<Home> {
        self.home[page.index()]
    }

    pub(crate) fn is_public(&self, page: PageId) -> bool {
        self.home(page).is_some_and(|home| !home.pending)
    }

    pub(crate) fn page(&self, node: NodeId, group: GroupId) -> Option<PageId> {
        self.pages[node.index() * self.windows.len() + group.index()]
    }

    /// How often requests had the prefix that `page` ends, if it is indexed.
    pub(crate) fn uses(&self, page: PageId) -> u32 {
        self.home(page).map_or(0, |home| self.node(home.node).uses)
    }

    pub(crate) fn count_use(&mut self, node: NodeId) {
        let uses = &mut self.node_mut(node).uses;
        *uses = uses.saturating_add(1);
    }

    /// One more use of the `n` nodes that lie `above` levels over `from`, and up.
    pub(crate) fn count_uses(&mut self, from: NodeId, above: Pages, n: Pages) {
        let mut at = from;
        for level in 0..(above + n).0 {
            if level >= above.0 {
                self.count_use(at);
            }
            at = self.node(at).parent.expect("no higher than the root");
        }
    }

    /// Whether the node is only remembered: all its pages were evicted.
    pub(crate) fn is_evicted(&self, node: NodeId) -> bool {
        self.node(node).ghost.is_some()
    }

    pub(crate) fn key(&self, node: NodeId) -> PageKey {
        self.node(node).key
    }

    /// The root of `scope`, made if need be, and held: `release` it or a descendant it was moved to.
    pub(crate) fn hold_root(&mut self, scope: Scope) -> NodeId {
        let root = self.find_root(scope).unwrap_or_else(|| self.insert(None, scope.root(), &[]));
        self.hold(root);
        root
    }

    pub(crate) fn hold(&mut self, node: NodeId) {
        let holders = &mut self.node_mut(node).holders;
        *holders = holders.checked_add(1).expect("fewer sequences than u32 counts");
    }

    pub(crate) fn release(&mut self, node: NodeId) {
        let holders = &mut self.node_mut(node).holders;
        *holders = holders.checked_sub(1).expect("the node was held");
        self.remove_unneeded(node);
    }

    /// Moves a hold from `from` to the child with this key and these tokens, which is made if need be. When
    /// another prefix has the key, the hold is released instead, and the prefix cannot be indexed any further.
    pub(crate) fn descend(&mut self, from: NodeId, key: PageKey, tokens: &[u32]) -> Option<NodeId> {
        let child = match self.child(from, key, tokens) {
            Some(child) => Some(child),
            None if self.find(key).is_some() => None,
            None => Some(self.insert(Some(from), key, tokens)),
        };
        if let Some(child) = child {
            self.hold(child);
            self.count_use(child);
        }
        self.release(from);
        child
    }

    /// Moves a hold up by `levels`.
    pub(crate) fn ascend(&mut self, from: NodeId, levels: Pages) -> NodeId {
        let mut to = from;
        for _ in 0..levels.0 {
            to = self.node(to).parent.expect("no higher than the root");
        }
        self.hold(to);
        self.release(from);
        to
    }

    /// Notes that `page` will hold the node's contents once the planned step has run. Declined if the group has
    /// a page for them already: the first stays.
    pub(crate) fn offer(&mut self, node: NodeId, group: GroupId, page: PageId) -> bool {
        let at = node.index() * self.windows.len() + group.index();
        if self.pages[at].is_some() {
            return false;
        }
        assert!(self.home[page.index()].is_none(), "{page} is indexed twice");
        self.pages[at] = Some(page);
        self.home[page.index()] = Some(Home { node, group, pending: true });
        let node = self.node_mut(node);
        node.pages += 1;
        node.ghost = None;
        true
    }

    /// The step that fills `page` has run.
    pub(crate) fn publish(&mut self, page: PageId) {
        self.home[page.index()].as_mut().expect("an indexed page").pending = false;
    }

    /// The step that was to fill `page` failed.
    pub(crate) fn withdraw(&mut self, page: PageId) {
        let node = self.take_out(page);
        self.remove_unneeded(node);
    }

    /// `page` is about to be used for something else. Its node is remembered for a while.
    pub(crate) fn evict(&mut self, page: PageId, now: Timestamp) {
        let id = self.take_out(page);
        let ghost = self.ghost_count;
        self.ghost_count += 1;
        let node = self.node_mut(id);
        node.evicted = Some(now);
        if node.pages > 0 {
            return;
        }
        node.ghost = Some(ghost);
        self.ghosts.push_back((id, ghost));
        while self.ghosts.len() > self.ghost_limit {
            let (old, ghost) = self.ghosts.pop_front().expect("longer than the limit");
            if self.nodes[old.index()].ghost == Some(ghost) {
                self.node_mut(old).ghost = None;
                self.remove_unneeded(old);
            }
        }
    }

    fn take_out(&mut self, page: PageId) -> NodeId {
        let home = self.home[page.index()].take().expect("an indexed page");
        self.pages[home.node.index() * self.windows.len() + home.group.index()] = None;
        self.node_mut(home.node).pages -= 1;
        home.node
    }

    fn find(&self, key: PageKey) -> Option<NodeId> {
        self.by_key.find(key.short(), |id| self.node(*id).key == key).copied()
    }

    fn find_root(&self, scope: Scope) -> Option<NodeId> {
        self.find(scope.root())
    }

    /// The scope of every page that is indexed, one entry a page of the pool. Each node is looked at once.
    pub(crate) fn scopes(&self) -> Vec<Option<Scope>> {
        let mut known: Vec<Option<Scope>> = vec![None; self.nodes.len()];
        let mut way = Vec::new();
        let mut scope_of = |node: NodeId| {
            let mut at = node;
            let scope = loop {
                if let Some(scope) = known[at.index()] {
                    break scope;
                }
                way.push(at);
                match self.node(at).parent {
                    Some(parent) => at = parent,
                    None => break Scope::of_root(self.node(at).key),
                }
            };
            way.drain(..).for_each(|node| known[node.index()] = Some(scope));
            scope
        };
        self.home.iter().map(|home| home.map(|home| scope_of(home.node))).collect()
    }

    /// The child of `parent` that is this page of text, compared token by token.
    fn child(&self, parent: NodeId, key: PageKey, tokens: &[u32]) -> Option<NodeId> {
        // The newest child lies beside its parent in memory more often than not: try it before the table.
        let newest = self.node(parent).first_child.filter(|id| self.node(*id).key == key);
        let found = newest.or_else(|| self.find(key))?;
        (self.node(found).parent == Some(parent) && self.tokens(found) == tokens).then_some(found)
    }

    fn insert(&mut self, parent: Option<NodeId>, key: PageKey, tokens: &[u32]) -> NodeId {
        let size = self.page_size.as_usize();
        let id = self.unused.pop().unwrap_or_else(|| NodeId::new(self.nodes.len()));
        let next_sibling = parent.and_then(|parent| self.node_mut(parent).first_child.replace(id));
        if let Some(next) = next_sibling {
            self.node_mut(next).previous_sibling = Some(id);
        }
        let node = Node {
            key,
            parent,
            first_child: None,
            next_sibling,
            previous_sibling: None,
            pages: 0,
            uses: 0,
            holders: 0,
            evicted: None,
            ghost: None,
        };
        if id.index() == self.nodes.len() {
            self.nodes.push(node);
            self.tokens.resize(self.nodes.len() * size, 0);
            self.pages.resize(self.nodes.len() * self.windows.len(), None);
        } else {
            self.nodes[id.index()] = node;
        }
        let start = id.index() * size;
        self.tokens[start..start + tokens.len()].copy_from_slice(tokens);
        let Self { by_key, nodes, .. } = self;
        by_key.insert_unique(key.short(), id, |id| nodes[id.index()].key.short());
        id
    }

    /// Removes `id` if nothing needs it, then its parent if that leaves nothing that needs it, and so on.
    fn remove_unneeded(&mut self, mut id: NodeId) {
        loop {
            let node = &self.nodes[id.index()];
            if node.pages > 0 || node.first_child.is_some() || node.holders > 0 || node.ghost.is_some() {
                return;
            }
            let Node { key, parent, next_sibling, previous_sibling, .. } = *node;
            if let Some(next) = next_sibling {
                self.node_mut(next).previous_sibling = previous_sibling;
            }
            match (previous_sibling, parent) {
                (Some(previous), _) => self.node_mut(previous).next_sibling = next_sibling,
                (None, Some(parent)) => self.node_mut(parent).first_child = next_sibling,
                (None, None) => {}
            }
            self.by_key
                .find_entry(key.short(), |other| *other == id)
                .expect("every node is in the table")
                .remove();
            self.unused.push(id);
            match parent {
                Some(parent) => id = parent,
                None => return,
            }
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }
    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }
    fn tokens(&self, id: NodeId) -> &[u32] {
        let size = self.page_size.as_usize();
        &self.tokens[id.index() * size..][..size]
    }

    /// Asserts the invariants above; O(nodes + pages).
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut live = vec![true; self.nodes.len()];
        self.unused.iter().for_each(|id| live[id.index()] = false);
        let mut in_table = 0;
        for id in (0..self.nodes.len()).filter(|i| live[*i]).map(NodeId::new) {
            let node = self.node(id);
            if self.find(node.key) != Some(id) {
                return Err(format!("{id:?} is not found by its key"));
            }
            in_table += 1;
            self.check_pages(id)?;
            self.check_links(id)?;
            if node.pages == 0 && node.first_child.is_none() && node.holders == 0 && node.ghost.is_none() {
                return Err(format!("{id:?} is kept for no reason"));
            }
        }
        if in_table != self.by_key.len() {
            return Err(format!("{} keys for {in_table} nodes", self.by_key.len()));
        }
        for (page, home) in (0u32..).map(PageId).zip(&self.home) {
            if let Some(home) = home
                && self.page(home.node, home.group) != Some(page)
            {
                return Err(format!("{page} believes to be in {home:?}"));
            }
        }
        Ok(())
    }

    fn check_pages(&self, id: NodeId) -> Result<(), String> {
        let mut count = 0;
        for group in (0..self.windows.len() as u16).map(GroupId) {
            if let Some(page) = self.page(id, group) {
                count += 1;
                if !self.home(page).is_some_and(|home| home.node == id && home.group == group) {
                    return Err(format!("{id:?} believes to have {page}"));
                }
            }
        }
        if count == self.node(id).pages { Ok(()) } else { Err(format!("{id:?} miscounts its pages")) }
    }

    fn check_links(&self, id: NodeId) -> Result<(), String> {
        let mut previous = None;
        let mut child = self.node(id).first_child;
        while let Some(at) = child {
            let node = self.node(at);
            if node.parent != Some(id) || node.previous_sibling != previous {
                return Err(format!("{at:?} is linked wrongly below {id:?}"));
            }
            previous = Some(at);
            child = node.next_sibling;
        }
        Ok(())
    }
}
