//! What would be planned for a model now, for whoever asks.

use thiserror::Error;

use super::HiveNode;
use super::desk::Local;
use crate::house::place::{NoRoute, Plan};
use crate::shell::library;

/// A plan, or why there is none.
#[derive(Debug)]
pub struct Planned {
    /// The model's name.
    pub model: String,
    /// Whether all of it fits on this node, so that it would not be split.
    pub fits_here: bool,
    /// The plan.
    pub plan: Result<Plan, NoRoute>,
}

/// Why nothing can be said.
#[derive(Debug, Error)]
pub enum PlanningError {
    /// The model is not here.
    #[error("the model {asked:?} is not known to this node, which knows {names}")]
    Unknown {
        /// Who was asked for.
        asked: String,
        /// Who is known.
        names: String,
    },
    /// No model is here.
    #[error("no model is known to this node; start it with --model or --lend")]
    NoModel,
    /// The node stops.
    #[error("the node is stopping; ask again when it runs")]
    Stopping,
}

impl HiveNode {
    /// What would be planned for the model called `asked` now; for the one that it has computed over
    /// the hive, or any that it knows, where nobody is named.
    ///
    /// # Errors
    /// See [`PlanningError`].
    pub async fn planned(&self, asked: Option<&str>) -> Result<Planned, PlanningError> {
        let known = self.lender.known();
        let local = match asked {
            Some(asked) => known.iter().find(|local| is_called(local, asked)),
            None => {
                let view = self.hub.look().await.ok_or(PlanningError::Stopping)?;
                let wanted = view.models.first().map(|model| model.name.clone());
                let wanted = wanted.and_then(|name| known.iter().find(|l| l.manifest.name == name));
                wanted.or(known.first())
            }
        };
        let Some(local) = local else {
            let names: Vec<_> = known.iter().map(|local| library::name(&local.path)).collect();
            return Err(match asked {
                None => PlanningError::NoModel,
                Some(_) if known.is_empty() => PlanningError::NoModel,
                Some(asked) => PlanningError::Unknown {
                    asked: asked.chars().take(64).collect(),
                    names: names.join(", "),
                },
            });
        };
        let want = self.wish(&local.manifest, &self.settings);
        let (model, fits_here) = (library::name(&local.path), want.fits_here());
        let plan = self.hub.plan(want).await.ok_or(PlanningError::Stopping)?;
        Ok(Planned { model, fits_here, plan })
    }
}

/// Whether a model is known by a name: its file's, its path, or that in its manifest.
fn is_called(local: &Local, asked: &str) -> bool {
    let file = library::name(&local.path);
    let plain = asked.strip_suffix(".gguf").unwrap_or(asked);
    file == plain || local.manifest.name == asked || local.path.as_os_str() == asked
}
