//! What matters to whom: the score of a unit for an agent, and the reason in words.
//!
//! Nine factors, each from 0 to 1, with fixed weights; a factor that the request gives nothing to compare with is left
//! out and the others share its weight. Scores are whole ten-thousandths, so that equal means equal. Ranking reads a
//! few bytes per unit, one pass over the vectors, and the lists of the words asked for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::kind::{MemoryType, Mode, UnitStatus};
use crate::search::VISITS_MAX;
use crate::state::{Field, Row, Unit};
use crate::vector::Vector;

/// What ranking needs to know of a unit, close together in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    epoch: u64,
    author: u32,
    role: u32,
    task: u32,
    session: u32,
    score: Option<f32>,
    kind: MemoryType,
    /// Not superseded, not retracted, not purged.
    stands: bool,
    archived: bool,
    committed: bool,
}

/// Numbers for authors, and others for roles, tasks and sessions; 0 is nobody.
///
/// Authors have their own, because ranking keeps a list by author.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    authors: BTreeMap<String, u32>,
    others: BTreeMap<String, u32>,
}

impl Names {
    /// Returns the number of a session.
    pub(crate) fn session(&mut self, session: &str) -> u32 {
        number_of(&mut self.others, session)
    }
}

fn number_of(names: &mut BTreeMap<String, u32>, name: &str) -> u32 {
    if let Some(number) = names.get(name) {
        return *number;
    }
    let number = u32::try_from(names.len() + 1).unwrap_or(u32::MAX);
    names.insert(name.to_owned(), number);
    number
}

impl Mark {
    pub(crate) fn of(unit: &Unit, names: &mut Names) -> Self {
        let Names { authors, others } = names;
        let mut optional = |name: Option<&str>| name.map_or(0, |name| number_of(others, name));
        Self {
            epoch: unit.epoch,
            author: number_of(authors, &unit.author),
            role: optional(Some(&unit.role)),
            task: optional(unit.task.as_deref()),
            session: optional(unit.session.as_deref()),
            score: unit.score.map(narrow),
            kind: unit.kind,
            stands: !matches!(unit.status, UnitStatus::Superseded | UnitStatus::Retracted)
                && !unit.is_purged(),
            archived: unit.archived,
            committed: unit.mode == Mode::Committed,
        }
    }
}

// A share from 0 to 1; seven digits are plenty for a score.
fn narrow(value: f64) -> f32 {
    value as f32
}

/// For whom units are ranked.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) agent: &'a str,
    pub(crate) role: &'a str,
    /// Only what somebody stands for, no drafts.
    pub(crate) committed_only: bool,
    pub(crate) interests: Vec<&'a str>,
    pub(crate) task: Option<&'a str>,
    /// What is asked for; may be empty.
    pub(crate) query: &'a str,
    /// Where the query comes from, for the reason.
    pub(crate) query_source: &'static str,
    pub(crate) vector: Option<&'a Vector>,
    pub(crate) recency_weight: Option<f64>,
    pub(crate) since_epoch: Option<u64>,
    pub(crate) include_own: bool,
    pub(crate) include_archived: bool,
    pub(crate) threshold: Option<f64>,
    /// "Now" for the age of units.
    pub(crate) epoch: u64,
}

/// A ranked unit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ranked {
    pub(crate) row: Row,
    /// In ten-thousandths.
    pub(crate) score: u32,
    pub(crate) reason: String,
}

/// The best units, and how many there are in all.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ranking {
    pub(crate) best: Vec<Ranked>,
    pub(crate) available: usize,
}

const SIMILARITY: usize = 0;
const INTERESTS: usize = 1;
const TASK: usize = 2;
const ROLE: usize = 3;
const TYPE: usize = 4;
const CONFIDENCE: usize = 5;
const PROXIMITY: usize = 6;
const DIVERSITY: usize = 7;
const RECENCY: usize = 8;
const FACTORS: usize = 9;

/// The weights of all factors but recency, in their order.
const WEIGHTS: [f64; 8] = [0.30, 0.10, 0.15, 0.05, 0.06, 0.05, 0.07, 0.07];
const RECENCY_WEIGHT: f64 = 0.15;
/// The age at which a unit is half as recent as a new one.
const HALF_AGE_EPOCHS: f64 = 100.0;
/// What a unit without a score counts for.
const UNKNOWN_CONFIDENCE: f64 = 0.3;
/// Units from which proximity is measured, and units it reaches.
const ANCHORS_MAX: usize = 64;
const NEIGHBOURS_MAX: usize = 4_096;
const SCALE: f64 = 10_000.0;

