use super::{NodeId, PrefixIndex};
use crate::hash::Prompt;
use octavo_types::{GroupId, PageId, Pages, Timestamp, Tokens};
use std::time::Duration;

/// Why a lookup found no more than it did. Only what the request's own scope cached plays a part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nothing more could be found: all but the last token was there.
    WholePrompt,
    /// What is left does not fill a page, and no cached page begins with it.
    PageNotFull { from: Tokens },
    /// The next page was cached, and was evicted this long ago.
    Evicted { page: Pages, ago: Duration },
    /// Nothing that continues this way was ever seen, or so long ago that it is forgotten.
    NeverSeen { page: Pages },
    /// The nearest cached page has another token at this position.
    Differs { at: Tokens },
    /// The cache keeps no prefixes, the request asked for no lookup, or the prompt was hashed for pages of another size.
    NotLookedUp,
}

/// A prefix that was found.
#[derive(Debug)]
pub(crate) struct Match {
    /// One node a full page, from the first; every group has the pages it needs of them.
    pub(crate) nodes: Vec<NodeId>,
    /// A page to copy, and how many of its tokens are wanted.
    pub(crate) partial: Option<(NodeId, Tokens)>,
    pub(crate) stop: Stop,
}

/// How many children of a node are compared to find the nearest: the newest ones.
const NEAREST_OF: usize = 16;

impl PrefixIndex {
    /// The longest prefix of `prompt`, short of its last token, that can be used as it lies.
    pub(crate) fn lookup(&self, prompt: &Prompt, now: Timestamp) -> Match {
        let usable = prompt.len().saturating_sub(Tokens(1));
        let Some(root) = self.find_root(prompt.scope()) else {
            let stop = self.explain(prompt, usable, None, Pages::ZERO, None, now);
            return Match { nodes: Vec::new(), partial: None, stop };
        };
        let mut nodes = self.walk(root, prompt, self.page_size.full_pages(usable));
        self.fit_windows(&mut nodes);
        let found = Pages(nodes.len() as u32);
        let end = nodes.last().copied().unwrap_or(root);
        let start = found.as_usize() * self.page_size.as_usize();
        let nearest = self.nearest(end, &prompt.tokens()[start..usable.as_usize()]);
        let stop = self.explain(prompt, usable, Some(end), found, nearest, now);
        Match { nodes, partial: nearest.filter(|(_, common)| *common > Tokens::ZERO), stop }
    }

    /// The public pages of the longest prefix of `prompt` that could be used as it lies, and its length.
    pub(crate) fn public_prefix(&self, prompt: &Prompt) -> (Vec<PageId>, Tokens) {
        let Some(root) = self.find_root(prompt.scope()) else { return (Vec::new(), Tokens::ZERO) };
        let mut nodes = self.walk(root, prompt, self.page_size.full_pages(prompt.len()));
        let pending = nodes.iter().position(|node| self.pages_of(*node).any(|page| !self.is_public(page)));
        nodes.truncate(pending.unwrap_or(nodes.len()));
        self.fit_windows(&mut nodes);
        let end = self.page_size.tokens_in(Pages(nodes.len() as u32)).expect("no longer than the prompt");
        let pages = self.groups(|_| true).flat_map(|group| {
            let needed = &nodes[self.first_of_hit(group, end).as_usize()..];
            needed.iter().filter_map(move |node| self.page(*node, group))
        });
        (pages.collect(), end)
    }

    /// The first page that group `group` needs to go on at page `next`: the others have left its window.
    pub(crate) fn first_needed(&self, group: GroupId, next: Tokens) -> Pages {
        match self.windows[group.index()] {
            None => Pages::ZERO,
            // The token at `next` sees `window` positions, its own included.
            Some(window) => self.page_size.page_of((next + Tokens(1)).saturating_sub(window)),
        }
    }

