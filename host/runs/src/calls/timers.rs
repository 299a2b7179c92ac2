//! `timers`, and the timers of WASI.

use agent_host_protocol::{ApiError, Timestamp};
use agent_host_sandbox::TimeCalls;
use async_trait::async_trait;

use super::RunCalls;
use crate::execution::gate::{Call, Entered};

fn call<'a>(action: &'a str, asked: crate::record::journal::Asked) -> Call<'a> {
    Call { action, resource: None, scope: None, bytes: 0, asked }
}

#[async_trait]
impl TimeCalls for RunCalls {
    /// Asking moves the clock, as every host call does, and the clock has the answer.
    async fn now(&mut self) -> Timestamp {
        let run = &*self.run;
        if let Entered::Live(ticket) = run.enter::<()>(&call("timers.now", run.journal.asked(&()))).await {
            // It has no way to refuse, so the rate is kept by making it wait.
            run.is_not_faster_than_allowed().await;
            let _ = run.settle(&ticket, &Ok(())).await;
            run.writer.flush_if_full().await;
        }
        run.journal.clock().now_ms()
    }

    async fn sleep_until(&mut self, at: Timestamp) -> Result<(), ApiError> {
        let run = &*self.run;
        let effect = async {
            run.wait_until(at.saturating_mul(1_000).saturating_sub(run.journal.clock().began_us())).await;
            Ok(())
        };
        run.pass(call("timers.sleep-until", run.journal.asked(&at)), || Ok(()), effect).await
    }

    async fn wait_until(&mut self, elapsed_us: u64) {
        let run = &*self.run;
        if let Entered::Live(ticket) = run.enter::<()>(&call("wasi.wait", run.journal.asked(&elapsed_us))).await {
            run.is_not_faster_than_allowed().await;
            run.wait_until(elapsed_us).await;
            let _ = run.settle(&ticket, &Ok(())).await;
            run.writer.flush_if_full().await;
        }
    }
}
