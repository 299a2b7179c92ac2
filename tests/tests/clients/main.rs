//! Clients that others wrote, against the real binary: AG-UI, the front ends of others and the chat page in a
//! browser, programs made from the OpenAPI document.

mod agui;
mod chat;
#[cfg(target_os = "linux")]
mod coding_agents;
mod frontends;
mod openapi;
