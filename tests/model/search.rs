//! Every reachable state, breadth first, so that the first violation found has the shortest trace.

use super::net::{Bits, Net, Outcome, Verdict};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    done: Bits,
    memory: Vec<u64>,
}

#[derive(Clone)]
struct Explored(Arc<Net>);

impl Explored {
    fn can_run<'a>(&'a self, state: &'a State) -> impl Iterator<Item = usize> + 'a {
        (0..self.0.steps.len()).filter(|&v| self.0.may_run(v, &state.done, &state.memory))
    }

    fn harmful(&self, state: &State) -> Option<usize> {
        self.can_run(state).find(|&v| self.0.harm(v, &state.done, &state.memory).is_some())
    }

    fn stuck(&self, state: &State) -> bool {
        self.can_run(state).next().is_none() && !self.0.goal.without(&state.done).is_empty()
    }
}

impl Model for Explored {
    type State = State;
    type Action = usize;

    fn init_states(&self) -> Vec<State> {
        vec![State { done: Bits::default(), memory: self.0.memory.clone() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<usize>) {
        actions.extend(self.can_run(state));
    }

    fn next_state(&self, state: &State, v: usize) -> Option<State> {
        let mut next = state.clone();
        next.done.set(v);
        self.0.apply(v, &mut next.memory);
        Some(next)
    }

    // One property, because the checker stops at once only when all have been found.
    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(SOUND, |model, state| model.harmful(state).is_none() && !model.stuck(state))]
    }
}

const SOUND: &str = "no step does harm and every wait ends";

/// `None` where the limit of states was reached without a verdict.
pub fn search(net: &Arc<Net>, limit: usize) -> Option<Outcome> {
    let model = Explored(net.clone());
    let checker = model
        .clone()
        .checker()
        .threads(1)
        .finish_when(HasDiscoveries::Any)
        .target_state_count(limit)
        .spawn_bfs()
        .join();
    let states = checker.unique_state_count();
    let Some(path) = checker.discovery(SOUND) else {
        // The count of generated states is what the limit is compared with.
        return (checker.state_count() < limit).then_some(Outcome {
            verdict: Verdict::Safe,
            trace: vec![],
            states,
        });
    };
    let end = path.last_state().clone();
    let mut trace = path.into_actions();
    let verdict = match model.harmful(&end) {
        Some(v) => {
            trace.push(v);
            Verdict::Unsafe
        }
        None => Verdict::Hang,
    };
    Some(Outcome { verdict, trace, states })
}