/// A unit by its score without the bonus for another source; equal scores by epoch, then by sequence.
type Candidate = (u32, u64, Row);

/// The units of one author, as far as they can matter.
#[derive(Default)]
struct Author {
    /// The best of them, the worst on top.
    best: BinaryHeap<Reverse<Candidate>>,
    /// How many reach the threshold without a bonus.
    sure: usize,
    /// Those that reach it only with one.
    undecided: Vec<Candidate>,
}

impl Author {
    /// Keeps a unit while it is among the best, of which there are at most `most`.
    fn offer(&mut self, candidate: Candidate, most: usize) {
        if self.best.len() < most {
            self.best.push(Reverse(candidate));
        } else if let Some(mut worst) = self.best.peek_mut()
            && worst.0 < candidate
        {
            *worst = Reverse(candidate);
        }
    }

    fn weigh(&mut self, candidate: Candidate, least: u32, bonus_max: u32) {
        if candidate.0 >= least {
            self.sure += 1;
        } else if candidate.0 + bonus_max >= least {
            self.undecided.push(candidate);
        }
    }
}

impl Field {
    /// Ranks the units that a scope may see; returns at most `max_units`.
    pub(crate) fn rank(&self, scope: &Scope<'_>, max_units: usize) -> Ranking {
        let view = View::new(self, scope, None);
        let least = scope.threshold.map(whole);
        // By the number of the author: looking it up must not cost more than scoring.
        let mut authors: Vec<Author> = Vec::new();
        let mut available = 0;
        for (row, mark) in (0..).zip(&self.marks) {
            if !view.admits(mark) {
                continue;
            }
            let candidate = (view.base(row, mark), mark.epoch, row);
            let number = usize::try_from(mark.author).unwrap_or_default();
            if authors.len() <= number {
                authors.resize_with(number + 1, Author::default);
            }
            if let Some(author) = authors.get_mut(number) {
                author.offer(candidate, max_units);
                if let Some(least) = least {
                    author.weigh(candidate, least, view.bonus(0));
                }
            }
            available += 1;
        }
        if let Some(least) = least {
            let reached = authors.iter().map(|author| view.count_from(author, least));
            available = reached.sum();
        }
        let chosen = view.take_best(authors, max_units.min(available));
        let best = chosen
            .into_iter()
            .map(|(score, row, rank)| Ranked {
                row,
                score,
                reason: view.reason(row, rank),
            })
            .collect();
        Ranking { best, available }
    }

    /// Returns the numbers of the sessions that an agent may not see into.
    fn hidden_from(&self, agent: &str) -> BTreeSet<u32> {
        let sessions = self.sessions.keys();
        sessions
            .filter(|session| !self.sees_session(agent, Some(session)))
            .filter_map(|session| self.names.others.get(session.as_str()).copied())
            .collect()
    }

    /// Returns the epoch of the newest unit that an agent may see.
    pub(crate) fn newest_seen(&self, agent: &str) -> u64 {
        let hidden = self.hidden_from(agent);
        let newest = self.marks.iter().rev();
        let newest = newest.map(|mark| (mark.epoch, mark.session));
        let mut seen = newest.filter(|(_, session)| hidden.is_empty() || !hidden.contains(session));
        seen.next().map_or(0, |(epoch, _)| epoch)
    }

    /// Returns the score of one unit for a scope, as if it were the only one of its author.
    ///
    /// Costs the same in the largest field.
    pub(crate) fn relevance(&self, scope: &Scope<'_>, row: Row) -> f64 {
        let view = View::new(self, scope, Some(row));
        let mark = usize::try_from(row)
            .ok()
            .and_then(|row| self.marks.get(row));
        mark.map_or(0.0, |mark| {
            f64::from(view.base(row, mark) + view.bonus(0)) / SCALE
        })
    }
}

