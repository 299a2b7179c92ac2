//! A component like any other, and no plugin: it exports no runner.

#![allow(unsafe_code, missing_docs, unreachable_pub, clippy::allow_attributes_without_reason, reason = "generated")]

wit_bindgen::generate!({
    inline: r#"
        package test:wrong-world;

        interface greeter {
            greet: func(name: string) -> string;
        }

        world wrong-world {
            export greeter;
        }
    "#,
    world: "wrong-world",
    generate_all,
});

#[allow(dead_code, reason = "nothing calls the exports where this is not built for wasm")]
struct Greeter;

impl exports::test::wrong_world::greeter::Guest for Greeter {
    fn greet(name: String) -> String {
        format!("Hello, {name}!")
    }
}

#[cfg(target_family = "wasm")]
export!(Greeter);
