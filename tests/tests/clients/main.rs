//! Clients that others wrote, against the real binary: AG-UI, the chat page in a browser, programs made from the OpenAPI document.

mod agui;
mod chat;
mod openapi;
