//! Battery and mains.

use starship_battery::units::energy::watt_hour;
use starship_battery::{Manager, State};

/// What a machine runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Power {
    /// Charge of all batteries, percent; `None` where there is none.
    pub battery_percent: Option<u32>,
    /// Whether none of them is being emptied.
    pub mains: bool,
}

/// One battery.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    /// Energy in it, and what it holds when full, Wh.
    energy: f32,
    full: f32,
    draining: bool,
}

impl Power {
    /// As it is now. Where the system does not say, there is no battery.
    pub fn now() -> Self {
        let batteries = Manager::new().and_then(|manager| manager.batteries());
        let cells = batteries.into_iter().flatten().flatten().map(|battery| Cell {
            energy: battery.energy().get::<watt_hour>(),
            full: battery.energy_full().get::<watt_hour>(),
            draining: matches!(battery.state(), State::Discharging | State::Empty),
        });
        Self::of(&cells.collect::<Vec<_>>())
    }

    fn of(cells: &[Cell]) -> Self {
        let sum = |part: fn(&Cell) -> f32| cells.iter().map(part).sum::<f32>();
        let (energy, full) = (sum(|cell| cell.energy), sum(|cell| cell.full));
        // A battery that says neither is as good as empty.
        let share = if full > 0.0 { energy / full } else { 0.0 };
        let percent = (share * 100.0).round().clamp(0.0, 100.0) as u32;
        Self {
            battery_percent: (!cells.is_empty()).then_some(percent),
            mains: !cells.iter().any(|cell| cell.draining),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_battery_runs_on_mains() {
        assert_eq!(Power::of(&[]), Power { battery_percent: None, mains: true });
    }

    #[test]
    fn a_battery_counts_by_what_it_holds_and_one_that_drains_means_no_mains() {
        let cell = |energy, full, draining| Cell { energy, full, draining };
        let of = |cells: &[Cell]| Power::of(cells);
        let two = of(&[cell(10.0, 40.0, false), cell(0.0, 10.0, false)]);
        assert_eq!(two, Power { battery_percent: Some(20), mains: true });
        let draining = of(&[cell(50.0, 50.0, false), cell(25.0, 50.0, true)]);
        assert_eq!(draining, Power { battery_percent: Some(75), mains: false });
        let odd = of(&[cell(f32::NAN, 0.0, true)]);
        assert_eq!(odd, Power { battery_percent: Some(0), mains: false });
        assert_eq!(of(&[cell(60.0, 50.0, false)]).battery_percent, Some(100));
    }

    #[test]
    fn whatever_this_machine_runs_on_is_a_percentage() {
        assert!(Power::now().battery_percent.is_none_or(|percent| percent <= 100));
    }
}
