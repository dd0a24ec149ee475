//! Loss curves as an SVG.

use std::path::Path;

use anyhow::{anyhow, Result};
use plotters::prelude::*;

/// A curve and how it is drawn.
pub struct Curve<'a> {
    pub name: &'a str,
    pub color: RGBColor,
    /// In pixels.
    pub width: u32,
    pub losses: &'a [f32],
}

const SIZE: (u32, u32) = (960, 540);

/// Draws losses over steps, each curve over the ones before.
pub fn draw(path: &Path, curves: &[Curve]) -> Result<()> {
    let losses = || curves.iter().flat_map(|curve| curve.losses.iter().copied());
    let (low, high) = losses().fold((f32::INFINITY, 0.), |(low, high), loss| {
        (loss.min(low), loss.max(high))
    });
    let steps = curves.iter().map(|curve| curve.losses.len()).max();
    let failed = |err| anyhow!("{} cannot be drawn: {err}", path.display());

    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    let drawn = || -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d(0..steps.unwrap_or(0).max(1), low * 0.95..high * 1.02)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", 15))
            .x_desc("step")
            .y_desc("cross-entropy in nats per character")
            .draw()?;
        for curve in curves {
            let points = curve.losses.iter().copied().enumerate();
            let style = curve.color.stroke_width(curve.width);
            chart
                .draw_series(LineSeries::new(points, style))?
                .label(curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
        }
        chart
            .configure_series_labels()
            .label_font(("sans-serif", 15))
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        area.present()?;
        Ok(())
    };
    drawn().map_err(failed)
}