    /// The first page that must be there for a hit of `len`, whole pages. At least the last one, even where no
    /// token to come sees it: what is found was once computed.
    fn first_of_hit(&self, group: GroupId, len: Tokens) -> Pages {
        let last = self.page_size.full_pages(len).saturating_sub(Pages(1));
        self.first_needed(group, len).min(last)
    }

    /// The nodes of the prompt's first pages, as far as they go and as full groups have every page.
    fn walk(&self, root: NodeId, prompt: &Prompt, most: Pages) -> Vec<NodeId> {
        let mut nodes = Vec::with_capacity(most.as_usize().min(self.nodes.len()));
        let mut at = root;
        for index in (0..most.0).map(Pages) {
            let Some(child) = self.child(at, prompt.key(index), prompt.page(index)) else { break };
            if !self.groups(|window| window.is_none()).all(|group| self.page(child, group).is_some()) {
                break;
            }
            nodes.push(child);
            at = child;
        }
        nodes
    }

    /// Shortens `nodes` to the longest length at which every windowed group has the window before it.
    fn fit_windows(&self, nodes: &mut Vec<NodeId>) {
        while let Some(missing) = self.last_page_missing(nodes) {
            nodes.truncate(missing.as_usize());
        }
    }

    fn last_page_missing(&self, nodes: &[NodeId]) -> Option<Pages> {
        let end = Pages(nodes.len() as u32);
        let next = self.page_size.tokens_in(end).expect("no longer than the prompt");
        self.groups(|window| window.is_some()).find_map(|group| {
            let first = self.first_of_hit(group, next);
            (first.0..end.0).rev().map(Pages).find(|p| self.page(nodes[p.as_usize()], group).is_none())
        })
    }

    /// The public child of `parent` that shares most leading tokens with `rest`, and how many.
    fn nearest(&self, parent: NodeId, rest: &[u32]) -> Option<(NodeId, Tokens)> {
        let mut best = None;
        let mut child = self.node(parent).first_child;
        for _ in 0..NEAREST_OF {
            let Some(id) = child else { break };
            if self.is_whole_and_public(id) {
                let common = self.tokens(id).iter().zip(rest).take_while(|(a, b)| a == b).count();
                let common = Tokens(common as u32);
                if best.is_none_or(|(_, most)| common > most) {
                    best = Some((id, common));
                }
            }
            child = self.node(id).next_sibling;
        }
        best
    }

    fn is_whole_and_public(&self, node: NodeId) -> bool {
        self.groups(|_| true).all(|group| self.page(node, group).is_some_and(|page| self.is_public(page)))
    }

    fn pages_of(&self, node: NodeId) -> impl Iterator<Item = PageId> {
        self.groups(|_| true).filter_map(move |group| self.page(node, group))
    }

    fn explain(
        &self,
        prompt: &Prompt,
        usable: Tokens,
        end: Option<NodeId>,
        found: Pages,
        nearest: Option<(NodeId, Tokens)>,
        now: Timestamp,
    ) -> Stop {
        let from = self.page_size.tokens_in(found).expect("no longer than the prompt");
        let common = nearest.map_or(Tokens::ZERO, |(_, common)| common);
        if from + common == usable {
            return Stop::WholePrompt;
        }
        let next_is_full = found < self.page_size.full_pages(prompt.len());
        if let Some(end) = end
            && next_is_full
            && let Some(next) = self.child(end, prompt.key(found), prompt.page(found))
            && let Some(evicted) = self.node(next).evicted
        {
            return Stop::Evicted { page: found, ago: now.since(evicted) };
        }
        match nearest {
            Some(_) => Stop::Differs { at: from + common },
            None if next_is_full => Stop::NeverSeen { page: found },
            None => Stop::PageNotFull { from },
        }
    }

    fn groups(&self, wanted: impl Fn(Option<Tokens>) -> bool) -> impl Iterator<Item = GroupId> {
        (0u16..)
            .zip(&self.windows)
            .filter(move |(_, window)| wanted(**window))
            .map(|(group, _)| GroupId(group))
    }
}
