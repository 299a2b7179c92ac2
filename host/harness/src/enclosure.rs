//! The means that confine the processes of one run.

use std::{io, path::PathBuf};

use crate::{
    bubblewrap::Bubblewrap, confinement::Confinement, door::Door, launcher::Isolation, process::ProcessPlan, proxy::Proxy,
    sandbox::Sandbox,
};

/// The port of the proxy in a sandbox, whose ports nobody else has.
const PROXY_PORT: u16 = 3128;
/// Variables by which programs find a proxy.
const PROXY_VARIABLES: [&str; 6] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
/// Variables with the hosts that are reached without it.
const NO_PROXY_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// The loopback interface of the sandbox: servers of the agent's own, and the ports of the machine that it has.
const WITHOUT_PROXY: &str = "127.0.0.1,localhost,::1";
/// The variable that has Node.js use a proxy.
const NODE: &str = "NODE_USE_ENV_PROXY";

/// The means that confine the processes of one run. The proxy ends with the value.
#[derive(Debug)]
pub(crate) enum Enclosure {
    /// None: the processes are those of the user.
    None,
    /// Landlock, and the door to a host on this machine.
    Landlock(Option<Door>),
    /// A sandbox for each process, and the proxy that they share.
    Bwrap {
        /// The program `bwrap`.
        bwrap: PathBuf,
        /// The way to the network.
        proxy: Proxy,
    },
}

impl Enclosure {
    /// Sandboxes whose network is this proxy.
    pub(crate) fn sandboxes(bubblewrap: &Bubblewrap, proxy: io::Result<Proxy>) -> Result<Self, String> {
        let proxy = proxy.map_err(|error| format!("the proxy of the sandbox cannot be started: {error}"))?;
        Ok(Self::Bwrap { bwrap: bubblewrap.program.clone(), proxy })
    }

    /// True if the processes are confined.
    pub(crate) const fn confines(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// The URL by which the processes reach the host at `base_url`.
    pub(crate) fn host_url(&self, base_url: &str) -> String {
        match self {
            Self::Landlock(Some(door)) => format!("http://127.0.0.1:{}", door.port()),
            _ => base_url.to_owned(),
        }
    }

    /// Confines a process to these paths and ports, and to the host at `base_url`.
    pub(crate) fn confine(&self, plan: &mut ProcessPlan, base_url: &str, mut confinement: Confinement) {
        plan.launch.isolation = match self {
            Self::None => Isolation::None,
            Self::Landlock(_) => {
                let host = self.host_url(base_url).parse::<http::Uri>().ok();
                confinement.ports.extend(host.and_then(|host| host.port_u16()));
                Isolation::Landlock(confinement)
            }
            Self::Bwrap { bwrap, proxy } => {
                let ports = proxy.local_ports();
                let proxy_port = (PROXY_PORT..u16::MAX).find(|port| !ports.contains(port)).unwrap_or(PROXY_PORT);
                let address = format!("http://127.0.0.1:{proxy_port}");
                plan.env.extend(PROXY_VARIABLES.map(|name| (name.to_owned(), address.clone())));
                plan.env.extend(NO_PROXY_VARIABLES.map(|name| (name.to_owned(), WITHOUT_PROXY.to_owned())));
                plan.env.insert(NODE.to_owned(), "1".to_owned());
                let mut confinement = Confinement { ports: ports.clone(), ..confinement };
                // By the name that it is started with, which may be a link.
                confinement.readable.insert(plan.launch.program.clone());
                let proxy = proxy.socket().to_owned();
                Isolation::Bwrap(Sandbox { bwrap: bwrap.clone(), confinement, proxy, proxy_port })
            }
        };
    }
}
