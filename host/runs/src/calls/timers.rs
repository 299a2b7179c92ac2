//! `timers`, and the timers of WASI.

use agent_host_protocol::{ApiError, Timestamp};
use agent_host_sandbox::TimeCalls;
use futures_util::future::BoxFuture;

use super::RunCalls;
use crate::execution::call::Call;

impl TimeCalls for RunCalls {
    /// Asking moves the clock, as every host call does, and the clock has the answer.
    fn now(&mut self) -> BoxFuture<'_, Timestamp> {
        Box::pin(async move {
            let run = &*self.run;
            run.tick("timers.now", run.journal.digest(&()), async {}).await;
            run.journal.clock().now_ms()
        })
    }

    fn sleep_until(&mut self, at: Timestamp) -> BoxFuture<'_, Result<(), ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let effect = async |()| {
                run.wait_until(at.saturating_mul(1_000).saturating_sub(run.journal.clock().began_us())).await;
                Ok(())
            };
            run.pass(Call::read("timers.sleep-until", run.journal.digest(&at)), || Ok(()), effect).await.outcome
        })
    }

    fn wait_until(&mut self, elapsed_us: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let run = &*self.run;
            run.tick("wasi.wait", run.journal.digest(&elapsed_us), run.wait_until(elapsed_us)).await;
        })
    }
}
