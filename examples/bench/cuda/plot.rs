//! Two pictures in one file: bandwidth against SMs, and time against tokens.

use super::list::Group;
use super::record::Record;
use super::tables::without;
use crate::common::Outcome;
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

const SIZE: (u32, u32) = (1500, 650);
/// How names of slotted cases begin.
const SLOTTED: &str = "ll_";
const FONT: &str = "sans-serif";
/// Where systems keep a plain font; DEEPEP_BENCH_FONT names another.
const FONTS: [&str; 5] = [
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
    "/usr/share/fonts/dejavu-sans-fonts/DejaVuSans.ttf",
    "/usr/share/fonts/truetype/liberation/LiberationSans-Regular.ttf",
    "/usr/share/fonts/liberation-sans/LiberationSans-Regular.ttf",
    "/usr/share/fonts/TTF/DejaVuSans.ttf",
];

/// Points of each line.
type Lines = BTreeMap<String, Vec<(f64, f64)>>;

/// Nothing where there are no sweeps to draw.
pub fn draw(file: &Path, records: &[Record]) -> Outcome<()> {
    let is_alone = records.iter().all(|record| record.setup == records[0].setup);
    let lines = |group: Group, point: fn(&Record) -> Option<(f64, f64)>| -> Lines {
        let mut lines = Lines::new();
        for record in records.iter().filter(|record| record.group == Some(group)) {
            let setup = if is_alone { String::new() } else { format!(", {}", record.setup) };
            lines.entry(name_of(&record.case) + &setup).or_default().extend(point(record));
        }
        lines.values_mut().for_each(|line| line.sort_by(|a, b| a.0.total_cmp(&b.0)));
        lines.retain(|_, line| !line.is_empty());
        lines
    };
    // Small operations are not about bandwidth.
    let by_sms = lines(Group::Sms, |r| {
        let is_small = r.case.starts_with(SLOTTED);
        Some((f64::from(r.sms?), r.gbps_off_rank?)).filter(|_| !is_small)
    });
    let by_tokens = lines(Group::Tokens, |r| Some((r.tokens? as f64, r.us_median?)));
    if by_sms.is_empty() && by_tokens.is_empty() {
        println!("no sweeps over SMs or tokens to draw");
        return Ok(());
    }
    load_font()?;
    let area = BitMapBackend::new(file, SIZE).into_drawing_area();
    let drawn = area.fill(&WHITE).map_err(|error| error.to_string()).and_then(|()| {
        let (left, right) = area.split_horizontally(SIZE.0 / 2);
        picture(&left, "off-rank GB/s against SMs", &by_sms)?;
        picture(&right, "microseconds against tokens per rank", &by_tokens)
    });
    drawn
        .and_then(|()| area.present().map_err(|error| error.to_string()))
        .map_err(|error| format!("cannot draw {}: {error}", file.display()))
}

fn load_font() -> Outcome<()> {
    let named = std::env::var("DEEPEP_BENCH_FONT").ok();
    let bytes = named.as_deref().into_iter().chain(FONTS).find_map(|path| std::fs::read(path).ok());
    let bytes = bytes.ok_or("no font for the plot; name a .ttf file in DEEPEP_BENCH_FONT")?;
    plotters::style::register_font(FONT, FontStyle::Normal, Box::leak(bytes.into_boxed_slice()))
        .map_err(|_| "the font for the plot cannot be read".to_string())
}

/// The case without what the axis says.
fn name_of(case: &str) -> String {
    without(&without(case, "sm"), "t").replace('_', " ")
}

fn picture<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    title: &str,
    lines: &Lines,
) -> Outcome<()> {
    let text = |error: DrawingAreaErrorKind<DB::ErrorType>| error.to_string();
    let points = || lines.values().flatten();
    let most = |value: fn(&(f64, f64)) -> f64| points().map(value).fold(1.0, f64::max);
    let (x, y) = (most(|p| p.0), most(|p| p.1));
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 22))
        .margin(15)
        .x_label_area_size(35)
        .y_label_area_size(60)
        .build_cartesian_2d((1.0..x.max(2.0)).log_scale(), 0.0..y * 1.1)
        .map_err(text)?;
    chart.configure_mesh().label_style((FONT, 14)).x_labels(8).draw().map_err(text)?;
    for (i, (name, line)) in lines.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let style = color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.iter().copied(), style).point_size(3))
            .map_err(text)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    if !lines.is_empty() {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .label_font((FONT, 14))
            .draw()
            .map_err(text)?;
    }
    Ok(())
}
