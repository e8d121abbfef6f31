//! The CSI driver.

/// Flags of `basalt csi`.
#[derive(Debug, Clone, clap::Args)]
pub struct CsiArgs {
    /// Socket to serve on, as unix:///path.
    #[arg(long, env = "CSI_ENDPOINT", default_value = "unix:///run/basalt/csi.sock")]
    pub endpoint: String,
}

/// Why the driver stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {}

/// Serves until a signal ends it.
pub async fn run(_args: CsiArgs) -> Result<(), RunError> {
    Ok(())
}
