//! A map that forgets what nobody asked for lately.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Two halves: what was put in or asked for since the last change of halves, and what was before. When the younger half is
/// full, the older one is forgotten.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, (V, usize)>,
    young_weight: usize,
    old: HashMap<K, (V, usize)>,
    /// Of one half.
    weight_max: usize,
}

impl<K: Hash + Eq, V> Recent<K, V> {
    /// Makes one for things that together weigh no more than this.
    pub(crate) fn new(weight_max: usize) -> Self {
        Self {
            young: HashMap::new(),
            young_weight: 0,
            old: HashMap::new(),
            weight_max: weight_max / 2,
        }
    }

    pub(crate) fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_mut(key).map(|value| &*value)
    }

    pub(crate) fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if let Some((key, (value, weight))) = self.old.remove_entry(key) {
            self.young_weight += weight;
            self.young.insert(key, (value, weight));
        }
        self.young.get_mut(key).map(|(value, _)| value)
    }

    /// Returns what one thing may weigh without all others being forgotten for it.
    pub(crate) fn weight_max(&self) -> usize {
        self.weight_max
    }

    pub(crate) fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if let Some((value, weight)) = self.young.remove(key) {
            self.young_weight -= weight;
            return Some(value);
        }
        self.old.remove(key).map(|(value, _)| value)
    }

    fn make_room(&mut self, weight: usize) -> bool {
        if self.young_weight + weight <= self.weight_max || self.young.is_empty() {
            return false;
        }
        let forgotten = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        self.young_weight = 0;
        !forgotten.is_empty()
    }

    /// Puts something in; true when something was forgotten for it.
    pub(crate) fn insert(&mut self, key: K, value: V, weight: usize) -> bool {
        let has_forgotten = self.make_room(weight);
        self.old.remove(&key);
        self.young_weight += weight;
        if let Some((_, weight)) = self.young.insert(key, (value, weight)) {
            self.young_weight -= weight;
        }
        has_forgotten
    }

    /// Returns what is there, or puts something in; with whether something was forgotten for it.
    pub(crate) fn get_or_insert(
        &mut self,
        key: K,
        weight: usize,
        make: impl FnOnce() -> V,
    ) -> (&mut V, bool) {
        let is_known = self.get(&key).is_some();
        let has_forgotten = !is_known && self.make_room(weight);
        self.young_weight += if is_known { 0 } else { weight };
        let entry = self.young.entry(key).or_insert_with(|| (make(), weight));
        (&mut entry.0, has_forgotten)
    }

    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.young_weight = 0;
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let mut recent = Recent::new(8);
        for key in 0..4 {
            assert!(!recent.insert(key, key, 1));
        }
        assert!(
            !recent.insert(4, 4, 1),
            "the first half became the older one"
        );
        assert_eq!(recent.get(&1), Some(&1));
        assert!(!recent.insert(5, 5, 1));
        assert!(!recent.insert(6, 6, 1));
        assert!(recent.insert(7, 7, 1), "0, 2 and 3 are forgotten");
        assert_eq!(
            (0..8).filter(|key| recent.get(key).is_some()).count(),
            5,
            "1, 4, 5, 6 and 7"
        );
        recent.clear();
        assert_eq!(recent.get(&1), None);
    }

    #[test]
    fn what_is_heavier_than_all_room_is_kept_alone() {
        let mut recent = Recent::new(8);
        recent.insert("light", 1, 1);
        recent.insert("heavy", 2, 100);
        assert_eq!(recent.get("heavy"), Some(&2));
        recent.insert("next", 3, 1);
        recent.insert("last", 4, 100);
        assert_eq!(recent.get("light"), None);
    }

    #[test]
    fn a_value_is_replaced_wherever_it_is() {
        let mut recent = Recent::new(4);
        recent.insert(1, 'a', 1);
        recent.insert(2, 'b', 1);
        recent.insert(3, 'c', 1);
        recent.insert(1, 'd', 1);
        assert_eq!(recent.get(&1), Some(&'d'));
        assert_eq!(recent.get(&2), Some(&'b'));
    }
}
