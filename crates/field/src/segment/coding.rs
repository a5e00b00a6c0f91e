//! The bytes of a segment: what lies in it, piece by piece.
//!
//! Whole numbers are as short as they can be (seven bits a byte, the last byte without its top bit), texts carry their
//! length, digests are their 32 bytes, and values of closed lists their number in the list. The two kinds of entries that a
//! field has most of are written out; the others are rare and lie there as JSON.

use std::ops::Range;

use canon::Digest;
use domain::Timestamp;

use super::{UnreadableSegment, Words, unreadable};
use crate::event::{Effect, Entry, Event, Message, Recorded, Relation, UnitText};
use crate::kind::{MemoryType, Mode, RelationType, UnitStatus};
use crate::state::Row;
use crate::text::Claims;
use crate::vector::{DIMENSIONS_MAX, Model};

const OTHER: u8 = 0;
const RECORDED: u8 = 1;
const ATTUNED: u8 = 2;

/// A segment that is being written.
pub(super) struct Bytes(Vec<u8>);

impl Bytes {
    pub(super) fn new(form: u8) -> Self {
        Self(vec![form])
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }

    fn number(&mut self, mut number: u64) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                self.0.push(low & 0x7f);
                return;
            }
            self.0.push(low | 0x80);
        }
    }

    pub(super) fn count(&mut self, count: usize) {
        self.number(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.0.push(u8::from(flag));
    }

    fn bytes(&mut self, piece: &[u8]) {
        self.count(piece.len());
        self.0.extend_from_slice(piece);
    }

    fn string(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn digest(&mut self, digest: Digest) {
        self.0.extend_from_slice(digest.as_bytes());
    }

    fn optional<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }

    fn list<T>(&mut self, values: &[T], mut put: impl FnMut(&mut Self, &T)) {
        self.count(values.len());
        for value in values {
            put(self, value);
        }
    }

    /// A value of a closed list by its number in it.
    fn listed<T: PartialEq>(&mut self, all: &[T], value: &T) {
        self.count(all.iter().position(|one| one == value).unwrap_or(all.len()));
    }

    fn model(&mut self, model: &Model) {
        self.string(&model.name);
        self.digest(model.sha256);
    }

    pub(super) fn entry(&mut self, entry: &Entry) {
        self.number(entry.seq);
        self.0
            .extend_from_slice(&entry.at.as_micros().to_le_bytes());
        self.number(entry.epoch);
        self.string(&entry.agent_id);
        self.optional(entry.session_id.as_deref(), Self::string);
        self.optional(entry.message.as_ref(), |bytes, message| {
            bytes.string(&message.agent_id);
            bytes.string(&message.id);
            bytes.digest(message.sha256);
            bytes.optional(message.answer_sha256, Self::digest);
            bytes.flag(message.answer_without_text);
        });
        match &entry.event {
            // The short form has no place for unbound relations, which are rare.
            Event::Recorded(recorded) if recorded.relations.iter().all(|to| !to.unbound) => {
                self.0.push(RECORDED);
                self.recorded(recorded);
            }
            Event::Attuned {
                role,
                max_units,
                since_epoch,
                unit_ids,
            } => {
                self.0.push(ATTUNED);
                self.string(role);
                self.number(*max_units);
                self.optional(*since_epoch, Self::number);
                self.list(unit_ids, |bytes, id| bytes.string(id));
            }
            event => {
                self.0.push(OTHER);
                self.bytes(&serde_json::to_vec(event).unwrap_or_default());
            }
        }
    }

    fn recorded(&mut self, recorded: &Recorded) {
        self.string(&recorded.unit_id);
        self.listed(Mode::ALL, &recorded.mode);
        self.listed(MemoryType::ALL, &recorded.kind);
        self.string(&recorded.agent_role);
        self.optional(recorded.task_id.as_deref(), Self::string);
        self.optional(recorded.score, |bytes, score| {
            bytes.0.extend_from_slice(&score.to_le_bytes());
        });
        self.list(&recorded.relations, |bytes, relation| {
            bytes.listed(RelationType::ALL, &relation.kind);
            bytes.string(&relation.target_id);
        });
        self.listed(UnitStatus::ALL, &recorded.status);
        self.digest(recorded.text_sha256);
        self.optional(recorded.model.as_ref(), Self::model);
        self.list(&recorded.effects, |bytes, effect| {
            bytes.string(&effect.unit_id);
            bytes.listed(UnitStatus::ALL, &effect.status);
        });
    }

    pub(super) fn text(&mut self, text: Option<&UnitText>) {
        self.optional(text, |bytes, text| {
            let strings = |bytes: &mut Self, texts: &Vec<String>| {
                bytes.list(texts, |bytes, text| bytes.string(text));
            };
            bytes.string(&text.salt);
            bytes.string(&text.content);
            bytes.string(&text.purpose);
            bytes.optional(text.question.as_deref(), Self::string);
            bytes.optional(text.reasoning.as_deref(), Self::string);
            bytes.optional(text.evidence.as_ref(), strings);
            bytes.optional(text.assumptions.as_ref(), strings);
            bytes.list(&text.descriptions, |bytes, description| {
                bytes.optional(description.as_deref(), Self::string);
            });
        });
    }

    pub(super) fn claims(&mut self, claims: Option<&Claims>) {
        self.optional(claims, |bytes, claims| {
            bytes.flag(claims.denies);
            bytes.list(&claims.numbers, |bytes, number| {
                bytes.0.extend_from_slice(&number.to_le_bytes());
            });
        });
    }

    /// A vector: one bit for each component that is not zero, then these components.
    pub(super) fn components(&mut self, components: &[i8]) {
        self.count(components.len());
        for eight in components.chunks(8) {
            let bits = eight.iter().zip(0..).filter(|(value, _)| **value != 0);
            self.0
                .push(bits.fold(0, |byte, (_, bit)| byte | (1 << bit)));
        }
        let values = components.iter().filter(|value| **value != 0);
        self.0.extend(values.map(|value| value.cast_unsigned()));
    }

    pub(super) fn words(&mut self, words: &Words) {
        self.count(words.len());
        for (word, units) in words {
            self.string(word);
            self.list(units, |bytes, (unit, times)| {
                bytes.number(u64::from(*unit));
                bytes.number(u64::from(*times));
            });
        }
    }
}

