//! Clients that others wrote, against the real binary: AG-UI, the front ends of others and the chat page in a
//! browser, programs made from the OpenAPI document. And the first hour of somebody who installs the host.

mod agui;
mod chat;
#[cfg(target_os = "linux")]
mod coding_agents;
mod first_hour;
mod frontends;
mod openapi;