/// What a request compares units with, computed once.
struct View<'a> {
    field: &'a Field,
    scope: &'a Scope<'a>,
    weights: [f64; FACTORS],
    /// The row that the first place of the lists below is about.
    first: Row,
    words: Vec<f64>,
    cosines: Vec<f64>,
    interests: Vec<f64>,
    role_words: Vec<f64>,
    agent: Option<u32>,
    role: Option<u32>,
    task: Option<u32>,
    hidden_sessions: BTreeSet<u32>,
    near: Vec<f64>,
}

impl<'a> View<'a> {
    /// Compares every unit with the scope, or only the one of row `only`.
    fn new(field: &'a Field, scope: &'a Scope<'a>, only: Option<Row>) -> Self {
        let rows = field.units.len();
        let named = |name: &str| field.names.others.get(name).copied();
        let hidden = field.hidden_from(scope.agent);
        let mut visits = VISITS_MAX;
        let mut scores = |query: &str| match only {
            Some(row) => vec![field.search.words_at(query, &hidden, row)],
            None => {
                let mut scores = vec![0.0; rows];
                let words = &mut scores;
                field.search.score_words(query, &hidden, &mut visits, words);
                scores
            }
        };
        // What is asked for comes before what is of interest, should there be too much.
        let words = match scope.query.is_empty() {
            true => Vec::new(),
            false => scores(scope.query),
        };
        let role_words = scores(scope.role);
        let cosines = match (scope.vector, only) {
            (None, _) => Vec::new(),
            (Some(vector), Some(row)) => {
                let theirs = field.search.vector(row, &vector.model);
                let cosine = theirs.and_then(|theirs| vector.cosine(&theirs));
                vec![cosine.unwrap_or_default()]
            }
            (Some(vector), None) => {
                let mut cosines = vec![0.0; rows];
                field.search.score_vectors(vector, &mut cosines);
                cosines
            }
        };
        let mut interests = Vec::new();
        for interest in &scope.interests {
            let found = scores(interest);
            if interests.is_empty() {
                interests = found;
            } else {
                for (best, new) in interests.iter_mut().zip(found) {
                    *best = new.max(*best);
                }
            }
        }
        let near = match (neighbours(field, scope), only) {
            (near, _) if near.is_empty() => Vec::new(),
            (near, Some(row)) => vec![near.get(&row).copied().unwrap_or_default()],
            (near, None) => {
                let mut closeness = vec![0.0; rows];
                for (row, close) in near {
                    let place = usize::try_from(row).ok();
                    if let Some(place) = place.and_then(|row| closeness.get_mut(row)) {
                        *place = close;
                    }
                }
                closeness
            }
        };
        let mut view = Self {
            field,
            scope,
            weights: [0.0; FACTORS],
            first: only.unwrap_or(0),
            words,
            cosines,
            interests,
            role_words,
            agent: field.names.authors.get(scope.agent).copied(),
            role: named(scope.role),
            task: scope.task.and_then(named),
            hidden_sessions: BTreeSet::new(),
            near,
        };
        view.hidden_sessions = hidden;
        view.weigh();
        view
    }

    /// Shares the weight of what cannot be compared among the rest.
    fn weigh(&mut self) {
        let recency = self.scope.recency_weight.unwrap_or(RECENCY_WEIGHT);
        let mut weights = [0.0; FACTORS];
        for (weight, given) in weights.iter_mut().zip(WEIGHTS) {
            *weight = given;
        }
        let mut drop = |factor: usize, unused: bool| {
            if let (true, Some(weight)) = (unused, weights.get_mut(factor)) {
                *weight = 0.0;
            }
        };
        drop(SIMILARITY, self.words.is_empty() && self.cosines.is_empty());
        drop(INTERESTS, self.interests.is_empty());
        drop(TASK, self.scope.task.is_none());
        drop(PROXIMITY, self.near.is_empty());
        let sum: f64 = weights.iter().sum();
        for weight in &mut weights {
            *weight *= (1.0 - recency) / sum;
        }
        if let Some(weight) = weights.get_mut(RECENCY) {
            *weight = recency;
        }
        self.weights = weights;
    }

    fn admits(&self, mark: &Mark) -> bool {
        mark.stands
            && (mark.committed || !self.scope.committed_only)
            && (self.scope.include_archived || !mark.archived)
            && (self.scope.include_own || Some(mark.author) != self.agent)
            && self
                .scope
                .since_epoch
                .is_none_or(|since| mark.epoch >= since)
            && (self.hidden_sessions.is_empty() || !self.hidden_sessions.contains(&mark.session))
    }

