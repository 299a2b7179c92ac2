//! Events that come by a clock or by a signed request, and results that go to webhooks: nothing twice, nothing lost, whatever
//! becomes of the host and of those whom it talks to.

#[path = "../durability/support.rs"]
#[allow(dead_code, reason = "written for more tests than these")]
mod support;

mod receiver;

mod deliveries;
mod hooks;
mod schedules;
