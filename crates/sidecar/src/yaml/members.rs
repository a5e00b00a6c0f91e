//! The members of open objects: their names, and where in the text they lie.
//!
//! A stack: the members of the innermost object are last, and go when it closes. Names are held apart from the text,
//! where they are escaped and would compare otherwise.

use canon::{NameKey, Profile};

use super::text::Span;
use super::{YamlError, YamlRefusal};

#[derive(Debug)]
pub(super) struct Members {
    profile: Profile,
    members: Vec<Member>,
    names: String,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    name: (usize, usize),
    derived: bool,
    line: usize,
    span: Span,
}

/// Where the members of an object begin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    member: usize,
    name: usize,
}

impl Members {
    pub(super) fn new(profile: Profile) -> Self {
        Self {
            profile,
            members: Vec::new(),
            names: String::new(),
        }
    }

    /// Opens an object.
    pub(super) fn start(&self) -> Start {
        Start {
            member: self.members.len(),
            name: self.names.len(),
        }
    }

    /// Says whether a name would follow the last one of an object; nothing when it would be the first.
    pub(super) fn follows(&self, start: Start, name: &str) -> Option<bool> {
        let last = self.members.get(start.member..)?.last()?;
        let order = self.profile.compare_names(last.name(&self.names), name);
        Some(order.is_lt())
    }

    /// Adds a member to the innermost object; `derived` says that its name was made from something that is not a
    /// string scalar.
    pub(super) fn push(&mut self, name: &str, derived: bool, line: usize, span: Span) {
        let start = self.names.len();
        self.names.push_str(name);
        self.members.push(Member {
            name: (start, self.names.len()),
            derived,
            line,
            span,
        });
    }

    /// Returns the place of the last member, to be completed.
    pub(super) fn last_span(&mut self) -> Option<&mut Span> {
        self.members.last_mut().map(|member| &mut member.span)
    }

    /// Returns the places of an object's members in the order of their names.
    pub(super) fn sort(&self, start: Start) -> Result<impl Iterator<Item = Span> + '_, YamlError> {
        let members = self.members.get(start.member..).unwrap_or_default();
        let names = &self.names;
        let same = common_len(members.iter().map(|member| member.name(names)));
        // Small entries: moving whole members about costs more than comparing them.
        let mut sorted: Vec<(NameKey, &Member)> = members
            .iter()
            .map(|member| (self.profile.name_key(member.name(names), same), member))
            .collect();
        // Members of one name stay in the order in which they were read, which is that of their places.
        sorted.sort_unstable_by(|(key_a, a), (key_b, b)| {
            key_a
                .cmp(key_b)
                .then_with(|| self.profile.compare_names(a.name(names), b.name(names)))
                .then_with(|| a.span.start.cmp(&b.span.start))
        });
        refuse_repeated(&sorted, names)?;
        Ok(sorted.into_iter().map(|(_, member)| member.span))
    }

    /// Closes an object.
    pub(super) fn forget(&mut self, start: Start) {
        self.members.truncate(start.member);
        self.names.truncate(start.name);
    }
}

impl Member {
    fn name<'a>(&self, names: &'a str) -> &'a str {
        let (start, end) = self.name;
        names.get(start..end).unwrap_or_default()
    }
}

/// Returns how many bytes all names begin with.
fn common_len<'a>(mut names: impl Iterator<Item = &'a str>) -> usize {
    let mut common = names.next().unwrap_or_default().as_bytes();
    for name in names {
        let pairs = common.iter().zip(name.as_bytes());
        let len = pairs.take_while(|(a, b)| a == b).count();
        common = common.get(..len).unwrap_or_default();
    }
    common.len()
}

/// Refuses the first member, in the order in which they were read, whose name an earlier one has.
fn refuse_repeated(sorted: &[(NameKey, &Member)], names: &str) -> Result<(), YamlError> {
    let mut first: Option<(&Member, &Member)> = None;
    for pair in sorted.windows(2) {
        if let [(key, earlier), (next, later)] = pair
            && key == next
            && earlier.name(names) == later.name(names)
            && first.is_none_or(|(_, other)| later.span.start < other.span.start)
        {
            first = Some((earlier, later));
        }
    }
    let Some((earlier, later)) = first else {
        return Ok(());
    };
    let shown: String = later.name(names).chars().take(40).collect();
    let (refusal, message) = if earlier.derived == later.derived {
        (YamlRefusal::Syntax, format!("duplicate key `{shown}`"))
    } else {
        let message = format!("two keys that are both `{shown}` as text");
        (YamlRefusal::Unsupported, message)
    };
    Err(YamlError::new(refusal, message, later.line))
}