    /// The factors of a unit, diversity aside.
    fn factors(&self, row: Row, mark: &Mark) -> [f64; FACTORS] {
        let index = usize::try_from(row - self.first).unwrap_or(usize::MAX);
        let at = |scores: &[f64]| scores.get(index).copied().unwrap_or_default();
        let cosine = at(&self.cosines).max(0.0);
        let words = damped(at(&self.words));
        let age = distance(self.scope.epoch, mark.epoch);
        let role = if Some(mark.role) == self.role {
            1.0
        } else {
            damped(at(&self.role_words))
        };
        // In the order of their numbers.
        [
            combined_score(words, cosine, self.cosines.is_empty()),
            damped(at(&self.interests)),
            f64::from(u8::from(self.task == Some(mark.task))),
            role,
            type_weight(mark.kind),
            mark.score.map_or(UNKNOWN_CONFIDENCE, f64::from),
            at(&self.near),
            0.0,
            1.0 / (1.0 + age / HALF_AGE_EPOCHS),
        ]
    }

    fn base(&self, row: Row, mark: &Mark) -> u32 {
        let factors = self.factors(row, mark);
        let sum: f64 = factors
            .iter()
            .zip(&self.weights)
            .map(|(value, weight)| value * weight)
            .sum();
        whole(sum)
    }

    /// What a unit gains for its source: the first of an author all, the next half, and so on.
    fn bonus(&self, rank: usize) -> u32 {
        let weight = self.weights.get(DIVERSITY).copied().unwrap_or_default();
        whole(weight * diversity(rank))
    }

    /// Returns how many units of one author reach a score, the bonus included.
    ///
    /// Within an author the order by score is the order without the bonus, so only the undecided ones are sorted.
    fn count_from(&self, author: &Author, least: u32) -> usize {
        let mut undecided = author.undecided.clone();
        undecided.sort_unstable_by(|one, other| other.cmp(one));
        let reached = undecided
            .iter()
            .zip(author.sure..)
            .take_while(|((base, ..), rank)| base + self.bonus(*rank) >= least)
            .count();
        author.sure + reached
    }

    /// Returns the best units with their scores and their rank among those of their author.
    fn take_best(&self, authors: Vec<Author>, count: usize) -> Vec<(u32, Row, usize)> {
        // The best first: the order is reversed.
        let sorted = |author: Author| author.best.into_sorted_vec().into_iter().zip(0..);
        let mut authors: Vec<_> = authors.into_iter().map(sorted).collect();
        let mut heads: BinaryHeap<((u32, u64, Row), usize, usize)> = BinaryHeap::new();
        let place = |(Reverse((base, epoch, row)), rank): (Reverse<Candidate>, usize)| {
            ((base + self.bonus(rank), epoch, row), rank)
        };
        for (index, author) in authors.iter_mut().enumerate() {
            let head = author.next().map(place);
            heads.extend(head.map(|(head, rank)| (head, index, rank)));
        }
        let mut best = Vec::new();
        while best.len() < count {
            let Some(((score, _, row), index, rank)) = heads.pop() else {
                break;
            };
            best.push((score, row, rank));
            let next = authors.get_mut(index).and_then(Iterator::next).map(place);
            heads.extend(next.map(|(head, rank)| (head, index, rank)));
        }
        best
    }

    /// Says which two factors count most.
    fn reason(&self, row: Row, rank: usize) -> String {
        let mark = usize::try_from(row)
            .ok()
            .and_then(|row| self.field.marks.get(row));
        let (Some(mark), Some(unit)) = (mark, self.field.at(row)) else {
            return String::new();
        };
        let mut factors = self.factors(row, mark);
        if let Some(place) = factors.get_mut(DIVERSITY) {
            *place = diversity(rank);
        }
        let mut shares: Vec<(u32, usize, f64)> = factors
            .iter()
            .zip(&self.weights)
            .enumerate()
            .map(|(factor, (value, weight))| (whole(value * weight), factor, *value))
            .filter(|(share, ..)| *share > 0)
            .collect();
        shares.sort_by_key(|(share, factor, _)| (std::cmp::Reverse(*share), *factor));
        let words: Vec<String> = shares
            .iter()
            .take(2)
            .map(|(_, factor, value)| self.words_of(*factor, *value, unit))
            .collect();
        match words.as_slice() {
            [] => "Nothing speaks for it in particular.".to_owned(),
            [only] => format!("Mainly: {only}."),
            [first, second, ..] => format!("Mainly: {first}. Also: {second}."),
        }
    }

