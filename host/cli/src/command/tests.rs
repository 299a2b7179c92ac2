//! The command line: accepted and refused arguments.

use clap::CommandFactory;

use super::*;

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

#[test]
fn global_options_stand_anywhere() {
    let cli = parse("agent-host runs list --json --data-dir d --limit 5").unwrap();
    assert!(cli.global.json && cli.global.data_dir.is_some());
    assert!(parse("agent-host --json runs list").unwrap().global.json);
}

#[test]
fn invalid_command_lines_are_refused() {
    for line in [
        "agent-host",
        "agent-host run",
        "agent-host run echo text --file f",
        "agent-host run --binding b runner text",
        "agent-host run echo --config-json [1]",
        "agent-host run echo --timeout 0",
        "agent-host runs show 7",
        "agent-host runs list --limit 101",
        "agent-host runs journal 7",
        "agent-host runs record 7",
        "agent-host runs create --binding b hi --wait --stream",
        "agent-host replay",
        "agent-host replay a.json --until -1",
        "agent-host fork 01890a5d-ac96-774b-bcce-b302099a8057",
        "agent-host fork 7 --at 1",
        "agent-host conformance",
        "agent-host evidence export",
        "agent-host evidence verify",
        "agent-host conformance a.jsonl --expect everything",
        "agent-host fork 01890a5d-ac96-774b-bcce-b302099a8057 --at 1 --config-json [1]",
        "agent-host runs list --status done",
        "agent-host actions show 7",
        "agent-host actions show 01890a5d-ac96-774b-bcce-b302099a8057",
        "agent-host actions show 01890a5d-ac96-774b-bcce-b302099a8057.1/../x",
        "agent-host actions list --limit 101",
        "agent-host deliveries list --state lost",
        "agent-host deliveries list --limit 101",
        "agent-host deliveries retry 01890a5d-ac96-774b-bcce-b302099a8057",
        "agent-host deliveries retry 01890a5d-ac96-774b-bcce-b302099a8057 a/b",
        "agent-host deliveries retry 7 crm",
        "agent-host schedules",
        "agent-host actions list --run 01890a5d-ac96-774b-bcce-b302099a8057 --limit 5",
        "agent-host actions respond 01890a5d-ac96-774b-bcce-b302099a8057.1",
        "agent-host actions respond 01890a5d-ac96-774b-bcce-b302099a8057.1 maybe",
        "agent-host actions respond 01890a5d-ac96-774b-bcce-b302099a8057.1 submit --answer {",
        "agent-host serve --listen nowhere",
        "agent-host harness",
        "agent-host harness --server nowhere",
        "agent-host harness --server http://127.0.0.1:7070 doctor",
        "agent-host keys create",
        "agent-host keys create --scope everything",
        "agent-host keys create --scope admin --expires-in 5",
        "agent-host keys revoke ../runs",
        "agent-host knowledge add docs",
        "agent-host knowledge add docs . --meta year",
        "agent-host knowledge search docs word --top-k 51",
        "agent-host knowledge search docs word --filters [1]",
        "agent-host knowledge remove docs",
        "agent-host ledger backup",
        "agent-host ledger restore",
        "agent-host statistics --by workspace",
        "agent-host statistics --since yesterday",
        "agent-host -v --log debug runners",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn runs_respond_is_actions_respond() {
    let line = "respond 01890a5d-ac96-774b-bcce-b302099a8057.e7 submit --answer {} --reason r --token t";
    let by_action = parse(&format!("agent-host actions {line}")).unwrap().command;
    let by_run = parse(&format!("agent-host runs {line}")).unwrap().command;
    let (Command::Actions(actions::Actions::Respond(one)), Command::Runs(runs::Runs::Respond(other))) = (by_action, by_run)
    else {
        panic!("not respond")
    };
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
}

#[test]
fn a_port_is_enough_to_listen() {
    let Command::Serve(serve) = parse("agent-host serve --listen 8080").unwrap().command else { panic!("not serve") };
    assert_eq!(serve.listen.unwrap().to_string(), "127.0.0.1:8080");
}
