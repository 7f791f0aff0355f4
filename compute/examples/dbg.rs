use compute::engine::*;
use compute::numeric::block::*;
fn main() {
    let p = std::env::args().nth(1).unwrap();
    let lg = std::env::args().nth(2).unwrap();
    let m = Model::load(
        p.as_ref(),
        &LoadOptions { threads: 1, kernels: KernelChoice::Reference },
        &mut |_, _| {},
    )
    .unwrap();
    let toks: Vec<u32> = std::fs::read_to_string("/work/shared/fixtures/logits/tokens.txt")
        .unwrap()
        .split_whitespace()
        .map(|x| x.parse().unwrap())
        .collect();
    let refl: Vec<f32> = std::fs::read(lg)
        .unwrap()
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let mut s = m.session(64);
    s.logits_each(&toks, &mut |i, l| {
        let r = &refl[i * 256..][..256];
        let d: f64 = l.iter().zip(r).map(|(a, b)| (*a as f64) * (*b as f64)).sum();
        let n = |x: &[f32]| x.iter().map(|a| (*a as f64).powi(2)).sum::<f64>().sqrt();
        if i < 6 {
            println!("{i} cos {:.5} norms {} {}", d / n(l) / n(r), n(l), n(r));
        }
    })
    .unwrap();
    let e = m.embed(&toks[..1]).unwrap();
    println!("{:?}", (0..8).map(|i| value(e.view(), i)).collect::<Vec<_>>());
    for h in 1..=m.halves() {
        let mut st = m.stage(0..h, 8);
        let mut r = e.clone();
        st.feed(&mut r).unwrap();
        println!("{h} {:?}", (0..6).map(|i| value(r.view(), i)).collect::<Vec<_>>());
    }
}