    fn words_of(&self, factor: usize, value: f64, unit: &Unit) -> String {
        match factor {
            SIMILARITY => {
                let source = self.scope.query_source;
                format!("its words are close to {source} ({value:.2})")
            }
            INTERESTS => format!("it touches the interests of the requester ({value:.2})"),
            TASK => "it belongs to the active task".to_owned(),
            ROLE => format!("it fits the role {} ({value:.2})", self.scope.role),
            TYPE => format!("it is a {}", unit.kind.as_str().replace('_', " ")),
            CONFIDENCE => format!("its author is confident ({value:.2})"),
            PROXIMITY => "it is related to units of the requester or the task".to_owned(),
            DIVERSITY => format!("it adds {} as a source", unit.author),
            _ => format!("it is recent (epoch {})", unit.epoch),
        }
    }
}

/// Words and vectors together; words alone where there are no vectors.
pub(crate) fn combined_score(words: f64, cosine: f64, no_vectors: bool) -> f64 {
    if no_vectors {
        words
    } else {
        0.5 * words + 0.5 * cosine
    }
}

/// Brings a score of words, which has no upper end, below 1 without changing the order.
pub(crate) fn damped(score: f64) -> f64 {
    // Most units have none of the words, and a division costs more than asking.
    if score == 0.0 {
        return 0.0;
    }
    score / (score + 0.5)
}

fn diversity(rank: usize) -> f64 {
    let rank = u32::try_from(rank).unwrap_or(u32::MAX);
    1.0 / (1.0 + f64::from(rank))
}

// A share from 0 to 1, clamped, times ten thousand.
fn whole(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * SCALE).round() as u32
}

// Epochs are below 2^53.
fn distance(now: u64, epoch: u64) -> f64 {
    now.saturating_sub(epoch) as f64
}

fn type_weight(kind: MemoryType) -> f64 {
    match kind {
        MemoryType::HumanDirective => 1.0,
        MemoryType::Decision | MemoryType::Contradiction => 0.9,
        MemoryType::Constraint | MemoryType::Correction => 0.8,
        MemoryType::Synthesis => 0.7,
        MemoryType::Finding => 0.6,
        MemoryType::Question | MemoryType::Assumption | MemoryType::Intention => 0.5,
        MemoryType::Observation => 0.3,
    }
}

/// Returns units one or two relations away from the latest units of the requester and of the active task.
fn neighbours(field: &Field, scope: &Scope<'_>) -> BTreeMap<Row, f64> {
    let mut near = BTreeMap::new();
    let own = field.by_author.get(scope.agent);
    let of_task = scope.task.and_then(|task| field.by_task.get(task));
    // Nothing leads to, from or through a unit that the requester may not see.
    let is_seen = |row: &Row| {
        let unit = field.at(*row);
        unit.is_some_and(|unit| field.sees(scope.agent, unit))
    };
    let mut edge: BTreeSet<Row> = [own, of_task]
        .into_iter()
        .flatten()
        .flat_map(|rows| {
            let rows = rows.iter().rev().take(NEIGHBOURS_MAX).copied();
            rows.filter(is_seen).take(ANCHORS_MAX)
        })
        .collect();
    let anchors = edge.clone();
    for closeness in [1.0, 0.5] {
        let mut next = BTreeSet::new();
        for unit in edge.iter().filter_map(|row| field.at(*row)) {
            let targets = unit
                .relations
                .iter()
                .filter(|relation| !relation.unbound)
                .filter_map(|relation| field.unit_rows.get(&relation.target_id).copied());
            let sources = unit.incoming.iter().map(|(_, row)| *row);
            for row in targets.chain(sources) {
                if near.len() >= NEIGHBOURS_MAX {
                    return near;
                }
                if !anchors.contains(&row) && !near.contains_key(&row) && is_seen(&row) {
                    near.insert(row, closeness);
                    next.insert(row);
                }
            }
        }
        edge = next;
    }
    near
}
