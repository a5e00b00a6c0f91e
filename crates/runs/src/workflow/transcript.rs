//! The messages of a model call: a list that only grows, told by the head of a chain of digests.
//!
//! Every turn of an agent sends everything that was said before. Here a longer list shares what it has in common
//! with the shorter one, and its digest costs one step: adding a message is cheap however long the conversation is.

use std::sync::Arc;

use canon::{Digest, Value, jcs, sha256};

/// A list of messages. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Transcript(Option<Arc<Node>>);

#[derive(Debug)]
struct Node {
    message: Value,
    digest: Digest,
    head: Digest,
    len: u64,
    before: Option<Arc<Node>>,
}

impl Transcript {
    /// Returns how many messages there are.
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |node| node.len)
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the head of the chain: SHA-256 of the head before and the digest of the last message, 64 bytes in all;
    /// SHA-256 of nothing for the empty list.
    pub fn head(&self) -> Digest {
        self.0
            .as_ref()
            .map_or_else(|| sha256(b""), |node| node.head)
    }

    /// Adds a message at the end.
    pub fn push(&mut self, message: Value) {
        let digest = sha256(&jcs(&message));
        let mut both = Vec::with_capacity(64);
        both.extend_from_slice(self.head().as_bytes());
        both.extend_from_slice(digest.as_bytes());
        let node = Node {
            message,
            digest,
            head: sha256(&both),
            len: self.len() + 1,
            before: self.0.take(),
        };
        self.0 = Some(Arc::new(node));
    }

    /// Returns the digests of the messages after an earlier list, when this one goes on from it.
    pub fn added_since(&self, earlier: &Transcript) -> Option<Vec<Digest>> {
        let mut added = Vec::new();
        let mut at = self.0.as_ref();
        while let Some(node) = at {
            if node.len <= earlier.len() {
                break;
            }
            added.push(node.digest);
            at = node.before.as_ref();
        }
        let head = at.map_or_else(|| sha256(b""), |node| node.head);
        added.reverse();
        (head == earlier.head()).then_some(added)
    }

    /// Returns the messages after an earlier list, when this one goes on from it.
    pub fn since(&self, earlier: &Transcript) -> Option<Vec<Value>> {
        let mut added = Vec::new();
        let mut at = self.0.as_ref();
        while let Some(node) = at {
            if node.len <= earlier.len() {
                break;
            }
            added.push(node.message.clone());
            at = node.before.as_ref();
        }
        let head = at.map_or_else(|| sha256(b""), |node| node.head);
        added.reverse();
        (head == earlier.head()).then_some(added)
    }

    /// Returns the messages in order.
    pub fn to_value(&self) -> Value {
        let mut messages: Vec<Value> = Vec::new();
        let mut at = self.0.as_ref();
        while let Some(node) = at {
            messages.push(node.message.clone());
            at = node.before.as_ref();
        }
        messages.reverse();
        messages.into()
    }
}

impl FromIterator<Value> for Transcript {
    fn from_iter<I: IntoIterator<Item = Value>>(messages: I) -> Self {
        let mut transcript = Self::default();
        for message in messages {
            transcript.push(message);
        }
        transcript
    }
}

impl PartialEq for Transcript {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.head() == other.head()
    }
}

impl Drop for Node {
    /// One after the other: dropping a long list by recursion would run out of stack.
    fn drop(&mut self) {
        let mut next = self.before.take();
        while let Some(node) = next {
            next = match Arc::into_inner(node) {
                Some(mut node) => node.before.take(),
                None => None,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_longer_list_tells_what_was_added() {
        let short: Transcript = [json!(1), json!(2)].into_iter().collect();
        let mut long = short.clone();
        long.push(json!({"three": 3}));
        assert_eq!(long.len(), 3);
        assert_eq!(
            long.added_since(&short),
            Some(vec![sha256(br#"{"three":3}"#)])
        );
        assert_eq!(long.added_since(&Transcript::default()).unwrap().len(), 3);
        let other: Transcript = [json!(1), json!(9)].into_iter().collect();
        assert_eq!(long.added_since(&other), None);
        assert_eq!(long.to_value(), json!([1, 2, {"three": 3}]));
    }

    #[test]
    fn the_head_follows_the_published_rule() {
        let list: Transcript = [json!("a")].into_iter().collect();
        let rule = [
            sha256(b"").as_bytes().as_slice(),
            sha256(b"\"a\"").as_bytes(),
        ]
        .concat();
        assert_eq!(list.head(), sha256(&rule));
    }

    #[test]
    fn a_very_long_list_can_be_dropped() {
        let list: Transcript = (0..200_000).map(|number| json!(number)).collect();
        drop(list);
    }
}
