//! `timers`, and the timers of WASI.

use agent_host_protocol::{ApiError, Timestamp};
use agent_host_sandbox::TimeCalls;
use async_trait::async_trait;

use super::RunCalls;
use crate::execution::call::Call;

#[async_trait]
impl TimeCalls for RunCalls {
    /// Asking moves the clock, as every host call does, and the clock has the answer.
    async fn now(&mut self) -> Timestamp {
        let run = &*self.run;
        run.tick("timers.now", run.journal.digest(&()), async {}).await;
        run.journal.clock().now_ms()
    }

    async fn sleep_until(&mut self, at: Timestamp) -> Result<(), ApiError> {
        let run = &*self.run;
        let effect = async |()| {
            run.wait_until(at.saturating_mul(1_000).saturating_sub(run.journal.clock().began_us())).await;
            Ok(())
        };
        run.pass(Call::read("timers.sleep-until", run.journal.digest(&at)), || Ok(()), effect).await.outcome
    }

    async fn wait_until(&mut self, elapsed_us: u64) {
        let run = &*self.run;
        run.tick("wasi.wait", run.journal.digest(&elapsed_us), run.wait_until(elapsed_us)).await;
    }
}
