//! Who may do what: the rights that each operation asks for, beside its description.
//!
//! An operation cannot be described without its row, and the server serves none that is not described. What a row says is
//! checked before a body is read: the scopes, and whether the caller may see what the path names.

use domain::ResourceKind;

/// What an operation asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// False when it asks for no key at all.
    pub key: bool,
    /// Scopes that are all needed.
    pub all_of: &'static [&'static str],
    /// Scopes of which one is needed; which one depends on what is asked for. None when this is empty.
    pub one_of: &'static [&'static str],
    /// Where the Workspace is named.
    pub place: WorkspaceRule,
}

/// What ties an operation to a Workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceRule {
    /// Nothing: it is about the server.
    Unplaced,
    /// The resource that the first parameter of the path names.
    InPath(ResourceKind),
    /// The governed session that the first parameter of the path names.
    Governed,
    /// The workflow of governed sessions that the first parameter of the path names, by its id or by one of its handoffs.
    GovernedWorkflow,
    /// Something that the body or the query names.
    InBody,
    /// The answer shows what the caller may see.
    Filtered,
    /// It concerns all Workspaces: a caller that is bound to some is refused in these words.
    Every(&'static str),
}

/// For everybody.
pub(crate) const PUBLIC: Access = Access {
    key: false,
    all_of: &[],
    one_of: &[],
    place: WorkspaceRule::Unplaced,
};

pub(crate) const fn needs(all_of: &'static [&'static str], place: WorkspaceRule) -> Access {
    Access {
        key: true,
        all_of,
        one_of: &[],
        place,
    }
}

pub(crate) const fn needs_one_of(one_of: &'static [&'static str], place: WorkspaceRule) -> Access {
    Access {
        key: true,
        all_of: &[],
        one_of,
        place,
    }
}
