//! A canonical text whose members may still lie in the order in which they were read.
//!
//! The text is only ever appended to, so places in it stay valid while it grows. Objects whose members were read
//! in another order than the canonical one remember that order; it is applied when the text is read out.

use canon::Digest;
use sha2::{Digest as _, Sha256};

/// The canonical text of one structured input.
#[derive(Debug, Default)]
pub struct CanonicalText {
    pub(super) text: Vec<u8>,
    /// In the order in which they open.
    pub(super) objects: Vec<Object>,
    /// The members of objects that were read out of order, in canonical order; each object has a run of them.
    pub(super) order: Vec<Span>,
}

/// A part of the text, and the objects that open in it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) first_object: usize,
    pub(super) end_object: usize,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Object {
    /// After the opening brace.
    pub(super) start: usize,
    /// At the closing brace.
    pub(super) end: usize,
    /// The next object that opens outside.
    pub(super) next: usize,
    /// Its run in `order`; empty when the members lie as they should.
    pub(super) first_member: usize,
    pub(super) end_member: usize,
}

impl CanonicalText {
    /// Returns the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text.len());
        self.read_out(self.whole(), &mut |piece| out.extend_from_slice(piece));
        out
    }

    /// Returns the SHA-256 of the bytes.
    pub fn digest(&self) -> Digest {
        // The hasher takes small pieces much slower than one of their length.
        const BUFFER_LEN: usize = 32 << 10;
        let mut hasher = Sha256::new();
        let mut buffer = Vec::with_capacity(BUFFER_LEN);
        self.read_out(self.whole(), &mut |piece| {
            if buffer.len() + piece.len() > BUFFER_LEN {
                hasher.update(&buffer);
                buffer.clear();
            }
            if piece.len() < BUFFER_LEN {
                buffer.extend_from_slice(piece);
            } else {
                hasher.update(piece);
            }
        });
        hasher.update(&buffer);
        Digest::from_bytes(hasher.finalize().into())
    }

    /// Appends a part of the text again, in canonical order.
    pub(super) fn repeat(&mut self, span: Span) {
        let mut copy = Vec::with_capacity(span.end.saturating_sub(span.start));
        self.read_out(span, &mut |piece| copy.extend_from_slice(piece));
        self.text.extend_from_slice(&copy);
    }

    fn whole(&self) -> Span {
        Span {
            start: 0,
            end: self.text.len(),
            first_object: 0,
            end_object: self.objects.len(),
        }
    }

    /// Calls itself for objects out of order, so at most as deep as collections nest.
    fn read_out(&self, span: Span, sink: &mut impl FnMut(&[u8])) {
        let piece = |start: usize, end: usize| self.text.get(start..end).unwrap_or_default();
        let mut at = span.start;
        let mut index = span.first_object;
        while index < span.end_object
            && let Some(object) = self.objects.get(index)
        {
            let members = self.order.get(object.first_member..object.end_member);
            let Some(members @ [_, ..]) = members else {
                index += 1;
                continue;
            };
            sink(piece(at, object.start));
            for (nth, member) in members.iter().enumerate() {
                if nth > 0 {
                    sink(b",");
                }
                self.read_out(*member, sink);
            }
            at = object.end;
            index = object.next;
        }
        sink(piece(at, span.end));
    }
}
