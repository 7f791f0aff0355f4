//! What a part of a model is not able to do, it refuses, and stays as it was.

use compute::engine::{
    Beginning, Ends, Feed, LoadError, Part, Returned, StageFeed, StepError, Wanted, front,
    pass_rows, step,
};
use compute::numeric::block::BlockVec;

use crate::given::{file, part, try_load, whole};

const NAME: &str = "llama-Q4_0";

#[test]
fn a_front_gives_no_logits_by_itself() {
    let model = part(&file(NAME), 1, 0..1, Ends::Here);
    let refused = StepError::HalvesElsewhere { loaded: 0..1, wanted: 0..model.halves() };
    let mut session = model.session(10);
    assert_eq!(session.logits(&[1]).unwrap_err(), refused);
    assert_eq!(session.feed(&[1]).unwrap_err(), refused);
    assert_eq!(session.logits_each(&[1], &mut |_, _| {}).unwrap_err(), refused);
    let mut feeds = [Feed { session: &mut session, tokens: &[1], wanted: Wanted::Last }];
    assert_eq!(step(&mut feeds, &mut |_| panic!("refused")).unwrap_err(), refused);
    assert_eq!(session.position(), 0);
    let said = refused.to_string();
    assert!(said.contains("0 to 1 are loaded here"), "{said}");
}

#[test]
fn a_part_without_ends_takes_no_tokens_and_gives_no_logits() {
    let model = part(&file(NAME), 1, 0..2, Ends::Elsewhere);
    assert_eq!(model.embed(&[1]).unwrap_err(), StepError::EndsElsewhere);
    let rows = BlockVec::zeros(model.summary().width);
    let refused = model.logits_of(rows.view(), &mut |_, _| panic!("refused"));
    assert_eq!(refused.unwrap_err(), StepError::EndsElsewhere);
    let returned = [Returned { rows: rows.view(), wanted: Wanted::Vectors }];
    let refused = model.heads(&returned, &mut |_| panic!("refused"));
    assert_eq!(refused.unwrap_err(), StepError::EndsElsewhere);
    let mut session = model.session(10);
    let mut feeds = [Feed { session: &mut session, tokens: &[1], wanted: Wanted::Nothing }];
    assert_eq!(front(&mut feeds).unwrap_err(), StepError::EndsElsewhere);
}

#[test]
fn a_part_from_the_middle_is_no_front() {
    let model = part(&file(NAME), 1, 1..3, Ends::Here);
    let mut session = model.session(10);
    let mut feeds = [Feed { session: &mut session, tokens: &[1], wanted: Wanted::Nothing }];
    let refused = StepError::HalvesElsewhere { loaded: 1..3, wanted: 0..3 };
    assert_eq!(front(&mut feeds).unwrap_err(), refused);
}

#[test]
fn a_stage_of_what_is_not_loaded_is_refused() {
    let model = part(&file(NAME), 1, 1..3, Ends::Elsewhere);
    for (start, end) in [(0, 2), (2, 4), (0, 1), (3, 9), (2, 1)] {
        let pages = model.pages_of(&(start..end), 1);
        let refused = model.stage_in(start..end, &pages, 10, Beginning::default()).unwrap_err();
        let wanted = StepError::HalvesElsewhere { loaded: 1..3, wanted: start..end };
        assert_eq!(refused, wanted);
    }
}

#[test]
fn a_part_that_the_model_has_not_is_refused() {
    let halves = whole(&file(NAME)).halves();
    for (start, end) in [(0, halves + 1), (2, 1), (usize::MAX, usize::MAX)] {
        let wanted = Part { halves: start..end, ends: Ends::Here };
        let error = try_load(&file(NAME), 1, Some(wanted)).unwrap_err();
        assert!(matches!(error, LoadError::Part { .. }), "{error}");
    }
}

#[test]
fn a_refused_pass_leaves_all_rows_and_stages_as_they_were() {
    let model = whole(&file(NAME));
    let width = model.summary().width;
    let halves = 0..3;
    let pages = model.pages_of(&halves, 2);
    let stage = |max| model.stage_in(halves.clone(), &pages, max, Beginning::default()).unwrap();
    let (mut first, mut second) = (stage(100), stage(100));
    first.feed(&mut model.embed(&[1, 2, 3]).unwrap()).unwrap();
    let mut bad = model.embed(&[1; 4]).unwrap();
    bad.m[width + 5] = i16::MIN;
    let mut ragged = model.embed(&[1; 4]).unwrap();
    ragged.m.truncate(width - 32);
    ragged.e.truncate(width / 32 - 1);
    let tall = |count: usize| model.embed(&vec![1; count]).unwrap();
    for (mut rows, error) in [
        (tall(33), StepError::NoPage { pages_max: 2 }),
        (tall(101), StepError::ContextFull { context_max: 100, wanted: 101 }),
        (bad, StepError::Encoding("a mantissa is -32768")),
        (ragged, StepError::Encoding("the rows are not as wide as the model")),
    ] {
        let mut good = model.embed(&[4]).unwrap();
        let before = (good.clone(), rows.clone());
        let mut feeds = [
            StageFeed { stage: &mut first, rows: &mut good },
            StageFeed { stage: &mut second, rows: &mut rows },
        ];
        assert_eq!(pass_rows(&mut feeds).unwrap_err(), error);
        assert!((good, rows) == before, "{error}");
        assert_eq!((first.position(), second.position(), pages.taken()), (3, 0, 1), "{error}");
    }
}
