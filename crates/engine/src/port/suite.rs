//! One suite for every store: what the port promises, tested through the port alone.
//!
//! An adapter calls [`store_suite!`](crate::store_suite) with an expression that makes a [`Subject`], and gets one
//! test per behaviour. Commits are real ones: commands go through `decide` and `seal`, and a naive model beside
//! the store says what must be read back.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "this is test code, compiled only with the feature for tests"
)]

mod exclusion;
mod extras;
mod leases;
mod model;
mod reading;
mod sharing;
mod tree;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

pub use exclusion::*;
pub use extras::*;
pub use leases::*;
pub use model::{Model, Step, steps};
pub use reading::*;
pub use sharing::*;
pub use tree::*;

use super::Store;

/// A store under test.
pub trait Subject: Sized {
    /// Returns the store. The caller lets go of it before reopening.
    fn store(&self) -> Arc<dyn Store>;

    /// Ends the store as a clean stop would and opens it again.
    fn reopen(self) -> Self;
}

/// Runs a future on this thread. Stores need no runtime, so neither does their suite.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Makes one test per behaviour for the stores that an expression makes, such as `MemorySubject::default`; with `shared` before
/// it, for stores that are open more than once.
#[macro_export]
macro_rules! store_suite {
    (@either $make:expr) => {
        $crate::store_suite! { $make =>
            absent_things_read_as_none
            a_commit_reads_back
            lists_and_streams_agree_with_a_naive_filter
            things_are_listed_by_whatever_they_are_linked_to
            a_version_conflict_writes_nothing
            a_document_that_must_not_exist_and_does_is_a_conflict
            an_impossible_event_writes_nothing
            a_claim_in_use_is_a_conflict
            an_expired_claim_is_gone_and_its_scope_free
            claims_outlive_a_clock_that_jumps
            a_commit_needs_the_epochs_it_names
            a_lease_that_is_held_cannot_be_taken
            a_holder_that_is_late_loses_what_it_holds
            only_what_is_as_it_was_seen_is_claimed
            taking_over_one_holder_leaves_the_others_alone
            a_holder_that_leaves_gives_everything_back
            leases_and_a_clock_that_jumps
            each_lease_is_claimed_once
            concurrent_commits_are_each_there_once
            blobs_of_every_size_read_back
            api_keys_are_added_replaced_and_listed
            reopening_shows_the_same
            the_newest_of_a_kind_is_the_last_created
            content_made_by_sealing_is_stored_with_the_commit
            heads_are_found_by_their_roots
            leaves_read_back_and_get_one_index_each
            a_tree_of_another_size_is_not_appended_to
            the_tree_is_the_same_after_reopening
        }
    };
    // For a store that several processes can have open.
    (shared $make:expr) => {
        $crate::store_suite! { @either $make }
        $crate::store_suite! { @beside $make }
    };
    (@beside $make:expr) => {
        $crate::store_suite! { $make =>
            a_handle_follows_what_the_other_commits
            two_handles_leave_no_hole
            what_the_other_handle_changed_is_a_conflict
            leases_hold_across_handles
            claims_live_as_long_whoever_writes
        }
    };
    // For a store that one process has to itself.
    ($make:expr) => {
        $crate::store_suite! { @either $make }
        $crate::store_suite! { $make =>
            taking_over_gives_every_lease_a_new_epoch
            news_come_after_the_commit_and_in_order
            a_subscriber_that_lags_is_told
        }
    };
    ($make:expr => $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::port::suite::$name($make);
            }
        )*
    };
}

#[cfg(test)]
mod memory {
    use super::*;
    use crate::port::MemoryStore;

    struct MemorySubject(Arc<MemoryStore>);

    impl MemorySubject {
        fn new() -> Self {
            Self(Arc::new(MemoryStore::new("suite001", [7; 32])))
        }
    }

    impl Subject for MemorySubject {
        fn store(&self) -> Arc<dyn Store> {
            Arc::clone(&self.0) as Arc<dyn Store>
        }

        fn reopen(self) -> Self {
            Self(Arc::new(self.0.reopened()))
        }
    }

    impl SharedSubject for MemorySubject {
        fn second_handle(&self) -> Arc<dyn Store> {
            self.store()
        }
    }

    crate::store_suite!(MemorySubject::new);

    crate::store_suite!(@beside MemorySubject::new);
}
