//! The places of one request's answers, heard together.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use crate::shell::line::{Event, Place};

/// Places that belong together. Dropping it gives all of them up.
#[derive(Debug)]
pub struct Group {
    /// By choice; `None` where the answer is complete.
    places: Vec<Option<Place>>,
    /// Whose turn it is to be looked at first, so that no answer waits for another's.
    turn: usize,
}

impl Group {
    /// Of `places`, one for each choice.
    pub fn new(places: Vec<Place>) -> Self {
        Self { places: places.into_iter().map(Some).collect(), turn: 0 }
    }

    /// How many there are, complete ones among them.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// What happens next, and to which choice; `None` when all are complete. An event of `None`
    /// says that the worker is gone. No event is lost when this is dropped.
    pub async fn event(&mut self) -> Option<(usize, Option<Event>)> {
        if self.places.iter().all(Option::is_none) {
            return None;
        }
        let count = self.places.len();
        let (places, turn) = (&mut self.places, self.turn);
        let (choice, event) = poll_fn(|context| {
            for step in 0..count {
                let choice = (turn + step) % count;
                let Some(place) = &mut places[choice] else { continue };
                if let Poll::Ready(event) = pin!(place.event()).poll(context) {
                    return Poll::Ready((choice, event));
                }
            }
            Poll::Pending
        })
        .await;
        self.turn = (choice + 1) % count;
        if !matches!(event, Some(Event::Begun | Event::Heard(_))) {
            self.places[choice] = None;
        }
        Some((choice, event))
    }
}
