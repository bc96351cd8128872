//! Two prefixes with one key, which only a forger can make: neither ever gets the other's pages.

use crate::{Claim, KvCache, Prompt, Reuse, Scope, Settings};
use octavo_types::{PageSize, Pages, SeqId, Tokens};

fn prompt(tokens: impl IntoIterator<Item = u32>) -> Prompt {
    Prompt::new(tokens.into_iter().collect(), Scope::default(), PageSize::DEFAULT).unwrap()
}

fn compute(cache: &mut KvCache, prompt: Prompt) -> (SeqId, Tokens) {
    let (seq, hit) = cache.admit(prompt, Reuse::Longest).unwrap();
    let left = cache.sequence(seq).unwrap().prompt().len() - hit.tokens;
    cache.schedule(seq, left, Claim::New).unwrap();
    cache.complete();
    cache.check().unwrap();
    (seq, hit.tokens)
}

#[test]
fn a_prompt_with_the_key_of_another_gets_nothing_of_it() {
    let mut cache = KvCache::new(Settings::new(Pages(16))).unwrap();
    let honest = prompt(0..33);
    let forged = prompt(100..133).with_forged_key(Pages(0), honest.key(Pages(0)));
    compute(&mut cache, honest.clone());
    let (_, hit) = compute(&mut cache, forged.clone());
    assert_eq!(hit, Tokens(0));
    assert_eq!(cache.snapshot().counters.key_collisions, 1);
    assert_eq!(cache.lookup(&forged).tokens, Tokens(0), "the key stays with the first");
    assert_eq!(cache.lookup(&honest).tokens, Tokens(32));
}

#[test]
fn pages_below_a_forged_one_are_not_shared_either() {
    let mut cache = KvCache::new(Settings::new(Pages(16))).unwrap();
    let honest = prompt(0..49);
    // Other first page, equal second and third, all under the honest keys.
    let forged = (0..3).map(Pages).fold(prompt((100..116).chain(16..49)), |forged, page| {
        forged.with_forged_key(page, honest.key(page))
    });
    let (seq, _) = compute(&mut cache, honest.clone());
    assert_eq!(cache.lookup(&forged).tokens, Tokens(0));
    // The honest pages go, the tree remembers them: still no way from the forged prefix to them.
    cache.free(seq).unwrap();
    cache.evict(Pages(2));
    cache.check().unwrap();
    assert_eq!(compute(&mut cache, forged).1, Tokens(0));
    assert_eq!(cache.lookup(&honest).tokens, Tokens(16));
}

#[test]
fn a_page_found_by_its_key_below_another_prefix_is_not_shared() {
    let mut cache = KvCache::new(Settings::new(Pages(16))).unwrap();
    let honest = prompt(0..33);
    compute(&mut cache, honest.clone());
    // Its own first page, cached under its own key; then the honest second page, tokens and key.
    compute(&mut cache, prompt(100..117));
    let forged = prompt((100..116).chain(16..33)).with_forged_key(Pages(1), honest.key(Pages(1)));
    assert_eq!(cache.lookup(&forged).tokens, Tokens(16));
    assert_eq!(cache.lookup(&honest).tokens, Tokens(32));
}
