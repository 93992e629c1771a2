//! Parse, run, map the error to an exit code.

mod commands;

use std::process::ExitCode;

use retsu_collector::cli::{self, Command};

fn main() -> ExitCode {
    let outcome = match cli::parse() {
        Command::Run(args) => commands::run(&args),
        Command::Check(args) => commands::check(&args),
        Command::Schema(args) => commands::schema(&args),
        #[cfg(feature = "demo")]
        Command::Demo(args) => commands::demo(args),
        #[cfg(feature = "demo")]
        Command::DemoServer(args) => commands::demo_server(args),
        #[cfg(feature = "demo")]
        Command::DemoCollector(args) => commands::demo_collector(args),
        Command::Verify(args) => commands::verify(&args),
        Command::Version => commands::version(),
    };
    match outcome {
        Ok(()) => ExitCode::from(cli::EXIT_STOPPED),
        Err(failure) => {
            // An error of the library tells its causes itself.
            if let Some(error) = failure.error {
                commands::tell(&error);
            }
            ExitCode::from(failure.code)
        }
    }
}
