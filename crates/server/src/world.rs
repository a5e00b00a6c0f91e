//! The engine's ports on the real world: clock, ids and tasks of this process.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use domain::Timestamp;
use engine::port::{BoxFuture, Clock, Ids, Spawn};

/// The system's clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // Before 1970 is as good as 1970: such a clock is wrong either way.
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let micros = since.unwrap_or_default().as_micros();
        Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Ids that sort by time, and salts. Their random bits come from a generator in each thread that the operating system seeds
/// again and again: to ask it for every id would be three calls of the kernel a request.
#[derive(Debug, Clone, Copy)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn body(&self) -> String {
        body_at(SystemTime::now())
    }

    fn salt(&self) -> String {
        format!("{:032x}", rand::random::<u128>())
    }
}

/// Returns a body of an id. The library panics before 1970: then ids do not ascend, and are as distinct as ever.
fn body_at(now: SystemTime) -> String {
    let id = match now < UNIX_EPOCH {
        true => uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 0, 0)),
        false => uuid::Uuid::now_v7(),
    };
    id.simple().to_string()
}

/// Tasks of the running tokio runtime.
#[derive(Debug, Clone, Copy)]
pub struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        drop(tokio::spawn(future));
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        drop(tokio::task::spawn_blocking(work));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ap_env_08_bodies_are_url_safe_distinct_and_ascending() {
        let bodies: Vec<String> = (0..100).map(|_| RandomIds.body()).collect();
        assert!(bodies.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(bodies[0].bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(RandomIds.salt(), RandomIds.salt());
        assert!(SystemClock.now() > Timestamp::parse("2026-01-01T00:00:00Z").unwrap());
    }

    #[test]
    fn f15_a_clock_before_1970_makes_ids_all_the_same() {
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_ne!(body_at(before), body_at(before));
        assert_eq!(body_at(before).len(), RandomIds.body().len());
    }
}
