//! `kubectl confrev dashboard`: pages about workloads and sources, served on loopback with the user's own rights.

mod action;
mod assets;
mod compare;
mod digest_id;
mod follow;
mod guard;
mod layout;
mod links;
mod live;
mod model;
mod overview;
mod parts;
mod report;
mod rights;
mod row;
mod server;
mod settings;
mod source;
mod store;
mod workload;

use std::{path::PathBuf, sync::Arc};

use clap::Args;

use super::{
    failure::Failure,
    inventory::Inventory,
    objects::Scope,
    output,
    target::{Flags, Target},
};
use guard::Guard;
use model::Model;
use rights::Rights;
use server::Server;
use settings::Settings;

/// Options of `dashboard`.
#[derive(Debug, Args)]
pub(super) struct DashboardOptions {
    /// In all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// The port on 127.0.0.1. Default: a free one.
    #[arg(long, value_name = "PORT", default_value = "0", hide_default_value = true)]
    port: u16,
    /// Serve no action: nothing can be changed through the page.
    #[arg(long)]
    read_only: bool,
    /// Show the values of Secrets.
    #[arg(long)]
    show_values: bool,
    /// Write the pages to this folder as a report, and end.
    #[arg(short, long, value_name = "DIR", conflicts_with_all = ["port", "read_only"])]
    output: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

/// Runs the command until it is interrupted.
pub(super) async fn run(options: &DashboardOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let scope = if options.all_namespaces { Scope::All } else { Scope::Namespace(target.namespace.clone()) };
    let about = match &scope {
        Scope::All => format!("all namespaces of {}", target.url),
        Scope::Namespace(namespace) => format!("namespace {namespace} of {}", target.url),
    };
    let mut settings = Settings {
        show_values: options.show_values,
        read_only: options.read_only,
        guard: None,
        rights: Rights::default(),
        about,
    };
    if let Some(folder) = &options.output {
        settings.about = format!("{}, {:.0}", settings.about, jiff::Timestamp::now());
        let pages = report::write(&target, &scope, folder, &settings).await?;
        let index = folder.join("index.html");
        return output::print_line(&format!(
            "{} written: open {}",
            output::count(pages, "page"),
            index.display()
        ));
    }
    // A wrong cluster, or missing rights, are errors of the command rather than of a page.
    Inventory::read_workloads(&target, &scope).await?;
    let listener = server::listen(options.port).await?;
    let guard = Guard::new(listener.local_addr()?.port())?;
    settings.guard = Some(guard.clone());
    let model = Arc::new(Model::new(target, scope, settings.links()));
    let routes = server::routes(Server { model: Arc::clone(&model), settings }, guard.clone());
    output::print_line(&guard.address())?;
    output::note("open this address in a browser of this machine; end with Ctrl-C");
    tokio::select! {
        served = axum::serve(listener, routes) => Ok(served?),
        () = follow::all(Arc::clone(&model)) => Ok(()),
        () = model.show_changes() => Ok(()),
        () = model.look_up_reasons() => Ok(()),
        ended = tokio::signal::ctrl_c() => Ok(ended?),
    }
}
