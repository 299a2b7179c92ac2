//! Events that come by a clock or by a signed request, and results that go to webhooks: nothing twice, nothing lost, whatever
//! becomes of the host and of those whom it talks to.

use crate::support;

mod receiver;

mod deliveries;
mod hooks;
mod schedules;
