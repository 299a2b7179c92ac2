//! Models, tool servers and webhooks, against real servers that misbehave.

mod models;
mod tools;
mod webhook;