type Read<T> = Result<T, UnreadableSegment>;

/// What is left to read of a segment.
pub(super) struct Remaining<'a>(&'a [u8]);

impl<'a> Remaining<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Nothing may be left.
    pub(super) fn finish(self) -> Read<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(unreadable("it does not end where it should"))
        }
    }

    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (piece, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| unreadable("it ends too early"))?;
        self.0 = rest;
        Ok(piece)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let piece = self.take(N)?;
        piece.try_into().map_err(unreadable)
    }

    pub(super) fn byte(&mut self) -> Read<u8> {
        self.array().map(|[byte]| byte)
    }

    fn number(&mut self) -> Read<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(unreadable("a number is too long"))
    }

    fn small(&mut self) -> Read<u32> {
        self.number()
            .and_then(|number| u32::try_from(number).map_err(unreadable))
    }

    pub(super) fn count(&mut self) -> Read<usize> {
        self.number()
            .and_then(|number| usize::try_from(number).map_err(unreadable))
    }

    pub(super) fn flag(&mut self) -> Read<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(unreadable("a flag is neither 0 nor 1")),
        }
    }

    fn bytes(&mut self) -> Read<&'a [u8]> {
        let count = self.count()?;
        self.take(count)
    }

    fn text_piece(&mut self) -> Read<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(unreadable)
    }

    fn string(&mut self) -> Read<String> {
        self.text_piece().map(str::to_owned)
    }

    fn digest(&mut self) -> Read<Digest> {
        self.array().map(Digest::from_bytes)
    }

    fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<Option<T>> {
        if self.flag()? {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let count = self.count()?;
        // A value takes a byte at least, so that a damaged count asks for no more memory than the segment has.
        let mut values = Vec::with_capacity(count.min(self.0.len()));
        for _ in 0..count {
            values.push(read(self)?);
        }
        Ok(values)
    }

    fn listed<T: Copy>(&mut self, all: &[T]) -> Read<T> {
        let place = self.count()?;
        all.get(place)
            .copied()
            .ok_or_else(|| unreadable("a name is not in its list"))
    }

    fn model(&mut self) -> Read<Model> {
        Ok(Model {
            name: self.string()?,
            sha256: self.digest()?,
        })
    }

    pub(super) fn entry(&mut self) -> Read<Entry> {
        Ok(Entry {
            seq: self.number()?,
            at: Timestamp::from_micros(i64::from_le_bytes(self.array()?)),
            epoch: self.number()?,
            agent_id: self.string()?,
            session_id: self.optional(Self::string)?,
            message: self.optional(|rest| {
                Ok(Message {
                    agent_id: rest.string()?,
                    id: rest.string()?,
                    sha256: rest.digest()?,
                    answer_sha256: rest.optional(Self::digest)?,
                    answer_without_text: rest.flag()?,
                })
            })?,
            event: match self.byte()? {
                OTHER => serde_json::from_slice(self.bytes()?).map_err(unreadable)?,
                RECORDED => Event::Recorded(self.recorded()?),
                ATTUNED => Event::Attuned {
                    role: self.string()?,
                    max_units: self.number()?,
                    since_epoch: self.optional(Self::number)?,
                    unit_ids: self.list(Self::string)?,
                },
                _ => return Err(unreadable("an entry is of an unknown kind")),
            },
        })
    }

    fn recorded(&mut self) -> Read<Recorded> {
        Ok(Recorded {
            unit_id: self.string()?,
            mode: self.listed(Mode::ALL)?,
            kind: self.listed(MemoryType::ALL)?,
            agent_role: self.string()?,
            task_id: self.optional(Self::string)?,
            score: self.optional(|rest| rest.array().map(f64::from_le_bytes))?,
            relations: self.list(|rest| {
                Ok(Relation {
                    kind: rest.listed(RelationType::ALL)?,
                    target_id: rest.string()?,
                    unbound: false,
                })
            })?,
            status: self.listed(UnitStatus::ALL)?,
            text_sha256: self.digest()?,
            model: self.optional(Self::model)?,
            effects: self.list(|rest| {
                Ok(Effect {
                    unit_id: rest.string()?,
                    status: rest.listed(UnitStatus::ALL)?,
                })
            })?,
        })
    }

    pub(super) fn text(&mut self) -> Read<Option<UnitText>> {
        self.optional(|rest| {
            Ok(UnitText {
                salt: rest.string()?,
                content: rest.string()?,
                purpose: rest.string()?,
                question: rest.optional(Self::string)?,
                reasoning: rest.optional(Self::string)?,
                evidence: rest.optional(|rest| rest.list(Self::string))?,
                assumptions: rest.optional(|rest| rest.list(Self::string))?,
                descriptions: rest.list(|rest| rest.optional(Self::string))?,
            })
        })
    }

    pub(super) fn claims(&mut self) -> Read<Option<Claims>> {
        self.optional(|rest| {
            Ok(Claims {
                denies: rest.flag()?,
                numbers: rest.list(|rest| rest.array().map(u64::from_le_bytes))?,
            })
        })
    }

    pub(super) fn components(&mut self) -> Read<Vec<i8>> {
        let count = self.count()?;
        if count > DIMENSIONS_MAX {
            return Err(unreadable("a vector is too long"));
        }
        let bits = self.take(count.div_ceil(8))?;
        let set = bits.iter().map(|byte| byte.count_ones() as usize).sum();
        let mut values = self.take(set)?.iter();
        let mut components = vec![0; count];
        for (eight, bits) in components.chunks_mut(8).zip(bits) {
            let mut bits = *bits;
            while bits != 0 {
                let place = bits.trailing_zeros() as usize;
                if let (Some(component), Some(value)) = (eight.get_mut(place), values.next()) {
                    *component = value.cast_signed();
                }
                bits &= bits - 1;
            }
        }
        Ok(components)
    }

    /// Reads a word and the rows that have it, which must be among those of the segment and ascend.
    pub(super) fn word(&mut self, rows: &Range<Row>) -> Read<(&'a str, Vec<(Row, u32)>)> {
        let word = self.text_piece()?;
        let mut least = rows.start;
        let places = self.list(|rest| {
            let row = rest.small()?.checked_add(rows.start);
            let row = row
                .filter(|row| (least..rows.end).contains(row))
                .ok_or_else(|| unreadable("a word is in a unit that is not there"))?;
            least = row + 1;
            Ok((row, rest.small()?))
        })?;
        Ok((word, places))
    }
}
